//! The one error of this crate: for a person, not for a program.

use std::fmt::{Debug, Display, Formatter};

/// What was tried, on what, and why it failed.
pub struct Failure(String);

/// What most functions here return.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with this message.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure(message.into())
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

// `unwrap` in a test prints this one: a person reads it.
impl Debug for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Says what was tried when something fails.
pub trait Context<T> {
    /// Turns the error into a [`Failure`] that begins with what was tried.
    fn context(self, tried: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Display> Context<T> for std::result::Result<T, E> {
    fn context(self, tried: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure(format!("{}: {error}", tried())))
    }
}
