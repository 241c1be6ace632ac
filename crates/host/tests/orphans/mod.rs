//! Connections that are closed here, and whose peers do not play along: they are bounded in number,
//! and in time.

use std::net::SocketAddr;
use std::time::Duration;

use host::app::{AppEvent, CloseReason};
use wire::tcp::{Flags, Header};

use crate::rig::{Rig, answer};

/// A client that does what the test says, and nothing else.
#[derive(Clone, Copy)]
struct Puppet {
    address: SocketAddr,
    seq: u32,
}

impl Puppet {
    /// Shakes hands, and asks for nothing but the end of the connection.
    fn quit(rig: &mut Rig, number: u16) -> Puppet {
        let address = SocketAddr::new("192.0.2.7".parse().unwrap(), 2000 + number);
        rig.inject_syn(address);
        rig.run_until(|rig| rig.strangers.contains_key(&address.port()));
        let mut puppet = Puppet { address, seq: 8 };
        puppet.say(rig, Flags::ACK | Flags::PSH, b"quit\n");
        rig.run_until(|rig| puppet.heard(rig, Flags::FIN));
        puppet
    }

    /// Acknowledges all but a FIN, unless the flags have one of its own.
    fn say(&mut self, rig: &mut Rig, flags: Flags, payload: &[u8]) {
        let last = rig.strangers[&self.address.port()];
        let occupies = u32::from(last.flags.contains(Flags::SYN));
        self.say_with_ack(rig, flags, last.seq.wrapping_add(occupies), payload);
    }

    fn say_with_ack(&mut self, rig: &mut Rig, flags: Flags, ack: u32, payload: &[u8]) {
        let header = Header {
            seq: self.seq,
            ack,
            flags,
            window: 1000,
            ..Header::default()
        };
        self.seq = self.seq.wrapping_add(payload.len() as u32);
        rig.inject_segment(self.address, &header, payload);
        rig.step();
    }

    fn acknowledge_fin(&mut self, rig: &mut Rig) {
        let fin = rig.strangers[&self.address.port()];
        self.say_with_ack(rig, Flags::ACK, fin.seq.wrapping_add(1), &[]);
    }

    fn heard(&self, rig: &Rig, flag: Flags) -> bool {
        let last = rig.strangers.get(&self.address.port());
        last.is_some_and(|last| last.flags.contains(flag))
    }
}

/// A rig whose own client never comes.
fn without_client() -> Rig {
    let mut rig = Rig::new();
    rig.client.abort();
    rig
}

/// Lets time pass from timer to timer until nothing is left, and says how much did.
fn until_nothing_is_left(rig: &mut Rig) -> Duration {
    let begun_us = rig.now_us;
    while rig.stack.connections() > 0 {
        let next_us = rig.stack.next_timeout_us();
        rig.now_us = next_us.expect("a timer").max(rig.now_us);
        rig.step();
    }
    Duration::from_micros(rig.now_us - begun_us)
}

fn closed_by_timeout(rig: &Rig) -> usize {
    rig.app.count(|event| {
        let reason = CloseReason::TimedOut;
        matches!(event, AppEvent::Closed { reason: r, .. } if *r == reason)
    })
}

/// Ten clients, and four that may linger.
fn a_crowd(acknowledges: bool) -> (Rig, Vec<Puppet>) {
    let mut rig = Rig::with(|config| config.orphans_max = 4);
    rig.ask(&["300000"]);
    rig.run_until(|rig| rig.received.len() > 100_000);
    let crowd = (0..10)
        .map(|number| {
            let mut puppet = Puppet::quit(&mut rig, number);
            if acknowledges {
                puppet.acknowledge_fin(&mut rig);
            }
            puppet
        })
        .collect();
    (rig, crowd)
}

fn the_oldest_went_and_the_client_is_served(mut rig: Rig, crowd: &[Puppet]) {
    let reset: Vec<bool> = (crowd.iter())
        .map(|puppet| puppet.heard(&rig, Flags::RST))
        .collect();
    assert_eq!(reset, [[true; 6].as_slice(), &[false; 4]].concat());
    assert_eq!(rig.stack.counters().orphans_aborted, 6);
    assert_eq!(rig.stack.usage().orphans, 4);
    assert_eq!(rig.stack.connections(), 5);
    rig.run_until(|rig| rig.received.len() == 300_002);
    assert!(rig.received == answer(300_000));
}

#[test]
fn of_those_that_never_acknowledge_a_fin_the_oldest_are_reset_when_there_are_too_many() {
    let (rig, crowd) = a_crowd(false);
    the_oldest_went_and_the_client_is_served(rig, &crowd);
}

#[test]
fn of_those_that_never_send_a_fin_the_oldest_are_reset_when_there_are_too_many() {
    let (rig, crowd) = a_crowd(true);
    the_oldest_went_and_the_client_is_served(rig, &crowd);
}

#[test]
fn who_closes_in_order_is_no_orphan() {
    let mut rig = Rig::with(|config| config.orphans_max = 1);
    for _ in 0..5 {
        rig.ask(&["1000"]);
        rig.run_until(|rig| rig.received.len() == 1002);
        rig.ask(&["quit"]);
        rig.run_until(|rig| rig.client.state() == tcp::State::CloseWait);
        rig.client.shutdown();
        rig.run_until(|rig| rig.client_closed.is_some());
        assert_eq!(rig.client_closed, Some(tcp::CloseReason::Finished));
        rig.reconnect();
    }
    assert_eq!(rig.stack.counters().orphans_aborted, 0);
    assert_eq!(rig.stack.usage().orphans, 0);
}

/// Covers: RFC 9293 §3.8.3
#[test]
fn a_fin_without_acknowledgment_is_given_up_after_a_hundred_seconds() {
    let mut rig = without_client();
    Puppet::quit(&mut rig, 0);
    let took = until_nothing_is_left(&mut rig);
    // From 0.2 s on, doubled eight times: more than the 100 s that are asked for.
    assert!((100..110).contains(&took.as_secs()), "{took:?}");
    assert_eq!(closed_by_timeout(&rig), 1);
    assert_eq!(rig.stack.usage().orphans, 0);
}

#[test]
fn fin_wait_2_lasts_for_a_minute_of_silence() {
    let mut rig = without_client();
    let mut puppet = Puppet::quit(&mut rig, 0);
    puppet.acknowledge_fin(&mut rig);
    let took = until_nothing_is_left(&mut rig);
    assert_eq!(took.as_secs(), 60, "{took:?}");
    assert_eq!(closed_by_timeout(&rig), 1);
}
