//! Capabilities that a command needs, and the error when one is missing.

use rustix::thread::{CapabilitySet, capabilities};

use failure::Failure;

/// Capabilities for creating the veth pair, moving one end into a namespace, and sending packets
/// there.
pub const FOR_VETH_PAIR: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SYS_ADMIN);

/// Capabilities for sending and receiving packets on an existing interface.
pub const FOR_DEVICE: CapabilitySet = CapabilitySet::NET_RAW;

/// Capabilities for sharing the addresses of an interface with the kernel. `CAP_SYS_ADMIN` includes
/// `CAP_BPF`.
pub const FOR_SHARE: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF);

/// Capabilities for holding ports below 1024.
pub const FOR_LOW_PORTS: CapabilitySet = CapabilitySet::NET_BIND_SERVICE;

/// Names of the capabilities that Splitway needs, as in `setcap` and manual pages.
const NAMES: [(CapabilitySet, &str); 5] = [
    (CapabilitySet::BPF, "cap_bpf"),
    (CapabilitySet::NET_BIND_SERVICE, "cap_net_bind_service"),
    (CapabilitySet::NET_ADMIN, "cap_net_admin"),
    (CapabilitySet::NET_RAW, "cap_net_raw"),
    (CapabilitySet::SYS_ADMIN, "cap_sys_admin"),
];

/// Fails unless the calling thread has the capabilities `needed` for `what`.
pub fn require(what: &str, needed: CapabilitySet) -> Result<(), Failure> {
    let effective = effective()
        .map_err(|errno| Failure::broken("reading the capabilities of this process", errno))?;
    check(what, needed, effective)
}

/// The calling thread's effective capabilities.
pub fn effective() -> rustix::io::Result<CapabilitySet> {
    Ok(capabilities(None)?.effective)
}

fn check(what: &str, needed: CapabilitySet, effective: CapabilitySet) -> Result<(), Failure> {
    let effective = match effective.contains(CapabilitySet::SYS_ADMIN) {
        true => effective.union(CapabilitySet::BPF),
        false => effective,
    };
    let missing = needed.difference(effective);
    if missing.is_empty() {
        return Ok(());
    }
    let program = std::env::current_exe().map_or_else(
        |_| "/path/to/splitway".to_owned(),
        |path| path.display().to_string(),
    );
    let names = names(missing);
    let listed = names.join(", ").to_uppercase();
    let (noun, verb) = if names.len() == 1 {
        ("capability", "is")
    } else {
        ("capabilities", "are")
    };
    Err(Failure::input(
        what,
        format!("no permission: the {noun} {listed} {verb} missing"),
    )
    .remedy(format!(
        "Run it with sudo; or grant what it needs once and for all:\n  \
             sudo setcap {}+ep {program}\n\
             Without any privileges `splitway demo` shows all of it in a namespace of its own.",
        self::names(needed).join(","),
    )))
}

fn names(set: CapabilitySet) -> Vec<&'static str> {
    NAMES
        .iter()
        .filter(|(capability, _)| set.contains(*capability))
        .map(|(_, name)| *name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_is_enough() {
        assert_eq!(check("x", FOR_DEVICE, CapabilitySet::NET_RAW), Ok(()));
        assert_eq!(check("x", FOR_VETH_PAIR, CapabilitySet::all()), Ok(()));
    }

    #[test]
    fn only_what_is_missing_is_named_but_all_is_granted() {
        let failure = check(
            "creating the veth pair",
            FOR_VETH_PAIR,
            CapabilitySet::NET_RAW,
        )
        .unwrap_err();
        let text = failure.to_string();
        assert_eq!(failure.exit_code(), 2);
        assert!(text.starts_with(
            "creating the veth pair: no permission: the capabilities CAP_NET_ADMIN, CAP_SYS_ADMIN \
             are missing"
        ));
        assert!(
            text.contains("sudo setcap cap_net_admin,cap_net_raw,cap_sys_admin+ep /"),
            "{text}"
        );
        assert!(text.contains("splitway demo"), "{text}");
    }

    #[test]
    fn every_capability_asked_for_has_a_name() {
        assert_eq!(
            names(FOR_VETH_PAIR).len(),
            FOR_VETH_PAIR.bits().count_ones() as usize
        );
        assert_eq!(names(FOR_DEVICE), ["cap_net_raw"]);
    }
}
