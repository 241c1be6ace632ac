//! However it ends, nothing stays behind.

use rustix::process::{Signal, getpid};
use testbed::http::download;
use testbed::namespace::isolated;
use testbed::process::{await_end, signal};
use testbed::procfs::processes;
use testbed::site::{KnownFile, Site};
use testbed::splitway::{HTTP_V4, LINK, Splitway};
use testbed::wait;

use crate::support::{FAMILIES, SOON, serve, started};

pub(crate) fn link_exists() -> bool {
    let links = std::fs::read_to_string("/proc/self/net/dev").unwrap();
    links
        .lines()
        .any(|line| line.trim_start().starts_with(&format!("{LINK}:")))
}

pub(crate) fn other_processes() -> Vec<(i32, String)> {
    let mut found = processes().unwrap();
    found.retain(|(pid, _)| *pid != getpid().as_raw_nonzero().get());
    found
}

fn nothing_is_left(splitway: &Splitway) {
    for pid in [splitway.supervisor(), splitway.host(), splitway.nic()] {
        await_end(pid, SOON).unwrap();
    }
    wait::until(SOON, "the link's end", || (!link_exists()).then_some(())).unwrap();
    let left = wait::until(SOON, "the end of all processes", || {
        other_processes().is_empty().then_some(())
    });
    assert!(left.is_ok(), "these are left: {:?}", other_processes());
}

/// Ends a splitway in the middle of downloads, and sees that nothing is left of it, and that it can
/// start again.
fn ends_cleanly(site: &Site, end: impl FnOnce(&mut Splitway)) {
    let file: KnownFile = site.file("file", 50_000_000).unwrap();
    let mut splitway = serve(site);
    assert!(link_exists());
    let downloads = FAMILIES.map(|server| started(server, &file));
    end(&mut splitway);
    nothing_is_left(&splitway);
    drop(downloads);
    drop(splitway);

    let small = site.file("small", 5000).unwrap();
    let mut again = serve(site);
    download(HTTP_V4, &small).unwrap();
    again.end_with(Signal::TERM).unwrap();
    nothing_is_left(&again);
}

#[test]
fn ctrl_c_ends_it() {
    isolated(|site| {
        ends_cleanly(&site, |splitway| {
            splitway.end_with(Signal::INT).unwrap();
        });
    });
}

/// As from a terminal and from `timeout`, which signals the group and then the process.
#[test]
fn a_signal_that_comes_twice_is_one_wish() {
    isolated(|site| {
        ends_cleanly(&site, |splitway| {
            signal(splitway.supervisor(), Signal::INT).unwrap();
            let status = splitway.end_with(Signal::INT).unwrap();
            assert!(status.success(), "{status}");
        });
    });
}

#[test]
fn sigterm_ends_it_and_that_is_success() {
    isolated(|site| {
        ends_cleanly(&site, |splitway| {
            let status = splitway.end_with(Signal::TERM).unwrap();
            assert!(status.success(), "{status}");
        });
    });
}

#[test]
fn a_killed_supervisor_takes_everything_with_it() {
    isolated(|site| {
        ends_cleanly(&site, |splitway| {
            splitway.end_with(Signal::KILL).unwrap();
        });
    });
}

#[test]
fn a_crash_of_the_host_process_ends_everything_and_is_reported() {
    isolated(|site| {
        ends_cleanly(&site, |splitway| {
            signal(splitway.host(), Signal::KILL).unwrap();
            let status = splitway.wait().unwrap();
            assert!(!status.success());
            assert!(
                splitway.output().iter().any(|line| line.contains("host")),
                "{:?}",
                splitway.output()
            );
        });
    });
}
