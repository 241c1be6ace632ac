//! The system calls that a process may still make once it serves; see `docs/confinement.md`.
//!
//! Each process has a list of allowed calls. Calls that name a file, and are not on the list, fail
//! with `EPERM`: the C library and the runtime try some of these calls and work without. Any other
//! call kills the process at once, with `SIGSYS`. To find a call missing from a list, use `strace
//! -f` on the process, or the kernel's log.
//!
//! The fetcher is an exception: names are resolved by modules of the machine (nsswitch.conf(5)),
//! whose calls are unknown. Calls that are not on its list fail, and those that no module has a
//! reason for kill it.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use failure::Failure;

/// The process to confine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The host stack: a packet socket, rings, and new ones for each further NIC process.
    Host,
    /// The NIC stack, once its workers have all their resources: files below its root, rings, a
    /// packet socket.
    Nic,
    /// A relay on the host's machine: a packet socket, and the rings that it is about to receive.
    HostRelay,
    /// A relay on the NIC stack's machine: a packet socket, and new rings for each NIC process.
    NicRelay,
    /// The observer process: open files and an open listener, and threads.
    Observer,
    /// The broker: an open listener, the sockets of its clients, and the objects that it makes for
    /// clients: memory files, eventfds and pairs of Unix sockets.
    Broker,
    /// The gate of a stack node: a packet socket, connections to the broker, and the memory of
    /// applications.
    Gate,
    /// The fetcher: files in the cache directory, connections to origins, name resolution, and
    /// threads.
    Fetcher,
}

/// A call, and the rules for its arguments, one of which must match; without rules, any arguments.
type Call = (c_long, Vec<SeccompRule>);

/// `prctl(PR_GET_AUXV)`, Linux 6.4: libraries find the vDSO with it.
const PR_GET_AUXV: u64 = 0x4155_5856;

/// `IORING_REGISTER_BUFFERS_UPDATE` of `linux/io_uring.h`.
const IORING_REGISTER_BUFFERS_UPDATE: u64 = 16;

/// Forbids all other system calls to all threads of the calling process, for good.
pub fn allow_only(kind: Kind) -> Result<(), Failure> {
    install(kind, seccompiler::apply_filter_all_threads)
}

fn install(
    kind: Kind,
    apply: impl Fn(&[seccompiler::sock_filter]) -> seccompiler::Result<()>,
) -> Result<(), Failure> {
    let what = "confining the process with seccomp";
    let filters = filters(kind).map_err(|error| Failure::broken(what, error))?;
    // The last filter forbids further ones.
    for filter in filters {
        apply(&filter).map_err(|error| {
            Failure::input(what, error).remedy(
                "The kernel must be built with CONFIG_SECCOMP_FILTER, and a container's own filter \
                 must allow seccomp(2).",
            )
        })?;
    }
    Ok(())
}

/// The filters in order of installation; for each call, the strictest verdict counts.
fn filters(kind: Kind) -> Result<Vec<BpfProgram>, BackendError> {
    let allowed = allowed(kind)?;
    let refused = NAMES_A_FILE
        .iter()
        .filter(|call| !allowed.contains_key(call));
    // The C library falls back to clone(2), whose flags a filter can inspect.
    let missing = [libc::SYS_clone3];
    let filter = |calls, (answer, otherwise)| -> Result<BpfProgram, BackendError> {
        let architecture = std::env::consts::ARCH.try_into()?;
        SeccompFilter::new(calls, otherwise, answer, architecture)?.try_into()
    };
    let errno = |errno: i32| SeccompAction::Errno(errno.unsigned_abs());
    let all = |calls: &[c_long]| calls.iter().map(|call| (*call, Vec::new())).collect();
    let refused: Vec<c_long> = refused.copied().collect();
    let mut answered = allowed;
    answered.extend(all(&refused) as BTreeMap<_, _>);
    answered.extend(all(&missing) as BTreeMap<_, _>);
    let mut filters = vec![
        filter(all(&refused), (errno(libc::EPERM), SeccompAction::Allow))?,
        filter(all(&missing), (errno(libc::ENOSYS), SeccompAction::Allow))?,
    ];
    let otherwise = match kind {
        Kind::Fetcher => {
            let deadly = (SeccompAction::KillProcess, SeccompAction::Allow);
            filters.push(filter(all(DEADLY), deadly)?);
            errno(libc::EPERM)
        }
        _ => SeccompAction::KillProcess,
    };
    filters.push(filter(answered, (SeccompAction::Allow, otherwise))?);
    Ok(filters)
}

/// Calls that kill the fetcher: executing programs, inspecting other processes, serving, and
/// bypassing filters.
const DEADLY: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_listen,
    libc::SYS_io_uring_setup,
    libc::SYS_bpf,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_keyctl,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
];

/// Calls that look for a file by its name, and change nothing.
const NAMES_A_FILE: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    // Arm has only the calls relative to a directory.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
];

fn allowed(kind: Kind) -> Result<BTreeMap<c_long, Vec<SeccompRule>>, BackendError> {
    let mut calls = common()?;
    let (plain, ruled): (&[c_long], Vec<Call>) = match kind {
        Kind::Host => (HOST, Vec::new()),
        Kind::Nic => (
            NIC,
            vec![
                // A further thread for reading.
                (libc::SYS_clone, vec![is_a_thread()?]),
                (
                    libc::SYS_io_uring_register,
                    one_of(1, &[IORING_REGISTER_BUFFERS_UPDATE])?,
                ),
            ],
        ),
        Kind::HostRelay => (HOST_RELAY, Vec::new()),
        Kind::NicRelay => (DOOR, Vec::new()),
        Kind::Observer => (
            OBSERVER,
            vec![
                (libc::SYS_clone, vec![is_a_thread()?]),
                (libc::SYS_ioctl, one_of(1, &[FIONBIO])?),
            ],
        ),
        Kind::Broker => (
            BROKER,
            vec![
                (
                    libc::SYS_socketpair,
                    one_of(0, &[libc::AF_UNIX.unsigned_abs().into()])?,
                ),
                (
                    libc::SYS_setsockopt,
                    one_of(1, &[libc::SOL_SOCKET.unsigned_abs().into()])?,
                ),
            ],
        ),
        Kind::Gate => (
            GATE,
            vec![(
                libc::SYS_socket,
                one_of(0, &[libc::AF_UNIX.unsigned_abs().into()])?,
            )],
        ),
        Kind::Fetcher => (
            FETCHER,
            vec![
                (libc::SYS_clone, vec![is_a_thread()?]),
                (libc::SYS_ioctl, one_of(1, &[FIONBIO, FIONREAD])?),
                (libc::SYS_socket, one_of(0, &ADDRESS_FAMILIES)?),
            ],
        ),
    };
    calls.extend(plain.iter().map(|call| (*call, Vec::new())));
    calls.extend(ruled);
    Ok(calls)
}

/// Calls of every process: memory, existing threads, open descriptors, signals, and exiting.
const COMMON: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Resumes a system call that a stop interrupted.
    libc::SYS_restart_syscall,
    // Usually served by the vDSO, but not for every clock.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_ppoll,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_getsockopt,
];

const HOST: &[c_long] = &[
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    // Rings for a further NIC process.
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fstat,
    libc::SYS_mlock2,
    libc::SYS_eventfd2,
    // Requests the end of a NIC process whose last events are needed.
    libc::SYS_shutdown,
];

const NIC: &[c_long] = &[
    // Landlock restricts the paths.
    libc::SYS_openat2,
    libc::SYS_fstat,
    // Distinguishes a disk's file system from one that may hang.
    libc::SYS_fstatfs,
    libc::SYS_statx,
    // Reads a directory.
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_pread64,
    // The ring is restricted to reads.
    libc::SYS_io_uring_enter,
];

const HOST_RELAY: &[c_long] = &[libc::SYS_fstat, libc::SYS_mlock2, libc::SYS_eventfd2];

const DOOR: &[c_long] = &[
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fstat,
    libc::SYS_mlock2,
    libc::SYS_eventfd2,
    // Requests the end of a NIC process whose last events are needed.
    libc::SYS_shutdown,
];

/// Each client of the admin listener has a thread.
const OBSERVER: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_getpeername,
    libc::SYS_fstat,
];

/// Makes shared objects; opens and connects nothing.
const BROKER: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    // Segments and channels.
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fstat,
    libc::SYS_eventfd2,
    // A handle is never read or written; its name is bound.
    libc::SYS_shutdown,
    libc::SYS_bind,
];

/// Attaches applications of another node to the broker of this one.
const GATE: &[c_long] = &[
    libc::SYS_connect,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    // Maps segments and channels.
    libc::SYS_fstat,
    libc::SYS_mlock2,
];

/// Origins, and resolvers: DNS, and services of the machine; the kernel reports the addresses of
/// this machine.
const ADDRESS_FAMILIES: [u64; 4] = [
    libc::AF_UNIX.unsigned_abs() as u64,
    libc::AF_INET.unsigned_abs() as u64,
    libc::AF_INET6.unsigned_abs() as u64,
    libc::AF_NETLINK.unsigned_abs() as u64,
];

const FETCHER: &[c_long] = &[
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    // Landlock restricts the paths and the ports.
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstat,
    // Reads the free space.
    libc::SYS_statfs,
    libc::SYS_lseek,
    libc::SYS_pread64,
    // Checksums of segments, and the boot ID of their writing.
    libc::SYS_pwrite64,
    libc::SYS_fsync,
    libc::SYS_getdents64,
    libc::SYS_mkdirat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_connect,
    // UDP to this machine's own resolver, and netlink requests for addresses.
    libc::SYS_bind,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_sendmmsg,
    // A resolver without a domain reads the machine's name.
    libc::SYS_uname,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    // Arm has only the calls relative to a directory, or with a mask.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
];

fn common() -> Result<BTreeMap<c_long, Vec<SeccompRule>>, BackendError> {
    let mut calls: BTreeMap<_, _> = COMMON.iter().map(|call| (*call, Vec::new())).collect();
    let descriptor_flags = [
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_GETFL,
        libc::F_SETFL,
        libc::F_DUPFD_CLOEXEC,
        libc::F_ADD_SEALS,
        libc::F_GET_SEALS,
    ];
    let own = u64::from(std::process::id());
    calls.extend([
        // Never executable memory.
        (libc::SYS_mmap, vec![is_without(2, libc::PROT_EXEC)?]),
        (libc::SYS_mprotect, vec![is_without(2, libc::PROT_EXEC)?]),
        (
            libc::SYS_fcntl,
            one_of(1, &descriptor_flags.map(|flag| flag.unsigned_abs().into()))?,
        ),
        // Checks that the interface still exists.
        (libc::SYS_ioctl, one_of(1, &[SIOCGIFNAME])?),
        (
            libc::SYS_prctl,
            one_of(
                0,
                &[
                    PR_GET_AUXV,
                    libc::PR_SET_NAME.unsigned_abs().into(),
                    // The C library names its memory.
                    libc::PR_SET_VMA.unsigned_abs().into(),
                ],
            )?,
        ),
        // Aborts after a panic.
        (libc::SYS_tgkill, one_of(0, &[own])?),
    ]);
    Ok(calls)
}

/// From `linux/sockios.h`.
const SIOCGIFNAME: u64 = 0x8910;

/// From `asm-generic/ioctls.h`.
const FIONREAD: u64 = 0x541b;
const FIONBIO: u64 = 0x5421;

/// The argument, 32 bits wide, is one of `values`.
fn one_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
    values
        .iter()
        .map(|value| rule(argument, SeccompCmpOp::Eq, *value))
        .collect()
}

/// The argument, 32 bits wide, has none of `bits`.
fn is_without(argument: u8, bits: i32) -> Result<SeccompRule, BackendError> {
    let mask = u64::from(bits.unsigned_abs());
    rule(argument, SeccompCmpOp::MaskedEq(mask), 0)
}

/// clone(2) for a thread of this process, in its current namespaces.
fn is_a_thread() -> Result<SeccompRule, BackendError> {
    let must = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    let must_not = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    let mask = u64::from((must | must_not).unsigned_abs());
    rule(0, SeccompCmpOp::MaskedEq(mask), must.unsigned_abs().into())
}

fn rule(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    let width = SeccompCmpArgLen::Dword;
    SeccompRule::new(vec![SeccompCondition::new(
        argument, width, operator, value,
    )?])
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io;
    use std::thread;

    use rustix::io::Errno;

    use super::*;

    const KINDS: [Kind; 8] = [
        Kind::Host,
        Kind::Nic,
        Kind::HostRelay,
        Kind::NicRelay,
        Kind::Observer,
        Kind::Broker,
        Kind::Gate,
        Kind::Fetcher,
    ];

    /// Runs `work` in a thread of its own, to which alone the lists apply.
    fn confined<T: Send + 'static>(kind: Kind, work: impl FnOnce() -> T + Send + 'static) -> T {
        let confined = move || {
            install(kind, seccompiler::apply_filter).unwrap();
            work()
        };
        thread::spawn(confined).join().unwrap()
    }

    #[test]
    fn what_names_a_file_is_refused_and_not_deadly() {
        for kind in KINDS {
            let opened = confined(kind, || File::open("/proc/self/status").map(drop));
            match kind {
                // Landlock restricts the paths.
                Kind::Fetcher => opened.unwrap(),
                _ => assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::EPERM)),
            }
            let errno = confined(kind, || std::env::current_dir().map(drop));
            assert_eq!(errno.unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
        File::open("/proc/self/status").expect("other threads are free");
    }

    #[test]
    fn some_processes_may_begin_threads() {
        for kind in [Kind::Nic, Kind::Observer, Kind::Fetcher] {
            assert!(confined(kind, || {
                thread::spawn(|| vec![1u8; 1 << 20].len()).join().is_ok()
            }));
        }
        for kind in [Kind::Host, Kind::HostRelay, Kind::NicRelay, Kind::Broker] {
            let allowed = allowed(kind).unwrap();
            assert!(!allowed.contains_key(&libc::SYS_clone), "{kind:?}");
        }
    }

    #[test]
    fn what_a_process_needs_to_live_and_to_complain_is_allowed() {
        for kind in KINDS {
            confined(kind, || {
                let mut memory: Vec<u8> = Vec::new();
                for size in [1 << 10, 1 << 18, 1 << 24] {
                    memory.resize(size, 1);
                    memory.shrink_to_fit();
                }
                thread::yield_now();
                thread::sleep(std::time::Duration::from_nanos(1));
                let panicked = std::panic::catch_unwind(|| panic!("this one is meant to be"));
                assert!(panicked.is_err());
                io::Write::flush(&mut io::stderr()).unwrap();
            });
        }
    }

    #[test]
    fn no_process_may_reach_into_others_or_run_anything() {
        for kind in KINDS {
            let allowed = allowed(kind).unwrap();
            for call in [
                libc::SYS_execve,
                libc::SYS_execveat,
                libc::SYS_listen,
                libc::SYS_ptrace,
                libc::SYS_process_vm_readv,
                libc::SYS_process_vm_writev,
                libc::SYS_pidfd_getfd,
                libc::SYS_kill,
                libc::SYS_io_uring_setup,
                libc::SYS_seccomp,
                libc::SYS_bpf,
                libc::SYS_unshare,
                libc::SYS_setns,
                libc::SYS_mount,
                libc::SYS_symlinkat,
                libc::SYS_linkat,
                libc::SYS_fchmodat,
                libc::SYS_fchownat,
            ] {
                assert!(!allowed.contains_key(&call), "{kind:?}: {call}");
            }
            let opens = allowed.contains_key(&libc::SYS_openat2);
            assert_eq!(opens, kind == Kind::Nic);
            for call in [
                libc::SYS_socket,
                libc::SYS_connect,
                libc::SYS_bind,
                libc::SYS_openat,
                libc::SYS_unlinkat,
                libc::SYS_renameat2,
            ] {
                let may = allowed.contains_key(&call);
                let connects = [libc::SYS_socket, libc::SYS_connect].contains(&call);
                let expected = kind == Kind::Fetcher
                    || (kind == Kind::Gate && connects)
                    || (kind == Kind::Broker && call == libc::SYS_bind);
                assert_eq!(may, expected, "{kind:?}: {call}");
            }
        }
    }

    #[test]
    fn a_gate_makes_sockets_to_processes_of_this_machine_alone() {
        let made = confined(Kind::Gate, || {
            let kind = rustix::net::SocketType::SEQPACKET;
            rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).err()
        });
        assert_eq!(made, None);
        // Sockets of other families kill the process.
        let rules = &allowed(Kind::Gate).unwrap()[&libc::SYS_socket];
        assert_eq!(rules.len(), 1, "one family");
    }

    #[test]
    fn what_a_module_of_the_machine_may_try_is_refused_to_the_fetcher_and_not_deadly() {
        confined(Kind::Fetcher, || {
            for family in [libc::AF_PACKET, libc::AF_VSOCK] {
                let family = rustix::net::AddressFamily::from_raw(family as u16);
                let made = rustix::net::socket(family, rustix::net::SocketType::DGRAM, None);
                assert_eq!(made.err(), Some(Errno::PERM));
            }
            rustix::net::socket(
                rustix::net::AddressFamily::INET6,
                rustix::net::SocketType::STREAM,
                None,
            )
            .unwrap();
            assert_eq!(rustix::process::chdir("/"), Err(Errno::PERM));
        });
    }
}
