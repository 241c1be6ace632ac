//! The cluster form: programs on an application node use sockets on a stack node.
//!
//! | Module | Purpose |
//! |---|---|
//! | `node_side` | on the application node, in the place of the host process |
//! | `stack_side` | on the stack node, in the place of applications |
//! | `attachments` | on the stack node: attaching to its broker |
//! | `rounds` | rounds of work of either side, until there is a message |
//! | `clock` | the time of this machine |

mod attachments;
mod clock;
pub mod node_side;
mod rounds;
pub mod stack_side;
