//! The NIC stack: the data plane below the split (IO-TCP §3.4).
//!
//! A [`Worker`] takes commands from its channel, reads files below the root, and hands superpackets
//! to its port. It knows neither connections nor congestion: a SEND carries the finished header,
//! and the worker cuts, stamps and sends. Its state is soft: open files, blocks with sent and
//! unacknowledged bytes, keys and definitions of TLS records, and keys and packet numbers of QUIC.
//!
//! A SEND passes through these files, and a QSEND, whose packets the worker seals:
//!
//! | File | What happens there |
//! |---|---|
//! | `counter_report` | a worker's counters, reported while it works |
//! | `load` | how busy the worker has been, for the host |
//! | `run`, `polling` | the loop around a worker: when to poll, when to sleep, when to end |
//! | `worker` | one turn: completions, commands, planning, departure, events |
//! | `engine`, `config` | the state of a worker; its settings |
//! | `commands`, `job` | the command is checked and becomes a job of its flow |
//! | `flow` | SENDs that depart in order |
//! | `plan`, `need` | the job is cut into superpackets, which get hold of their blocks |
//! | `blocks`, `buffer` | which blocks are in memory, and which may go |
//! | `s3fifo` | which cached block is evicted first |
//! | `versions` | the file version to which a block belongs |
//! | `read_ahead`, `follow`, `prefetch` | how far to read; next bytes of the stream; early reads |
//! | [`reader`] | blocks that are not there are read: io_uring or threads |
//! | `wheel` | a paced SEND waits for its time |
//! | `depart`, `segment` | the superpacket gets its header and leaves |
//! | `sealed` | TLS: keys, and records that are defined, sealed, and sealed again |
//! | `quic` | QUIC: keys, sealing, file ranges prepared for packets, opening |
//! | `retention` | the flow pins the blocks that it has sent until ACKD |
//! | `packet` | packets that a worker makes itself |
//! | `per_second` | limits on events per second |
//! | `timers` | when an entry of a table is due |
//! | `parted` | connections that the host has parted with: FIN, TIME-WAIT |
//! | `spliced` | two connections that are one: frames of one leave on the other |
//! | `departed` | how far a stream has departed: where a reset stands |
//! | `orphans` | the host process has died: its connections are ended |
//! | `addresses` | what names a connection on the wire |
//! | `arrival` | frames that arrive, by FRAME or at the worker's port |
//! | `setup` | SYNs answered in the host's place |
//! | `counters`, `usage` | a worker's counters, and the resources that it holds |
//! | [`heap`] | free memory goes back to the kernel |
//! | `slab`, `shrink` | tables that give memory back when a crowd has gone |
//! | `files`, `root`, `file_system` | the files behind the host's file ids; opening files |
//! | `passed` | files of which other processes have passed descriptors |
//! | `directory` | LIST: the entries of a directory |
//!
//! It may touch files below the root, descriptors that it was passed, its buffers, its port and the
//! contract. It makes no decision about loss or congestion, except that it retransmits the FIN of a
//! connection which the host has parted with. No command can end the process.

mod addresses;
mod arrival;
mod blocks;
pub mod buffer;
mod commands;
mod config;
mod counter_report;
mod counters;
mod depart;
mod departed;
mod directory;
mod engine;
mod file_system;
mod files;
mod flow;
mod follow;
pub mod heap;
mod job;
mod load;
mod need;
mod orphans;
mod packet;
mod parted;
mod passed;
mod per_second;
mod plan;
mod polling;
mod prefetch;
mod quic;
mod read_ahead;
pub mod reader;
mod retention;
mod root;
mod run;
mod s3fifo;
mod sealed;
mod segment;
mod setup;
mod shrink;
mod slab;
mod spliced;
mod timers;
mod usage;
mod versions;
mod wheel;
mod worker;

pub use config::{Config, ReaderKind, Reorder};
pub use counter_report::ReportCounters;
pub use counters::Counters;
pub use engine::Clock;
pub use passed::{PassedFiles, Sources};
pub use root::{RootDir, RootError, check_kernel};
pub use run::{RunError, WorkerResources, run};
pub use usage::Usage;
pub use worker::{Corrupt, Progress, Sleep, Worker};
