//! A million short connections to unmodified programs: neither they nor the stack grow with their
//! number.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::{Pid, Signal};
use testbed::http::be_patient;
use testbed::namespace::isolated_long;
use testbed::procfs::{descriptors, memory};
use testbed::{Context, wait};

use crate::programs::{Stack, at};
use crate::run::{
    PORT, end, nginx, nginx_configuration, program_of, splitway_run_on, start, workers,
};
use crate::stat::json;
use crate::support::{SOON, on_threads, process};

const THREADS: usize = 8;

/// Connections before the first look, by when each port of the clients was used, and as many are in
/// TIME-WAIT as there may be, and before the second.
const WARM: usize = 200_000;
const ALL: usize = 1_000_000;

/// What resident memory may grow by between the looks: as much as allocators and tables may move,
/// and less than three bytes for a connection.
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
fn assert_flat(stack: &Stack, program: Pid, request: &[u8], response_end: &[u8]) {
    let splitway = &stack.splitway;
    let processes = [
        ("program", program),
        ("host process", splitway.host()),
        ("NIC process", splitway.nic()),
        ("broker", process(splitway, "splitway-broker").unwrap()),
    ];
    ask(WARM, request, response_end);
    let warm = look(&processes);
    ask(ALL - WARM, request, response_end);
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
    assert!(counted.as_u64() >= Some(ALL as u64), "{counted}");
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
        assert_flat(&stack, worker, b"GET /10 HTTP/1.0\r\n\r\n", &content);
        end(&mut nginx, Signal::QUIT);
        stack.assert_nothing_left();
    });
}

#[test]
#[ignore = "takes minutes"]
fn redis_does_not_grow_with_a_million_connections() {
    isolated_long(|site| {
        let stack = Stack::serve(&site);
        let mut command = splitway_run_on(&stack, &["--", "redis-server"]);
        command.args(["--bind", "0.0.0.0", "--save", "", "--protected-mode", "no"]);
        command
            .args(["--port", &PORT.to_string(), "--dir"])
            .arg(site.outside());
        let mut redis = start(&mut command);
        let request = b"SET key value\r\nGET key\r\nQUIT\r\n";
        let response = b"+OK\r\n$5\r\nvalue\r\n+OK\r\n";
        assert_flat(&stack, program_of(&redis), request, response);
        end(&mut redis, Signal::TERM);
        stack.assert_nothing_left();
    });
}
