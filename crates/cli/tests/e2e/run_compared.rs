//! Calls of unmodified programs on split sockets, against the same on those of the kernel.

use std::io::Read;
use std::net::TcpListener;
use std::process::Command;

use testbed::namespace::isolated;
use testbed::process::run;
use testbed::site::Site;

use crate::programs::Stack;
use crate::run::{compiled, splitway_run_on};
use crate::run_compat::compat_on;
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

/// `splitway run` on a stack, with options.
type RunOn = fn(&Stack, &[&str]) -> Command;

/// Has a program say the same on sockets of the kernel and on split ones, of which it opens so many
/// connections at least.
fn says_the_same(site: &Site, source: &str, run_on: RunOn, opened_min: u64) {
    let stack = Stack::serve(site);
    let program = compiled(&stack.folder, source);
    let kernel = run(&mut Command::new(&program)).unwrap();
    assert_eq!(opened(), 0);
    let mut command = run_on(&stack, &ALL);
    command.arg("--").arg(&program);
    assert_eq!(run(&mut command).unwrap(), kernel);
    assert!(opened() >= opened_min);
    stack.assert_nothing_left();
}

#[test]
fn seldom_calls_do_on_split_sockets_what_they_do_on_those_of_the_kernel() {
    isolated(|site| says_the_same(&site, CALLS, splitway_run_on, 2));
}

#[test]
fn children_do_with_split_sockets_what_they_do_with_those_of_the_kernel() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/children.c", splitway_run_on, 4));
}

#[test]
fn sockets_share_addresses_as_those_of_the_kernel_do() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/reuse.c", splitway_run_on, 0));
}

#[test]
fn sets_of_epoll_report_split_sockets_as_they_do_those_of_the_kernel() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/sets.c", splitway_run_on, 2));
}

#[test]
fn passed_sockets_are_those_that_they_were_whenever_their_receiver_began() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/passed.c", splitway_run_on, 10));
}

#[test]
fn processes_go_on_with_their_sockets_after_they_have_given_up_rights() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/confined.c", splitway_run_on, 6));
}

#[test]
fn children_serve_within_a_limit_of_address_space() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/limited.c", splitway_run_on, 6));
}

#[test]
fn waits_end_though_the_clock_of_the_program_stands_still() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/frozen.c", splitway_run_on, 1));
}

#[test]
fn listeners_report_their_queues() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/queue.c", splitway_run_on, 3));
}

#[test]
fn sockets_of_ipv6_have_mapped_addresses_as_those_of_the_kernel() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/mapped.c", splitway_run_on, 4));
}

#[test]
fn sockets_of_ipv6_have_mapped_addresses_without_a_library() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/mapped.c", compat_on, 4));
}

#[test]
fn large_writes_that_do_not_block_go_whole_in_all_orders_of_ends() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/queued.c", splitway_run_on, 5));
}

#[test]
fn descriptors_of_closed_connections_are_those_of_others_as_in_the_kernel() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/kept.c", splitway_run_on, 200));
}

#[test]
fn sockets_and_waits_from_before_an_address_are_as_in_the_kernel() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/late.c", splitway_run_on, 6));
}

#[test]
fn sets_that_hold_sets_wake_those_who_waited_before_the_first_socket() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/nested.c", splitway_run_on, 18));
}

#[test]
fn closed_sockets_leave_nothing_behind() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/closed.c", splitway_run_on, 100));
}

#[test]
fn closed_sockets_leave_nothing_behind_without_a_library() {
    isolated(|site| says_the_same(&site, "cli/tests/programs/closed.c", compat_on, 100));
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
