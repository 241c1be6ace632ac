//! A NIC stack operated by the test.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use contract::channel::NicChannel;
use contract::listing::Part;
use contract::parting::PartStage;
use contract::setup::SetupListener;
use contract::splicing::{Splice, UnspliceKind};
use contract::{
    Command, Entry, EntryKind, Event, FileId, FileMeta, FlowId, Segment, Send, SendId, Setup,
};
use wire::frame::HeaderMut;
use wire::tcp::Flags;

use crate::content::content;

/// A command that the NIC stack has taken and not carried out.
#[derive(Debug)]
pub enum Work {
    /// OPEN of a path.
    Open(FileId, Vec<u8>),
    /// SEND, cut into packets.
    Send {
        /// Id of the SEND.
        id: SendId,
        /// Flow of the SEND.
        flow: FlowId,
        /// Packets of the SEND.
        frames: Vec<Vec<u8>>,
        /// Number of inline payload bytes.
        inline_bytes: usize,
    },
}

/// The fields of SETUP that tests check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupTaken {
    /// Epoch of the setup.
    pub epoch: u64,
    /// Lifetime of the setup, in microseconds.
    pub valid_us: u64,
    /// Key of SYN cookies.
    pub cookie_key: [u8; 16],
    /// Keys of Fast Open cookies.
    pub fast_open_keys: [[u8; 16]; 2],
    /// Listeners of the setup.
    pub listeners: Vec<SetupListener>,
}

impl From<Setup<'_>> for SetupTaken {
    fn from(setup: Setup<'_>) -> SetupTaken {
        SetupTaken {
            epoch: setup.epoch,
            valid_us: setup.valid_us,
            cookie_key: setup.cookie_key,
            fast_open_keys: setup.fast_open_keys,
            listeners: setup.listeners.iter().collect(),
        }
    }
}

/// The part of a NIC stack that seals records, for tests with TLS.
pub trait Sealer {
    /// Processes KEY, KEYGONE, RECORDS, and every command that carries an acknowledgment. `sizes`
    /// has the sizes of open files.
    fn on_command(&mut self, command: &Command<'_>, sizes: &HashMap<FileId, u64>);
    /// Seals a range of a flow's records; the error is the event that reports the failure.
    fn seal(&mut self, send: SendId, flow: FlowId, range: Range<u64>) -> Result<Vec<u8>, Event>;
    /// Returns the events to report before the departure of a SEND.
    fn leave(&mut self, send: SendId) -> Vec<Event>;
}

/// A NIC stack whose files are named by their size.
pub struct FakeNic {
    /// The NIC stack's end of the rings.
    pub channel: NicChannel,
    /// Commands taken and not carried out.
    pub work: VecDeque<Work>,
    /// Sizes of open files.
    pub sizes: HashMap<FileId, u64>,
    /// Files closed by command.
    pub closed: Vec<FileId>,
    /// ACKDs: flow, offset, and whether it is the last.
    pub ackds: Vec<(FlowId, u64, bool)>,
    /// Acknowledged offsets, from ACKDs and SENDs.
    pub acked: Vec<u64>,
    /// Accepts inconsistent commands, for tests that send the host wrong events.
    pub lenient: bool,
    /// Files missing below its root.
    pub lacks: HashSet<String>,
    /// Most files open at once; further ones fail with `EMFILE`.
    pub files_max: usize,
    /// Metadata of every file, apart from the size.
    pub meta: FileMeta,
    /// The NIC stack exists.
    pub is_there: bool,
    /// The NIC stack exists, and takes no commands.
    pub is_stuck: bool,
    /// Bytes of files in SENDs so far.
    pub file_bytes: usize,
    /// Sealer of records, if any.
    pub sealer: Option<Box<dyn Sealer>>,
    /// Entries of its only directory, `dir`; empty if the directory does not exist.
    pub names: Vec<&'static str>,
    /// Error reported for LIST instead of the entries.
    pub list_errno: Option<u16>,
    /// Start positions of the LISTs received.
    pub listed: Vec<u64>,
    /// LISTs without a response.
    pub lists: VecDeque<(FileId, u64)>,
    /// Withholds the responses to LISTs.
    pub holds_lists: bool,
    /// PARTs: flow, state of the connection, and the sequence number of its FIN.
    pub parts: Vec<(FlowId, PartStage, u32)>,
    /// PARTGONEs.
    pub parts_gone: Vec<FlowId>,
    /// SPLICEs.
    pub splices: Vec<SeenSplice>,
    /// SPLICEMSSs.
    pub splice_mss: Vec<SeenMss>,
    /// UNSPLICEs.
    pub unsplices: Vec<(FlowId, UnspliceKind)>,
    /// SETUPs.
    pub setups: Vec<SetupTaken>,
    /// FRAMEs.
    pub frames: Vec<Vec<u8>>,
}

/// A SPLICEMSS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenMss {
    /// The splice.
    pub flow: FlowId,
    /// The leg.
    pub leg: u8,
    /// Its MSS.
    pub mss: u16,
    /// The sequence number quoted.
    pub seq: u32,
}

impl SeenMss {
    fn of(command: &Command<'_>) -> Option<SeenMss> {
        match *command {
            Command::SpliceMss {
                flow,
                leg,
                mss,
                seq,
            } => Some(SeenMss {
                flow,
                leg,
                mss,
                seq,
            }),
            _ => None,
        }
    }
}

/// The fields of a SPLICE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenSplice {
    /// Flow of the splice.
    pub flow: FlowId,
    /// SND.NXT and RCV.NXT of both legs.
    pub legs: [(u32, u32); 2],
    /// Largest payloads to both peers, in bytes.
    pub mss: [u16; 2],
    /// An earlier NIC stack has had the splice.
    pub is_again: bool,
    /// Bytes passed before, in each direction.
    pub passed_bytes: [u64; 2],
    /// Limits on idleness and life, in milliseconds.
    pub limits_ms: [u32; 2],
    /// Sequence numbers after the FINs seen.
    pub fin_ends: [Option<u32>; 2],
}

impl SeenSplice {
    fn of(splice: &Splice<'_>) -> SeenSplice {
        SeenSplice {
            flow: splice.flow,
            legs: splice.legs.map(|leg| (leg.snd_nxt, leg.rcv_nxt)),
            mss: splice.legs.map(|leg| leg.mss),
            is_again: splice.is_again,
            passed_bytes: splice.passed_bytes,
            limits_ms: [splice.idle_ms, splice.life_ms],
            fin_ends: splice.legs.map(|leg| leg.fin_end),
        }
    }
}

impl FakeNic {
    /// Returns a NIC stack without any state.
    pub fn new(channel: NicChannel) -> FakeNic {
        FakeNic {
            channel,
            work: VecDeque::new(),
            sizes: HashMap::new(),
            closed: Vec::new(),
            ackds: Vec::new(),
            acked: Vec::new(),
            lenient: false,
            lacks: HashSet::new(),
            files_max: usize::MAX,
            meta: FileMeta::default(),
            is_there: true,
            is_stuck: false,
            file_bytes: 0,
            sealer: None,
            names: Vec::new(),
            list_errno: None,
            listed: Vec::new(),
            lists: VecDeque::new(),
            holds_lists: false,
            parts: Vec::new(),
            parts_gone: Vec::new(),
            splices: Vec::new(),
            splice_mss: Vec::new(),
            unsplices: Vec::new(),
            setups: Vec::new(),
            frames: Vec::new(),
        }
    }

    /// Answers LISTs, each with two names.
    pub fn list(&mut self) {
        while let Some((file, from)) = self.lists.pop_front() {
            let nothing = self.names.is_empty().then_some(2);
            if let Some(errno) = self.list_errno.or(nothing) {
                self.report(&Event::OpenFailed { file, errno });
                continue;
            }
            let mut part = Part {
                directory: self.meta,
                ..Part::default()
            };
            let rest = &self.names[from as usize..];
            for name in rest.iter().take(2) {
                let entry = Entry {
                    kind: EntryKind::File,
                    size: 1,
                    mtime_ns: 2,
                    name: name.as_bytes(),
                };
                part.entries.push(&entry).expect("few entries");
            }
            if rest.len() > 2 {
                part.next = from + 2;
            }
            let part = Box::new(part);
            self.report(&Event::Listed { file, part });
        }
    }

    /// Takes commands, without carrying them out.
    pub fn take(&mut self) {
        while let Some(command) = self
            .channel
            .receive()
            .expect("the host writes sane records")
        {
            if let Some(sealer) = &mut self.sealer {
                sealer.on_command(&command, &self.sizes);
            }
            match command {
                Command::Open { file, path, .. } => {
                    let path_text = std::str::from_utf8(path).ok();
                    let path_text = path_text.filter(|&path| !self.lacks.contains(path));
                    let size = path_text.and_then(|path| path.parse().ok());
                    let before = self.sizes.insert(file, size.unwrap_or(u64::MAX));
                    assert!(before.is_none() || self.lenient, "OPEN of a free id");
                    self.work.push_back(Work::Open(file, path.to_vec()));
                }
                // The low half of the descriptor's number is the file's size.
                Command::OpenPassed { file, passed } => {
                    let size = passed.0 & u64::from(u32::MAX);
                    self.sizes.insert(file, size);
                    self.work
                        .push_back(Work::Open(file, size.to_string().into_bytes()));
                }
                Command::List { file, from, path } => {
                    assert_eq!(path, b"dir");
                    self.listed.push(from);
                    self.lists.push_back((file, from));
                }
                Command::Close { file } => {
                    let open = self.sizes.remove(&file).is_some();
                    assert!(open || self.lenient, "CLOS of an open file");
                    self.closed.push(file);
                }
                Command::Acked {
                    flow,
                    stream_offset,
                    last,
                } => {
                    self.ackds.push((flow, stream_offset, last));
                    self.acked.push(stream_offset);
                }
                Command::Send(send) => {
                    self.acked.push(send.acked_offset);
                    let sealer = self.sealer.as_deref_mut();
                    match work_of(&send, &self.sizes, self.lenient, sealer) {
                        Ok((work, file_bytes)) => {
                            self.file_bytes += file_bytes;
                            self.work.push_back(work);
                        }
                        Err(event) => {
                            self.channel.send(&event).expect("room for an event");
                            self.channel.flush();
                        }
                    }
                }
                Command::Part(part) => self.parts.push((part.flow, part.stage, part.fin_seq)),
                Command::PartGone { flow } => self.parts_gone.push(flow),
                Command::Splice(splice) => self.splices.push(SeenSplice::of(&splice)),
                Command::SpliceMss { .. } => self.splice_mss.extend(SeenMss::of(&command)),
                Command::Unsplice { flow, kind } => self.unsplices.push((flow, kind)),
                Command::Setup(setup) => self.setups.push(SetupTaken::from(setup)),
                Command::Frame { bytes } => self.frames.push(bytes.to_vec()),
                Command::Key(_) | Command::KeyGone { .. } | Command::Records(_) => {
                    assert!(self.sealer.is_some(), "no flow has a key");
                }
                Command::QuicKey(_)
                | Command::QuicKeyGone { .. }
                | Command::QuicSend(_)
                | Command::Prepare(_)
                | Command::QuicRelease { .. }
                | Command::QuicReceiveKey(_)
                | Command::QuicConnectionId { .. }
                | Command::QuicReceiveKeyGone { .. } => panic!("no flow is one of QUIC"),
            }
        }
    }

    /// Carries out a command, and reports the result. Returns the packets that leave.
    pub fn carry_out(&mut self, work: Work, departed_us: u64) -> Vec<Vec<u8>> {
        match work {
            Work::Open(file, path) => {
                let event = self.open(file, &path);
                self.report(&event);
                Vec::new()
            }
            Work::Send {
                id, flow, frames, ..
            } => {
                let sealer = self.sealer.as_mut();
                let first = sealer.map_or_else(Vec::new, |sealer| sealer.leave(id));
                for event in first {
                    self.report(&event);
                }
                self.report(&Event::Departed {
                    send: id,
                    flow,
                    departed_us,
                });
                frames
            }
        }
    }

    fn open(&mut self, file: FileId, path: &[u8]) -> Event {
        let size = self.sizes.get(&file).copied();
        match size {
            _ if self.sizes.len() > self.files_max => {
                self.sizes.remove(&file);
                let errno = 24;
                Event::OpenFailed { file, errno }
            }
            Some(size) if size != u64::MAX => Event::Opened {
                file,
                meta: FileMeta { size, ..self.meta },
            },
            _ => {
                let path = std::str::from_utf8(path).unwrap();
                let lacks = self.lacks.contains(path) || path.parse::<u64>().is_err();
                assert!(lacks || self.lenient);
                self.sizes.remove(&file);
                Event::OpenFailed { file, errno: 2 }
            }
        }
    }

    /// Reports an event to the host stack.
    pub fn report(&mut self, event: &Event) {
        self.channel.send(event).expect("room for an event");
        self.channel.flush();
    }
}

/// Returns the work of a SEND and its number of file bytes, or the event that reports why it fails.
fn work_of(
    send: &Send<'_>,
    sizes: &HashMap<FileId, u64>,
    lenient: bool,
    sealer: Option<&mut (dyn Sealer + 'static)>,
) -> Result<(Work, usize), Event> {
    let (payload, inline_bytes) = payload_of(send, sizes, lenient, sealer)?;
    let work = Work::Send {
        id: send.id,
        flow: send.flow,
        frames: cut(send.header, &payload, usize::from(send.mss)),
        inline_bytes,
    };
    Ok((work, payload.len() - inline_bytes))
}

/// Returns the payload of a SEND and its number of inline bytes, or the event that reports why it
/// fails.
fn payload_of(
    send: &Send<'_>,
    sizes: &HashMap<FileId, u64>,
    lenient: bool,
    mut sealer: Option<&mut (dyn Sealer + 'static)>,
) -> Result<(Vec<u8>, usize), Event> {
    let mut payload = Vec::new();
    let mut inline_bytes = 0;
    let mut failure = None;
    for segment in send.segments.iter() {
        match *segment {
            Segment::Inline(bytes) => {
                payload.extend_from_slice(bytes);
                inline_bytes += bytes.len();
            }
            Segment::File { file, offset, len } => {
                let size = sizes.get(&file).copied().unwrap_or(0);
                let range = offset..offset + u64::from(len);
                assert!(range.end <= size || lenient, "within the file");
                payload.extend(range.map(|at| content(size, at)));
            }
            Segment::Sealed { len } => {
                let start = send.stream_offset + payload.len() as u64;
                let sealer = sealer.as_mut().expect("no flow has a key");
                match sealer.seal(send.id, send.flow, start..start + u64::from(len)) {
                    Ok(sealed) => payload.extend(sealed),
                    Err(event) => failure = failure.or(Some(event)),
                }
            }
        }
    }
    failure.map_or(Ok((payload, inline_bytes)), Err)
}

/// Cuts the payload of a SEND into packets.
fn cut(header: &[u8], payload: &[u8], mss: usize) -> Vec<Vec<u8>> {
    let count = payload.len().div_ceil(mss).max(1);
    let packet = |number: usize| {
        let start = number * mss;
        let payload = &payload[start..payload.len().min(start + mss)];
        let mut frame = header.to_vec();
        let mut view = HeaderMut::parse(&mut frame).expect("a finished header");
        view.set_seq(view.seq().wrapping_add(start as u32));
        if number + 1 < count {
            view.set_flags(view.flags().without(Flags::FIN | Flags::PSH));
        }
        view.complete_checksum([payload]).expect("a packet");
        frame.extend_from_slice(payload);
        frame
    };
    (0..count).map(packet).collect()
}
