//! The host process dies: how clients learn of it.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::Signal;
use testbed::http::{Connection, download, request};
use testbed::namespace::isolated;
use testbed::process::signal;
use testbed::routed::Routed;
use testbed::site::KnownFile;
use testbed::splitway::Splitway;
use testbed::wait;

use crate::http3;
use crate::https::{Choice, Client, HTTPS};
use crate::routed;
use crate::spliced::{STEERED, splicing};
use crate::spliced_bad::spliced;
use crate::stat::json;
use crate::support::{FAMILIES, SOON, nft, serve, serve_with, sh, started};

/// What the log says when a NIC worker has ended connections.
const ORPHANS: &str = "the host process has died: its connections were reset";

/// Reads on until there is an error.
fn error_of(mut stream: &TcpStream) -> ErrorKind {
    let mut bytes = vec![0; 1 << 16];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => panic!("the end of the stream"),
            Ok(_) => {}
            Err(error) => return error.kind(),
        }
    }
}

/// Waits until a client that reads nothing has most of the window that the kernel begins with.
fn wait_until_full(stream: &TcpStream) {
    wait::until(SOON, "a window that is nearly used up", || {
        let unread = rustix::io::ioctl_fionread(stream).unwrap();
        (unread >= 50_000).then_some(())
    })
    .unwrap();
}

/// Kills the host process, and waits for the end of the server.
fn kill_host(splitway: &mut Splitway) {
    signal(splitway.host(), Signal::KILL).unwrap();
    assert!(!splitway.wait().unwrap().success());
}

#[test]
fn clients_that_wait_for_data_are_reset_although_no_other_server_starts() {
    isolated(|site| {
        let large: KnownFile = site.file("large", 50_000_000).unwrap();
        let small = site.file("small", 5000).unwrap();
        let certificate = http3::certificate(&site);
        let mut splitway = http3::serve(&site, &certificate, &["--listen", "80"]);
        let plain = FAMILIES.map(|server| started(server, &large));
        let sealed = [Choice::Tls13, Choice::Tls12].map(|choice| {
            let client = Client::new(&[&certificate], choice);
            let mut connection = client.open(HTTPS[0]).unwrap();
            connection.send_get(large.name()).unwrap();
            connection.read_file_head(&large).unwrap();
            connection
        });
        let mut idle = Connection::open(FAMILIES[1]).unwrap();
        idle.get(&small).unwrap();
        let mut quic: Vec<_> = (1..)
            .zip(HTTPS)
            .map(|(seed, server)| {
                let mut client = http3::client::Client::connect(server, &certificate, seed);
                let stream = client.begin("GET", "/large", &[]);
                client.until("some of it", |it| it.has_received(stream) > 100_000);
                client.pause(stream);
                client
            })
            .collect();
        let streams: Vec<&TcpStream> = plain
            .iter()
            .map(Connection::stream)
            .chain(sealed.iter().map(|it| &it.stream().sock))
            .collect();
        std::thread::scope(|scope| {
            // Datagrams of a client that does not read its socket are lost.
            for client in &mut quic {
                scope.spawn(|| client.until_closed_by_server());
            }
            streams.iter().for_each(|stream| wait_until_full(stream));
            kill_host(&mut splitway);
        });
        for stream in streams {
            assert_eq!(error_of(stream), ErrorKind::ConnectionReset);
        }
        assert_eq!(error_of(idle.stream()), ErrorKind::ConnectionReset);
        let log = splitway.output().join("\n");
        let line = log.lines().find(|line| line.contains(ORPHANS));
        let line = line.unwrap_or_else(|| panic!("{log}"));
        assert!(line.contains("tcp=5") && line.contains("quic=2"), "{line}");
    });
}

/// All data of these is acknowledged, so that they end in order. FIN was lost so often that the NIC
/// worker would repeat it late.
#[test]
fn clients_whose_connections_the_nic_process_ends_are_sent_fin_once_more() {
    isolated(|site| {
        let small = site.file("small", 5000).unwrap();
        let mut splitway = serve_with(&site, &["--teardown-offload"]);
        nft("add table inet loss; \
             add chain inet loss packets { type filter hook input priority 0; }; \
             add rule inet loss packets tcp sport 80 tcp flags & fin == fin counter drop");
        let mut clients = FAMILIES.map(|server| {
            let mut client = Connection::open(server).unwrap();
            client.get(&small).unwrap();
            client.finish().unwrap();
            client
        });
        wait::until(SOON, "losses", || {
            let chain = sh("nft list chain inet loss packets");
            let (_, lost) = chain.split_once("counter packets ")?;
            let lost: u32 = lost.split(' ').next()?.parse().ok()?;
            (lost >= 6).then_some(())
        })
        .unwrap();
        let parted = &json(&["--summary"])["host"]["usage"]["parted"];
        assert_eq!(*parted, FAMILIES.len());
        nft("delete table inet loss");
        kill_host(&mut splitway);
        for client in &mut clients {
            client.read_end().unwrap();
        }
        let log = splitway.output().join("\n");
        assert!(log.contains(ORPHANS) && log.contains("tcp=2"), "{log}");
    });
}

/// A backend that sends back what it receives, and how each of its connections has ended.
fn echoing(port: u16) -> Receiver<std::io::Result<()>> {
    let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
    let (sender, ends) = channel();
    let echo = |mut stream: TcpStream| {
        let mut buffer = [0; 10_000];
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                count => stream.write_all(&buffer[..count])?,
            }
        }
    };
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // It ends with the test.
            let (Ok(stream), sender) = (stream, sender.clone()) else {
                return;
            };
            std::thread::spawn(move || sender.send(echo(stream)));
        }
    });
    ends
}

#[test]
fn both_peers_of_each_splice_are_reset() {
    const SPLICES: usize = 4;
    isolated(|site| {
        let ends = echoing(9001);
        let mut proxy = splicing(&site, STEERED);
        let clients = spliced(SPLICES);
        kill_host(&mut proxy);
        for client in &clients {
            assert_eq!(error_of(client), ErrorKind::ConnectionReset);
        }
        for _ in &clients {
            let end = ends.recv_timeout(SOON).expect("the end of a connection");
            assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        let log = proxy.output().join("\n");
        assert!(log.contains(ORPHANS), "{log}");
    });
}

/// RFC 9293 §3.10.7.1
#[test]
fn a_client_of_whom_the_nic_stack_knows_nothing_is_reset_by_the_next_server() {
    isolated(|site| {
        let small = site.file("small", 5000).unwrap();
        let net = Routed::new().unwrap();
        for server in routed::servers() {
            let mut splitway = routed::serve(&net, &site, &[]);
            // The host answers this by itself.
            let mut unknown = Connection::open(server).unwrap();
            let request = request("HEAD", "nowhere");
            unknown.send(request.as_bytes()).unwrap();
            assert_eq!(unknown.read_head().unwrap().status, 404);
            kill_host(&mut splitway);
            let mut next = routed::serve(&net, &site, &[]);
            download(server, &small).unwrap();
            unknown.stream().set_nonblocking(true).unwrap();
            let nothing = unknown.stream().peek(&mut [0]).unwrap_err();
            assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
            unknown.stream().set_nonblocking(false).unwrap();
            unknown.send_get("small").unwrap();
            assert_eq!(error_of(unknown.stream()), ErrorKind::ConnectionReset);
            assert!(next.end_with(Signal::TERM).unwrap().success());
        }
    });
}

#[test]
fn an_orderly_end_leaves_nothing_to_the_nic_process() {
    isolated(|site| {
        let large = site.file("large", 50_000_000).unwrap();
        let mut splitway = serve(&site);
        let reading = FAMILIES.map(|server| started(server, &large));
        reading.iter().for_each(|it| wait_until_full(it.stream()));
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
        let log = splitway.output().join("\n");
        assert!(!log.contains(ORPHANS), "{log}");
    });
}
