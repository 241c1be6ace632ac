//! Files with a key that two machines share, or with the secret of QUIC: 64 hexadecimal digits,
//! which only their owner may read.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use contract::ethernet::PreSharedKey;
use rustix::rand::{GetRandomFlags, getrandom};
use zeroize::Zeroizing;

use failure::Failure;

/// A secret, which is erased from memory with this value.
pub type SecretBytes = Zeroizing<[u8; 32]>;

/// Longest key with white space around it, generously.
const FILE_BYTES_MAX: u64 = 1024;

/// Reads a key.
pub fn read(path: &Path) -> Result<PreSharedKey, Failure> {
    let what = format!("key file {}", path.display());
    let text = read_private(
        path,
        &what,
        &format!(
            "Make one with `splitway keygen {}`, and copy it to the other machine.",
            path.display()
        ),
        "Anyone who has the key can read every file of the NIC stack",
    )?;
    parse(&what, &text)
}

/// Reads the secret of QUIC.
pub fn read_quic_secret(path: &Path) -> Result<SecretBytes, Failure> {
    let what = format!("quic.secret_file {}", path.display());
    let how_to = format!("Make one with `splitway keygen {}`.", path.display());
    let why = "Anyone who has it can end connections of clients that it sees packets of";
    let text = read_private(path, &what, &how_to, why)?;
    Ok(Zeroizing::new(*parse(&what, &text)?.bytes()))
}

fn parse(what: &str, text: &str) -> Result<PreSharedKey, Failure> {
    PreSharedKey::from_hex(text).map_err(|error| {
        Failure::input(what, error)
            .remedy("`splitway keygen FILE` makes one; so does `openssl rand -hex 32`.")
    })
}

/// Reads the text of a file that only its owner may read. `how_to` describes how to make the file;
/// `why` is the reason for its privacy.
pub fn read_private(
    path: &Path,
    what: &str,
    how_to: &str,
    why: &str,
) -> Result<Zeroizing<String>, Failure> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Failure::input(what, "there is none").remedy(how_to),
        _ => Failure::input(what, error),
    };
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(Failure::input(
            what,
            format!("others than its owner have access to it (mode {mode:04o})"),
        )
        .remedy(format!(
            "{why}: make a new one, or, if it was not read by others, chmod 600 {}",
            path.display()
        )));
    }
    // Growing the string would leave copies of the secret in memory.
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize + 1));
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(failed)?;
    Ok(text)
}

/// Writes a new key to a file, which must not exist.
pub fn generate(path: &Path) -> Result<(), Failure> {
    let what = format!("key file {}", path.display());
    let mut bytes = [0; 32];
    // Up to 256 bytes come whole or not at all.
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|errno| Failure::broken("asking the kernel for random bytes", errno))?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::input(&what, "there is one already")
            .remedy("Choose another name, or remove it."),
        _ => Failure::input(&what, error),
    })?;
    writeln!(file, "{}", PreSharedKey::new(bytes).to_hex())
        .map_err(|error| Failure::broken(&what, error))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_generated_key_is_read_back_and_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
        generate(&one).unwrap();
        generate(&other).unwrap();
        let key = read(&one).unwrap();
        assert_ne!(key, read(&other).unwrap());
        let failure = generate(&one).unwrap_err();
        assert!(failure.to_string().contains("already"), "{failure}");
        assert_eq!(read(&one).unwrap(), key);
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        generate(&path).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o666] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let failure = read(&path).unwrap_err().to_string();
            assert!(failure.contains("chmod 600"), "{failure}");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        read(&path).unwrap();
    }

    #[test]
    fn what_is_no_key_says_how_to_make_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let failures = || {
            let failures = [read(&path).map(|_| ()), read_quic_secret(&path).map(|_| ())];
            failures.map(|failed| failed.unwrap_err().to_string())
        };
        for failure in failures() {
            assert!(failure.contains("splitway keygen"), "{failure}");
        }
        generate(&path).unwrap();
        for text in ["secret", "", &"0".repeat(64), &"3f".repeat(31)] {
            std::fs::write(&path, text).unwrap();
            for failure in failures() {
                assert!(failure.contains("openssl rand -hex 32"), "{failure}");
            }
        }
    }

    #[test]
    fn the_secret_of_quic_is_what_the_digits_say() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        generate(&path).unwrap();
        let digits = std::fs::read_to_string(&path).unwrap();
        let secret = read_quic_secret(&path).unwrap();
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, digits.trim());
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let failure = read_quic_secret(&path).unwrap_err().to_string();
        assert!(
            failure.contains("quic.secret_file") && failure.contains("chmod 600"),
            "{failure}"
        );
    }
}
