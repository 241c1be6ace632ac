//! The one error of this crate: for people, not for programs.

use std::fmt::{Debug, Display, Formatter};

/// The action that failed, its object, and the reason.
pub struct Failure(String);

/// Result of most functions here.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Returns a failure with this message.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure(message.into())
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

// `unwrap` in a test prints this format, for a human reader.
impl Debug for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Adds the attempted action to an error.
pub trait Context<T> {
    /// Turns the error into a [`Failure`] that begins with `tried`, the attempted action.
    fn context(self, tried: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Display> Context<T> for std::result::Result<T, E> {
    fn context(self, tried: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure(format!("{}: {error}", tried())))
    }
}
