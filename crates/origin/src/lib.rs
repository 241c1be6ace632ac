//! Origin pull: what clients ask for and is not there is fetched from an HTTP origin, once, and
//! kept in a cache directory.
//!
//! This is the *fetcher*. It stands beside the data path: the host process asks it for objects over
//! a socket ([`message`]), and learns where in the cache directory their bytes lie; the NIC stack
//! reads them from there. The fetcher never sees a client.
//!
//! An object lies in a directory of its own, cut into *segments* of a fixed size. A segment is
//! written under another name and renamed when it is complete, so that no file ever changes that a
//! reader may see. Which segments are there is all that changes. Another version of the object is
//! another directory.
//!
//! | Module | Its one idea |
//! |---|---|
//! | [`message`] | what host process and fetcher say to each other |
//! | `fetcher` | who waits for what: one request to the origin for all who ask for the same |
//! | `transfer` | one request to the origin, and its answer on the way into segments |
//! | `content_range` | which bytes of an object an answer has (RFC 9110 §14.4) |
//! | `store` | versions and segments that are there, and which make room for others |
//! | `disk` | the files of a version: written, removed, checked |
//! | `boot` | whether the machine was started since the cache was written to |
//! | `fields` | which header fields of an answer are kept and passed on |
//! | `freshness` | how long an answer may be used (RFC 9111) |
//! | `validator` | whether two answers are parts of the same version |
//! | `vary` | which fields of requests select an answer (RFC 9111 §4.1) |
//! | `variants` | the answers that a target has for them |
//! | `upstream` | an origin: where it is, how it is reached |
//! | `pinned` | origins whose own certificate is the one that is trusted |
//! | `resolver` | looking up an origin's name |
//! | `circuit` | leaving an origin alone that does not answer |
//! | `broken` | leaving a target alone that an origin fails to give |
//! | `missing` | remembering targets that an origin refuses or fails to give |
//! | `failure` | what a client gets when the origin fails |
//! | `counters` | what a fetcher counts |
//! | `log_limit` | how often the log says the same |
//! | `endpoint` | the fetcher's end of the socket |
//!
//! This room may touch the cache directory, sockets of the kernel and a clock. It never sees
//! clients, connections of the stack or the contract.

#![forbid(unsafe_code)]

mod boot;
mod broken;
mod circuit;
mod content_range;
mod counters;
mod disk;
mod endpoint;
mod failure;
mod fetcher;
mod fields;
mod freshness;
mod log_limit;
pub mod message;
mod missing;
mod pinned;
mod resolver;
mod store;
mod transfer;
mod upstream;
mod validator;
mod variants;
mod vary;

pub use counters::{CacheCounters, Counted, OriginCounters, Totals};
pub use endpoint::{Config, Ends, FetcherError, run};
pub use fields::{FieldLimits, Fields};
pub use store::OBJECTS;
pub use upstream::{OriginUrl, OriginUrlError, Timeouts, Trust, TrustError};
pub use vary::{SELECTING, VALUE_BYTES_MAX};
