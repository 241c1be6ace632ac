//! A NIC stack that seals with RustCrypto, checks its commands strictly, and shares an oracle with
//! its predecessors and successors: all departed copies of a record are identical.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use contract::limits::{FLOW_RECORDS_MAX, KEYS_MAX, SEALED_TAGS_MAX};
use contract::tls::{Records, Tag};
use contract::{Command, Event, FileId, FlowId, Segment, SendId};

use crate::content::content;
use crate::keys::Keys;
use crate::nic::Sealer;

/// Key and IV, and the number of a record.
type Nonce = (Vec<u8>, u64);

/// State that successive NIC stacks share.
#[derive(Clone, Default)]
pub struct World {
    /// Departed records.
    left: Rc<RefCell<HashMap<Nonce, Vec<u8>>>>,
    /// Content of files: XORed with this value.
    pub version: Rc<Cell<u8>>,
    /// Most keys that a flow has had at a time.
    pub keys_max: Rc<Cell<usize>>,
    /// Records sealed again after a first time.
    pub sealed_again: Rc<Cell<usize>>,
}

impl World {
    /// Returns the number of departed records.
    pub fn records(&self) -> usize {
        self.left.borrow().len()
    }

    /// Returns a sealer that shares this state.
    pub fn sealer(&self) -> Box<dyn Sealer> {
        Box::new(ReferenceSealer {
            world: self.clone(),
            flows: HashMap::new(),
            sends: HashMap::new(),
        })
    }
}

struct ReferenceSealer {
    world: World,
    flows: HashMap<FlowId, Flow>,
    /// Records of SENDs that have not departed.
    sends: HashMap<SendId, (FlowId, Vec<Sealed>)>,
}

struct Sealed {
    epoch: u16,
    number: u64,
    keys: Keys,
    record: Vec<u8>,
}

#[derive(Default)]
struct Flow {
    keys: BTreeMap<u16, Keys>,
    /// Epochs with a KEYGONE.
    going: Vec<u16>,
    last_epoch: Option<u16>,
    runs: VecDeque<Run>,
    defined_end: u64,
    /// Epoch and number after the last record.
    defined: (u16, u64),
    failed: bool,
}

struct Run {
    epoch: u16,
    number: u64,
    stream_offset: u64,
    content_type: u8,
    each: usize,
    pieces: Vec<Piece>,
    overhead: usize,
    /// Known tags, with whether the host has them.
    tags: Vec<Option<(Tag, bool)>>,
}

enum Piece {
    Inline(Vec<u8>),
    File { size: u64, offset: u64, len: u64 },
}

impl Run {
    fn new(records: &Records<'_>, overhead: usize, sizes: &HashMap<FileId, u64>) -> Run {
        let pieces = records.segments.iter().map(|segment| match *segment {
            Segment::Inline(bytes) => Piece::Inline(bytes.to_vec()),
            Segment::File { file, offset, len } => {
                let size = *sizes.get(&file).expect("the file is open");
                let len = u64::from(len);
                assert!(offset + len <= size, "within the file");
                Piece::File { size, offset, len }
            }
            Segment::Sealed { .. } => panic!("records of records"),
        });
        let mut tags: Vec<_> = records.tags.iter().map(|&tag| Some((tag, true))).collect();
        tags.resize(records.count() as usize, None);
        Run {
            epoch: records.epoch,
            number: records.number,
            stream_offset: records.stream_offset,
            content_type: records.content_type as u8,
            each: records.record_plaintext_bytes.into(),
            pieces: pieces.collect(),
            overhead,
            tags,
        }
    }

    fn plaintext(&self, version: u8) -> Vec<u8> {
        let mut plaintext = Vec::new();
        for piece in &self.pieces {
            match piece {
                Piece::Inline(bytes) => plaintext.extend_from_slice(bytes),
                Piece::File { size, offset, len } => {
                    let bytes = (*offset..offset + len).map(|at| content(*size, at) ^ version);
                    plaintext.extend(bytes);
                }
            }
        }
        plaintext
    }

    fn plaintext_bytes(&self) -> usize {
        let len = |piece: &Piece| match piece {
            Piece::Inline(bytes) => bytes.len(),
            Piece::File { len, .. } => *len as usize,
        };
        self.pieces.iter().map(len).sum()
    }

    fn end(&self) -> u64 {
        let bytes = self.plaintext_bytes() + self.tags.len() * self.overhead;
        self.stream_offset + bytes as u64
    }
}

impl Flow {
    fn define(&mut self, records: &Records<'_>, sizes: &HashMap<FileId, u64>) {
        let keys = &self.keys[&records.epoch];
        assert!(!self.going.contains(&records.epoch), "the key is going");
        assert!(records.stream_offset >= self.defined_end, "in their order");
        let at = (records.epoch, records.number);
        assert!(at >= self.defined, "numbers ascend");
        let run = Run::new(records, keys.suite.overhead_bytes(), sizes);
        assert_eq!(
            run.end() - run.stream_offset,
            records.stream_bytes(keys.suite)
        );
        self.defined_end = run.end();
        self.defined = (run.epoch, run.number + run.tags.len() as u64);
        self.runs.push_back(run);
        let held: usize = self.runs.iter().map(|run| run.tags.len()).sum();
        assert!(held <= FLOW_RECORDS_MAX, "{held} records");
    }

    fn acknowledge(&mut self, upto: u64) {
        while self.runs.front().is_some_and(|run| run.end() <= upto) {
            self.runs.pop_front();
        }
        let runs = &self.runs;
        let going = &self.going;
        self.keys.retain(|epoch, _| {
            !going.contains(epoch) || runs.iter().any(|run| run.epoch == *epoch)
        });
    }
}

impl Sealer for ReferenceSealer {
    fn on_command(&mut self, command: &Command<'_>, sizes: &HashMap<FileId, u64>) {
        match command {
            Command::Key(key) => {
                let flow = self.flows.entry(key.flow).or_default();
                assert!(flow.last_epoch.is_none_or(|last| last < key.epoch));
                flow.last_epoch = Some(key.epoch);
                let keys = Keys {
                    suite: key.suite,
                    key: key.key.to_vec(),
                    iv: key.iv,
                };
                flow.keys.insert(key.epoch, keys);
                assert!(flow.keys.len() <= KEYS_MAX);
                let most = self.world.keys_max.get().max(flow.keys.len());
                self.world.keys_max.set(most);
            }
            Command::KeyGone { flow, epoch } => {
                let flow = self.flows.get_mut(flow).expect("it has a key");
                assert!(flow.keys.contains_key(epoch), "it has this key");
                flow.going.push(*epoch);
                flow.acknowledge(0);
            }
            Command::Records(records) => {
                let flow = self.flows.get_mut(&records.flow).expect("it has a key");
                if !flow.failed {
                    flow.define(records, sizes);
                }
            }
            Command::Acked {
                flow, last: true, ..
            } => {
                self.flows.remove(flow);
                self.sends.retain(|_, (of, _)| of != flow);
            }
            Command::Acked {
                flow,
                stream_offset,
                ..
            } => {
                if let Some(flow) = self.flows.get_mut(flow) {
                    flow.acknowledge(*stream_offset);
                }
            }
            Command::Send(send) => {
                if let Some(flow) = self.flows.get_mut(&send.flow) {
                    flow.acknowledge(send.acked_offset);
                }
            }
            Command::Open { .. }
            | Command::OpenPassed { .. }
            | Command::List { .. }
            | Command::Close { .. }
            | Command::Frame { .. }
            | Command::Part(_)
            | Command::PartGone { .. }
            | Command::Splice(_)
            | Command::SpliceMss { .. }
            | Command::Unsplice { .. }
            | Command::Setup(_)
            | Command::QuicKey(_)
            | Command::QuicKeyGone { .. }
            | Command::QuicSend(_)
            | Command::Prepare(_)
            | Command::QuicRelease { .. }
            | Command::QuicReceiveKey(_)
            | Command::QuicConnectionId { .. }
            | Command::QuicReceiveKeyGone { .. } => {}
        }
    }

    fn seal(&mut self, send: SendId, id: FlowId, range: Range<u64>) -> Result<Vec<u8>, Event> {
        let flow = self.flows.get_mut(&id).expect("it has a key");
        let version = self.world.version.get();
        let mut bytes = Vec::new();
        let mut at = range.start;
        let (_, named) = self.sends.entry(send).or_insert((id, Vec::new()));
        for run in &mut flow.runs {
            if run.end() <= at || run.stream_offset >= range.end {
                continue;
            }
            let keys = &flow.keys[&run.epoch];
            let plaintext = run.plaintext(version);
            let mut start = run.stream_offset;
            for (index, plain) in plaintext.chunks(run.each).enumerate() {
                let end = start + (plain.len() + run.overhead) as u64;
                if start < range.end && end > at {
                    let number = run.number + index as u64;
                    let record = keys.seal(number, run.content_type, plain);
                    let tag: Tag = *record.last_chunk().unwrap();
                    match run.tags[index] {
                        Some((known, _)) if known != tag => {
                            flow.failed = true;
                            return Err(Event::SealMismatch {
                                send,
                                flow: id,
                                epoch: run.epoch,
                                number,
                            });
                        }
                        Some(_) => {
                            let again = &self.world.sealed_again;
                            again.set(again.get() + 1);
                        }
                        None => run.tags[index] = Some((tag, false)),
                    }
                    assert!(start <= at, "all of the range is defined");
                    let from = (at - start) as usize;
                    let to = (range.end.min(end) - start) as usize;
                    bytes.extend_from_slice(&record[from..to]);
                    at = range.end.min(end);
                    named.push(Sealed {
                        epoch: run.epoch,
                        number,
                        keys: keys.clone(),
                        record,
                    });
                }
                start = end;
            }
        }
        assert_eq!(at, range.end, "all of the range is defined");
        Ok(bytes)
    }

    fn leave(&mut self, send: SendId) -> Vec<Event> {
        let Some((id, named)) = self.sends.remove(&send) else {
            return Vec::new();
        };
        let mut events: Vec<Event> = Vec::new();
        for Sealed {
            epoch,
            number,
            keys,
            record,
        } in named
        {
            let nonce = ([keys.key, keys.iv.to_vec()].concat(), number);
            let mut left = self.world.left.borrow_mut();
            let first = left.entry(nonce).or_insert_with(|| record.clone());
            assert!(*first == record, "two plaintexts under one nonce");
            let Some(flow) = self.flows.get_mut(&id) else {
                continue;
            };
            let of_record = |run: &&mut Run| {
                run.epoch == epoch
                    && (run.number..run.number + run.tags.len() as u64).contains(&number)
            };
            let Some(run) = flow.runs.iter_mut().find(of_record) else {
                continue;
            };
            let index = (number - run.number) as usize;
            let Some((tag, reported @ false)) = &mut run.tags[index] else {
                continue;
            };
            *reported = true;
            match events.last_mut() {
                Some(Event::Sealed {
                    epoch: last,
                    number: first,
                    tags,
                    ..
                }) if *last == epoch
                    && *first + tags.len() as u64 == number
                    && tags.len() < SEALED_TAGS_MAX =>
                {
                    *tags = [&tags[..], &[*tag]].concat().into();
                }
                _ => events.push(Event::Sealed {
                    flow: id,
                    epoch,
                    number,
                    tags: [*tag].into(),
                }),
            }
        }
        events
    }
}
