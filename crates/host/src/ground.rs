//! What the transports stand on.

pub(crate) mod division;
pub(crate) mod files;
pub(crate) mod link;
pub(crate) mod listing;
pub(crate) mod look_up;
pub(crate) mod memory;
pub(crate) mod shortage;
pub(crate) mod steering;
pub(crate) mod workers;
