//! Which test covers which clause.
//!
//! A test names the clauses that it covers in its doc comment:
//!
//! ```text
//! /// Covers: RFC 5681 §3.2, RFC 9293 §3.10.7.4 (first)
//! ```
//!
//! `docs/conformance.md` is generated from these lines, and from the table in `tcp/src/lib.rs` of
//! the clauses that are not followed to the letter. `UPDATE_CONFORMANCE=1 cargo test -p
//! splitway-tcp --test traceability` writes it; without the variable, a page that is not up to date
//! fails.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const UPDATE: &str = "UPDATE_CONFORMANCE=1 cargo test -p splitway-tcp --test traceability";

/// What tests may cover. A number that is not here is more likely a slip of the pen.
const TITLES: &[(&str, &str)] = &[
    ("RFC 792", "Internet Control Message Protocol"),
    ("RFC 896", "Congestion Control in IP/TCP Internetworks"),
    ("RFC 1122", "Requirements for Internet Hosts"),
    ("RFC 1191", "Path MTU Discovery"),
    ("RFC 2018", "TCP Selective Acknowledgment Options"),
    ("RFC 2525", "Known TCP Implementation Problems"),
    ("RFC 2883", "Duplicate Selective Acknowledgment (D-SACK)"),
    (
        "RFC 3042",
        "Enhancing TCP's Loss Recovery Using Limited Transmit",
    ),
    ("RFC 3168", "Explicit Congestion Notification"),
    (
        "RFC 3465",
        "Congestion Control with Appropriate Byte Counting",
    ),
    ("RFC 3522", "The Eifel Detection Algorithm"),
    (
        "RFC 3708",
        "Using D-SACK to Detect Spurious Retransmissions",
    ),
    ("RFC 4015", "The Eifel Response Algorithm"),
    ("RFC 4821", "Packetization Layer Path MTU Discovery for TCP"),
    ("RFC 4987", "SYN Flooding Attacks and Common Mitigations"),
    ("RFC 5461", "TCP's Reaction to Soft Errors"),
    ("RFC 5482", "TCP User Timeout"),
    ("RFC 5562", "Adding ECN to TCP's SYN/ACK Packets"),
    ("RFC 5681", "TCP Congestion Control"),
    ("RFC 5682", "Forward RTO-Recovery (F-RTO)"),
    ("RFC 5827", "Early Retransmit"),
    ("RFC 5927", "ICMP Attacks against TCP"),
    (
        "RFC 5961",
        "Improving TCP's Robustness to Blind In-Window Attacks",
    ),
    ("RFC 6056", "Transport-Protocol Port Randomization"),
    ("RFC 4443", "ICMPv6"),
    ("RFC 6093", "The TCP Urgent Mechanism"),
    (
        "RFC 6191",
        "Reducing the TIME-WAIT State Using TCP Timestamps",
    ),
    ("RFC 6298", "Computing TCP's Retransmission Timer"),
    ("RFC 6528", "Defending against Sequence Number Attacks"),
    ("RFC 6582", "The NewReno Modification"),
    (
        "RFC 6675",
        "Conservative Loss Recovery Algorithm Based on SACK",
    ),
    ("RFC 6691", "TCP Options and Maximum Segment Size"),
    ("RFC 6928", "Increasing TCP's Initial Window"),
    ("RFC 6937", "Proportional Rate Reduction"),
    ("RFC 7323", "TCP Extensions for High Performance"),
    ("RFC 7413", "TCP Fast Open"),
    ("RFC 7661", "Updating TCP to Support Rate-Limited Traffic"),
    ("RFC 8200", "Internet Protocol, Version 6"),
    ("RFC 8201", "Path MTU Discovery for IP version 6"),
    ("RFC 8311", "Relaxing Restrictions on ECN Experimentation"),
    ("RFC 8511", "TCP Alternative Backoff with ECN (ABE)"),
    (
        "RFC 8899",
        "Packetization Layer Path MTU Discovery for Datagram Transports",
    ),
    ("RFC 8961", "Requirements for Time-Based Loss Detection"),
    ("RFC 8985", "The RACK-TLP Loss Detection Algorithm"),
    (
        "RFC 9000",
        "QUIC: A UDP-Based Multiplexed and Secure Transport",
    ),
    ("RFC 9001", "Using TLS to Secure QUIC"),
    ("RFC 9002", "QUIC Loss Detection and Congestion Control"),
    ("RFC 9293", "Transmission Control Protocol"),
    ("RFC 9406", "HyStart++: Modified Slow Start for TCP"),
    ("RFC 9438", "CUBIC for Fast and Long-Distance Networks"),
    ("RFC 9937", "Proportional Rate Reduction"),
    ("draft-ietf-ccwg-bbr", "BBR Congestion Control"),
    (
        "IO-TCP",
        "Rearchitecting the TCP Stack for I/O-Offloaded Content Delivery (NSDI 2023)",
    ),
];

/// A clause of a text: `RFC 9293`, `3.10.7.4`, `first`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Clause {
    text: String,
    section: String,
    detail: String,
}

impl Clause {
    /// `RFC 9293 §3.10.7.4 (first)`
    fn parse(clause: &str) -> Option<Clause> {
        let (text, rest) = clause.split_once(" §")?;
        let (section, detail) = match rest.split_once(" (") {
            Some((section, detail)) => (section, detail.strip_suffix(')')?),
            None => (rest, ""),
        };
        let known = TITLES.iter().any(|(title, _)| *title == text);
        let sane = !section.is_empty()
            && section
                .split('.')
                .all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric()));
        (known && sane).then(|| Clause {
            text: text.to_owned(),
            section: section.to_owned(),
            detail: detail.to_owned(),
        })
    }

    /// Texts as in [`TITLES`], sections as in a table of contents.
    fn key(&self) -> (usize, Vec<(u32, &str)>, &str) {
        let title = TITLES.iter().position(|(title, _)| *title == self.text);
        let section = self
            .section
            .split('.')
            // Appendices come last.
            .map(|part| (part.parse().unwrap_or(u32::MAX), part))
            .collect();
        (title.unwrap_or(usize::MAX), section, &self.detail)
    }
}

impl Ord for Clause {
    fn cmp(&self, other: &Clause) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Clause {
    fn partial_cmp(&self, other: &Clause) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Test {
    /// From the root of the repository.
    file: String,
    name: String,
    covers: Vec<Clause>,
    /// It plays a packet trace.
    is_trace: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All Rust files below a folder of the repository, sorted.
fn sources(folder: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root().join(folder)) else {
        return Vec::new();
    };
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("a readable folder").file_name())
        .collect();
    names.sort();
    let mut files = Vec::new();
    for name in names {
        let path = format!("{folder}/{}", name.to_str().expect("ASCII"));
        if path.ends_with(".rs") {
            files.push(path)
        } else {
            files.extend(sources(&path))
        }
    }
    files
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The tests of a file formatted by rustfmt: doc comment, attributes, `fn` and a body that ends
/// with a brace below the `fn`.
fn tests_in(file: &str, source: &str) -> Vec<Test> {
    let mut tests = Vec::new();
    let mut covers = Vec::new();
    let mut is_test = false;
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if let Some(doc) = code.strip_prefix("///") {
            if let Some(clauses) = doc.strip_prefix(" Covers: ") {
                covers.extend(clauses.split(", ").map(|clause| {
                    Clause::parse(clause).unwrap_or_else(|| {
                        panic!("{file}: no clause, or of no known RFC: `{clause}`")
                    })
                }));
            }
        } else if code.starts_with("#[") {
            is_test |= code == "#[test]";
        } else {
            let name = code
                .strip_prefix("fn ")
                .and_then(|rest| Some(rest.split_once('(')?.0));
            match name {
                Some(name) if is_test => {
                    let indent = &line[..line.len() - code.len()];
                    let end = format!("{indent}}}");
                    let body: Vec<&str> = lines.by_ref().take_while(|line| *line != end).collect();
                    let body = body.join("\n");
                    tests.push(Test {
                        file: file.to_owned(),
                        name: name.to_owned(),
                        covers: std::mem::take(&mut covers),
                        is_trace: is_trace(&body),
                    });
                }
                _ => assert!(
                    covers.is_empty(),
                    "{file}: `Covers:` before what is no test: {line}"
                ),
            }
            covers.clear();
            is_test = false;
        }
    }
    tests
}

/// A body that plays packets: both calls and lines like `< ACK 1 ack 1`.
fn is_trace(body: &str) -> bool {
    let plays = [".trace(", "trace_of("]
        .iter()
        .any(|call| body.contains(call));
    let packets = ["SYN", "ACK", "RST", "FIN", "PSH", "icmp"]
        .iter()
        .any(|word| body.contains(&format!("< {word}")) || body.contains(&format!("> {word}")));
    plays && packets
}

fn tests() -> Vec<Test> {
    ["tcp", "host", "nic", "wire"]
        .iter()
        .flat_map(|room| [format!("crates/{room}/src"), format!("crates/{room}/tests")])
        .flat_map(|folder| sources(&folder))
        .filter(|file| !file.ends_with("traceability.rs"))
        .flat_map(|file| tests_in(&file, &read(&file)))
        .collect()
}

/// The RFCs named in a text, as `RFC 9293`.
fn rfcs_in(text: &str) -> BTreeSet<String> {
    text.split("RFC ")
        .skip(1)
        .map(|rest| rest.chars().take_while(char::is_ascii_digit).collect())
        .filter(|number: &String| !number.is_empty())
        .map(|number| format!("RFC {number}"))
        .collect()
}

/// Rows of the table "Where it departs from the letter" in `tcp/src/lib.rs`: clause, and what is
/// done instead.
fn departures() -> Vec<(String, String)> {
    let lib = read("crates/tcp/src/lib.rs");
    let (_, section) = lib
        .split_once("//! # Where it departs from the letter")
        .expect("the crate's documentation says where it departs");
    let rows: Vec<_> = section
        .lines()
        .filter_map(|line| line.strip_prefix("//! | ")?.strip_suffix(" |"))
        .filter_map(|row| row.split_once(" | "))
        .skip(1)
        // Links within the crate's documentation lead nowhere from a page.
        .map(|(clause, instead)| {
            (
                clause.to_owned(),
                instead.replace("[`", "`").replace("`]", "`"),
            )
        })
        .collect();
    assert!(!rows.is_empty(), "the table has rows");
    rows
}

fn page() -> String {
    let names: BTreeSet<_> = TITLES.iter().map(|(text, _)| text).collect();
    assert_eq!(names.len(), TITLES.len(), "each text has one title");
    let tests = tests();
    let mut covered: BTreeMap<Clause, Vec<&Test>> = BTreeMap::new();
    for test in &tests {
        for clause in &test.covers {
            covered.entry(clause.clone()).or_default().push(test);
        }
    }
    let departures = departures();
    let mut page = format!(
        "# Conformance\n\nDo not edit: `{UPDATE}` writes this page.\n\nWhich test covers which \
         clause of which text, taken from the `Covers:` lines of the tests, and which\nclauses are \
         not followed to the letter, taken from `crates/tcp/src/lib.rs`. Most tests are packet\n\
         traces; `crates/tcp/tests/tcp/script.rs` explains how to read them.\n\n| Text | Clauses \
         covered | Tests | Not to the letter |\n|---|---|---|---|\n"
    );
    let mut sections = String::new();
    for (text, title) in TITLES {
        let clauses: Vec<_> = covered
            .iter()
            .filter(|(clause, _)| clause.text == *text)
            .collect();
        let rows: Vec<_> = departures
            .iter()
            .filter(|(clause, _)| rfcs_in(clause).contains(*text))
            .collect();
        if clauses.is_empty() && rows.is_empty() {
            continue;
        }
        let names: BTreeSet<_> = clauses
            .iter()
            .flat_map(|(_, tests)| tests.iter().map(|test| (&test.file, &test.name)))
            .collect();
        let (clause_count, test_count, row_count) = (clauses.len(), names.len(), rows.len());
        let _ = writeln!(
            page,
            "| {text} | {clause_count} | {test_count} | {row_count} |"
        );
        let _ = writeln!(sections, "\n## {text}: {title}");
        if !clauses.is_empty() {
            sections += "\n| Clause | Tests |\n|---|---|\n";
        }
        for (clause, tests) in clauses {
            let detail = match &*clause.detail {
                "" => String::new(),
                detail => format!(", {detail}"),
            };
            let section = &clause.section;
            let _ = writeln!(sections, "| §{section}{detail} | {} |", references(tests));
        }
        if !rows.is_empty() {
            sections +=
                "\nNot to the letter:\n\n| Clause | What is done instead, and why |\n|---|---|\n";
        }
        for (clause, instead) in rows {
            let _ = writeln!(sections, "| {clause} | {instead} |");
        }
    }
    page + &sections
}

/// Tests by file, with a link to it.
fn references(tests: &[&Test]) -> String {
    let mut files: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for test in tests {
        files
            .entry(&test.file)
            .or_default()
            .push(format!("`{}`", test.name));
    }
    let references: Vec<_> = files
        .iter()
        .map(|(file, names)| {
            let short = file.strip_prefix("crates/").unwrap_or(file);
            format!("[{short}](../{file}): {}", names.join(", "))
        })
        .collect();
    references.join("; ")
}

#[test]
fn the_page_says_what_the_tests_say() {
    let file = root().join("docs/conformance.md");
    let generated = page();
    if std::env::var_os("UPDATE_CONFORMANCE").is_some() {
        fs::write(&file, &generated).expect("docs is writable");
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    let stale = committed
        .lines()
        .zip(generated.lines())
        .find(|(old, new)| old != new);
    assert!(
        committed == generated,
        "docs/conformance.md is not what the source generates (first difference: {stale:?}); \
         run\n  {UPDATE}"
    );
}

#[test]
fn every_rfc_that_a_module_is_about_has_a_test_or_a_reason_why_not() {
    let mut accounted: BTreeSet<String> = tests()
        .iter()
        .flat_map(|test| test.covers.iter().map(|clause| clause.text.clone()))
        .collect();
    for (clause, _) in departures() {
        accounted.extend(rfcs_in(&clause));
    }
    for file in sources("crates/tcp/src") {
        let about: String = read(&file)
            .lines()
            .take_while(|line| line.starts_with("//!"))
            .collect();
        for rfc in rfcs_in(&about) {
            assert!(
                accounted.contains(&rfc),
                "{file} is about {rfc}, which no test covers (`/// Covers: {rfc} §...`) and the \
                 table in tcp/src/lib.rs does not mention"
            );
        }
    }
}

/// Prints how many there are, and holds each against its purpose: to show that a clause is obeyed.
#[test]
fn there_are_150_packet_traces_and_each_covers_a_clause() {
    let tests = tests();
    let traces: Vec<_> = tests
        .iter()
        .filter(|test| test.is_trace && test.file.starts_with("crates/tcp/tests/"))
        .collect();
    println!("{} packet traces, {} tests", traces.len(), tests.len());
    assert!(traces.len() >= 150);
    let silent: Vec<_> = traces
        .iter()
        .filter(|test| test.covers.is_empty())
        .map(|test| format!("{}: {}", test.file, test.name))
        .collect();
    assert!(
        silent.is_empty(),
        "these play packets, but do not say for which clauses (`/// Covers: RFC 9293 §3.4`): \
         {silent:#?}"
    );
}
