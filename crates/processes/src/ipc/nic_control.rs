//! Follows the supervisor's messages, in a NIC process or the relay to a remote one.

use std::os::fd::OwnedFd;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};

use crate::ipc::fd_passing;
use crate::ipc::log_lines;
use crate::ipc::messages::ToNic;

/// Longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 256;

/// Starts a thread that handles the supervisor's messages on `control` until the supervisor ends.
/// To be called after the process is confined, since the thread keeps the rights that it starts
/// with, and before the process loses the right to start threads.
pub fn follow(control: OwnedFd) {
    let started = thread::Builder::new()
        .name("control".into())
        .stack_size(64 << 10)
        .spawn(move || {
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            loop {
                let mut fds = [PollFd::new(&control, PollFlags::IN)];
                if rustix::io::retry_on_intr(|| poll(&mut fds, None)).is_err() {
                    return;
                }
                match fd_passing::receive(&control, &mut buffer) {
                    Ok(Some((ToNic::LogLevel(level), _))) => log_lines::set_level(level.0),
                    Ok(None) => {}
                    // The kernel ends this process with its supervisor.
                    Err(_) => return,
                }
            }
        });
    if let Err(error) = started {
        tracing::warn!(%error, "no thread for the supervisor: the log level stays");
    }
}
