//! Clients that hold all connections to the backends of `splitway proxy`, and others beside them.

use std::fs;

use testbed::Result;
use testbed::backend::{Backend, Speech};
use testbed::http::Connection;
use testbed::namespace::isolated;
use testbed::site::Site;
use testbed::splitway::{HTTP_V4, HTTP_V6};
use testbed::wait;

use crate::deaths::counted;
use crate::proxy::{exchange, listen, pool, started, written};
use crate::stat::json;
use crate::support::SOON;

const SLOTS: usize = 8;

/// Clients of one source, over IPv6, of which each has sent this.
fn attackers(bytes: &[u8]) -> Vec<Connection> {
    let attacker = || -> Result<Connection> {
        let mut connection = Connection::open(HTTP_V6)?;
        connection.send(bytes)?;
        Ok(connection)
    };
    (0..4 * SLOTS).map(|_| attacker().unwrap()).collect()
}

fn post(connection: &mut Connection, body: &[u8]) -> Result<()> {
    let length = body.len();
    let head = format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n");
    connection.send(&[head.as_bytes(), body].concat())?;
    let head = connection.read_head()?;
    assert_eq!((head.status, head.content_length()?), (200, length as u64));
    let mut echoed = Vec::new();
    connection.read_body(length as u64, |_, piece| {
        echoed.extend_from_slice(piece);
        Ok(())
    })?;
    assert_eq!(echoed, body);
    Ok(())
}

/// The attack holds all connections to the backend.
fn holds_all(backend: &Backend) -> bool {
    backend.connections() == SLOTS
}

/// A proxy beside which `attack` holds connections; clients over IPv4 get all their responses.
/// Returns what was counted of `counters`.
fn beside<const N: usize>(
    site: &Site,
    attack: &[u8],
    is_under_way: impl Fn(&Backend) -> bool,
    counters: [&'static str; N],
) -> [u64; N] {
    let backend = Backend::new(9001, Speech::Http);
    let bounds = format!("connections_max = {SLOTS}\nqueue_max = {SLOTS}");
    let text = listen(80, "web", "") + &pool("web", &bounds, &[9001]);
    let proxy = started(&written(site, &text));
    let attackers = attackers(attack);
    let begun = || is_under_way(&backend).then_some(());
    wait::until(SOON, "the attack", begun).unwrap();
    let mut client = Connection::open(HTTP_V4).unwrap();
    for number in 0..100 {
        exchange(&mut client, "/2000").unwrap();
        post(&mut client, &[number; 3000]).unwrap();
    }
    drop(attackers);
    counted(proxy, counters)
}

#[test]
fn short_bodies_that_do_not_end_hold_no_connection() {
    let head = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\nx";
    isolated(|site| {
        let counters = ["proxy_evictions", "proxy_bodies_awaited"];
        let [evictions, awaited] = beside(&site, head.as_bytes(), |_| true, counters);
        assert_eq!(evictions, 0);
        assert!(awaited >= 4 * SLOTS as u64);
    });
}

#[test]
fn long_bodies_that_do_not_end_give_way() {
    let head = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n";
    isolated(|site| {
        let attack = [head.as_bytes(), &[b'x'; 100_000]].concat();
        let [evictions] = beside(&site, &attack, holds_all, ["proxy_evictions"]);
        assert!(evictions > 0);
    });
}

#[test]
fn readers_that_take_nothing_give_way() {
    let head = "GET /50000000 HTTP/1.1\r\nHost: test\r\n\r\n";
    isolated(|site| {
        let [evictions] = beside(&site, head.as_bytes(), holds_all, ["proxy_evictions"]);
        assert!(evictions > 0);
    });
}

#[test]
fn posts_to_a_backend_without_timestamps_leave_no_port_in_time_wait() {
    isolated(|site| {
        fs::write("/proc/sys/net/ipv4/tcp_timestamps", "0").unwrap();
        let backend = Backend::behind_header(9001, Speech::Http);
        let text = listen(80, "web", "") + &pool("web", "send_proxy = \"v1\"", &[9001]);
        let proxy = started(&written(&site, &text));
        let mut client = Connection::open(HTTP_V4).unwrap();
        for number in 0..=255 {
            post(&mut client, &[number; 100]).unwrap();
        }
        assert_eq!(backend.connections(), 256);
        // The client's own connection may end in order.
        drop(client);
        let usage = &json(&["--summary"])["host"]["usage"];
        let time_waits = usage["time_waits"].as_u64().unwrap();
        assert!(time_waits <= 1, "{time_waits}");
        drop(proxy);
    });
}
