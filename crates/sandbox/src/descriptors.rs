//! The limit on a process's open descriptors, and the descriptors that it inherits.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use failure::Failure;

/// Descriptors of each process in any case, generously.
const EACH: u64 = 32;

/// Descriptors of each NIC stack in the supervisor and in the host process, without its workers'
/// event descriptors.
const NIC_STACK: u64 = 8;

/// Raises the soft limit to the hard limit: the usual 1024 is for programs that use `select`. A NIC
/// stack without room is refused.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit on open descriptors stays as it is");
    }
}

/// Most descriptors of this process that all applications together may hold; the same for another
/// process with this limit. A sixteenth, and at least 256, is for the server itself.
pub fn for_applications() -> u64 {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    limit - (limit / 16).max(256).min(limit / 2)
}

/// Closes every descriptor but standard input, output and error: Landlock governs opening, not open
/// descriptors. Call it before anything is opened.
pub fn close_inherited() {
    let names = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let numbers: Vec<i32> = names
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // The descriptor of the listing itself is closed already.
        let _ = nix::unistd::close(number);
    }
}

/// Fails if the limit is too low for a server with this many NIC stacks, of this many workers each;
/// else raises the soft limit.
pub fn require(nic_stacks: usize, workers: u16) -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    check(limit, nic_stacks, workers)?;
    raise();
    Ok(())
}

fn check(limit: u64, nic_stacks: usize, workers: u16) -> Result<(), Failure> {
    let needed = EACH + nic_stacks as u64 * (NIC_STACK + 4 * u64::from(workers));
    if limit >= needed {
        return Ok(());
    }
    let why = format!("a process may have {limit} open here, and this server needs {needed}");
    Err(Failure::input("descriptors", why).remedy(
        "Raise the limit: `ulimit -n 1024` before starting it, or LimitNOFILE=1024 in its systemd \
         unit.",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_nic_stacks_and_workers_need_more() {
        assert_eq!(check(1024, 1, 64), Ok(()));
        assert_eq!(check(64, 1, 1), Ok(()));
        for (limit, nic_stacks, workers) in [(16, 1, 1), (64, 4, 1), (256, 1, 64)] {
            let failure = check(limit, nic_stacks, workers).unwrap_err().to_string();
            assert!(failure.contains("ulimit -n"), "{failure}");
        }
    }
}
