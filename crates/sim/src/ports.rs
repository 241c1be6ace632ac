//! The server's ports, which are busy or drop packets now and then.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use netdev::memory::MemoryPort;
use netdev::steering::Target;
use netdev::{Frame, Port, SendError, Superpacket};

use crate::event_drain::EventDrain;
use crate::nonce_check::Left;
use crate::random::Random;
use crate::router;
use crate::scenario::BEGINNING_US;
use crate::scenario::{CALM_US, PortPlan};

/// A port with a rate accepts packets until its queue lasts for this time: longer than its worker's
/// longest sleep, so that the port is never idle while the worker has data to send.
const QUEUE_NS: u64 = 2_000_000;

/// A port with faults. A user that waits for it is never woken.
#[derive(Debug)]
pub(crate) struct FaultyPort {
    port: MemoryPort,
    plan: PortPlan,
    random: Random,
    clock_us: Rc<Cell<u64>>,
    busy_until_us: u64,
    /// Time at which its queue will be empty at its rate, in nanoseconds.
    gone_ns: u64,
    /// Number of superpackets that may still leave; then the port is busy for good.
    departures_left: u64,
    departed: Vec<SocketAddr>,
    /// The user's events, of which only those before the user's end pass.
    feed: Option<Rc<RefCell<EventDrain>>>,
    /// All superpackets that have left, if a check needs them.
    left: Option<Vec<Left>>,
}

impl FaultyPort {
    /// Makes a port; `number` distinguishes it from others of the same plan.
    pub(crate) fn new(
        port: MemoryPort,
        plan: &PortPlan,
        number: u64,
        clock_us: Rc<Cell<u64>>,
    ) -> FaultyPort {
        FaultyPort {
            port,
            plan: plan.clone(),
            random: Random::new(plan.seed ^ number),
            clock_us,
            busy_until_us: 0,
            gone_ns: 0,
            departures_left: u64::MAX,
            departed: Vec::new(),
            feed: None,
            left: None,
        }
    }

    /// Makes it the port of a worker with these events. With `keeps`, superpackets are kept for
    /// [`FaultyPort::take_left`].
    pub(crate) fn of_worker(self, feed: Rc<RefCell<EventDrain>>, keeps: bool) -> FaultyPort {
        FaultyPort {
            feed: Some(feed),
            left: keeps.then(Vec::new),
            ..self
        }
    }

    /// Ends the port's user once `departures` more superpackets have left.
    pub(crate) fn close_after(&mut self, departures: u64) {
        self.departures_left = departures;
    }

    /// Returns the number of superpackets that may still leave.
    pub(crate) fn departures_left(&self) -> u64 {
        self.departures_left
    }

    /// Takes the destinations of packets that left or were dropped, in order.
    pub(crate) fn take_departed(&mut self, into: &mut Vec<SocketAddr>) {
        into.clear();
        into.append(&mut self.departed);
    }

    /// Takes the superpackets that left or were dropped, in order.
    pub(crate) fn take_left(&mut self) -> Vec<Left> {
        self.left.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

impl Port for FaultyPort {
    fn mac(&self) -> [u8; 6] {
        self.port.mac()
    }

    fn mtu(&self) -> usize {
        self.port.mtu()
    }

    fn superpacket_max(&self, ipv6: bool) -> usize {
        self.port.superpacket_max(ipv6)
    }

    fn target(&self) -> Option<Target> {
        self.port.target()
    }

    fn send(&mut self, packet: &Superpacket<'_>) -> Result<(), SendError> {
        let now_us = self.clock_us.get();
        let is_calm = now_us >= BEGINNING_US + CALM_US;
        if self.departures_left == 0 || (!is_calm && now_us < self.busy_until_us) {
            return Err(SendError::WouldBlock);
        }
        if !is_calm && self.random.happens(self.plan.busy_ppm) {
            self.busy_until_us = now_us + self.random.within(self.plan.busy_us.clone());
            return Err(SendError::WouldBlock);
        }
        if let Some(bytes_per_second) = self.plan.bytes_per_second {
            let now_ns = now_us * 1_000;
            if self.gone_ns > now_ns + QUEUE_NS {
                return Err(SendError::WouldBlock);
            }
            let payload: usize = packet.payload.iter().map(|slice| slice.len()).sum();
            let bytes = (packet.header.len() + payload) as u64;
            self.gone_ns = self.gone_ns.max(now_ns) + bytes * 1_000_000_000 / bytes_per_second;
        }
        self.departures_left -= 1;
        let remote = router::tcp_destination(packet.header);
        let any = remote.or_else(|| router::udp_destination(packet.header));
        self.departed.extend(any);
        if let (Some(left), Some(remote)) = (&mut self.left, remote)
            && let Some(seq) = router::tcp_seq(packet.header)
        {
            let mut payload = Vec::new();
            for slice in packet.payload {
                payload.extend_from_slice(slice);
            }
            left.push(Left {
                remote,
                seq,
                payload,
            });
        }
        if let Some(feed) = &self.feed
            && self.departures_left == 0
        {
            feed.borrow_mut().end();
        }
        if !is_calm && self.random.happens(self.plan.drop_ppm) {
            return Err(SendError::Dropped);
        }
        self.port.send(packet)
    }

    fn receive(&mut self, budget: usize, handle: &mut dyn FnMut(Frame<'_>)) -> io::Result<usize> {
        self.port.receive(budget, handle)
    }

    fn receive_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.port.receive_fds()
    }

    fn send_fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.send_fd()
    }
}
