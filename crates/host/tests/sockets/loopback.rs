//! Connections whose two ends are on the same stack, in virtual time.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use contract::channel::in_memory;
use fakes::nic::FakeNic;
use host::app::{
    AppEvent, Application, Bind, BindError, CloseReason, ConnectError, Io, Owner, StreamId,
    StreamOption, StreamOptions,
};
use host::{Admission, Link, Stack, StackConfig};
use netdev::memory::{self, MemoryPort, pair};
use netdev::{Frame, LinkChange, Offload, Port, Superpacket};
use wire::frame::{self, Received, TcpTemplate};
use wire::tcp::{Flags, Header};

const V4: &str = "10.77.0.2";
const V6: &str = "fd77::2";
const APP: Owner = Owner(7);

/// One end of a connection.
#[derive(Debug, Default)]
struct End {
    unsent: Vec<u8>,
    received: Vec<u8>,
    is_connected: bool,
    peer_finished: bool,
    closed: Option<CloseReason>,
}

/// Clients and servers: what is accepted sends back what it reads, and ends when its peer has.
#[derive(Debug, Default)]
struct Ends {
    ends: BTreeMap<StreamId, End>,
    accepted: Vec<StreamId>,
    /// Options of the streams that are accepted.
    options: Vec<StreamOption>,
}

impl Ends {
    fn send(&mut self, io: &mut dyn Io, stream: StreamId) {
        let end = self.ends.entry(stream).or_default();
        let taken = io.write(stream, &end.unsent);
        end.unsent.drain(..taken);
        let is_accepted = self.accepted.contains(&stream);
        if end.unsent.is_empty() && (!is_accepted || end.peer_finished) {
            io.shutdown(stream);
        }
    }
}

impl Application for Ends {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        match event {
            AppEvent::Accepted { .. } => {
                self.accepted.push(stream);
                for option in &self.options {
                    io.set_option(stream, *option);
                }
            }
            AppEvent::Connected => self.ends.entry(stream).or_default().is_connected = true,
            AppEvent::Readable => {
                let is_accepted = self.accepted.contains(&stream);
                let mut buffer = [0; 5000];
                while let count @ 1.. = io.read(stream, &mut buffer) {
                    let end = self.ends.entry(stream).or_default();
                    end.received.extend_from_slice(&buffer[..count]);
                    if is_accepted {
                        end.unsent.extend_from_slice(&buffer[..count]);
                    }
                }
                if is_accepted {
                    self.send(io, stream);
                }
            }
            AppEvent::Writable => self.send(io, stream),
            AppEvent::PeerFinished => {
                self.ends.entry(stream).or_default().peer_finished = true;
                self.send(io, stream);
            }
            AppEvent::Closed { reason, .. } => {
                self.ends.entry(stream).or_default().closed = Some(reason);
            }
            _ => {}
        }
    }
}

struct World {
    now_us: u64,
    /// Time that a turn takes.
    turn_us: u64,
    stack: Stack,
    port: MemoryPort,
    /// The other end of the wire.
    wire: MemoryPort,
    nic: FakeNic,
    app: Ends,
    /// Segments that have left through the port.
    on_wire: Vec<Header>,
}

impl World {
    fn new() -> World {
        World::with(|_| {})
    }

    fn with(configure: impl FnOnce(&mut StackConfig)) -> World {
        let (port, wire) = pair(memory::Link::default());
        let addresses = [(V4, 24), (V6, 64)];
        let addresses = addresses.map(|(ip, prefix)| (ip.parse().unwrap(), prefix));
        let mut config = StackConfig::new(addresses.into(), vec![80], [3; 16]);
        configure(&mut config);
        let (host, nic) = in_memory();
        let now_us = 1_000_000;
        World {
            now_us,
            turn_us: 10,
            stack: Stack::new(config, Link::of(&port), vec![host], now_us),
            port,
            wire,
            nic: FakeNic::new(nic),
            app: Ends::default(),
            on_wire: Vec::new(),
        }
    }

    fn listen(&mut self, address: &str) -> SocketAddr {
        let bind = Bind::new(APP, address.parse().unwrap());
        let binding = self.stack.bind(&bind).unwrap();
        let options = StreamOptions::default();
        self.stack.listen(binding, options).unwrap();
        self.stack.bound_address(binding).unwrap()
    }

    fn connect(&mut self, from: Option<&str>, to: &str) -> Result<StreamId, ConnectError> {
        let from = from.map(|from| from.parse().unwrap());
        let to = to.parse().unwrap();
        self.stack.connect(self.now_us, APP, from, to)
    }

    /// An application does something of its own accord.
    fn act(&mut self, act: impl FnOnce(&mut dyn Io, &mut Ends)) {
        struct Once<'a, F>(Option<F>, &'a mut Ends);
        impl<F: FnOnce(&mut dyn Io, &mut Ends)> Application for Once<'_, F> {
            fn on_event(&mut self, _: &mut dyn Io, _: StreamId, event: AppEvent) {
                panic!("{event:?} before anything was said");
            }
            fn on_wake(&mut self, io: &mut dyn Io, _: u64) {
                self.0.take().expect("once")(io, self.1);
            }
        }
        let mut once = Once(Some(act), &mut self.app);
        self.stack.wake(self.now_us, &mut once);
    }

    /// Sends a text, and ends the direction behind it.
    fn send(&mut self, stream: StreamId, text: &[u8]) {
        let text = text.to_vec();
        self.act(|io, app| {
            app.ends.entry(stream).or_default().unsent = text;
            app.send(io, stream);
        });
    }

    /// Returns whether there is more to do at once.
    fn step(&mut self) -> bool {
        self.now_us += self.turn_us;
        let (stack, now_us) = (&mut self.stack, self.now_us);
        let hear = &mut |frame: Frame<'_>| stack.on_frame(now_us, frame);
        self.port.receive(usize::MAX, hear).unwrap();
        stack.on_channels(now_us, usize::MAX).unwrap();
        stack.on_time(now_us);
        let busy = stack.serve(now_us, &mut self.port, &mut self.app);
        self.nic.take();
        let on_wire = &mut self.on_wire;
        let note = &mut |frame: Frame<'_>| {
            if let Ok(Received::Tcp(packet)) = frame::parse(frame.bytes, frame.checksum_valid) {
                on_wire.push(packet.segment.header);
            }
        };
        self.wire.receive(usize::MAX, note).unwrap();
        busy
    }

    /// Takes turns until `done`; if there is nothing to do, until the next timer.
    #[track_caller]
    fn run_until(&mut self, done: impl Fn(&World) -> bool) {
        for _ in 0..2_000_000 {
            if done(self) {
                return;
            }
            if !self.step()
                && let Some(at_us) = self.stack.next_timeout_us()
            {
                self.now_us = self.now_us.max(at_us);
            }
        }
        panic!("{:?}\n{:#?}", self.app.ends.len(), self.stack.counters());
    }

    fn end(&self, stream: StreamId) -> &End {
        &self.app.ends[&stream]
    }

    fn is_over(&self, stream: StreamId) -> bool {
        self.app
            .ends
            .get(&stream)
            .is_some_and(|end| end.closed.is_some())
    }

    /// Has a text sent back, every byte, and the connection ended in order.
    #[track_caller]
    fn exchange(&mut self, from: Option<&str>, to: &str, text: &[u8]) -> StreamId {
        let stream = self.connect(from, to).unwrap();
        self.send(stream, text);
        self.run_until(|world| world.is_over(stream));
        let end = self.end(stream);
        assert_eq!(end.closed, Some(CloseReason::Finished), "{from:?} {to}");
        assert!(end.is_connected);
        assert!(end.received == text, "{from:?} {to}: every byte");
        stream
    }

    /// Puts a segment on the wire.
    fn inject(&mut self, from: SocketAddr, to: SocketAddr, header: &Header) {
        let template = TcpTemplate::new([2, 0, 0, 0, 0, 9], self.port.mac(), from, to);
        let mut bytes = [0; 256];
        let header = Header {
            source_port: from.port(),
            destination_port: to.port(),
            ..*header
        };
        let len = template.write(&header, &mut bytes).unwrap();
        frame::complete_checksum(&mut bytes[..len], []).unwrap();
        let packet = Superpacket {
            header: &bytes[..len],
            payload: &[],
            offload: Offload::None,
        };
        self.wire.send(&packet).unwrap();
    }
}

fn text(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn every_own_address_is_reached_from_every_own_address_of_its_family() {
    let v4 = [V4, "127.0.0.1", "127.9.8.7"];
    let v6 = [V6, "::1"];
    let text = text(300_000);
    for own in [&v4[..], &v6[..]] {
        for to in own {
            for from in own.iter().map(Some).chain([None]) {
                let ip: IpAddr = to.parse().unwrap();
                let to = SocketAddr::new(ip, 8080).to_string();
                let mut world = World::new();
                world.listen(&to);
                let from_ip: Option<IpAddr> = from.map(|from| from.parse().unwrap());
                let from = from_ip.map(|ip| SocketAddr::new(ip, 0).to_string());
                let stream = world.connect(from.as_deref(), &to).unwrap();
                let mut addresses = None;
                world.act(|io, _| {
                    assert!(io.is_looped(stream));
                    addresses = io.addresses(stream);
                });
                let (local, remote) = addresses.unwrap();
                assert_eq!(remote.to_string(), to);
                // As the kernel chooses: the address itself, or 127.0.0.1.
                let expected = if to.starts_with("127.") {
                    v4[1].parse().unwrap()
                } else {
                    ip
                };
                assert_eq!(local.ip(), from_ip.unwrap_or(expected), "to {to}");
                world.exchange(from.as_deref(), &to, &text);
                assert_eq!(world.on_wire, [], "nothing leaves");
                assert_eq!(world.stack.counters().timeouts, 0);
            }
        }
    }
}

#[test]
fn time_that_stands_still_does_no_harm() {
    let mut world = World::new();
    world.turn_us = 0;
    world.listen("0.0.0.0:8080");
    world.exchange(None, "127.0.0.1:8080", &text(3_000_000));
    assert_eq!(world.stack.counters().timeouts, 0);
}

#[test]
fn what_is_not_own_is_not_reached_from_a_loopback_address() {
    let mut world = World::new();
    for (from, to, expected) in [
        ("127.0.0.1:0", "10.77.0.1:80", ConnectError::LoopbackOnly),
        ("[::1]:0", "[fd77::1]:80", ConnectError::LoopbackOnly),
        ("10.77.0.3:0", "127.0.0.1:80", ConnectError::NoAddress),
        ("[::1]:0", "127.0.0.1:80", ConnectError::NoAddress),
    ] {
        assert_eq!(world.connect(Some(from), to), Err(expected), "{from} {to}");
    }
    let bind = Bind::new(APP, "10.77.0.3:81".parse().unwrap());
    assert_eq!(world.stack.bind(&bind), Err(BindError::NoAddress));
    // As connect(2): an unspecified address is this host.
    world.listen("[::]:8080");
    for (from, to, expected) in [
        (None, "0.0.0.0:8080", "127.0.0.1:8080"),
        (Some("10.77.0.2:0"), "0.0.0.0:8080", "10.77.0.2:8080"),
        (None, "[::]:8080", "[::1]:8080"),
    ] {
        let stream = world.exchange(from, to, b"text");
        let accepted = *world.app.accepted.last().unwrap();
        assert_ne!(stream, accepted);
        let local = world.connect(from, to).unwrap();
        world.act(|io, _| {
            let (_, remote) = io.addresses(local).unwrap();
            assert_eq!(remote.to_string(), expected);
        });
    }
}

#[test]
fn a_closed_port_refuses_however_often_it_is_tried() {
    let mut world = World::with(|config| config.resets_per_second = 3);
    let begun_us = world.now_us;
    let streams: Vec<StreamId> = (0..2000)
        .map(|_| world.connect(None, "127.0.0.1:8080").unwrap())
        .collect();
    world.run_until(|world| streams.iter().all(|stream| world.is_over(*stream)));
    let refused = |stream| world.end(stream).closed == Some(CloseReason::Refused);
    assert!(streams.iter().all(|stream| refused(*stream)));
    assert!(world.now_us - begun_us < 1_000_000, "no SYN was repeated");
    assert_eq!(world.stack.connections(), 0);
    // Others are answered as often as before.
    let (peer, own) = (
        "10.77.0.1:999".parse().unwrap(),
        "10.77.0.2:999".parse().unwrap(),
    );
    let syn = Header {
        flags: Flags::SYN,
        ..Header::default()
    };
    let before = world.stack.counters();
    for _ in 0..5 {
        world.inject(peer, own, &syn);
    }
    world.step();
    let after = world.stack.counters();
    assert_eq!(after.resets_sent - before.resets_sent, 3);
    assert_eq!(after.resets_suppressed, 2);
}

#[test]
fn a_socket_may_be_connected_with_itself_and_two_with_each_other_at_once() {
    let mut world = World::new();
    let own = "127.0.0.1:5000";
    let stream = world.connect(Some(own), own).unwrap();
    let text = text(200_000);
    world.send(stream, &text);
    world.run_until(|world| world.is_over(stream));
    let end = world.end(stream);
    assert_eq!(end.closed, Some(CloseReason::Finished));
    assert!(end.received == text, "what it sends, it receives");

    let (a, b) = ("127.0.0.1:5001", "10.77.0.2:5002");
    let one = world.connect(Some(a), b).unwrap();
    let other = world.connect(Some(b), a).unwrap();
    world.send(one, b"from a");
    world.send(other, b"from b");
    world.run_until(|world| world.is_over(one) && world.is_over(other));
    assert_eq!(world.end(one).received, b"from b");
    assert_eq!(world.end(other).received, b"from a");

    // Without a port named, never: who listens there may only have gone.
    let mut world = World::with(|config| config.ephemeral_ports = 50_000..=50_001);
    for _ in 0..2 {
        if let Ok(stream) = world.connect(None, "127.0.0.1:50000") {
            world.run_until(|world| world.is_over(stream));
            assert_eq!(world.end(stream).closed, Some(CloseReason::Refused));
        }
    }
}

#[test]
fn martians_are_dropped_and_counted() {
    let mut world = World::new();
    world.listen("0.0.0.0:8080");
    let stream = world.connect(None, "127.0.0.1:8080").unwrap();
    let own = world.connect(None, "10.77.0.2:8080").unwrap();
    world.run_until(|world| world.app.accepted.len() == 2);
    let mut pairs = Vec::new();
    world.act(|io, _| {
        pairs.extend([io.addresses(stream).unwrap(), io.addresses(own).unwrap()]);
    });
    let reset = Header {
        flags: Flags::RST,
        ..Header::default()
    };
    let syn = Header {
        flags: Flags::SYN,
        ..Header::default()
    };
    let mut martians = 0;
    let at = |address: &str| address.parse().unwrap();
    for (header, to_existing) in [(reset, true), (syn, true), (reset, false), (syn, false)] {
        let mut addresses = vec![
            (at("127.0.0.1:9"), at("10.77.0.2:8080")),
            (at("10.77.0.2:9"), at("10.77.0.2:8080")),
            (at("10.77.0.1:9"), at("127.0.0.1:8080")),
            (at("[fd77::2]:9"), at("[fd77::2]:8080")),
            (at("[::1]:9"), at("[fd77::2]:8080")),
        ];
        if to_existing {
            addresses = pairs.iter().flat_map(|&(a, b)| [(a, b), (b, a)]).collect();
        }
        for (from, to) in addresses {
            world.inject(from, to, &header);
            martians += 1;
        }
    }
    world.step();
    assert_eq!(world.stack.counters().martians_dropped, martians);
    assert_eq!(world.on_wire, [], "none is answered");
    // The connections go on.
    for stream in [stream, own] {
        world.send(stream, b"text");
        world.run_until(|world| world.is_over(stream));
        assert_eq!(world.end(stream).received, b"text");
    }
}

#[test]
fn the_server_in_the_process_is_not_reached_and_no_range_of_a_file_is_taken() {
    let mut world = World::new();
    let stream = world.connect(None, "10.77.0.2:80").unwrap();
    world.run_until(|world| world.is_over(stream));
    assert_eq!(world.end(stream).closed, Some(CloseReason::Refused));

    world.listen("0.0.0.0:8080");
    let stream = world.connect(None, "10.77.0.2:8080").unwrap();
    world.run_until(|world| world.app.accepted.len() == 1);
    let mut file = None;
    world.act(|io, _| file = Some(io.open(stream, b"file", host::Growth::Forbidden)));
    world.step();
    let opened = world.nic.work.pop_front().expect("OPEN");
    world.nic.carry_out(opened, world.now_us);
    world.step();
    world.act(|io, _| assert_eq!(io.write_file(stream, file.unwrap(), 0..4), 0));
    world.send(stream, b"text");
    world.run_until(|world| world.is_over(stream));
    assert_eq!(world.end(stream).received, b"text");
    assert_eq!(world.stack.counters().sends, 0);
}

#[test]
fn thousands_of_connections_leave_nothing_but_time_wait() {
    let mut world = World::with(|config| {
        config.admission = Admission {
            connections_per_source: Some(5),
            ..Admission::default()
        };
    });
    world.listen("[::]:8080");
    let text = text(3000);
    for round in 0..100 {
        let to = [("127.0.0.1:8080"), ("[::1]:8080"), ("10.77.0.2:8080")][round % 3];
        let streams: Vec<StreamId> = (0..50)
            .map(|_| {
                let stream = world.connect(None, to).unwrap();
                world.send(stream, &text);
                stream
            })
            .collect();
        world.run_until(|world| streams.iter().all(|stream| world.is_over(*stream)));
        for stream in streams {
            assert!(world.end(stream).received == text, "{to}: every byte");
        }
    }
    world.run_until(|world| world.stack.usage().connections == 0);
    assert_eq!(world.stack.usage().half_open, 0);
    assert_eq!(world.stack.connections(), 5000, "in TIME-WAIT");
    let until_us = world.now_us + 61_000_000;
    world.run_until(|world| world.now_us > until_us);
    assert_eq!(world.stack.connections(), 0);
    assert_eq!(world.on_wire, []);
    assert_eq!(world.stack.counters().loopback_drops, 0);
}

#[test]
fn a_crowd_shares_the_queue_and_leaves_turns_to_others() {
    let mut world = World::new();
    world.listen("0.0.0.0:8080");
    let text = text(400_000);
    let streams: Vec<StreamId> = (0..300)
        .map(|_| {
            let stream = world.connect(None, "127.0.0.1:8080").unwrap();
            world.send(stream, &text);
            stream
        })
        .collect();
    let mut turns = 0;
    let mut before = world.stack.counters();
    while !streams.iter().all(|stream| world.is_over(*stream)) {
        world.step();
        turns += 1;
        assert!(turns < 100_000);
        let after = world.stack.counters();
        assert!(after.loopback_segments - before.loopback_segments <= 256);
        before = after;
    }
    for stream in streams {
        assert!(world.end(stream).received == text, "every byte");
    }
    let counters = world.stack.counters();
    assert_eq!((counters.loopback_drops, counters.retransmissions), (0, 0));
}

#[test]
fn buffers_smaller_than_a_segment_slow_down_and_stop_nothing() {
    for bytes in [4 << 10, 16 << 10, 40 << 10] {
        let mut world = World::new();
        world.app.options = vec![
            StreamOption::ReceiveBufferBytes(bytes),
            StreamOption::SendBufferBytes(bytes),
        ];
        world.listen("0.0.0.0:8080");
        let begun_us = world.now_us;
        world.exchange(None, "127.0.0.1:8080", &text(500_000));
        let took_us = world.now_us - begun_us;
        assert!(took_us < 1_000_000, "{bytes}: {took_us} us");
    }
}

#[test]
fn neither_the_link_nor_a_nic_stack_is_needed() {
    let mut world = World::new();
    world.listen("0.0.0.0:8080");
    world.stack.on_nic_lost(world.now_us, 0);
    let smaller = Link {
        mtu: 576,
        ..Link::of(&world.port)
    };
    let stream = world.connect(None, "127.0.0.1:8080").unwrap();
    world.run_until(|world| world.app.accepted.len() == 1);
    world
        .stack
        .on_link(world.now_us, smaller, LinkChange::default());
    world.act(|io, _| assert!(io.info(stream).unwrap().mss > 4_000));
    let text = text(1_000_000);
    world.send(stream, &text);
    world.run_until(|world| world.is_over(stream));
    assert!(world.end(stream).received == text, "every byte");
}

#[test]
fn the_end_of_the_stack_ends_both_ends() {
    let mut world = World::new();
    world.listen("0.0.0.0:8080");
    let stream = world.connect(None, "127.0.0.1:8080").unwrap();
    world.run_until(|world| world.app.accepted.len() == 1);
    let (stack, app) = (&mut world.stack, &mut world.app);
    stack.abort_all(world.now_us, &mut world.port, app);
    world.run_until(|world| world.stack.connections() == 0);
    assert_eq!(world.end(stream).closed, Some(CloseReason::Aborted));
}
