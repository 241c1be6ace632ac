//! Ways in which programs make their calls, under `splitway run`: programs of
//! `crates/preload/tests/programs`, which know nothing of it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testbed::http::be_patient;
use testbed::namespace::isolated;
use testbed::process::run;
use testbed::site::Site;

use crate::programs::{Stack, at};
use crate::run::{PORT, splitway_run_on, start};
use crate::support::SOON;

/// Compiles one of the programs.
fn compiled(stack: &Stack, name: &str) -> PathBuf {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/tests/programs");
    let program = stack.folder.join(name);
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O1", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"])
        .args(["-pthread", "-o"])
        .arg(&program)
        .arg(programs.join(name).with_extension("c"));
    run(&mut compiler).unwrap();
    program
}

/// Has the server send bytes back, and compares them.
fn echo(lines: usize) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(at(PORT))?;
    be_patient(&stream).unwrap();
    let sent: String = (0..lines).map(|line| format!("line {line}\n")).collect();
    let mut writes = stream.try_clone()?;
    let bytes = sent.clone();
    let writer = std::thread::spawn(move || {
        writes.write_all(bytes.as_bytes())?;
        writes.shutdown(Shutdown::Write)
    });
    let mut received = String::new();
    stream.read_to_string(&mut received)?;
    writer.join().expect("it writes")?;
    assert!(received == sent, "{} of {}", received.len(), sent.len());
    Ok(())
}

/// Serves in a way, and ends in order.
fn serves(site: &Site, way: &str) {
    let stack = Stack::serve(site);
    let server = compiled(&stack, "server");
    let mut command = splitway_run_on(&stack, &["--"]);
    command.arg(server).args([way, &PORT.to_string()]);
    let mut server = start(command.stdin(Stdio::piped()));
    for lines in [1, 10, 20_000, 3] {
        echo(lines).unwrap_or_else(|error| panic!("{way}: {error}: {:?}", server.stop(SOON)));
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
fn a_thread_that_waits_for_the_kernel_is_cancelled() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = compiled(&stack, "cancelled");
        let mut command = splitway_run_on(&stack, &["--"]);
        let said = run(command.arg(program).arg(PORT.to_string())).unwrap();
        assert_eq!(said, "cancelled\n");
    });
}
