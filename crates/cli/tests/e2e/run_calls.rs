//! Ways in which programs make their calls, under `splitway run`: programs of
//! `crates/preload/tests/programs`, which know nothing of it.

use std::process::Stdio;

use testbed::namespace::isolated;
use testbed::process::run;
use testbed::site::Site;

use crate::programs::{Stack, at};
use crate::run::{PORT, compiled, echo, splitway_run_on, start};
use crate::support::SOON;

/// Serves in a way, and ends in order.
fn serves(site: &Site, way: &str) {
    let stack = Stack::serve(site);
    let server = compiled(&stack.folder, "preload/tests/programs/server.c");
    let mut command = splitway_run_on(&stack, &["--"]);
    command.arg(server).args([way, &PORT.to_string()]);
    let mut server = start(command.stdin(Stdio::piped()));
    for lines in [1, 10, 20_000, 3] {
        let sent: String = (0..lines).map(|line| format!("line {line}\n")).collect();
        echo(sent.as_bytes())
            .unwrap_or_else(|error| panic!("{way}: {error}: {:?}", server.stop(SOON)));
    }
    drop(server.child().stdin.take());
    let end = server.wait(SOON).unwrap();
    assert!(end.success(), "{way}: {end}");
    stack.assert_nothing_left();
}

#[test]
fn calls_that_are_made_by_their_numbers_are_split() {
    isolated(|site| serves(&site, "numbers"));
}

#[test]
fn streams_of_the_c_library_are_split() {
    isolated(|site| serves(&site, "streams"));
}

#[test]
fn a_program_that_closes_one_by_one_what_it_has_not_opened_serves_on() {
    isolated(|site| serves(&site, "close"));
}

#[test]
fn a_program_that_closes_ranges_of_what_it_has_not_opened_serves_on() {
    isolated(|site| serves(&site, "close_range"));
}

#[test]
fn a_program_that_closes_all_from_a_descriptor_on_serves_on() {
    isolated(|site| serves(&site, "closefrom"));
}

#[test]
fn a_program_that_puts_others_in_the_place_of_all_serves_on() {
    isolated(|site| serves(&site, "dup2"));
}

#[test]
fn a_thread_that_waits_is_cancelled() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = compiled(&stack.folder, "preload/tests/programs/cancelled.c");
        let mut command = splitway_run_on(&stack, &["--listen=any", "--connect=any", "--"]);
        command
            .arg(program)
            .args([at(0).ip().to_string(), PORT.to_string()]);
        assert_eq!(run(&mut command).unwrap(), "cancelled\n");
    });
}
