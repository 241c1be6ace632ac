//! Millions of short connections to unmodified programs: neither they nor the stack grow with their
//! number. And fifty thousand at a time that are idle.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream};

use rustix::process::{Pid, Resource, Signal, getrlimit};
use testbed::http::be_patient;
use testbed::namespace::isolated_long;
use testbed::process::Process;
use testbed::procfs::{descriptors, memory};
use testbed::site::Site;
use testbed::{Context, wait};

use crate::concurrency::allow_many_sockets;
use crate::programs::{Stack, at};
use crate::run::{
    PORT, end, nginx, nginx_configuration, program_of, splitway_run_on, start, workers,
};
use crate::stat::json;
use crate::support::{SOON, on_threads, process};

const THREADS: usize = 8;

/// The address of the stack in the other family.
const V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);

/// Connections before the first look, by when each port of the clients was used, and as many are in
/// TIME-WAIT as there may be.
const WARM: usize = 200_000;

/// What resident memory may grow by between the looks: as much as allocators and tables may move,
/// and less than three bytes for a connection of a million.
const GROWTH_MAX: u64 = 2 << 20;

/// What descriptors may differ by: those that a program has in store come in batches of so many.
const HANDLES_MAX: usize = 64;

/// Asks on connections of their own, each of which the server closes.
fn ask(connections: usize, request: &[u8], response_end: &[u8]) {
    on_threads(THREADS, |_| {
        let mut response = Vec::new();
        for _ in 0..connections / THREADS {
            let address = at(PORT);
            let mut stream = TcpStream::connect(address).context(|| format!("to {address}"))?;
            be_patient(&stream)?;
            let asking = || "a request".to_owned();
            stream.write_all(request).context(asking)?;
            response.clear();
            let answered = || "its response".to_owned();
            stream.read_to_end(&mut response).context(answered)?;
            assert!(
                response.ends_with(response_end),
                "{:?}",
                String::from_utf8_lossy(&response)
            );
        }
        Ok(())
    });
}

/// Resident bytes and descriptors of processes.
fn look(processes: &[(&str, Pid)]) -> Vec<(u64, usize)> {
    // Those of programs are over when the host process has no more connections.
    let is_quiet = || {
        let usage = &json(&["--summary"])["host"]["usage"];
        (usage["connections"] == 0).then_some(())
    };
    wait::until(SOON, "connections are over", is_quiet).unwrap();
    let of = |pid| {
        let resident = memory(pid).unwrap().resident_bytes;
        (resident, descriptors(pid).unwrap())
    };
    let seen: Vec<_> = processes.iter().map(|(_, pid)| of(*pid)).collect();
    for ((name, _), (resident, descriptors)) in processes.iter().zip(&seen) {
        println!("{name}: {resident} resident bytes, {descriptors} descriptors");
    }
    seen
}

/// Asks so often, and looks at the program and the stack amid it and behind it.
fn assert_flat(
    stack: &Stack,
    program: Pid,
    connections: usize,
    (request, response_end): (&[u8], &[u8]),
) {
    let splitway = &stack.splitway;
    let processes = [
        ("program", program),
        ("host process", splitway.host()),
        ("NIC process", splitway.nic()),
        ("broker", process(splitway, "splitway-broker").unwrap()),
    ];
    ask(WARM, request, response_end);
    let warm = look(&processes);
    ask(connections - WARM, request, response_end);
    let after = look(&processes);
    for (at, (name, _)) in processes.iter().enumerate() {
        let ((before, opened), (resident, open)) = (warm[at], after[at]);
        assert!(
            resident <= before + GROWTH_MAX,
            "{name}: {before}, then {resident} bytes"
        );
        assert!(
            open <= opened + HANDLES_MAX,
            "{name}: {opened}, then {open} descriptors"
        );
    }
    let counted = &json(&["--summary"])["host"]["counters"]["sockets_connections_accepted"];
    assert!(counted.as_u64() >= Some(connections as u64), "{counted}");
}

#[test]
#[ignore = "takes minutes"]
fn nginx_does_not_grow_with_a_million_connections() {
    isolated_long(|site| {
        site.file("10", 10).unwrap();
        let content = fs::read(site.root().join("10")).unwrap();
        let stack = Stack::serve(&site);
        let configuration = nginx_configuration(&site, &stack.folder, 1, "");
        let mut nginx = nginx(&stack, &configuration);
        let begun = || workers(&stack.folder).first().copied();
        let worker = wait::until(SOON, "it has a worker", begun).unwrap();
        let exchange: (&[u8], &[u8]) = (b"GET /10 HTTP/1.0\r\n\r\n", &content);
        assert_flat(&stack, worker, 1_000_000, exchange);
        end(&mut nginx, Signal::QUIT);
        stack.assert_nothing_left();
    });
}

fn start_redis(stack: &Stack, site: &Site) -> Process {
    let mut command = splitway_run_on(stack, &["--", "redis-server"]);
    command.args([
        "--bind",
        "0.0.0.0",
        "::",
        "--save",
        "",
        "--protected-mode",
        "no",
    ]);
    command.args(["--maxclients", &(IDLE + 100).to_string()]);
    command
        .args(["--port", &PORT.to_string(), "--dir"])
        .arg(site.outside());
    start(&mut command)
}

#[test]
#[ignore = "takes many minutes"]
fn redis_does_not_grow_with_ten_million_connections() {
    isolated_long(|site| {
        let stack = Stack::serve(&site);
        let mut redis = start_redis(&stack, &site);
        let request = b"SET key value\r\nGET key\r\nQUIT\r\n";
        let response = b"+OK\r\n$5\r\nvalue\r\n+OK\r\n";
        assert_flat(&stack, program_of(&redis), 10_000_000, (request, response));
        end(&mut redis, Signal::TERM);
        stack.assert_nothing_left();
    });
}

/// Most silent connections of one client, as many to each of two addresses of the program, for a
/// client has 28,232 ports for one.
const IDLE: usize = 50_000;

/// What the host process may hold for each, in bytes.
const IDLE_BYTES_MAX: u64 = 4_500;

#[test]
#[ignore = "takes a minute"]
fn redis_holds_idle_connections_as_many_as_it_may_and_answers_each() {
    isolated_long(|site| {
        // All processes that are started inherit it.
        allow_many_sockets();
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // The server keeps some, and a user has no more than three quarters of the others.
        let idle = IDLE.min(usize::try_from(limit / 2).unwrap_or(IDLE));
        let stack = Stack::serve(&site);
        let mut redis = start_redis(&stack, &site);
        let host = stack.splitway.host();
        let before = memory(host).unwrap().resident_bytes;
        let servers: [SocketAddr; 2] = [at(PORT), (V6, PORT).into()];
        let mut clients: Vec<TcpStream> = (0..idle)
            .map(|number| TcpStream::connect(servers[number % 2]).unwrap())
            .collect();
        let accepted = || {
            let counters = &json(&["--summary"])["host"]["counters"];
            let accepted = counters["sockets_connections_accepted"].as_u64();
            (accepted >= Some(idle as u64)).then_some(())
        };
        wait::until(SOON, "all are accepted", accepted).unwrap();
        let resident = memory(host).unwrap().resident_bytes;
        let each = resident.saturating_sub(before) / idle as u64;
        println!("{idle} idle connections: {each} resident bytes of the host process for each");
        for round in 0..2 {
            for (number, client) in clients.iter_mut().enumerate() {
                let sent = format!("ECHO {round}-{number}\r\n");
                client.write_all(sent.as_bytes()).unwrap();
            }
            for (number, client) in clients.iter_mut().enumerate() {
                let word = format!("{round}-{number}");
                let expected = format!("${}\r\n{word}\r\n", word.len());
                let mut received = vec![0; expected.len()];
                be_patient(client).unwrap();
                client.read_exact(&mut received).unwrap();
                assert_eq!(String::from_utf8_lossy(&received), expected);
            }
        }
        assert!(each <= IDLE_BYTES_MAX, "{each} bytes");
        drop(clients);
        end(&mut redis, Signal::TERM);
        stack.assert_nothing_left();
    });
}
