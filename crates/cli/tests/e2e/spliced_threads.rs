//! A program that copies by splice(2) with two threads for each pair of connections, each of which
//! waits in its calls: while one sees that the NIC stack moves the bytes, the other may be in the
//! middle of a piece.

use rustix::process::Signal;
use testbed::backend::{Backend, Speech};
use testbed::namespace::isolated;
use testbed::site::Site;

use crate::deaths::lose_packets;
use crate::programs::{Stack, at};
use crate::proxy::spliced_tunnel;
use crate::run::{PORT, compiled, end, splitway_run_on, start};
use crate::stat::all_host_counted;
use crate::support::{kill_nics_while, on_threads};

/// Clients at a time.
const CLIENTS: usize = 20;

/// What each sends and has back, in bytes, behind 100,000.
const BYTES: usize = 2_000_000;

/// Runs the program, and clients of it; how many of its pairs were joined, and how many broke.
fn relayed(site: &Site, clients: impl FnOnce(&Stack)) -> [u64; 2] {
    let _backend = Backend::new(9001, Speech::Echo);
    let mut stack = Stack::serve(site);
    let program = compiled(&stack.folder, "cli/tests/programs/copier.c");
    let line = ["--connect", "10.77.0.0/24", "--splice", "8080", "--"];
    let mut command = splitway_run_on(&stack, &line);
    let port = PORT.to_string();
    let mut copier = start(command.arg(program).args([&port, "10.77.0.1", "9001"]));
    clients(&stack);
    let counted = all_host_counted(["splices_joined", "splices_broken"]);
    end(&mut copier, Signal::TERM);
    assert!(stack.splitway.end_with(Signal::TERM).unwrap().success());
    counted
}

#[test]
fn threads_of_each_direction_have_every_byte_moved_for_them() {
    isolated(|site| {
        let [joined, broken] = relayed(&site, |_| {
            on_threads(CLIENTS, |client| spliced_tunnel(at(PORT), client, BYTES));
        });
        println!("{joined} joined");
        assert!(joined > 0);
        assert_eq!(broken, 0);
    });
}

#[test]
fn threads_of_each_direction_outlive_nic_processes_while_packets_are_lost() {
    isolated(|site| {
        let [joined, broken] = relayed(&site, |stack| {
            lose_packets();
            kill_nics_while(&stack.splitway, || {
                on_threads(CLIENTS, |client| spliced_tunnel(at(PORT), client, BYTES));
            });
        });
        println!("{joined} joined");
        assert!(joined > 0);
        assert_eq!(broken, 0);
    });
}
