//! The flows of QUIC connections: which keys they have, and which packet numbers may be sealed.

use std::collections::HashMap;

use contract::quic::{QuicKey, QuicSend};
use contract::tls::TAG_BYTES;
use contract::{FileId, FlowId, RejectReason};

use super::job::{Job, JobPacket, JobSegment};
use super::keys::Keys;
use super::packet;

#[derive(Debug)]
struct Flow {
    /// A name may come back: what waits of the flow that had it before must not be sealed with the
    /// keys of this one.
    incarnation: u64,
    keys: Keys,
    /// All numbers below are sealed, spoken for, or passed over.
    next_number: u64,
}

/// Seals the packets of flows.
#[derive(Debug)]
pub struct Sealer {
    flows: HashMap<FlowId, Flow>,
    flows_max: usize,
    incarnations: u64,
}

/// Why the bytes of a file are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadFailure {
    /// The file.
    pub file: FileId,
    /// Where reading failed.
    pub offset: u64,
    /// `errno` of Linux.
    pub errno: u16,
}

impl Sealer {
    /// No flows, and never more than `flows_max`.
    pub fn new(flows_max: usize) -> Self {
        Self {
            flows: HashMap::new(),
            flows_max,
            incarnations: 0,
        }
    }

    /// QKEY.
    ///
    /// # Errors
    /// If the flow has had a key of this generation or a later one, or there are too many.
    pub fn key(&mut self, key: &QuicKey<'_>) -> Result<(), RejectReason> {
        if !self.flows.contains_key(&key.flow) && self.flows.len() >= self.flows_max {
            return Err(RejectReason::TooManyFlows);
        }
        let flow = self.flows.entry(key.flow).or_insert_with(|| {
            self.incarnations += 1;
            Flow {
                incarnation: self.incarnations,
                keys: Keys::default(),
                next_number: 0,
            }
        });
        flow.keys.install(key)
    }

    /// QKEYGONE. Keys that are not there are gone.
    pub fn key_gone(&mut self, flow: FlowId, generation: u32) {
        if let Some(flow) = self.flows.get_mut(&flow) {
            flow.keys.let_go(generation);
        }
    }

    /// ACKD with `last`: the flow is over, and its keys go, whatever waits.
    pub fn forget(&mut self, flow: FlowId) {
        self.flows.remove(&flow);
    }

    /// How many keys a flow has.
    pub fn keys(&self, flow: FlowId) -> usize {
        self.flows.get(&flow).map_or(0, |flow| flow.keys.len())
    }

    /// QSEND. Its numbers are spoken for from now on.
    ///
    /// # Errors
    /// If a key is not there, or a number must not be sealed. Then nothing has changed.
    pub fn accept(&mut self, send: &QuicSend<'_>) -> Result<Job, RejectReason> {
        let flow = self.flows.get_mut(&send.flow);
        let flow = flow.ok_or(RejectReason::UnknownKey)?;
        let mut next_number = flow.next_number;
        for packet in &send.packets {
            let floor = flow.keys.floor(packet.generation);
            let floor = floor.ok_or(RejectReason::UnknownKey)?;
            if packet.number < floor.max(next_number) {
                return Err(RejectReason::NumberReused);
            }
            next_number = packet.number + 1;
        }
        flow.next_number = next_number;
        for packet in &send.packets {
            flow.keys.acquire(packet.generation);
        }
        Ok(Job::new(send, flow.incarnation))
    }

    /// Makes the datagrams of a QSEND. `read` fills its argument with the bytes of a file; `leave`
    /// gets each datagram.
    ///
    /// # Errors
    /// If `read` fails: that packet and those behind it are never sealed. Nothing is sealed of a
    /// flow that was forgotten in the meantime, which is no error.
    pub fn seal(
        &mut self,
        job: Job,
        mut read: impl FnMut(FileId, u64, &mut [u8]) -> Result<(), ReadFailure>,
        mut leave: impl FnMut(&[u8]),
    ) -> Result<(), ReadFailure> {
        let flow = self.flows.get_mut(&job.flow());
        let Some(flow) = flow.filter(|flow| flow.incarnation == job.incarnation) else {
            return Ok(());
        };
        let mut result = Ok(());
        let mut datagram = Vec::new();
        for packet in &job.packets {
            if result.is_ok()
                && let Some(key) = flow.keys.get(packet.generation)
            {
                result = fill(&job, packet, &mut datagram, &mut read);
                if result.is_ok() {
                    let sealed = &mut datagram[packet.prefix.len()..];
                    packet::seal(key, packet.number, packet.header.len(), sealed);
                    leave(&datagram);
                }
            }
            flow.keys.release(packet.generation);
        }
        result
    }
}

/// Puts together the datagram of a packet, without its tag.
fn fill(
    job: &Job,
    packet: &JobPacket,
    datagram: &mut Vec<u8>,
    read: &mut impl FnMut(FileId, u64, &mut [u8]) -> Result<(), ReadFailure>,
) -> Result<(), ReadFailure> {
    datagram.clear();
    datagram.extend_from_slice(&job.bytes[packet.prefix.clone()]);
    datagram.extend_from_slice(&job.bytes[packet.header.clone()]);
    for segment in &job.segments[packet.segments.clone()] {
        match segment {
            JobSegment::Inline(bytes) => datagram.extend_from_slice(&job.bytes[bytes.clone()]),
            JobSegment::File { file, offset, len } => {
                let start = datagram.len();
                datagram.resize(start + len, 0);
                read(*file, *offset, &mut datagram[start..])?;
            }
        }
    }
    datagram.resize(datagram.len() + TAG_BYTES, 0);
    debug_assert_eq!(datagram.len(), packet.datagram_bytes);
    Ok(())
}
