//! Private state of the host about sockets.

pub(crate) mod area;
pub(crate) mod file;
pub(crate) mod listener;
pub(crate) mod options;
pub(crate) mod passed;
pub(crate) mod search;
pub(crate) mod socket;
pub(crate) mod sources;
pub(crate) mod splice;
pub(crate) mod stream;
