//! Content types of records.

use crate::error::Error;

/// Type of a record's content (RFC 8446 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ContentType {
    /// The change of keys of TLS 1.2; without meaning in TLS 1.3.
    ChangeCipherSpec = 20,
    /// An alert.
    Alert = 21,
    /// Handshake messages, such as KeyUpdate.
    Handshake = 22,
    /// Application data.
    ApplicationData = 23,
}

impl TryFrom<u8> for ContentType {
    type Error = Error;

    fn try_from(value: u8) -> Result<Self, Error> {
        match value {
            20 => Ok(ContentType::ChangeCipherSpec),
            21 => Ok(ContentType::Alert),
            22 => Ok(ContentType::Handshake),
            23 => Ok(ContentType::ApplicationData),
            content_type => Err(Error::UnexpectedRecord { content_type }),
        }
    }
}
