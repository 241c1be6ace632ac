//! From a request to its response, whatever the version of HTTP: what all codecs have in common.
//! It never imports one of them.

pub(crate) mod budget;
pub(crate) mod field_section;
pub(crate) mod input;
pub(crate) mod lifecycle;
pub(crate) mod lines;
pub(crate) mod multipart;
pub(crate) mod output;
pub(crate) mod priority;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod shared;
pub(crate) mod version;
pub(crate) mod watch;
