//! In the supervisor: what it tells of itself and its processes, and how the host process is asked for the rest.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::control::Control;
use crate::error::Failure;
use crate::family::{Family, Role};
use crate::handover;
use crate::nic_keeper::NicKeeper;
use crate::stat::document::{Process, Server};

/// What a pipe is to hold, in bytes: as much as anybody may ask for (`/proc/sys/fs/pipe-max-size`).
const PIPE_BYTES: usize = 1 << 20;

/// Answers whoever has asked for connections.
pub(crate) fn answer(
    control: &mut Control,
    family: &Family,
    keepers: &[NicKeeper],
    to_host: &OwnedFd,
) {
    let answer = || -> Result<(String, OwnedFd), Failure> {
        let failed = |error| Failure::broken("telling of the server", error);
        let text = serde_json::to_string(&server(family, keepers)).map_err(failed)?;
        Ok((text, ask_host(to_host)?))
    };
    match answer() {
        Ok((text, pipe)) => control.answer_with(Ok(text), &[pipe.as_fd()]),
        Err(failure) => control.answer(Err(failure.to_string())),
    }
}

/// Asks the host process; returns what it writes to.
fn ask_host(to_host: &OwnedFd) -> Result<OwnedFd, Failure> {
    let ask = || -> rustix::io::Result<OwnedFd> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A smaller one takes longer, and does, too.
        if let Err(errno) = fcntl_setpipe_size(&writer, PIPE_BYTES) {
            tracing::debug!("a pipe remains small: {errno}");
        }
        handover::pass(to_host, handover::STAT, Some(&writer))?;
        Ok(reader)
    };
    ask().map_err(|errno| Failure::broken("asking the host process", errno))
}

fn server(family: &Family, keepers: &[NicKeeper]) -> Server {
    Server {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        supervisor: Process::look_at(std::process::id()),
        host: family.pid(Role::Host).map(Process::look_at),
        nics: keepers.iter().map(|keeper| keeper.info(family)).collect(),
    }
}

impl Process {
    /// What the kernel tells of it (proc(5)).
    pub(crate) fn look_at(pid: u32) -> Self {
        let read = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        // Its name may hold anything; behind that, the state is the third field.
        let stat = read("stat");
        let fields = stat.as_deref().and_then(|text| text.rsplit_once(')'));
        let cpu_ticks = fields.and_then(|(_, fields)| {
            let mut fields = fields.split_ascii_whitespace().skip(11);
            let mut ticks = || fields.next()?.parse::<u64>().ok();
            Some(ticks()? + ticks()?)
        });
        let statm = read("statm");
        let resident = statm.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
        let tick_us = 1_000_000 / rustix::param::clock_ticks_per_second().max(1);
        Self {
            pid,
            cpu_us: cpu_ticks.map(|ticks| ticks * tick_us),
            memory_bytes: resident.map(|pages| pages * rustix::param::page_size() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_its_number() {
        let own = Process::look_at(std::process::id());
        assert!(own.memory_bytes.unwrap() > 100_000, "{own:?}");
        assert!(own.cpu_us.is_some(), "{own:?}");
        let nobody = Process::look_at(u32::MAX);
        assert_eq!((nobody.cpu_us, nobody.memory_bytes), (None, None));
    }
}
