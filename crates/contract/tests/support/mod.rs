//! Messages as bytes, with what holds for each of them.
#![allow(dead_code, reason = "no test needs all of it")]

use contract::{Command, Event};

pub(crate) fn encoded(command: &Command<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    command.encode(&mut bytes);
    assert_eq!(bytes[..4], (bytes.len() as u32).to_le_bytes());
    bytes
}

pub(crate) fn encoded_event(event: &Event) -> Vec<u8> {
    let mut bytes = Vec::new();
    event.encode(&mut bytes);
    assert_eq!(bytes[..4], (bytes.len() as u32).to_le_bytes());
    bytes
}

/// The rule that a command breaks, by the check and by the decoder.
pub(crate) fn rule_broken_by(command: &Command<'_>) -> &'static str {
    let rule = command.check().unwrap_err();
    let error = Command::decode(&encoded(command)).unwrap_err();
    assert_eq!(error.rule, rule);
    rule
}
