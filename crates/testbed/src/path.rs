//! A path with an emulated link in it: this namespace, one for the emulator, one beyond.
//!
//! ```text
//! client ─── near   far ─── uplink        veth pairs; `splitway link` joins near and far
//! 10.90.0.1                 10.90.0.2     fd90::1 and fd90::2; further stacks choose their own
//! ```

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::namespace::{Network, within};
use crate::process::{Process, run, signal, tool};
use crate::{Context, Failure, Result};

/// The device on this side.
pub const CLIENT: &str = "client";

/// The device beyond the link.
pub const UPLINK: &str = "uplink";

/// The kernel's addresses on this side.
pub const CLIENT_ADDRESSES: [IpAddr; 2] = addresses(1);

/// The kernel's addresses beyond the link.
pub const BEYOND_ADDRESSES: [IpAddr; 2] = addresses(2);

/// Returns the addresses of host `number` on the path's networks, 10.90.0.0/24 and fd90::/64.
pub const fn addresses(number: u8) -> [IpAddr; 2] {
    [
        IpAddr::V4(Ipv4Addr::new(10, 90, 0, number)),
        IpAddr::V6(Ipv6Addr::new(0xfd90, 0, 0, 0, 0, 0, 0, number as u16)),
    ]
}

/// Time limit for the emulator to start and to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a command with real-time priority, where permitted: a packet that is due must not wait for
/// the end of a time slice.
const PUNCTUALLY: &str =
    "if chrt --rr 1 true 2>/dev/null; then exec chrt --rr 1 \"$@\"; else exec \"$@\"; fi";

/// The path. Without an [`Emulator`] no packet passes.
#[derive(Debug)]
pub struct Path {
    middle: Network,
    beyond: Network,
}

impl Path {
    /// Makes the namespaces and devices.
    pub fn new() -> Result<Path> {
        let path = Path {
            middle: Network::new()?,
            beyond: Network::new()?,
        };
        let [middle, beyond] = [&path.middle, &path.beyond].map(Network::holder);
        for (outer, inner) in [(CLIENT, "near"), (UPLINK, "far")] {
            let middle = middle.as_raw_nonzero();
            run(&mut tool(&format!(
                "ip link add {outer} type veth peer name {inner} netns {middle}"
            )))?;
        }
        let pid = beyond.as_raw_nonzero();
        run(&mut tool(&format!("ip link set {UPLINK} netns {pid}")))?;
        for device in ["near", "far"] {
            // No addresses, so that the kernel sends no packets there.
            run(&mut within(
                middle,
                &format!("ip link set {device} addrgenmode none"),
            ))?;
            run(&mut within(middle, &format!("ip link set {device} up")))?;
        }
        for (namespace, device, addresses) in [
            (None, CLIENT, CLIENT_ADDRESSES),
            (Some(beyond), UPLINK, BEYOND_ADDRESSES),
        ] {
            let ip = |arguments: &str| {
                let line = format!("ip {arguments}");
                run(&mut namespace.map_or_else(|| tool(&line), |process| within(process, &line)))
            };
            ip("link set lo up")?;
            ip(&format!("link set {device} up"))?;
            ip(&format!("address add {}/24 dev {device}", addresses[0]))?;
            // Fails on kernels without IPv6.
            let _ = ip(&format!(
                "address add {}/64 dev {device} nodad",
                addresses[1]
            ));
        }
        Ok(path)
    }

    /// Returns a process in the namespace beyond the link.
    pub fn beyond(&self) -> Pid {
        self.beyond.holder()
    }

    /// Returns a command on this side or beyond.
    fn tool(&self, beyond: bool, line: &str) -> Command {
        if beyond {
            within(self.beyond(), line)
        } else {
            tool(line)
        }
    }

    /// Sets the kernel's congestion control for connections over this path, on this side or beyond.
    pub fn congestion_control(&self, beyond: bool, name: &str) -> Result<()> {
        let device = if beyond { UPLINK } else { CLIENT };
        for (family, network) in [("-4", "10.90.0.0/24"), ("-6", "fd90::/64")] {
            let line = format!("ip {family} route change {network} dev {device} congctl {name}");
            let changed = run(&mut self.tool(beyond, &line));
            if family == "-4" {
                changed?;
            }
        }
        Ok(())
    }

    /// Joins the two sides: `splitway link near far` with these options, run by `splitway` or a
    /// command that leads to it. No packet is in flight when this returns, and none after the
    /// emulator's end.
    pub fn emulate<A: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        options: impl IntoIterator<Item = A>,
    ) -> Result<Emulator> {
        let mut command = within(self.middle.holder(), "sh -c");
        command.args([PUNCTUALLY, "sh"]);
        command.arg(program).args(["link", "near", "far", "--json"]);
        command.args(options);
        Emulator::start(&mut command)
    }
}

/// A running `splitway link`.
#[derive(Debug)]
pub struct Emulator {
    process: Process,
    output: BufReader<ChildStdout>,
}

impl Emulator {
    fn start(command: &mut Command) -> Result<Emulator> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Process::spawn(command)?;
        let output = process.child().stdout.take().expect("a pipe, as asked for");
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output
            .read_line(&mut line)
            .context(|| "reading from splitway link".into())?;
        match line.contains("joined") {
            true => Ok(Emulator { process, output }),
            // The emulator wrote the reason to standard error.
            false => Err(Failure::new(format!("{command:?} has failed"))),
        }
    }

    /// Ends the emulator; returns its report, as JSON.
    pub fn end(mut self) -> Result<String> {
        signal(self.process.pid(), Signal::TERM)?;
        let mut report = String::new();
        self.output
            .read_to_string(&mut report)
            .context(|| "reading from splitway link".into())?;
        if self.process.wait(PATIENCE)?.success() {
            Ok(report)
        } else {
            Err(Failure::new("splitway link has failed"))
        }
    }
}
