//! Memory that two processes share, and the rings that live in it.
//!
//! The peer may write at any time, even against the protocol. So this crate gives only atomic
//! words, and rings that check all that they read.
//!
//! | Module | Contents |
//! |---|---|
//! | [`memory`] | sealed memory files, and their mappings as atomic words |
//! | [`ring`] | single-producer single-consumer ring of messages |
//! | [`end`] | one end of a pair of rings, with its wake-ups |
//! | [`sync`] | the atomics, or those of the model checker |
//!
//! ```
//! use shm::memory::Memory;
//! use shm::ring::{ring, ring_words};
//! use shm::sync::Arc;
//!
//! let memory = Arc::new(Memory::heap(ring_words(4096)));
//! let (mut producer, mut consumer) = ring(&memory, 0, 4096, 64);
//! producer.write(b"hello").expect("an empty ring has room");
//! let wake = producer.publish();
//! assert!(wake, "a new ring's consumer sleeps");
//! assert_eq!(consumer.read(), Ok(Some(&b"hello"[..])));
//! ```
//!
//! It knows no message, no policy and no clock.

#[cfg(not(loom))]
pub mod end;
pub mod memory;
pub mod ring;
pub mod sync;
