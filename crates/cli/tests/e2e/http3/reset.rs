//! Clients of a killed server, and the next server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustls::KeyLog;
use testbed::namespace::isolated;
use testbed::site::Site;
use testbed::splitway::Splitway;
use testbed::wait;

use super::client::Client;
use super::{certificate, serve};
use crate::https::{Certificate, HTTPS};
use crate::lifetime::link_exists;
use crate::support::{SOON, program, sh};

/// A stateless reset arrives within a round trip of the client's next packet or probe.
const AT_ONCE: Duration = Duration::from_secs(5);

/// With a key log, the client keeps its datagrams, and the test counts them.
#[derive(Debug)]
struct NoLog;

impl KeyLog for NoLog {
    fn log(&self, _: &str, _: &[u8], _: &[u8]) {}
}

/// Starts a server with the secret in this file.
fn serve_with_secret(site: &Site, certificate: &Certificate, name: &str) -> Splitway {
    let secret = site.outside().join(name);
    if !secret.exists() {
        sh(&format!(
            "{} keygen {}",
            program().display(),
            secret.display()
        ));
    }
    let configuration = site.outside().join("secret.toml");
    std::fs::write(
        &configuration,
        format!("[quic]\nsecret_file = {secret:?}\nidle_timeout = \"10m\"\n"),
    )
    .unwrap();
    let configuration = configuration.to_str().unwrap();
    serve(site, certificate, &["--config", configuration])
}

/// Clients whose server is killed amid a download. The next server has another secret file, or the
/// same. `then` runs once the client has sent it a request.
fn answered_by_the_next(site: &Site, next: &str, then: impl Fn(&mut Client, Instant)) {
    let file = site.file("file", 50_000_000).unwrap();
    let certificate = certificate(site);
    for (seed, server) in (1..).zip(HTTPS) {
        let mut splitway = serve_with_secret(site, &certificate, "one");
        let log = Arc::new(NoLog);
        let mut client = Client::connect_logging(server, &certificate, seed, Some(log));
        let stream = client.begin("GET", "/file", &[]);
        client.until("a part", |it| it.has_received(stream) > 1_000_000);
        splitway.end_with(Signal::KILL).unwrap();
        wait::until(SOON, "the link's end", || (!link_exists()).then_some(())).unwrap();
        // Receives everything that the killed server sent: until a turn brings nothing.
        let mut before = usize::MAX;
        while client.datagrams.len() != before {
            before = client.datagrams.len();
            client.turn();
        }
        let _next = serve_with_secret(site, &certificate, next);
        // The next server is up: it serves others.
        let mut other = Client::connect(server, &certificate, seed + 10);
        assert_eq!(other.ask("HEAD", "/file", &[]).status, 200);
        other.close();
        let begun = Instant::now();
        client.begin("GET", "/file", &[]);
        while client.datagrams.len() == before && client.quic.lost.is_none() {
            assert!(begun.elapsed() < AT_ONCE, "the next server answers");
            client.turn();
        }
        then(&mut client, begun);
        assert!(
            file.size() > client.has_received(stream) as u64,
            "amid a download"
        );
    }
}

/// RFC 9000 §10.3
#[test]
fn clients_of_a_killed_server_are_reset_by_the_next_one_with_the_same_secret() {
    isolated(|site| {
        answered_by_the_next(&site, "one", |client, begun| {
            while client.quic.lost.is_none() {
                assert!(begun.elapsed() < AT_ONCE, "a stateless reset");
                client.turn();
            }
            let lost = client.quic.lost.as_deref().unwrap_or_default();
            assert!(lost.contains("reset"), "{lost}");
        });
    });
}

#[test]
fn clients_of_a_killed_server_are_not_reset_by_one_with_another_secret() {
    isolated(|site| {
        answered_by_the_next(&site, "two", |client, _| {
            assert_eq!(client.quic.lost, None);
        });
    });
}
