//! Clients that hold all connections to the backends of `splitway proxy`, and others beside them.

use std::fs;

use testbed::Result;
use testbed::backend::{Backend, Speech};
use testbed::http::Connection;
use testbed::namespace::isolated;
use testbed::site::Site;
use testbed::splitway::{HTTP_V4, HTTP_V6};
use testbed::wait;

use crate::concurrency::allow_many_sockets;
use crate::deaths::counted;
use crate::proxy::{exchange, listen, pool, started, written};
use crate::stat::json;
use crate::support::SOON;

/// How many connections to a backend there may be, and how many clients of one source want them.
#[derive(Clone, Copy)]
struct Scale {
    connections_max: usize,
    attackers: usize,
}

const FEW: Scale = Scale {
    connections_max: 8,
    attackers: 32,
};

const DEFAULT: Scale = Scale {
    connections_max: 1024,
    attackers: 1100,
};

/// Clients of one source, over IPv6, of which each has sent this.
fn attackers(count: usize, bytes: &[u8]) -> Vec<Connection> {
    let attacker = || -> Result<Connection> {
        let mut connection = Connection::open(HTTP_V6)?;
        connection.send(bytes)?;
        Ok(connection)
    };
    (0..count).map(|_| attacker().unwrap()).collect()
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

/// A proxy to whose backend `attack` has so many connections; clients over IPv4 get all their
/// responses. Returns what was counted of `counters`.
fn beside<const N: usize>(
    site: &Site,
    scale: Scale,
    (attack, held): (&[u8], usize),
    counters: [&'static str; N],
) -> [u64; N] {
    allow_many_sockets();
    let backend = Backend::new(9001, Speech::Http);
    let most = scale.connections_max;
    let bounds = format!("connections_max = {most}\nqueue_max = {most}");
    let text = listen(80, "web", "") + &pool("web", &bounds, &[9001]);
    let proxy = started(&written(site, &text));
    let attackers = attackers(scale.attackers, attack);
    let begun = || (backend.connections() == held).then_some(());
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
        let [evictions, awaited] = beside(&site, FEW, (head.as_bytes(), 0), counters);
        assert_eq!(evictions, 0);
        assert!(awaited >= FEW.attackers as u64);
    });
}

fn long_bodies_give_way(site: &Site, scale: Scale) {
    let head = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n";
    let attack = [head.as_bytes(), &[b'x'; 100_000]].concat();
    let attack = (&attack[..], scale.connections_max);
    let [evictions] = beside(site, scale, attack, ["proxy_evictions"]);
    assert!(evictions > 0);
}

#[test]
fn long_bodies_that_do_not_end_give_way() {
    isolated(|site| long_bodies_give_way(&site, FEW));
}

#[test]
fn as_many_long_bodies_as_a_backend_may_have_by_default_give_way() {
    isolated(|site| long_bodies_give_way(&site, DEFAULT));
}

#[test]
fn readers_that_take_nothing_give_way() {
    let head = "GET /50000000 HTTP/1.1\r\nHost: test\r\n\r\n";
    isolated(|site| {
        let attack = (head.as_bytes(), FEW.connections_max);
        let [evictions] = beside(&site, FEW, attack, ["proxy_evictions"]);
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
