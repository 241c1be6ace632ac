//! Detects programs that wait for split sockets by direct system calls: these bypass the library,
//! so such programs get no events. This process reports them.
//!
//! The library lists epoll sets that have split members and in which no thread has waited through
//! the library. A thread that waits in the kernel on such a set has made the call itself
//! (`/proc/PID/task/TID/syscall`).

use std::collections::HashSet;
use std::fs;

use preload::environment::{ProgramSets, UnwaitedSet, WAITS_IN_SETS};

/// The epoll sets of a program, until one is reported.
#[derive(Debug)]
pub(super) struct DirectWaits {
    sets: Option<ProgramSets>,
    /// Suspects of the last look: a process and the number of its set. A suspect found twice in a
    /// row is reported: a thread may be on its way from the kernel to the library.
    suspects: HashSet<(u32, u32)>,
}

impl DirectWaits {
    pub(super) fn new(sets: ProgramSets) -> DirectWaits {
        DirectWaits {
            sets: Some(sets),
            suspects: HashSet::new(),
        }
    }

    /// Looks once; returns true if there is a suspect, which the next look may report.
    pub(super) fn look(&mut self) -> bool {
        let Some(sets) = &self.sets else {
            return false;
        };
        let found: HashSet<(u32, u32)> = sets
            .unwaited()
            .iter()
            .filter(|set| is_waited_in(set))
            .map(|set| (set.process, set.number))
            .collect();
        if let Some((process, _)) = found.intersection(&self.suspects).next() {
            report(*process);
            self.sets = None;
            return false;
        }
        self.suspects = found;
        !self.suspects.is_empty()
    }
}

fn report(process: u32) {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    eprintln!(
        "splitway: {} (process {process}) waits for split sockets by direct system calls, which no \
         library sees: it gets no events of them. Start it with `splitway run --compat`.",
        name.trim_end()
    );
}

/// Returns whether a thread waits in a set by a direct system call.
fn is_waited_in(set: &UnwaitedSet) -> bool {
    let process = format!("/proc/{}", set.process);
    let info = fs::read_to_string(format!("{process}/fdinfo/{}", set.number));
    if !info.is_ok_and(|info| has_member(&info, set.bell_data)) {
        return false;
    }
    let threads = fs::read_dir(format!("{process}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let mut calls = threads.map(|thread| fs::read_to_string(thread.path().join("syscall")));
    calls.any(|call| call.is_ok_and(|call| is_wait_in(&call, set.number)))
}

/// Returns whether a set has a member with this data, by its `fdinfo` (proc(5)).
fn has_member(info: &str, data: u64) -> bool {
    info.lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        let found = words.find(|word| *word == "data:").and(words.next());
        found.is_some_and(|found| u64::from_str_radix(found, 16) == Ok(data))
    })
}

/// Returns whether a thread's call, from its `syscall` file (proc(5)), is a wait in the set
/// `number`.
fn is_wait_in(call: &str, number: u32) -> bool {
    let mut words = call.split_ascii_whitespace();
    let name = words.next().and_then(|name| name.parse().ok());
    let first = words.next().and_then(|word| word.strip_prefix("0x"));
    let first = first.and_then(|word| u32::from_str_radix(word, 16).ok());
    name.is_some_and(|name| WAITS_IN_SETS.contains(&name)) && first == Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_in_a_set_differs_from_other_calls() {
        for wait in WAITS_IN_SETS {
            assert!(is_wait_in(
                &format!("{wait} 0x1a 0x7ffd 0x1 0x0 0x0 0x8 0x7f 0x7f\n"),
                26
            ));
            assert!(!is_wait_in(
                &format!("{wait} 0x1b 0x7ffd 0x1 0x0 0x0 0x8 0x7f 0x7f\n"),
                26
            ));
        }
        assert!(!is_wait_in("0 0x1a 0x7ffd 0x1 0x0 0x0 0x8 0x7f 0x7f\n", 26));
        assert!(!is_wait_in("running\n", 26));
        assert!(!is_wait_in("", 26));
    }

    #[test]
    fn a_set_is_known_by_the_data_of_a_member() {
        let info = "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1057\n\
                    tfd:        5 events:       1f data: ffffffffffffff05  pos:0 ino:61af sdev:7\n\
                    tfd:       66 events: 80000019 data:     7f1200345678  pos:0 ino:61b0 sdev:7\n";
        assert!(has_member(info, 0x7f12_0034_5678));
        assert!(has_member(info, 0xffff_ffff_ffff_ff05));
        assert!(!has_member(info, 0x61af));
    }
}
