//! Clients of every kind: patient, hasty, slow, rude, and gone.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, UNIX_EPOCH};

use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size};
use rustix::net::{AddressFamily, SocketType, connect, socket};
use rustix::process::Pid;
use testbed::http::{Connection, download, request};
use testbed::namespace::isolated;
use testbed::procfs::memory;
use testbed::site::KnownFile;
use testbed::splitway::{HTTP_V4, HTTP_V6};
use testbed::wait;

use crate::support::{
    FAMILIES, SOON, frames_received, nft, on_threads, serve, started, tcp_counter,
};

#[test]
fn one_connection_serves_many_requests() {
    isolated(|site| {
        let files: Vec<_> = (0..10)
            .map(|i| site.file(&format!("{i}"), i * 10_007).unwrap())
            .collect();
        let _splitway = serve(&site);
        for server in FAMILIES {
            let mut connection = Connection::open(server).unwrap();
            for round in 0..20 {
                for file in &files {
                    connection
                        .get(file)
                        .unwrap_or_else(|failure| panic!("round {round}: {failure}"));
                }
            }
            connection.finish().unwrap();
            connection.read_end().unwrap();
        }
    });
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    isolated(|site| {
        let files: Vec<_> = (0..30)
            .map(|i| site.file(&format!("{i}"), 1 + i * 7919).unwrap())
            .collect();
        let _splitway = serve(&site);
        for server in FAMILIES {
            let mut connection = Connection::open(server).unwrap();
            let requests: String = files
                .iter()
                .map(|file| request("GET", file.name()))
                .collect();
            connection.send(requests.as_bytes()).unwrap();
            for file in &files {
                connection.read_file(file).unwrap();
            }
        }
    });
}

#[test]
fn a_request_may_come_byte_by_byte() {
    isolated(|site| {
        let file = site.file("file", 50_000).unwrap();
        let _splitway = serve(&site);
        for server in FAMILIES {
            let mut connection = Connection::open(server).unwrap();
            for byte in request("GET", file.name()).as_bytes() {
                connection.send(&[*byte]).unwrap();
            }
            connection.read_file(&file).unwrap();
        }
    });
}

#[test]
fn a_client_that_half_closes_after_its_request_gets_everything_and_then_the_end() {
    isolated(|site| {
        let file = site.file("file", 5_000_000).unwrap();
        let _splitway = serve(&site);
        for server in FAMILIES {
            let mut connection = Connection::open(server).unwrap();
            connection.send_get(file.name()).unwrap();
            connection.finish().unwrap();
            connection.read_file(&file).unwrap();
            connection.read_end().unwrap();
        }
    });
}

/// A client that has asked for a file and has stopped reading so long ago that its window is
/// closed.
fn stopped(server: SocketAddr, file: &KnownFile) -> Connection {
    let closed_before = tcp_counter("TcpExt", "TCPToZeroWindowAdv");
    let connection = started(server, file);
    wait::until(SOON, "the client's window closing", || {
        (tcp_counter("TcpExt", "TCPToZeroWindowAdv") > closed_before).then_some(())
    })
    .unwrap();
    connection
}

#[test]
fn a_client_that_stops_reading_may_go_on_later() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let _splitway = serve(&site);
        for server in FAMILIES {
            let mut connection = stopped(server, &file);
            // Nothing else is on this link: what comes now are probes of the closed window (RFC
            // 9293, 3.8.6.1).
            let frames = frames_received();
            wait::until(SOON, "three probes", || {
                (frames_received() >= frames + 3).then_some(())
            })
            .unwrap();
            connection.read_file_part(&file, 0..file.size()).unwrap();
        }
    });
}

#[test]
fn a_file_overwritten_during_a_download_never_arrives_as_a_mixture() {
    isolated(|site| {
        const SIZE: u64 = 20_000_000;
        let new = site.file("new", SIZE).unwrap();
        let new_bytes = fs::read(site.root().join(new.name())).unwrap();
        let _splitway = serve(&site);
        for (name, server) in ["four", "six"].into_iter().zip(FAMILIES) {
            let old = site.file(name, SIZE).unwrap();
            let file = File::options()
                .write(true)
                .open(site.root().join(name))
                .unwrap();
            // The next change shows however coarse the timestamps are.
            file.set_modified(UNIX_EPOCH).unwrap();
            let mut connection = stopped(server, &old);
            file.write_all_at(&new_bytes, 0).unwrap();

            let mut received = 0;
            let end = connection.read_body(SIZE, |offset, bytes| {
                assert_eq!(old.check(offset, bytes), Ok(()), "bytes of the old version");
                received = offset + bytes.len() as u64;
                Ok(())
            });
            assert!(received > 0 && received < SIZE, "{received} bytes");
            let end = end.unwrap_err().to_string();
            assert!(end.contains("reset"), "{end}");

            let mut connection = Connection::open(server).unwrap();
            connection.send_get(name).unwrap();
            connection.read_file(&new).unwrap();
        }
    });
}

/// Connects with a receive buffer of a few kilobytes, which keeps the window that small for good.
fn connect_with_small_window(server: SocketAddr) -> Connection {
    let family = if server.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket(family, SocketType::STREAM, None).unwrap();
    set_socket_recv_buffer_size(socket.as_fd(), 4096).unwrap();
    connect(&socket, &server).unwrap();
    Connection::on(socket.into()).unwrap()
}

#[test]
fn a_window_smaller_than_a_superpacket_is_filled_and_not_overrun() {
    isolated(|site| {
        let file = site.file("file", 300_000).unwrap();
        let _splitway = serve(&site);
        for server in FAMILIES {
            connect_with_small_window(server).get(&file).unwrap();
        }
    });
}

#[test]
fn clients_that_stop_forever_do_not_disturb_the_others() {
    isolated(|site| {
        let large = site.file("large", 50_000_000).unwrap();
        let small = site.file("small", 500_000).unwrap();
        let splitway = serve(&site);
        let stopped: Vec<_> = (0..100)
            .map(|index| started(FAMILIES[index % 2], &large))
            .collect();
        on_threads(16, |index| {
            let mut connection = Connection::open(FAMILIES[index % 2])?;
            (0..10).try_for_each(|_| connection.get(&small).map(drop))
        });
        let bytes = memory(splitway.host()).unwrap().proportional_bytes
            + memory(splitway.nic()).unwrap().proportional_bytes;
        assert!(
            bytes < 300_000_000,
            "{bytes} bytes for {} stopped clients",
            stopped.len()
        );
    });
}

fn open_files(pid: Pid) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()))
        .unwrap()
        .count()
}

fn reset_in_the_middle(server: SocketAddr, file: &KnownFile) {
    let mut connection = started(server, file);
    connection.read_file_part(file, 0..100_000).unwrap();
    set_socket_linger(connection.stream(), Some(Duration::ZERO)).unwrap();
}

#[test]
fn clients_that_reset_in_the_middle_leave_nothing_behind() {
    isolated(|site| {
        let small = site.file("small", 500_000).unwrap();
        let large: Vec<_> = (0..50)
            .map(|i| site.file(&format!("{i}"), 5_000_000).unwrap())
            .collect();
        let splitway = serve(&site);
        for server in FAMILIES {
            download(server, &small).unwrap();
        }
        let before = open_files(splitway.nic());
        for file in &large {
            FAMILIES
                .iter()
                .for_each(|&server| reset_in_the_middle(server, file));
        }
        for server in FAMILIES {
            download(server, &small).unwrap();
        }
        // A file may stay open for the next who wants it, not fifty.
        wait::until(SOON, "the NIC stack closing what is not read", || {
            (open_files(splitway.nic()) < before + large.len() / 2).then_some(())
        })
        .unwrap();
    });
}

#[test]
fn clients_that_vanish_do_not_disturb_the_others() {
    isolated(|site| {
        let large = site.file("large", 20_000_000).unwrap();
        let small = site.file("small", 500_000).unwrap();
        let _splitway = serve(&site);
        let vanishing: Vec<_> = (0..20)
            .map(|index| started(FAMILIES[index % 2], &large))
            .collect();
        // From here on nothing of theirs gets through in either direction, not even a reset. The
        // kernel gives a port to a connection of each family, so the others may have the same.
        nft("add table inet gone; \
             add chain inet gone in { type filter hook input priority 0; }; \
             add chain inet gone out { type filter hook output priority 0; }");
        for connection in &vanishing {
            let own = connection.stream().local_addr().unwrap();
            let family = if own.is_ipv4() { "ipv4" } else { "ipv6" };
            let port = own.port();
            nft(&format!(
                "add rule inet gone in meta nfproto {family} tcp dport {port} drop; \
                 add rule inet gone out meta nfproto {family} tcp sport {port} drop"
            ));
        }
        drop(vanishing);
        on_threads(16, |index| {
            let mut connection = Connection::open(FAMILIES[index % 2])?;
            (0..10).try_for_each(|_| connection.get(&small).map(drop))
        });
    });
}

#[test]
fn a_client_whose_link_is_dead_for_a_while_gets_everything_in_the_end() {
    isolated(|site| {
        let file = site.file("file", 30_000_000).unwrap();
        let _splitway = serve(&site);
        for server in [HTTP_V4, HTTP_V6] {
            let mut connection = started(server, &file);
            connection.read_file_part(&file, 0..1_000_000).unwrap();
            nft("add table inet outage; \
                 add chain inet outage in { type filter hook input priority 0; }; \
                 add rule inet outage in meta l4proto tcp drop");
            // Room for more than a window, so that there is something to lose; then retransmissions
            // of it.
            let frames = frames_received();
            let rest = std::thread::scope(|scope| {
                let rest = scope.spawn(|| connection.read_file_part(&file, 1_000_000..file.size()));
                wait::until(SOON, "three attempts", || {
                    (frames_received() >= frames + 3).then_some(())
                })
                .unwrap();
                nft("delete table inet outage");
                rest.join().unwrap()
            });
            rest.unwrap();
        }
    });
}
