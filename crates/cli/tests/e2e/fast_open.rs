//! TCP Fast Open, with the kernel's TCP as client: what it sends with its SYN is answered, by the
//! host alone and where NIC workers answer SYNs.

use std::net::{SocketAddr, TcpStream};

use rustix::net::{AddressFamily, SendFlags, SocketType, sendto, socket};
use rustix::process::Signal;
use testbed::http::{Connection, request};
use testbed::namespace::isolated;
use testbed::site::{KnownFile, Site};
use testbed::splitway::Splitway;
use testbed::wait;
use testbed::{Context, Result};

use crate::deaths::counted;
use crate::links::{lose_one_in_a_hundred, send_single_packets};
use crate::programs::{Stack, at};
use crate::run::{PORT, end, nginx, nginx_configuration_of};
use crate::stat::{host_counted, json};
use crate::support::{FAMILIES, Random, SOON, on_threads, serve_with};

const CLIENTS: usize = 20;

/// Connections of each.
const TURNS: usize = 10;

/// `MSG_FASTOPEN`: connects, and sends with the SYN if the kernel has a cookie.
const FAST_OPEN: SendFlags = SendFlags::from_bits_retain(0x2000_0000);

fn serve(site: &Site, arguments: &[&str]) -> Splitway {
    let all = [&["--fast-open", "--report-json"], arguments].concat();
    serve_with(site, &all)
}

/// Asks for a file with the SYN, and compares every byte.
fn download(server: SocketAddr, file: &KnownFile) -> Result<()> {
    let family = match server {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let fd = socket(family, SocketType::STREAM, None).context(|| "a socket".to_owned())?;
    let line = request("GET", file.name());
    let sent = sendto(&fd, line.as_bytes(), FAST_OPEN, &server)
        .context(|| "sending with SYN".to_owned())?;
    assert_eq!(sent, line.len());
    let mut connection = Connection::on(TcpStream::from(fd))?;
    connection.read_file(file)?;
    connection.finish()?;
    connection.read_end()
}

/// Downloads of which every byte is checked. The first of each family gets the cookie.
fn downloads(file: &KnownFile) {
    for server in FAMILIES {
        download(server, file).unwrap();
    }
    on_threads(CLIENTS, |index| {
        (0..TURNS).try_for_each(|_| download(FAMILIES[index % 2], file))
    });
}

const NAMES: [&str; 4] = [
    "fast_opens",
    "fast_open_cookies_sent",
    "connections_finished",
    "connections_broken",
];

/// All but the two that have got cookies.
const FAST: u64 = (CLIENTS * TURNS) as u64;

#[test]
fn requests_in_syns_are_answered() {
    isolated(|site| {
        let file = site.file("file", 50_000).unwrap();
        let splitway = serve(&site, &[]);
        downloads(&file);
        assert_eq!(counted(splitway, NAMES), [FAST, 2, FAST + 2, 0]);
    });
}

/// Covers all of a download that begins before the handshake is over.
#[test]
fn every_byte_arrives_where_one_packet_in_a_hundred_is_lost() {
    isolated(|site| {
        let file = site.file("file", 200_000).unwrap();
        let splitway = serve(&site, &[]);
        for server in FAMILIES {
            download(server, &file).unwrap();
        }
        send_single_packets(&splitway);
        lose_one_in_a_hundred(&mut Random::seeded());
        downloads(&file);
        // The last acknowledgment of a connection may be lost, which then is not over yet.
        wait::until(SOON, "connections are over", || {
            (json(&["--summary"])["host"]["usage"]["connections"] == 0).then_some(())
        })
        .unwrap();
        let [fast, _, finished, broken] = counted(splitway, NAMES);
        assert_eq!((finished, broken), (FAST + 4, 0));
        // A SYN that is lost comes again without text.
        assert!(fast >= FAST * 8 / 10, "{fast}");
    });
}

fn with_workers(site: &Site, form: &str, arguments: &[&str]) {
    let file = site.file("file", 50_000).unwrap();
    let splitway = serve(site, arguments);
    wait::until(SOON, "workers that answer SYNs", || {
        (json(&["--summary"])["host"]["syns"] == form).then_some(())
    })
    .unwrap();
    downloads(&file);
    let [fast, _, finished, broken] = counted(splitway, NAMES);
    assert_eq!((fast, finished, broken), (FAST, FAST + 2, 0));
}

#[test]
fn workers_hand_requests_in_steered_syns_to_the_host() {
    isolated(|site| with_workers(&site, "steered", &["--setup-offload"]));
}

#[test]
fn workers_hand_requests_in_syns_that_were_handed_on_to_the_host() {
    isolated(|site| with_workers(&site, "handed on", &["--setup-offload", "--no-steering"]));
}

#[test]
fn without_the_switch_clients_get_no_cookie() {
    isolated(|site| {
        let file = site.file("file", 50_000).unwrap();
        let splitway = serve_with(&site, &["--report-json"]);
        downloads(&file);
        assert_eq!(counted(splitway, NAMES), [0, 0, FAST + 2, 0]);
    });
}

#[test]
fn a_program_takes_requests_in_syns_at_the_listeners_that_ask_for_them() {
    isolated(|site| {
        let file = site.file("file", 50_000).unwrap();
        let mut stack = Stack::serve(&site);
        stack.kill();
        stack.serve_again_with(&site, "[tcp]\nfast_open = true");
        let root = site.root().display();
        let servers = format!(
            "server {{ listen {PORT} fastopen=64; root {root}; }}\n\
             server {{ listen 8081; root {root}; }}\n"
        );
        let configuration = nginx_configuration_of(&stack.folder, 1, &servers);
        let mut nginx = nginx(&stack, &configuration);
        // nginx listens before it asks for requests in SYNs: the first clients may get no cookie.
        let before = wait::until(SOON, "a request in a SYN", || {
            download(at(PORT), &file).unwrap();
            Some(host_counted("fast_opens")).filter(|count| *count > 0)
        })
        .unwrap();
        for turn in 0..TURNS as u64 {
            // The client's kernel has a cookie, which holds for all ports.
            download(at(8081), &file).unwrap();
            assert_eq!(host_counted("fast_opens"), before + turn);
            download(at(PORT), &file).unwrap();
            assert_eq!(host_counted("fast_opens"), before + turn + 1);
        }
        assert!(end(&mut nginx, Signal::TERM).success());
        stack.assert_nothing_left();
    });
}
