//! The key by which another program image joins the application of a process.

use std::fmt;
use std::str::FromStr;

use socket_channel::AppId;
use socket_channel::attach::Key;

/// The number and the secret of an application, as text `NUMBER:HEX` in `SPLITWAY_APPLICATION`. A
/// process with the key may join the application if its user also runs one of the application's
/// processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplicationKey {
    pub(crate) app: AppId,
    pub(crate) key: Key,
}

/// The text is no key of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadApplicationKey;

impl fmt::Display for BadApplicationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is not NUMBER:HEX with 32 digits")
    }
}

impl std::error::Error for BadApplicationKey {}

impl fmt::Display for ApplicationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = u128::from_be_bytes(self.key.bytes());
        write!(f, "{}:{bytes:032x}", self.app.0)
    }
}

impl FromStr for ApplicationKey {
    type Err = BadApplicationKey;

    fn from_str(text: &str) -> Result<ApplicationKey, BadApplicationKey> {
        let (app, key) = text.split_once(':').ok_or(BadApplicationKey)?;
        let app = app.parse().map_err(|_| BadApplicationKey)?;
        if key.len() != 2 * Key::BYTES || !key.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(BadApplicationKey);
        }
        let key = u128::from_str_radix(key, 16).map_err(|_| BadApplicationKey)?;
        Ok(ApplicationKey {
            app: AppId(app),
            key: Key::new(key.to_be_bytes()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_written() {
        let key = ApplicationKey {
            app: AppId(7),
            key: Key::new(*b"\x000123456789abcde"),
        };
        let text = key.to_string();
        assert_eq!(text, "7:00303132333435363738396162636465");
        assert_eq!(text.parse(), Ok(key));
    }

    #[test]
    fn other_texts_are_no_keys() {
        let short = "7:0030313233343536373839616263646";
        let signed = "7:+0303132333435363738396162636465";
        for bad in ["", "7", "7:", "x:00", short, signed] {
            assert_eq!(
                bad.parse::<ApplicationKey>(),
                Err(BadApplicationKey),
                "{bad}"
            );
        }
    }
}
