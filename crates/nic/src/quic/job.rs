//! A QSEND that was accepted: its packet numbers are spoken for, and each is sealed once or never.

use std::ops::Range;

use contract::quic::QuicSend;
use contract::tls::TAG_BYTES;
use contract::{FileId, FlowId, Segment, SendId};

#[derive(Debug)]
pub(super) struct JobPacket {
    pub(super) number: u64,
    pub(super) generation: u32,
    /// Of the bytes.
    pub(super) prefix: Range<usize>,
    pub(super) header: Range<usize>,
    /// Of the segments.
    pub(super) segments: Range<usize>,
    /// As it leaves.
    pub(super) datagram_bytes: usize,
}

#[derive(Debug)]
pub(super) enum JobSegment {
    Inline(Range<usize>),
    File {
        file: FileId,
        offset: u64,
        len: usize,
    },
}

/// A QSEND that was accepted. [`Sealer::seal`](super::Sealer::seal) takes it.
#[derive(Debug)]
pub struct Job {
    id: SendId,
    flow: FlowId,
    /// Which of the flows that had the name.
    pub(super) incarnation: u64,
    pub(super) packets: Vec<JobPacket>,
    pub(super) segments: Vec<JobSegment>,
    pub(super) bytes: Vec<u8>,
}

impl Job {
    pub(super) fn new(send: &QuicSend<'_>, incarnation: u64) -> Job {
        let mut job = Job {
            id: send.id,
            flow: send.flow,
            incarnation,
            packets: Vec::with_capacity(send.packets.len()),
            segments: Vec::with_capacity(send.segments.len()),
            bytes: Vec::new(),
        };
        for (packet, segments) in send.each() {
            let prefix = job.copy(packet.prefix);
            let header = job.copy(packet.header);
            let first = job.segments.len();
            let mut plaintext_bytes = 0;
            for segment in segments {
                plaintext_bytes += segment.len() as usize;
                let segment = match *segment {
                    Segment::Inline(bytes) => JobSegment::Inline(job.copy(bytes)),
                    Segment::File { file, offset, len } => JobSegment::File {
                        file,
                        offset,
                        len: len as usize,
                    },
                    // None decodes.
                    Segment::Sealed { .. } => continue,
                };
                job.segments.push(segment);
            }
            let sealed_bytes = plaintext_bytes + TAG_BYTES;
            job.packets.push(JobPacket {
                number: packet.number,
                generation: packet.generation,
                datagram_bytes: prefix.len() + header.len() + sealed_bytes,
                prefix,
                header,
                segments: first..job.segments.len(),
            });
        }
        job
    }

    fn copy(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    /// The QSEND.
    pub fn id(&self) -> SendId {
        self.id
    }

    /// Its flow.
    pub fn flow(&self) -> FlowId {
        self.flow
    }

    /// The ranges of files that it needs.
    pub fn files(&self) -> impl Iterator<Item = (FileId, u64, usize)> {
        let segments = self.segments.iter();
        segments.filter_map(|segment| match *segment {
            JobSegment::Inline(_) => None,
            JobSegment::File { file, offset, len } => Some((file, offset, len)),
        })
    }
}
