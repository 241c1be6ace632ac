//! How much memory there is: what the control group of this process may use (cgroup v2,
//! `memory.max`), and what is set aside as huge pages.

use std::fs;
use std::path::Path;

/// The least of the limits of the process's own group and of those around it, in bytes; `None` if
/// there is none. Ask before the process is locked out of the file system.
pub fn limit_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_below(Path::new("/sys/fs/cgroup"), &groups)
}

/// Memory of the machine that is set aside as huge pages of 2 MiB, free or not, in bytes.
pub fn huge_bytes_set_aside() -> u64 {
    let count = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    let count = count.ok().and_then(|count| count.trim().parse().ok());
    count.map_or(0, |count: u64| count.saturating_mul(2 << 20))
}

/// `groups`: as in `/proc/PID/cgroup`; cgroup v2 has the line that begins with `0::`.
fn limit_below(mount: &Path, groups: &str) -> Option<u64> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // Within a namespace of its own, the group may lie outside of what is mounted: `/../other`.
    let own = Path::new(own)
        .components()
        .filter(|component| matches!(component, std::path::Component::Normal(_)));
    let group = mount.join(own.collect::<std::path::PathBuf>());
    group
        .ancestors()
        .take_while(|group| group.starts_with(mount))
        .filter_map(|group| fs::read_to_string(group.join("memory.max")).ok())
        // Without a limit it says `max`.
        .filter_map(|limit| limit.trim().parse().ok())
        .min()
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
}
