//! The process with the real host stack and the real HTTP server, as `splitway serve` runs them.
//! Its rings come through two sockets, on standard input (the contract's) and standard output (the
//! link's).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use contract::channel::HostChannel;
use contract::control::{self, HostSession, HostSocket, NicSession};
use host::{
    Link, NicLoss, NicRefusal, NicSource, Polling, Shard, Stack, StackConfig, monotonic_us,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendFlags, send};
use serde::{Deserialize, Serialize};
use server::Server;
use testbed::{Context, Result};

use super::client::SERVER;
use super::ring_port::RingPort;
use super::stub_nic::GATEWAY;

/// Longest time that the shard polls for work before it sleeps, and longest pause, in microseconds:
/// those of `splitway serve` on a machine with enough cores, since the host stack has a core of its
/// own here.
const SPIN_US_MAX: u64 = 20;
const PAUSE_US_MAX: u64 = 1_000;

/// Final report of the host process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Account {
    /// Requests that the server has answered.
    pub(crate) requests: u64,
    /// SENDs and packets that repeat bytes.
    pub(crate) retransmissions: u64,
    /// Retransmission timeouts.
    pub(crate) timeouts: u64,
    /// Frames that did not parse, and invalid events.
    pub(crate) invalid: u64,
    /// Times that the shard went to sleep.
    pub(crate) sleeps: u64,
    /// Times that the shard paused to let work accumulate.
    pub(crate) pauses: u64,
}

/// Properties of the NIC's link, for the host process.
#[derive(clap::Args, Debug)]
pub(crate) struct Settings {
    /// Longest IP packet that the NIC segments, in bytes.
    #[arg(long)]
    pub(super) superpacket_bytes: usize,
}

/// Returns a shard as in `splitway serve`, with memory in place of devices.
pub(super) fn shard(
    port: RingPort,
    channels: Vec<HostChannel>,
    nic_socket: impl Into<HostSocket>,
    now_us: u64,
) -> Shard<RingPort, Server> {
    let mut config = StackConfig {
        gateways: vec![GATEWAY.into()],
        ..StackConfig::new(vec![(SERVER.ip(), 24)], vec![SERVER.port()], [7; 16])
    };
    // Round-trip times are queueing delays of the benchmark, not of a path.
    config.tcp.pace = false;
    let stack = Stack::new(config, Link::of(&port), channels, now_us);
    let server = Server::new(server::Config::default());
    let polling = Polling::new(SPIN_US_MAX, PAUSE_US_MAX);
    Shard::new(stack, (0, nic_socket), port, server, polling)
}

/// Serves until the other process closes its half of the link, then sends it the [`Account`].
pub(crate) fn serve(settings: &Settings) -> Result<()> {
    let own = |fd: BorrowedFd<'_>| {
        fd.try_clone_to_owned()
            .context(|| "taking over a socket".into())
    };
    let contract = own(io::stdin().as_fd())?;
    let link = own(io::stdout().as_fd())?;
    let HostSession { channels, socket } =
        control::host_hello(contract, 1).context(|| "meeting the NIC stack".into())?;
    let mut session = control::nic_hello(link, 1).context(|| "meeting the clients".into())?;
    let channel = session.channels.pop().expect("one was asked for");
    let NicSession { socket: link, .. } = session;

    let port = RingPort::new(channel, settings.superpacket_bytes);
    let mut shard = shard(port, channels, socket, monotonic_us());
    let mut nics = NoOtherNics::new()?;
    shard
        .run(&mut nics, link.as_fd())
        .context(|| "running the host stack".into())?;
    let account = account(&shard);
    let account = serde_json::to_vec(&account).context(|| "writing an account".into())?;
    send(&link, &account, SendFlags::NOSIGNAL).context(|| "handing an account over".into())?;
    Ok(())
}

pub(super) fn account(shard: &Shard<RingPort, Server>) -> Account {
    let counters = shard.stack().counters();
    Account {
        requests: shard.app().counters().requests,
        retransmissions: counters.retransmissions,
        timeouts: counters.timeouts,
        invalid: counters.frames_malformed + counters.events_invalid,
        sleeps: counters.sleeps,
        pauses: counters.pauses,
    }
}

/// No NIC stack follows the first.
struct NoOtherNics {
    never: OwnedFd,
}

impl NoOtherNics {
    fn new() -> Result<NoOtherNics> {
        let never = eventfd(0, EventfdFlags::CLOEXEC);
        let never = never.context(|| "creating an event descriptor".into())?;
        Ok(NoOtherNics { never })
    }
}

impl<A> NicSource<A> for NoOtherNics {
    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.never.as_fd()
    }

    fn take(&mut self) -> Option<(usize, HostSession)> {
        None
    }

    fn on_joined(&mut self, _nic: usize) {}

    fn on_refused(&mut self, _nic: usize, _refusal: NicRefusal) {}

    fn on_lost(&mut self, _nic: usize, loss: NicLoss) {
        eprintln!("splitway-bench: the NIC stack's stub is lost: {loss}");
    }
}
