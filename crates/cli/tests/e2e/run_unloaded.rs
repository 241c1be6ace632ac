//! Processes of `splitway run` that come to the kernel's sockets without the library are reported.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};
use testbed::namespace::isolated;
use testbed::process::{run, signal};

use crate::programs::Stack;
use crate::run::{compiled, splitway_run_on};

/// Starts a shell that executes another program, waits for what `splitway run` says of that, and
/// ends both.
fn reported(stack: &Stack, script: &str) -> String {
    let mut command = splitway_run_on(stack, &["--", "sh", "-c", script]);
    let mut started = command.stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(started.stderr.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let line = lines.find(|line| line.contains("TCP sockets of the kernel"));
    signal(Pid::from_child(&started), Signal::TERM).unwrap();
    started.wait().unwrap();
    line.expect("a report")
}

/// A program that listens until it is ended, linked statically.
fn static_listener(folder: &Path) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/listens.c");
    let program = folder.join("static");
    let mut compiling = Command::new("cc");
    compiling.args(["-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
    run(compiling.arg(&program).arg(source)).unwrap();
    program.display().to_string()
}

#[test]
fn a_program_that_loads_no_library_behind_a_script_is_reported_with_the_remedy() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = static_listener(&stack.folder);
        let line = reported(&stack, &format!("exec {program}"));
        assert!(line.contains(&program), "{line}");
        assert!(line.contains("linked statically"), "{line}");
        assert!(line.contains("splitway run --compat"), "{line}");
        stack.assert_nothing_left();
    });
}

#[test]
fn a_program_without_the_environment_of_its_caller_is_reported() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = compiled(&stack.folder, "cli/tests/programs/listens.c");
        let (program, middle) = (program.display(), static_listener(&stack.folder));
        // A static program in between, whose calls no library completes, drops the environment.
        let line = reported(&stack, &format!("exec {middle} {program}"));
        assert!(line.contains(&program.to_string()), "{line}");
        assert!(line.contains("started without LD_PRELOAD"), "{line}");
        stack.assert_nothing_left();
    });
}

#[test]
fn a_program_with_other_rights_than_its_caller_is_reported() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = compiled(&stack.folder, "cli/tests/programs/listens.c");
        let begin = compiled(&stack.folder, "cli/tests/programs/with_other_rights.c");
        let line = reported(
            &stack,
            &format!("exec {} {}", begin.display(), program.display()),
        );
        assert!(line.contains("rights that its caller has not"), "{line}");
        stack.assert_nothing_left();
    });
}

#[test]
fn programs_that_have_the_library_are_not_reported() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = compiled(&stack.folder, "cli/tests/programs/listens.c");
        let other = static_listener(&stack.folder);
        // What is reported is the second one: the first has been looked at as often by then.
        let both = format!(
            "{} & first=$!; {other} & trap \"kill $first $!\" TERM; wait; wait",
            program.display()
        );
        let line = reported(&stack, &both);
        assert!(line.contains(&other), "{line}");
    });
}
