//! A NIC stack that the test plays: opens files, prepares ranges, seals packets. It shares an
//! oracle with those before and after it: nothing is sealed twice under a key and a number, and
//! nothing is read that was not ready.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use aws_lc_rs::aead::quic::{AES_128, AES_256, CHACHA20, HeaderProtectionKey};
use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use contract::channel::NicChannel;
use contract::listing::Part;
use contract::quic::{QuicKey, QuicSend};
use contract::tls::Cipher;
use contract::{
    Command, Entry, EntryKind, Event, FileId, FileMeta, FlowId, RejectReason, Segment, SendId,
};
use fakes::content::content;
use netdev::steering::Target;

use crate::opener::Opener;

/// What NIC stacks that follow each other have in common: the world.
#[derive(Default)]
pub(crate) struct Oracle {
    /// Every key and number that was sealed, and what left.
    sealed: HashMap<(Vec<u8>, u64), Vec<u8>>,
    /// Ranges that were ready, of the file of each size.
    ready: HashMap<u64, Vec<(u64, u64)>>,
    /// Files that cannot be read beyond so many bytes.
    pub(crate) broken: HashMap<u64, u64>,
    /// What files have become: the time of their last change.
    pub(crate) versions: HashMap<u64, i64>,
    /// Bytes of files that were sealed.
    pub(crate) file_bytes: u64,
    pub(crate) packets: u64,
}

impl Oracle {
    fn is_ready(&self, size: u64, start: u64, end: u64) -> bool {
        let mut at = start;
        let ranges = self.ready.get(&size).map_or(&[][..], |ranges| ranges);
        while at < end {
            let covering = ranges.iter().filter(|(from, to)| *from <= at && at < *to);
            let Some(to) = covering.map(|(_, to)| *to).max() else {
                return false;
            };
            at = to;
        }
        true
    }
}

struct Key {
    packet: LessSafeKey,
    header: HeaderProtectionKey,
    iv: [u8; 12],
    floor: u64,
    raw: Vec<u8>,
    is_going: bool,
}

#[derive(Default)]
struct Flow {
    keys: BTreeMap<u32, Key>,
    last_generation: Option<u32>,
    next_number: u64,
    has_failed: bool,
    incarnation: usize,
}

/// A QSEND that was accepted: all its packets, sealed, behind their header.
struct Job {
    id: SendId,
    flow: FlowId,
    incarnation: usize,
    header: Vec<u8>,
    packets: Vec<Packet>,
}

struct Packet {
    number: u64,
    generation: u32,
    prefix: Vec<u8>,
    header: Vec<u8>,
    segments: Vec<Piece>,
}

enum Piece {
    Inline(Vec<u8>),
    File {
        file: FileId,
        /// Of the file.
        size: u64,
        offset: u64,
        len: u32,
    },
}

enum Work {
    Open(FileId, Vec<u8>),
    /// Of a file of this size.
    Prepare(contract::quic::Prepare, u64),
    List(FileId),
    Send(Job),
}

/// A datagram that leaves, with the headers in front of it.
pub(crate) struct Leaving {
    pub(crate) header: Vec<u8>,
    pub(crate) datagram: Vec<u8>,
}

pub(crate) struct Nic {
    pub(crate) channel: NicChannel,
    oracle: Rc<RefCell<Oracle>>,
    work: VecDeque<Work>,
    sizes: HashMap<FileId, u64>,
    flows: HashMap<FlowId, Flow>,
    /// Flows whose end was said.
    pub(crate) ended: usize,
    /// It takes nothing from its ring.
    pub(crate) is_stuck: bool,
    /// It does not know these files, by size.
    pub(crate) lacks: HashSet<u64>,
    /// It does not answer PREPARE before the test has it do so.
    pub(crate) is_mute: bool,
    /// PREPAREs that it has not answered, with the size of the file.
    pub(crate) unanswered: VecDeque<(contract::quic::Prepare, u64)>,
    /// What it has prepared and was not released.
    retained: Vec<(FlowId, FileId, Range<u64>)>,
    pub(crate) releases: u64,
    /// The next QSEND is rejected.
    pub(crate) rejects: Option<RejectReason>,
    /// It has no room for keys.
    pub(crate) rejects_keys: bool,
    /// Opens what clients send.
    pub(crate) opener: Opener,
    /// What a packet filter calls its port, if it has one.
    target: Option<Target>,
}

impl Nic {
    pub(crate) fn new(channel: NicChannel, oracle: &Rc<RefCell<Oracle>>) -> Self {
        Self {
            channel,
            oracle: Rc::clone(oracle),
            work: VecDeque::new(),
            sizes: HashMap::new(),
            flows: HashMap::new(),
            ended: 0,
            is_stuck: false,
            lacks: HashSet::new(),
            is_mute: false,
            unanswered: VecDeque::new(),
            retained: Vec::new(),
            releases: 0,
            rejects: None,
            rejects_keys: false,
            opener: Opener::default(),
            target: None,
        }
    }

    /// The same with a port of its own.
    pub(crate) fn steered(self, target: Option<Target>) -> Self {
        Self { target, ..self }
    }

    /// True if this is its port.
    pub(crate) fn has_port(&self, target: Target) -> bool {
        self.target == Some(target)
    }

    /// A frame arrives at its port.
    pub(crate) fn arrive(&mut self, now_us: u64, frame: &[u8]) {
        let event = self.opener.arrive(now_us, frame);
        self.report(&event);
    }

    /// Files that it has open.
    pub(crate) fn files(&self) -> usize {
        self.sizes.len()
    }

    /// Flows that it knows.
    pub(crate) fn flows(&self) -> usize {
        self.flows.len()
    }

    pub(crate) fn work(&self) -> usize {
        self.work.len()
    }

    /// Bytes that it has prepared and that were not released.
    pub(crate) fn retained_bytes(&self) -> u64 {
        let retained = self.retained.iter();
        retained.map(|(_, _, range)| range.end - range.start).sum()
    }

    /// Answers the PREPARE that waits for longest.
    pub(crate) fn answer(&mut self) {
        let (prepare, size) = self.unanswered.pop_front().expect("a PREPARE");
        let event = self.prepare(&prepare, size);
        self.report(&event);
    }

    pub(crate) fn report(&mut self, event: &Event) {
        self.channel.send(event).expect("room for an event");
        self.channel.flush();
    }

    /// Takes commands, without doing anything yet; returns how many.
    pub(crate) fn take(&mut self, now_us: u64) -> usize {
        let mut taken = 0;
        let mut events = Vec::new();
        while !self.is_stuck
            && let Some(command) = self.channel.receive().expect("sane records")
        {
            taken += 1;
            assert_eq!(command.check(), Ok(()));
            match command {
                Command::Open { file, path, .. } => {
                    self.sizes.insert(file, u64::MAX);
                    self.work.push_back(Work::Open(file, path.to_vec()));
                }
                Command::List { file, from, path } => {
                    assert_eq!((path, from), (&b"dir"[..], 0));
                    self.work.push_back(Work::List(file));
                }
                Command::Close { file } => {
                    assert!(self.sizes.remove(&file).is_some(), "CLOS of an open file");
                }
                Command::Acked { flow, last, .. } => {
                    assert!(last, "a flow of QUIC has no stream");
                    self.forget(flow);
                }
                Command::QuicKey(key) if self.rejects_keys => {
                    events.push(rejected(RejectReason::TooManyKeys, key.flow.0));
                }
                Command::QuicKey(key) => install(&mut self.flows, self.ended, &key),
                Command::QuicKeyGone { flow, generation } => {
                    let flow = self.flows.get_mut(&flow);
                    if let Some(key) = flow.and_then(|flow| flow.keys.get_mut(&generation)) {
                        key.is_going = true;
                    }
                }
                Command::QuicSend(send) => match self.rejects.take() {
                    Some(reason) => events.push(rejected(reason, send.id.0)),
                    None if self.rejects_keys && !self.flows.contains_key(&send.flow) => {
                        events.push(rejected(RejectReason::UnknownKey, send.id.0));
                    }
                    None => {
                        let job = accept(&mut self.flows, &self.sizes, &send);
                        self.work.push_back(Work::Send(job));
                    }
                },
                Command::Prepare(prepare) => {
                    assert!(self.flows.contains_key(&prepare.flow), "a flow with a key");
                    let size = *self.sizes.get(&prepare.file).expect("an open file");
                    self.work.push_back(Work::Prepare(prepare, size));
                }
                Command::QuicRelease {
                    flow,
                    file,
                    offset,
                    len,
                } => {
                    assert!(self.sizes.contains_key(&file), "of an open file");
                    self.releases += len;
                    release(&mut self.retained, (flow, file), &(offset..offset + len));
                }
                Command::QuicReceiveKey(key) => {
                    assert!(self.flows.contains_key(&key.flow), "a flow with a key");
                    if self.opener.install(&key) && self.target.is_some() {
                        let flows = [key.flow].into();
                        events.push(Event::FlowsTaken { flows });
                    }
                }
                Command::QuicConnectionId { flow, id } => self.opener.name(flow, &id),
                Command::QuicReceiveKeyGone { flow } => self.opener.give_back(flow),
                Command::Frame { bytes } => events.push(self.opener.arrive(now_us, bytes)),
                Command::Setup(setup) => events.push(ready(setup.epoch, self.target)),
                other => panic!("{other:?}"),
            }
        }
        events.iter().for_each(|event| self.report(event));
        taken
    }

    /// ACKD with `last`: drops a flow, with its QSENDs.
    fn forget(&mut self, flow: FlowId) {
        let is_known = self.flows.remove(&flow).is_some();
        assert!(is_known || self.rejects_keys, "it had a key");
        self.retained.retain(|(other, ..)| *other != flow);
        self.work
            .retain(|work| !matches!(work, Work::Send(job) if job.flow == flow));
        self.opener.forget(flow);
        self.ended += 1;
    }

    /// Does the first thing that it has to do, and reports it. Returns what leaves.
    pub(crate) fn carry_out(&mut self, now_us: u64, is_reported: bool) -> Vec<Leaving> {
        match self.work.pop_front() {
            None => Vec::new(),
            Some(Work::Open(file, path)) => {
                let event = self.open(file, &path);
                self.report(&event);
                Vec::new()
            }
            Some(Work::List(file)) => {
                self.report(&listing(file));
                Vec::new()
            }
            Some(Work::Prepare(prepare, size)) => {
                self.unanswered.push_back((prepare, size));
                while !self.is_mute && !self.unanswered.is_empty() {
                    self.answer();
                }
                Vec::new()
            }
            Some(Work::Send(job)) => {
                let (id, flow) = (job.id, job.flow);
                match self.seal(job) {
                    Ok(leaving) => {
                        if is_reported {
                            self.report(&Event::Departed {
                                send: id,
                                flow,
                                departed_us: now_us,
                            });
                        }
                        leaving
                    }
                    Err(event) => {
                        self.report(&event);
                        Vec::new()
                    }
                }
            }
        }
    }

    fn open(&mut self, file: FileId, path: &[u8]) -> Event {
        let size = std::str::from_utf8(path)
            .ok()
            .and_then(|it| it.parse().ok());
        match size.filter(|size| !self.lacks.contains(size)) {
            Some(size) => {
                if let Some(known) = self.sizes.get_mut(&file) {
                    *known = size;
                }
                let version = self.oracle.borrow().versions.get(&size).copied();
                let meta = FileMeta {
                    size,
                    mtime_ns: version.unwrap_or(0),
                    ..FileMeta::default()
                };
                Event::Opened { file, meta }
            }
            None => {
                self.sizes.remove(&file);
                Event::OpenFailed { file, errno: 2 }
            }
        }
    }

    fn failure(
        &self,
        size: u64,
        file: FileId,
        end: u64,
        id: SendId,
        flow: FlowId,
    ) -> Option<Event> {
        let oracle = self.oracle.borrow();
        let broken = *oracle.broken.get(&size)?;
        (end > broken).then_some(Event::ReadFailed {
            send: id,
            flow,
            file,
            offset: broken,
            errno: 5,
        })
    }

    fn prepare(&mut self, prepare: &contract::quic::Prepare, size: u64) -> Event {
        let end = prepare.offset + u64::from(prepare.len);
        assert!(end <= size, "within the file");
        if let Some(event) = self.failure(size, prepare.file, end, prepare.id, prepare.flow) {
            return event;
        }
        let mut oracle = self.oracle.borrow_mut();
        let ranges = oracle.ready.entry(size).or_default();
        if !ranges.contains(&(prepare.offset, end)) {
            ranges.push((prepare.offset, end));
        }
        if self.flows.contains_key(&prepare.flow) {
            self.retained
                .push((prepare.flow, prepare.file, prepare.offset..end));
        }
        Event::Ready {
            prepare: prepare.id,
            flow: prepare.flow,
        }
    }

    /// The datagrams of a QSEND; none of a flow that has ended since, or failed.
    fn seal(&mut self, job: Job) -> Result<Vec<Leaving>, Event> {
        let mut leaving = Vec::new();
        let flow = self.flows.get(&job.flow);
        if flow.is_none_or(|flow| flow.incarnation != job.incarnation || flow.has_failed) {
            return Ok(leaving);
        }
        for packet in &job.packets {
            let mut plaintext = Vec::new();
            for piece in &packet.segments {
                match piece {
                    Piece::Inline(bytes) => plaintext.extend_from_slice(bytes),
                    Piece::File {
                        file,
                        size,
                        offset,
                        len,
                    } => {
                        let size = *size;
                        let end = offset + u64::from(*len);
                        assert!(end <= size, "within the file");
                        let failure = self.failure(size, *file, end, job.id, job.flow);
                        if let Some(failure) = failure {
                            if let Some(flow) = self.flows.get_mut(&job.flow) {
                                flow.has_failed = true;
                            }
                            return Err(failure);
                        }
                        let mut oracle = self.oracle.borrow_mut();
                        assert!(oracle.is_ready(size, *offset, end), "it was prepared");
                        oracle.file_bytes += u64::from(*len);
                        plaintext.extend((*offset..end).map(|at| content(size, at)));
                    }
                }
            }
            let flow = &self.flows[&job.flow];
            let key = &flow.keys[&packet.generation];
            let datagram = seal(key, packet, plaintext, &mut self.oracle.borrow_mut());
            leaving.push(Leaving {
                header: job.header.clone(),
                datagram,
            });
        }
        Ok(leaving)
    }
}

/// A directory with one file.
fn listing(file: FileId) -> Event {
    let mut part = Part::default();
    let entry = Entry {
        kind: EntryKind::File,
        size: 1,
        mtime_ns: 2,
        name: b"entry",
    };
    part.entries.push(&entry).expect("one entry");
    let part = Box::new(part);
    Event::Listed { file, part }
}

fn ready(epoch: u64, target: Option<Target>) -> Event {
    Event::SetupReady {
        epoch,
        steering: target.map_or(0, Target::get),
    }
}

fn rejected(reason: RejectReason, id: u64) -> Event {
    Event::Rejected { reason, id }
}

/// Takes a range away from what is retained.
fn release(
    retained: &mut Vec<(FlowId, FileId, Range<u64>)>,
    released_of: (FlowId, FileId),
    released: &Range<u64>,
) {
    let mut left = Vec::new();
    for (flow, file, range) in retained.drain(..) {
        let (before, behind) = match (flow, file) == released_of {
            true => (
                range.start..range.end.min(released.start),
                range.start.max(released.end)..range.end,
            ),
            false => (range, 0..0),
        };
        let rest = [before, behind].into_iter().filter(|it| !it.is_empty());
        left.extend(rest.map(|range| (flow, file, range)));
    }
    *retained = left;
}

fn install(flows: &mut HashMap<FlowId, Flow>, ended: usize, key: &QuicKey<'_>) {
    let (packet, header) = match key.cipher {
        Cipher::Aes128Gcm => (&AES_128_GCM, &AES_128),
        Cipher::Aes256Gcm => (&AES_256_GCM, &AES_256),
        Cipher::ChaCha20Poly1305 => (&CHACHA20_POLY1305, &CHACHA20),
    };
    let flow = flows.entry(key.flow).or_insert_with(|| Flow {
        incarnation: ended,
        ..Flow::default()
    });
    assert!(
        flow.last_generation
            .is_none_or(|last| key.generation > last),
        "generations ascend"
    );
    flow.last_generation = Some(key.generation);
    let made = Key {
        packet: LessSafeKey::new(UnboundKey::new(packet, key.key).unwrap()),
        header: HeaderProtectionKey::new(header, key.header_key).unwrap(),
        iv: key.iv,
        floor: key.floor,
        raw: key.key.to_vec(),
        is_going: false,
    };
    assert!(flow.keys.insert(key.generation, made).is_none());
}

fn accept(
    flows: &mut HashMap<FlowId, Flow>,
    sizes: &HashMap<FileId, u64>,
    send: &QuicSend<'_>,
) -> Job {
    let flow = flows.get_mut(&send.flow).expect("a flow with a key");
    let mut packets = Vec::new();
    for (packet, segments) in send.each() {
        let key = flow.keys.get(&packet.generation).expect("its key");
        assert!(!key.is_going, "QKEYGONE was said");
        assert!(packet.number >= key.floor, "below the floor");
        assert!(packet.number >= flow.next_number, "numbers ascend");
        flow.next_number = packet.number + 1;
        let segments = segments.iter().map(|segment| match *segment {
            Segment::Inline(bytes) => Piece::Inline(bytes.to_vec()),
            Segment::File { file, offset, len } => Piece::File {
                file,
                size: *sizes.get(&file).expect("an open file"),
                offset,
                len,
            },
            Segment::Sealed { .. } => panic!("none is of records"),
        });
        packets.push(Packet {
            number: packet.number,
            generation: packet.generation,
            prefix: packet.prefix.to_vec(),
            header: packet.header.to_vec(),
            segments: segments.collect(),
        });
    }
    Job {
        id: send.id,
        flow: send.flow,
        incarnation: flow.incarnation,
        header: send.header.to_vec(),
        packets,
    }
}

fn seal(key: &Key, packet: &Packet, mut sealed: Vec<u8>, oracle: &mut Oracle) -> Vec<u8> {
    let mut nonce = key.iv;
    for (byte, number) in nonce[4..].iter_mut().zip(packet.number.to_be_bytes()) {
        *byte ^= number;
    }
    let nonce = Nonce::assume_unique_for_key(nonce);
    let aad = Aad::from(&packet.header[..]);
    key.packet
        .seal_in_place_append_tag(nonce, aad, &mut sealed)
        .unwrap();
    let name = (key.raw.clone(), packet.number);
    let before = oracle.sealed.insert(name, sealed.clone());
    assert!(before.is_none(), "sealed twice under {}", packet.number);
    oracle.packets += 1;
    let mut datagram = packet.prefix.clone();
    let at = datagram.len();
    datagram.extend_from_slice(&packet.header);
    let number_bytes = usize::from(packet.header[0] & 3) + 1;
    let number_at = packet.header.len() - number_bytes;
    datagram.extend(sealed);
    let short = &mut datagram[at..];
    let mask = key.header.new_mask(&short[number_at + 4..number_at + 20]);
    let mask = mask.unwrap();
    short[0] ^= mask[0] & 0x1f;
    let number = short[number_at..][..number_bytes].iter_mut();
    number
        .zip(&mask[1..])
        .for_each(|(byte, mask)| *byte ^= mask);
    datagram
}
