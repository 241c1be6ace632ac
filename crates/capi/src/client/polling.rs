//! poll(2) for split sockets and descriptors of the kernel together.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Result;
use socket_channel::SocketId;

use super::application::{Client, is_in_store};
use super::cancellation;
use super::process::{Process, number};
use super::readiness::{ALWAYS, bits, bits_or_hint, is_ready};
use super::timing::{Instant, timespec};

/// A descriptor with its interest and its readiness: `struct pollfd`.
#[derive(Clone, Copy, Debug)]
pub struct Polled<'a> {
    /// The descriptor; `None`, as a negative number, is never ready.
    pub fd: Option<BorrowedFd<'a>>,
    /// Interest: bits such as `POLLIN`.
    pub events: u16,
    /// Readiness found.
    pub found: u16,
}

/// Asks the kernel: arguments are its descriptors, which receive their readiness, and the timeout.
pub(crate) type Ask<'a> = dyn FnMut(&mut [Polled<'_>], Option<Duration>) -> Result<()> + 'a;

/// Calls poll(2) of the kernel.
fn ask_kernel(fds: &mut [Polled<'_>], timeout: Option<Duration>) -> Result<()> {
    let asked = fds.iter().filter_map(|polled| {
        let flags = PollFlags::from_bits_retain(polled.events);
        polled.fd.map(|fd| PollFd::from_borrowed_fd(fd, flags))
    });
    let mut asked: Vec<PollFd<'_>> = asked.collect();
    if asked.is_empty() && timeout == Some(Duration::ZERO) {
        return Ok(());
    }
    rustix::event::poll(&mut asked, timeout.map(timespec).as_ref())?;
    for (polled, asked) in fds.iter_mut().zip(&asked) {
        polled.found = asked.revents().bits();
    }
    Ok(())
}

impl Client {
    /// Waits until a descriptor is ready, as poll(2); returns the number of ready ones. EINTR if a
    /// signal comes first (signal(7)).
    pub fn poll(&self, fds: &mut [Polled<'_>], timeout: Option<Duration>) -> Result<usize> {
        self.poll_by(fds, timeout, &mut ask_kernel)
    }

    /// Like [`Client::poll`], with another function to ask the kernel.
    pub(crate) fn poll_by(
        &self,
        fds: &mut [Polled<'_>],
        timeout: Option<Duration>,
        ask: &mut Ask<'_>,
    ) -> Result<usize> {
        let process = self.process()?;
        let ids: Vec<Option<SocketId>> = fds
            .iter()
            .map(|polled| Ok(self.find_id(polled.fd)))
            .collect::<Result<_>>()?;
        let mut poll = Poll { process, ids, ask };
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let link = &process.link;
        link.drain();
        let split = poll.look(fds);
        let now = timeout == Some(Duration::ZERO);
        if split > 0 || now || !poll.has_split(fds) {
            let timeout = if split > 0 {
                Some(Duration::ZERO)
            } else {
                timeout
            };
            return Ok(split + poll.ask_kernel(fds, timeout, None)?);
        }
        let bed = link.bed();
        let found = loop {
            link.fall_asleep(Some(&link.pollers));
            let split = poll.look_and_hint(fds);
            let remaining = match deadline {
                _ if split > 0 => Some(Duration::ZERO),
                Some(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
                None => None,
            };
            let descriptor = bed.descriptor();
            if let Some(set) = descriptor.filter(|_| link.check().is_err()) {
                // The canary would keep the bed ready for ever.
                link.bury_canary(set);
            }
            let sleep = remaining.into_iter().chain(bed.look_again()).min();
            let asked =
                cancellation::check().and_then(|()| poll.ask_kernel(fds, sleep, descriptor));
            let taken = link.sleep_in(&bed, Some(&Timespec::default()));
            link.wake_up(Some(&link.pollers));
            let found = match asked {
                Ok(kernel) => split + kernel,
                Err(_) if split > 0 => split,
                Err(errno) => break Err(errno),
            };
            if let Err(errno) = taken {
                break Err(errno);
            }
            if found > 0 {
                break Ok(found);
            }
            if remaining.is_some_and(|remaining| remaining.is_zero()) {
                break Ok(poll.look(fds));
            }
        };
        if link.check().is_ok() {
            link.make_bed(bed);
        }
        found
    }

    fn find_id(&self, fd: Option<BorrowedFd<'_>>) -> Option<SocketId> {
        self.find(fd?).ok().flatten().map(|socket| socket.id)
    }
}

/// One call of `poll`.
struct Poll<'a, 'b> {
    process: &'a Process,
    /// The split socket behind each descriptor, if it is one.
    ids: Vec<Option<SocketId>>,
    ask: &'a mut Ask<'b>,
}

impl Poll<'_, '_> {
    /// Reports whether the bell may make any descriptor ready.
    fn has_split(&self, fds: &[Polled<'_>]) -> bool {
        self.ids.iter().any(Option::is_some) || fds.iter().any(|polled| self.is_set(polled))
    }

    fn is_set(&self, polled: &Polled<'_>) -> bool {
        let place = polled.fd.map(number);
        place.is_some_and(|place| self.process.sets.get(place).is_some())
    }

    fn look(&mut self, fds: &mut [Polled<'_>]) -> usize {
        self.look_by(fds, false)
    }

    fn look_and_hint(&mut self, fds: &mut [Polled<'_>]) -> usize {
        self.look_by(fds, true)
    }

    /// Looks at split sockets and sets; returns the number of ready ones.
    fn look_by(&mut self, fds: &mut [Polled<'_>], hint: bool) -> usize {
        let mut ready = 0;
        for (polled, id) in fds.iter_mut().zip(&self.ids) {
            polled.found = 0;
            let wanted = u32::from(polled.events);
            let record = id.map(|id| self.process.record(id));
            let found = match record {
                Some(Ok(record)) if hint => bits_or_hint(self.process, record, wanted),
                Some(Ok(record)) => bits(self.process, record) & (wanted | ALWAYS),
                Some(Err(_)) => ALWAYS,
                None if polled.fd.is_some_and(|fd| is_in_store(number(fd))) => {
                    u32::from(PollFlags::NVAL.bits())
                }
                None => {
                    let place = polled.fd.map(number);
                    let set = place.and_then(|place| self.process.sets.get(place));
                    let is_ready = set.is_some_and(|set| is_ready(self.process, &set));
                    if is_ready {
                        u32::from(PollFlags::IN.bits()) & wanted
                    } else {
                        0
                    }
                }
            };
            polled.found = found as u16;
            ready += usize::from(polled.found != 0);
        }
        ready
    }

    /// Asks the kernel about its descriptors, and sleeps in `bed` as well; returns how many more
    /// are ready.
    fn ask_kernel(
        &mut self,
        fds: &mut [Polled<'_>],
        timeout: Option<Duration>,
        bed: Option<BorrowedFd<'_>>,
    ) -> Result<usize> {
        let is_kernels = |(polled, id): &(&mut Polled<'_>, &Option<SocketId>)| {
            id.is_none() && polled.fd.is_some()
        };
        let kernels = fds.iter_mut().zip(&self.ids).filter(is_kernels);
        let kernels: Vec<&mut Polled<'_>> = kernels.map(|(polled, _)| polled).collect();
        let mut asked: Vec<Polled<'_>> = kernels.iter().map(|polled| **polled).collect();
        asked.extend(bed.map(|bed| Polled {
            fd: Some(bed),
            events: PollFlags::IN.bits(),
            found: 0,
        }));
        (self.ask)(&mut asked, timeout)?;
        let mut ready = 0;
        for (polled, asked) in kernels.into_iter().zip(&asked) {
            let is_new = polled.found == 0 && asked.found != 0;
            polled.found |= asked.found;
            ready += usize::from(is_new);
        }
        Ok(ready)
    }
}
