//! SYNs that a worker answers in the host's place: what leaves, what goes up, and what the host can
//! make of the ACK.

mod support;

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use contract::channel::in_memory;
use contract::limits::SETUP_VALID_US_MAX;
use contract::setup::{Setup, SetupListener, SetupListeners, SetupOptions, SetupScope};
use contract::{Command, Event};
use fakes::recording_port::Answer;
use netdev::memory::{Link, pair};
use netdev::steering::Target;
use netdev::{Offload, Port, Superpacket};
use nic::reader::memory::MemoryDisk;
use nic::{Progress, Worker};
use support::{Stage, small_config};
use tcp::{Config, Connection, FastOpenCookies, Instant, SynCookies, TsOffsets};
use wire::frame::{TcpTemplate, parse_segment};
use wire::tcp::{FastOpen, Flags, Header, Options, Timestamps};

const COOKIE_KEY: [u8; 16] = [5; 16];
const TS_KEY: [u8; 16] = [6; 16];
const FAST_OPEN_KEYS: [[u8; 16]; 2] = [[7; 16], [8; 16]];
const STACK_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SECOND_US: u64 = 1_000_000;

const CLIENT: &str = "192.0.2.1:4000";
const LOCAL: &str = "10.77.0.2:80";
const LOCAL_V6: &str = "[fd77::2]:80";

fn end(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

fn listeners() -> Vec<u8> {
    let listener = |scope, port, mss_v4| SetupListener {
        scope,
        port,
        mss_v4,
        mss_v6: 1440,
        fast_open: port == 80,
    };
    SetupListeners::to_bytes(&[
        listener(SetupScope::One(end("10.77.0.3:0").ip()), 80, 900),
        listener(SetupScope::All, 80, 1460),
        listener(SetupScope::AllV6, 81, 1460),
    ])
}

fn setup(listeners: &[u8], epoch: u64, now_us: u64) -> Setup<'_> {
    let config = Config::default();
    Setup {
        epoch,
        issued_us: now_us,
        host_us: now_us,
        valid_us: SETUP_VALID_US_MAX,
        cookie_key: COOKIE_KEY,
        ts_offset_key: TS_KEY,
        fast_open_keys: FAST_OPEN_KEYS,
        options: SetupOptions {
            receive_buffer_bytes: config.receive_buffer_bytes as u32,
            receive_buffer_bytes_max: config.receive_buffer_bytes_max as u32,
            window_scaling: true,
            timestamps: true,
            sack: true,
            ecn: true,
        },
        source_mac: STACK_MAC,
        listeners: SetupListeners::parse(listeners).unwrap(),
    }
}

/// A worker that answers SYNs.
fn answering() -> Stage {
    let mut stage = Stage::new();
    let listeners = listeners();
    stage.tell(&Command::Setup(setup(&listeners, 1, stage.now_us.get())));
    let ready = Event::SetupReady {
        epoch: 1,
        steering: 0,
    };
    assert_eq!(stage.take_events(), [ready]);
    stage
}

fn syn() -> Header {
    Header {
        seq: 7_000,
        flags: Flags::SYN,
        window: 64_000,
        options: Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps {
                value: 99,
                echo_reply: 0,
            }),
            ..Options::default()
        },
        ..Header::default()
    }
}

fn frame(from: &str, to: &str, header: &Header) -> Vec<u8> {
    TcpTemplate::new(ROUTER_MAC, STACK_MAC, end(from), end(to)).to_frame(header, &[])
}

fn hear(stage: &mut Stage, from: &str, to: &str, header: &Header) {
    let bytes = frame(from, to, header);
    stage.tell(&Command::Frame { bytes: &bytes });
    stage.settle();
}

/// The only packet that has left since the last look, as its receiver sees it.
fn left(stage: &Stage) -> Option<(TcpTemplate, Header)> {
    let packets = stage.wire.take();
    assert!(packets.len() <= 1, "{packets:?}");
    let packet = packets.first()?;
    packet.check();
    let template = TcpTemplate::parse(&packet.header)?;
    let received = parse_segment(&packet.header, true)?;
    Some((template, received.segment.header))
}

/// What the host makes of the ACK that answers a SYN,ACK.
fn accept(
    local: &str,
    remote: &str,
    syn: &Header,
    syn_ack: &Header,
    us: u64,
) -> Option<Connection> {
    let (local, remote) = (end(local), end(remote));
    let config = Config {
        mss: 1460,
        ipv6: local.is_ipv6(),
        ..Config::default()
    };
    let ack = Header {
        seq: syn.seq.wrapping_add(1),
        ack: syn_ack.seq.wrapping_add(1),
        flags: Flags::ACK,
        window: 500,
        options: Options {
            timestamps: syn_ack.options.timestamps.map(|timestamps| Timestamps {
                value: 100,
                echo_reply: timestamps.value,
            }),
            ..Options::default()
        },
        ..Header::default()
    };
    let bytes = frame(&remote.to_string(), &local.to_string(), &ack);
    let ack = parse_segment(&bytes, false).unwrap().segment;
    let ts_offset = TsOffsets::new(TS_KEY).of(local, remote);
    let cookies = SynCookies::new(COOKIE_KEY);
    cookies.accept(
        &config,
        local,
        remote,
        &ack,
        ts_offset,
        Instant::from_us(us),
    )
}

/// Covers: RFC 4987 §3.6
#[test]
fn a_syn_is_answered_with_all_that_the_host_needs_to_know_of_it() {
    let mut stage = answering();
    for (local, remote) in [
        (LOCAL, "192.0.2.1:4000"),
        (LOCAL_V6, "[2001:db8::1]:4000"),
        ("[fd77::2]:81", "[2001:db8::1]:4000"),
    ] {
        hear(&mut stage, remote, local, &syn());
        let (way, syn_ack) = left(&stage).expect("a SYN,ACK");
        assert_eq!((way.source, way.destination), (end(local), end(remote)));
        assert_eq!(
            (way.source_mac, way.destination_mac),
            (STACK_MAC, ROUTER_MAC)
        );
        assert_eq!(syn_ack.flags, Flags::SYN | Flags::ACK);
        assert_eq!(syn_ack.ack, 7_001);
        let options = syn_ack.options;
        assert!(options.sack_permitted && options.window_scale.is_some());
        assert_eq!(
            options.timestamps.map(|timestamps| timestamps.echo_reply),
            Some(99)
        );
        let now_us = stage.now_us.get();
        let connection = accept(local, remote, &syn(), &syn_ack, now_us + 1000);
        let connection = connection.expect("the cookie is good");
        assert_eq!(
            connection
                .info(Instant::from_us(now_us))
                .window_shifts
                .map(|(snd, _)| snd),
            Some(7)
        );
        let too_late_us = now_us + SynCookies::LIFETIME_US_MAX;
        assert!(accept(local, remote, &syn(), &syn_ack, too_late_us).is_none());
    }
    assert_eq!(stage.counters().syn_acks_sent, 3);
    assert_eq!(stage.take_events(), []);
    assert_eq!(
        stage.worker.usage(),
        Stage::new().worker.usage(),
        "nothing is kept"
    );
}

#[test]
fn the_most_specific_listener_counts() {
    let mut stage = answering();
    for (local, mss) in [(LOCAL, 1460), ("10.77.0.3:80", 900)] {
        hear(&mut stage, "192.0.2.1:4000", local, &syn());
        let (_, syn_ack) = left(&stage).unwrap();
        assert_eq!(syn_ack.options.mss, Some(mss), "{local}");
    }
}

#[test]
fn what_it_does_not_answer_goes_up() {
    let mut stage = answering();
    for (from, to) in [
        ("192.0.2.1:4000", "10.77.0.2:443"),
        ("192.0.2.1:4000", "10.77.0.2:81"),
        (LOCAL, LOCAL),
    ] {
        hear(&mut stage, from, to, &syn());
        let bytes = frame(from, to, &syn()).into();
        assert_eq!(stage.take_events(), [Event::Frame { bytes }]);
    }
    assert!(left(&stage).is_none());
    assert_eq!(stage.counters().syns_handed_up, 3);
    // Nothing but a SYN begins a connection.
    for flags in [
        Flags::SYN | Flags::ACK,
        Flags::SYN | Flags::RST,
        Flags::SYN | Flags::FIN,
        Flags::ACK,
    ] {
        let header = Header { flags, ..syn() };
        hear(&mut stage, "192.0.2.1:4000", LOCAL, &header);
    }
    assert!(left(&stage).is_none());
    assert_eq!(stage.take_events(), []);
    assert_eq!(stage.counters().frames_unknown, 4);
}

/// A SYN with text, and what it says of Fast Open.
fn hear_text(stage: &mut Stage, to: &str, option: FastOpen, text: &[u8]) -> Vec<u8> {
    let mut header = syn();
    header.options.fast_open = Some(option);
    let template = TcpTemplate::new(ROUTER_MAC, STACK_MAC, end(CLIENT), end(to));
    let bytes = template.to_frame(&header, text);
    stage.tell(&Command::Frame { bytes: &bytes });
    stage.settle();
    bytes
}

/// Covers: RFC 7413 §4.1.2, RFC 7413 §4.2.2
#[test]
fn text_with_a_good_cookie_goes_up_and_other_peers_get_a_cookie() {
    let [key, key_before] = FAST_OPEN_KEYS;
    let now = FastOpenCookies::new(FAST_OPEN_KEYS);
    let before = FastOpenCookies::new([key_before, key]);
    let (server, client) = (end(LOCAL).ip(), end(CLIENT).ip());
    let cookie = now.cookie(server, client);
    let mut stage = answering();
    for good in [cookie, before.cookie(server, client)] {
        let bytes = hear_text(&mut stage, LOCAL, good, b"GET").into();
        assert_eq!(stage.take_events(), [Event::Frame { bytes }]);
        assert!(left(&stage).is_none());
    }
    let other = now.cookie(server, end("192.0.2.9:0").ip());
    for (option, text) in [
        (FastOpen::Request, &b""[..]),
        (FastOpen::Request, b"GET"),
        (other, b"GET"),
        (cookie, b""),
    ] {
        hear_text(&mut stage, LOCAL, option, text);
        let (_, syn_ack) = left(&stage).expect("a SYN,ACK");
        assert_eq!(syn_ack.ack, 7_001, "the text is not acknowledged");
        assert_eq!(syn_ack.options.fast_open, Some(cookie));
        let now_us = stage.now_us.get();
        assert!(accept(LOCAL, CLIENT, &syn(), &syn_ack, now_us).is_some());
    }
    // A listener that takes no text.
    let to = "[fd77::2]:81";
    let header = syn();
    hear(&mut stage, "[2001:db8::1]:4000", to, &header);
    assert_eq!(left(&stage).unwrap().1.options.fast_open, None);
    // A peer that does not ask.
    hear(&mut stage, CLIENT, LOCAL, &header);
    assert_eq!(left(&stage).unwrap().1.options.fast_open, None);
    assert_eq!(stage.take_events(), []);
}

#[test]
fn a_flood_with_a_good_cookie_is_answered_beyond_a_bound() {
    let cookies = FastOpenCookies::new(FAST_OPEN_KEYS);
    let cookie = cookies.cookie(end(LOCAL).ip(), end(CLIENT).ip());
    let mut stage = answering();
    for _ in 0..10_005 {
        hear_text(&mut stage, LOCAL, cookie, b"GET");
    }
    assert_eq!(stage.counters().syns_handed_up, 10_000);
    assert_eq!(stage.wire.take().len(), 5);
}

#[test]
fn setup_is_good_for_as_long_as_it_says_and_another_takes_its_place() {
    let mut stage = Stage::new();
    let listeners = listeners();
    let now_us = stage.now_us.get();
    let brief = Setup {
        valid_us: SECOND_US,
        ..setup(&listeners, 1, now_us)
    };
    stage.tell(&Command::Setup(brief));
    stage.now_us.set(now_us + SECOND_US - 1);
    hear(&mut stage, "192.0.2.1:4000", LOCAL, &syn());
    assert!(left(&stage).is_some());
    stage.now_us.set(now_us + SECOND_US);
    hear(&mut stage, "192.0.2.1:4000", LOCAL, &syn());
    assert!(left(&stage).is_none());
    assert_eq!(stage.counters().syns_handed_up, 1);

    stage.tell(&Command::Setup(setup(&listeners, 2, now_us)));
    hear(&mut stage, "192.0.2.1:4000", LOCAL, &syn());
    assert!(left(&stage).is_some());
    stage.take_events();
    stage.tell(&Command::Setup(setup(&[], 3, now_us)));
    hear(&mut stage, "192.0.2.1:4000", LOCAL, &syn());
    assert!(left(&stage).is_none());
    let ready = Event::SetupReady {
        epoch: 3,
        steering: 0,
    };
    assert_eq!(stage.take_events(), [ready]);
    assert_eq!(stage.counters().frames_unknown, 1);
}

/// A worker on another machine, whose clock is another.
#[test]
fn cookies_count_by_the_clock_of_the_host() {
    let mut stage = Stage::new();
    let listeners = listeners();
    let host_us = 900_000 * SECOND_US;
    let there = Setup {
        host_us,
        ..setup(&listeners, 1, stage.now_us.get())
    };
    stage.tell(&Command::Setup(there));
    hear(&mut stage, "192.0.2.1:4000", LOCAL, &syn());
    let (_, syn_ack) = left(&stage).unwrap();
    let at = |us| accept(LOCAL, "192.0.2.1:4000", &syn(), &syn_ack, us);
    assert!(at(host_us + 1000).is_some());
    assert!(at(stage.now_us.get()).is_none());
}

#[test]
fn a_flood_is_answered_and_what_goes_up_of_it_is_bounded() {
    let mut stage = answering();
    for number in 0..5_000u32 {
        let from = format!("198.18.{}.{}:4000", number >> 8 & 255, number & 255);
        hear(&mut stage, &from, LOCAL, &syn());
        hear(&mut stage, &from, "10.77.0.2:443", &syn());
        stage.now_us.set(stage.now_us.get() + 100);
    }
    assert_eq!(stage.wire.take().len(), 5_000);
    assert_eq!(stage.take_events().len(), 1_000);
    let counters = stage.counters();
    assert_eq!(
        (counters.syn_acks_sent, counters.syns_handed_up),
        (5_000, 1_000)
    );
    assert_eq!(counters.frames_dropped, 4_000);
    stage.now_us.set(stage.now_us.get() + SECOND_US);
    hear(&mut stage, "198.18.0.1:4000", "10.77.0.2:443", &syn());
    assert_eq!(stage.take_events().len(), 1);
}

#[test]
fn nothing_waits_for_a_port_that_is_busy() {
    let mut stage = answering();
    stage.wire.answer([Answer::Drop]);
    hear(&mut stage, "192.0.2.1:4000", LOCAL, &syn());
    stage.wire.close(true);
    hear(&mut stage, "192.0.2.1:4000", LOCAL, &syn());
    stage.wire.close(false);
    stage.settle();
    assert_eq!(stage.counters().port_drops, 2);
    hear(&mut stage, "192.0.2.1:4000", LOCAL, &syn());
    assert_eq!(stage.counters().syn_acks_sent, 1);
}

/// SYNs that are steered to the worker's own port.
#[test]
fn syns_at_the_port_are_answered_there() {
    let (mut host, channel) = in_memory();
    let (mut port, mut far) = pair(Link::default());
    port.set_target(Target::new(77));
    let disk = Box::new(MemoryDisk::new());
    let mut worker = Worker::new(&small_config(), channel, port, disk).unwrap();
    let now_us = Cell::new(SECOND_US);
    let settle = |worker: &mut Worker<_>| {
        while worker.turn(&|| now_us.get()) == Ok(Progress::Busy) {}
        now_us.set(now_us.get() + Duration::from_millis(1).as_micros() as u64);
    };
    let bytes = frame("192.0.2.1:4000", LOCAL, &syn());
    let mut damaged = bytes.clone();
    damaged[40] ^= 1;
    let put = |far: &mut netdev::memory::MemoryPort, header: &[u8]| {
        let offload = Offload::None;
        let payload = &[];
        let packet = Superpacket {
            header,
            payload,
            offload,
        };
        far.send(&packet).unwrap();
    };
    // Before SETUP all is the host's.
    put(&mut far, &bytes);
    settle(&mut worker);
    assert_eq!(worker.counters().syns_received, 0);
    let up = bytes.clone().into();
    assert_eq!(host.receive(), Ok(Some(Event::Frame { bytes: up })));

    let listeners = listeners();
    host.send(&Command::Setup(setup(&listeners, 1, SECOND_US)))
        .unwrap();
    host.flush();
    put(&mut far, &damaged);
    put(&mut far, &bytes);
    put(&mut far, &frame("192.0.2.1:4000", "10.77.0.2:443", &syn()));
    settle(&mut worker);
    let ready = Event::SetupReady {
        epoch: 1,
        steering: 77,
    };
    assert_eq!(host.receive(), Ok(Some(ready)));
    let up = frame("192.0.2.1:4000", "10.77.0.2:443", &syn()).into();
    assert_eq!(host.receive(), Ok(Some(Event::Frame { bytes: up })));
    assert_eq!(host.receive(), Ok(None));
    let counters = worker.counters();
    assert_eq!((counters.syns_received, counters.syn_acks_sent), (2, 1));
    assert_eq!(counters.frames_dropped, 1);
    let mut answers = Vec::new();
    far.receive(9, &mut |frame| answers.push(frame.bytes.to_vec()))
        .unwrap();
    let [answer] = &answers[..] else {
        panic!("{answers:?}");
    };
    let answer = parse_segment(answer, false).expect("its checksum is right");
    assert_eq!(answer.segment.header.flags, Flags::SYN | Flags::ACK);
}
