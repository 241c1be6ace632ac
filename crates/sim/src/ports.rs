//! The server's ports, which are busy or drop something now and then.

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

/// A port with a rate takes more until what it has taken lasts for so long: longer than its worker
/// sleeps at most, so that it is never idle while there is something to send.
const QUEUE_NS: u64 = 2_000_000;

/// A port with moods. Nothing wakes who waits for it.
#[derive(Debug)]
pub(crate) struct FaultyPort {
    port: MemoryPort,
    plan: PortPlan,
    random: Random,
    clock_us: Rc<Cell<u64>>,
    busy_until_us: u64,
    /// When all that it has taken would be gone, in nanoseconds, at the rate that it has.
    gone_ns: u64,
    /// So many superpackets may leave; then it is busy for good.
    departures_left: u64,
    departed: Vec<SocketAddr>,
    /// What its user says: what was said before its end is heard, and nothing else.
    feed: Option<Rc<RefCell<EventDrain>>>,
    /// All that has left, if a check looks at it.
    left: Option<Vec<Left>>,
}

impl FaultyPort {
    /// `number` makes it different from others of the same plan.
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

    /// Its user is a worker, which says what it has to say through this. `keeps`: what leaves is
    /// kept for [`FaultyPort::take_left`].
    pub(crate) fn of_worker(self, feed: Rc<RefCell<EventDrain>>, keeps: bool) -> FaultyPort {
        FaultyPort {
            feed: Some(feed),
            left: keeps.then(Vec::new),
            ..self
        }
    }

    /// Who uses it dies when so many more superpackets have left.
    pub(crate) fn close_after(&mut self, departures: u64) {
        self.departures_left = departures;
    }

    /// How many more may leave.
    pub(crate) fn departures_left(&self) -> u64 {
        self.departures_left
    }

    /// For whom packets have left, or were dropped, in order; forgets them.
    pub(crate) fn take_departed(&mut self, into: &mut Vec<SocketAddr>) {
        into.clear();
        into.append(&mut self.departed);
    }

    /// What has left, or was lost here, in order; forgets it.
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
