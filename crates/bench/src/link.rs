//! veth pairs, and on which core the kernel does their receive work.

use std::process::Command;

use rustix::process::Pid;
use testbed::process::{run, tool};
use testbed::{Context, Failure, Result};

/// A command in the network namespace of a process, or in this process's own.
pub(crate) fn within(namespace: Option<Pid>, line: &str) -> Command {
    match namespace {
        Some(pid) => tool(&format!(
            "nsenter --target {} --net {line}",
            pid.as_raw_nonzero()
        )),
        None => tool(line),
    }
}

/// The name of the one device of a process's network namespace, besides loopback.
pub(crate) fn other_than_loopback(namespace: Pid) -> Result<String> {
    let printed = run(&mut within(Some(namespace), "ip -json link"))?;
    let links: serde_json::Value =
        serde_json::from_str(&printed).context(|| "reading ip -json link".into())?;
    let names = links
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|link| link["ifname"].as_str());
    let mut others = names.filter(|name| *name != "lo");
    others
        .next()
        .map(str::to_owned)
        .ok_or_else(|| Failure::new(format!("no device in {printed}")))
}

/// Which core is to receive what comes in through a device.
pub(crate) struct Steering<'a> {
    /// The process in whose network namespace the device is; this process if `None`.
    pub(crate) namespace: Option<Pid>,
    /// The device.
    pub(crate) device: &'a str,
    /// The core.
    pub(crate) core: usize,
}

/// Has the kernel receive what comes in through a device on the given core (Receive Packet Steering).
///
/// On a veth pair the receiver's protocol work is done in the sender's context, and charged to it, unless it
/// is steered away: then each side pays for what it receives, as between machines.
pub(crate) fn steer(steering: Steering<'_>) -> Result<()> {
    // /sys shows the devices of the network namespace in which it was mounted.
    let script = format!(
        "mount -t sysfs sysfs /sys && for queue in /sys/class/net/{}/queues/rx-*/rps_cpus; do echo {:x} > $queue || exit 1; done",
        steering.device,
        1u64 << steering.core,
    );
    let mut command = within(steering.namespace, "unshare --mount sh -c");
    run(command.arg(script)).map(drop)
}
