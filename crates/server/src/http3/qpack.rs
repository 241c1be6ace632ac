//! Field sections (RFC 9204) without a dynamic table, which this side neither permits nor uses.

pub(crate) mod decode;
pub(crate) mod encode;
mod static_table;
