//! Early data (RFC 9001 §4.6): requests before the handshake is complete.

use contract::tls::Cipher;
use fakes::seeds::each_seed;
use fakes::weather::Weather;
use quic::{Limits, Settings};

use crate::support::{World, settings};

fn permitting() -> Settings {
    permitting_within(Limits::default())
}

fn permitting_within(limits: Limits) -> Settings {
    Settings {
        early_data: true,
        limits,
        ..settings()
    }
}

/// A world whose client has a session that it may resume, and has begun to. Nothing shows that it
/// has its address.
fn resuming<'a>(settings: &Settings, random: &'a mut dyn FnMut(u64) -> u64) -> World<'a> {
    let mut world = connected(settings, random);
    world.forget_tokens();
    world.reconnect();
    world
}

fn connected<'a>(settings: &Settings, random: &'a mut dyn FnMut(u64) -> u64) -> World<'a> {
    let mut world = World::new(settings, Cipher::Aes128Gcm, random);
    assert!(!world.client.may_send_early(), "there is no session yet");
    world.run_until(|world| world.client.is_connected);
    world.request(1, 0, 10_000);
    world.run_until(|world| {
        world.are_finished() && world.client.is_confirmed() && world.queued_sends() == 0
    });
    assert_eq!(world.early_connections, 0);
    world
}

#[test]
fn a_client_that_resumes_is_answered_before_the_handshake_is_complete() {
    each_seed(1, |random| {
        let mut world = resuming(&permitting(), random);
        assert!(world.client.may_send_early());
        world.is_muzzled = true;
        let stream = world.request(1, 0, 1000);
        world.request(2, 0, 500_000);
        // The client's second flight is lost, and with it the proof that it has its address.
        world.run_until(|world| {
            assert!(world.sent_bytes <= 3 * world.received_bytes);
            !world.transfers[&stream].received.is_empty()
        });
        assert_eq!((world.early_connections, world.early_streams), (1, 2));
        assert_eq!(world.completed, 0);
        world.is_muzzled = false;
        world.run_until(|world| world.are_finished());
        assert!(world.client.is_early_data_accepted());
        assert_eq!(world.completed, 1);
        assert_eq!(world.endpoint.undescribable(), 0);
        // What follows is as ever.
        world.request(3, 5, 100_000);
        world.run_until(|world| world.are_finished());
        assert_eq!(world.early_streams, 2);
    });
}

#[test]
fn a_bad_network_loses_no_byte_of_what_is_asked_for_early() {
    each_seed(40, |random| {
        let mut world = connected(&permitting(), random);
        if (world.random)(2) == 0 {
            world.forget_tokens();
        }
        world.reconnect();
        world.weather = Weather {
            lost: 50,
            late: 50,
            damaged: 20,
        };
        for file in 1..5 {
            world.request(file, 0, 100_000);
        }
        let mut next = 50;
        world.run_until(|world| {
            if world.sealed_packets > next {
                next += 100;
                world.replace_nic();
            }
            world.are_finished()
        });
        assert_eq!(world.closed, None);
    });
}

/// RFC 8446 §8.1: a session is resumed once.
#[test]
fn a_copy_of_early_data_brings_nothing() {
    each_seed(1, |random| {
        let mut world = resuming(&permitting(), random);
        world.request(1, 0, 1000);
        world.run_until(|world| world.are_finished());
        let said = world.said.clone();
        // While the server knows the connection, and once it has forgotten it.
        world.replay();
        assert_eq!((world.early_connections, world.early_streams), (1, 1));
        world.client.close(world.now_us, 0);
        world.drain();
        world.said = said;
        world.replay();
        assert_eq!((world.early_connections, world.early_streams), (1, 1));
        assert_eq!(world.endpoint.connections(), 1, "the copy of a handshake");
    });
}

#[test]
fn no_ticket_permits_early_data_unless_it_is_wanted() {
    each_seed(1, |random| {
        let mut world = resuming(&settings(), random);
        assert!(!world.client.may_send_early());
        world.run_until(|world| world.client.is_connected);
        assert!(!world.client.is_early_data_accepted());
    });
}

/// The client was told that it may send more than this.
#[test]
fn early_data_is_refused_while_receive_windows_are_small() {
    each_seed(1, |random| {
        let settings = permitting_within(Limits {
            receive_less_above: 1,
            ..Limits::default()
        });
        let mut world = connected(&settings, random);
        world.connect_beside();
        assert!(world.client.may_send_early());
        world.request(1, 0, 1000);
        world.transfers.clear();
        world.run_until(|world| world.client.is_connected);
        assert!(!world.client.is_early_data_accepted());
        assert_eq!(world.early_connections, 0);
        // The client's QUIC has taken the streams back.
        world.request(1, 0, 100_000);
        world.run_until(|world| world.are_finished());
        world.reconnect();
        assert!(!world.client.may_send_early(), "nor do tickets permit any");
    });
}

/// The address is validated then: early data comes once more.
#[test]
fn early_data_follows_a_retry() {
    each_seed(1, |random| {
        let settings = permitting_within(Limits {
            retry_above: 0,
            ..Limits::default()
        });
        let mut world = resuming(&settings, random);
        world.request(1, 0, 100_000);
        world.run_until(|world| world.are_finished());
        assert!(world.client.is_early_data_accepted());
        assert_eq!((world.early_connections, world.early_streams), (1, 1));
    });
}

/// RFC 9000 §8.1.3: of early data, much can be answered at once then.
#[test]
fn a_client_that_comes_again_shows_its_address_by_a_token() {
    each_seed(1, |random| {
        let settings = permitting_within(Limits {
            retry_above: 0,
            ..Limits::default()
        });
        let mut world = connected(&settings, random);
        assert_eq!(world.retries, 1, "it had none");
        world.reconnect();
        world.is_muzzled = true;
        let stream = world.request(1, 0, 100_000);
        world.run_until(|world| world.transfers[&stream].received.len() > 8_000);
        assert!(world.sent_bytes > 3 * world.received_bytes);
        assert_eq!((world.early_streams, world.completed), (1, 0));
        assert_eq!(world.retries, 1);
        world.is_muzzled = false;
        world.run_until(|world| world.are_finished());
        world.client.close(world.now_us, 0);
        world.drain();
        // A copy of the token is not taken.
        world.replay();
        world.run_until(|world| world.retries > 1);
        assert_eq!(world.endpoint.connections(), 0);
    });
}
