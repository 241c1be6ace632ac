//! Traces of connections, beside what the connections have done.

use std::collections::{BTreeMap, BTreeSet};

use contract::tls::Cipher;
use fakes::seeds::each_seed;
use quic::{CloseReason, PacketType, TraceEvent, Traced, TracedFrame, TracedPacket};
use tcp::Instant;

use crate::support::{self, World, settings};

const TYPES: [PacketType; 3] = [
    PacketType::Initial,
    PacketType::Handshake,
    PacketType::OneRtt,
];

/// What a trace says, put together.
#[derive(Default)]
struct Account {
    /// By their kinds: numbers that were sent, and of these in flight.
    sent: [BTreeSet<u64>; 3],
    in_flight: [BTreeMap<u64, usize>; 3],
    lost: u64,
    received: u64,
    /// Bytes of each stream, once each.
    streams: BTreeMap<u64, u64>,
    is_closed: bool,
}

impl Account {
    fn of(traced: &[Traced]) -> Self {
        let mut account = Self::default();
        let mut last = Instant::from_us(0);
        for traced in traced {
            assert!(traced.at >= last, "in the order of time");
            last = traced.at;
            assert!(!account.is_closed || is_stray(&traced.event), "{traced:?}");
            account.take(&traced.event);
        }
        account
    }

    fn take(&mut self, event: &TraceEvent) {
        match event {
            TraceEvent::Sent(packet) => {
                let at = packet.packet_type as usize;
                let above = self.sent[at]
                    .last()
                    .is_none_or(|last| *last < packet.number);
                assert!(above, "numbers ascend: {packet:?}");
                self.sent[at].insert(packet.number);
                self.in_flight[at].insert(packet.number, packet.bytes);
                self.take_streams(packet);
            }
            TraceEvent::Received(packet) => {
                self.received += 1;
                let ranges = packet.frames.iter().filter_map(|frame| match frame {
                    TracedFrame::Ack { ranges, .. } => Some(ranges),
                    _ => None,
                });
                for (smallest, largest) in ranges.flatten() {
                    let space = &mut self.in_flight[packet.packet_type as usize];
                    space.retain(|number, _| !(smallest..=largest).contains(&number));
                }
            }
            TraceEvent::Lost {
                packet_type,
                number,
                is_mtu_probe,
                ..
            } => {
                let was = self.in_flight[*packet_type as usize].remove(number);
                assert!(was.is_some(), "{packet_type:?} {number} was in flight");
                self.lost += u64::from(!is_mtu_probe);
            }
            TraceEvent::Closed(_) => self.is_closed = true,
            _ => {}
        }
    }

    fn take_streams(&mut self, packet: &TracedPacket) {
        for frame in &packet.frames {
            assert!(!matches!(frame, TracedFrame::Unknown(_)), "{packet:?}");
            if let TracedFrame::Stream {
                stream,
                offset,
                len,
                ..
            } = frame
            {
                let end = self.streams.entry(*stream).or_default();
                *end = (*end).max(offset + len);
            }
        }
    }
}

/// What may come when a connection is closed: packets.
fn is_stray(event: &TraceEvent) -> bool {
    matches!(
        event,
        TraceEvent::Sent(_) | TraceEvent::Received(_) | TraceEvent::Metrics(_)
    )
}

fn take(world: &mut World<'_>) -> Vec<Traced> {
    std::iter::from_fn(|| world.endpoint.poll_traced()).collect()
}

#[test]
fn a_trace_has_each_packet_and_each_loss() {
    each_seed(6, |random| {
        let mut world = World::new(&settings(), Cipher::Aes128Gcm, random);
        world.weather.lost = 20;
        world.endpoint.trace_new(None);
        world.run_until(|world| world.client.is_connected);
        world.endpoint.stop_tracing_new();
        let stream = world.request(1, 0, 1_000_000);
        world.run_until(|world| world.are_finished());
        let server = world.server.expect("a connection");
        let (_, lost) = world.endpoint.path(server).expect("it is there");
        let mut traced = take(&mut world);
        assert_eq!(Account::of(&traced).lost, lost);
        assert!(lost > 0, "some were lost");

        world.client.close(world.now_us, 5);
        world.drain();
        traced.extend(take(&mut world));
        let TraceEvent::Started { original_id, .. } = &traced[0].event else {
            panic!("the beginning: {:?}", traced[0]);
        };
        assert!(original_id.as_ref().is_some_and(|id| id.len() >= 8));
        let parameters = traced.iter().filter_map(|traced| match &traced.event {
            TraceEvent::Parameters {
                is_local,
                parameters,
            } => Some((*is_local, parameters.len())),
            _ => None,
        });
        let parameters: Vec<_> = parameters.collect();
        assert_eq!(parameters.iter().filter(|(local, _)| *local).count(), 1);
        assert_eq!(parameters.len(), 2);
        assert!(parameters.iter().all(|(_, len)| *len > 5), "{parameters:?}");
        let account = Account::of(&traced);
        for packet_type in TYPES {
            assert!(
                !account.sent[packet_type as usize].is_empty(),
                "{packet_type:?}"
            );
        }
        // Those that a NIC stack sealed; each number from the first on.
        let numbers = &account.sent[PacketType::OneRtt as usize];
        assert_eq!(numbers.len() as u64, world.sealed_packets);
        let head_and_tail = (support::HEAD.len() + support::TAIL.len()) as u64;
        assert_eq!(account.streams[&stream], 1_000_000 + head_and_tail);
        assert!(account.received > 10);
        let closed = traced.iter().find_map(|traced| match &traced.event {
            TraceEvent::Closed(reason) => Some(reason),
            _ => None,
        });
        assert_eq!(closed, Some(&CloseReason::Application(5)));
    });
}

#[test]
fn a_trace_may_begin_amid_a_connection_and_end_there() {
    each_seed(6, |random| {
        let mut world = World::new(&settings(), Cipher::Aes128Gcm, random);
        world.weather.lost = 20;
        world.run_until(|world| world.client.is_connected);
        let stream = world.request(1, 0, 2_000_000);
        let received = |world: &World<'_>| world.transfers[&stream].received.len();
        world.run_until(|world| received(world) > 300_000);
        assert_eq!(take(&mut world), [], "nothing is traced unasked");
        let server = world.server.expect("a connection");
        let now = Instant::from_us(world.now_us);
        assert!(world.endpoint.trace(now, server));
        let (_, lost_before) = world.endpoint.path(server).expect("it is there");
        world.client.update_keys();
        world.run_until(|world| received(world) > 1_000_000);
        let traced = take(&mut world);
        let (_, lost) = world.endpoint.path(server).expect("it is there");
        let account = Account::of(&traced);
        // Some of what was lost had left before.
        assert!(account.lost <= lost - lost_before);
        assert!(account.lost > 0 && account.received > 10);
        let updated = traced.iter().filter_map(|traced| match traced.event {
            TraceEvent::KeyUpdated { generation } => Some(generation),
            _ => None,
        });
        assert!(updated.eq([1]));
        let metrics = traced.iter().rev().find_map(|traced| match traced.event {
            TraceEvent::Metrics(metrics) => Some(metrics),
            _ => None,
        });
        let metrics = metrics.expect("they change");
        assert!(metrics.min_rtt <= metrics.smoothed_rtt);
        assert_eq!(
            metrics.congestion_window,
            world.endpoint.congestion_window(server)
        );
        let in_flight = metrics.bytes_in_flight.expect("all is known by then");
        let known = account.in_flight[PacketType::OneRtt as usize].values();
        let known: usize = known.sum();
        assert!(in_flight <= known as u64, "but for acknowledgments");

        world.endpoint.untrace(server);
        world.run_until(|world| world.are_finished());
        assert_eq!(take(&mut world), []);
    });
}
