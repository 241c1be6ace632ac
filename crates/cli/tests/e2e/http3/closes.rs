//! Ends of connections whose congestion window is full, beyond a slow link.

use std::net::SocketAddr;
use std::sync::Barrier;

use fakes::http3::{RESERVED, frame};
use rustix::process::Signal;
use testbed::namespace::{isolated, within};
use testbed::path::{Emulator, Path, UPLINK, addresses};
use testbed::process::signal;
use testbed::site::Site;
use testbed::splitway::Splitway;

use super::certificate;
use super::client::Client;
use crate::config::configuration;
use crate::https::Certificate;
use crate::support::program;

/// Clients that download at the same time.
const CLIENTS: usize = 8;

/// More useless frames than a connection has tokens for.
const FRAMES: usize = 2000;

/// H3_NO_ERROR and H3_EXCESSIVE_LOAD (RFC 9114 §8.1).
const NO_ERROR: u32 = 0x100;
const EXCESSIVE_LOAD: u32 = 0x107;

/// A server beyond a link of 50 Mbit/s and 40 ms, whose queue holds as much again.
struct Beyond {
    splitway: Splitway,
    servers: [SocketAddr; 2],
    certificate: Certificate,
    _link: Emulator,
    _path: Path,
}

impl Beyond {
    fn new(site: &Site, configured: &str) -> Beyond {
        site.file("file", 50_000_000).unwrap();
        let path = Path::new().unwrap();
        let link = ["--delay", "20ms", "--rate", "50mbit", "--queue", "40ms"];
        let link = path.emulate(program(), link).unwrap();
        let ips = addresses(3);
        let certificate = certificate(site);
        let mut command = within(path.beyond(), program().to_str().unwrap());
        command.args(["serve", "--config"]);
        command.arg(configuration(site, configured));
        command.args([
            "--tls-listen",
            "443",
            "--http3",
            "--no-dad",
            "--dev",
            UPLINK,
        ]);
        command.args(certificate.options());
        command.arg("--addr");
        command.args([format!("{}/24", ips[0]), format!("{}/64", ips[1])]);
        Beyond {
            splitway: Splitway::start(&mut command).unwrap(),
            servers: ips.map(|ip| SocketAddr::new(ip, 443)),
            certificate,
            _link: link,
            _path: path,
        }
    }

    /// Clients download until all have much of their file and the link's queue is full; then each
    /// does `act`, and `happens` once. All connections must end with this code.
    fn all_are_closed_with(
        &mut self,
        code: u32,
        act: impl Fn(&mut Client) + Sync,
        happens: impl FnOnce(&mut Splitway),
    ) {
        let (servers, certificate) = (self.servers, &self.certificate);
        let begun = Barrier::new(CLIENTS + 1);
        std::thread::scope(|scope| {
            for seed in 0..CLIENTS {
                let (begun, act) = (&begun, &act);
                scope.spawn(move || {
                    let mut client = Client::connect(servers[seed % 2], certificate, seed as u64);
                    let stream = client.begin("GET", "/file", &[]);
                    client.until("a part", |it| it.has_received(stream) > 500_000);
                    begun.wait();
                    act(&mut client);
                    client.until_closed_with(code);
                });
            }
            begun.wait();
            happens(&mut self.splitway);
        });
    }
}

#[test]
fn clients_with_a_full_window_learn_of_a_server_that_ends() {
    isolated(|site| {
        let mut beyond = Beyond::new(&site, "");
        beyond.all_are_closed_with(
            NO_ERROR,
            |_| {},
            |splitway| assert!(splitway.end_with(Signal::TERM).unwrap().success()),
        );
    });
}

#[test]
fn clients_with_a_full_window_learn_of_the_end_of_a_drain() {
    isolated(|site| {
        let mut beyond = Beyond::new(&site, "[operation]\ndrain_timeout = \"500ms\"\n");
        beyond.all_are_closed_with(
            NO_ERROR,
            |_| {},
            |splitway| {
                signal(splitway.supervisor(), Signal::QUIT).unwrap();
                assert!(splitway.wait().unwrap().success());
                splitway.line(|line| line.contains("reset")).unwrap();
            },
        );
    });
}

#[test]
fn clients_with_a_full_window_learn_that_they_have_used_up_their_budget() {
    isolated(|site| {
        let mut beyond = Beyond::new(&site, "");
        let flood = |client: &mut Client| {
            let frames = frame(RESERVED, b"").repeat(FRAMES);
            client.quic.open(&frames).expect("a stream");
        };
        beyond.all_are_closed_with(EXCESSIVE_LOAD, flood, |_| {});
    });
}
