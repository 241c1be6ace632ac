//! The calls that the kernel reports to the supervisor: a program for seccomp(2).
//!
//! It reports calls with addresses of sockets, and options. Transfers of bytes are not reported: a
//! split socket is a pair of Unix sockets for the program, whose one end the kernel reads and
//! writes. Calls of another architecture have other numbers, so all are reported, and the
//! supervisor ends the program. No filter sees operations of `io_uring`: programs that try it find
//! it missing.

#[cfg(target_arch = "x86_64")]
use libc::BPF_JGE;
use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO,
    SECCOMP_RET_USER_NOTIF, c_long, sock_filter,
};

/// `AUDIT_ARCH_…` of programs that this supervisor understands (`linux/audit.h`).
#[cfg(target_arch = "x86_64")]
pub(crate) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(crate) const ARCHITECTURE: u32 = 0xc000_00b7;

/// Numbers of calls from here on are those of x32, with pointers of 32 bits.
#[cfg(target_arch = "x86_64")]
pub(crate) const X32: u32 = 0x4000_0000;

/// Offsets of the number and the architecture in `struct seccomp_data`.
const NUMBER: u32 = 0;
const OF_ARCHITECTURE: u32 = 4;

/// The calls that are reported.
pub(crate) const CALLS: [c_long; 10] = [
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_shutdown,
];

/// Continuation of a step.
#[derive(Clone, Copy)]
enum Then {
    Next,
    Ask,
    Missing,
}

fn load(at: u32) -> sock_filter {
    sock_filter {
        code: (BPF_LD | BPF_W | BPF_ABS) as u16,
        jt: 0,
        jf: 0,
        k: at,
    }
}

fn end(k: u32) -> sock_filter {
    sock_filter {
        code: (BPF_RET | BPF_K) as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Returns the program.
pub(crate) fn program() -> Vec<sock_filter> {
    let mut steps = vec![(BPF_JEQ, ARCHITECTURE, Then::Next, Then::Ask)];
    #[cfg(target_arch = "x86_64")]
    steps.push((BPF_JGE, X32, Then::Ask, Then::Next));
    // Numbers of calls are small, and not negative.
    let number = |call: c_long| call as u32;
    let asked = CALLS.map(|call| (BPF_JEQ, number(call), Then::Ask, Then::Next));
    steps.extend(asked);
    let uring = number(libc::SYS_io_uring_setup);
    steps.push((BPF_JEQ, uring, Then::Missing, Then::Next));
    let count = steps.len();
    let mut program = vec![load(OF_ARCHITECTURE)];
    for (place, (compare, k, if_so, if_not)) in steps.into_iter().enumerate() {
        // The number is loaded between the first step and the second, and the results follow the
        // last: allow, report, and `ENOSYS`.
        let rest = count - 1 - place + usize::from(place == 0);
        let jump = |then| match then {
            Then::Next => 0,
            Then::Ask => rest as u8 + 1,
            Then::Missing => rest as u8 + 2,
        };
        program.push(sock_filter {
            code: (BPF_JMP | compare | BPF_K) as u16,
            jt: jump(if_so),
            jf: jump(if_not),
            k,
        });
        if place == 0 {
            program.push(load(NUMBER));
        }
    }
    program.push(end(SECCOMP_RET_ALLOW));
    program.push(end(SECCOMP_RET_USER_NOTIF));
    program.push(end(SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs()));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the program's decision on a call, evaluated as by the kernel.
    fn decide(architecture: u32, number: u32) -> u32 {
        let program = program();
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            let code = u32::from(step.code);
            if code == BPF_LD | BPF_W | BPF_ABS {
                loaded = if step.k == NUMBER {
                    number
                } else {
                    architecture
                };
            } else if code == BPF_RET | BPF_K {
                return step.k;
            } else {
                let holds = if code == BPF_JMP | BPF_JEQ | BPF_K {
                    loaded == step.k
                } else {
                    loaded >= step.k
                };
                at += usize::from(if holds { step.jt } else { step.jf });
            }
        }
    }

    #[test]
    fn calls_on_sockets_are_asked_about_and_others_allowed() {
        for call in CALLS {
            assert_eq!(decide(ARCHITECTURE, call as u32), SECCOMP_RET_USER_NOTIF);
        }
        for call in [
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_close,
            libc::SYS_socket,
            libc::SYS_sendto,
            libc::SYS_epoll_ctl,
            libc::SYS_execve,
        ] {
            assert_eq!(decide(ARCHITECTURE, call as u32), SECCOMP_RET_ALLOW);
        }
        let uring = decide(ARCHITECTURE, libc::SYS_io_uring_setup as u32);
        assert_eq!(uring, SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
    }

    #[test]
    fn all_calls_of_another_architecture_are_asked_about() {
        assert_eq!(decide(0x4000_0003, 1), SECCOMP_RET_USER_NOTIF);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(decide(ARCHITECTURE, X32 | 1), SECCOMP_RET_USER_NOTIF);
    }
}
