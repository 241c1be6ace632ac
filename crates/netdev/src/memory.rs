//! Two ports joined in memory, for tests and simulation.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::steering::Target;
use crate::{Frame, Offload, Port, SendError, Superpacket, segment};

/// Properties of the link between two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Hardware addresses of the two ends.
    pub macs: [[u8; 6]; 2],
    /// Largest IP packet on the wire, in bytes.
    pub mtu: usize,
    /// Largest IP packet taken for cutting, in bytes.
    pub superpacket_max: usize,
    /// How superpackets arrive.
    pub delivery: Delivery,
    /// Frames on their way in one direction; more are dropped.
    pub queue_max: usize,
}

/// How superpackets arrive at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Cut into packets, with complete checksums that the receiver has to verify: a wire.
    Cut,
    /// Whole, vouched for: a veth pair, or a NIC that merges received packets. Datagrams are cut in
    /// any case, and vouched for: this port sets no [`Frame::segment_bytes`].
    Whole,
}

impl Default for Link {
    /// An MTU of 1500, superpackets of 64 KB, cut.
    fn default() -> Link {
        Link {
            macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
            mtu: 1500,
            superpacket_max: 65_535,
            delivery: Delivery::Cut,
            queue_max: 4096,
        }
    }
}

/// One end of a [`Link`].
#[derive(Debug)]
pub struct MemoryPort {
    mac: [u8; 6],
    link: Link,
    incoming: Arc<Queue>,
    outgoing: Arc<Queue>,
    target: Option<Target>,
}

type Queue = Mutex<VecDeque<Queued>>;

#[derive(Debug)]
struct Queued {
    bytes: Vec<u8>,
    checksum_valid: bool,
}

/// Returns two ports, each receiving the other's frames.
pub fn pair(link: Link) -> (MemoryPort, MemoryPort) {
    let [a, b] = [Arc::<Queue>::default(), Arc::<Queue>::default()];
    let port = |mac, incoming: &Arc<Queue>, outgoing: &Arc<Queue>| MemoryPort {
        mac,
        link,
        incoming: incoming.clone(),
        outgoing: outgoing.clone(),
        target: None,
    };
    (port(link.macs[0], &a, &b), port(link.macs[1], &b, &a))
}

impl MemoryPort {
    /// Sets the name of this end in a steering map, for users that put frames on the other end.
    pub fn set_target(&mut self, target: Option<Target>) {
        self.target = target;
    }

    /// Puts a complete frame of any length on the link as it is, as if the other end had merged
    /// several. A full queue drops it.
    pub fn put(&mut self, frame: &[u8]) {
        let mut queue = lock(&self.outgoing);
        if queue.len() < self.link.queue_max {
            queue.push_back(Queued {
                bytes: frame.to_vec(),
                checksum_valid: false,
            });
        }
    }
}

/// A queue is whole after every operation, so a panic of the other end's thread does not spoil it.
fn lock(queue: &Queue) -> MutexGuard<'_, VecDeque<Queued>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn impossible(why: &'static str) -> SendError {
    SendError::Failed(io::Error::new(io::ErrorKind::InvalidInput, why))
}

impl Port for MemoryPort {
    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.link.mtu
    }

    fn superpacket_max(&self, _ipv6: bool) -> usize {
        self.link.superpacket_max
    }

    fn send(&mut self, packet: &Superpacket<'_>) -> Result<(), SendError> {
        crate::check_size(packet, self.link.mtu, self.link.superpacket_max).map_err(impossible)?;
        let mut queue = lock(&self.outgoing);
        let mut dropped = false;
        let mut put = |bytes, checksum_valid| {
            if queue.len() < self.link.queue_max {
                queue.push_back(Queued {
                    bytes,
                    checksum_valid,
                });
            } else {
                dropped = true;
            }
        };
        match (packet.offload, self.link.delivery) {
            (Offload::Tcp { mss, .. }, Delivery::Cut) => {
                segment::cut(packet.header, packet.payload, mss.into(), |frame| {
                    put(frame, false);
                })
                .map_err(|_| impossible("the header is not that of a TCP packet"))?;
            }
            (Offload::Udp { payload_bytes, .. }, delivery) => {
                let payload_bytes = payload_bytes.into();
                let vouched_for = delivery == Delivery::Whole;
                segment::cut_datagrams(packet.header, packet.payload, payload_bytes, |frame| {
                    put(frame, vouched_for);
                })
                .map_err(|_| impossible("the header is not that of a datagram"))?;
            }
            (offload, _) => {
                let payload_bytes: usize = packet.payload.iter().map(|slice| slice.len()).sum();
                let mut bytes = Vec::with_capacity(packet.header.len() + payload_bytes);
                bytes.extend_from_slice(packet.header);
                for slice in packet.payload {
                    bytes.extend_from_slice(slice);
                }
                put(bytes, offload != Offload::None);
            }
        }
        if dropped {
            Err(SendError::Dropped)
        } else {
            Ok(())
        }
    }

    fn receive(&mut self, budget: usize, handle: &mut dyn FnMut(Frame<'_>)) -> io::Result<usize> {
        for received in 0..budget {
            // Taken out first: `handle` may send, also to this queue's other end.
            let Some(queued) = lock(&self.incoming).pop_front() else {
                return Ok(received);
            };
            handle(Frame {
                bytes: &queued.bytes,
                checksum_valid: queued.checksum_valid,
                segment_bytes: None,
            });
        }
        Ok(budget)
    }

    fn receive_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn target(&self) -> Option<Target> {
        self.target
    }

    fn send_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
