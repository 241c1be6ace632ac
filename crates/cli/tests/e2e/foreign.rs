//! Test suites that Python brings along, on `splitway run` and on the sockets of the kernel: what
//! passes there passes here.
//!
//! Their sockets are at loopback addresses, which the host stack has as well. A run counts only if
//! the host stack has seen its connections.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testbed::namespace::{isolated, isolated_long};
use testbed::process::run;
use testbed::site::Site;

use crate::programs::Stack;
use crate::run::splitway_run_on;
use crate::run_compared::{ALL, opened};

/// What became of each test.
pub(crate) type Outcomes = BTreeMap<String, String>;

/// The outcomes that a suite has written: `ok NAME` and so on, a line each, and `end .` behind.
/// Of tests of one name, one that has failed counts. `None` if it has not come to its end.
pub(crate) fn outcomes_in(lines: &str) -> Option<Outcomes> {
    let mut found = Outcomes::new();
    let all = lines.strip_suffix("end .\n")?.lines();
    for (outcome, test) in all.filter_map(|line| line.split_once(' ')) {
        if outcome != "begin" && found.get(test).is_none_or(|before| before != "failed") {
            found.insert(test.to_owned(), outcome.to_owned());
        }
    }
    Some(found)
}

/// Tests that have ended on split sockets as they have not on the kernel's, but for those whose
/// names end like one of these, or which have ended like that.
pub(crate) fn worse(
    kernel: &Outcomes,
    split: &Outcomes,
    different: &[(&str, &str)],
) -> Vec<(String, String)> {
    let is_known = |test: &str| different.iter().any(|(known, _)| test.ends_with(known));
    let missing = |test: &&String| !split.contains_key(*test) && !is_known(test);
    let missing = kernel.keys().filter(missing);
    let is_worse = |(test, outcome): &(&String, &String)| {
        let is_known = is_known(test) || different.iter().any(|(known, _)| outcome == known);
        *outcome != "ok" && kernel.get(*test) != Some(outcome) && !is_known
    };
    let worse = split.iter().filter(is_worse);
    let worse = worse.map(|(test, outcome)| (test.clone(), outcome.clone()));
    worse
        .chain(missing.map(|test| (test.clone(), "missing".to_owned())))
        .collect()
}

/// What tests that fail on split sockets only end with, and why: docs/run.md has them as well.
const DIFFERENT: [(&str, &str); 4] = [
    (".test_handle_expt", "there is no urgent data"),
    (
        ".test_select_read_write",
        "what was sent may arrive a moment after the call",
    ),
    (
        ".test_sock_client_connect_racing",
        "a refusal may arrive a moment after the call; it is ECONNABORTED once SO_ERROR has had it",
    ),
    (
        ".test_unclosed_resource_warnings",
        "it counts warnings of all that is collected at that moment, those of other tests included",
    ),
];

/// Suites that are run in one process.
struct Run {
    /// What sockets socketpair(2) makes for them.
    pairs: &'static str,
    suites: &'static [&'static str],
    /// Tests that pass at least, and connections that the host stack sees at least.
    ok: usize,
    connections: u64,
}

/// Suites whose sockets are those of socketpair(2). So many as one of them makes, as many as there
/// are descriptors, no program has here (`sockets.segment`).
const SELECTORS: Run = Run {
    pairs: "tcp",
    suites: &[
        "test.test_selectors",
        "-test.test_selectors.PollSelectorTestCase.test_above_fd_setsize",
        "-test.test_selectors.EpollSelectorTestCase.test_above_fd_setsize",
    ],
    ok: 70,
    connections: 40,
};

/// How long a test may take, in seconds.
const TEST_S: &str = "60";

/// A Python that has its tests.
fn python() -> String {
    let script = "import sys, test.test_socket; print(sys.executable)";
    let with_tests = |python| run(Command::new(python).args(["-c", script])).ok();
    let mut found = ["/usr/bin/python3", "python3"]
        .into_iter()
        .find_map(with_tests);
    let found = found.as_mut().map(|found| found.trim().to_owned());
    found.expect("no Python here has its tests: scripts/setup.sh test installs them")
}

/// Runs suites with a command that ends with the name of Python.
fn outcomes(mut command: Command, folder: &Path, suites: &Run) -> Outcomes {
    let (work, results) = (folder.join("work"), folder.join("results"));
    fs::create_dir_all(&work).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/suites.py");
    command
        .arg(script)
        .arg(&results)
        .args([TEST_S, suites.pairs]);
    command.args(suites.suites).current_dir(work);
    let log = fs::File::create(folder.join("log")).unwrap();
    let errors = log.try_clone().unwrap();
    let command = command.stdin(Stdio::null()).stdout(log).stderr(errors);
    let status = command.status().unwrap();
    let lines = fs::read_to_string(&results).unwrap_or_default();
    let told = || {
        let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
        let errors = fs::read_to_string(folder.join("results.errors")).unwrap_or_default();
        format!("{status}\n{log}\n{errors}")
    };
    outcomes_in(&lines).unwrap_or_else(|| panic!("{}", told()))
}

/// Why tests have failed, as they have said.
fn reasons(folder: &Path) -> String {
    fs::read_to_string(folder.join("results.errors")).unwrap_or_default()
}

/// Runs suites on the kernel's sockets and on split ones, and compares.
fn compare(site: &Site, runs: &[Run]) {
    let python = python();
    let stack = Stack::serve(site);
    let folder = |kind: &str, number: usize| -> PathBuf {
        let folder = stack.folder.join(format!("{kind}-{number}"));
        fs::create_dir(&folder).unwrap();
        folder
    };
    for (number, suites) in runs.iter().enumerate() {
        let kernel = outcomes(Command::new(&python), &folder("kernel", number), suites);
        let before = opened();
        let place = folder("split", number);
        let mut command = splitway_run_on(&stack, &ALL);
        command.arg("--").arg(&python);
        let split = outcomes(command, &place, suites);
        let connections = opened() - before;
        let names = suites.suites;
        assert!(
            connections >= suites.connections,
            "{names:?}: {connections} connections"
        );
        let ok = split.values().filter(|outcome| *outcome == "ok").count();
        assert!(ok >= suites.ok, "{names:?}: {ok} are ok");
        let worse = worse(&kernel, &split, &DIFFERENT);
        assert!(worse.is_empty(), "{worse:#?}\n{}", reasons(&place));
    }
}

#[test]
fn suites_of_python_pass_on_split_sockets_where_they_pass_on_those_of_the_kernel() {
    isolated(|site| {
        let sockets = Run {
            pairs: "unix",
            suites: &[
                "test.test_socket.BasicTCPTest",
                "test.test_socket.BasicTCPTest2",
                "test.test_socket.BufferIOTest",
                "test.test_socket.ContextManagersTest",
                "test.test_socket.CreateServerFunctionalTest",
                "test.test_socket.CreateServerTest",
                "test.test_socket.FileObjectClassTestCase",
                "test.test_socket.InheritanceTest",
                "test.test_socket.InterruptedSendTimeoutTest",
                "test.test_socket.NetworkConnectionAttributesTest",
                "test.test_socket.NetworkConnectionNoServer",
                "test.test_socket.NonBlockingTCPTests",
                "test.test_socket.RecvmsgIntoTCPTest",
                "test.test_socket.RecvmsgTCPTest",
                "test.test_socket.SendfileUsingSendTest",
                "test.test_socket.SendfileUsingSendfileTest",
                "test.test_socket.SendmsgTCPTest",
                "test.test_socket.TCPCloserTest",
                "test.test_socket.TCPTimeoutTest",
                "test.test_asyncio.test_sendfile",
                "test.test_asyncio.test_server",
                "test.test_asyncio.test_sock_lowlevel",
                "test.test_asyncio.test_streams",
                "test.test_socketserver",
            ],
            ok: 320,
            connections: 200,
        };
        compare(&site, &[sockets, SELECTORS]);
    });
}

#[test]
#[ignore = "takes minutes"]
fn whole_suites_of_python_pass_on_split_sockets_where_they_pass_on_those_of_the_kernel() {
    isolated_long(|site| {
        let all = |suites, ok, connections| Run {
            pairs: "unix",
            suites,
            ok,
            connections,
        };
        let runs = [
            // The kernel has no VSOCK that leads anywhere.
            all(
                &["test.test_socket", "-test.test_socket.ThreadedVSOCK"],
                600,
                180,
            ),
            all(
                &[
                    "test.test_asyncio.test_buffered_proto",
                    "test.test_asyncio.test_events",
                    "test.test_asyncio.test_sendfile",
                    "test.test_asyncio.test_server",
                    "test.test_asyncio.test_sock_lowlevel",
                    "test.test_asyncio.test_ssl",
                    "test.test_asyncio.test_sslproto",
                    "test.test_asyncio.test_streams",
                    "test.test_asyncio.test_unix_events",
                ],
                570,
                160,
            ),
            all(&["test.test_ssl"], 160, 120),
            all(&["test.test_socketserver", "test.test_httpservers"], 80, 80),
            all(&["test.test_asyncore", "test.test_asynchat"], 70, 40),
            SELECTORS,
        ];
        compare(&site, &runs);
    });
}
