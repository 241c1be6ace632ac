//! Text in SYNs: which is taken, who gets a cookie, and what the application hears.

use std::net::SocketAddr;

use contract::Event;
use host::OffloadPolicy;
use host::app::{AppEvent, Bind, Owner, StreamOptions};
use netdev::Port;
use wire::frame::TcpTemplate;
use wire::tcp::{FastOpen, Flags, Header, Options};

use crate::rig::{Rig, SERVER};

const DAY_US: u64 = 86_400_000_000;

/// A host that takes text of SYNs, and a link without its client.
fn taking() -> Rig {
    taking_with(|_| {})
}

fn taking_with(configure: impl FnOnce(&mut host::StackConfig)) -> Rig {
    let mut rig = Rig::with(|config| {
        config.fast_open = true;
        configure(config);
    });
    rig.client_is_mute = true;
    // The stack learns the link address of its peers.
    rig.inject_segment(peer(49_000), &syn(None), &[]);
    answer_to(&mut rig, 49_000);
    let reset = Header {
        seq: 8,
        flags: Flags::RST,
        ..Header::default()
    };
    rig.inject_segment(peer(49_000), &reset, &[]);
    rig.run_until(|rig| rig.stack.half_open() == 0);
    rig
}

fn peer(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 77, 0, 1], port))
}

fn syn(option: Option<FastOpen>) -> Header {
    Header {
        seq: 7,
        flags: Flags::SYN,
        window: 64_000,
        options: Options {
            mss: Some(1460),
            fast_open: option,
            ..Options::default()
        },
        ..Header::default()
    }
}

/// What the stack has answered to this port.
fn answer_to(rig: &mut Rig, port: u16) -> Header {
    rig.run_until(|rig| rig.strangers.contains_key(&port));
    rig.strangers.remove(&port).unwrap()
}

/// Asks for a cookie.
fn cookie(rig: &mut Rig, port: u16) -> FastOpen {
    rig.inject_segment(peer(port), &syn(Some(FastOpen::Request)), &[]);
    let syn_ack = answer_to(rig, port);
    assert_eq!((syn_ack.flags, syn_ack.ack), (Flags::SYN | Flags::ACK, 8));
    let cookie = syn_ack.options.fast_open.expect("a cookie");
    assert_ne!(cookie, FastOpen::Request);
    cookie
}

fn acks(rig: &mut Rig, port: u16, text: &[u8], option: FastOpen) -> u32 {
    rig.inject_segment(peer(port), &syn(Some(option)), text);
    answer_to(rig, port).ack
}

/// Covers: RFC 7413 §4.1.2, RFC 7413 §4.2.1, RFC 7413 §4.2.2
#[test]
fn text_with_a_good_cookie_is_accepted_and_answered_before_the_handshake_is_over() {
    let mut rig = taking();
    let cookie = cookie(&mut rig, 50_000);
    assert_eq!(rig.stack.half_open(), 1);
    rig.inject_segment(peer(50_001), &syn(Some(cookie)), b"3000\n");
    rig.run_until(|rig| rig.stack.counters().sends > 0);
    let [accepted, readable, ..] = &rig.app.events[..] else {
        panic!("{:?}", rig.app.events);
    };
    assert!(matches!(accepted, AppEvent::Accepted { peer: it, .. } if *it == peer(50_001)));
    assert_eq!(*readable, AppEvent::Readable);
    // The SYN,ACK has left before it.
    assert_eq!(rig.stack.half_open(), 1, "it is not in the SYN queue");
    let counters = rig.stack.counters();
    let counts = (counters.fast_opens, counters.fast_open_cookies_sent);
    assert_eq!(counts, (1, 1));
    assert_eq!(counters.connections_accepted, 1);

    let last = answer_to(&mut rig, 50_001);
    assert_eq!(last.ack, 8 + 5, "the text is acknowledged");
    // The handshake ends, and the application hears of no second connection.
    let ack = Header {
        seq: 13,
        ack: last.seq,
        flags: Flags::ACK,
        window: 64_000,
        ..Header::default()
    };
    rig.inject_segment(peer(50_001), &ack, &[]);
    rig.step();
    let accepted = rig
        .app
        .count(|event| matches!(event, AppEvent::Accepted { .. }));
    assert_eq!(accepted, 1);
    assert_eq!(rig.stack.counters().connections_accepted, 1);
}

/// Covers: RFC 7413 §4.1.2, RFC 7413 §4.2.2
#[test]
fn text_with_another_cookie_or_none_is_left_to_the_peer() {
    let mut rig = taking();
    let good = cookie(&mut rig, 50_000);
    let FastOpen::Cookie(mut bytes) = good else {
        unreachable!("it was looked at");
    };
    bytes[3] ^= 1;
    for (port, option) in [
        (50_001, FastOpen::Cookie(bytes)),
        (50_002, FastOpen::Request),
    ] {
        rig.inject_segment(peer(port), &syn(Some(option)), b"3000\n");
        let syn_ack = answer_to(&mut rig, port);
        assert_eq!(syn_ack.ack, 8);
        assert_eq!(
            syn_ack.options.fast_open,
            Some(good),
            "a good one comes back"
        );
    }
    // Of another peer.
    let other = SocketAddr::from(([10, 77, 0, 9], 50_003));
    rig.inject_segment(other, &syn(Some(good)), b"3000\n");
    rig.run_until(|rig| rig.stack.half_open() == 4);
    // A peer that does not ask gets none.
    rig.inject_segment(peer(50_004), &syn(None), b"3000\n");
    assert_eq!(answer_to(&mut rig, 50_004).options.fast_open, None);
    assert_eq!(rig.stack.counters().fast_opens, 0);
    assert_eq!(rig.app.events, []);
}

#[test]
fn without_the_switch_or_on_a_listener_that_takes_none_there_are_no_cookies() {
    let mut rig = Rig::new();
    rig.client_is_mute = true;
    rig.inject_segment(peer(50_000), &syn(Some(FastOpen::Request)), b"3000\n");
    let syn_ack = answer_to(&mut rig, 50_000);
    assert_eq!((syn_ack.ack, syn_ack.options.fast_open), (8, None));

    let mut rig = taking();
    let good = cookie(&mut rig, 50_000);
    let refusing = StreamOptions {
        fast_open: Some(false),
        ..StreamOptions::default()
    };
    let bind = Bind::new(Owner(9), "0.0.0.0:8080".parse().unwrap());
    let binding = rig.stack.bind(&bind).unwrap();
    rig.stack.listen(binding, refusing).unwrap();
    let there = "10.77.0.2:8080".parse().unwrap();
    let way = TcpTemplate::new([2, 0, 0, 0, 0, 2], rig.port.mac(), peer(50_001), there);
    rig.inject(&way.to_frame(&syn(Some(good)), b"3000\n"));
    let syn_ack = answer_to(&mut rig, 50_001);
    assert_eq!((syn_ack.ack, syn_ack.options.fast_open), (8, None));
}

/// Covers: RFC 7413 §4.1.2
#[test]
fn a_cookie_is_good_for_a_day_at_least_and_two_at_most() {
    for (days, is_good) in [(0, true), (1, true), (2, false)] {
        let mut rig = taking();
        let cookie = cookie(&mut rig, 50_000);
        rig.now_us += days * DAY_US;
        let expected = if is_good { 13 } else { 8 };
        assert_eq!(
            acks(&mut rig, 50_001, b"idle\n", cookie),
            expected,
            "{days}"
        );
    }
}

/// Covers: RFC 7413 §5.1
#[test]
fn from_half_of_the_backlog_on_no_text_is_taken() {
    let mut rig = taking_with(|config| config.admission.backlog_max = 4);
    let cookie = cookie(&mut rig, 50_000);
    for port in [50_001, 50_002] {
        assert_eq!(acks(&mut rig, port, b"idle\n", cookie), 13);
    }
    assert_eq!(acks(&mut rig, 50_003, b"idle\n", cookie), 8);
    // One of them completes its handshake.
    let ours = rig.stack.counters().fast_opens;
    rig.inject_segment(peer(50_001), &syn(Some(cookie)), b"idle\n");
    let again = answer_to(&mut rig, 50_001);
    let ack = Header {
        seq: 13,
        ack: again.seq.wrapping_add(1),
        flags: Flags::ACK,
        window: 64_000,
        ..Header::default()
    };
    rig.inject_segment(peer(50_001), &ack, &[]);
    rig.step();
    assert_eq!(rig.stack.counters().fast_opens, ours);
    assert_eq!(acks(&mut rig, 50_004, b"idle\n", cookie), 13);
}

/// Covers: RFC 7413 §4.2.2
#[test]
fn a_peer_that_resets_or_goes_away_is_heard_of_once() {
    let mut rig = taking_with(|config| config.tcp.syn_retries = 1);
    let cookie = cookie(&mut rig, 50_000);
    assert_eq!(acks(&mut rig, 50_001, b"idle\n", cookie), 13);
    let reset = Header {
        seq: 13,
        flags: Flags::RST,
        ..Header::default()
    };
    rig.inject_segment(peer(50_001), &reset, &[]);
    assert_eq!(acks(&mut rig, 50_002, b"idle\n", cookie), 13);
    rig.run_until(|rig| rig.stack.connections() == 0);
    let ended = rig
        .app
        .count(|event| matches!(event, AppEvent::Closed { .. }));
    assert_eq!(ended, 2);
    // The application waited for nothing more of either.
    let counters = rig.stack.counters();
    let counted = (counters.connections_finished, counters.connections_broken);
    assert_eq!(counted, (2, 0));
}

#[test]
fn workers_are_given_the_keys_and_hand_up_what_has_a_good_cookie() {
    let mut rig = taking_with(|config| config.setup_offload = OffloadPolicy::On);
    rig.step();
    let setup = rig.nic.setups.last().expect("a SETUP");
    assert!(setup.listeners[0].fast_open);
    let epoch = setup.epoch;
    let [key, before] = setup.fast_open_keys;
    assert_ne!(key, before);
    let ready = Event::SetupReady { epoch, steering: 0 };
    rig.nic.channel.send(&ready).expect("room for an event");
    rig.nic.channel.flush();
    rig.step();
    let server: SocketAddr = SERVER.parse().unwrap();
    let cookies = tcp::FastOpenCookies::new([key, before]);
    let cookie = cookies.cookie(server.ip(), peer(0).ip());
    let way = TcpTemplate::new([2, 0, 0, 0, 0, 2], rig.port.mac(), peer(50_001), server);
    let bytes = way.to_frame(&syn(Some(cookie)), b"3000\n").into();
    rig.nic.channel.send(&Event::Frame { bytes }).unwrap();
    rig.nic.channel.flush();
    assert_eq!(answer_to(&mut rig, 50_001).ack, 13);
    assert_eq!(rig.stack.counters().fast_opens, 1);
    // Another day, another key.
    rig.now_us += DAY_US;
    rig.run_until(|rig| rig.nic.setups.last().unwrap().fast_open_keys[1] == key);
}
