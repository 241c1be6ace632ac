//! Memory limit of connections.

use std::fmt;
use std::str::FromStr;

use crate::size::Size;

/// Most memory of all connections together, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionMemory(Size);

/// Enough to serve connections one after the other.
const CONNECTION_MEMORY_MIN: Size = Size(1 << 20);

impl ConnectionMemory {
    /// The limit in bytes.
    pub fn bytes(self) -> u64 {
        let ConnectionMemory(Size(bytes)) = self;
        bytes
    }
}

impl Default for ConnectionMemory {
    fn default() -> Self {
        ConnectionMemory(Size(host::StackConfig::CONNECTION_MEMORY_BYTES_MAX as u64))
    }
}

impl FromStr for ConnectionMemory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size: Size = text.parse()?;
        if size < CONNECTION_MEMORY_MIN {
            Err(format!("connections need {CONNECTION_MEMORY_MIN} at least"))
        } else {
            Ok(ConnectionMemory(size))
        }
    }
}

impl fmt::Display for ConnectionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConnectionMemory(size) = self;
        size.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_a_megabyte_at_least() {
        let memory = |text: &str| text.parse().map(ConnectionMemory::bytes);
        assert_eq!(memory("1M"), Ok(1 << 20));
        assert_eq!(
            memory("1023K"),
            Err("connections need 1M at least".to_owned())
        );
        assert!(memory("much").is_err());
        assert_eq!(ConnectionMemory::default().to_string(), "512M");
    }
}
