//! From a request to its response, in any version of HTTP: the common part of all codecs. It never
//! imports a codec.

pub(crate) mod client;
pub(crate) mod field_section;
pub(crate) mod input;
pub(crate) mod lifecycle;
pub(crate) mod lines;
pub(crate) mod misdirected;
pub(crate) mod multipart;
pub(crate) mod output;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod shared;
pub(crate) mod version;
pub(crate) mod watch;
