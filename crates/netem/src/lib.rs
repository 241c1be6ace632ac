//! A link emulator: it joins two interfaces, and what passes is delayed, shaped, lost, reordered
//! and duplicated as one pleases, by a seed. It works on any Linux, with nothing of the kernel but
//! packet sockets.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`conditions`] | what a direction is like, and how people write it: `delay=20ms,loss=1%` |
//! | [`direction`] | what becomes of each packet, and when: frames and `now` in, departures out |
//! | [`frame`] | superpackets, seen as the packets that they stand for |
//! | [`bridge`] | two interfaces and a clock around two directions |
//! | [`report`] | what happened, and how punctual the emulator was |
//!
//! Frames are passed on as they are: the emulator is no hop, has no addresses, and looks at headers
//! only to cut superpackets. On links within a machine most frames are superpackets of up to 64 KB
//! or more; each packet in them has its own fate, and those that survive and leave together leave
//! as one superpacket again.
//!
//! Everything but [`bridge`] is without I/O.

#![forbid(unsafe_code)]

pub mod bridge;
pub mod conditions;
pub mod direction;
pub mod frame;
pub mod report;
