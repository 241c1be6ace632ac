//! One run: the host process on its core, and its surroundings on another.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use contract::control::{self, HostSocket};
use host::monotonic_us;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, recv, shutdown, socketpair,
};
use testbed::process::Process;
use testbed::procfs::{cpu_ns, memory};
use testbed::{Context, Failure, Result};

use super::host_process::Account;
use super::stub_nic::{Counts, Load, StubNic};
use crate::SERVER_CORE;
use crate::servers::server_set::pinned;

/// Longest time without any response before the run is given up.
const STALL: Duration = Duration::from_secs(10);

/// Least time before the measurement: enough for the host's tables and windows to grow.
const WARM_UP: Duration = Duration::from_millis(500);

/// Least number of responses for each connection before the measurement.
const WARM_UP_RESPONSES: u64 = 2;

/// Time limit for the host process to end.
const END: Duration = Duration::from_secs(5);

/// Measurements of a run, between its warm-up and its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Time by the clock.
    pub(crate) elapsed_ns: u64,
    /// CPU time of the host process, user and system.
    pub(crate) host_cpu_ns: u64,
    /// Events in that time.
    pub(crate) counts: Counts,
    /// Memory of the host process at the end.
    pub(crate) host_bytes: u64,
    /// The host process's report, over its lifetime.
    pub(crate) account: Account,
}

impl Run {
    /// Returns gigabits of files for each second of the host's CPU time.
    pub(crate) fn gbit_per_cpu_s(&self) -> f64 {
        8.0 * self.counts.body_bytes as f64 / self.host_cpu_ns as f64
    }

    /// Returns gigabits of files for each second of real time.
    pub(crate) fn gbit_per_s(&self) -> f64 {
        8.0 * self.counts.body_bytes as f64 / self.elapsed_ns as f64
    }

    /// Returns the host's CPU time as a part of the elapsed time.
    pub(crate) fn host_share(&self) -> f64 {
        self.host_cpu_ns as f64 / self.elapsed_ns as f64
    }
}

/// Returns an upper estimate of the time around a load's measured span: processes, handshakes,
/// responses, and the end.
pub(super) fn seconds_before(load: &Load) -> f64 {
    const CONNECTIONS_PER_S: f64 = 20_000.0;
    0.3 + WARM_UP.as_secs_f64() + load.connections as f64 / CONNECTIONS_PER_S
}

struct Sample {
    at: Instant,
    host_cpu_ns: u64,
    counts: Counts,
}

/// Runs a load for `seconds` seconds, not counting its warm-up.
pub(crate) fn run(load: &Load, seconds: f64) -> Result<Run> {
    let (contract, contract_of_host) = pair()?;
    let (link, link_of_host) = pair()?;
    let executable = std::env::current_exe().context(|| "finding this program".into())?;
    let mut host = Process::spawn(
        pinned(&SERVER_CORE.to_string(), &executable)
            .arg("ceiling-host")
            .args(["--superpacket-bytes", &load.superpacket_bytes.to_string()])
            .stdin(contract_of_host)
            .stdout(link_of_host),
    )?;
    let mut nic = control::nic_hello(contract, 1).context(|| "meeting the host".into())?;
    let mut session = control::host_hello(link, 1).context(|| "meeting the host".into())?;
    let mut stub = StubNic::new(
        *load,
        nic.channels.pop().expect("one was asked for"),
        session.channels.pop().expect("one was asked for"),
    )?;

    let sample = |stub: &StubNic| -> Result<Sample> {
        Ok(Sample {
            at: Instant::now(),
            host_cpu_ns: cpu_ns(host.pid())?,
            counts: stub.counts(),
        })
    };
    let begun = Instant::now();
    let wanted = WARM_UP_RESPONSES * load.connections as u64;
    turn_until(&mut stub, |stub| {
        stub.is_settled() && stub.counts().responses >= wanted && begun.elapsed() >= WARM_UP
    })?;
    let before = sample(&stub)?;
    let span = Duration::from_secs_f64(seconds);
    turn_until(&mut stub, |_| before.at.elapsed() >= span)?;
    let after = sample(&stub)?;
    let host_bytes = memory(host.pid())?.resident_bytes;

    let account = end(&mut stub, &session.socket)?;
    let status = host.wait(END)?;
    if !status.success() || account.invalid > 0 {
        return Err(Failure::new(format!(
            "the host process ends with {status}: {account:?}"
        )));
    }
    let total = stub.counts();
    if !(total.responses..=total.requests).contains(&account.requests) {
        return Err(Failure::new(format!(
            "clients have sent {} requests and received {} responses, and the server knows of {}",
            total.requests, total.responses, account.requests
        )));
    }
    Ok(Run {
        elapsed_ns: (after.at - before.at).as_nanos() as u64,
        host_cpu_ns: after.host_cpu_ns - before.host_cpu_ns,
        counts: after.counts.since(&before.counts),
        host_bytes,
        account,
    })
}

/// Works until `is_so` is true.
fn turn_until(stub: &mut StubNic, is_so: impl Fn(&StubNic) -> bool) -> Result<()> {
    let mut responses = stub.counts().responses;
    let mut last = Instant::now();
    while !is_so(stub) {
        if !stub.turn(monotonic_us())? {
            std::hint::spin_loop();
        }
        if stub.counts().responses > responses {
            responses = stub.counts().responses;
            last = Instant::now();
        } else if last.elapsed() > STALL {
            return Err(Failure::new(format!(
                "no response for {STALL:?}: {:?}",
                stub.counts()
            )));
        }
    }
    Ok(())
}

/// Ends the host process, and receives its report.
fn end(stub: &mut StubNic, socket: &HostSocket) -> Result<Account> {
    shutdown(socket, Shutdown::Write).context(|| "telling the host to end".into())?;
    let begun = Instant::now();
    let mut bytes = [0; 4096];
    loop {
        match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, length @ 1..)) => {
                let account = serde_json::from_slice(&bytes[..length]);
                return account.context(|| "reading the host's account".into());
            }
            Err(Errno::AGAIN) if begun.elapsed() < END => stub.drain(),
            other => {
                return Err(Failure::new(format!(
                    "the host process does not say what it has done: {other:?}"
                )));
            }
        }
    }
}

fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .context(|| "creating a pair of sockets".into())
}
