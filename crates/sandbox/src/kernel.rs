//! Required kernel features, checked before any setup.

use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, ResolveFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};

use failure::Failure;

/// Results of probing the running kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// `openat2` with `RESOLVE_BENEATH`: files are opened strictly below the root.
    pub openat2: Result<(), Errno>,
    /// Landlock, first ABI: the host process locks itself out of the file system.
    pub landlock: Result<(), Errno>,
    /// System call filters: each process is limited to the calls that it needs.
    pub seccomp: Result<(), Errno>,
    /// Sealed memory files: a ring between the stacks cannot be truncated.
    pub memfd_seals: Result<(), Errno>,
    /// Packet sockets.
    pub packet_sockets: Result<(), Errno>,
}

/// Fails, naming the feature, if the kernel lacks one.
pub fn require() -> Result<(), Failure> {
    Features::probe().check()
}

impl Features {
    fn probe() -> Self {
        Self {
            openat2: probe_openat2(),
            landlock: probe_landlock(),
            seccomp: probe_seccomp(),
            memfd_seals: probe_memfd_seals(),
            packet_sockets: probe_packet_sockets(),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        missing(
            self.openat2,
            "openat2(2)",
            "Linux 5.6",
            "It keeps file access strictly below the root.",
        )?;
        missing(
            self.landlock,
            "Landlock",
            "Linux 5.13",
            "It locks the host process out of the file system. Check that it is built in \
             (CONFIG_SECURITY_LANDLOCK)\nand switched on: `landlock` must be in the list after \
             `lsm=` on the kernel's command line, if there is one.",
        )?;
        missing(
            self.seccomp,
            "seccomp",
            "Linux 3.5",
            "It takes from the processes the system calls that they do not need. Check that it is \
             built in (CONFIG_SECCOMP_FILTER).",
        )?;
        missing(
            self.memfd_seals,
            "sealed memory files (memfd_create(2), F_ADD_SEALS)",
            "Linux 3.17",
            "The rings between the two stacks lie in them.",
        )?;
        missing(
            self.packet_sockets,
            "packet sockets (AF_PACKET)",
            "Linux 2.2",
            "Load them with `modprobe af_packet`, or build the kernel with CONFIG_PACKET.",
        )
    }
}

fn missing(
    probe: Result<(), Errno>,
    feature: &str,
    since: &str,
    remedy: &str,
) -> Result<(), Failure> {
    let Err(errno) = probe else { return Ok(()) };
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let why = format!("not usable on this kernel, {}: {errno}", release.trim_end());
    let remedy = format!(
        "{remedy}\nIt came with {since}; Splitway needs Linux 5.13 or later. A container's seccomp \
         profile can also forbid it."
    );
    Err(Failure::input(feature, why).remedy(remedy))
}

fn probe_openat2() -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, ".", flags, Mode::empty(), ResolveFlags::BENEATH)?;
    Ok(())
}

fn probe_landlock() -> Result<(), Errno> {
    // The crate reports only that the hard requirement is unmet, the same for both causes.
    let unsupported = |_| Errno::OPNOTSUPP;
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))
        .and_then(Ruleset::create)
        .map(|_| ())
        .map_err(unsupported)
}

fn probe_seccomp() -> Result<(), Errno> {
    rustix::thread::secure_computing_mode().map(|_| ())
}

fn probe_memfd_seals() -> Result<(), Errno> {
    let memory = rustix::fs::memfd_create(
        "splitway-probe",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    rustix::fs::fcntl_add_seals(
        &memory,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )
}

fn probe_packet_sockets() -> Result<(), Errno> {
    match rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None) {
        // Without the privilege, the probe is inconclusive; a missing privilege is reported by
        // [`crate::privileges`].
        Ok(_) | Err(Errno::PERM | Errno::ACCESS) => Ok(()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Features = Features {
        openat2: Ok(()),
        landlock: Ok(()),
        seccomp: Ok(()),
        memfd_seals: Ok(()),
        packet_sockets: Ok(()),
    };

    #[test]
    fn a_kernel_with_everything_passes() {
        assert_eq!(ALL.check(), Ok(()));
    }

    #[test]
    fn each_missing_feature_is_named_with_the_version_that_has_it() {
        let cases = [
            (
                Features {
                    openat2: Err(Errno::NOSYS),
                    ..ALL
                },
                "openat2",
                "Linux 5.6",
            ),
            (
                Features {
                    landlock: Err(Errno::OPNOTSUPP),
                    ..ALL
                },
                "Landlock",
                "Linux 5.13",
            ),
            (
                Features {
                    seccomp: Err(Errno::INVAL),
                    ..ALL
                },
                "seccomp",
                "CONFIG_SECCOMP_FILTER",
            ),
            (
                Features {
                    memfd_seals: Err(Errno::INVAL),
                    ..ALL
                },
                "memfd_create",
                "Linux 3.17",
            ),
            (
                Features {
                    packet_sockets: Err(Errno::AFNOSUPPORT),
                    ..ALL
                },
                "AF_PACKET",
                "modprobe af_packet",
            ),
        ];
        for (features, name, remedy) in cases {
            let failure = features.check().unwrap_err();
            let text = failure.to_string();
            assert_eq!(failure.exit_code(), 2);
            assert!(text.contains(name) && text.contains(remedy), "{text}");
        }
    }

    #[test]
    fn this_kernel_is_asked() {
        // Splitway's tests run on supported kernels only.
        assert_eq!(Features::probe(), ALL);
    }
}
