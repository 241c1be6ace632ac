//! A port that loses, repeats, reorders and damages received frames, as links do.

use std::io;
use std::num::NonZeroU16;
use std::os::fd::BorrowedFd;

use crate::{Frame, Port, SendError, Superpacket};

/// Rates of the faults of received frames, in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// It is lost.
    pub drop_ppm: u32,
    /// It arrives twice.
    pub duplicate_ppm: u32,
    /// The next one overtakes it.
    pub reorder_ppm: u32,
    /// One of its bits is flipped, and its checksum was not verified.
    pub damage_ppm: u32,
}

/// A port with [`Faults`] on reception. The seed determines all faults.
#[derive(Debug)]
pub struct FaultyPort<P> {
    port: P,
    faults: Faults,
    random: u64,
    /// A frame held until another has overtaken it.
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    checksum_valid: bool,
    segment_bytes: Option<NonZeroU16>,
}

impl Held {
    fn of(frame: Frame<'_>) -> Held {
        Held {
            bytes: frame.bytes.to_vec(),
            checksum_valid: frame.checksum_valid,
            segment_bytes: frame.segment_bytes,
        }
    }

    fn frame(&self) -> Frame<'_> {
        Frame {
            bytes: &self.bytes,
            checksum_valid: self.checksum_valid,
            segment_bytes: self.segment_bytes,
        }
    }
}

impl<P: Port> FaultyPort<P> {
    /// Wraps a port.
    pub fn new(port: P, faults: Faults, seed: u64) -> FaultyPort<P> {
        FaultyPort {
            port,
            faults,
            random: seed,
            held: None,
        }
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *random;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn happens(random: &mut u64, ppm: u32) -> bool {
    next(random) % 1_000_000 < u64::from(ppm)
}

impl<P: Port> Port for FaultyPort<P> {
    fn mac(&self) -> [u8; 6] {
        self.port.mac()
    }

    fn mtu(&self) -> usize {
        self.port.mtu()
    }

    fn superpacket_max(&self, ipv6: bool) -> usize {
        self.port.superpacket_max(ipv6)
    }

    fn send(&mut self, packet: &Superpacket<'_>) -> Result<(), SendError> {
        self.port.send(packet)
    }

    /// As the port's, but `handle` may be called up to three times for a frame of `budget`.
    fn receive(&mut self, budget: usize, handle: &mut dyn FnMut(Frame<'_>)) -> io::Result<usize> {
        let FaultyPort {
            port,
            faults,
            random,
            held,
        } = self;
        let received = port.receive(budget, &mut |frame| {
            if happens(random, faults.drop_ppm) {
                return;
            }
            if held.is_none() && happens(random, faults.reorder_ppm) {
                *held = Some(Held::of(frame));
                return;
            }
            if happens(random, faults.damage_ppm) && !frame.bytes.is_empty() {
                let mut bytes = frame.bytes.to_vec();
                let bit = next(random) as usize % (bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
                handle(Frame {
                    bytes: &bytes,
                    checksum_valid: false,
                    ..frame
                });
            } else {
                handle(frame);
                if happens(random, faults.duplicate_ppm) {
                    handle(frame);
                }
            }
            if let Some(held) = held.take() {
                handle(held.frame());
            }
        })?;
        if received == 0
            && let Some(held) = held.take()
        {
            // No frame comes to overtake it.
            handle(held.frame());
            return Ok(1);
        }
        Ok(received)
    }

    fn receive_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.port.receive_fds()
    }

    fn send_fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.send_fd()
    }
}
