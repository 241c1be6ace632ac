//! Values of one machine are translated on the way, by the NIC stack's machine: times, and the
//! Ethernet source address of packets. Neither stack knows that the other is elsewhere.

use crate::codec;

/// Translates a command for the NIC stack, whose clock is ahead of the host's by `nic_ahead_us`.
/// Packets leave with the address `source_mac`, if there is one ([`super::Terms::source_mac`]).
/// Malformed commands stay unchanged.
pub fn to_nic(command: &mut [u8], nic_ahead_us: i64, source_mac: Option<[u8; 6]>) {
    codec::shift_times(command, nic_ahead_us);
    if let Some(mac) = source_mac {
        codec::set_source_mac(command, mac);
    }
}

/// Translates an event for the host stack; the NIC stack's clock is ahead by `nic_ahead_us`.
pub fn to_host(event: &mut [u8], nic_ahead_us: i64) {
    codec::shift_times(event, nic_ahead_us.wrapping_neg());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::{QuicConnectionId, QuicReceived, QuicReceivedPacket};
    use crate::{Command, Event, FileId, FlowId, Segment, Send, SendId};

    const HEADER: [u8; 54] = [0x11; 54];

    fn send(issued_us: u64, not_before_us: u64, header: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Command::Send(Send {
            id: SendId(1),
            flow: FlowId(2),
            stream_offset: 3,
            acked_offset: 0,
            issued_us,
            not_before_us,
            tsval_fraction_us: 4,
            follow_bytes: 0,
            mss: 1460,
            header,
            segments: [
                Segment::Inline(b"HTTP/1.1 200 OK"),
                Segment::File {
                    file: FileId(1),
                    offset: 0,
                    len: 100,
                },
            ]
            .into(),
        })
        .encode(&mut bytes);
        bytes
    }

    #[test]
    fn times_and_source_of_a_send_become_those_of_the_nic_machine() {
        let mut header = HEADER;
        header[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        for (ahead_us, not_before_us) in [(500, 1200), (-900, 1200), (0, 1200), (500, 0)] {
            let mut bytes = send(1000, not_before_us, &HEADER);
            to_nic(&mut bytes, ahead_us, Some([2, 0, 0, 0, 0, 9]));
            let at = |us: u64| us.wrapping_add_signed(ahead_us);
            let not_before_us = if not_before_us == 0 {
                0
            } else {
                at(not_before_us)
            };
            assert_eq!(bytes, send(at(1000), not_before_us, &header));
        }
    }

    #[test]
    fn a_departure_comes_back_in_the_hosts_time() {
        let departed = |departed_us| {
            let mut bytes = Vec::new();
            Event::Departed {
                send: SendId(1),
                flow: FlowId(2),
                departed_us,
            }
            .encode(&mut bytes);
            bytes
        };
        let mut bytes = departed(7_000);
        to_host(&mut bytes, 6_500);
        assert_eq!(bytes, departed(500));
    }

    #[test]
    fn an_arrival_comes_in_the_hosts_time() {
        let received = |arrived_us| {
            let mut bytes = Vec::new();
            let received = QuicReceived {
                flow: FlowId(2),
                generation: 0,
                id: QuicConnectionId::new(&[1; 8]).expect("eight bytes"),
                remote: ([192, 0, 2, 1], 5000).into(),
                local: [192, 0, 2, 2].into(),
                arrived_us,
                packets: vec![QuicReceivedPacket {
                    number: 1,
                    age_us: 3,
                    len: 2,
                    first: 0x40,
                    ecn: 0,
                }],
                plaintext: vec![1, 2],
            };
            Event::QuicReceived(Box::new(received)).encode(&mut bytes);
            bytes
        };
        let mut bytes = received(7_000);
        to_host(&mut bytes, 6_500);
        assert_eq!(bytes, received(500));
    }

    #[test]
    fn whatever_else_comes_stays_as_it_is() {
        let whole = send(1000, 1200, &[0x11; 8]);
        for len in 0..whole.len() {
            let mut cut = whole[..len].to_vec();
            to_nic(&mut cut, 77, Some([9; 6]));
            assert_eq!(cut, whole[..len], "a SEND cut to {len} bytes");
        }
        let mut short_header = whole.clone();
        to_nic(&mut short_header, 0, Some([9; 6]));
        assert_eq!(short_header, whole, "no address in a header of 8 bytes");
        let mut open = Vec::new();
        Command::Open {
            file: FileId(1),
            growth: crate::Growth::Forbidden,
            path: b"a/long/path/to/a/file/that/is/longer/than/a/send/record/of/64/bytes",
        }
        .encode(&mut open);
        let before = open.clone();
        to_nic(&mut open, 77, Some([9; 6]));
        assert_eq!(open, before);
    }
}
