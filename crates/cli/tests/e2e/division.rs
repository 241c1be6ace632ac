//! The number of NIC workers in use follows the load, and connections follow it, while downloads go
//! on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::net::{RecvFlags, recv};
use rustix::process::Signal;
use serde_json::Value;
use testbed::http::{Connection, request};
use testbed::namespace::isolated;
use testbed::process::signal;
use testbed::site::KnownFile;
use testbed::wait::until;

use crate::deaths::host_counter;
use crate::restart::serving;
use crate::stat::json;
use crate::support::{FAMILIES, SOON, serve_with, started};

/// Clients that do nothing but take bytes.
const CROWD: usize = 16;

/// Of each NIC stack, how many workers are in use.
fn workers_in_use() -> u64 {
    let nics = &json(&["--summary"])["host"]["nics"];
    nics[0]["workers_in_use"].as_u64().unwrap()
}

/// Connections that have gone to another worker so far.
fn rebalanced() -> u64 {
    let counters = &json(&["--summary"])["host"]["counters"];
    counters["connections_rebalanced"].as_u64().unwrap()
}

/// Connections of each worker.
fn connections() -> Vec<u64> {
    let document = json(&["--summary"]);
    let workers: &Vec<Value> = document["host"]["workers"].as_array().unwrap();
    let connections = workers.iter().map(|it| it["connections"].as_u64().unwrap());
    connections.collect()
}

/// Downloads again and again on one connection until `is_over`, and throws away what comes as fast
/// as it can.
fn devour(index: usize, file: &KnownFile, is_over: &AtomicBool) {
    let mut stream = TcpStream::connect(FAMILIES[index % 2]).unwrap();
    let mut buffer = vec![0; 1 << 20];
    while !is_over.load(Ordering::Relaxed) {
        let request = request("GET", file.name());
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut buffer[..1]).unwrap();
            head.push(buffer[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 200 "));
        let mut left = file.size() as usize;
        while left > 0 {
            let room = left.min(buffer.len());
            // The kernel throws away what it would copy (tcp(7), MSG_TRUNC).
            let (_, taken) = recv(&stream, &mut buffer[..room], RecvFlags::TRUNC).unwrap();
            assert!(taken > 0, "{left} bytes are missing");
            left -= taken;
        }
    }
}

#[test]
fn workers_in_use_follow_the_load_and_no_download_notices() {
    isolated(|site| {
        let file = site.file("file", 40_000_000).unwrap();
        let workers = ["--workers", "2", "--workers-min", "1", "--report-json"];
        let mut splitway = serve_with(&site, &workers);
        assert_eq!(workers_in_use(), 1);
        // They wait for their clients, whatever happens meanwhile.
        let mut waiting: Vec<_> = (0..8).map(|i| started(FAMILIES[i % 2], &file)).collect();
        assert_eq!(connections(), [8, 0]);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for index in 0..CROWD {
                let (file, is_over) = (&file, &is_over);
                scope.spawn(move || devour(index, file, is_over));
            }
            let checked: Vec<_> = (0..2)
                .map(|i| {
                    let (file, is_over) = (&file, &is_over);
                    scope.spawn(move || {
                        let mut connection = Connection::open(FAMILIES[i]).unwrap();
                        while !is_over.load(Ordering::Relaxed) {
                            connection.get(file).unwrap();
                        }
                    })
                })
                .collect();
            until(2 * SOON, "two workers, and connections for both", || {
                (workers_in_use() == 2 && rebalanced() > 0).then_some(())
            })
            .unwrap();
            let nic = splitway.nic();
            signal(nic, Signal::KILL).unwrap();
            let next = splitway.line(|line| serving(line).is_some_and(|pid| pid != nic));
            next.unwrap();
            until(2 * SOON, "two workers again", || {
                (workers_in_use() == 2 && connections()[1] > 0).then_some(())
            })
            .unwrap();
            is_over.store(true, Ordering::Relaxed);
            for thread in checked {
                thread.join().unwrap();
            }
        });
        until(2 * SOON, "one worker", || {
            (workers_in_use() == 1 && connections()[1] == 0).then_some(())
        })
        .unwrap();
        for connection in &mut waiting {
            connection.read_file_part(&file, 0..file.size()).unwrap();
            connection.get(&file).unwrap();
            connection.finish().unwrap();
            connection.read_end().unwrap();
        }
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
        assert!(host_counter(&mut splitway, "nic_workers_added") > 0);
        assert_eq!(host_counter(&mut splitway, "nic_restarts"), 1);
        assert_eq!(host_counter(&mut splitway, "connections_broken"), 0);
    });
}
