//! The rules of the tree, held against the tree itself.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use crate::tree::{files, reach, workspace};

mod tree;

/// Which of our crates the code of each may depend on, build scripts included.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("shm", &[]),
    ("contract", &["counters", "shm"]),
    ("socket-channel", &["shm"]),
    ("capi", &["shm", "socket-channel"]),
    ("preload", &["capi"]),
    ("compat", &["capi", "failure", "preload"]),
    ("wire", &[]),
    ("tcp", &["wire"]),
    ("tls", &["contract"]),
    ("quic", &["contract", "tcp", "tls"]),
    ("netdev", &["wire"]),
    ("nic", &["contract", "counters", "wire", "tcp", "netdev"]),
    (
        "host",
        &[
            "client-address",
            "contract",
            "counters",
            "wire",
            "tcp",
            "tls",
            "quic",
            "netdev",
        ],
    ),
    ("client-address", &[]),
    ("http-message", &[]),
    ("http2", &[]),
    (
        "server",
        &[
            "client-address",
            "counters",
            "host",
            "http-message",
            "http2",
        ],
    ),
    (
        "proxy",
        &[
            "client-address",
            "counters",
            "host",
            "http-message",
            "http2",
        ],
    ),
    ("sockets", &["counters", "host", "socket-channel", "tcp"]),
    ("cluster", &["socket-channel", "sockets"]),
    // It talks with the host process by messages alone.
    ("origin", &["counters", "http-message"]),
    ("counters", &[]),
    // Keys have the types of what they configure.
    (
        "config",
        &[
            "client-address",
            "contract",
            "tcp",
            "tls",
            "nic",
            "host",
            "server",
            "proxy",
            "origin",
            "netem",
            "failure",
            "observer",
            "sandbox",
            "netsetup",
        ],
    ),
    // It knows what all of them count.
    (
        "observer",
        &[
            "contract", "counters", "nic", "host", "server", "proxy", "sockets", "origin",
        ],
    ),
    ("failure", &[]),
    ("sandbox", &["failure"]),
    ("netsetup", &["failure", "sandbox", "netdev", "wire"]),
    ("netem", &["wire", "netdev"]),
    ("relay", &["contract", "netdev"]),
    (
        "processes",
        &[
            "cluster",
            "contract",
            "tcp",
            "netdev",
            "nic",
            "host",
            "server",
            "proxy",
            "relay",
            "tls",
            "origin",
            "config",
            "observer",
            "failure",
            "sandbox",
            "netsetup",
            "socket-channel",
            "sockets",
        ],
    ),
    (
        "cli",
        &[
            // The rules of `run`, and the names of the variables that say them.
            "preload",
            "compat",
            "client-address",
            "contract",
            "tcp",
            "netdev",
            "nic",
            "host",
            "server",
            "netem",
            "relay",
            "tls",
            "origin",
            "config",
            "observer",
            "failure",
            "sandbox",
            "netsetup",
            "processes",
        ],
    ),
    (
        "sim",
        &[
            "contract", "wire", "tcp", "tls", "quic", "netdev", "nic", "host", "server", "relay",
            "fakes", "failure",
        ],
    ),
    ("fakes", &["contract", "wire", "tls", "netdev"]),
    ("testbed", &[]),
    (
        "bench",
        &[
            "testbed", "fakes", "contract", "wire", "tcp", "netdev", "host", "server", "sim",
            "capi",
        ],
    ),
];

/// Which further crates tests may depend on: those of all crates on the test bed and the fakes.
const TESTS_MAY_KNOW: &[(&str, &[&str])] = &[
    ("proxy", &["contract", "netdev"]),
    ("sockets", &["contract", "netdev"]),
    ("cluster", &["contract", "host", "netdev"]),
    // Programs that are linked with the library, a client of the broker, and a watch on the wire.
    ("cli", &["capi", "socket-channel", "wire", "sim"]),
];
const ALL_TESTS_MAY_KNOW: &[&str] = &["testbed", "fakes"];

/// Where `unsafe` is allowed: shared memory, the packet sockets, reading with io_uring, interfaces
/// of C, and calls of seccomp. Of the contract, only a test that looks at what is left of a key.
const MAY_BE_UNSAFE: &[&str] = &[
    "shm", "contract", "netdev", "nic", "capi", "preload", "compat",
];

/// The crates of quinn: an engine of QUIC, and its sockets.
const ENGINES: &[&str] = &["quinn", "quinn-proto", "quinn-udp"];

/// Which of our crates may know them: the one that hides them, a client that tests play, and what
/// is measured beside ours.
const MAY_KNOW_ENGINES: &[&str] = &["quic", "fakes", "bench"];

/// `cargo metadata` of our crates.
fn packages() -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(workspace())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    match metadata["packages"].take() {
        serde_json::Value::Array(packages) => packages,
        other => panic!("no list of packages: {other}"),
    }
}

/// The crates that a crate of ours depends on.
#[derive(Default)]
struct Dependencies {
    code: BTreeSet<String>,
    tests: BTreeSet<String>,
}

/// Our crates by short name, and which of our crates each depends on.
fn all_dependencies() -> BTreeMap<String, Dependencies> {
    let short = |package: &serde_json::Value| {
        let name = package["name"].as_str().unwrap();
        name.strip_prefix("splitway-").map(str::to_owned)
    };
    let mut all = BTreeMap::new();
    for package in &packages() {
        let mut known = Dependencies::default();
        for dependency in package["dependencies"].as_array().unwrap() {
            let of_kind = match dependency["kind"] == "dev" {
                true => &mut known.tests,
                false => &mut known.code,
            };
            of_kind.extend(short(dependency));
        }
        let name = short(package).expect("our crates are named splitway-…");
        all.insert(name, known);
    }
    all
}

/// Our crates by short name, and which of our crates the code of each depends on.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let all = all_dependencies().into_iter();
    all.map(|(name, known)| (name, known.code)).collect()
}

#[test]
fn every_crate_knows_only_whom_it_may_know() {
    let dependencies = all_dependencies();
    let rules: BTreeMap<&str, &[&str]> = MAY_KNOW.iter().copied().collect();
    let of_tests: BTreeMap<&str, &[&str]> = TESTS_MAY_KNOW.iter().copied().collect();
    for (name, known) in &dependencies {
        let may_know = rules.get(name.as_str());
        let may_know = may_know
            .unwrap_or_else(|| panic!("{name} has no row in the table: decide whom it may know"));
        for other in &known.code {
            assert!(
                may_know.contains(&other.as_str()),
                "{name} must not know {other}"
            );
        }
        let more = of_tests.get(name.as_str()).copied().unwrap_or_default();
        for other in &known.tests {
            let mut lists = [*may_know, more, ALL_TESTS_MAY_KNOW].into_iter();
            assert!(
                lists.any(|list| list.contains(&other.as_str())),
                "tests of {name} must not know {other}"
            );
        }
    }
    for (name, _) in MAY_KNOW.iter().chain(TESTS_MAY_KNOW) {
        assert!(
            dependencies.contains_key(*name),
            "{name} has a row in the table and is not there"
        );
    }
}

/// The peers that tests play are in no program that packages have.
#[test]
fn the_operators_program_holds_no_test_peers() {
    let reached = reach("cli", &dependencies());
    for peer in ["sim", "fakes", "testbed"] {
        assert!(!reached.contains(peer), "splitway is linked with {peer}");
    }
}

#[test]
fn host_and_nic_never_reach_each_other() {
    let dependencies = dependencies();
    assert!(!reach("host", &dependencies).contains("nic"));
    assert!(!reach("nic", &dependencies).contains("host"));
    for name in dependencies.keys() {
        let reached = reach(name, &dependencies);
        if reached.contains("host") && reached.contains("nic") {
            assert!(
                ["cli", "processes", "config", "observer", "sim", "bench"].contains(&name.as_str()),
                "{name} sees both stacks"
            );
        }
    }
}

/// The lines of code that name a crate of quinn, outside of unit tests.
fn lines_with_engines(text: &str) -> impl Iterator<Item = &str> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    code.lines().filter(|line| {
        let code = line.split("//").next().unwrap_or_default();
        let is_of_a_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        let names = code.split(|c| !is_of_a_name(c));
        let mut names = names.map(|name| name.replace('_', "-"));
        names.any(|name| ENGINES.contains(&name.as_str()))
    })
}

#[test]
fn quinn_is_known_to_the_engine_of_the_quic_crate_alone() {
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        let name = name.strip_prefix("splitway-").unwrap();
        if MAY_KNOW_ENGINES.contains(&name) {
            continue;
        }
        for known in package["dependencies"].as_array().unwrap() {
            let known = known["name"].as_str().unwrap();
            assert!(!ENGINES.contains(&known), "{name} must not know {known}");
        }
    }
    let crates = workspace().join("crates");
    let engine = crates.join("quic/src/engine");
    let (mut inside, mut outside) = (0, Vec::new());
    for name in dependencies().keys() {
        let hides = name == "quic";
        if MAY_KNOW_ENGINES.contains(&name.as_str()) && !hides {
            continue;
        }
        for file in files(&crates.join(name), "rs") {
            // This file names what it looks for; the other folder has a client that others wrote.
            let programs = crates.join("cli/tests/programs");
            if file.ends_with("cli/tests/architecture.rs") || file.starts_with(programs) {
                continue;
            }
            let text = fs::read_to_string(&file).unwrap();
            let lines = lines_with_engines(&text);
            match hides && file.starts_with(&engine) {
                true => inside += lines.count(),
                false => outside.extend(lines.map(|it| format!("{}: {it}", file.display()))),
            }
        }
    }
    assert!(inside > 0, "the engine names no crate of quinn");
    assert!(outside.is_empty(), "{}", outside.join("\n"));
}

/// Folders of a crate, from the ground up. None imports from those above it.
const FLOORS: &[(&str, &[&str])] = &[
    (
        "processes",
        &[
            "ipc", "relay", "nic", "fetcher", "observer", "broker", "host", "cluster",
        ],
    ),
    ("cli", &["args", "supervisor", "commands", "cli"]),
    (
        "server",
        &["semantics", "exchange", "http1", "http2", "http3"],
    ),
];

#[test]
fn no_floor_of_a_crate_imports_from_above() {
    let mut found = Vec::new();
    for (name, floors) in FLOORS {
        let src = workspace().join("crates").join(name).join("src");
        let all = files(&src, "rs");
        for (number, floor) in floors.iter().enumerate() {
            let above = floors[number + 1..].iter();
            let above: Vec<String> = above.map(|name| format!("crate::{name}::")).collect();
            let (folder, own) = (src.join(floor), src.join(format!("{floor}.rs")));
            let sources = all
                .iter()
                .filter(|file| file.starts_with(&folder) || **file == own);
            for file in sources {
                let text = fs::read_to_string(file).unwrap();
                // Unit tests may play the other side.
                let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
                let lines = code
                    .lines()
                    .filter(|line| !line.trim_start().starts_with("//"));
                let upwards = lines.filter(|line| above.iter().any(|name| line.contains(name)));
                found.extend(upwards.map(|line| format!("{}: {}", file.display(), line.trim())));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The files of the host stack that may implement `Stack`: its beginning, and its
/// operations. What concerns one layer, or the ground, is a method there.
const IMPLEMENT_STACK: &[&str] = &[
    "stack.rs",
    "stack/inspect.rs",
    "stack/interface.rs",
    "stack/nics.rs",
];

/// The names of a struct's fields.
fn fields<'a>(text: &'a str, of: &str) -> Vec<&'a str> {
    let (_, body) = text.split_once(&format!("struct {of} {{\n")).unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let lines = body.lines().map(str::trim_start);
    let fields = lines.filter(|line| !line.starts_with('/'));
    let names = fields.filter_map(|line| line.split_once(':'));
    names
        .map(|(name, _)| name.rsplit(' ').next().unwrap())
        .collect()
}

#[test]
fn the_host_stack_is_a_ground_with_two_layers() {
    let src = workspace().join("crates/host/src");
    let mut implement = BTreeSet::new();
    let mut wrong = Vec::new();
    for file in files(&src, "rs") {
        let text = fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(&src).unwrap().to_str().unwrap();
        if text.lines().any(|line| line.starts_with("impl Stack ")) {
            implement.insert(name.to_owned());
        }
        let forbidden: &[&str] = match name.split(['/', '.']).next().unwrap() {
            "tcp" => &["crate::quic", "QuicLayer"],
            "quic" => &["crate::tcp", "TcpLayer"],
            _ => &["Option<QuicLayer", "Option<Box<QuicLayer"],
        };
        let found = forbidden.iter().filter(|it| text.contains(**it));
        wrong.extend(found.map(|it| format!("{name} names {it}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let expected = IMPLEMENT_STACK.iter().map(|name| (*name).to_owned());
    assert_eq!(implement, expected.collect::<BTreeSet<_>>());
    let stack = fs::read_to_string(src.join("stack.rs")).unwrap();
    assert_eq!(fields(&stack, "Stack"), ["ground", "tcp", "quic"]);
}

/// The lines that say `unsafe` outside of comments and attributes.
fn unsafe_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| {
        let code = line.split("//").next().unwrap_or_default();
        !code.trim_start().starts_with("#!")
            && code
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| word == concat!("un", "safe"))
    })
}

#[test]
fn memory_is_only_handled_by_hand_where_that_is_allowed() {
    for name in dependencies()
        .keys()
        .filter(|name| !MAY_BE_UNSAFE.contains(&name.as_str()))
    {
        let crate_directory = workspace().join("crates").join(name);
        let roots = ["src/lib.rs", "src/main.rs"].map(|root| crate_directory.join(root));
        for root in roots.iter().filter(|root| root.exists()) {
            let text = fs::read_to_string(root).unwrap();
            assert!(
                text.contains("#![forbid(unsafe_code)]"),
                "{} does not forbid it",
                root.display()
            );
        }
        let files = files(&crate_directory, "rs");
        assert!(
            !files.is_empty(),
            "no source below {}",
            crate_directory.display()
        );
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let found = unsafe_lines(&text).next();
            assert_eq!(found, None, "in {}", file.display());
        }
    }
}

/// The constants of a file whose names begin like this, as they are written.
fn constants(file: &str, prefix: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(workspace().join("crates").join(file)).unwrap();
    let found = text.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("const ")?.split_once(": i64 = ")?;
        name.starts_with(prefix)
            .then(|| (name.to_owned(), value.to_owned()))
    });
    found.collect()
}

/// The library of programs and NIC stacks know no crate in common that this is about.
#[test]
fn timestamps_of_files_settle_at_the_same_time_for_programs_and_for_nic_stacks() {
    let [ours, theirs] = ["capi/src/client/sent_files.rs", "nic/src/root.rs"]
        .map(|file| constants(file, "SETTLED_AFTER_NS"));
    assert_eq!(ours.len(), 2, "{ours:?}");
    for (name, value) in ours {
        assert_eq!(theirs.get(&name), Some(&value), "{name}");
    }
}
