//! Files that change while they are being downloaded: every response is one version of its file,
//! whole or cut off.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rustix::process::Signal;
use testbed::http::Connection;
use testbed::namespace::isolated;
use testbed::process::signal;
use testbed::site::{KnownFile, Site};
use testbed::splitway::HTTP_V4;
use testbed::{Failure, wait};

use crate::config::{configuration, serve_configured};
use crate::restart::serving;
use crate::support::{FAMILIES, SOON, serve};

/// How often a file changes.
const VERSIONS: usize = 40;

/// Clients that ask for the file again and again.
const CLIENTS: usize = 8;

/// Size of a version, in bytes.
fn size(version: usize) -> u64 {
    2_000_000 + 1000 * version as u64
}

/// A file's versions, in the order of their appearance. Each has a size of its own.
fn versions(site: &Site, name: &str) -> Vec<(KnownFile, Vec<u8>)> {
    let version = |number: usize| {
        let known = site
            .file(&format!("{name}.{number}"), size(number))
            .unwrap();
        let path = site.root().join(known.name());
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(path).unwrap();
        (known, bytes)
    };
    (0..VERSIONS).map(version).collect()
}

/// Puts a version in the place of the last in one step.
fn replace(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, bytes).unwrap();
    fs::rename(new, path).unwrap();
}

/// Empties the file and writes it again: until that is done, it holds a version's beginning.
fn rewrite(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    for piece in bytes.chunks(100_000) {
        file.write_all(piece).unwrap();
    }
}

/// What a client got.
struct Response {
    /// Versions that begin with the bytes received.
    candidates: Vec<usize>,
    content_length: u64,
    complete: bool,
}

/// Downloads a file of which it is not known which version it will be.
fn download(
    connection: &mut Connection,
    name: &str,
    versions: &[(KnownFile, Vec<u8>)],
) -> Result<Response, Failure> {
    connection.send_get(name)?;
    let head = connection.read_head()?;
    assert_eq!(head.status, 200);
    let content_length = head.content_length()?;
    let mut candidates: Vec<usize> = (0..versions.len()).collect();
    let end = connection.read_body(content_length, |offset, bytes| {
        candidates.retain(|&number| versions[number].0.check(offset, bytes).is_ok());
        assert!(
            !candidates.is_empty(),
            "{} bytes at {offset} of {content_length} are of no version that what came before is \
             of",
            bytes.len(),
        );
        Ok(())
    });
    Ok(Response {
        candidates,
        content_length,
        complete: end.is_ok(),
    })
}

/// Changes a file again and again while clients ask for it; calls `check` with each response, and
/// with the number of versions that had been put in place before it was asked for.
fn change_under_load(
    site: &Site,
    name: &str,
    change: impl Fn(&Path, &[u8]),
    check: impl Fn(&Response, usize) + Sync,
) {
    let versions = versions(site, name);
    let path = site.root().join(name);
    change(&path, &versions[0].1);
    let in_place = AtomicUsize::new(1);
    let responses = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    let client = |client: usize| {
        let server = FAMILIES[client % FAMILIES.len()];
        let mut connection = Connection::open(server).unwrap();
        while !over.load(Ordering::Acquire) {
            let before = in_place.load(Ordering::Acquire);
            let response = download(&mut connection, name, &versions);
            let whole = response.as_ref().is_ok_and(|response| response.complete);
            if let Ok(response) = response {
                check(&response, before);
            }
            if !whole {
                connection = Connection::open(server).unwrap();
            }
            responses.fetch_add(1, Ordering::Release);
        }
    };
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            scope.spawn(move || client(number));
        }
        for (_, bytes) in &versions[1..] {
            let enough = responses.load(Ordering::Acquire) + CLIENTS / 2;
            wait::until(SOON, "responses", || {
                (responses.load(Ordering::Acquire) >= enough).then_some(())
            })
            .unwrap();
            change(&path, bytes);
            in_place.fetch_add(1, Ordering::Release);
        }
        over.store(true, Ordering::Release);
    });
    let (last, _) = &versions[VERSIONS - 1];
    for server in FAMILIES {
        let mut connection = Connection::open(server).unwrap();
        connection.send_get(name).unwrap();
        connection.read_file(last).unwrap();
    }
}

#[test]
fn a_file_replaced_under_load_is_sent_to_its_end_and_the_new_one_is_seen_at_once() {
    isolated(|site| {
        let _splitway = serve(&site);
        change_under_load(&site, "page", replace, |response, before| {
            assert!(response.complete, "a response was cut off");
            let [version] = response.candidates[..] else {
                panic!("whole, and of several versions")
            };
            assert_eq!(response.content_length, size(version));
            assert!(
                version + 1 >= before,
                "version {version} was out of date before it was asked for"
            );
        });
    });
}

#[test]
fn a_file_rewritten_under_load_never_arrives_as_a_mixture() {
    isolated(|site| {
        let _splitway = serve(&site);
        let whole = AtomicUsize::new(0);
        change_under_load(&site, "page", rewrite, |response, _| {
            let mut sizes = response.candidates.iter().map(|&version| size(version));
            if response.complete && sizes.any(|size| size == response.content_length) {
                whole.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(whole.into_inner() > 0, "no version has ever arrived whole");
    });
}

/// Says that files of this name only grow.
const LOGS_GROW: &str = "[[site]]\n[[site.rule]]\npath = \"*.log\"\nappend_only = true\n";

/// A file that can grow.
struct Growing {
    known: KnownFile,
    file: File,
    size: u64,
}

impl Growing {
    fn new(site: &Site, name: &str, size: u64) -> Growing {
        let known = KnownFile::whole(name, 10 * size);
        let path = site.root().join(name);
        fs::write(&path, known.bytes(0, size as usize)).unwrap();
        let file = OpenOptions::new().append(true).open(path).unwrap();
        Growing { known, file, size }
    }

    fn append(&mut self, len: usize) {
        let bytes = self.known.bytes(self.size, len);
        self.file.write_all(&bytes).unwrap();
        self.size += len as u64;
    }

    /// Asks for it, and reads a little.
    fn begin(&self) -> Connection {
        let mut connection = Connection::open(HTTP_V4).unwrap();
        connection.send_get(self.known.name()).unwrap();
        let head = connection.read_head().unwrap();
        assert_eq!(head.content_length().unwrap(), self.size);
        connection.read_file_part(&self.known, 0..1000).unwrap();
        connection
    }
}

#[test]
fn downloads_outlive_the_growth_of_a_file_whose_rule_allows_it() {
    isolated(|site| {
        const SIZE: u64 = 30_000_000;
        let mut growing = Growing::new(&site, "live.log", SIZE);
        let mut other = Growing::new(&site, "live.txt", SIZE);
        let mut splitway = serve_configured(&configuration(&site, LOGS_GROW));
        let nic = splitway.nic();

        let [mut first, mut refused] = [growing.begin(), other.begin()];
        growing.append(5000);
        other.append(5000);
        let mut second = growing.begin();
        first
            .read_file_part(&growing.known, 1000..SIZE / 2)
            .unwrap();
        signal(nic, Signal::KILL).unwrap();
        splitway
            .line(|line| serving(line).is_some_and(|pid| pid != nic))
            .unwrap();
        growing.append(5000);
        first
            .read_file_part(&growing.known, SIZE / 2..SIZE)
            .unwrap();
        second
            .read_file_part(&growing.known, 1000..SIZE + 5000)
            .unwrap();
        let mut third = Connection::open(HTTP_V4).unwrap();
        third.send_get("live.log").unwrap();
        let head = third.read_head().unwrap();
        assert_eq!(head.content_length().unwrap(), growing.size);
        third
            .read_file_part(&growing.known, 0..growing.size)
            .unwrap();

        let end = refused.read_file_part(&other.known, 1000..SIZE);
        assert!(end.is_err(), "nothing allows this file to grow");

        // Of this version, nothing is cached.
        growing.append(5000);
        let mut cut = growing.begin();
        growing.file.set_len(SIZE / 2).unwrap();
        let end = cut.read_file_part(&growing.known, 1000..growing.size);
        assert!(end.is_err(), "bytes that had been promised are gone");
    });
}
