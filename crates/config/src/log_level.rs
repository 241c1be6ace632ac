//! Log levels of the processes.

use std::fmt;
use std::str::FromStr;

/// The least urgent events that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Failures.
    Error,
    /// Conditions that an operator should look at.
    #[default]
    Warn,
    /// Changes of state.
    Info,
    /// Events of connections.
    Debug,
    /// Each step.
    Trace,
}

const LEVELS: [(LogLevel, &str); 5] = [
    (LogLevel::Error, "error"),
    (LogLevel::Warn, "warn"),
    (LogLevel::Info, "info"),
    (LogLevel::Debug, "debug"),
    (LogLevel::Trace, "trace"),
];

impl LogLevel {
    /// Its name.
    pub fn name(self) -> &'static str {
        let found = LEVELS.iter().find(|(level, _)| *level == self);
        found.map_or("", |(_, name)| name)
    }

    /// Names of all levels, from the fewest events to the most.
    pub fn names() -> impl Iterator<Item = &'static str> {
        LEVELS.iter().map(|(_, name)| *name)
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = LEVELS.iter().find(|(_, name)| *name == text);
        found
            .map(|(level, _)| *level)
            .ok_or_else(|| "it is error, warn, info, debug or trace".to_owned())
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
