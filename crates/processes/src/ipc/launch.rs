//! How a process gets its settings: the supervisor starts it with a control socket on its standard
//! input, which already holds one packet: a sealed file with the settings, and the further sockets
//! that the process needs.
//!
//! A long-running supervisor may start a newer program as its NIC process, so a field added to
//! [`NicSettings`](crate::nic::NicSettings) has a default.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;

use config::Text;
use config::log_level::LogLevel;
use failure::Failure;
use netsetup::seqpacket;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ipc::child::{self, Child};
use crate::ipc::fd_passing;
use crate::ipc::log_lines;
use crate::ipc::sealed;

/// Settings of one kind of process, all of which are passed when it starts; later changes have
/// messages of their own.
pub trait Settings: Serialize + DeserializeOwned {
    /// Name of the process in messages: `host process`.
    const NAME: &'static str;
    /// The command that runs it.
    const COMMAND: &'static str;
    /// Its name for ps(1); at most 15 bytes.
    const TASK_NAME: &'static CStr;
}

/// Contents of the sealed file.
#[derive(Serialize, Deserialize)]
struct Envelope<S> {
    /// Level of the process's log.
    log: Text<LogLevel>,
    settings: S,
}

/// In a process: its settings and sockets.
pub struct Launched<S> {
    /// Its settings.
    pub settings: S,
    /// Socket to the supervisor.
    pub control: OwnedFd,
    /// Further sockets.
    sockets: std::vec::IntoIter<OwnedFd>,
}

impl<S: Settings> Launched<S> {
    /// Takes the next further socket; fails if there is none.
    pub fn take_socket(&mut self) -> Result<OwnedFd, Failure> {
        let socket = self.take_any_socket();
        socket.ok_or_else(|| Failure::broken(S::NAME, "a socket of its own did not arrive"))
    }

    /// Takes the next further socket, if there is one.
    pub fn take_any_socket(&mut self) -> Option<OwnedFd> {
        self.sockets.next()
    }
}

/// Starts `program` as the process that has these settings. Returns the process, and the
/// supervisor's end of its control socket.
pub fn start<S: Settings>(
    program: &Path,
    settings: &S,
    log: LogLevel,
    sockets: &[&OwnedFd],
) -> Result<(Child, OwnedFd), Failure> {
    start_with_stderr(program, settings, log, sockets, Stdio::inherit())
}

/// Starts a process whose log goes to `stderr`; otherwise like [`start`].
pub fn start_with_stderr<S: Settings>(
    program: &Path,
    settings: &S,
    log: LogLevel,
    sockets: &[&OwnedFd],
    stderr: Stdio,
) -> Result<(Child, OwnedFd), Failure> {
    let failed = |error: io::Error| Failure::broken(format!("starting the {}", S::NAME), error);
    let envelope = Envelope {
        log: Text(log),
        settings,
    };
    let (own, control) = seqpacket::pair().map_err(|errno| failed(errno.into()))?;
    let settings = serde_json::to_vec(&envelope)
        .map_err(io::Error::other)
        .and_then(|bytes| sealed::write(&[&bytes]))
        .map_err(failed)?;
    let descriptors: Vec<_> = [&settings]
        .into_iter()
        .chain(sockets.iter().copied())
        .map(AsFd::as_fd)
        .collect();
    fd_passing::pass_all(&own, &(), &descriptors).map_err(|errno| failed(errno.into()))?;
    let child = Child::spawn(S::NAME, program, [S::COMMAND.into()], control, stderr)?;
    Ok((child, own))
}

/// In a process: takes its settings, binds its life to the supervisor's, and starts its log.
pub fn enter<S: Settings>() -> Result<Launched<S>, Failure> {
    let control = child::adopt_control_socket(S::TASK_NAME)?;
    let what = "taking the settings from the supervisor";
    let broken = |why: &dyn std::fmt::Display| Failure::broken(what, why);
    // The packet was sent before this process began.
    let received = fd_passing::receive_all::<()>(&control, &mut [0; 16])?;
    let (_, descriptors) = received.ok_or_else(|| broken(&"they did not arrive"))?;
    let mut descriptors = descriptors.into_iter();
    let settings = descriptors
        .next()
        .ok_or_else(|| broken(&"they did not arrive"))?;
    let bytes = sealed::read(&settings).map_err(|errno| broken(&errno))?;
    let envelope: Envelope<S> = serde_json::from_slice(&bytes).map_err(|error| {
        broken(&error)
            .remedy("The program was replaced by another version: restart the server to use that.")
    })?;
    log_lines::start_of_process(envelope.log.0);
    Ok(Launched {
        settings: envelope.settings,
        control,
        sockets: descriptors,
    })
}

/// Serializes paths as bytes: they need not be UTF-8.
pub mod path {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Serializes a path as bytes.
    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(serializer)
    }

    /// Deserializes a path from bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Ok(OsString::from_vec(Vec::deserialize(from)?).into())
    }

    /// Serializes optional paths as bytes.
    pub mod option {
        use super::*;

        /// Serializes an optional path as bytes.
        pub fn serialize<S: Serializer>(
            path: &Option<PathBuf>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            path.as_ref()
                .map(|path| path.as_os_str().as_bytes())
                .serialize(serializer)
        }

        /// Deserializes an optional path from bytes.
        pub fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<PathBuf>, D::Error> {
            let bytes = Option::<Vec<u8>>::deserialize(from)?;
            Ok(bytes.map(|bytes| OsString::from_vec(bytes).into()))
        }
    }
}
