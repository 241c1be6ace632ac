//! Connections whose packets NIC workers open: handed on by the host, or steered past it.

use contract::channel::Capacity;
use contract::quic::{QuicConnectionId, QuicReceived, QuicReceivedPacket};
use contract::tls::Cipher;
use contract::{Event, FlowId};
use fakes::seeds::each_seed;
use fakes::weather::Weather;
use host::QuicReceive;

use crate::nics::leave_a_worker;
use crate::world::{Setup, World, server_address};

fn steady(below: u64) -> u64 {
    below / 2
}

fn setup(is_steered: bool) -> Setup {
    Setup {
        receive: QuicReceive::NIC,
        is_steered,
        ..Setup::default()
    }
}

/// Has a client fetch a file of so many bytes.
fn download(world: &mut World<'_>, client: usize, bytes: u64) {
    world.request(client, bytes, (0, bytes), 0);
    world.run_until_finished();
}

#[test]
fn a_worker_opens_what_a_client_sends() {
    for is_steered in [false, true] {
        for (cipher, v6) in [
            (Cipher::Aes128Gcm, false),
            (Cipher::Aes256Gcm, true),
            (Cipher::ChaCha20Poly1305, false),
        ] {
            let mut random = steady;
            let mut world = World::with(setup(is_steered), &mut random);
            let client = world.connect(cipher, v6);
            world.run_until(|world| world.peers[client].client.is_connected);
            download(&mut world, client, 3_000_000);
            let counters = world.stack.counters();
            let opener = &world.nics[0].opener;
            // The host opens the first packets after each update of keys, of which there are some.
            assert!(opener.opened > 20, "{}", opener.opened);
            assert_eq!(counters.quic_packets_opened, opener.opened);
            assert_eq!(counters.quic_packets_refused, 0);
            // quinn updates keys after some packets, by chance.
            assert!(counters.quic_receive_keys >= 1);
            assert_eq!(counters.quic_datagrams_handed_on == 0, is_steered);
            assert_eq!(counters.flows_steered, u64::from(is_steered));
            world.close();
        }
    }
}

#[test]
fn by_default_no_worker_gets_a_key_to_open_with() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    download(&mut world, client, 100_000);
    assert_eq!(world.stack.counters().quic_receive_keys, 0);
    assert_eq!(world.nics[0].opener.opened, 0);
    let info = world.stack.quic_connections().next().expect("a connection");
    assert_eq!(
        (info.is_opened_by_nic, info.packets_opened_by_nic),
        (false, 0)
    );
    world.close();
}

#[test]
fn keys_change_while_a_worker_opens() {
    for is_steered in [false, true] {
        let mut random = steady;
        let mut world = World::with(setup(is_steered), &mut random);
        let client = world.connected();
        for _ in 0..3 {
            world.request(client, 2_000_000, (0, 2_000_000), 0);
            world.run_for(5_000);
            world.peers[client].client.update_keys();
            world.run_until_finished();
            // The client keeps its last keys for a while, and updates none before.
            world.run_for(2_000_000);
        }
        let counters = world.stack.counters();
        assert!(counters.quic_receive_keys >= 4, "{counters:?}");
        assert_eq!(counters.quic_packets_refused, 0);
        let opener = &world.nics[0].opener;
        // The first of each key phase are the host's.
        assert!(opener.handed_up >= 3 && opener.opened > 50);
        world.close();
    }
}

#[test]
fn a_client_with_another_address_is_received_at_it() {
    for is_steered in [false, true] {
        let mut random = steady;
        let mut world = World::with(setup(is_steered), &mut random);
        let client = world.connected();
        world.request(client, 3_000_000, (0, 3_000_000), 0);
        world.run_for(5_000);
        world.peers[client].client.local.set_port(9_999);
        world.run_until_finished();
        let before = world.nics[0].opener.opened;
        download(&mut world, client, 10_000_000);
        let opened = world.nics[0].opener.opened - before;
        assert!(opened > 50, "{opened}");
        let info = world.stack.quic_connections().next().expect("a connection");
        assert_eq!(info.remote.port(), 9_999);
        assert!(info.is_opened_by_nic);
        let counters = world.stack.counters();
        assert_eq!(info.packets_opened_by_nic, counters.quic_packets_opened);
        assert_eq!(world.stack.flows_steered(), usize::from(is_steered));
        world.close();
    }
}

fn outlive_workers(is_steered: bool, random: &mut dyn FnMut(u64) -> u64) {
    let mut world = World::with(setup(is_steered), random);
    world.weather = Weather {
        lost: 10,
        late: 20,
        damaged: 5,
    };
    let clients: Vec<usize> = (0..3).map(|_| world.connected()).collect();
    for client in clients {
        for number in 0..3 {
            world.request(client, 500_000 + number, (0, 500_000), 3000);
        }
    }
    let mut deaths = 0;
    while !world.are_finished() {
        let time_us = (world.random)(40_000);
        world.run_for(time_us);
        if deaths < 20 {
            world.restart_worker(0);
            deaths += 1;
        }
    }
    assert!(world.stack.counters().quic_packets_opened > 0);
    world.close();
}

#[test]
fn workers_that_die_while_they_open_cost_no_byte() {
    each_seed(20, |random| outlive_workers(false, random));
    each_seed(20, |random| outlive_workers(true, random));
}

/// It is as if the packets had been lost: nothing of what the worker says of them is taken for what
/// the client has sent.
#[test]
fn a_worker_that_lies_about_keys_is_not_believed() {
    let mut random = steady;
    let mut world = World::with(setup(false), &mut random);
    let client = world.connected();
    world.run_for(100_000);
    world.nics[0].opener.lies = true;
    let before = world.nics[0].opener.opened;
    world.request(client, 1_000_000, (0, 1_000_000), 0);
    world.run_for(2_000_000);
    let counters = world.stack.counters();
    assert!(counters.quic_packets_refused > 0);
    let opened = world.nics[0].opener.opened - before;
    assert_eq!(counters.quic_packets_refused, opened);
    assert_eq!(counters.quic_streams_accepted, 0);
    // What it does not open itself, the host does.
    world.nics[0].opener.lies = false;
    world.run_until_finished();
    world.close();
}

fn is_opened_by_nic(world: &World<'_>) -> bool {
    let info = world.stack.quic_connections().next().expect("a connection");
    info.is_opened_by_nic
}

#[test]
fn a_connection_goes_to_a_worker_once_it_has_sent_enough() {
    for is_steered in [false, true] {
        let mut random = steady;
        let setup = Setup {
            receive: QuicReceive::Nic {
                after_bytes: 500_000,
            },
            ..setup(is_steered)
        };
        let mut world = World::with(setup, &mut random);
        let client = world.connected();
        download(&mut world, client, 400_000);
        assert!(!is_opened_by_nic(&world));
        assert_eq!(world.stack.counters().quic_receive_keys, 0);
        world.request(client, 3_000_000, (0, 3_000_000), 0);
        world.run_until(|world| is_opened_by_nic(world));
        let info = world.stack.quic_connections().next().expect("a connection");
        let few = 500_000..600_000;
        assert!(few.contains(&info.sent_bytes), "{}", info.sent_bytes);
        world.run_until_finished();
        let opened = world.nics[0].opener.opened;
        assert!(opened > 20, "{opened}");
        assert_eq!(world.stack.counters().quic_packets_refused, 0);
        assert_eq!(world.stack.flows_steered(), usize::from(is_steered));
        world.close();
    }
}

#[test]
fn a_reload_moves_connections_between_host_and_worker() {
    for is_steered in [false, true] {
        let mut random = steady;
        let mut world = World::with(setup(is_steered), &mut random);
        let client = world.connected();
        for round in 0..3 {
            let before = world.nics[0].opener.opened;
            download(&mut world, client, 5_000_000);
            let opened = world.nics[0].opener.opened - before;
            assert!(opened > 20, "{round}: {opened}");
            assert!(is_opened_by_nic(&world));
            world.change_reception(QuicReceive::Host);
            assert!(!is_opened_by_nic(&world));
            assert_eq!(world.stack.flows_steered(), 0);
            // What is on its way to the worker is not lost.
            world.run_for(100_000);
            let opener = &world.nics[0].opener;
            assert_eq!((opener.flows(), opener.taken_back), (0, round + 1));
            let before = world.nics[0].opener.opened;
            download(&mut world, client, 5_000_000);
            assert_eq!(world.nics[0].opener.opened, before, "{round}");
            // It goes when it sends next.
            world.change_reception(QuicReceive::NIC);
            assert!(!is_opened_by_nic(&world));
            world.request(client, 10_000, (0, 10_000), 0);
            world.run_until(|world| is_opened_by_nic(world));
            world.run_until_finished();
            assert_eq!(world.stack.flows_steered(), usize::from(is_steered));
        }
        let counters = world.stack.counters();
        assert_eq!(counters.quic_packets_refused, 0);
        assert_eq!(
            (counters.quic_receive_begun, counters.quic_receive_returned),
            (4, 3)
        );
        world.close();
    }
}

/// Once there is room, and the connection comes again or its keys change.
#[test]
fn a_worker_that_had_no_room_for_a_key_opens_with_the_next_one() {
    for (is_steered, by_reload) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut random = steady;
        let mut world = World::with(setup(is_steered), &mut random);
        world.nics[0].opener.is_full = true;
        let client = world.connected();
        download(&mut world, client, 300_000);
        assert_eq!(world.nics[0].opener.opened, 0);
        assert_eq!(
            is_opened_by_nic(&world),
            !is_steered,
            "what is handed on comes back"
        );
        world.nics[0].opener.is_full = false;
        world.run_for(2_000_000);
        if by_reload {
            world.change_reception(QuicReceive::Host);
            world.run_for(100_000);
            world.change_reception(QuicReceive::NIC);
        } else {
            world.peers[client].client.update_keys();
        }
        download(&mut world, client, 5_000_000);
        let opened = world.nics[0].opener.opened;
        assert!(opened > 20, "{is_steered} {by_reload}: {opened}");
        assert!(is_opened_by_nic(&world));
        world.close();
    }
}

/// A PING that the worker says it has opened.
fn claimed(
    world: &World<'_>,
    (id, flow): (QuicConnectionId, FlowId),
    generation: u32,
    number: u64,
) -> Event {
    Event::QuicReceived(Box::new(QuicReceived {
        flow,
        generation,
        id,
        remote: world.peers[0].client.local,
        local: server_address(false).ip(),
        arrived_us: world.now_us,
        packets: vec![QuicReceivedPacket {
            number,
            age_us: 0,
            len: 1,
            first: if generation % 2 == 1 { 0x45 } else { 0x41 },
            ecn: 0,
        }],
        plaintext: vec![1],
    }))
}

/// Neither of one that is still to come, nor, where the connection has returned, of the one that
/// was taken back, and of one that the host has by now.
#[test]
fn a_worker_is_not_believed_to_have_a_key_that_it_was_not_given() {
    for returns in [false, true] {
        let mut random = steady;
        let mut world = World::with(setup(false), &mut random);
        let client = world.connected();
        download(&mut world, client, 300_000);
        world.run_for(2_000_000);
        let (id, flow, last) = world.nics[0].opener.known().expect("a key");
        if returns {
            world.change_reception(QuicReceive::Host);
            world.peers[client].client.update_keys();
            download(&mut world, client, 300_000);
            world.run_for(2_000_000);
        }
        let first = if returns { last } else { last + 1 };
        for generation in first..last + 4 {
            let before = world.stack.counters();
            let number = 100_000 + u64::from(generation);
            let event = claimed(&world, (id, flow), generation, number);
            world.nics[0].report(&event);
            world.run_for(10_000);
            let after = world.stack.counters();
            assert_eq!(after.quic_packets_refused, before.quic_packets_refused + 1);
            assert_eq!(after.quic_keys, before.quic_keys, "no keys are updated");
        }
        world.close();
    }
}

/// Until a QSEND has departed that was issued after its key was taken back.
#[test]
fn what_a_worker_had_opened_when_its_key_was_taken_back_is_believed() {
    let mut random = steady;
    let mut world = World::with(setup(false), &mut random);
    let client = world.connected();
    download(&mut world, client, 300_000);
    world.run_for(2_000_000);
    let (id, flow, last) = world.nics[0].opener.known().expect("a key");
    world.change_reception(QuicReceive::Host);
    world.run_for(1);
    assert_eq!(world.nics[0].opener.flows(), 0);
    let before = world.stack.counters();
    for (number, refused) in [(100_000, 0), (100_001, 1)] {
        let event = claimed(&world, (id, flow), last, number);
        world.nics[0].report(&event);
        // It is acknowledged.
        world.run_for(100_000);
        let after = world.stack.counters();
        assert_eq!(
            after.quic_packets_refused - before.quic_packets_refused,
            refused
        );
        assert_eq!(after.quic_sends, before.quic_sends + 1);
    }
    world.close();
}

/// The command waits for room, and is not needed any more if the connection has gone to the worker
/// again.
#[test]
fn a_full_ring_delays_the_return_of_a_key() {
    for goes_again in [false, true] {
        let mut random = steady;
        let setup = Setup {
            capacity: FEW_COMMANDS,
            ..setup(true)
        };
        let mut world = World::with(setup, &mut random);
        let client = world.connected();
        world.request(client, 5_000_000, (0, 5_000_000), 0);
        world.run_until(|world| world.nics[0].opener.opened > 20);
        world.nics[0].is_stuck = true;
        world.run_for(20_000);
        assert!(world.stack.quic_connections().any(|info| info.waits));
        world.change_reception(QuicReceive::Host);
        world.run_for(20_000);
        if goes_again {
            world.change_reception(QuicReceive::NIC);
            world.run_for(20_000);
        }
        assert_eq!(world.nics[0].opener.flows(), 1);
        world.nics[0].is_stuck = false;
        world.run_until_finished();
        let opener = &world.nics[0].opener;
        let (flows, taken_back) = (opener.flows(), opener.taken_back);
        assert_eq!(
            (flows, taken_back),
            if goes_again { (1, 0) } else { (0, 1) }
        );
        assert_eq!(is_opened_by_nic(&world), goes_again);
        assert_eq!(world.stack.counters().quic_packets_refused, 0);
        world.close();
    }
}

fn leave_amid_reloads(is_steered: bool, random: &mut dyn FnMut(u64) -> u64) {
    let setup = Setup {
        workers: 2,
        workers_min: 1,
        ..setup(is_steered)
    };
    let mut world = World::with(setup, random);
    leave_a_worker(&mut world, |world| {
        world.run_busy(9, 0);
        for _ in 0..40 {
            let time_us = (world.random)(200_000);
            world.run_for(time_us);
            let to = [QuicReceive::Host, QuicReceive::NIC][(world.random)(2) as usize];
            world.change_reception(to);
            world.peers[1].client.update_keys();
        }
    });
    assert_eq!(world.nics[1].opener.flows(), 0);
    world.run_until_finished();
    world.change_reception(QuicReceive::NIC);
    download(&mut world, 1, 2_000_000);
    assert_eq!(world.nics[0].opener.flows(), 1);
    world.change_reception(QuicReceive::Host);
    world.run_for(1_000);
    assert_eq!(world.nics[0].opener.flows(), 0);
    assert_eq!(world.stack.counters().quic_packets_refused, 0);
    world.close();
}

/// The next worker gets no key, or that of now, and the one before keeps none.
#[test]
fn a_reload_meets_connections_that_leave_their_worker() {
    each_seed(6, |random| leave_amid_reloads(false, random));
    each_seed(6, |random| leave_amid_reloads(true, random));
}

/// Rings in which few commands have room.
const FEW_COMMANDS: Capacity = Capacity {
    command_bytes: Capacity::LEAST.command_bytes,
    ..Capacity::FULL
};

fn change_often(is_steered: bool, random: &mut dyn FnMut(u64) -> u64) {
    let has_few = random(2) == 0;
    let setup = Setup {
        capacity: if has_few {
            FEW_COMMANDS
        } else {
            Capacity::FULL
        },
        ..setup(is_steered)
    };
    let mut world = World::with(setup, random);
    world.weather = Weather {
        lost: 10,
        late: 20,
        damaged: 5,
    };
    let clients: Vec<usize> = (0..3).map(|_| world.connected()).collect();
    for client in clients {
        // None may move before (RFC 9000 §9).
        world.run_until(|world| world.peers[client].client.is_confirmed());
        for number in 0..3 {
            world.request(client, 1_000_000 + number, (0, 1_000_000), 3000);
        }
    }
    for _ in 0..40 {
        let time_us = (world.random)(20_000);
        world.run_for(time_us);
        world.nics[0].is_stuck = (world.random)(4) == 0;
        match (world.random)(8) {
            0 => world.restart_worker(0),
            1 => {
                let client = (world.random)(3) as usize;
                world.peers[client].client.update_keys();
            }
            2 => {
                let client = (world.random)(3) as usize;
                let port = 1000 * (6 + client as u16) + (world.random)(1000) as u16;
                let mut local = world.peers[client].client.local;
                local.set_port(port);
                world.peers[client].client.move_to(local);
            }
            3..=5 => {
                let after_bytes = (world.random)(2_000_000);
                world.change_reception(QuicReceive::Nic { after_bytes });
            }
            _ => world.change_reception(QuicReceive::Host),
        }
    }
    world.nics[0].is_stuck = false;
    world.run_until_finished();
    // Whatever there was, the worker has no key now, and opens again once it gets one.
    for (to, flows) in [(QuicReceive::Host, 0), (QuicReceive::NIC, 3)] {
        world.change_reception(to);
        for client in 0..3 {
            world.request(client, 300_000, (0, 300_000), 0);
        }
        world.run_until_finished();
        assert_eq!(world.nics[0].opener.flows(), flows);
    }
    world.close();
}

#[test]
fn connections_that_come_and_go_while_workers_die_lose_no_byte() {
    each_seed(30, |random| change_often(false, random));
    each_seed(30, |random| change_often(true, random));
}

/// RFC 9001 §6.6: what a worker cannot open, the host tries to, and counts.
#[test]
fn packets_that_no_worker_can_open_count_towards_the_integrity_limit() {
    const LIMIT: u64 = 10;
    for is_steered in [false, true] {
        let mut random = steady;
        let mut setup = setup(is_steered);
        setup.settings.aead_limits.integrity = LIMIT;
        let mut world = World::with(setup, &mut random);
        let client = world.connected();
        download(&mut world, client, 3_000_000);
        let info = world.stack.quic_connections().next().expect("a connection");
        assert!(info.is_opened_by_nic && !info.is_closed);
        let (source, mut forged) = world.overheard.back().expect("an acknowledgment").clone();
        *forged.last_mut().expect("a tag") ^= 1;
        for _ in 0..LIMIT {
            world.send(source, server_address(false), &forged);
        }
        world.run_for(1000);
        download(&mut world, client, 100_000);
        world.send(source, server_address(false), &forged);
        world.run_for(1000);
        let mut infos = world.stack.quic_connections();
        assert!(infos.all(|info| info.is_closed), "{is_steered}");
    }
}
