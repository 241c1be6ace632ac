//! `perf`, where it is installed and permitted: system calls of a process, and a profile of its
//! time.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use testbed::process::{Process, run, signal, tool};
use testbed::{Context, Failure, Result};

/// Time limit for `perf` to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sampling rate, per second of CPU time: no divisor of the kernel's own clock.
const SAMPLES_PER_S: u32 = 1999;

/// The tracepoint at the entry of each system call.
const SYSTEM_CALL: &str = "raw_syscalls:sys_enter";

/// Counts the system calls of a process.
#[derive(Debug)]
pub(crate) struct CallCounter {
    perf: Process,
}

impl CallCounter {
    /// `None` if they cannot be counted.
    pub(crate) fn start(pid: Pid) -> Option<CallCounter> {
        let mut command = Command::new("perf");
        command
            .args(["stat", "-x", ",", "-e", SYSTEM_CALL, "-p"])
            .arg(pid.as_raw_nonzero().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let perf = Process::spawn(&mut command).ok()?;
        Some(CallCounter { perf })
    }

    /// Returns the number of calls; `None` if they could not be counted.
    pub(crate) fn stop(mut self) -> Option<u64> {
        // If `perf` has failed and ended, there is no process to signal.
        let _ = signal(self.perf.pid(), Signal::INT);
        self.perf.wait(PATIENCE).ok()?;
        let mut printed = String::new();
        let mut stderr = self.perf.child().stderr.take()?;
        std::io::Read::read_to_string(&mut stderr, &mut printed).ok()?;
        calls_in(&printed)
    }
}

/// The count in a line of `perf stat -x,`: `144,,raw_syscalls:sys_enter,2149812,100.00,,`.
fn calls_in(printed: &str) -> Option<u64> {
    let mut lines = printed.lines();
    let line = lines.find(|line| line.contains(SYSTEM_CALL))?;
    line.split(',').next()?.parse().ok()
}

/// Makes the kernel's events visible here, where that is permitted. `perf` looks them up in the
/// file system.
pub(crate) fn show_events() {
    // Without the events, system calls are not counted, and the report states so.
    let _ = run(&mut tool("mount -t tracefs tracefs /sys/kernel/tracing"));
}

/// Greatest `kernel.perf_event_paranoid` that lets unprivileged users profile the kernel.
const PARANOID_MAX: i32 = 1;

/// Fails if a profile would lack the kernel's part.
pub(crate) fn must_see_kernel() -> Result<()> {
    let path = "/proc/sys/kernel/perf_event_paranoid";
    let text = std::fs::read_to_string(path).context(|| format!("reading {path}"))?;
    if kernel_is_seen(crate::is_privileged(), &text) {
        Ok(())
    } else {
        Err(Failure::new(format!(
            "profiling: without privileges the kernel's functions are not seen, and most time is \
             spent there; run it as root, or: sudo sysctl kernel.perf_event_paranoid={PARANOID_MAX}"
        )))
    }
}

fn kernel_is_seen(is_privileged: bool, paranoid: &str) -> bool {
    let is_open = |level: i32| level <= PARANOID_MAX;
    is_privileged || paranoid.trim().parse().is_ok_and(is_open)
}

/// Samples a process by the software clock.
#[derive(Debug)]
pub(crate) struct Profiler {
    perf: Process,
}

/// A sampled call chain, the innermost function first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stack {
    pub(crate) functions: Vec<String>,
    /// The innermost is one of the kernel's.
    pub(crate) is_in_kernel: bool,
}

impl Profiler {
    /// Starts `perf`, which writes its samples to `file`.
    pub(crate) fn start(pid: Pid, file: &Path) -> Result<Profiler> {
        let mut command = Command::new("perf");
        command
            .args(["record", "--quiet", "-e", "cpu-clock", "-g", "-F"])
            .arg(SAMPLES_PER_S.to_string())
            .arg("-o")
            .arg(file)
            .arg("-p")
            .arg(pid.as_raw_nonzero().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let perf = Process::spawn(&mut command)
            .context(|| "profiling, for which `perf` must be installed".into())?;
        Ok(Profiler { perf })
    }

    /// Ends the profile, and returns the sampled stacks.
    pub(crate) fn stop(mut self, file: &Path) -> Result<Vec<Stack>> {
        let _ = signal(self.perf.pid(), Signal::INT);
        self.perf.wait(PATIENCE)?;
        if !file.exists() {
            return Err(Failure::new(
                "`perf record -e cpu-clock` has recorded nothing",
            ));
        }
        let mut command = tool("perf script -F ip,sym -i");
        command.arg(file);
        Ok(stacks_in(&run(&mut command)?))
    }
}

/// Parses the stacks that `perf script -F ip,sym` prints: a line for each function, and an empty
/// one after each stack.
fn stacks_in(printed: &str) -> Vec<Stack> {
    let stacks = printed.split("\n\n").map(|stack| {
        let lines = stack.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty());
        // "ffffffff81000000 tcp_sendmsg_locked"
        let frames = lines.map(|line| line.split_once(' ').unwrap_or((line, "")));
        let (addresses, functions): (Vec<&str>, Vec<&str>) = frames.unzip();
        Stack {
            functions: functions.iter().map(|it| it.trim().to_owned()).collect(),
            is_in_kernel: addresses.first().is_some_and(|it| is_of_kernel(it)),
        }
    });
    stacks.filter(|stack| !stack.functions.is_empty()).collect()
}

/// Returns true for an address in the upper half, which is the kernel's.
fn is_of_kernel(address: &str) -> bool {
    u64::from_str_radix(address, 16).is_ok_and(|address| address > u64::MAX / 2)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a stack of `functions`, the innermost first.
    pub(crate) fn stack(is_in_kernel: bool, functions: &[&str]) -> Stack {
        Stack {
            functions: functions.iter().map(|&name| name.to_owned()).collect(),
            is_in_kernel,
        }
    }

    #[test]
    fn counts_are_found_and_complaints_are_none() {
        let line = "144,,raw_syscalls:sys_enter,2149812,100.00,,\n";
        assert_eq!(calls_in(line), Some(144));
        assert_eq!(
            calls_in("<not counted>,,raw_syscalls:sys_enter,0,100.00,,"),
            None
        );
        assert_eq!(calls_in("No permission"), None);
    }

    #[test]
    fn a_profile_without_the_kernel_is_none() {
        assert!(kernel_is_seen(true, "3\n"));
        assert!(kernel_is_seen(false, "1\n") && kernel_is_seen(false, "-1\n"));
        assert!(!kernel_is_seen(false, "2\n"));
    }

    #[test]
    fn stacks_are_distinguished() {
        let printed = "\
        ffffffff81e6f1a0 tcp_write_xmit
        ffffffff81e70000 do_syscall_64
            7f3c5a91b2ea sendfile64

            55d0c0ffee00 ngx_http_process_request_line

";
        let found = stacks_in(printed);
        let expected = [
            stack(true, &["tcp_write_xmit", "do_syscall_64", "sendfile64"]),
            stack(false, &["ngx_http_process_request_line"]),
        ];
        assert_eq!(found, expected);
    }
}
