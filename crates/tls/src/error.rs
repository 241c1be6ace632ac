//! Errors of a TLS connection, and their alerts.

use std::fmt;

use rustls::AlertDescription;

/// Why a connection has failed.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// The handshake failed, and rustls has written the alert.
    Handshake(rustls::Error),
    /// The handshake or a KeyUpdate failed, and rustls has no alert for it.
    Untold(rustls::Error),
    /// The handshake took too long: [`crate::Limits::handshake_us_max`].
    HandshakeTimedOut,
    /// The client sent too much before the handshake's end: [`crate::Limits::handshake_bytes_max`].
    HandshakeTooLong,
    /// The client closed before the handshake's end.
    ClosedInHandshake,
    /// The first bytes are not TLS.
    NotTls,
    /// The first bytes begin a request of HTTP/1.1 without TLS.
    PlainHttp {
        /// Its method is HEAD: the response has no body.
        is_head: bool,
    },
    /// The best version that the client offers is older than TLS 1.2.
    OldVersion(u16),
    /// The client gave up TLS 1.3 although both sides have it: a middlebox interferes (RFC 7507
    /// §3).
    InappropriateFallback,
    /// A record is not authentic.
    BadRecord,
    /// A record is longer than allowed.
    OversizedRecord,
    /// A record of this type may not come now.
    UnexpectedRecord {
        /// As on the wire.
        content_type: u8,
    },
    /// A record of TLS 1.2 names another version.
    RecordVersion(u16),
    /// A handshake message of this type may not come now.
    UnexpectedMessage {
        /// As on the wire.
        handshake_type: u8,
    },
    /// A message is malformed.
    Malformed(&'static str),
    /// A message has a forbidden value.
    IllegalParameter(&'static str),
    /// The client repeats permitted but useless messages too often.
    TooMany(&'static str),
    /// The client sent an alert.
    PeerAlert(AlertDescription),
    /// The key has sealed all that it may, and TLS 1.2 has no other one.
    KeyUsedUp,
    /// Something was negotiated that should not have been offered.
    Unsupported,
}

impl Error {
    /// The alert for the peer (RFC 8446 §6.2); `None` if rustls has sent it, or there is none to
    /// send.
    pub fn alert(&self) -> Option<AlertDescription> {
        match self {
            Error::Handshake(_)
            | Error::HandshakeTimedOut
            | Error::ClosedInHandshake
            | Error::PeerAlert(_) => None,
            Error::InappropriateFallback => Some(AlertDescription::InappropriateFallback),
            Error::BadRecord => Some(AlertDescription::BadRecordMac),
            Error::OversizedRecord => Some(AlertDescription::RecordOverflow),
            Error::NotTls
            | Error::PlainHttp { .. }
            | Error::UnexpectedRecord { .. }
            | Error::UnexpectedMessage { .. }
            | Error::TooMany(_) => Some(AlertDescription::UnexpectedMessage),
            Error::OldVersion(_) | Error::RecordVersion(_) => {
                Some(AlertDescription::ProtocolVersion)
            }
            Error::Malformed(_) => Some(AlertDescription::DecodeError),
            Error::IllegalParameter(_) => Some(AlertDescription::IllegalParameter),
            // No close_notify: the truncation of a response would not be noticed (§6.1).
            Error::HandshakeTooLong | Error::KeyUsedUp | Error::Unsupported => {
                Some(AlertDescription::InternalError)
            }
            Error::Untold(error) => Some(alert_for(error)),
        }
    }
}

/// The alert for an error that rustls passes on without one (RFC 8446 §6.2).
fn alert_for(error: &rustls::Error) -> AlertDescription {
    match error {
        rustls::Error::InvalidMessage(error) => (*error).into(),
        rustls::Error::DecryptError => AlertDescription::BadRecordMac,
        rustls::Error::PeerSentOversizedRecord => AlertDescription::RecordOverflow,
        rustls::Error::PeerMisbehaved(_)
        | rustls::Error::InappropriateMessage { .. }
        | rustls::Error::InappropriateHandshakeMessage { .. } => {
            AlertDescription::UnexpectedMessage
        }
        rustls::Error::PeerIncompatible(_) => AlertDescription::HandshakeFailure,
        rustls::Error::NoApplicationProtocol => AlertDescription::NoApplicationProtocol,
        _ => AlertDescription::InternalError,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Handshake(error) | Error::Untold(error) => {
                write!(f, "the handshake failed: {error}")
            }
            Error::HandshakeTimedOut => f.write_str("the handshake took too long"),
            Error::HandshakeTooLong => f.write_str("the client's handshake is too long"),
            Error::ClosedInHandshake => f.write_str("the client closed during the handshake"),
            Error::NotTls => f.write_str("the client does not speak TLS"),
            Error::PlainHttp { .. } => f.write_str("the client speaks HTTP without TLS"),
            Error::OldVersion(version) => write!(
                f,
                "the client offers no version that is newer than {version:#06x}; TLS 1.2 is \
                 {:#06x}",
                0x0303
            ),
            Error::InappropriateFallback => f.write_str(
                "the client fell back to TLS 1.2, though both sides have 1.3: something in between \
                 interferes",
            ),
            Error::BadRecord => f.write_str("a record is not authentic"),
            Error::OversizedRecord => f.write_str("a record is too long"),
            Error::UnexpectedRecord { content_type } => {
                write!(f, "an unexpected record of type {content_type}")
            }
            Error::RecordVersion(version) => write!(f, "a record of version {version:#06x}"),
            Error::UnexpectedMessage { handshake_type } => {
                write!(
                    f,
                    "an unexpected handshake message of type {handshake_type}"
                )
            }
            Error::Malformed(what) => write!(f, "malformed: {what}"),
            Error::IllegalParameter(what) => write!(f, "an illegal value: {what}"),
            Error::TooMany(what) => write!(f, "too many {what}"),
            Error::PeerAlert(alert) => write!(f, "the client sent the alert {alert:?}"),
            Error::KeyUsedUp => f.write_str("the key has sealed as many records as it may"),
            Error::Unsupported => f.write_str("a suite was negotiated that is not supported"),
        }
    }
}

impl std::error::Error for Error {}
