//! A link emulator: it joins two interfaces, and delays, shapes, loses, reorders and duplicates
//! packets as configured, by a seed. It works on any Linux, with packet sockets as the only kernel
//! facility.
//!
//! | Module | Contents |
//! |---|---|
//! | [`conditions`] | conditions of a direction, and their text form: `delay=20ms,loss=1%` |
//! | [`direction`] | fate and time of each packet: frames and `now` in, departures out |
//! | [`frame`] | superpackets, viewed as the packets that they represent |
//! | [`bridge`] | two interfaces and a clock around two directions |
//! | [`report`] | counters, and punctuality of the emulator |
//!
//! Frames are forwarded unchanged: the emulator is no hop, has no addresses, and reads headers only
//! to segment superpackets. On links within a machine most frames are superpackets of up to 64 KB
//! or more; each packet in them has its own fate, and surviving packets that leave together leave
//! as one superpacket again.
//!
//! Everything but [`bridge`] is without I/O.

#![forbid(unsafe_code)]

pub mod bridge;
pub mod conditions;
pub mod direction;
pub mod frame;
pub mod report;
