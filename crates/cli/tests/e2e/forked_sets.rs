//! Sets of epoll that were made before a fork.

use rustix::process::Signal;
use testbed::Context;
use testbed::namespace::isolated;
use testbed::site::{KnownFile, Site};

use crate::programs::Stack;
use crate::run::{PORT, compiled, echo, end, splitway_run_on, start};
use crate::support::on_threads;

/// The source of the program.
const FORKED: &str = "cli/tests/programs/forked.c";

/// Has a program echo for many clients, and end by a signal.
fn echoes(site: &Site, how: &str) {
    let stack = Stack::serve(site);
    let program = compiled(&stack.folder, FORKED);
    let mut command = splitway_run_on(&stack, &["--"]);
    command.arg(program).arg(how).arg(PORT.to_string());
    let mut server = start(&mut command);
    let bytes = KnownFile::whole("sent", 200_000).bytes(0, 200_000);
    on_threads(8, |_| {
        (0..10).try_for_each(|_| echo(&bytes).context(|| "an echo".to_owned()))
    });
    let end = end(&mut server, Signal::TERM);
    assert!(end.success(), "{end}");
    stack.assert_nothing_left();
}

#[test]
fn a_daemon_waits_on_the_set_that_it_has_made_before_it_became_one() {
    isolated(|site| echoes(&site, "daemon"));
}

#[test]
fn workers_wait_on_copies_of_one_set() {
    isolated(|site| echoes(&site, "workers"));
}
