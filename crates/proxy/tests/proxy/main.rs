//! A proxy on a real host stack, in virtual time. Clients and backends are on the same stack, and
//! do what the test says.
#![forbid(unsafe_code)]

mod balancing;
mod health;
mod hostile;
mod http;
mod http2;
mod lifetime;
mod memory;
mod ports;
mod rates;
mod retries;
mod sharing;
mod tcp;
mod world;
