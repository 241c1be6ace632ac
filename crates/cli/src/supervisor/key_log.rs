//! The file of `--key-log`: opened before anything is served, and written by the observer.

use std::os::fd::OwnedFd;
use std::path::Path;

use config::Config;
use failure::Failure;
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::Errno;

/// An open key log.
#[derive(Debug)]
pub(crate) struct KeyLogFile {
    /// Its path, for messages.
    pub(crate) name: String,
    pub(crate) file: OwnedFd,
}

impl KeyLogFile {
    /// Opens the file, to be appended to, and makes it if it is not there. Fails if the server has
    /// no secrets to log, or if others than the file's owner could read them.
    pub(crate) fn open(path: &Path, config: &Config) -> Result<Self, Failure> {
        let what = format!("--key-log {}", path.display());
        if !config.has_tls() {
            let why = "no listener of this server speaks TLS, so that there are no secrets to log";
            return Err(Failure::input(what, why)
                .remedy("Add --tls-listen PORT (tls = true of a [[listen]]), or leave it out."));
        }
        let file = open(path, &what)?;
        tracing::warn!(
            "{what}: FOR DEBUGGING ONLY. The secrets of every TLS and QUIC connection are written \
             there; who can read that file can read, and forge, all that clients and this server \
             say to each other. Remove it when you are done"
        );
        Ok(Self {
            name: path.display().to_string(),
            file,
        })
    }
}

fn open(path: &Path, what: &str) -> Result<OwnedFd, Failure> {
    let failed = |errno: Errno| {
        let failure = Failure::input(what, errno);
        match errno {
            Errno::NOENT => failure.remedy("Make its directory first."),
            Errno::ISDIR => failure.remedy("Name a file in it."),
            Errno::LOOP => failure.remedy("It is a symbolic link: name a file."),
            Errno::ACCESS | Errno::PERM => {
                failure.remedy("Choose a place where the user who runs the server may write.")
            }
            _ => failure.remedy("Choose another place."),
        }
    };
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::CLOEXEC
        // Neither is another's link followed, nor is a pipe's reader waited for.
        | OFlags::NOFOLLOW
        | OFlags::NOCTTY
        | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    let found = fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(Failure::input(what, "it is not a regular file")
            .remedy("Name a file, or one that is not there yet."));
    }
    let mode = found.st_mode & 0o777;
    if mode & 0o077 != 0 {
        let why = format!("others than its owner have access to it (mode {mode:04o})");
        return Err(Failure::input(what, why).remedy(format!(
            "Remove it, or chmod 600 {}: secrets are for one user alone.",
            path.display()
        )));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_its_owners_alone_and_appended_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        for line in ["one\n", "two\n"] {
            let file = open(&path, "--key-log").unwrap();
            rustix::io::write(&file, line.as_bytes()).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_others_could_read_or_have_made_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        fs::write(place("keys"), "").unwrap();
        fs::set_permissions(place("keys"), Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(place("elsewhere"), place("link")).unwrap();
        for (path, why) in [
            (place("keys"), "(mode 0640)"),
            (place("link"), "link"),
            (place("missing/keys"), "Make its directory first"),
            (directory.path().to_owned(), "Name a file in it"),
            ("/dev/null".into(), "not a regular file"),
        ] {
            let failure = open(&path, "--key-log").unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            let text = failure.to_string();
            assert!(text.contains(why), "{}: {text}", path.display());
        }
        assert!(!place("elsewhere").exists());
    }
}
