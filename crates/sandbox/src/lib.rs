//! Confinement of processes before they handle untrusted input, and their requirements and limits.
//!
//! | Module | Its one idea |
//! |---|---|
//! | [`lockdown`] | Landlock rulesets and capabilities: access to unserved files is denied |
//! | [`seccomp`] | the system calls that a process may still make |
//! | [`privileges`] | capabilities that a command needs, and the error when one is missing |
//! | [`kernel`] | features that the kernel must have |
//! | [`descriptors`] | the limit on open descriptors, and inherited ones |
//! | [`memory_limit`] | memory available to the control group |
//!
//! A process calls them in this order, and serves only after the last:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use rustix::thread::CapabilitySet;
//! use sandbox::{lockdown, seccomp};
//!
//! # fn main() -> Result<(), failure::Failure> {
//! lockdown::forbid_core_dumps()?;
//! lockdown::keep_capabilities(CapabilitySet::empty())?;
//! lockdown::lock_out(Path::new("/srv/www"))?;
//! seccomp::allow_only(seccomp::Kind::Host)?;
//! # Ok(())
//! # }
//! ```
//!
//! This crate may touch the kernel's view of its own process, and nothing else.

#![forbid(unsafe_code)]

pub mod descriptors;
pub mod kernel;
pub mod lockdown;
pub mod memory_limit;
pub mod privileges;
pub mod seccomp;
