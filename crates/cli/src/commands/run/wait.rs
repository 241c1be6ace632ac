//! The processes of a program: passes signals on to them, and waits for their end.
//!
//! A program that becomes a daemon, as nginx does, orphans its processes to their nearest
//! subreaper; this process makes itself one. A signal that ends the program is passed on to
//! processes that are orphaned later, too: a shell, for instance, does not end its children.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::time::Duration;

use failure::Failure;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, set_child_subreaper, wait, waitpid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;

/// Signals that end the program, and not only its first process.
const ENDS: [i32; 3] = [SIGTERM, SIGINT, SIGQUIT];

/// Interval between looks for orphans after such a signal; an orphan's parent need not be a child
/// of this process.
const LATE_EVERY: Duration = Duration::from_millis(50);

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Descendants {
    /// The stack, which is not a process of the program.
    stack: Option<Pid>,
}

/// Returns the children of this process.
fn children() -> Vec<Pid> {
    children_of(rustix::process::getpid())
}

/// Returns the children of a process.
pub(crate) fn children_of(pid: Pid) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    let words = lists.iter().flat_map(|list| list.split_whitespace());
    words
        .filter_map(|word| Pid::from_raw(word.parse().ok()?))
        .collect()
}

/// Returns the signals that this process ignores, a bit for each (`SigIgn` of proc(5)).
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Passes a signal on to the children of this process except `reached`; returns all children.
fn pass_on(stack: Option<Pid>, signal: Signal, reached: &HashSet<Pid>) -> HashSet<Pid> {
    let children = children().into_iter();
    let children: HashSet<Pid> = children.filter(|child| Some(*child) != stack).collect();
    for child in children.difference(reached) {
        let _ = kill_process(*child, signal);
    }
    children
}

/// Passes a signal on to each process that becomes a child of this one, until this one ends.
fn pass_on_late(stack: Option<Pid>, signal: Signal, mut reached: HashSet<Pid>) {
    loop {
        std::thread::sleep(LATE_EVERY);
        reached = pass_on(stack, signal, &reached);
    }
}

impl Descendants {
    /// From now on, orphans become children of this process, and signals are passed on.
    pub(crate) fn gather(stack: Option<Pid>) -> Result<Descendants, Failure> {
        set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|errno| Failure::broken("becoming the subreaper of the program", errno))?;
        let mut passed = vec![SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH];
        // The terminal sends these to its whole foreground process group.
        let at_terminal = std::io::stdin().is_terminal();
        if !at_terminal {
            passed.extend([SIGINT, SIGQUIT]);
        }
        // Signals ignored here, as SIGHUP is under `nohup`, are ignored by the program as well; a
        // handler would reset them to their default action in it.
        let ignored = ignored_signals();
        passed.retain(|number| ignored & 1 << (number - 1) == 0);
        let failed = |error| Failure::broken("setting up signal handling", error);
        let mut signals = Signals::new(passed).map_err(failed)?;
        let of_terminal = at_terminal.then(|| Signals::new([SIGINT, SIGQUIT]));
        let of_terminal = of_terminal.transpose().map_err(failed)?;
        std::thread::spawn(move || {
            // These signals end the program, and with it this process.
            let _of_terminal = of_terminal;
            let mut has_late = false;
            for number in &mut signals {
                let Some(signal) = Signal::from_named_raw(number) else {
                    continue;
                };
                let reached = pass_on(stack, signal, &HashSet::new());
                if ENDS.contains(&number) && !std::mem::replace(&mut has_late, true) {
                    std::thread::spawn(move || pass_on_late(stack, signal, reached));
                }
            }
        });
        Ok(Descendants { stack })
    }

    /// Waits until the program and all its descendants have ended; returns the program's exit code,
    /// or 128 plus the number of the signal that ended it.
    pub(crate) fn wait(&self, program: Pid) -> Result<u8, Failure> {
        let mut code = None;
        loop {
            let others = children()
                .into_iter()
                .any(|child| Some(child) != self.stack);
            if let (Some(code), false) = (code, others) {
                return Ok(code);
            }
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid == program => code = Some(exit_code(status)),
                Ok(Some((pid, status))) if Some(pid) == self.stack => {
                    for child in children() {
                        let _ = kill_process(child, Signal::TERM);
                    }
                    return Err(Failure::broken(
                        "the stack of the program",
                        format!("it has ended with code {}", exit_code(status)),
                    ));
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Failure::broken("waiting for the program", errno)),
            }
        }
    }

    /// Kills the program.
    pub(crate) fn kill(&self, program: Pid) {
        let _ = kill_process(program, Signal::KILL);
        let _ = waitpid(Some(program), WaitOptions::empty());
    }
}

fn exit_code(status: WaitStatus) -> u8 {
    let code = status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}
