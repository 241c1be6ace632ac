//! In the supervisor: has the host process trace connections for a client.

use std::os::fd::{AsFd, OwnedFd};

use crate::supervisor::control_socket::Control;
use crate::supervisor::stat;
use processes::ipc::messages::ToHost;
use processes::ipc::qlog_request::QlogRequest;

/// Answers `splitway qlog`.
pub(crate) fn answer(control: &mut Control, wanted: QlogRequest, to_host: &OwnedFd) {
    match stat::ask_host(to_host, &ToHost::Qlog(wanted)) {
        Ok(pipe) => control.answer_with(Ok(String::new()), &[pipe.as_fd()]),
        Err(failure) => control.answer(Err(failure.to_string())),
    }
}
