//! New links of the kernel.

use std::net::IpAddr;
use std::time::Duration;

use crate::process::{run, tool};
use crate::{Result, wait};

/// Far longer than the kernel needs, even on a busy machine.
const READY_WAIT: Duration = Duration::from_secs(10);

/// Waits until the kernel forwards packets sent through `devices`, and accepts packets for
/// `addresses`. It enables both in the background: until then, packets are dropped.
///
/// # Errors
/// If a device or an address is not ready within ten seconds.
pub fn await_ready(devices: &[&str], addresses: &[IpAddr]) -> Result<()> {
    for device in devices {
        wait::until(READY_WAIT, &format!("link {device} is up"), || {
            let link = run(&mut tool(&format!("ip link show dev {device}"))).ok()?;
            (link.contains("LOWER_UP") && !link.contains("qdisc noop ")).then_some(())
        })?;
    }
    for address in addresses {
        wait::until(READY_WAIT, &format!("{address} is usable"), || {
            let route = run(&mut tool(&format!("ip route get {address}"))).ok()?;
            route.starts_with("local ").then_some(())
        })?;
    }
    Ok(())
}
