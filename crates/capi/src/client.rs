//! The application's half of the channel, as safe Rust.
//!
//! | Module | What it holds |
//! |---|---|
//! | `attach` | how a process gets its channel from the broker |
//! | `modes` | what an application asks for, and its environment |
//! | `application_key` | which application a process belongs to, as text |
//! | [`application_file`] | the same for all processes of a program |
//! | `handle_names` | how a descriptor is recognised as a handle |
//! | `handles` | descriptors that sockets will be, in store |
//! | `fork` | how a process notices that it is a copy of another |
//! | `fork_lock` | locks for which a child of a fork never waits |
//! | `notices` | lines for people about calls that fail |
//! | `table` | which descriptors are split sockets |
//! | `own` | descriptors that the library has for itself |
//! | `numbers` | sets of descriptors by their numbers |
//! | `process` | what one process has |
//! | `application` | the application: what calls are made on |
//! | `socket` | a split socket as calls see it |
//! | `known_flags` | descriptors of which it is known whether they block |
//! | `link` | commands, answers, hints, and how threads sleep |
//! | `rings` | how threads without a descriptor sleep |
//! | `watchers` | what waits for a change of a socket |
//! | `blocking` | calls that block: timeouts and signals |
//! | `confinement` | processes that give up rights |
//! | `opening` | socket, bind, getsockname, getpeername |
//! | `connecting` | connect, listen, accept |
//! | `transfer` | send and receive |
//! | `recovery` | descriptors that come from other processes |
//! | `closing` | shutdown, close |
//! | `sockopt` | getsockopt, setsockopt |
//! | `queues` | bytes that are unread, or not acknowledged |
//! | `files` | files of the NIC stack: the offload functions |
//! | `sendfile`, `sent_files` | files that the program has opened itself |
//! | `sets` | split members of epoll sets |
//! | `set_copies` | what of them is copied at a fork |
//! | `forked_sets` | what a child has of its parent's epoll sets |
//! | `readiness` | readiness as poll and epoll say it |
//! | `epoll` | epoll for split sockets and others in one set |
//! | `polling` | poll for both together |
//! | `zero_copy` | sending with completions |
//! | `splice` | connections that a NIC stack joins |
//! | `sends` | sends whose completions are to be taken |
//! | `tally` | what sockets have done, summed over a program's processes |
//! | `cancellation` | threads that are cancelled while they wait |
//! | `timing` | the clock of waits, and durations as the kernel takes them |

mod application;
pub mod application_file;
mod application_key;
mod attach;
mod blocking;
pub mod cancellation;
mod closing;
pub(crate) mod confinement;
mod connecting;
pub(crate) mod epoll;
mod files;
mod fork;
mod fork_lock;
mod forked_sets;
pub(crate) mod handle_names;
mod handles;
mod known_flags;
mod link;
mod modes;
mod notices;
mod numbers;
mod opening;
mod own;
mod polling;
mod process;
mod queues;
mod readiness;
mod recovery;
mod rings;
mod sendfile;
mod sends;
mod sent_files;
mod set_copies;
mod sets;
mod socket;
pub(crate) mod sockopt;
mod splice;
mod table;
pub mod tally;
mod timing;
mod transfer;
mod watchers;
mod zero_copy;

pub use application::Client;
pub use application_key::{ApplicationKey, BadApplicationKey};
pub use attach::{AttachError, DEFAULT_PATH};
pub use confinement::Confinement;
pub use epoll::{EpollChange, EpollEvent, is_event_of_library};
pub use fork::generation as process_generation;
pub use fork::note_bare_fork;
pub use fork::watch as watch_for_forks;
pub(crate) use fork_lock::ForkLock;
pub use modes::{APPLICATION_VARIABLE, Modes, Options, UnknownMode};
pub use notices::{Notice, receive_notices};
pub use numbers::Numbers;
pub use opening::DescriptorFlags;
pub use own::{is_kept_in_children, kept_in_children};
pub use polling::Polled;
pub use sends::{Completion, SENDS_MAX};
pub use sockopt::{
    OptionValue, SOL_SPLITWAY, SW_SETUP_OFFLOAD, SW_TEARDOWN_OFFLOAD, is_of_descriptor,
};
pub use splice::{SpliceLimits, SpliceStatus};
pub use timing::Instant;
pub use transfer::{ReceiveFlags, SendFlags};
