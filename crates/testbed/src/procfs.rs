//! The kernel's accounts of processes: time, memory, lists of processes.

use std::collections::BTreeMap;
use std::fs;

use nix::time::{ClockId, clock_getcpuclockid};
use rustix::process::Pid;

use crate::{Context, Failure, Result};

/// A tick of USER_HZ, which is 100 everywhere.
const TICK_NS: u64 = 10_000_000;

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).context(|| format!("reading {path}"))
}

/// Returns the CPU time of all threads of a process so far, ended ones included, in nanoseconds.
///
/// User and system time, and the time of interrupts during its execution: the kernel charges these
/// to the interrupted process unless it was built to account for them separately.
pub fn cpu_ns(pid: Pid) -> Result<u64> {
    let number = pid.as_raw_nonzero().get();
    let clock = clock_getcpuclockid(nix::unistd::Pid::from_raw(number));
    let time = clock.and_then(ClockId::now);
    let time = time.context(|| format!("reading the CPU clock of process {number}"))?;
    Ok(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// A process's CPU time by mode, and its context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Time in user mode, in nanoseconds: the scheduler's total, divided in the ratio of the
    /// clock's ticks.
    pub user_ns: u64,
    /// Time in the kernel, in nanoseconds.
    pub system_ns: u64,
    /// Times that an existing thread went to sleep.
    pub voluntary_switches: u64,
    /// Times that an existing thread was preempted.
    pub involuntary_switches: u64,
}

/// Returns the schedule of a process so far.
pub fn schedule(pid: Pid) -> Result<Schedule> {
    let directory = format!("/proc/{}", pid.as_raw_nonzero());
    let stat = read(&format!("{directory}/stat"))?;
    let (user, system) =
        ticks_in(&stat).ok_or_else(|| Failure::new(format!("{directory}/stat says {stat:?}")))?;
    let mut schedule = Schedule {
        user_ns: user * TICK_NS,
        system_ns: system * TICK_NS,
        ..Schedule::default()
    };
    for (_, [status]) in of_threads(pid, ["status"])? {
        let (voluntary, involuntary) = switches_in(&status);
        schedule.voluntary_switches += voluntary;
        schedule.involuntary_switches += involuntary;
    }
    Ok(schedule)
}

/// Returns the number of times that each thread of a process went to sleep so far, by its id.
pub fn sleeps(pid: Pid) -> Result<BTreeMap<i32, u64>> {
    let threads = of_threads(pid, ["status"])?.into_iter();
    Ok(threads
        .map(|(thread, [status])| (thread, switches_in(&status).0))
        .collect())
}

/// Reads these files of each thread of a process; returns their contents by thread id.
fn of_threads<const N: usize>(pid: Pid, files: [&str; N]) -> Result<Vec<(i32, [String; N])>> {
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let mut threads = Vec::new();
    for task in fs::read_dir(&tasks).context(|| format!("reading {tasks}"))? {
        let task = task.context(|| format!("reading {tasks}"))?;
        let thread = task.file_name().to_str().and_then(|name| name.parse().ok());
        let contents = files.map(|file| fs::read_to_string(task.path().join(file)));
        // The thread may have ended since.
        if let Some(thread) = thread
            && contents.iter().all(|content| content.is_ok())
        {
            threads.push((thread, contents.map(|content| content.unwrap_or_default())));
        }
    }
    Ok(threads)
}

/// `utime` and `stime`, fields 14 and 15 (proc(5)).
fn ticks_in(stat: &str) -> Option<(u64, u64)> {
    // The second field, the name, may itself hold parentheses and spaces.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn switches_in(status: &str) -> (u64, u64) {
    let field = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    (
        field("voluntary_ctxt_switches:").unwrap_or(0),
        field("nonvoluntary_ctxt_switches:").unwrap_or(0),
    )
}

/// A thread's time waiting for a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Thread id.
    pub thread: i32,
    /// Name of the thread.
    pub name: String,
    /// Time runnable without a CPU, since its start, in nanoseconds.
    pub waited_ns: u64,
}

/// Returns the time that the threads of a process have waited for a CPU.
pub fn waits(pid: Pid) -> Result<Vec<Wait>> {
    let threads = of_threads(pid, ["comm", "schedstat"])?.into_iter();
    let wait = |(thread, [name, schedstat]): (i32, [String; 2])| {
        Some(Wait {
            thread,
            name: name.trim().to_owned(),
            waited_ns: waited_in(&schedstat)?,
        })
    };
    Ok(threads.filter_map(wait).collect())
}

/// `time on the CPU, time waiting for it, times that it got one` (the kernel's sched-stats.rst).
fn waited_in(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// A process, and its CPU time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runner {
    /// Process id.
    pub pid: i32,
    /// Name of the process.
    pub name: String,
    /// CPU time of all its threads, in nanoseconds, with the resolution of the clock's tick.
    pub cpu_ns: u64,
    /// Real-time scheduling (`SCHED_FIFO`, `SCHED_RR`), ahead of all other processes.
    pub is_real_time: bool,
}

/// Returns the processes visible to this process.
pub fn runners() -> Result<Vec<Runner>> {
    let mut found = Vec::new();
    for (pid, _) in processes()? {
        // The process may have ended since.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        found.extend(runner_in(pid, &stat));
    }
    Ok(found)
}

fn runner_in(pid: i32, stat: &str) -> Option<Runner> {
    let (user, system) = ticks_in(stat)?;
    let (front, rest) = stat.rsplit_once(')')?;
    let (_, name) = front.split_once('(')?;
    // rt_priority and policy, fields 40 and 41 (proc(5)).
    let priority: u32 = rest.split_whitespace().nth(37)?.parse().ok()?;
    Some(Runner {
        pid,
        name: name.to_owned(),
        cpu_ns: (user + system) * TICK_NS,
        is_real_time: priority > 0,
    })
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Resident memory; shared memory counts in each process.
    pub resident_bytes: u64,
    /// Resident pages of files, such as those of the program, and of packet sockets' rings.
    pub of_files_bytes: u64,
    /// Proportional: shared memory is divided among its processes, so that sums are meaningful.
    pub proportional_bytes: u64,
}

/// Returns the present memory of a process.
pub fn memory(pid: Pid) -> Result<Memory> {
    let path = |file: &str| format!("/proc/{}/{file}", pid.as_raw_nonzero());
    let (mappings, status) = (path("smaps_rollup"), path("status"));
    let (of_mappings, of_status) = (read(&mappings)?, read(&status)?);
    let field = |(path, text): (&str, &str), name: &str| {
        text.lines()
            .find_map(|line| {
                line.strip_prefix(name)?
                    .trim()
                    .strip_suffix(" kB")?
                    .parse()
                    .ok()
            })
            .map(|kib: u64| kib * 1024)
            .ok_or_else(|| Failure::new(format!("{path} has no {name}")))
    };
    Ok(Memory {
        resident_bytes: field((&mappings, &of_mappings), "Rss:")?,
        of_files_bytes: field((&status, &of_status), "RssFile:")?,
        proportional_bytes: field((&mappings, &of_mappings), "Pss:")?,
    })
}

/// Memory of a process in mappings with a request for huge pages (`MADV_HUGEPAGE`), or in reserved
/// huge pages, in bytes: in a NIC process, its block cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugeMappings {
    /// Part of [`Memory::proportional_bytes`].
    pub advised_bytes: u64,
    /// Reserved huge pages, not part of [`Memory::proportional_bytes`].
    pub set_aside_bytes: u64,
}

/// Returns the present huge mappings of a process.
pub fn huge_mappings(pid: Pid) -> Result<HugeMappings> {
    let text = read(&format!("/proc/{}/smaps", pid.as_raw_nonzero()))?;
    Ok(huge_mappings_in(&text))
}

fn huge_mappings_in(smaps: &str) -> HugeMappings {
    let mut sum = HugeMappings::default();
    let (mut proportional_bytes, mut set_aside_bytes) = (0, 0);
    for line in smaps.lines() {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let kib = || value.trim().strip_suffix(" kB")?.parse::<u64>().ok();
        match name {
            "Pss" => proportional_bytes = kib().unwrap_or(0) << 10,
            "Private_Hugetlb" => set_aside_bytes = kib().unwrap_or(0) << 10,
            // The last line of a mapping.
            "VmFlags" => {
                if value.split_whitespace().any(|flag| flag == "hg") {
                    sum.advised_bytes += proportional_bytes;
                }
                sum.set_aside_bytes += set_aside_bytes;
            }
            _ => {}
        }
    }
    sum
}

/// Busy and idle time of the whole machine so far, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct MachineTime {
    /// User, system and interrupt time of all CPUs.
    pub busy_ns: u64,
    /// Time in interrupts, hard and soft, of all CPUs; part of `busy_ns`.
    pub interrupt_ns: u64,
}

/// Returns the time of the whole machine.
pub fn machine_time() -> Result<MachineTime> {
    let text = read("/proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    // cpu user nice system idle iowait irq softirq steal …, in ticks.
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|n| n.parse().ok())
        .collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = ticks[..] else {
        return Err(Failure::new(format!("/proc/stat begins with {line:?}")));
    };
    Ok(MachineTime {
        busy_ns: (user + nice + system + irq + softirq) * TICK_NS,
        interrupt_ns: (irq + softirq) * TICK_NS,
    })
}

/// Returns the bytes read from block devices since the machine started, through the page cache or
/// past it.
pub fn device_read_bytes() -> Result<u64> {
    let text = read("/proc/vmstat")?;
    // Named for pages, counted in KiB.
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("pgpgin ")
            .and_then(|value| value.parse::<u64>().ok())
    });
    kib.map(|kib| kib << 10)
        .ok_or_else(|| Failure::new("/proc/vmstat has no pgpgin"))
}

/// Returns the processes visible to this process, by id and name, without zombies.
pub fn processes() -> Result<Vec<(i32, String)>> {
    let found = stats()?.into_iter();
    Ok(found.map(|stat| (stat.pid, stat.name)).collect())
}

/// Returns the children of a process, without zombies.
pub fn children(parent: Pid) -> Result<Vec<Pid>> {
    let parent = parent.as_raw_nonzero().get();
    let found = stats()?.into_iter().filter(|stat| stat.parent == parent);
    Ok(found.filter_map(|stat| Pid::from_raw(stat.pid)).collect())
}

/// Returns the number of a process's open descriptors.
pub fn descriptors(pid: Pid) -> Result<usize> {
    let path = format!("/proc/{}/fd", pid.as_raw_nonzero());
    Ok(fs::read_dir(&path)
        .context(|| format!("reading {path}"))?
        .count())
}

struct Stat {
    pid: i32,
    name: String,
    parent: i32,
}

fn stats() -> Result<Vec<Stat>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context(|| "reading /proc".into())? {
        let name = entry.context(|| "reading /proc".into())?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // The process may have ended since.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        // pid (comm) state ppid …; the name may itself hold parentheses.
        let (Some(open), Some(close)) = (stat.find('('), stat.rfind(')')) else {
            continue;
        };
        let mut fields = stat[close + 1..].split_whitespace();
        let (Some(state), Some(Ok(parent))) = (fields.next(), fields.next().map(str::parse)) else {
            continue;
        };
        if !state.starts_with(['Z', 'X']) {
            found.push(Stat {
                pid,
                name: stat[open + 1..close].to_owned(),
                parent,
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_found_behind_any_name() {
        let stat = "77 (a) b (c) S 1 77 77 0 -1 4194560 100 0 0 0 250 31 0 0 20 0 1 0 5 6 7";
        assert_eq!(ticks_in(stat), Some((250, 31)));
        assert_eq!(ticks_in("77 (a"), None);
    }

    #[test]
    fn what_goes_before_others_is_named() {
        let stat = |priority| {
            format!(
                "77 (a) b (c) S 1 77 77 0 -1 4194560 100 0 0 0 250 31 0 0 20 0 1 0 5 6 7 8 9 10 11 \
                 12 13 14 15 16 17 18 19 20 21 3 {priority} 2 0 0"
            )
        };
        let runner = runner_in(77, &stat(1)).unwrap();
        assert_eq!(
            (runner.name.as_str(), runner.cpu_ns),
            ("a) b (c", 2_810_000_000)
        );
        assert!(runner.is_real_time && !runner_in(77, &stat(0)).unwrap().is_real_time);
        let own = std::process::id();
        assert!(
            runners()
                .unwrap()
                .iter()
                .any(|runner| runner.pid.unsigned_abs() == own)
        );
    }

    #[test]
    fn every_thread_has_waited_for_some_time() {
        let own = waits(rustix::process::getpid()).unwrap();
        assert!(
            !own.is_empty() && own.iter().all(|wait| !wait.name.is_empty()),
            "{own:?}"
        );
        assert_eq!(waited_in("5000 700 3\n"), Some(700));
        assert_eq!(waited_in(""), None);
    }

    #[test]
    fn switches_of_both_kinds_are_distinguished() {
        let status =
            "Threads:\t3\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t345\n";
        assert_eq!(switches_in(status), (12, 345));
    }

    #[test]
    fn a_process_that_runs_has_a_schedule() {
        let own = schedule(rustix::process::getpid()).unwrap();
        let later = schedule(rustix::process::getpid()).unwrap();
        assert!(later.user_ns + later.system_ns >= own.user_ns + own.system_ns);
    }

    #[test]
    fn huge_mappings_are_distinguished_from_others() {
        const SMAPS: &str = "\
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
Size:               8192 kB
Rss:                6144 kB
Pss:                6144 kB
Pss_Dirty:          6144 kB
Private_Hugetlb:       0 kB
VmFlags: rd wr mr mw me ac hg
7f0000800000-7f0000900000 rw-p 00000000 00:00 0
Pss:                1024 kB
Private_Hugetlb:       0 kB
VmFlags: rd wr mr mw me ac
7f0000900000-7f0000d00000 rw-p 00000000 00:0f 77                         /anon_hugepage (deleted)
Pss:                   0 kB
Private_Hugetlb:    4096 kB
VmFlags: rd wr mr mw me de ht
";
        let expected = HugeMappings {
            advised_bytes: 6 << 20,
            set_aside_bytes: 4 << 20,
        };
        assert_eq!(huge_mappings_in(SMAPS), expected);
    }
}
