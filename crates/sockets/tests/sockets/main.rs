//! Applications behind a socket channel, on a real host stack, in virtual time; clients on another
//! one.
#![forbid(unsafe_code)]

mod acknowledgments;
mod brokers;
mod bytes;
mod disconnect;
mod ends;
mod files;
mod hostile;
mod limits;
mod listeners;
mod loopback;
mod memory;
mod modes;
mod offloads;
mod passed;
mod program;
mod reuse;
mod splices;
mod turns;
mod views;
mod world;
