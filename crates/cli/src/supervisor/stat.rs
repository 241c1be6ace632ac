//! The supervisor's part of `splitway stat`: the state of the supervisor and its processes, and the
//! request to the host process for the rest.

use std::os::fd::{AsFd, OwnedFd};

use failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::supervisor::children::{Children, Role};
use crate::supervisor::control_socket::Control;
use crate::supervisor::fetcher::FetcherSupervisor;
use crate::supervisor::nic::NicSupervisor;
use processes::ipc::fd_passing;
use processes::ipc::messages::ToHost;
use processes::ipc::stat_report::{Process, Server};

/// Size of the pipe, in bytes: the most for an unprivileged user by default
/// (`/proc/sys/fs/pipe-max-size`).
const PIPE_BYTES: usize = 1 << 20;

/// Answers `splitway stat`.
pub(crate) fn answer(
    control: &mut Control,
    children: &Children,
    nics: (&[NicSupervisor], &FetcherSupervisor),
    to_host: &OwnedFd,
) {
    let pipe = ask_host(to_host, &ToHost::Stat).inspect_err(|failure| tracing::warn!("{failure}"));
    let mut server = server(children, nics);
    server.is_host_asked = pipe.is_ok();
    let text = serde_json::to_string(&server).map_err(|error| error.to_string());
    let pipe: Vec<_> = pipe.iter().map(AsFd::as_fd).collect();
    control.answer_with(text, &pipe);
}

/// Asks the host process; returns the read end of the pipe that it writes to.
pub(crate) fn ask_host(to_host: &OwnedFd, question: &ToHost) -> Result<OwnedFd, Failure> {
    let what = "asking the host process";
    // The kernel reports the socket writable while three quarters of its buffer are free: repeated
    // requests to a stalled process leave room for NIC processes and certificates.
    let mut fds = [PollFd::new(to_host, PollFlags::OUT)];
    let is_taken = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())));
    if is_taken.is_ok_and(|ready| ready == 0) {
        let why = "it has not taken what it was asked before";
        return Err(Failure::broken(what, why));
    }
    let ask = || -> rustix::io::Result<OwnedFd> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A smaller pipe is slower, but sufficient.
        if let Err(errno) = fcntl_setpipe_size(&writer, PIPE_BYTES) {
            tracing::debug!("a pipe remains small: {errno}");
        }
        fd_passing::pass(to_host, question, Some(&writer))?;
        Ok(reader)
    };
    ask().map_err(|errno| Failure::broken(what, errno))
}

fn server(children: &Children, (nics, fetcher): (&[NicSupervisor], &FetcherSupervisor)) -> Server {
    Server {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        supervisor: Process::look_at(std::process::id()),
        host: children.pid(Role::Host).map(Process::look_at),
        is_host_asked: false,
        nics: nics.iter().map(|nic| nic.info(children)).collect(),
        fetcher: fetcher.info(children),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsetup::seqpacket;

    #[test]
    fn who_stands_still_is_not_asked_without_end() {
        let (to_host, host) = seqpacket::pair().unwrap();
        let mut readers = Vec::new();
        let failure = loop {
            match ask_host(&to_host, &ToHost::Stat) {
                Ok(reader) => readers.push(reader),
                Err(failure) => break failure.to_string(),
            }
            assert!(readers.len() < 1000, "it is asked without end");
        };
        assert!(failure.contains("has not taken"), "{failure}");
        // Room remains for more important messages.
        for _ in 0..readers.len() {
            fd_passing::pass(&to_host, &ToHost::Nic(0), Some(&host)).unwrap();
        }
    }
}
