//! What reaches a shard besides packets and events: its application's own descriptor and time, and
//! orders of the supervisor of NIC stacks.

mod rig;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use contract::control::HostSession;
use host::app::{AppEvent, Application, Io, StreamId};
use host::{NicLoss, NicRefusal, NicSource, Polling, Shard, Stack, monotonic_us};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use rig::Rig;

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn ring(bell: &OwnedFd) {
    rustix::io::write(bell, &1u64.to_ne_bytes()).unwrap();
}

fn silence(bell: &OwnedFd) {
    rustix::io::read(bell, &mut [0; 8]).expect("it has rung");
}

#[derive(Debug, PartialEq)]
enum Heard {
    Order,
    Wake,
    Time,
}

/// Rings its own bell when it is ordered to, then asks to be called at a time, and then has the
/// shard end.
struct Woken {
    heard: Vec<Heard>,
    bell: OwnedFd,
    call_at_us: Option<u64>,
    stop: OwnedFd,
}

impl Application for Woken {
    fn on_event(&mut self, _io: &mut dyn Io, _stream: StreamId, event: AppEvent) {
        panic!("{event:?}: there is no client");
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.bell.as_fd()]
    }

    fn on_wake(&mut self, _io: &mut dyn Io, now_us: u64) {
        silence(&self.bell);
        self.heard.push(Heard::Wake);
        self.call_at_us = Some(now_us + 2_000);
    }

    fn next_timeout_us(&self) -> Option<u64> {
        self.call_at_us
    }

    fn on_turn(&mut self, _io: &mut dyn Io, now_us: u64) -> bool {
        let is_due = self.call_at_us.is_some_and(|at_us| at_us <= now_us);
        if is_due {
            self.call_at_us = None;
            self.heard.push(Heard::Time);
            ring(&self.stop);
        }
        is_due
    }
}

/// Brings no NIC stack, and one order.
struct Orders {
    bell: OwnedFd,
}

impl NicSource<Woken> for Orders {
    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn take(&mut self) -> Option<(usize, HostSession)> {
        None
    }

    fn on_wake(&mut self, _now_us: u64, _stack: &mut Stack, app: &mut Woken) {
        silence(&self.bell);
        app.heard.push(Heard::Order);
        ring(&app.bell);
    }

    fn on_joined(&mut self, _nic: usize) {}

    fn on_refused(&mut self, _nic: usize, refusal: NicRefusal) {
        panic!("{refusal}");
    }

    fn on_lost(&mut self, _nic: usize, loss: NicLoss) {
        panic!("{loss}");
    }
}

#[test]
fn a_sleeping_shard_hears_orders_its_application_and_the_time() {
    let Rig { stack, port, .. } = Rig::new();
    let flags = SocketFlags::CLOEXEC;
    let (host, _nic) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let stop = bell();
    let app = Woken {
        heard: Vec::new(),
        bell: bell(),
        call_at_us: None,
        stop: stop.try_clone().unwrap(),
    };
    let mut orders = Orders { bell: bell() };
    ring(&orders.bell);
    let mut shard = Shard::new(stack, (0, host), port, app, Polling::new(0, 0));
    let begun_us = monotonic_us();
    shard.run(&mut orders, stop.as_fd()).unwrap();
    assert_eq!(shard.app().heard, [Heard::Order, Heard::Wake, Heard::Time]);
    assert!(monotonic_us() - begun_us >= 2_000, "not before its time");
}
