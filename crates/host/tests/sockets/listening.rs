//! Addresses that applications bind, and the listeners among them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use host::app::{
    AppEvent, Bind, BindError, BindingId, CloseReason, Owner, StreamId, StreamOption,
    StreamOptions, TrafficClass,
};

use crate::pair::Pair;

const APP: Owner = Owner(7);

fn at(address: &str) -> Bind {
    Bind::new(APP, address.parse().unwrap())
}

/// Has the server's stack listen.
fn listen(pair: &mut Pair, bind: &Bind, options: StreamOptions) -> BindingId {
    let stack = &mut pair.server.stack;
    let binding = stack.bind(bind).unwrap();
    stack.listen(binding, options).unwrap();
    binding
}

/// Opens a connection and waits until the client has it, or has lost it.
fn open(pair: &mut Pair, to: &str) -> StreamId {
    pair.client.app.server.events.clear();
    let stream = pair.connect(to).unwrap();
    pair.run_until(|pair| !pair.client.app.server.events.is_empty());
    stream
}

/// What the server's application got to accept, with the listener, the owner and the own address.
fn accepted(pair: &mut Pair) -> Vec<(Option<BindingId>, Option<Owner>, SocketAddr)> {
    let accepted: Vec<StreamId> = (pair.server.app.others.events.iter())
        .filter(|(_, event)| matches!(event, AppEvent::Accepted { .. }))
        .map(|(stream, _)| *stream)
        .collect();
    let mut found = Vec::new();
    for stream in accepted {
        pair.server.act(pair.now_us, |io| {
            let (local, _) = io.addresses(stream).unwrap();
            found.push((io.listener(stream), io.owner(stream), local));
        });
    }
    found
}

#[test]
fn a_listener_gets_connections_until_it_is_released() {
    let mut pair = Pair::new();
    let refused = pair.server.stack.bind(&at("10.77.0.3:81"));
    assert_eq!(refused, Err(BindError::NoAddress));
    let refused = pair.server.stack.bind(&at("10.77.0.2:80"));
    assert_eq!(refused, Err(BindError::InUse), "the server has it");
    let binding = pair.server.stack.bind(&at("10.77.0.2:81")).unwrap();
    open(&mut pair, "10.77.0.2:81");
    assert_eq!(
        pair.client.app.server.closed(),
        Some(CloseReason::Refused),
        "bound is not listening"
    );
    let options = StreamOptions::default();
    pair.server.stack.listen(binding, options).unwrap();
    open(&mut pair, "10.77.0.2:81");
    assert!(pair.client.app.server.has(&AppEvent::Connected));
    pair.run_until(|pair| !pair.server.app.others.events.is_empty());
    let local = "10.77.0.2:81".parse().unwrap();
    assert_eq!(accepted(&mut pair), [(Some(binding), Some(APP), local)]);

    pair.server.stack.release(binding);
    assert_eq!(
        pair.server.stack.listen(binding, options),
        Err(BindError::NoBinding)
    );
    open(&mut pair, "10.77.0.2:81");
    assert_eq!(pair.client.app.server.closed(), Some(CloseReason::Refused));
    // The port is free again at once, and the connection goes on.
    listen(&mut pair, &at("10.77.0.2:81"), options);
    assert_eq!(accepted(&mut pair).len(), 1);
    assert_eq!(pair.server.app.others.closed(), None);
}

#[test]
fn a_reuseport_group_shares_connections() {
    let mut pair = Pair::with_ports(50_000..=50_999);
    let group = Bind {
        reuse_port: Some(1000),
        ..at("0.0.0.0:81")
    };
    let members = [0, 1, 2].map(|_| listen(&mut pair, &group, StreamOptions::default()));
    for _ in 0..60 {
        open(&mut pair, "10.77.0.2:81");
        assert!(pair.client.app.server.has(&AppEvent::Connected));
    }
    pair.run_until(|pair| pair.server.stack.counters().connections_accepted == 60);
    let accepted = accepted(&mut pair);
    for member in members {
        let share = accepted.iter().filter(|it| it.0 == Some(member)).count();
        assert!(share > 5, "{share} of 60 for one of three");
    }
}

#[test]
fn a_full_listener_drops_handshakes_that_peers_repeat() {
    let mut pair = Pair::new();
    let binding = listen(&mut pair, &at("10.77.0.2:81"), StreamOptions::default());
    open(&mut pair, "10.77.0.2:81");
    pair.server
        .act(pair.now_us, |io| io.set_listener_room(binding, 0));
    pair.connect("10.77.0.2:81").unwrap();
    pair.client.app.server.events.clear();
    pair.run_until(|pair| pair.server.stack.counters().listen_overflows >= 2);
    assert!(
        pair.client.app.server.events.is_empty(),
        "neither opened nor refused"
    );
    pair.server
        .act(pair.now_us, |io| io.set_listener_room(binding, 1));
    pair.run_until(|pair| pair.client.app.server.has(&AppEvent::Connected));
}

#[test]
fn a_traffic_class_is_in_all_packets_and_changes_with_the_next() {
    let mut pair = Pair::with_ports(50_000..=50_999);
    let class = |v4| TrafficClass { v4, v6: 0xfc };
    let options = StreamOptions {
        traffic_class: class(0x28),
        ..StreamOptions::default()
    };
    listen(&mut pair, &at("10.77.0.2:81"), options);
    let stream = open(&mut pair, "10.77.0.2:81");
    pair.act(stream, |io, stream| {
        io.write(stream, b"hello");
    });
    pair.run_until(|pair| pair.client.app.server.received == b"hello");
    let dscp = |classes: &[u8]| {
        classes
            .iter()
            .map(|class| class & !3)
            .collect::<BTreeSet<_>>()
    };
    assert!(pair.classes.len() > 1);
    assert_eq!(dscp(&pair.classes), BTreeSet::from([0x28]));

    let (accepted, _) = pair.server.app.others.events[0];
    pair.server.act(pair.now_us, |io| {
        io.set_option(accepted, StreamOption::TrafficClass(class(0xb8)));
    });
    pair.classes.clear();
    pair.act(stream, |io, stream| {
        io.write(stream, b", world");
    });
    pair.run_until(|pair| pair.client.app.server.received == b"hello, world");
    assert_eq!(dscp(&pair.classes), BTreeSet::from([0xb8]));
}

#[test]
fn a_source_without_room_gets_no_answer_from_the_listeners_of_that_owner() {
    let mut pair = Pair::new();
    listen(&mut pair, &at("10.77.0.2:81"), StreamOptions::default());
    let other = Bind::new(Owner(8), "10.77.0.2:82".parse().unwrap());
    listen(&mut pair, &other, StreamOptions::default());
    let set = |pair: &mut Pair, source: &str, has_room: bool| {
        let source = source.parse().unwrap();
        pair.server.act(pair.now_us, |io| {
            io.set_source_room(APP, source, has_room);
        });
    };
    set(&mut pair, "10.77.0.9", false);
    open(&mut pair, "10.77.0.2:81");
    assert!(
        pair.client.app.server.has(&AppEvent::Connected),
        "another source"
    );
    set(&mut pair, "10.77.0.1", false);
    open(&mut pair, "10.77.0.2:82");
    assert!(
        pair.client.app.server.has(&AppEvent::Connected),
        "another owner"
    );
    pair.client.app.server.events.clear();
    pair.connect("10.77.0.2:81").unwrap();
    pair.run_until(|pair| pair.server.stack.counters().listen_overflows >= 2);
    assert!(pair.client.app.server.events.is_empty(), "no answer");
    set(&mut pair, "10.77.0.1", true);
    pair.run_until(|pair| pair.client.app.server.has(&AppEvent::Connected));
}

#[test]
fn a_deferred_connection_is_accepted_with_its_first_data_or_when_its_time_has_passed() {
    let mut pair = Pair::with_ports(50_000..=50_999);
    let options = StreamOptions {
        defer_accept: Some(Duration::from_secs(3)),
        ..StreamOptions::default()
    };
    listen(&mut pair, &at("10.77.0.2:81"), options);
    let stream = open(&mut pair, "10.77.0.2:81");
    let until_us = pair.now_us + 1_000_000;
    pair.run_until(|pair| pair.now_us >= until_us);
    assert!(
        pair.server.app.others.events.is_empty(),
        "{:?}",
        pair.server.app.others.events
    );
    pair.act(stream, |io, stream| {
        io.write(stream, b"hello");
    });
    pair.run_until(|pair| pair.server.app.others.received == b"hello");
    let events: Vec<_> = pair
        .server
        .app
        .others
        .events
        .iter()
        .map(|(_, event)| event)
        .collect();
    assert!(matches!(
        events[..2],
        [AppEvent::Accepted { .. }, AppEvent::Readable]
    ));

    // Without a word: after the time, as a kernel does.
    pair.run_until(|pair| pair.server.app.others.has(&AppEvent::Drained));
    pair.server.app.others.events.clear();
    let begun_us = pair.now_us;
    open(&mut pair, "10.77.0.2:81");
    pair.run_until(|pair| !pair.server.app.others.events.is_empty());
    let after_us = pair.now_us - begun_us;
    assert!((3_000_000..4_000_000).contains(&after_us), "{after_us}");
    assert!(matches!(
        pair.server.app.others.events[..],
        [(_, AppEvent::Accepted { .. })]
    ));

    // A peer that resets first was never there.
    pair.server.app.others.events.clear();
    let stream = open(&mut pair, "10.77.0.2:81");
    pair.act(stream, |io, stream| io.abort(stream));
    let until_us = pair.now_us + 5_000_000;
    pair.run_until(|pair| pair.now_us >= until_us);
    assert!(
        pair.server.app.others.events.is_empty(),
        "{:?}",
        pair.server.app.others.events
    );
}

#[test]
fn ports_of_zero_are_chosen_and_kept_from_connections() {
    let mut pair = Pair::new();
    // Of the two ephemeral ports, one is bound.
    let binding = pair.client.stack.bind(&at("0.0.0.0:0")).unwrap();
    let bound = pair.client.stack.bound_address(binding).unwrap();
    assert!((50_000..=50_001).contains(&bound.port()));
    pair.connect("10.77.0.2:80").unwrap();
    assert!(pair.connect("10.77.0.2:80").is_err());
    let local = SocketAddr::new("10.77.0.1".parse().unwrap(), bound.port());
    let to = "10.77.0.2:80".parse().unwrap();
    let stack = &mut pair.client.stack;
    assert!(
        stack
            .connect(pair.now_us, Owner(8), Some(local), to)
            .is_err()
    );
    assert!(stack.connect(pair.now_us, APP, Some(local), to).is_ok());
}

#[test]
fn each_application_hears_of_its_own_streams() {
    let mut pair = Pair::with_ports(50_000..=50_999);
    listen(&mut pair, &at("10.77.0.2:81"), StreamOptions::default());
    for (port, text) in [(80, b"server"), (81, b"others")] {
        let stream = open(&mut pair, &format!("10.77.0.2:{port}"));
        pair.act(stream, |io, stream| {
            io.write(stream, text);
            io.shutdown(stream);
        });
        pair.run_until(|pair| pair.client.app.server.closed().is_some());
        pair.client.app.server.received.clear();
    }
    let app = &pair.server.app;
    assert_eq!(
        (&app.server.received[..], &app.others.received[..]),
        (&b"server"[..], &b"others"[..])
    );
    for recorder in [&app.server, &app.others] {
        let [(_, AppEvent::Accepted { .. }), .., (_, last)] = &recorder.events[..] else {
            panic!("{:?}", recorder.events);
        };
        assert!(matches!(
            last,
            AppEvent::Closed {
                reason: CloseReason::Finished,
                ..
            }
        ));
    }
}
