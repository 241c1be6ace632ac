//! Two interfaces and a clock around two directions.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netdev::SendError;
use netdev::packet::virtio::GSO_NONE;
use netdev::packet::{OpenError, PromiscuousPort};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::setpriority_process;
use rustix::thread::set_current_timer_slack;
use rustix::time::{ClockId, clock_gettime};

use crate::conditions::Conditions;
use crate::direction::{Departure, Direction};
use crate::frame::Frame;
use crate::report::{DirectionReport, Lateness, Report};

/// Most frames received from an interface before departures are handled.
const RECEIVE_BUDGET: usize = 64;

/// Tolerance of the kernel's wake-up, in nanoseconds: packets that leave within this time leave
/// together. The usual 50 µs would be a quarter of the shortest round-trip times in use; a tenth of
/// it would wake the emulator for every packet at 1 Gbit/s.
const TIMER_SLACK_NS: u64 = 10_000;

/// Priority, so that the emulator runs as soon as a packet is due: other threads are delayed only
/// for the time to forward a few packets.
const NICE: i32 = -15;

/// Settings of the link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Conditions from the first interface to the second, and back.
    pub directions: [Conditions; 2],
    /// Seed of all random choices.
    pub seed: u64,
}

/// A link between two interfaces.
#[derive(Debug)]
pub struct Bridge {
    seed: u64,
    began_ns: u64,
    sides: [Side; 2],
    /// Buffer for headers of frames sent in parts.
    header: Vec<u8>,
}

/// An interface, and the direction that begins there.
#[derive(Debug)]
struct Side {
    port: PromiscuousPort,
    direction: Direction,
    lateness: Lateness,
    refused: u64,
    uncut: u64,
}

impl Bridge {
    /// Joins two interfaces. Needs `CAP_NET_RAW`; with `CAP_SYS_NICE` it is more punctual on a busy
    /// machine.
    pub fn open(interfaces: [&str; 2], settings: Settings) -> Result<Bridge, OpenError> {
        let side = |end: usize| {
            Ok(Side {
                port: PromiscuousPort::open(interfaces[end])?,
                // One seed, but independent random choices in both directions.
                direction: Direction::new(
                    settings.directions[end],
                    settings.seed ^ (end as u64) << 63,
                ),
                lateness: Lateness::default(),
                refused: 0,
                uncut: 0,
            })
        };
        // Without the privilege it runs at normal priority, and the report shows the lateness.
        let _ = setpriority_process(None, NICE);
        let _ = set_current_timer_slack(TIMER_SLACK_NS.try_into().ok());
        Ok(Bridge {
            seed: settings.seed,
            began_ns: monotonic_ns(),
            sides: [side(0)?, side(1)?],
            header: Vec::new(),
        })
    }

    /// Forwards packets until `stop` is readable.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> Result<(), BridgeError> {
        loop {
            let taken = self.receive()?;
            self.depart()?;
            // A burst is received completely before the emulator sleeps, with a check of `stop` now
            // and then.
            if self.wait(stop, taken > 0)? {
                return Ok(());
            }
        }
    }

    /// Receives available frames; returns their number.
    fn receive(&mut self) -> Result<usize, BridgeError> {
        let mut taken = 0;
        for side in &mut self.sides {
            let (direction, uncut) = (&mut side.direction, &mut side.uncut);
            let received = side.port.receive(RECEIVE_BUDGET, &mut |arrival| {
                let arrived_ns = monotonic_ns().saturating_sub(arrival.waited_ns);
                let frame = Frame::new(arrival.bytes, arrival.unfinished);
                *uncut +=
                    u64::from(arrival.unfinished.gso_type != GSO_NONE && frame.packets() == 1);
                direction.arrive(arrived_ns, frame);
            });
            taken += received.map_err(|error| side.failed("receiving", error))?;
        }
        Ok(taken)
    }

    /// Sends due packets.
    fn depart(&mut self) -> Result<(), BridgeError> {
        for (from, to) in [(0, 1), (1, 0)] {
            let mut now_ns = monotonic_ns();
            while let Some(departure) = self.sides[from].direction.depart(now_ns) {
                let Departure {
                    frame,
                    packets,
                    due_ns,
                } = departure;
                let (unfinished, pieces) = frame.run(packets, &mut self.header);
                match self.sides[to].port.send(unfinished, pieces) {
                    Ok(()) => {}
                    Err(SendError::WouldBlock | SendError::Dropped) => {
                        self.sides[from].refused += 1;
                    }
                    // Too long for the interface, or the interface is down.
                    Err(SendError::Failed(error)) => match Errno::from_io_error(&error) {
                        Some(Errno::MSGSIZE | Errno::INVAL | Errno::NETDOWN) => {
                            self.sides[from].refused += 1;
                        }
                        _ => return Err(self.sides[to].failed("sending", error)),
                    },
                }
                now_ns = monotonic_ns();
                self.sides[from].lateness.add(now_ns.saturating_sub(due_ns));
            }
        }
        Ok(())
    }

    /// Sleeps until a frame arrives or a packet is due, or only polls; returns true if `stop` is
    /// readable.
    fn wait(&self, stop: BorrowedFd<'_>, look_only: bool) -> Result<bool, BridgeError> {
        let next_ns = self
            .sides
            .iter()
            .filter_map(|side| side.direction.next_departure_ns());
        let sleep_ns = if look_only {
            Some(0)
        } else {
            next_ns
                .min()
                .map(|next_ns| next_ns.saturating_sub(monotonic_ns()))
        };
        let timeout = sleep_ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        });
        let [a, b] = &self.sides;
        let mut fds = [stop, a.port.as_fd(), b.port.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(!fds[0].revents().is_empty()),
            Err(errno) => Err(BridgeError {
                tried: "waiting for packets".into(),
                error: errno.into(),
            }),
        }
    }

    /// Returns the report so far.
    pub fn report(&mut self) -> io::Result<Report> {
        let names = [0, 1].map(|end: usize| self.sides[end].port.interface().to_owned());
        let [ab, ba] = &mut self.sides;
        Ok(Report {
            seed: self.seed,
            elapsed_ns: monotonic_ns() - self.began_ns,
            directions: [
                ab.report(&names[0], &names[1])?,
                ba.report(&names[1], &names[0])?,
            ],
        })
    }
}

impl Side {
    fn report(&mut self, from: &str, to: &str) -> io::Result<DirectionReport> {
        Ok(DirectionReport {
            from: from.to_owned(),
            to: to.to_owned(),
            counters: self.direction.counters(),
            overrun: self.port.dropped()?,
            refused: self.refused,
            uncut: self.uncut,
            lateness: self.lateness,
        })
    }

    fn failed(&self, tried: &str, error: io::Error) -> BridgeError {
        BridgeError {
            tried: format!("{tried} on {}", self.port.interface()),
            error,
        }
    }
}

/// Failure of the link: an interface is gone, or the kernel reports an error.
#[derive(Debug)]
pub struct BridgeError {
    /// Operation, and its interface.
    tried: String,
    /// The kernel's error.
    error: io::Error,
}

impl fmt::Display for BridgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.tried, self.error)
    }
}

impl std::error::Error for BridgeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
