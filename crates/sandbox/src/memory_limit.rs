//! Available memory: the limit of this process's control group (cgroup v2, `memory.max`), the rest
//! of that limit and of the machine's memory, and reserved huge pages.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The lowest limit of the process's own group and of its ancestors, in bytes; `None` if there is
/// none. Call it before the process is locked out of the file system.
pub fn limit_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_below(Path::new("/sys/fs/cgroup"), &groups)
}

/// Memory of the machine that is reserved as huge pages of 2 MiB, free or not, in bytes.
pub fn huge_bytes_set_aside() -> u64 {
    let count = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    let count = count.ok().and_then(|count| count.trim().parse().ok());
    count.map_or(0, |count: u64| count.saturating_mul(2 << 20))
}

/// Memory of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// Memory with swap space, in bytes.
    pub total_bytes: u64,
    /// Memory that is free, or would be after dropping caches or swapping, in bytes.
    pub available_bytes: u64,
}

/// Reads the memory of this machine; `None` if the kernel does not report it.
pub fn machine() -> Option<MachineMemory> {
    parse_machine(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_machine(meminfo: &str) -> Option<MachineMemory> {
    let bytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1 << 10)
    };
    Some(MachineMemory {
        total_bytes: bytes("MemTotal:")? + bytes("SwapTotal:")?,
        available_bytes: bytes("MemAvailable:")? + bytes("SwapFree:")?,
    })
}

/// The rest of the limits of the process's own group and of its ancestors, in bytes, as
/// [`limit_bytes`]. Cached files count as free.
pub fn left_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mount = Path::new("/sys/fs/cgroup");
    groups_below(mount, &groups)
        .filter_map(|group| left_in(&group))
        .min()
}

fn left_in(group: &Path) -> Option<u64> {
    let number = |file: &str| -> Option<u64> {
        let text = fs::read_to_string(group.join(file)).ok()?;
        text.trim().parse().ok()
    };
    let limit = number("memory.max")?;
    let used = number("memory.current").unwrap_or(0);
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix("file "));
    let cached: u64 = cached.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

/// `groups`: as in `/proc/PID/cgroup`; cgroup v2 has the line that begins with `0::`.
fn limit_below(mount: &Path, groups: &str) -> Option<u64> {
    groups_below(mount, groups)
        .filter_map(|group| fs::read_to_string(group.join("memory.max")).ok())
        // `max` is no limit.
        .filter_map(|limit| limit.trim().parse().ok())
        .min()
}

/// The directories of the process's own group and of its ancestors.
fn groups_below(mount: &Path, groups: &str) -> impl Iterator<Item = PathBuf> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    // In a cgroup namespace, the group may lie outside of the mount: `/../other`.
    let own = own.map(|own| {
        let names = Path::new(own).components();
        let names = names.filter(|name| matches!(name, Component::Normal(_)));
        mount.join(names.collect::<PathBuf>())
    });
    let mount = mount.to_owned();
    let groups = std::iter::successors(own, |group| group.parent().map(Path::to_owned));
    groups.take_while(move |group| group.starts_with(&mount))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_on_the_way_up_counts() {
        let mount = tempfile::tempdir().unwrap();
        let mount = mount.path();
        fs::create_dir_all(mount.join("a/b/c")).unwrap();
        let limit = |group: &str| limit_below(mount, &format!("1:cpu:/x\n0::{group}\n"));
        assert_eq!(limit("/a/b/c"), None);
        fs::write(mount.join("a/b/c/memory.max"), "max\n").unwrap();
        assert_eq!(limit("/a/b/c"), None);
        fs::write(mount.join("a/memory.max"), "536870912\n").unwrap();
        assert_eq!(limit("/a/b/c"), Some(512 << 20));
        fs::write(mount.join("a/b/memory.max"), "268435456\n").unwrap();
        assert_eq!(limit("/a/b/c"), Some(256 << 20));
        assert_eq!(limit("/a"), Some(512 << 20));
        // A container sees its own group as the mount.
        fs::write(mount.join("memory.max"), "1048576\n").unwrap();
        assert_eq!(limit("/"), Some(1 << 20));
        assert_eq!(limit("/../../other"), Some(1 << 20));
        assert_eq!(limit_below(mount, "1:memory:/x\n"), None, "cgroup v1");
    }

    #[test]
    fn what_is_left_is_without_that_which_others_use_and_with_cached_files() {
        let meminfo = "MemTotal:        1000 kB\nMemFree:  1 kB\nMemAvailable:     300 kB\n\
                       SwapTotal:        20 kB\nSwapFree:         10 kB\n";
        let machine = parse_machine(meminfo).unwrap();
        assert_eq!(machine.total_bytes, 1020 << 10);
        assert_eq!(machine.available_bytes, 310 << 10);
        assert_eq!(parse_machine("MemTotal: 1 kB\n"), None);
        let group = tempfile::tempdir().unwrap();
        let group = group.path();
        assert_eq!(left_in(group), None);
        fs::write(group.join("memory.max"), "1000\n").unwrap();
        assert_eq!(left_in(group), Some(1000));
        fs::write(group.join("memory.current"), "800\n").unwrap();
        fs::write(group.join("memory.stat"), "anon 500\nfile 300\n").unwrap();
        assert_eq!(left_in(group), Some(500));
        fs::write(group.join("memory.current"), "2000\n").unwrap();
        assert_eq!(left_in(group), Some(0));
    }
}
