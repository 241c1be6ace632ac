//! QKEY, QSEND, PREPARE, QRELEASE and their like, whatever a host says with them: a NIC worker
//! carries them out or rejects them, seals no number twice, and keeps nothing when all flows are
//! over.

#![no_main]

#[path = "../../crates/nic/tests/support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};

use contract::{Command, Event, FileId, FlowId, Segment, SendId};
use fakes::recording_port::Answer;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use nic::Config;
use support::quic::{Plain, Qsend, open, quic_key};
use support::{Stage, content, range};

/// Flows whose packets are opened. Records of any bytes are for others.
const FLOWS: u64 = 4;

const FILE_BYTES: [usize; 3] = [0, 1400, 70_000];

const GENERATIONS: u32 = 6;

const PREFIXES: [&[u8]; 2] = [b"", b"sealed by the host"];

static INLINE: [u8; 260] = [0x5a; 260];

#[derive(Arbitrary, Debug)]
enum Act<'a> {
    Key {
        flow: u8,
        generation: u8,
        floor: u16,
    },
    KeyGone {
        flow: u8,
        generation: u8,
    },
    Send {
        flow: u8,
        packets: Vec<Packet>,
        ipv6: bool,
        held_us: u16,
    },
    Prepare {
        flow: u8,
        file: u8,
        offset: u32,
        len: u32,
    },
    Release {
        flow: u8,
        file: u8,
        offset: u32,
        len: u32,
    },
    End(u8),
    Open(u8),
    Close(u8),
    Hold(u8),
    Unhold(u8),
    Busy(u8),
    Turn,
    Pass(u16),
    /// A record of any bytes, ...
    Record(&'a [u8]),
    /// ... or one of the others with some bytes changed.
    Patched(u8, Vec<(u16, u8)>),
}

#[derive(Arbitrary, Debug)]
struct Packet {
    number: u16,
    generation: u8,
    has_prefix: bool,
    inline: u8,
    file: Option<(u8, u32, u16)>,
}

struct Host {
    stage: Stage,
    /// Answers that are still to come.
    unanswered: BTreeSet<SendId>,
    /// Of each flow, since it began: numbers that have left.
    left: BTreeMap<u64, BTreeSet<u64>>,
    /// Flows of records of any bytes.
    others: BTreeSet<FlowId>,
    /// Files that were to be opened.
    files: BTreeSet<u8>,
    /// Encoded commands, to be changed.
    said: Vec<Vec<u8>>,
}

fuzz_target!(|acts: Vec<Act<'_>>| {
    let mut host = Host {
        stage: Stage::with(&Config {
            cache_bytes: Config::CACHE_BYTES_MIN,
            ..Config::default()
        }),
        unanswered: BTreeSet::new(),
        left: BTreeMap::new(),
        others: BTreeSet::new(),
        files: BTreeSet::new(),
        said: Vec::new(),
    };
    for (file, bytes) in FILE_BYTES.iter().enumerate() {
        host.stage.disk.put(&name(file as u8), content(*bytes));
    }
    for act in acts.iter().take(300) {
        host.act(act);
        host.look();
    }
    host.end();
});

fn name(file: u8) -> [u8; 1] {
    [b'a' + file % FILE_BYTES.len() as u8]
}

impl Host {
    fn tell(&mut self, command: &Command<'_>) {
        if command.check().is_ok() {
            if self.said.len() < 32 {
                let mut bytes = Vec::new();
                command.encode(&mut bytes);
                self.said.push(bytes);
            }
            self.stage.tell(command);
        }
    }

    fn act(&mut self, act: &Act<'_>) {
        match act {
            Act::Key {
                flow,
                generation,
                floor,
            } => {
                let generation = u32::from(*generation) % GENERATIONS;
                let key = quic_key(u64::from(*flow) % FLOWS, generation, (*floor).into());
                self.tell(&Command::QuicKey(key));
            }
            Act::KeyGone { flow, generation } => self.tell(&Command::QuicKeyGone {
                flow: FlowId(u64::from(*flow) % FLOWS),
                generation: u32::from(*generation) % GENERATIONS,
            }),
            Act::Send {
                flow,
                packets,
                ipv6,
                held_us,
            } => self.send(u64::from(*flow) % FLOWS, packets, *ipv6, (*held_us).into()),
            Act::Prepare {
                flow,
                file,
                offset,
                len,
            } => {
                let flow = u64::from(*flow) % FLOWS;
                let (offset, len) = (u64::from(*offset) % 80_000, *len % 80_000);
                if len > 0 {
                    let id = self.stage.prepare(flow, (*file).into(), offset, len);
                    self.unanswered.insert(id);
                }
            }
            Act::Release {
                flow,
                file,
                offset,
                len,
            } => self.tell(&Command::QuicRelease {
                flow: FlowId(u64::from(*flow) % FLOWS),
                file: FileId((*file).into()),
                offset: (*offset).into(),
                len: (*len).into(),
            }),
            Act::End(flow) => self.end_flow(u64::from(*flow) % FLOWS),
            Act::Open(file) => {
                self.files.insert(*file);
                self.stage.tell_open((*file).into(), &name(*file));
            }
            Act::Close(file) => self.tell(&Command::Close {
                file: FileId((*file).into()),
            }),
            Act::Hold(file) => self.stage.disk.hold(&name(*file)),
            Act::Unhold(file) => self.stage.disk.release(&name(*file)),
            Act::Busy(times) => self.stage.wire.answer((0..times % 4).map(|_| Answer::Busy)),
            Act::Turn => drop(self.stage.turn()),
            Act::Pass(us) => self
                .stage
                .now_us
                .set(self.stage.now_us.get() + u64::from(*us)),
            Act::Record(bytes) => self.record(bytes),
            Act::Patched(which, patches) => {
                let which = usize::from(*which) % self.said.len().max(1);
                let Some(mut bytes) = self.said.get(which).cloned() else {
                    return;
                };
                for (at, value) in patches {
                    let len = bytes.len();
                    bytes[usize::from(*at) % len] = *value;
                }
                self.record(&bytes);
            }
        }
    }

    fn send(&mut self, flow: u64, packets: &[Packet], ipv6: bool, held_us: u64) {
        let plain = packets.iter().take(44).map(|packet| {
            let inline = &INLINE[..usize::from(packet.inline) + 4];
            let file = packet.file.map(|(file, offset, len)| {
                let len = u32::from(len) % 1300 + 1;
                range(file.into(), u64::from(offset) % 80_000, len)
            });
            Plain {
                number: packet.number.into(),
                generation: u32::from(packet.generation) % GENERATIONS,
                prefix: PREFIXES[usize::from(packet.has_prefix)],
                segments: [Segment::Inline(inline)].into_iter().chain(file).collect(),
            }
        });
        let send = Qsend {
            ipv6,
            held_us,
            ..Qsend::new(flow, plain.collect::<Vec<_>>())
        };
        // What breaks the contract is for records of any bytes.
        let mut is_sound = false;
        send.with_any_command(SendId(0), 0, |command| is_sound = command.check().is_ok());
        if is_sound {
            let id = self.stage.issue(&send);
            self.unanswered.insert(id);
        }
    }

    /// A record as it may lie in a ring, if it is one of QUIC and of another flow.
    fn record(&mut self, bytes: &[u8]) {
        let Ok(mut command) = Command::decode(bytes) else {
            return;
        };
        let flow = match &mut command {
            Command::QuicKey(key) => &mut key.flow,
            Command::QuicKeyGone { flow, .. } | Command::QuicRelease { flow, .. } => flow,
            Command::Prepare(prepare) => {
                // Not an id of ours.
                prepare.id.0 |= 1 << 63;
                &mut prepare.flow
            }
            Command::QuicSend(send) => {
                send.id.0 |= 1 << 63;
                let port = send.header.len().checked_sub(6);
                let port = port.and_then(|at| send.header[at..].first_chunk::<2>());
                if port.is_none_or(|port| u64::from(u16::from_be_bytes(*port)) < FLOWS) {
                    return;
                }
                &mut send.flow
            }
            _ => return,
        };
        flow.0 |= 1 << 8;
        self.others.insert(*flow);
        self.stage.tell(&command);
    }

    /// Looks at what has left, and at what was said.
    fn look(&mut self) {
        for superpacket in self.stage.wire.take_datagrams() {
            let flow = superpacket.flow().0;
            if flow >= FLOWS {
                continue;
            }
            for datagram in superpacket.each() {
                let prefix = PREFIXES[1];
                let sealed = datagram.strip_prefix(prefix).unwrap_or(datagram);
                let (number, plaintext) = open(sealed);
                assert!(plaintext.starts_with(&INLINE[..4]));
                let left = self.left.entry(flow).or_default();
                let is_above = left.last().is_none_or(|last| *last < number);
                assert!(is_above, "{number} leaves after {left:?}");
                left.insert(number);
            }
        }
        self.stage.listen();
        for event in std::mem::take(&mut self.stage.events) {
            let id = match event {
                Event::Departed { send, .. } | Event::ReadFailed { send, .. } => send,
                Event::Ready { prepare, .. } => prepare,
                // Of a QSEND, a PREPARE or a QKEY: ids of the latter are those of flows.
                Event::Rejected { id, .. } => {
                    self.unanswered.remove(&SendId(id));
                    continue;
                }
                _ => continue,
            };
            if id.0 >> 63 == 0 {
                assert!(self.unanswered.remove(&id), "{id:?} is answered twice");
            }
        }
        let usage = self.stage.worker.usage();
        let flows_max = FLOWS as usize + self.others.len();
        assert!(usage.flows <= flows_max + usage.prepares, "{usage:?}");
        let keys_max = flows_max * contract::limits::KEYS_MAX;
        assert!(usage.keys <= keys_max, "{usage:?}");
    }

    fn end_flow(&mut self, flow: u64) {
        // All that the worker was told before it has taken in by then.
        self.stage.settle();
        self.look();
        self.stage.acked(flow, 0, true);
        self.stage.settle();
        self.look();
        // Keys of the next flow are other ones.
        self.left.remove(&flow);
    }

    fn end(&mut self) {
        for file in 0..FILE_BYTES.len() as u8 {
            self.stage.disk.release(&name(file));
        }
        // Longer than a QSEND is held, and than pins keep memory from others.
        for _ in 0..20 {
            let now_us = self.stage.now_us.get();
            self.stage.now_us.set(now_us + 1_000_000);
            self.stage.settle();
            self.look();
        }
        for flow in 0..FLOWS {
            self.end_flow(flow);
        }
        for flow in std::mem::take(&mut self.others) {
            self.stage.acked(flow.0, 0, true);
        }
        for file in std::mem::take(&mut self.files) {
            let file = FileId(file.into());
            self.stage.tell(&Command::Close { file });
        }
        self.stage.settle();
        let usage = self.stage.worker.usage();
        let held = [
            usage.flows,
            usage.jobs,
            usage.prepares,
            usage.files,
            usage.keys,
            usage.records_bytes,
            usage.blocks_occupied,
            usage.blocks_pinned,
        ];
        assert_eq!(held, [0; 8], "{usage:?}");
    }
}
