//! A process that stands still is noticed by its heartbeat, reported and replaced.

use std::fs;

use rustix::process::{Pid, Signal};
use testbed::http::download;
use testbed::namespace::isolated;
use testbed::process::{await_end, signal};
use testbed::splitway::{HTTP_V4, Splitway};
use testbed::wait;

use crate::config::{configuration, serve_configured};
use crate::deaths::host_counter;
use crate::dpu::{Machines, servers};
use crate::metrics::{ADMIN, ask, watched};
use crate::origin;
use crate::restart::serving;
use crate::support::{FAMILIES, SOON, ctl, fetcher, observer, serve_with, sh, started};

/// Whether the server is healthy, and what it says.
fn health() -> (bool, String) {
    let (head, body) = ask("GET /healthz HTTP/1.1\r\n\r\n");
    (head.starts_with("HTTP/1.1 200 "), body)
}

/// Waits until another process has taken the place of `before`, which has ended.
fn replaced(splitway: &Splitway, before: Pid, find: impl Fn(&Splitway) -> Option<Pid>) {
    await_end(before, SOON).unwrap();
    wait::until(SOON, "another process", || {
        find(splitway).filter(|pid| *pid != before)
    })
    .unwrap();
}

#[test]
fn a_nic_process_that_stands_still_is_replaced_and_no_download_notices() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let mut splitway = serve_with(&site, &["--workers", "2", "--report-json"]);
        let mut connections = FAMILIES.map(|server| started(server, &file));
        let half = file.size() / 2;
        for connection in &mut connections {
            connection.read_file_part(&file, 0..half).unwrap();
        }
        let nic = splitway.nic();
        signal(nic, Signal::STOP).unwrap();
        for connection in &mut connections {
            connection.read_file_part(&file, half..file.size()).unwrap();
            connection.finish().unwrap();
            connection.read_end().unwrap();
        }
        await_end(nic, SOON).unwrap();
        let said = splitway.line(|line| line.contains("no heartbeat of worker"));
        let said = said.unwrap();
        let process = format!("(process {})", nic.as_raw_nonzero());
        assert!(said.contains(&process) && said.contains("killed"), "{said}");
        let next = splitway.line(|line| serving(line).is_some_and(|pid| pid != nic));
        next.unwrap();
        splitway.end_with(Signal::TERM).unwrap();
        assert_eq!(host_counter(&mut splitway, "nic_silences"), 1);
        assert_eq!(host_counter(&mut splitway, "connections_broken"), 0);
    });
}

#[test]
fn health_and_ctl_tell_of_a_nic_process_that_stands_still() {
    isolated(|site| {
        sh("ip link set lo up");
        let file = site.file("file", 100_000).unwrap();
        let operation = format!("[operation]\nadmin = \"{ADMIN}\"\nheartbeat = \"1s\"\n");
        let mut splitway = serve_configured(&configuration(&site, &operation));
        wait::until(SOON, "health", || health().0.then_some(())).unwrap();
        // Its workers have begun.
        download(HTTP_V4, &file).unwrap();
        // Without the root no other one serves.
        let away = site.outside().join("root-away");
        fs::rename(site.root(), &away).unwrap();
        signal(splitway.nic(), Signal::STOP).unwrap();
        splitway
            .line(|line| line.contains("no heartbeat of worker 0: killed"))
            .unwrap();
        wait::until(SOON, "an answer of 503", || {
            let (is_well, why) = health();
            (!is_well && why.contains("NIC process does not serve: ")).then_some(())
        })
        .unwrap();
        wait::until(SOON, "its end", || {
            let (done, said) = ctl("nics", None);
            assert!(done, "{said}");
            said.contains("missing for").then_some(())
        })
        .unwrap();
        fs::rename(&away, site.root()).unwrap();
        wait::until(SOON, "an answer of 200", || health().0.then_some(())).unwrap();
        download(HTTP_V4, &file).unwrap();
    });
}

#[test]
fn an_observer_that_stands_still_is_replaced() {
    isolated(|site| {
        let mut splitway = watched(&site, &[]);
        wait::until(SOON, "health", || health().0.then_some(())).unwrap();
        let before = observer(&splitway).unwrap();
        signal(before, Signal::STOP).unwrap();
        splitway
            .line(|line| line.contains("no heartbeat of the observer process"))
            .unwrap();
        replaced(&splitway, before, observer);
        wait::until(SOON, "health", || health().0.then_some(())).unwrap();
    });
}

#[test]
fn a_fetcher_that_stands_still_is_replaced() {
    isolated(|site| {
        let web = origin::web_of_one_file(1_000_000);
        let mut splitway = origin::serve_origin(&site, &web, &[]);
        let before = fetcher(&splitway).unwrap();
        signal(before, Signal::STOP).unwrap();
        splitway
            .line(|line| line.contains("no heartbeat of the fetcher"))
            .unwrap();
        replaced(&splitway, before, fetcher);
        assert_eq!(origin::get("/x").body.len(), 1_000_000);
    });
}

#[test]
fn a_host_process_that_stands_still_is_reported_and_goes_on() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let operation = "[operation]\nheartbeat = \"500ms\"\n";
        let mut splitway = serve_configured(&configuration(&site, operation));
        signal(splitway.host(), Signal::STOP).unwrap();
        splitway
            .line(|line| line.contains("no heartbeat of the host process"))
            .unwrap();
        signal(splitway.host(), Signal::CONT).unwrap();
        splitway
            .line(|line| line.contains("the host process responds again"))
            .unwrap();
        download(HTTP_V4, &file).unwrap();
        // It has stood still itself, so it blames no NIC process.
        let said = splitway.output().join("\n");
        assert!(!said.contains("no heartbeat of worker"), "{said}");
    });
}

#[test]
fn a_nic_process_of_another_machine_that_stands_still_is_replaced() {
    isolated(|site| {
        let file = site.file("file", 3_000_000).unwrap();
        let machines = Machines::new(site, &[]);
        let mut nic = machines.nic_stack();
        let _host = machines.host_stack(&nic);
        let process = nic.next_session();
        download(servers()[0], &file).unwrap();
        signal(process, Signal::STOP).unwrap();
        for server in servers() {
            download(server, &file).unwrap();
        }
        await_end(process, SOON).unwrap();
        assert_ne!(nic.next_session(), process);
    });
}
