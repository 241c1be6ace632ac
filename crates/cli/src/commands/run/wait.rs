//! All that a program has started: signals are passed on to it, and waited for is its end.
//!
//! A program that puts itself into the background, as nginx does, leaves its processes to their
//! next ancestor, which this process makes itself. A signal that ends the program also goes to
//! those that are left alone after it: a shell, for instance, does not end what it has started.

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

/// How often processes that are left alone after such a signal are looked for: not each of them is
/// left by a child of this process.
const LATE_EVERY: Duration = Duration::from_millis(50);

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Descendants {
    /// The stack, which is none of them.
    stack: Option<Pid>,
}

/// The children of this process.
fn children() -> Vec<Pid> {
    children_of(rustix::process::getpid())
}

/// The children of a process.
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

/// The signals that this process ignores, a bit for each (`SigIgn` of proc(5)).
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Passes a signal on to the children of this process but for `reached`; returns all of them.
fn pass_on(stack: Option<Pid>, signal: Signal, reached: &HashSet<Pid>) -> HashSet<Pid> {
    let children = children().into_iter();
    let children: HashSet<Pid> = children.filter(|child| Some(*child) != stack).collect();
    for child in children.difference(reached) {
        let _ = kill_process(*child, signal);
    }
    children
}

/// Passes a signal on to each process that becomes a child of this one, as long as that lives.
fn pass_on_late(stack: Option<Pid>, signal: Signal, mut reached: HashSet<Pid>) {
    loop {
        std::thread::sleep(LATE_EVERY);
        reached = pass_on(stack, signal, &reached);
    }
}

impl Descendants {
    /// From here on, processes that are left alone become children of this one, and signals are
    /// passed on.
    pub(crate) fn gather(stack: Option<Pid>) -> Result<Descendants, Failure> {
        set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|errno| Failure::broken("becoming the subreaper of the program", errno))?;
        let mut passed = vec![SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH];
        // The terminal sends these to all of its foreground.
        let at_terminal = std::io::stdin().is_terminal();
        if !at_terminal {
            passed.extend([SIGINT, SIGQUIT]);
        }
        // What is ignored here, as SIGHUP is by `nohup`, the program ignores as well: a handler
        // would have it begin with the usual action.
        let ignored = ignored_signals();
        passed.retain(|number| ignored & 1 << (number - 1) == 0);
        let failed = |error| Failure::broken("setting up signal handling", error);
        let mut signals = Signals::new(passed).map_err(failed)?;
        let of_terminal = at_terminal.then(|| Signals::new([SIGINT, SIGQUIT]));
        let of_terminal = of_terminal.transpose().map_err(failed)?;
        std::thread::spawn(move || {
            // They end the program, and with it this process.
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

    /// Waits until the program and all that it has left behind have ended; returns its exit code,
    /// 128 more than the signal if one has ended it.
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

    /// Ends the program at once.
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
