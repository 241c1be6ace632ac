//! A fetcher between a host process that the test plays and an origin that it plays as well, on the
//! loopback interface. Every byte is compared.
#![forbid(unsafe_code)]

mod caching;
mod failing;
mod fetching;
mod fields;
mod host;
mod ranges;
mod secure;
mod vary;
