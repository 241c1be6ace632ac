//! The server against a scripted stream interface with files in memory and a virtual clock.

mod accesses;
mod carriers;
mod conditions;
mod drain;
mod early_hints;
mod http2;
mod http3;
mod keep_alive;
mod lab;
mod listings;
mod misdirected;
mod pipelining;
mod pulls;
mod ranges;
mod rates;
mod reconfigure;
mod refusals;
mod responses;
mod rules;
mod schemes;
mod signed_urls;
mod sites;
mod slow;
mod splits;
mod twin;
mod variants;
