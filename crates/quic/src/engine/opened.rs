//! Packets that a NIC stack has opened.
//!
//! The engine passes them to quinn-proto with header protection removed, the packet number at full
//! length, and plaintext as payload. A mark in the recorder, set only while the engine handles such
//! a packet, tells the connection's keys. No datagram can carry the mark.

use bytes::BytesMut;
use contract::quic::QuicConnectionId;
use quinn_proto::{ConnectionHandle, ConnectionId, DatagramEvent};
use tcp::Instant;

use super::Endpoint;
use crate::recorder::Mark;
use crate::types::{Arrival, Handle, Opened, Output};

/// Length of the packet number for quinn-proto, in bytes: the maximum, so that it decodes
/// unambiguously.
const NUMBER_BYTES: usize = 4;

/// Bits of the first byte with the length of the packet number.
const NUMBER_BITS: u8 = 0x03;

/// Frame (RFC 9000 §19.1)
const PADDING: &[u8] = &[0];

impl Endpoint {
    /// A NIC stack has received and opened a packet of a connection. False if the engine did not
    /// take it, as if it had been lost.
    pub fn on_opened(
        &mut self,
        now: Instant,
        connection: Handle,
        arrival: &Arrival,
        opened: &Opened<'_>,
    ) -> bool {
        // Time neither goes back nor ahead of now.
        let at = opened.arrived.max(self.told).min(now);
        self.on_time(at);
        // Trace events stay in order of time.
        self.tracing.now = now;
        if self.peek(connection).is_none() {
            return false;
        }
        let index = connection.index;
        // A packet without its ACK frame has still arrived.
        let plaintext = if opened.plaintext.is_empty() {
            PADDING
        } else {
            opened.plaintext
        };
        let found = self.find(at, arrival, || packet(opened, plaintext));
        match found.event {
            Some(DatagramEvent::ConnectionEvent(ConnectionHandle(of), event)) if of == index => {
                let Some(connection) = self.at(index) else {
                    return false;
                };
                let recorder = connection.recorder.clone();
                recorder.lock().set_mark(Mark {
                    generation: opened.generation,
                    number: opened.number,
                    plaintext_bytes: plaintext.len(),
                    is_bare: opened.plaintext.is_empty(),
                });
                connection.on_arrival(at, found.remote, plaintext.len(), event);
                let is_left = recorder.lock().take_mark();
                self.after(index);
                !is_left
            }
            // The connection ID was retired.
            Some(DatagramEvent::Response(transmit)) => {
                self.push_sealed(&transmit, found.answer);
                false
            }
            _ => false,
        }
    }

    /// One more than the largest number of the peer's opened 1-RTT packets.
    pub fn next_received(&self, connection: Handle) -> u64 {
        let connection = self.peek(connection);
        connection.map_or(0, |connection| connection.recorder.lock().opened_end())
    }

    /// The IDs that the peer may use for a connection, as far as NIC stacks must know them.
    pub fn connection_ids(&self, connection: Handle) -> impl Iterator<Item = QuicConnectionId> {
        let connection = self.peek(connection);
        connection.into_iter().flat_map(|it| it.ids.iter().copied())
    }

    /// Takes the connection IDs made since the last call.
    pub(super) fn take_issued(&mut self) -> Vec<ConnectionId> {
        self.issued.take()
    }

    /// Assigns the connection IDs made since the last call to a connection.
    pub(super) fn name(&mut self, index: usize) {
        for id in self.take_issued() {
            let Some(id) = QuicConnectionId::new(&id) else {
                continue;
            };
            let Some(connection) = self.at(index) else {
                return;
            };
            connection.add_id(id);
            connection.ids_allowed.take(1);
            let connection = connection.handle;
            self.outputs
                .push_back(Output::ConnectionId { connection, id });
        }
    }
}

/// A packet for quinn-proto, as long as it was on the wire.
fn packet(opened: &Opened<'_>, plaintext: &[u8]) -> BytesMut {
    let id = opened.id.as_bytes();
    let number_bytes = usize::from(opened.first & NUMBER_BITS) + 1;
    // The tag shrinks by as much as the packet number grows.
    let tag_bytes = contract::tls::TAG_BYTES - (NUMBER_BYTES - number_bytes);
    // The header protection sample begins four bytes after the start of the packet number (RFC 9001
    // §5.4.2).
    let sampled_bytes = contract::tls::TAG_BYTES.max(plaintext.len() + tag_bytes);
    let len = 1 + id.len() + NUMBER_BYTES + sampled_bytes;
    let mut packet = BytesMut::zeroed(len);
    let (header, payload) = packet.split_at_mut(1 + id.len() + NUMBER_BYTES);
    let (first, rest) = header.split_at_mut(1);
    first[0] = opened.first | NUMBER_BITS;
    let (to_id, to_number) = rest.split_at_mut(id.len());
    to_id.copy_from_slice(id);
    to_number.copy_from_slice(&(opened.number as u32).to_be_bytes());
    payload[..plaintext.len()].copy_from_slice(plaintext);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{NOW, connected, deliver};
    use crate::trace::{PacketType, TraceEvent, TracedFrame, TracedPacket};
    use crate::types::EventKind;

    const PING: &[u8] = &[1];

    /// CONNECTION_CLOSE of the application, with code 7 and no reason (RFC 9000 §19.19).
    const CLOSE: &[u8] = &[0x1d, 7, 0];

    /// An endpoint with a connection, its handle, one of its IDs, and where its packets come from.
    fn receiving() -> (Endpoint, Handle, QuicConnectionId, Arrival) {
        let (mut endpoint, mut client) = connected();
        client.request(b"file").expect("a stream");
        deliver(&mut client, &mut endpoint);
        let opened = std::iter::from_fn(|| endpoint.poll_event());
        let opened = opened.filter(|event| matches!(event.kind, EventKind::Opened(_)));
        let connection = opened.last().expect("a stream").connection;
        let id = endpoint.connection_ids(connection).next();
        let arrival = Arrival {
            remote: client.local,
            local_ip: None,
            ecn: None,
        };
        (endpoint, connection, id.expect("it has IDs"), arrival)
    }

    fn packet_of<'a>(id: &'a QuicConnectionId, number: u64, plaintext: &'a [u8]) -> Opened<'a> {
        Opened {
            arrived: NOW,
            generation: 0,
            number,
            id,
            first: 0x41,
            plaintext,
        }
    }

    fn is_closed(endpoint: &mut Endpoint) -> bool {
        let mut events = std::iter::from_fn(|| endpoint.poll_event());
        events.any(|event| matches!(event.kind, EventKind::Closed(_)))
    }

    #[test]
    fn a_packet_that_was_opened_elsewhere_is_taken_once() {
        let (mut endpoint, connection, id, arrival) = receiving();
        let next = endpoint.next_received(connection);
        assert!(next > 0, "the request was opened here");
        for number in [next, next + 1000, next + 5] {
            let ping = packet_of(&id, number, PING);
            assert!(endpoint.on_opened(NOW, connection, &arrival, &ping));
        }
        assert_eq!(endpoint.next_received(connection), next + 1001);
        // Only its number.
        let number = packet_of(&id, next + 7, b"");
        assert!(endpoint.on_opened(NOW, connection, &arrival, &number));
        // A duplicate is not looked at.
        let again = packet_of(&id, next + 7, CLOSE);
        endpoint.on_opened(NOW, connection, &arrival, &again);
        assert!(!is_closed(&mut endpoint));
        let close = packet_of(&id, next + 1001, CLOSE);
        assert!(endpoint.on_opened(NOW, connection, &arrival, &close));
        assert!(is_closed(&mut endpoint));
    }

    /// The same bytes, but as a datagram.
    #[test]
    fn no_datagram_can_say_that_it_was_opened() {
        let (mut endpoint, connection, id, arrival) = receiving();
        let next = endpoint.next_received(connection);
        for number in next..next + 100 {
            let close = packet_of(&id, number, CLOSE);
            endpoint.on_datagram(NOW, &arrival, &packet(&close, CLOSE));
        }
        assert!(!is_closed(&mut endpoint));
        assert_eq!(endpoint.next_received(connection), next);
        // Nor does a datagram after a packet that was.
        let ping = packet_of(&id, next, PING);
        assert!(endpoint.on_opened(NOW, connection, &arrival, &ping));
        let close = packet_of(&id, next + 1, CLOSE);
        endpoint.on_datagram(NOW, &arrival, &packet(&close, CLOSE));
        assert!(!is_closed(&mut endpoint));
        assert_eq!(endpoint.next_received(connection), next + 1);
    }

    #[test]
    fn a_packet_of_another_key_or_connection_is_not_taken() {
        let (mut endpoint, connection, id, arrival) = receiving();
        let next = endpoint.next_received(connection);
        let of_next_key = Opened {
            generation: 1,
            ..packet_of(&id, next, CLOSE)
        };
        assert!(!endpoint.on_opened(NOW, connection, &arrival, &of_next_key));
        // Nor with another key phase: the engine tries the next key, which the mark does not name.
        let of_next_phase = Opened {
            first: 0x45,
            ..packet_of(&id, next, CLOSE)
        };
        assert!(!endpoint.on_opened(NOW, connection, &arrival, &of_next_phase));
        let unknown = QuicConnectionId::new(&[9; 8]).expect("eight bytes");
        let close = packet_of(&unknown, next, CLOSE);
        assert!(!endpoint.on_opened(NOW, connection, &arrival, &close));
        let unknown_handle = Handle {
            serial: connection.serial + 1,
            ..connection
        };
        let close = packet_of(&id, next, CLOSE);
        assert!(!endpoint.on_opened(NOW, unknown_handle, &arrival, &close));
        assert!(!is_closed(&mut endpoint));
        assert_eq!(endpoint.next_received(connection), next);
    }

    #[test]
    fn what_was_opened_elsewhere_is_traced() {
        let (mut endpoint, connection, id, arrival) = receiving();
        let next = endpoint.next_received(connection);
        assert!(endpoint.trace(NOW, connection));
        // It arrived before the last traced packet.
        let now = Instant::from_us(1000);
        let ping = packet_of(&id, next, &[1, 0]);
        assert!(endpoint.on_opened(now, connection, &arrival, &ping));
        // An ACK frame was removed.
        let bare = packet_of(&id, next + 1, b"");
        assert!(endpoint.on_opened(now, connection, &arrival, &bare));
        let of_next_key = Opened {
            generation: 1,
            ..packet_of(&id, next + 2, PING)
        };
        assert!(!endpoint.on_opened(now, connection, &arrival, &of_next_key));
        let traced = std::iter::from_fn(|| endpoint.poll_traced());
        let received = traced.filter_map(|traced| match traced.event {
            TraceEvent::Received(packet) => Some((traced.at, packet)),
            _ => None,
        });
        let packet = |number, bytes, frames| TracedPacket {
            packet_type: PacketType::OneRtt,
            number,
            bytes,
            frames,
        };
        let wire_bytes = 1 + 8 + 2 + 2 + 16;
        let frames = vec![TracedFrame::Ping, TracedFrame::Padding(1)];
        let wanted = [
            (now, packet(next, wire_bytes, frames)),
            (now, packet(next + 1, wire_bytes, vec![])),
        ];
        assert_eq!(received.collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn a_packet_is_as_long_as_on_the_wire_and_long_enough_for_a_sample() {
        let id = QuicConnectionId::new(&[7; 8]).expect("eight bytes");
        for number_bytes in 1..=4 {
            for len in [1, 3, 4, 100] {
                let plaintext = vec![6; len];
                let opened = Opened {
                    arrived: Instant::from_us(0),
                    generation: 0,
                    number: 0x1_0203_0405,
                    id: &id,
                    first: 0x40 | (number_bytes as u8 - 1),
                    plaintext: &plaintext,
                };
                let packet = packet(&opened, &plaintext);
                let wire_bytes = 1 + 8 + number_bytes + len + 16;
                assert_eq!(packet.len(), wire_bytes.max(1 + 8 + 4 + 16));
                assert_eq!(packet[0], 0x43);
                assert_eq!(packet[1..9], [7; 8]);
                assert_eq!(packet[9..13], [2, 3, 4, 5]);
                assert_eq!(packet[13..13 + len], plaintext);
            }
        }
    }
}
