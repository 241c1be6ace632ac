//! Taking leave without losing anything.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::lab::{Lab, get};

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.file("a", "first");
    lab.file("b", "second");
    lab
}

#[test]
fn who_waits_for_nothing_is_closed_and_who_is_served_gets_all_of_it() {
    let mut lab = lab();
    let [idle, asking, begun, new] = [(); 4].map(|()| lab.connect());
    assert_eq!(lab.ask(idle, &get("/a")).status, 200);
    lab.hold_opens();
    lab.send(asking, get("/a"));
    let request = get("/b");
    let (half, rest) = request.split_at(10);
    lab.send(begun, half);

    let told = lab.drain();
    assert!(lab.is_shut_down(idle), "in order");
    for stream in [asking, begun, new] {
        assert!(!lab.is_shut_down(stream));
    }
    lab.answer_opens();
    // It was asked before.
    let response = lab.response(asking);
    assert_eq!(
        (response.status, response.header("Connection")),
        (200, None)
    );
    assert_eq!(response.body, b"first");
    assert!(lab.is_shut_down(asking));
    // These have come before, and have asked nothing yet.
    lab.send(begun, rest);
    let response = lab.response(begun);
    assert_eq!(response.header("Connection"), Some("close"));
    assert_eq!(response.body, b"second");
    let response = lab.ask(new, &get("/b"));
    assert_eq!(response.header("Connection"), Some("close"));
    assert_eq!(told.load(Ordering::Relaxed), 0);
    for stream in [idle, asking, begun, new] {
        assert!(lab.is_shut_down(stream) && !lab.is_aborted(stream));
        lab.finish(stream);
        assert!(lab.is_closed(stream));
    }
    lab.turn();
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

#[test]
fn of_requests_in_a_row_none_that_has_come_is_lost() {
    let mut lab = lab();
    let stream = lab.connect();
    lab.hold_opens();
    lab.send(stream, get("/a"));
    lab.drain();
    lab.send(stream, get("/b").repeat(2));
    lab.answer_opens();
    assert_eq!(lab.response(stream).body, b"first");
    let last = lab.response(stream);
    assert_eq!(
        (last.body, lab.is_shut_down(stream)),
        (b"second".to_vec(), true)
    );
    // A client whose response says that the connection closes knows that the next request was not
    // taken up.
    assert!(lab.received(stream).is_empty());
}

#[test]
fn it_says_that_no_connection_is_left_until_it_is_heard() {
    let mut lab = lab();
    assert_eq!(lab.next_turn_us(), None);
    let told = lab.drain();
    let next_us = lab.next_turn_us().unwrap();
    assert!((1..=1_000_000).contains(&next_us), "{next_us}");
    lab.turn();
    assert_eq!(told.load(Ordering::Relaxed), 1, "not in every turn");
    lab.pass(Duration::from_micros(next_us));
    lab.turn();
    assert_eq!(told.load(Ordering::Relaxed), 2);
    // Whose handshake was over too late.
    let stream = lab.connect();
    assert_eq!(lab.next_turn_us(), None);
    assert_eq!(
        lab.ask(stream, &get("/a")).header("Connection"),
        Some("close")
    );
}
