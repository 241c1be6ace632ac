//! QSENDs of whole superpackets, from the one file.

use std::ops::Range;

use contract::quic::{Prepare, QuicKey, QuicPacket, QuicSend};
use contract::tls::{Cipher, TAG_BYTES};
use contract::{Command, FlowId, Segment, SendId};
use nic::Worker;
use wire::datagram::{DatagramHeader, HEADERS_BYTES_MAX};
use wire::ip::Ecn;

use super::{FILE, FILE_BYTES, Rig};
use fakes::null_port::NullPort;

/// Of a QSEND.
pub(crate) const PACKETS: u64 = 44;

/// Length of each datagram, in bytes: what an Ethernet packet of IPv6 holds.
pub(crate) const DATAGRAM_BYTES: usize = 1452;

/// Of a short header: a connection ID of eight bytes, a number of two.
const HEADER_BYTES: usize = 11;

/// STREAM, with an offset and without a length.
const FRAME: [u8; 7] = [0x0c; 7];

/// What each packet has of the file.
const RANGE_BYTES: u64 = (DATAGRAM_BYTES - HEADER_BYTES - FRAME.len() - TAG_BYTES) as u64;

/// What each QSEND has of it.
pub(crate) const SEND_BYTES: u64 = PACKETS * RANGE_BYTES;

const KEY: [u8; 32] = [7; 32];

/// A worker with flows that have keys.
pub(crate) struct QuicRig {
    rig: Rig,
    flows: u64,
    header: Vec<u8>,
}

impl QuicRig {
    pub(crate) fn new(cipher: Cipher, flows: u64) -> QuicRig {
        let mut rig = Rig::new(64 << 10);
        for flow in 0..flows {
            rig.tell(&Command::QuicKey(QuicKey {
                flow: FlowId(flow),
                generation: 0,
                cipher,
                key: &KEY[..cipher.key_bytes()],
                iv: [9; 12],
                header_key: &KEY[..cipher.key_bytes()],
                floor: 0,
            }));
            rig.run_until(0);
        }
        let header = DatagramHeader {
            source_mac: [2; 6],
            destination_mac: [4; 6],
            source: "10.0.0.1:443".parse().expect("an address"),
            destination: "10.0.0.2:5000".parse().expect("an address"),
            ecn: Ecn::NotEct,
        };
        let mut bytes = [0; HEADERS_BYTES_MAX];
        let len = header.write(&mut bytes).expect("it fits");
        let header = bytes[..len].to_vec();
        let mut rig = QuicRig { rig, flows, header };
        for flow in 0..flows {
            rig.prepare(flow, 0);
        }
        rig.run_until(0);
        rig
    }

    /// Tells of QSENDs, which are numbered over all flows, and of what goes with them.
    pub(crate) fn send(&mut self, sends: Range<u64>) {
        for send in sends {
            let (flow, round) = (send % self.flows, send / self.flows);
            self.prepare(flow, round + 1);
            self.send_packets(send, flow, round);
            if round > 0 {
                self.rig.tell(&Command::QuicRelease {
                    flow: FlowId(flow),
                    file: FILE,
                    offset: offset(round - 1),
                    len: SEND_BYTES,
                });
            }
        }
    }

    fn prepare(&mut self, flow: u64, round: u64) {
        self.rig.tell(&Command::Prepare(Prepare {
            id: SendId(round),
            flow: FlowId(flow),
            file: FILE,
            offset: offset(round),
            len: SEND_BYTES as u32,
        }));
    }

    fn send_packets(&mut self, id: u64, flow: u64, round: u64) {
        let first = round * PACKETS;
        let headers: Vec<_> = (first..first + PACKETS).map(header).collect();
        let packets = (first..).zip(&headers).map(|(number, header)| QuicPacket {
            number,
            generation: 0,
            prefix: &[],
            header,
            segments: 2,
        });
        let segments = (0..PACKETS).flat_map(|packet| {
            let range = Segment::File {
                file: FILE,
                offset: offset(round) + packet * RANGE_BYTES,
                len: RANGE_BYTES as u32,
            };
            [Segment::Inline(&FRAME), range]
        });
        self.rig.tell(&Command::QuicSend(QuicSend {
            id: SendId(id),
            flow: FlowId(flow),
            issued_us: 0,
            not_before_us: 0,
            header: &self.header,
            packets: packets.collect(),
            segments: segments.collect(),
        }));
    }

    /// Turns until so many QSENDs have departed.
    pub(crate) fn run_until(&mut self, departures: u64) {
        self.rig.run_until(departures);
    }

    /// Takes in what the worker has reported: how many QSENDs have departed.
    pub(crate) fn departures(&mut self) -> u64 {
        self.rig.departures()
    }

    pub(crate) fn worker(&mut self) -> &mut Worker<NullPort> {
        &mut self.rig.worker
    }
}

fn header(number: u64) -> [u8; HEADER_BYTES] {
    let [.., high, low] = number.to_be_bytes();
    let mut header = [0x41; HEADER_BYTES];
    header[HEADER_BYTES - 2..].copy_from_slice(&[high, low]);
    header
}

/// Where in the file the QSEND of a round begins.
fn offset(round: u64) -> u64 {
    round * SEND_BYTES % (FILE_BYTES as u64 - SEND_BYTES)
}
