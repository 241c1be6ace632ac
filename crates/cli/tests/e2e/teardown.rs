//! NIC stacks run the end of connections, with the kernel's TCP at the other end, in both forms: a
//! packet filter steers frames to NIC workers, or the host hands them on.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use testbed::http::{Connection, be_patient};
use testbed::namespace::isolated;
use testbed::site::Site;
use testbed::splitway::Splitway;
use testbed::wait;

use crate::deaths::counted;
use crate::stat::json;
use crate::support::{FAMILIES, SOON, kill_nics_amid, on_threads, serve_with};

/// Clients at a time.
const CLIENTS: usize = 20;

/// How frames get to workers: with this in the command line.
const STEERED: &[&str] = &["--teardown-offload", "--report-json"];
const HANDED_ON: &[&str] = &["--teardown-offload", "--report-json", "--no-steering"];
const FORMS: [&[&str]; 2] = [STEERED, HANDED_ON];

fn serve(site: &Site, form: &[&str]) -> Splitway {
    serve_with(site, form)
}

/// Waits until nothing is left of any connection but TIME-WAIT of the host's own.
fn nothing_is_left() {
    let patience = SOON + Duration::from_secs(75);
    wait::until(patience, "the end of all connections", || {
        let usage = &json(&["--summary"])["host"]["usage"];
        (usage["connections"] == 0 && usage["parted"] == 0).then_some(())
    })
    .unwrap();
}

#[test]
fn clients_that_close_first_get_the_servers_end_from_the_nic_stack() {
    isolated(|site| {
        let file = site.file("file", 20_000).unwrap();
        for form in FORMS {
            let splitway = serve(&site, form);
            on_threads(CLIENTS, |index| {
                for _ in 0..10 {
                    let mut connection = Connection::open(FAMILIES[index % 2])?;
                    connection.get(&file)?;
                    connection.finish()?;
                    connection.read_end()?;
                }
                Ok(())
            });
            nothing_is_left();
            let all = 10 * CLIENTS as u64;
            let names = [
                "parts",
                "parted_finished",
                "connections_finished",
                "connections_broken",
                "resets_sent",
                "flows_steered",
            ];
            let steered = if form == STEERED { all } else { 0 };
            assert_eq!(counted(splitway, names), [all, all, all, 0, 0, steered]);
        }
    });
}

/// The server's FIN goes with the response, or both ends close at the same time.
#[test]
fn every_order_of_closing_ends_in_order() {
    isolated(|site| {
        let file = site.file("file", 20_000).unwrap();
        for form in FORMS {
            let splitway = serve(&site, form);
            on_threads(CLIENTS, |index| {
                for turn in 0..5 {
                    let mut stream = TcpStream::connect(FAMILIES[index % 2]).unwrap();
                    be_patient(&stream)?;
                    let close = ["", "Connection: close\r\n"][turn % 2];
                    let request = format!("GET /file HTTP/1.1\r\nHost: a\r\n{close}\r\n");
                    stream.write_all(request.as_bytes()).unwrap();
                    if turn != 1 {
                        stream.shutdown(Shutdown::Write).unwrap();
                    }
                    let mut response = Vec::new();
                    stream.read_to_end(&mut response).unwrap();
                    assert!(response.len() as u64 > file.size(), "{}", response.len());
                }
                Ok(())
            });
            nothing_is_left();
            let names = [
                "connections_accepted",
                "connections_finished",
                "connections_broken",
            ];
            let all = 5 * CLIENTS as u64;
            assert_eq!(counted(splitway, names), [all, all, 0]);
        }
    });
}

#[test]
fn nic_processes_are_killed_amid_closes_and_nothing_is_left() {
    isolated(|site| {
        let file = site.file("file", 20_000).unwrap();
        for form in FORMS {
            let splitway = serve(&site, form);
            let closed = AtomicUsize::new(0);
            let all = CLIENTS * 15;
            kill_nics_amid(&splitway, 4, (&closed, all), || {
                on_threads(CLIENTS, |index| {
                    for _ in 0..15 {
                        let mut connection = Connection::open(FAMILIES[index % 2])?;
                        connection.get(&file)?;
                        connection.finish()?;
                        connection.read_end()?;
                        closed.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                });
            });
            nothing_is_left();
            let names = ["connections_finished", "connections_broken", "parts"];
            let [finished, broken, parts] = counted(splitway, names);
            assert_eq!((finished, broken), (all as u64, 0));
            assert!(parts > 0);
        }
    });
}

#[test]
fn without_the_switch_the_host_keeps_every_end() {
    isolated(|site| {
        let file = site.file("file", 20_000).unwrap();
        let splitway = serve_with(&site, &["--report-json"]);
        for server in FAMILIES {
            let mut connection = Connection::open(server).unwrap();
            connection.get(&file).unwrap();
            connection.finish().unwrap();
            connection.read_end().unwrap();
        }
        nothing_is_left();
        assert_eq!(counted(splitway, ["parts", "connections_finished"]), [0, 2]);
    });
}
