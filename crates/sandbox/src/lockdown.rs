//! Landlock rulesets and capabilities: privileges that processes drop before they handle untrusted
//! input.
//!
//! The host process locks itself out of the whole file system: it could not read content even if an
//! attacker ran in it. The NIC process keeps read access below its root and nothing else. Both keep
//! only the capabilities that they still need, and neither can gain new ones.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, NetPort,
    PathBeneath, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope,
};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};

use failure::Failure;

/// Newest Landlock ABI whose access rights are all handled; older kernels handle fewer.
const ABI_NEWEST: ABI = ABI::V7;

/// Proof that the host process is locked out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockedOut {
    /// Version of Landlock's interface that enforces it.
    pub landlock_abi: u32,
    /// A directory that could be opened before, and cannot be opened any more.
    pub probe: PathBuf,
    /// The kernel's error for that attempt.
    pub probe_errno: i32,
}

/// Locks the calling thread, and all its later threads and children, out of the file system, and
/// proves it: `probe`, a directory that could be opened so far, cannot be opened any more. Call it
/// before there are threads.
pub fn lock_out(probe: &Path) -> Result<LockedOut, Failure> {
    // Otherwise, a directory closed to this user anyway would pass for a proof.
    open_directory(probe)
        .map_err(|errno| Failure::input(format!("root {}", probe.display()), errno))?;
    check_inherited(probe)?;
    let landlock_abi = confine(Ok)?;
    match open_directory(probe) {
        Err(errno @ Errno::ACCESS) => Ok(LockedOut {
            landlock_abi,
            probe: probe.to_owned(),
            probe_errno: errno.raw_os_error(),
        }),
        answer => Err(Failure::broken(
            "locking the host process out of the file system",
            format!(
                "opening {} afterwards gave {answer:?} instead of EACCES",
                probe.display()
            ),
        )),
    }
}

/// Confines the calling thread, and all its later threads and children, to reading below `root`.
/// Returns the version of Landlock's interface that enforces it.
pub fn confine_to(root: BorrowedFd<'_>) -> Result<u32, Failure> {
    confine(|ruleset| {
        ruleset.add_rule(PathBeneath::new(
            root,
            AccessFs::ReadFile | AccessFs::ReadDir,
        ))
    })
}

/// Files of the C library's name resolution: its configuration and its modules.
const NAME_SERVICE: [&str; 12] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/ld.so.cache",
    "/run/systemd/resolve",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
];

/// The port of DNS over TCP.
const DNS_PORT: u16 = 53;

/// Confines the calling thread, and all its later threads and children, to writing below
/// `directory`, to resolving names and to connecting to these ports. Returns the version of
/// Landlock's interface that enforces it.
pub fn confine_to_writing(directory: BorrowedFd<'_>, ports: &[u16]) -> Result<u32, Failure> {
    let write = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let names = NAME_SERVICE.iter();
    let names: Vec<_> = names
        .filter_map(|path| rustix::fs::open(*path, flags, Mode::empty()).ok())
        .collect();
    confine(|mut ruleset| {
        ruleset = ruleset.add_rule(PathBeneath::new(directory, write))?;
        for name in &names {
            let is_directory = rustix::fs::fstat(name)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir());
            let read = if is_directory {
                AccessFs::ReadFile | AccessFs::ReadDir
            } else {
                AccessFs::ReadFile.into()
            };
            ruleset = ruleset.add_rule(PathBeneath::new(name, read))?;
        }
        for port in ports.iter().copied().chain([DNS_PORT]) {
            ruleset = ruleset.add_rule(NetPort::new(port, AccessNet::ConnectTcp))?;
        }
        Ok(ruleset)
    })
}

/// Confines the calling thread, and all its later threads and children, to open descriptors.
/// Returns the version of Landlock's interface that enforces it.
pub fn confine_to_nothing() -> Result<u32, Failure> {
    confine(Ok)
}

/// Drops all capabilities but those in `keep` for good, in the calling thread and all its later
/// threads and children.
pub fn keep_capabilities(keep: CapabilitySet) -> Result<(), Failure> {
    let drop = || -> rustix::io::Result<()> {
        rustix::thread::set_no_new_privs(true)?;
        let now = rustix::thread::capabilities(None)?;
        let kept = now.permitted & keep;
        rustix::thread::clear_ambient_capability_set()?;
        rustix::thread::set_capabilities(
            None,
            CapabilitySets {
                effective: kept,
                permitted: kept,
                inheritable: CapabilitySet::empty(),
            },
        )
    };
    drop().map_err(|errno| Failure::broken("dropping capabilities", errno))
}

/// Prevents core dumps: the process's keys, of connections and of certificates, must never be
/// written to a file. Only root can still debug the process.
pub fn forbid_core_dumps() -> Result<(), Failure> {
    let forbid = || -> rustix::io::Result<()> {
        let nothing = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        rustix::process::setrlimit(Resource::Core, nothing)?;
        // The limit does not bind a program that receives core dumps by a pipe (core(5)).
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
    };
    forbid().map_err(|errno| Failure::broken("forbidding core dumps", errno))
}

/// Fails if the parent process has passed on a descriptor that could read a file below `root`:
/// Landlock governs opening, not open descriptors.
fn check_inherited(root: &Path) -> Result<(), Failure> {
    let what = "looking at the descriptors of the host process";
    let failed = |error: std::io::Error| Failure::broken(what, error);
    let root = fs::canonicalize(root).map_err(failed)?;
    // Collected first, so that the descriptor of the listing itself is gone.
    let names: Vec<_> = fs::read_dir("/proc/self/fd")
        .map_err(failed)?
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .collect();
    for name in names {
        let link = Path::new("/proc/self/fd").join(&name);
        let Ok(target) = fs::read_link(&link) else {
            continue;
        };
        let has_content = fs::metadata(&link).is_ok_and(|meta| meta.is_file() || meta.is_dir());
        if target.starts_with(&root) && has_content && is_readable(&name) {
            let name = name.display();
            return Err(Failure::input(
                format!("descriptor {name}, handed down to Splitway"),
                format!(
                    "the host process could read {} through it",
                    target.display()
                ),
            )
            .remedy(format!(
                "Start Splitway without it: in a shell, with `{name}>&-` or `{name}</dev/null`."
            )));
        }
    }
    Ok(())
}

/// Whether a descriptor is readable, by the octal flags in its proc(5) entry. When in doubt, true.
fn is_readable(descriptor: &OsStr) -> bool {
    let info =
        fs::read_to_string(Path::new("/proc/self/fdinfo").join(descriptor)).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags
        .and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok())
        .unwrap_or(0);
    let flags = OFlags::from_bits_retain(flags);
    !flags.contains(OFlags::PATH) && !flags.contains(OFlags::WRONLY)
}

fn open_directory(path: &Path) -> rustix::io::Result<()> {
    // Landlock allows O_PATH, which cannot read, so the probe uses O_RDONLY.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())?;
    Ok(())
}

fn confine(
    rules: impl FnOnce(RulesetCreated) -> Result<RulesetCreated, RulesetError>,
) -> Result<u32, Failure> {
    let restrict = || -> Result<RestrictionStatus, RulesetError> {
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(ABI::V1))?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(ABI_NEWEST))?
            .handle_access(AccessNet::from_all(ABI_NEWEST))?
            .scope(Scope::from_all(ABI_NEWEST))?
            .create()?;
        rules(ruleset)?.restrict_self()
    };
    let what = "confining the process with Landlock";
    let status = restrict().map_err(|error| Failure::input(what, error))?;
    match (status.landlock, status.ruleset) {
        (
            LandlockStatus::Available { effective_abi, .. },
            RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced,
        ) => Ok(effective_abi as u32),
        (landlock, _) => Err(Failure::input(what, format!("not enforced: {landlock:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    /// Restrictions bind one thread: each test runs in a thread of its own.
    fn in_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(work).join().unwrap()
    }

    #[test]
    fn a_locked_out_thread_opens_nothing() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("content");
        fs::write(&file, "content").unwrap();
        let probe = root.path().to_owned();
        in_a_thread(move || {
            let proof = lock_out(&probe).unwrap();
            assert!(proof.landlock_abi >= 1);
            assert_eq!(proof.probe_errno, Errno::ACCESS.raw_os_error());
            for path in [
                file.as_path(),
                &probe,
                Path::new("/"),
                Path::new("/proc/self/status"),
            ] {
                let error = File::open(path).unwrap_err();
                assert_eq!(
                    error.raw_os_error(),
                    Some(proof.probe_errno),
                    "{}",
                    path.display()
                );
            }
        });
        assert_eq!(
            fs::read(root.path().join("content")).unwrap(),
            b"content",
            "other threads are free"
        );
    }

    #[test]
    fn what_is_open_already_is_no_way_around_it() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("content");
        fs::write(&file, "content").unwrap();
        let check = || check_inherited(root.path());
        check().unwrap();
        let written = File::options().append(true).open(&file).unwrap();
        check().unwrap();
        for path in [file.as_path(), root.path()] {
            let open = File::open(path).unwrap();
            let failure = check().unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            assert!(
                failure.to_string().contains(&path.display().to_string()),
                "{failure}"
            );
            drop(open);
        }
        check().unwrap();
        drop(written);
    }

    #[test]
    fn what_was_closed_before_proves_nothing() {
        let failure = in_a_thread(|| lock_out(Path::new("/nowhere/at/all"))).unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        assert!(failure.to_string().contains("/nowhere/at/all"), "{failure}");
    }

    #[test]
    fn a_confined_thread_reads_below_its_root_and_nowhere_else() {
        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(root.path().join("sub")).unwrap();
        let (inside, outside) = (root.path().join("sub/file"), elsewhere.path().join("file"));
        fs::write(&inside, "inside").unwrap();
        fs::write(&outside, "outside").unwrap();
        let directory = File::open(root.path()).unwrap();
        in_a_thread(move || {
            confine_to(directory.as_fd()).unwrap();
            assert_eq!(fs::read(&inside).unwrap(), b"inside");
            assert!(fs::read(&outside).is_err());
            assert!(fs::write(&inside, "changed").is_err());
            assert!(fs::remove_file(&inside).is_err());
        });
    }

    #[test]
    fn a_thread_confined_to_writing_writes_in_one_place_and_connects_to_known_ports() {
        use std::net::{TcpListener, TcpStream};
        let (cache, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (inside, outside) = (cache.path().join("a/file"), elsewhere.path().join("file"));
        fs::write(&outside, "outside").unwrap();
        let directory = File::open(cache.path()).unwrap();
        let [known, unknown] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [known_to, unknown_to] = [&known, &unknown].map(|it| it.local_addr().unwrap());
        in_a_thread(move || {
            let abi = confine_to_writing(directory.as_fd(), &[known_to.port()]).unwrap();
            fs::create_dir(inside.parent().unwrap()).unwrap();
            fs::write(&inside, "first").unwrap();
            fs::write(&inside, "second").unwrap();
            let renamed = inside.with_extension("new");
            fs::rename(&inside, &renamed).unwrap();
            assert_eq!(fs::read(&renamed).unwrap(), b"second");
            fs::remove_file(&renamed).unwrap();
            fs::remove_dir(inside.parent().unwrap()).unwrap();
            assert!(fs::read(&outside).is_err() && fs::write(&outside, "changed").is_err());
            assert!(fs::write("/etc/hosts", "changed").is_err());
            fs::read("/etc/hosts").unwrap();
            TcpStream::connect(known_to).unwrap();
            // Landlock restricts ports since Linux 6.7.
            assert!(abi < 4 || TcpStream::connect(unknown_to).is_err());
        });
    }

    #[test]
    fn dropped_capabilities_do_not_come_back() {
        in_a_thread(|| {
            keep_capabilities(CapabilitySet::NET_RAW).unwrap();
            let now = rustix::thread::capabilities(None).unwrap();
            assert!(
                CapabilitySet::NET_RAW.contains(now.permitted | now.effective),
                "{now:?}"
            );
            let all = CapabilitySets {
                effective: CapabilitySet::NET_ADMIN,
                permitted: CapabilitySet::NET_ADMIN,
                ..now
            };
            assert_eq!(
                rustix::thread::set_capabilities(None, all),
                Err(Errno::PERM)
            );
            assert!(rustix::thread::no_new_privs().unwrap());
        });
    }
}
