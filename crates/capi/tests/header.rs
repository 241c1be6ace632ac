//! `splitway.h` says what the library does, and the library exports nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::library::library;

mod library;

/// The files of the interface, in the order of the header.
const FILES: [&str; 8] = [
    "global",
    "sockets",
    "bytes",
    "options",
    "events",
    "offload",
    "zero_copy",
    "splice",
];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header() -> String {
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in FILES {
        builder = builder.with_src(here().join(format!("src/abi/{file}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn the_header_is_what_the_functions_say() {
    let path = here().join("include/splitway.h");
    let made = header();
    if std::env::var_os("UPDATE_HEADER").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == there,
        "include/splitway.h is out of date: UPDATE_HEADER=1 cargo test -p splitway-capi --test \
         header"
    );
}

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = header();
    let code = header.lines().filter(|line| !line.starts_with("//"));
    let code = code.collect::<Vec<_>>().join("\n");
    let names = code.match_indices('(').map(|(at, _)| {
        let before = &code[..at];
        let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
        let start = before
            .rfind(|letter| !is_name(letter))
            .map_or(0, |it| it + 1);
        before[start..].to_owned()
    });
    names
        .filter(|name| name.starts_with("sw_") || name.starts_with("offload_"))
        .collect()
}

fn output_of(program: &str, arguments: &[&str], file: &PathBuf) -> String {
    let output = Command::new(program).args(arguments).arg(file).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{program}");
    String::from_utf8(output.stdout).unwrap()
}

/// What a version of the library exports, by the script that it is linked with.
fn versions() -> BTreeSet<(String, String)> {
    let text = fs::read_to_string(here().join("libsplitway.map")).unwrap();
    let code = text.lines().filter(|line| !line.trim().starts_with('#'));
    let code = code.collect::<Vec<_>>().join(" ");
    let mut names = BTreeSet::new();
    let (mut version, mut exports) = ("", false);
    for word in code.split([' ', ';']).filter(|word| !word.is_empty()) {
        match word {
            "global:" => exports = true,
            "local:" | "}" => exports = false,
            "{" | "*" => {}
            word if word.starts_with("SPLITWAY_") => version = word,
            word => {
                assert!(exports, "{word}");
                names.insert((word.to_owned(), version.to_owned()));
            }
        }
    }
    names
}

/// The dynamic symbols that a file defines, with their versions.
fn exported(file: &PathBuf) -> BTreeSet<(String, String)> {
    let symbols = output_of("readelf", &["--wide", "--dyn-syms"], file);
    let fields = symbols.lines().map(|line| line.split_whitespace());
    let symbols = fields.filter_map(|fields| {
        let fields: Vec<&str> = fields.collect();
        let [_, _, _, _, binding, _, section, name] = fields[..] else {
            return None;
        };
        // A version itself is an absolute symbol.
        let is_defined = section.parse::<u32>().is_ok() && binding != "LOCAL";
        let (name, version) = name.split_once("@@").unwrap_or((name, ""));
        is_defined.then(|| (name.to_owned(), version.to_owned()))
    });
    symbols.collect()
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    let exported = exported(&library());
    let names: BTreeSet<String> = exported.iter().map(|(name, _)| name.clone()).collect();
    assert!(names.contains("sw_socket"));
    assert_eq!(names, declared());
    let names = output_of("readelf", &["-d"], &library());
    assert!(names.contains("[libsplitway.so.0]"), "{names}");
}

#[test]
fn every_function_has_the_version_that_brought_it() {
    let exported = exported(&library());
    assert_eq!(exported, versions(), "crates/capi/libsplitway.map");
    assert!(exported.iter().all(|(_, version)| !version.is_empty()));
}

#[test]
fn the_library_never_calls_what_a_program_would_replace() {
    let symbols = output_of("nm", &["-D", "--undefined-only"], &library());
    let undefined: BTreeSet<&str> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .map(|name| name.split('@').next().unwrap())
        .collect();
    assert!(undefined.contains("pthread_sigmask"), "{undefined:?}");
    for name in [
        "socket",
        "bind",
        "listen",
        "accept",
        "accept4",
        "connect",
        "send",
        "sendto",
        "sendmsg",
        "recv",
        "recvfrom",
        "recvmsg",
        "shutdown",
        "getsockname",
        "getpeername",
        "setsockopt",
        "getsockopt",
        "epoll_create1",
        "epoll_ctl",
        "epoll_wait",
    ] {
        assert!(!undefined.contains(name), "{name}");
    }
}
