//! The demonstration: it must run for every user, and notice a single wrong byte.
#![forbid(unsafe_code)]

// What only the other tests use of it.
#[allow(dead_code)]
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{PROGRAM, splitway_in};
use testbed::process::install_script;

const FILES: [&str; 6] = [
    "index.html",
    "empty",
    "with space",
    "a/b/c",
    "100%25",
    "\u{fc}mlaut#?&=.txt",
];

fn site_in(directory: &Path) {
    let site = directory.join("site");
    fs::create_dir_all(site.join("a/b")).unwrap();
    for (index, name) in FILES.iter().enumerate() {
        fs::write(site.join(name), name.repeat(index * 1234)).unwrap();
    }
}

/// The value in a row of the table.
fn cells<'a>(table: &'a str, row: &str) -> Vec<&'a str> {
    let line = table
        .lines()
        .find_map(|line| line.strip_prefix(row))
        .unwrap_or_else(|| panic!("{row} in {table}"));
    line.split_whitespace().collect()
}

#[test]
fn every_file_arrives_four_times_and_the_host_touches_none() {
    let directory = tempfile::tempdir().unwrap();
    site_in(directory.path());
    let outcome = splitway_in(directory.path(), &["demo", "site"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let said = &outcome.stdout;
    for name in FILES {
        let lines = said
            .lines()
            .filter(|line| line.trim_start().starts_with(name));
        assert_eq!(
            lines.filter(|line| line.ends_with("same SHA-256")).count(),
            4,
            "{name} in {said}"
        );
    }
    assert!(said.contains("Every byte was right."), "{said}");
    assert!(said.contains("none is a file of the site"), "{said}");

    let content: usize = FILES
        .iter()
        .enumerate()
        .map(|(index, name)| name.len() * index * 1234)
        .sum();
    let number = |text: &str| text.replace(',', "").parse::<usize>().unwrap();
    let touched = cells(said, "bytes of content touched");
    assert_eq!(touched[0], "0");
    assert!(number(touched[1]) >= content, "{touched:?} of {content}");
    assert!(number(cells(said, "bytes of content sent")[1]) >= 2 * content);
    assert!(number(cells(said, "TLS records sealed")[0]) >= 2 * FILES.len());
    assert_eq!(number(cells(said, "TLS handshakes")[0]), 2 * FILES.len());
    let commands = cells(said, "OPEN commands");
    assert_eq!(commands[0], commands[1], "what one sends, the other takes");
    assert_eq!(number(commands[0]), 4 * FILES.len());
    assert_eq!(number(cells(said, "requests")[0]), 4 * FILES.len());
}

#[test]
fn without_a_site_it_makes_one_and_takes_it_away_again() {
    let directory = tempfile::tempdir().unwrap();
    let temporary = directory.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let output = Command::new(PROGRAM)
        .arg("demo")
        .current_dir(directory.path())
        .env("TMPDIR", &temporary)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(
        said.contains("There is no examples/site here") && said.contains("Every byte was right."),
        "{said}"
    );
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}

#[test]
fn the_site_of_the_source_tree_is_the_default() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let outcome = splitway_in(&tree, &["demo"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.stdout.contains("$ splitway serve examples/site"),
        "{outcome:?}"
    );
    assert!(outcome.stdout.contains("index.html"), "{outcome:?}");
}

/// A `curl` that damages what it downloads, or fails, for one file.
fn bad_curl(directory: &Path, script: &str) -> String {
    let path = directory.join("bin");
    fs::create_dir(&path).unwrap();
    let real = std::env::var("PATH").unwrap();
    let curl = path.join("curl");
    let script = format!("#!/bin/sh\nPATH='{real}'\nfor url; do :; done\n{script}\n");
    install_script(&script, &curl).unwrap();
    format!("{}:{real}", path.display())
}

#[test]
fn one_wrong_byte_is_noticed() {
    for (script, complaint) in [
        // The same length, one byte less, one more, and none at all.
        (
            "case $url in */a/b/c) curl \"$@\" | tr / x ;; *) exec curl \"$@\" ;; esac",
            "other content",
        ),
        (
            "case $url in */a/b/c) curl \"$@\" | head -c -1 ;; *) exec curl \"$@\" ;; esac",
            "other content",
        ),
        (
            "curl \"$@\"; case $url in */a/b/c) echo ;; esac",
            "other content",
        ),
        (
            "case $url in */a/b/c) echo broken >&2; exit 7 ;; *) exec curl \"$@\" ;; esac",
            "broken (exit status: 7)",
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        site_in(directory.path());
        let path = bad_curl(directory.path(), script);
        let output = Command::new(PROGRAM)
            .args(["demo", "site"])
            .current_dir(&directory)
            .env("PATH", path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{script}: {said}");
        let wrong: Vec<&str> = said.lines().filter(|line| line.contains("WRONG")).collect();
        assert_eq!(
            wrong.len(),
            4,
            "over IPv4 and IPv6, with and without TLS: {said}"
        );
        assert!(
            wrong
                .iter()
                .all(|line| line.contains("a/b/c") && line.contains(complaint)),
            "{wrong:?}"
        );
        assert!(
            String::from_utf8_lossy(&output.stderr)
                .contains("splitway: demo: 4 downloads were wrong")
        );
    }
}
