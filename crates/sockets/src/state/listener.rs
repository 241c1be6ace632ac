//! A socket that listens.

use host::app::BindingId;

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) binding: BindingId,
    /// Most connections that wait.
    pub(crate) backlog: usize,
}
