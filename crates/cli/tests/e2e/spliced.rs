//! `splitway proxy` has the NIC stack join connections, between clients and backends of the kernel,
//! in both forms: a packet filter steers frames to NIC workers, or the host hands them on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use testbed::backend::{Backend, Speech};
use testbed::http::be_patient;
use testbed::namespace::isolated;
use testbed::site::Site;
use testbed::splitway::{HTTP_V4, Splitway};
use testbed::wait;
use testbed::web::content;

use crate::deaths;
use crate::links::{lose_one_in_a_hundred, send_single_packets};
use crate::proxy::{listen, pool, round_trip, spliced_tunnel, started_with, tunnel, written};
use crate::stat::{all_host_counted, host_counted, json};
use crate::support::{Random, SOON, kill_nics_while, on_threads};

/// Clients at a time.
const CLIENTS: usize = 20;

/// What each sends and has back, in bytes.
const BYTES: usize = 2_000_000;

/// How frames get to workers: with this in the command line.
pub(crate) const STEERED: &[&str] = &[];
const HANDED_ON: &[&str] = &["--no-steering"];
const FORMS: [&[&str]; 2] = [STEERED, HANDED_ON];

pub(crate) fn splicing(site: &Site, form: &[&str]) -> Splitway {
    let text = "[proxy]\nsplice = true\n".to_owned()
        + &listen(80, "echo", "mode = \"tcp\"")
        + &pool("echo", "", &[9001]);
    started_with(&written(site, &text), form)
}

/// Waits for the end of all connections, ends the proxy, and returns what its host process has
/// counted.
pub(crate) fn counted<const N: usize>(proxy: Splitway, names: [&str; N]) -> [u64; N] {
    wait::until(SOON, "the end of all connections", || {
        let usage = &json(&["--summary"])["host"]["usage"];
        (usage["connections"] == 0).then_some(())
    })
    .unwrap();
    deaths::counted(proxy, names)
}

#[test]
fn long_tunnels_are_spliced_and_every_byte_and_end_arrives() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Echo);
        for form in FORMS {
            let proxy = splicing(&site, form);
            on_threads(CLIENTS, |client| spliced_tunnel(HTTP_V4, client, BYTES));
            let names = ["splices_joined", "spliced_bytes", "connections_broken"];
            let [joined, bytes, broken] = counted(proxy, names);
            println!("{joined} joined, {bytes} bytes");
            assert_eq!((joined, broken), (CLIENTS as u64, 0));
            assert!(bytes >= (2 * CLIENTS * BYTES) as u64, "{bytes}");
        }
    });
}

/// What the backend sends waits in the proxy all the time: the client takes it in small pieces.
#[test]
fn tunnels_of_clients_that_are_slower_than_the_backend_are_spliced() {
    const TO_SEND: usize = 8_000_000;
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Http);
        let proxy = splicing(&site, STEERED);
        on_threads(CLIENTS, |_| {
            let mut stream = TcpStream::connect(HTTP_V4).unwrap();
            be_patient(&stream)?;
            set_socket_recv_buffer_size(&stream, 16_000).unwrap();
            write!(stream, "GET /{TO_SEND} HTTP/1.1\r\nhost: echo\r\n\r\n").unwrap();
            let expected = content(TO_SEND, TO_SEND as u64);
            let mut received = Vec::new();
            let mut piece = [0; 16_000];
            let is_over = |received: &[u8]| received.ends_with(&expected[TO_SEND - 100..]);
            while !is_over(&received) {
                // Not a wait for something: the time that the client takes for a piece.
                std::thread::park_timeout(Duration::from_millis(1));
                let count = stream.read(&mut piece).unwrap();
                received.extend_from_slice(&piece[..count]);
            }
            assert!(received.ends_with(&expected), "every byte is right");
            Ok(())
        });
        let names = ["splices_joined", "connections_broken"];
        assert_eq!(counted(proxy, names), [CLIENTS as u64, 0]);
    });
}

#[test]
fn short_tunnels_are_copied() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Echo);
        let proxy = splicing(&site, STEERED);
        on_threads(CLIENTS, |client| tunnel(HTTP_V4, client, 20_000));
        assert_eq!(
            counted(proxy, ["splices_begun", "connections_broken"]),
            [0, 0]
        );
    });
}

#[test]
fn every_byte_of_a_splice_arrives_where_one_packet_in_a_hundred_is_lost() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Echo);
        for form in FORMS {
            let proxy = splicing(&site, form);
            send_single_packets(&proxy);
            lose_one_in_a_hundred(&mut Random::seeded());
            on_threads(CLIENTS, |client| spliced_tunnel(HTTP_V4, client, BYTES));
            let [joined, broken] = counted(proxy, ["splices_joined", "connections_broken"]);
            println!("{joined} joined");
            assert!(joined > 0);
            assert_eq!(broken, 0);
        }
    });
}

#[test]
fn splices_go_on_through_nic_processes_that_are_killed() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Echo);
        for form in FORMS {
            let proxy = splicing(&site, form);
            kill_nics_while(&proxy, || {
                on_threads(CLIENTS, |client| spliced_tunnel(HTTP_V4, client, 5 * BYTES));
            });
            let names = ["splices_joined", "splices_repeated", "connections_broken"];
            let [joined, repeated, broken] = counted(proxy, names);
            println!("{joined} joined, {repeated} repeated");
            assert!(joined > 0);
            assert_eq!(broken, 0);
        }
    });
}

/// A client that resets a splice, in both directions of which bytes are under way.
#[test]
fn a_reset_of_the_client_ends_a_splice_and_leaves_nothing() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Echo);
        for form in FORMS {
            let proxy = splicing(&site, form);
            on_threads(CLIENTS, |_| {
                let mut stream = TcpStream::connect(HTTP_V4).unwrap();
                be_patient(&stream)?;
                let mut buffer = vec![0; 100_000];
                for _ in 0..5 {
                    stream.write_all(&buffer).unwrap();
                    stream.read_exact(&mut buffer).unwrap();
                }
                // What is unread when a socket closes resets the peer.
                stream.write_all(&buffer).unwrap();
                stream.read_exact(&mut [0; 10]).unwrap();
                Ok(())
            });
            let names = ["splices_joined", "splices_broken", "splices_finished"];
            let [joined, broken, finished] = counted(proxy, names);
            println!("{joined} joined, {broken} broken, {finished} finished");
            assert!(joined > 0);
        }
    });
}

/// 100 MB each way, of which the host receives nothing, and hears once a second.
#[test]
fn the_host_receives_no_frame_of_a_splice_that_is_steered() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Echo);
        let proxy = splicing(&site, STEERED);
        let stream = TcpStream::connect(HTTP_V4).unwrap();
        be_patient(&stream).unwrap();
        round_trip(&stream, &content(200_000, 1)).unwrap();
        wait::until(SOON, "a splice that is steered", || {
            (host_counted("flows_steered") == 2).then_some(())
        })
        .unwrap();
        // What was under way to the host has arrived there.
        round_trip(&stream, &content(10_000, 2)).unwrap();
        let before = all_host_counted(["frames_received", "frames_handed_on"]);
        round_trip(&stream, &content(100_000_000, 3)).unwrap();
        let after = all_host_counted(["frames_received", "frames_handed_on"]);
        println!("{before:?} {after:?}");
        // Link addresses are asked for now and then.
        assert!(after[0] - before[0] < 20, "{before:?} {after:?}");
        assert_eq!(after[1], before[1]);
        drop(stream);
        let names = ["splices_joined", "connections_broken", "flows_not_steered"];
        assert_eq!(counted(proxy, names), [1, 0, 0]);
    });
}
