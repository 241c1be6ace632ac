//! Calls of unmodified programs on split sockets, against the same on those of the kernel.

use std::io::Read;
use std::net::TcpListener;
use std::process::Command;

use testbed::namespace::isolated;
use testbed::process::run;

use crate::programs::Stack;
use crate::run::{compiled, splitway_run_on};
use crate::stat::json;

/// Options by which all that a program binds and connects to is split, loopback addresses too.
pub(crate) const ALL: [&str; 6] = [
    "--listen=any",
    "--listen=127.0.0.0/8",
    "--listen=::1",
    "--connect=any",
    "--connect=127.0.0.0/8",
    "--connect=::1",
];

/// Connections that programs of the stack have begun to open: none of the kernel's is among them.
pub(crate) fn opened() -> u64 {
    let counters = &json(&["--summary"])["host"]["counters"];
    counters["connections_opened"].as_u64().unwrap()
}

/// The source of the program.
const CALLS: &str = "cli/tests/programs/calls.c";

#[test]
fn seldom_calls_do_on_split_sockets_what_they_do_on_those_of_the_kernel() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = compiled(&stack.folder, CALLS);
        let kernel = run(&mut Command::new(&program)).unwrap();
        assert_eq!(opened(), 0);
        let mut command = splitway_run_on(&stack, &ALL);
        let split = run(command.arg("--").arg(&program)).unwrap();
        assert_eq!(split, kernel);
        assert!(opened() >= 2);
    });
}

#[test]
fn a_bound_socket_connects_by_the_kernel_to_where_no_rule_leads() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = compiled(&stack.folder, CALLS);
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port().to_string();
        let mut command = splitway_run_on(&stack, &["--"]);
        let said = run(command.arg(&program).arg(&port)).unwrap();
        assert_eq!(
            said,
            "EPOLLOUT 1 of 7, error 0, TCP_NODELAY 1, the same port\n"
        );
        let mut received = String::new();
        let (mut stream, _) = server.accept().unwrap();
        stream.read_to_string(&mut received).unwrap();
        assert_eq!(received, "hello");
        assert_eq!(opened(), 0);
        stack.assert_nothing_left();
    });
}
