//! The state of a worker, apart from its channel.

use std::collections::{HashMap, VecDeque};

use contract::{Event, FileId, FlowId};
use netdev::Port;
use rustix::io::Errno;

use crate::arrival::Arrivals;
use crate::blocks::Blocks;
use crate::buffer::{Arena, Pages};
use crate::config::Config;
use crate::counters::Counters;
use crate::files::{Files, OpenOutcome};
use crate::flow::Flow;
use crate::job::Job;
use crate::need::{Need, RecentBlocks};
use crate::orphans::Orphans;
use crate::parted::Parted;
use crate::quic::{Datagrams, Receiving};
use crate::reader::{Completion, FileToken, Opened, Reader};
use crate::sealed::Sealer;
use crate::setup::SynAnswers;
use crate::slab::{Key, Slab};
use crate::spliced::Spliced;
use crate::wheel::Wheel;

/// Returns the time: microseconds of the clock that the host stamps its SENDs with.
pub type Clock<'a> = &'a dyn Fn() -> u64;

/// Opens, listings and reads completed in one turn.
const COMPLETIONS_MAX: usize = 256;

/// Events that may wait for the host while commands are taken: about the events of one turn.
pub(crate) const EVENTS_WAITING_MAX: usize = 64;

/// Jobs kept for reuse.
const SPARE_JOBS_MAX: usize = 1024;

/// Bounds of an engine; see [`Config`].
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) files_max: usize,
    pub(crate) flows_max: usize,
    pub(crate) jobs_max: usize,
    pub(crate) records_bytes: usize,
}

/// Takes commands and completions, makes reads, superpackets and events.
///
/// | File | Contents |
/// |---|---|
/// | `commands.rs` | each command's execution |
/// | `plan.rs` | SENDs become superpackets, and reads start |
/// | `depart.rs` | superpackets leave |
/// | `quic/` | datagrams are sealed, leave and are opened; file ranges are prepared |
pub(crate) struct Engine<P> {
    pub(crate) port: P,
    pub(crate) port_busy: bool,
    pub(crate) reader: Box<dyn Reader>,
    pub(crate) blocks: Blocks,
    pub(crate) pages: Pages,
    pub(crate) too_few_huge_pages: bool,
    pub(crate) files: Files,
    pub(crate) flows: Slab<Flow>,
    pub(crate) flow_keys: HashMap<FlowId, Key>,
    /// Flows that have something to cut, in turn.
    pub(crate) planners: VecDeque<Key>,
    /// Flows whose next superpacket needs more blocks than may be taken now, in the order in which
    /// they came.
    pub(crate) starved: VecDeque<Key>,
    /// Flows whose first superpacket can depart, in turn.
    pub(crate) senders: VecDeque<Key>,
    /// Flows whose first superpacket could depart and must not yet.
    pub(crate) wheel: Wheel,
    /// Makes superpackets of sealed stream.
    pub(crate) sealer: Sealer,
    /// Makes superpackets of datagrams.
    pub(crate) datagrams: Datagrams,
    /// Memory of all keys and runs, in bytes.
    pub(crate) sealed_bytes: usize,
    /// A superpacket waits for room in the event ring.
    pub(crate) ring_busy: bool,
    /// Jobs in all flows.
    pub(crate) jobs: usize,
    /// Jobs that are PREPAREs.
    pub(crate) prepares: usize,
    /// Connections that the host has parted with.
    pub(crate) parted: Parted,
    /// Connections that the host has joined.
    pub(crate) spliced: Spliced,
    /// Ends the connections when the host process has died.
    pub(crate) orphans: Box<Orphans>,
    /// Frames that arrive.
    pub(crate) arrivals: Arrivals,
    /// Packets of QUIC connections that arrive.
    pub(crate) receiving: Receiving,
    /// State for answering SYNs, if they are answered.
    pub(crate) syn_answers: Option<Box<SynAnswers>>,
    /// LISTs that the reader has.
    pub(crate) lists: usize,
    #[expect(clippy::vec_box, reason = "jobs move between here and flows")]
    spare_jobs: Vec<Box<Job>>,
    /// Events for the host, as soon as its ring has room. Beyond `EVENTS_WAITING_MAX`, only events
    /// of jobs, opens and listings under way are added: a bounded number.
    pub(crate) events: VecDeque<Event>,
    pub(crate) limits: Limits,
    pub(crate) correct_timestamps: bool,
    pub(crate) counters: Counters,
    /// Scratch of [`Engine::plan`].
    pub(crate) needs: Vec<Need>,
    /// Scratch of [`Engine::plan`]: the last blocks of `needs`.
    pub(crate) recent_blocks: RecentBlocks,
    /// Scratch of [`Engine::complete`].
    waiters: Vec<Key>,
    /// Scratch of [`Engine::release_held`].
    pub(crate) due: Vec<Key>,
}

impl<P: Port> Engine<P> {
    pub(crate) fn new(
        config: &Config,
        port: P,
        mut reader: Box<dyn Reader>,
        arena: Arena,
    ) -> Engine<P> {
        let pages = arena.pages();
        let too_few_huge_pages = arena.too_few_huge_pages();
        reader.prepare(arena.region());
        Engine {
            port,
            port_busy: false,
            reader,
            blocks: Blocks::new(arena),
            pages,
            too_few_huge_pages,
            files: Files::new(),
            flows: Slab::new(),
            flow_keys: HashMap::new(),
            planners: VecDeque::new(),
            starved: VecDeque::new(),
            senders: VecDeque::new(),
            wheel: Wheel::new(),
            sealer: Sealer::new(),
            datagrams: Datagrams::default(),
            sealed_bytes: 0,
            ring_busy: false,
            jobs: 0,
            prepares: 0,
            parted: Parted::new(config),
            spliced: Spliced::new(config),
            orphans: Box::default(),
            arrivals: Arrivals::default(),
            receiving: Receiving::new(config.reorder),
            syn_answers: None,
            lists: 0,
            spare_jobs: Vec::new(),
            events: VecDeque::new(),
            limits: Limits {
                files_max: config.files_max,
                flows_max: config.flows_max,
                jobs_max: config.jobs_max.max(1),
                records_bytes: config.records_bytes,
            },
            correct_timestamps: config.correct_timestamps,
            counters: Counters::default(),
            needs: Vec::new(),
            recent_blocks: RecentBlocks::default(),
            waiters: Vec::new(),
            due: Vec::new(),
        }
    }

    /// Takes completed opens, listings and reads. True if there were any.
    pub(crate) fn complete(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..COMPLETIONS_MAX {
            let Some(completion) = self.reader.next() else {
                break;
            };
            worked = true;
            let mut waiters = std::mem::take(&mut self.waiters);
            match completion {
                Completion::Opened { file, result } => {
                    if let Some(outcome) = self.opened(file, result, &mut waiters) {
                        let file = outcome.id;
                        match outcome.result {
                            Ok(meta) => self.emit(Event::Opened { file, meta }),
                            Err(errno) => self.open_failed(file, errno),
                        }
                    }
                }
                Completion::Listed { file, result } => {
                    self.lists -= 1;
                    // Nothing of a directory can be sent.
                    let none = Err(Errno::ISDIR.raw_os_error() as u16);
                    if let Some(OpenOutcome { id: file, .. }) =
                        self.opened(file, none, &mut waiters)
                    {
                        match result {
                            Ok(part) => self.emit(Event::Listed { file, part }),
                            Err(errno) => self.open_failed(file, errno),
                        }
                    }
                }
                Completion::Read {
                    token,
                    buffer,
                    valid,
                    failure,
                } => {
                    self.counters.read_bytes += valid as u64;
                    self.blocks
                        .complete(token.0, buffer, valid, failure, &mut waiters);
                    for flow in waiters.drain(..) {
                        self.want_to_send(flow);
                    }
                }
            }
            self.waiters = waiters;
        }
        worked
    }

    /// Completes the open of a file. Returns the event's content, if the host still waits for the
    /// answer. Jobs that wait to send from the file go on.
    fn opened(
        &mut self,
        file: FileToken,
        result: Result<Opened, u16>,
        waiters: &mut Vec<Key>,
    ) -> Option<OpenOutcome> {
        let outcome = self.files.complete(
            file,
            result,
            &mut self.blocks,
            self.reader.as_mut(),
            waiters,
        );
        for flow in waiters.drain(..) {
            self.want_to_plan(flow);
        }
        // After CLOS the host does not wait for the answer, and the id may mean another file.
        outcome.filter(|outcome| outcome.named)
    }

    fn open_failed(&mut self, file: FileId, errno: u16) {
        self.counters.opens_failed += 1;
        self.emit(Event::OpenFailed { file, errno });
    }

    /// True if a command can be taken: the host takes its events, and there is room for a job.
    pub(crate) fn has_room(&self) -> bool {
        self.events.len() < EVENTS_WAITING_MAX && self.jobs < self.limits.jobs_max
    }

    /// Queues an event for the host.
    pub(crate) fn emit(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// An empty or used job to fill.
    pub(crate) fn spare_job(&mut self) -> Box<Job> {
        self.spare_jobs.pop().unwrap_or_else(Job::new)
    }

    /// Keeps a job that is over for reuse.
    pub(crate) fn keep_spare_job(&mut self, job: Box<Job>) {
        if self.spare_jobs.len() < SPARE_JOBS_MAX {
            self.spare_jobs.push(job);
        }
    }
}
