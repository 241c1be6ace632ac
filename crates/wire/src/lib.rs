//! Frame and packet headers, checksums.

pub mod tcp;
