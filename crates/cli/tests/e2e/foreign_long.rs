//! Test suites of other programs, on `splitway run` and on the sockets of the kernel: what passes
//! there passes here. `scripts/suites.sh` fetches them, for long tests only.
//!
//! All that a suite starts is of one `splitway run`, its clients too, at loopback addresses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testbed::namespace::isolated_long;
use testbed::site::Site;

use crate::foreign::{Outcomes, outcomes_in, worse};
use crate::programs::{Stack, at};
use crate::run::splitway_run_on;
use crate::run_compared::{ALL, opened};

/// A suite, and what it does at least.
struct Suite {
    /// That of a script in `tests/programs/suites`.
    name: &'static str,
    /// Tests that pass.
    ok: usize,
    /// Connections that the host stack sees.
    connections: u64,
    /// What tests that fail on split sockets only end with, and why: docs/run.md has them as well.
    different: &'static [(&'static str, &'static str)],
}

/// Why HAProxy may fail to make up a certificate, with a server at a Unix socket.
const AT_RANDOM: &str = "it fails as often on the kernel's sockets";

/// Why a program that is started with an environment that is empty finds something there.
const INHERITED: &str = "the library passes itself on";

fn suites() -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../suites");
    assert!(place.exists(), "they are not there: scripts/suites.sh");
    place.canonicalize().unwrap()
}

/// Runs a suite with a command that takes a program.
fn outcomes(mut command: Command, folder: &Path, suite: &Suite) -> Outcomes {
    let (work, results) = (folder.join("work"), folder.join("results"));
    fs::create_dir_all(&work).unwrap();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/suites");
    let log = fs::File::create(folder.join("log")).unwrap();
    let errors = log.try_clone().unwrap();
    command.arg(scripts.join(format!("{}.sh", suite.name)));
    command.arg(suites()).arg(&results).current_dir(work);
    let command = command.stdin(Stdio::null()).stdout(log).stderr(errors);
    let status = command.status().unwrap();
    let lines = fs::read_to_string(&results).unwrap_or_default();
    outcomes_in(&lines).unwrap_or_else(|| panic!("{status}\n{}", said(folder)))
}

fn said(folder: &Path) -> String {
    let log = fs::read(folder.join("log")).unwrap_or_default();
    String::from_utf8_lossy(&log).into_owned()
}

/// Runs a suite on the kernel's sockets and on split ones, and compares.
fn compare(site: &Site, suite: &Suite) {
    let mut stack = Stack::serve(site);
    // What a suite starts is one application.
    stack.kill();
    stack.serve_again_with(site, "listeners_max = 1024");
    let folder = |kind: &str| {
        let folder = stack.folder.join(kind);
        fs::create_dir(&folder).unwrap();
        folder
    };
    let kernel = outcomes(Command::new("bash"), &folder("kernel"), suite);
    let before = opened();
    let place = folder("split");
    let mut command = splitway_run_on(&stack, &ALL);
    command.env("STACK_ADDRESS", at(0).ip().to_string());
    command.args(["--", "bash"]);
    let split = outcomes(command, &place, suite);
    let connections = opened() - before;
    let worse = worse(&kernel, &split, suite.different);
    assert!(worse.is_empty(), "{worse:#?}\n{}", said(&place));
    let ok = split.values().filter(|outcome| *outcome == "ok").count();
    println!(
        "{}: {ok} of {} pass, {connections} connections",
        suite.name,
        split.len()
    );
    assert!(ok >= suite.ok, "{ok} are ok");
    assert!(
        connections >= suite.connections,
        "{connections} connections"
    );
    stack.assert_nothing_left();
}

#[test]
#[ignore = "its suite is fetched for long tests"]
fn the_suite_of_lighttpd_passes_on_split_sockets() {
    isolated_long(|site| {
        let suite = Suite {
            name: "lighttpd",
            ok: 205,
            connections: 220,
            different: &[],
        };
        compare(&site, &suite);
    });
}

#[test]
#[ignore = "takes minutes"]
fn the_suite_of_redis_passes_on_split_sockets() {
    isolated_long(|site| {
        let suite = Suite {
            name: "redis",
            ok: 2500,
            connections: 1000,
            different: &[("/ssl_generate_certificate.vtc", AT_RANDOM)],
        };
        compare(&site, &suite);
    });
}

#[test]
#[ignore = "takes minutes"]
fn the_suite_of_socat_passes_on_split_sockets() {
    isolated_long(|site| {
        let suite = Suite {
            name: "socat",
            ok: 80,
            connections: 60,
            different: &[],
        };
        compare(&site, &suite);
    });
}

#[test]
#[ignore = "takes minutes"]
fn stressors_of_sockets_pass_on_split_ones() {
    isolated_long(|site| {
        let suite = Suite {
            name: "stress-ng",
            ok: 7,
            connections: 1000,
            different: &[],
        };
        compare(&site, &suite);
    });
}

#[test]
#[ignore = "takes minutes"]
fn the_suite_of_haproxy_passes_on_split_sockets() {
    isolated_long(|site| {
        let suite = Suite {
            name: "haproxy",
            ok: 170,
            connections: 1000,
            different: &[],
        };
        compare(&site, &suite);
    });
}

#[test]
#[ignore = "takes minutes"]
fn the_suite_of_uvloop_passes_on_split_sockets() {
    isolated_long(|site| {
        let suite = Suite {
            name: "uvloop",
            ok: 450,
            connections: 200,
            different: &[("test_process_env_2", INHERITED)],
        };
        compare(&site, &suite);
    });
}
