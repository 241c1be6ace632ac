//! Downloads whose every byte is right.

use std::io::Write;
use std::time::Duration;

use host::app::AppEvent;
use tls::{Limits, Settings, Version};

use crate::client::Secured;
use crate::rig::answer;
use fakes::keys::SUITES;

#[test]
fn a_file_is_served_with_every_suite_although_the_host_has_none_of_its_bytes() {
    for suite in SUITES {
        let mut secured = Secured::new(suite);
        secured.ask(&["200000"]);
        let expected = answer(200_000);
        secured.run_until(|secured| secured.received.len() >= expected.len());
        assert!(secured.received == expected, "{suite:?}");
        let [agreed] = &secured.agreed()[..] else {
            panic!("one connection");
        };
        assert_eq!((agreed.suite, agreed.is_resumed), (suite, false));
        let counters = secured.rig.stack.counters();
        assert_eq!((counters.tls_handshakes, counters.tls_failed), (1, 0));
        assert_eq!((counters.events_invalid, counters.retransmissions), (0, 0));
        // The handshake, and nothing of the response, header included.
        assert!(counters.real_bytes < 2_000, "{}", counters.real_bytes);
        assert!(secured.world.sealed_again.get() < 20, "parts of records");
    }
}

#[test]
fn what_a_handshake_says_last_may_ride_with_the_first_records() {
    let mut secured = Secured::new(SUITES[0]);
    secured.run_until(|secured| !secured.client.is_handshaking());
    assert_eq!(secured.rig.stack.counters().sends, 0, "the host says it");
    secured.ask(&["10"]);
    secured.run_until(|secured| secured.received.len() == 12);
    assert_eq!(secured.rig.stack.counters().sends, 1);
}

#[test]
fn requests_on_one_connection_one_after_the_other_and_at_once() {
    for suite in [SUITES[1], SUITES[4]] {
        let mut secured = Secured::new(suite);
        for size in [1, 70_000, 0, 3_000] {
            secured.received.clear();
            secured.ask(&[&size.to_string()]);
            let expected = answer(size);
            secured.run_until(|secured| secured.received.len() >= expected.len());
            assert!(secured.received == expected, "{size}");
        }
        secured.received.clear();
        secured.ask(&["100", "0", "70000", "nonsense", "1"]);
        let sizes = [100, 0, 70_000].map(answer);
        let expected = [sizes.concat(), b"no".to_vec(), answer(1)].concat();
        secured.run_until(|secured| secured.received.len() >= expected.len());
        assert!(secured.received == expected);
        assert_eq!(secured.agreed().len(), 1);
        assert_eq!(secured.rig.stack.counters().events_invalid, 0);
    }
}

#[test]
fn a_session_is_resumed() {
    for suite in [SUITES[0], SUITES[3]] {
        let mut secured = Secured::new(suite);
        for _ in 0..2 {
            secured.ask(&["5000"]);
            secured.run_until(|secured| secured.received.len() == 5_002);
            assert!(secured.received == answer(5_000));
            secured.reconnect();
        }
        let resumed = secured
            .agreed()
            .iter()
            .map(|it| it.is_resumed)
            .collect::<Vec<_>>();
        assert_eq!(resumed, [false, true], "{suite:?}");
        let counters = secured.rig.stack.counters();
        assert_eq!(
            (counters.tls_handshakes, counters.tls_handshakes_resumed),
            (2, 1)
        );
    }
}

/// The client changes its key and asks for another of ours, again and again in the midst of a
/// download.
#[test]
fn a_client_asks_for_new_keys_amid_a_download() {
    for suite in SUITES
        .into_iter()
        .filter(|suite| suite.version == Version::Tls13)
    {
        let mut secured = Secured::new(suite);
        secured.ask(&["1000000"]);
        let expected = answer(1_000_000);
        let mut asked = 0;
        secured.run_until(|secured| !secured.received.is_empty());
        while secured.received.len() < expected.len() {
            if asked < 30 {
                secured.client.refresh_traffic_keys().unwrap();
                asked += 1;
            }
            secured.exchange();
            secured.step();
        }
        assert!(secured.received == expected);
        let counters = secured.rig.stack.counters();
        assert!(
            counters.tls_key_updates >= 2,
            "{}",
            counters.tls_key_updates
        );
        assert_eq!((counters.tls_failed, counters.events_invalid), (0, 0));
        assert!(secured.world.keys_max.get() >= 2);
    }
}

#[test]
fn the_server_replaces_its_key_amid_a_download() {
    let settings = Settings {
        limits: Limits {
            records_per_key_max: 5,
            ..Limits::default()
        },
        ..Settings::default()
    };
    let mut secured = Secured::with(SUITES[1], &settings, 1, |_| {});
    secured.ask(&["600000"]);
    let expected = answer(600_000);
    secured.run_until(|secured| secured.received.len() >= expected.len());
    assert!(secured.received == expected);
    let counters = secured.rig.stack.counters();
    assert!(counters.tls_key_updates > 5, "{}", counters.tls_key_updates);
    assert_eq!(counters.events_invalid, 0);
}

/// What it queues is bounded: an application that writes more than TLS takes gets an event when
/// there is room.
#[test]
fn an_application_that_writes_more_than_there_is_room_for_gets_an_event_when_there_is() {
    let mut secured = Secured::new(SUITES[0]);
    // Each answer is two bytes and a file, and what waits at a time is bounded.
    let lines = vec!["1"; 2_000];
    secured.ask(&lines);
    secured.rig.app.lenient = true;
    secured
        .run_until(|secured| secured.rig.stack.usage().files == 0 && secured.received.len() > 500);
    let writable = |event: &AppEvent| matches!(event, AppEvent::Writable);
    let told = secured.rig.app.count(writable);
    // This application gives up what is not taken; what it was told is not lost.
    assert!(told > 0 || secured.received.len() == 6_000, "{told}");
    assert_eq!(secured.rig.stack.counters().events_invalid, 0);
}

/// An application that reads late holds up the client, and gets all of it.
#[test]
fn requests_wait_for_an_application_that_reads_late() {
    let mut secured = Secured::new(SUITES[2]);
    secured.rig.app.reads_after = Some(Duration::from_millis(50));
    secured.run_until(|secured| !secured.client.is_handshaking());
    let requests = "rate 1000000000\n".repeat(20_000) + "100\n";
    let mut rest = requests.as_bytes();
    let begun_us = secured.rig.now_us;
    while !rest.is_empty() {
        let taken = secured.client.writer().write(rest).unwrap();
        rest = &rest[taken..];
        secured.exchange();
        secured.step();
    }
    secured.run_until(|secured| secured.received.len() == 102);
    assert!(secured.received == answer(100));
    // 64 KiB of it, and what TCP holds, at a time.
    let took_us = secured.rig.now_us - begun_us;
    assert!(took_us > 100_000, "{took_us}: it was not held up");
    assert_eq!(secured.rig.stack.counters().tls_failed, 0);
}
