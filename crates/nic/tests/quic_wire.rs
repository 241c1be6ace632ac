//! Datagrams of a worker on a real link: a socket of the kernel receives them.

mod support;

use std::net::UdpSocket;
use std::time::Duration;

use contract::channel::{HostChannel, in_memory};
use contract::{Command, Event, FileId, Growth, SendId};
use netdev::packet::PacketPort;
use nic::reader::memory::MemoryDisk;
use nic::{Progress, Worker};
use support::quic::{Qsend, open, packets, plaintexts, quic_key};
use support::{content, departed, small_config};
use testbed::link;
use testbed::namespace::isolated;
use testbed::process::{run, tool};
use testbed::wait;

/// Long enough for anything that is going to happen.
const SOON: Duration = Duration::from_secs(10);

/// The flow's id is the port of its peer.
const FLOW: u64 = 5000;

fn ip(arguments: &str) {
    run(&mut tool(&format!("ip {arguments}"))).unwrap();
}

/// Runs the worker until so many SENDs have departed.
fn depart(worker: &mut Worker<PacketPort>, host: &mut HostChannel, count: usize) -> Vec<SendId> {
    let mut events: Vec<Event> = Vec::new();
    wait::until(SOON, "departures", || {
        while worker.turn(&|| 1).expect("the ring is sound") == Progress::Busy {}
        while let Some(event) = host.receive().expect("the ring is sound") {
            events.push(event);
        }
        (departed(&events).len() == count).then_some(())
    })
    .unwrap();
    departed(&events)
}

#[test]
fn a_socket_of_the_kernel_receives_and_opens_every_packet() {
    isolated(|_| {
        ip("link add va type veth peer name vb");
        ip("link set vb address 02:00:00:00:00:01");
        ip("link set va up");
        ip("link set vb up");
        ip("addr add 10.77.0.1/24 dev vb");
        ip("addr add fd77::1/64 dev vb nodad");
        let addresses = ["10.77.0.1", "fd77::1"].map(|it| it.parse().unwrap());
        link::await_ready(&["va", "vb"], &addresses).unwrap();

        let disk = MemoryDisk::new();
        let file = content(200_000);
        disk.put(b"a", file.clone());
        let (mut host, channel) = in_memory();
        let port = PacketPort::send_only("va").unwrap();
        let mut worker = Worker::new(&small_config(), channel, port, Box::new(disk)).unwrap();
        let open_file = Command::Open {
            file: FileId(1),
            growth: Growth::Forbidden,
            path: b"a",
        };
        host.send(&open_file).unwrap();
        host.send(&Command::QuicKey(quic_key(FLOW, 0, 0))).unwrap();
        for (ipv6, first) in [(false, 0), (true, 100)] {
            let at = if ipv6 {
                "[fd77::1]:5000"
            } else {
                "10.77.0.1:5000"
            };
            let socket = UdpSocket::bind(at).unwrap();
            socket.set_read_timeout(Some(SOON)).unwrap();
            let send = Qsend {
                ipv6,
                ..Qsend::new(FLOW, packets(first, 1, 0, 44 * 1400 - 7, 1400))
            };
            send.with_command(SendId(first), 0, |command| host.send(command).unwrap());
            host.flush();
            assert_eq!(depart(&mut worker, &mut host, 1), [SendId(first)]);
            let wanted = plaintexts((FLOW, first), &file[..44 * 1400 - 7], 0, 1400);
            let mut buffer = [0; 2000];
            for (_, number, plaintext) in wanted {
                let len = socket.recv(&mut buffer).unwrap();
                assert!(open(&buffer[..len]) == (number, plaintext));
            }
        }
        let counters = worker.counters();
        assert_eq!((counters.superpackets, counters.datagrams), (2, 88));
        assert_eq!(counters.port_drops + counters.port_failures, 0);
    });
}
