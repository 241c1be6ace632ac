//! The application's half of the channel, as safe Rust.
//!
//! | Module | Contents |
//! |---|---|
//! | `attach` | attachment of a process to the broker |
//! | `modes` | modes and options of an application, and its environment |
//! | `application_key` | the application of a process, as text |
//! | [`application_file`] | the application of all processes of a program |
//! | `handle_names` | recognition of handles by their names |
//! | `handles` | the store of descriptors for future sockets |
//! | `reuse` | descriptors of closed connections for new ones |
//! | `unshared` | descriptors without copies |
//! | `fork` | detection of forks |
//! | `fork_lock` | locks for which a child of a fork never waits |
//! | `notices` | messages for people about calls that fail |
//! | `table` | which descriptors are split sockets |
//! | `own` | descriptors of the library itself |
//! | `numbers` | sets of descriptors by their numbers |
//! | `process` | the state of one process |
//! | `application` | the application, with the table of its sockets |
//! | `socket` | a split socket as calls see it |
//! | `known_flags` | descriptors whose `O_NONBLOCK` is known |
//! | `link` | commands, answers, hints, and how threads sleep |
//! | `rings` | how threads without a descriptor sleep |
//! | `watchers` | waiters for changes of a socket |
//! | `blocking` | calls that block: timeouts and signals |
//! | `confinement`, `few_calls` | processes that give up rights |
//! | `opening` | socket, bind, getsockname, getpeername |
//! | `connecting` | connect, listen, accept |
//! | `transfer` | send and receive |
//! | `recovery` | descriptors from other processes |
//! | `closing` | shutdown, close |
//! | `sockopt` | getsockopt, setsockopt |
//! | `queues` | unread and unacknowledged bytes |
//! | `files` | files of the NIC stack: the offload functions |
//! | `sendfile`, `sent_files` | files that the program has opened itself |
//! | `sets` | split members of epoll sets |
//! | `set_copies` | copies of epoll sets taken at a fork |
//! | `forked_sets` | a child's copies of its parent's epoll sets |
//! | `readiness` | readiness in the bits of poll and epoll |
//! | `epoll` | epoll for split sockets and others in one set |
//! | `polling` | poll for both together |
//! | `zero_copy` | sending with completions |
//! | `splice` | connections joined by a NIC stack |
//! | `sends` | sends with outstanding completions |
//! | `tally` | counters of a program's sockets, over all its processes |
//! | `cancellation` | threads that are cancelled while they wait |
//! | `timing` | the clock of waits, and durations as the kernel takes them |

mod application;
pub mod application_file;
mod application_key;
mod attach;
mod blocking;
pub mod cancellation;
mod closing;
mod confinement;
mod connecting;
pub(crate) mod epoll;
pub(crate) mod few_calls;
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
mod reuse;
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
mod unshared;
mod watchers;
mod zero_copy;

pub use application::Client;
pub use application_key::{ApplicationKey, BadApplicationKey};
pub use attach::{AttachError, DEFAULT_PATH};
pub use confinement::Confinement;
pub use epoll::{EpollChange, EpollEvent, is_event_of_library, members_in_kernel};
pub use fork::generation as process_generation;
pub use fork::watch as watch_for_forks;
pub use fork::{note_bare_fork, note_copies};
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
pub use unshared::{reuse_descriptors, stop_reusing_descriptors};
