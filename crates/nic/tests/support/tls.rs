//! What a host says of TLS records, and what must come out of it: by an implementation that is not
//! the NIC stack's.

use contract::tls::{ContentType, Key, Records, Suite, Tag};
use contract::{Command, FileId, FlowId, Growth, Segment};
use fakes::keys::{Keys, SUITES};

use super::{Stage, range};

pub const AES_256_13: Suite = SUITES[1];

/// The key of an epoch.
pub fn key_bytes(epoch: u16) -> [u8; 32] {
    std::array::from_fn(|at| 0xe0 ^ at as u8 ^ (epoch as u8).wrapping_mul(31))
}

pub fn iv(epoch: u16) -> [u8; 12] {
    std::array::from_fn(|at| 0x70 ^ at as u8 ^ (epoch as u8).wrapping_mul(17))
}

/// A piece of plaintext.
#[derive(Clone, Debug)]
pub enum Plain {
    Inline(Vec<u8>),
    File {
        file: u32,
        offset: usize,
        len: usize,
    },
}

/// A run of records, as the host remembers it.
#[derive(Clone, Debug)]
pub struct Run {
    pub suite: Suite,
    pub epoch: u16,
    pub number: u64,
    pub stream_offset: u64,
    pub content_type: ContentType,
    pub each: u16,
    pub pieces: Vec<Plain>,
    pub tags: Vec<Tag>,
}

impl Run {
    /// The first run of a flow.
    pub fn new(suite: Suite, each: u16, pieces: impl Into<Vec<Plain>>) -> Run {
        Run {
            suite,
            epoch: 1,
            number: 0,
            stream_offset: 0,
            content_type: ContentType::ApplicationData,
            each,
            pieces: pieces.into(),
            tags: Vec::new(),
        }
    }

    /// The run that follows directly.
    pub fn then(&self, each: u16, pieces: impl Into<Vec<Plain>>) -> Run {
        Run {
            number: self.number + self.count() as u64,
            stream_offset: self.end(),
            each,
            pieces: pieces.into(),
            tags: Vec::new(),
            ..self.clone()
        }
    }

    fn plaintext_len(&self) -> usize {
        let len = |piece: &Plain| match piece {
            Plain::Inline(bytes) => bytes.len(),
            Plain::File { len, .. } => *len,
        };
        self.pieces.iter().map(len).sum()
    }

    pub fn count(&self) -> usize {
        self.plaintext_len().div_ceil(self.each.into())
    }

    pub fn len(&self) -> usize {
        self.plaintext_len() + self.count() * self.suite.overhead_bytes()
    }

    pub fn end(&self) -> u64 {
        self.stream_offset + self.len() as u64
    }

    pub fn define(&self, stage: &mut Stage, flow: u64) {
        let segments = self.pieces.iter().map(|piece| match piece {
            Plain::Inline(bytes) => Segment::Inline(bytes),
            Plain::File { file, offset, len } => range(*file, *offset as u64, *len as u32),
        });
        stage.tell(&Command::Records(Records {
            flow: FlowId(flow),
            epoch: self.epoch,
            number: self.number,
            stream_offset: self.stream_offset,
            content_type: self.content_type,
            record_plaintext_bytes: self.each,
            follow_bytes: 0,
            segments: segments.collect(),
            tags: &self.tags,
        }));
    }

    /// Its records one after the other, sealed by another implementation.
    pub fn sealed(&self, files: &[Vec<u8>]) -> Vec<u8> {
        let plaintext: Vec<u8> = self
            .pieces
            .iter()
            .flat_map(|piece| match piece {
                Plain::Inline(bytes) => bytes.clone(),
                Plain::File { file, offset, len } => {
                    files[*file as usize][*offset..offset + len].to_vec()
                }
            })
            .collect();
        let keys = Keys {
            suite: self.suite,
            key: key_bytes(self.epoch)[..self.suite.cipher.key_bytes()].to_vec(),
            iv: iv(self.epoch),
        };
        let records = plaintext.chunks(self.each.into()).zip(self.number..);
        records
            .flat_map(|(plaintext, number)| keys.seal(number, self.content_type as u8, plaintext))
            .collect()
    }

    /// The tags of these bytes, which are its records.
    pub fn tags_of(&self, sealed: &[u8]) -> Vec<Tag> {
        let each = usize::from(self.each) + self.suite.overhead_bytes();
        let tag = |record: &[u8]| *record.last_chunk().expect("a record");
        sealed.chunks(each).map(tag).collect()
    }
}

/// Installs the key of an epoch.
pub fn install(stage: &mut Stage, flow: u64, epoch: u16, suite: Suite) {
    stage.tell(&Command::Key(Key {
        flow: FlowId(flow),
        epoch,
        suite,
        key: &key_bytes(epoch)[..suite.cipher.key_bytes()],
        iv: iv(epoch),
    }));
}

pub fn file(file: u32, offset: usize, len: usize) -> Plain {
    Plain::File { file, offset, len }
}

pub fn inline(bytes: &[u8]) -> Plain {
    Plain::Inline(bytes.to_vec())
}

pub fn sealed(len: usize) -> Segment<'static> {
    Segment::Sealed { len: len as u32 }
}

/// Puts files there and opens them; their ids count from 0.
pub fn put(stage: &mut Stage, files: &[Vec<u8>]) {
    for (id, content) in files.iter().enumerate() {
        let name = format!("file {id}");
        stage.disk.put(name.as_bytes(), content.clone());
        stage.tell(&Command::Open {
            file: FileId(id as u32),
            growth: Growth::Forbidden,
            path: name.as_bytes(),
        });
    }
    stage.settle();
    stage.events.clear();
}
