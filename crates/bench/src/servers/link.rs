//! veth pairs: their sizes, and the core that does the kernel's receive work.

use std::fmt::{Display, Formatter};
use std::fs::File;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::sched::{CloneFlags, setns};
use rustix::process::Pid;
use serde::Serialize;
use testbed::namespace::within;
use testbed::process::{run, tool};
use testbed::{Context, Failure, Result};

/// A device, and a process in its network namespace; this process if `None`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device<'a> {
    pub(crate) namespace: Option<Pid>,
    pub(crate) name: &'a str,
}

/// Size limits of a device, in bytes; 0 if the kernel does not report one.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Sizes {
    mtu: u32,
    /// Longest superpackets out, and in, over IPv6 and other protocols than IPv4.
    gso_max_size: u32,
    gro_max_size: u32,
    /// Longest superpackets over IPv4.
    gso_ipv4_max_size: u32,
    gro_ipv4_max_size: u32,
}

impl Display for Sizes {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "veth, MTU {}, gso_ipv4_max_size {}, gro_ipv4_max_size {}",
            self.mtu, self.gso_ipv4_max_size, self.gro_ipv4_max_size
        )
    }
}

/// Reads the size limits of a device.
pub(crate) fn sizes(device: Device<'_>) -> Result<Sizes> {
    let mut sizes = Sizes::default();
    for attribute in link(device)?.attributes {
        match attribute {
            LinkAttribute::Mtu(bytes) => sizes.mtu = bytes,
            LinkAttribute::GsoMaxSize(bytes) => sizes.gso_max_size = bytes,
            LinkAttribute::GroMaxSize(bytes) => sizes.gro_max_size = bytes,
            LinkAttribute::GsoIpv4MaxSize(bytes) => sizes.gso_ipv4_max_size = bytes,
            LinkAttribute::GroIpv4MaxSize(bytes) => sizes.gro_ipv4_max_size = bytes,
            _ => {}
        }
    }
    Ok(sizes)
}

fn link(device: Device<'_>) -> Result<LinkMessage> {
    let found = request(device, RouteNetlinkMessage::GetLink, Vec::new())?;
    found.ok_or_else(|| Failure::new(format!("{}: no answer", device.name)))
}

/// Gives a device the same MTU, and the same largest superpackets out and in, as another.
pub(crate) fn copy_sizes(from: Device<'_>, to: Device<'_>) -> Result<()> {
    let is_size = |attribute: &LinkAttribute| {
        matches!(
            attribute,
            LinkAttribute::Mtu(_)
                | LinkAttribute::GsoMaxSize(_)
                | LinkAttribute::GsoIpv4MaxSize(_)
                | LinkAttribute::GroMaxSize(_)
                | LinkAttribute::GroIpv4MaxSize(_)
        )
    };
    let sizes = link(from)?.attributes.into_iter().filter(is_size).collect();
    request(to, RouteNetlinkMessage::SetLink, sizes).map(drop)
}

/// Sends one rtnetlink request about a device, and returns the link in the answer, if any.
fn request(
    device: Device<'_>,
    kind: impl FnOnce(LinkMessage) -> RouteNetlinkMessage + Send,
    attributes: Vec<LinkAttribute>,
) -> Result<Option<LinkMessage>> {
    let asked = || format!("asking the kernel about {}", device.name);
    let mut link = LinkMessage::default();
    link.attributes = attributes;
    link.attributes
        .push(LinkAttribute::IfName(device.name.to_owned()));
    let mut message = NetlinkMessage::from(kind(link));
    message.header.flags = NLM_F_REQUEST;
    if matches!(
        message.payload,
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::SetLink(_))
    ) {
        message.header.flags |= NLM_F_ACK;
    }
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    // In a thread of its own, which stays in the namespace that it enters.
    let answer = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Some(process) = device.namespace {
                let path = format!("/proc/{}/ns/net", process.as_raw_nonzero());
                setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?;
            }
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            socket.send(&bytes, 0)?;
            socket.recv_from_full().map(|(answer, _)| answer)
        });
        thread.join().expect("no panic")
    });
    let answer = answer.context(asked)?;
    match NetlinkMessage::deserialize(&answer).context(asked)?.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => Ok(Some(link)),
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()).context(asked),
        _ => Ok(None),
    }
}

/// Makes the kernel process packets from a device on the given core (Receive Packet Steering).
///
/// On a veth pair the receiver's protocol work is done in the sender's context, and charged to it,
/// unless it is steered away. Steering needs privileges over the machine: without them, it is
/// skipped.
pub(crate) fn steer(device: Device<'_>, core: usize) -> Result<()> {
    if !crate::is_privileged() {
        return Ok(());
    }
    // /sys shows the devices of the network namespace in which it was mounted.
    let script = format!(
        "mount -t sysfs sysfs /sys && for queue in /sys/class/net/{}/queues/rx-*/rps_cpus; do echo \
         {:x} > $queue || exit 1; done",
        device.name,
        1u64 << core,
    );
    let unshare = "unshare --mount sh -c";
    let mut command = device
        .namespace
        .map_or_else(|| tool(unshare), |process| within(process, unshare));
    run(command.arg(script)).map(drop)
}
