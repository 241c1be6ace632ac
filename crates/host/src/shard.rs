//! A shard: one event loop on one core around a [`Stack`], with its port, its clock and its sleep.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use port::Port;
use rustix::event::epoll;
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::app::Application;
use crate::polling::{Pause, Polling, Rest};
use crate::stack::{ChannelCorrupt, Stack};

/// Most frames, and most events of each worker, that a turn takes in before it serves connections.
const BATCH: usize = 256;

/// A shard that is never idle looks this often, in microseconds, whether it is to end.
const END_CHECK_US: u64 = 10_000;

/// Ending, the shard answers for so long, in microseconds, or until it has heard nothing for so long.
const PARTING_US_MAX: u64 = 500_000;
const PARTING_SILENCE_US: u64 = 50_000;

/// Why a shard has ended.
#[derive(Debug)]
pub enum ShardError {
    /// The NIC stack has closed its socket: its process has ended.
    NicGone,
    /// The NIC stack has broken a ring.
    Channel(ChannelCorrupt),
    /// The port failed.
    Port(io::Error),
    /// Waiting for work failed.
    Wait(io::Error),
}

impl std::fmt::Display for ShardError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ShardError::NicGone => write!(f, "the NIC stack has ended"),
            ShardError::Channel(ChannelCorrupt { worker }) => {
                write!(f, "the ring from NIC worker {worker} is corrupt")
            }
            ShardError::Port(error) => write!(f, "receiving from the link failed: {error}"),
            ShardError::Wait(error) => write!(f, "waiting for work failed: {error}"),
        }
    }
}

impl std::error::Error for ShardError {}

/// One event loop with all that it owns.
#[derive(Debug)]
pub struct Shard<P, A> {
    stack: Stack,
    port: P,
    app: A,
    polling: Polling,
}

/// Microseconds of `CLOCK_MONOTONIC`, the host's clock in the contract.
pub fn monotonic_us() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    tv_sec as u64 * 1_000_000 + tv_nsec as u64 / 1_000
}

impl<P: Port, A: Application> Shard<P, A> {
    /// A shard that rests as `polling` says.
    pub fn new(stack: Stack, port: P, app: A, polling: Polling) -> Shard<P, A> {
        Shard {
            stack,
            port,
            app,
            polling,
        }
    }

    /// The stack, for its counters.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The application.
    pub fn app(&self) -> &A {
        &self.app
    }

    /// One round of work without a sleep. True if there was any.
    pub fn turn(&mut self, now_us: u64) -> Result<bool, ShardError> {
        let events = self
            .stack
            .on_channels(now_us, BATCH)
            .map_err(ShardError::Channel)?;
        let stack = &mut self.stack;
        let frames = self
            .port
            .receive(BATCH, &mut |frame| stack.on_frame(now_us, frame))
            .map_err(ShardError::Port)?;
        self.stack.on_time(now_us);
        let served = self.stack.serve(now_us, &mut self.port, &mut self.app);
        Ok(events + frames > 0 || served)
    }

    /// Runs until `stop` becomes readable, or until the NIC stack hangs up `nic_socket`. Connections
    /// that are open then are reset.
    pub fn run(
        &mut self,
        nic_socket: BorrowedFd<'_>,
        stop: BorrowedFd<'_>,
    ) -> Result<(), ShardError> {
        let waiter = Waiter::new(self, nic_socket, stop).map_err(ShardError::Wait)?;
        let result = self.turn_until_end(&waiter);
        self.part();
        result
    }

    /// Resets all connections, and answers for a moment those who do not believe it: a peer that is still owed
    /// bytes finds the RST out of place and asks back with a challenge ACK (RFC 5961 §3.2). The RST that
    /// answers this carries the number it expects.
    fn part(&mut self) {
        let begun_us = monotonic_us();
        self.stack
            .abort_all(begun_us, &mut self.port, &mut self.app);
        let mut heard_us = begun_us;
        loop {
            let now_us = monotonic_us();
            if now_us - begun_us > PARTING_US_MAX || now_us - heard_us > PARTING_SILENCE_US {
                return;
            }
            match self.turn(now_us) {
                Ok(true) => heard_us = now_us,
                Ok(false) => nap(1_000),
                // The port is gone, or the NIC stack makes no sense: nothing is left to be said.
                Err(_) => return,
            }
        }
    }

    fn turn_until_end(&mut self, waiter: &Waiter) -> Result<(), ShardError> {
        let mut end_checked_us = 0;
        self.stack.set_unix_time(unix_time());
        loop {
            let now_us = monotonic_us();
            let mut rest = None;
            if self.turn(now_us)? {
                self.polling.on_work();
            } else {
                let outstanding = self.stack.sends_outstanding();
                rest = Some(self.polling.on_idle(now_us, outstanding));
            }
            let woken = match rest {
                Some(Rest::Sleep) => {
                    let woken = self.sleep(waiter, now_us)?;
                    let slept_us = monotonic_us().saturating_sub(now_us);
                    self.polling.on_wake(slept_us);
                    woken
                }
                // Never asleep, it has to ask.
                _ if now_us - end_checked_us > END_CHECK_US => {
                    waiter.wait(Some(NO_TIME)).map_err(ShardError::Wait)?
                }
                Some(Rest::Pause(us)) => {
                    self.pause(us, now_us)?;
                    continue;
                }
                Some(Rest::LookAgain) => {
                    std::hint::spin_loop();
                    continue;
                }
                None => continue,
            };
            end_checked_us = now_us;
            self.stack.set_unix_time(unix_time());
            match woken {
                Woken::Work => {}
                Woken::Stop => return Ok(()),
                Woken::NicGone => return Err(ShardError::NicGone),
            }
            self.stack.retry_waiting_room();
        }
    }

    /// Lets work gather, and learns how fast the NIC stack is.
    fn pause(&mut self, us: u64, now_us: u64) -> Result<(), ShardError> {
        self.stack.counters_mut().pauses += 1;
        let outstanding = self.stack.sends_outstanding();
        let departed = self.stack.sends_departed();
        let items = self.stack.items();
        nap(us);
        self.stack.retry_waiting_room();
        let woken_us = monotonic_us();
        if self.turn(woken_us)? {
            self.polling.on_work();
        }
        self.polling.on_paused(Pause {
            us: woken_us.saturating_sub(now_us),
            outstanding,
            departed: self.stack.sends_departed() - departed,
            items: self.stack.items() - items,
        });
        Ok(())
    }

    /// Sleeps until a frame, an event, a timer or an end.
    fn sleep(&mut self, waiter: &Waiter, now_us: u64) -> Result<Woken, ShardError> {
        let mut quiet = true;
        for channel in self.stack.channels() {
            quiet &= channel.prepare_sleep();
        }
        let timeout = match quiet {
            true => timeout(&self.stack, now_us),
            false => Some(NO_TIME),
        };
        self.stack.counters_mut().sleeps += u64::from(quiet);
        let woken = waiter.wait(timeout).map_err(ShardError::Wait);
        for channel in self.stack.channels() {
            channel.finish_sleep();
        }
        woken
    }
}

const NO_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Waits, without being woken by work.
fn nap(us: u64) {
    let time = Timespec {
        tv_sec: 0,
        tv_nsec: (us * 1_000) as i64,
    };
    // Ended early by a signal, it has still been a pause.
    let _ = rustix::thread::nanosleep(&time);
}

fn unix_time() -> std::time::Duration {
    std::time::SystemTime::now()
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// How long the shard may sleep.
fn timeout(stack: &Stack, now_us: u64) -> Option<Timespec> {
    let us = stack.next_timeout_us()?.saturating_sub(now_us);
    Some(Timespec {
        tv_sec: (us / 1_000_000) as i64,
        tv_nsec: (us % 1_000_000 * 1_000) as i64,
    })
}

enum Woken {
    Work,
    Stop,
    NicGone,
}

/// The descriptors that end a sleep.
struct Waiter {
    epoll: std::os::fd::OwnedFd,
}

impl Waiter {
    const WORK: u64 = 0;
    const STOP: u64 = 1;
    const NIC_SOCKET: u64 = 2;

    fn new<P: Port, A>(
        shard: &mut Shard<P, A>,
        nic_socket: BorrowedFd<'_>,
        stop: BorrowedFd<'_>,
    ) -> io::Result<Waiter> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |fd: BorrowedFd<'_>, data| {
            let events = epoll::EventFlags::IN;
            epoll::add(&epoll, fd, epoll::EventData::new_u64(data), events)
        };
        for fd in shard.port.receive_fds() {
            add(fd, Waiter::WORK)?;
        }
        for channel in shard.stack.channels() {
            if let Some(fd) = channel.wake_fd() {
                add(fd, Waiter::WORK)?;
            }
        }
        add(nic_socket, Waiter::NIC_SOCKET)?;
        add(stop, Waiter::STOP)?;
        Ok(Waiter { epoll })
    }

    fn wait(&self, timeout: Option<Timespec>) -> io::Result<Woken> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 16];
        let count = match epoll::wait(self.epoll.as_fd(), &mut events[..], timeout.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let mut woken = Woken::Work;
        for event in &events[..count] {
            match event.data.u64() {
                Waiter::STOP => return Ok(Woken::Stop),
                // Nothing is ever sent here after the hello: readable means closed.
                Waiter::NIC_SOCKET => woken = Woken::NicGone,
                _ => {}
            }
        }
        Ok(woken)
    }
}
