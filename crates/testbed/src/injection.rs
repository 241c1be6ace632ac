//! System calls injected into a running process by ptrace(2): they are subject to its restrictions.
//!
//! For x86-64. The process is stopped during the call, and then resumes where it was.

use std::fs::File;
use std::os::unix::fs::FileExt;

use nix::libc::user_regs_struct;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use rustix::process::Pid;

use crate::{Context, Failure, Result};

/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Distance of injected bytes below the stack pointer, beyond the red zone of leaf functions.
const BELOW_STACK_BYTES: u64 = 4096;

/// An argument of a system call.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// A number.
    Number(i64),
    /// A pointer to these bytes, fewer than 1 KiB.
    Bytes(&'a [u8]),
}

/// Makes the first thread of a process perform a system call; returns its result, an error as a
/// negated number. `None` if the call has ended the process.
pub fn system_call_within(
    pid: Pid,
    number: i64,
    arguments: &[Argument<'_>],
) -> Result<Option<i64>> {
    let traced = nix::unistd::Pid::from_raw(pid.as_raw_nonzero().get());
    let tried = || format!("a system call of process {traced}");
    ptrace::attach(traced).context(tried)?;
    let returned = call(traced, number, arguments);
    if let Ok(Some(_)) = returned {
        ptrace::detach(traced, None).context(tried)?;
    }
    returned
}

fn call(traced: nix::unistd::Pid, number: i64, arguments: &[Argument<'_>]) -> Result<Option<i64>> {
    let tried = || format!("a system call of process {traced}");
    await_stop(traced, Signal::SIGSTOP)?;
    let before = ptrace::getregs(traced).context(tried)?;
    let memory = File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{traced}/mem"))
        .context(tried)?;
    let mut place = (before.rsp - BELOW_STACK_BYTES) & !15;
    let mut values = [0; 6];
    for (value, argument) in values.iter_mut().zip(arguments) {
        *value = match argument {
            Argument::Number(number) => number.cast_unsigned(),
            Argument::Bytes(bytes) => {
                place -= 1024;
                memory.write_all_at(bytes, place).context(tried)?;
                place
            }
        };
    }
    let [rdi, rsi, rdx, r10, r8, r9] = values;
    let during = user_regs_struct {
        rip: instruction(traced, &memory)?,
        rax: number.cast_unsigned(),
        // An interrupted call must not restart.
        orig_rax: u64::MAX,
        rdi,
        rsi,
        rdx,
        r10,
        r8,
        r9,
        ..before
    };
    ptrace::setregs(traced, during).context(tried)?;
    ptrace::step(traced, None).context(tried)?;
    if !await_stop(traced, Signal::SIGTRAP)? {
        return Ok(None);
    }
    let after = ptrace::getregs(traced).context(tried)?;
    ptrace::setregs(traced, before).context(tried)?;
    Ok(Some(after.rax.cast_signed()))
}

/// Waits until the process has stopped for a signal; returns false if it has ended.
fn await_stop(traced: nix::unistd::Pid, wanted: Signal) -> Result<bool> {
    loop {
        let tried = || format!("waiting for process {traced}");
        match waitpid(traced, Some(WaitPidFlag::__WALL)).context(tried)? {
            WaitStatus::Stopped(_, signal) if signal == wanted => return Ok(true),
            WaitStatus::Stopped(_, signal) => ptrace::cont(traced, signal).context(tried)?,
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Ok(false),
            other => return Err(Failure::new(format!("{}: {other:?}", tried()))),
        }
    }
}

/// Returns the address of a `syscall` instruction in the process's executable mappings.
fn instruction(traced: nix::unistd::Pid, memory: &File) -> Result<u64> {
    let path = format!("/proc/{traced}/maps");
    let maps = std::fs::read_to_string(&path).context(|| path.clone())?;
    for line in maps.lines().filter(|line| line.contains(" r-xp ")) {
        let range = line.split_once(' ').and_then(|(it, _)| it.split_once('-'));
        let Some((start, end)) = range else { continue };
        let parse = |text| u64::from_str_radix(text, 16);
        let (Ok(start), Ok(end)) = (parse(start), parse(end)) else {
            continue;
        };
        let mut code = vec![0; (end - start) as usize];
        if memory.read_exact_at(&mut code, start).is_ok()
            && let Some(at) = code.windows(2).position(|bytes| bytes == SYSCALL)
        {
            return Ok(start + at as u64);
        }
    }
    Err(Failure::new(format!(
        "no system call in the code of process {traced}"
    )))
}
