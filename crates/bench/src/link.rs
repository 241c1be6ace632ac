//! veth pairs, and on which core the kernel does their receive work.

use rustix::process::Pid;
use testbed::Result;
use testbed::namespace::within;
use testbed::process::{run, tool};

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
    let unshare = "unshare --mount sh -c";
    let mut command = steering
        .namespace
        .map_or_else(|| tool(unshare), |process| within(process, unshare));
    run(command.arg(script)).map(drop)
}
