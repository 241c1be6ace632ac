//! Name of a handle, by which a process that inherited or received the descriptor recognises it.
//!
//! The broker binds the host's end of each handle to an abstract address (unix(7)), which
//! getpeername(2) returns to any process with the other end: after `exec`, or out of an
//! `SCM_RIGHTS` message. The name contains the handle's number, and a tag that requires the
//! application's key (SipHash-2-4, Aumasson and Bernstein, 2012), since other processes may see
//! names. A name is no proof, because it can be copied in another network namespace. The proof is
//! that the broker's user has made the handle (`SO_PEERCRED`).
//! user of the broker has made it (`SO_PEERCRED`).

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::attach::Key;
use crate::ids::HandleId;

/// Prefix of each name, after the zero byte of an abstract address.
pub const PREFIX: &str = "splitway/";

/// Returns the name of a handle, without the leading zero byte.
pub fn encode(key: &Key, handle: HandleId) -> String {
    format!("{PREFIX}{}/{:016x}", handle.0, tag(key, handle))
}

/// Returns the handle of a name; `None` unless it belongs to the application with this key.
pub fn decode(key: &Key, name: &[u8]) -> Option<HandleId> {
    let rest = name.strip_prefix(PREFIX.as_bytes())?;
    let (number, _) = std::str::from_utf8(rest).ok()?.split_once('/')?;
    let handle = HandleId(number.parse().ok()?);
    (encode(key, handle).as_bytes() == name).then_some(handle)
}

fn tag(key: &Key, handle: HandleId) -> u64 {
    let mut hasher = SipHasher24::new_with_key(&key.bytes());
    hasher.write_u32(handle.0.to_le());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_of_its_application_reads_a_name() {
        let [own, other] = [1, 2].map(|byte| Key::new([byte; Key::BYTES]));
        let name = encode(&own, HandleId(70_000));
        assert_eq!(decode(&own, name.as_bytes()), Some(HandleId(70_000)));
        assert_eq!(decode(&other, name.as_bytes()), None);
        // Longest abstract address (unix(7)).
        assert!(encode(&own, HandleId(u32::MAX)).len() <= 107);
    }

    #[test]
    fn other_names_are_of_no_handle() {
        let key = Key::new([7; Key::BYTES]);
        let name = encode(&key, HandleId(5));
        let longer = format!("{name}0");
        let padded = name.replace("/5/", "/05/");
        for bad in [
            "",
            "splitway/",
            "splitway/5",
            "splitway/x/0",
            &longer,
            &padded,
        ] {
            assert_eq!(decode(&key, bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(decode(&key, b"splitway/\xff/"), None);
    }
}
