//! The contract over Ethernet: for a NIC stack on another machine, or on the Arm cores of a DPU.
//!
//! The same records that cross a ring ([`crate::codec`]) cross a link here, in frames of an
//! EtherType of their own. Anyone on that link could otherwise read any file and send any packet,
//! so both machines hold a key ([`PreSharedKey`]), and every frame is authenticated and encrypted.
//!
//! | Module | Contents |
//! |---|---|
//! | [`key`] | the key that both machines share, and derived keys |
//! | [`handshake`] | how two machines meet: versions, terms, fresh keys |
//! | [`session`] | start here: a connection of two stacks, until either is gone |
//! | [`translate`] | times and addresses, which differ from machine to machine |
//! | [`frame`] | frames as bytes |
//! | `sender` | parcels out: acknowledged, or sent again |
//! | `receiver` | parcels in: every one once and in order, and credit for more |
//! | `stream` | records in parcels |
//! | `seal` | encryption and authentication of frames |
//! | `replay` | no frame counts twice |
//! | `rtt` | how long to wait for an acknowledgment |
//! | `clock` | the time on the other machine |
//!
//! Nothing here sends, waits or asks for the time: frames go in and come out, `now_us` and random
//! bytes are arguments.
//!
//! # Faults of a link
//!
//! A link loses, repeats, reorders and damages frames, and anyone on it may record and send frames.
//! Records are cut into numbered *parcels*. A frame carries at most one; a parcel that is lost
//! leaves again in a new frame, since a frame's number is the nonce of its encryption and never
//! used twice. Every frame carries its sender's receipts for parcels, and the number of further
//! parcels that it accepts (its *credit*); a sender never exceeds it. There is no other congestion
//! control: the link is meant to be a cable or a switch, the bytes in flight are bounded by the
//! credit, and after a timeout by the back-off.

mod clock;
pub mod frame;
pub mod handshake;
pub mod key;
mod receiver;
mod replay;
mod rtt;
mod seal;
mod sender;
pub mod session;
mod stream;
pub mod translate;

pub use frame::{ETHER_TYPE, FRAME_BYTES_MAX, FRAME_BYTES_MIN, Leaving};
pub use handshake::{Initiator, Responder, Terms};
pub use key::PreSharedKey;
pub use session::{End, Session};

/// Parcels that may be on their way at once, in each direction.
const WINDOW: usize = 256;
