//! Machines and callers that are not as one would like them.
#![forbid(unsafe_code)]

// What only the other tests use of it.
#[allow(dead_code)]
mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use support::{PROGRAM, sh};
use testbed::http::download;
use testbed::namespace::isolated;
use testbed::process::{Process, signal};
use testbed::splitway::{HTTP_V4, HTTP_V6, Splitway};
use testbed::wait;

const SOON: Duration = Duration::from_secs(20);

#[test]
fn where_ipv6_is_switched_off_it_serves_over_ipv4_and_says_so() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
        fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        let mut splitway = Splitway::serve(Path::new(PROGRAM), site.root(), [""; 0]).unwrap();
        download(HTTP_V4, &file).unwrap();
        assert!(splitway.end_with(Signal::INT).unwrap().success());
        let said = splitway.output().join("\n");
        assert!(said.contains("IPv6 is switched off"), "{said}");
        assert!(!said.contains("fd77"), "{said}");
    });
}

#[test]
fn both_families_can_be_used_the_moment_the_url_is_printed() {
    isolated(|site| {
        let file = site.file("file", 1).unwrap();
        for _ in 0..5 {
            let _splitway = Splitway::serve(Path::new(PROGRAM), site.root(), [""; 0]).unwrap();
            download(HTTP_V6, &file).unwrap();
            download(HTTP_V4, &file).unwrap();
        }
    });
}

#[test]
fn a_machine_that_forwards_packets_does_not_answer_for_the_stack() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        let _splitway = Splitway::serve(Path::new(PROGRAM), site.root(), [""; 0]).unwrap();
        for server in [HTTP_V4, HTTP_V6] {
            download(server, &file).unwrap();
        }
        // Only the stack has an address at the other end.
        let neighbors = sh("ip neighbor show dev splitway0");
        let stacks = neighbors
            .lines()
            .filter(|line| line.starts_with("10.77.0.2") || line.starts_with("fd77::2"));
        assert_eq!(stacks.count(), neighbors.lines().count(), "{neighbors}");
    });
}

#[test]
fn a_caller_that_does_not_listen_is_served_all_the_same() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let mut command = Command::new(PROGRAM);
        command
            .arg("serve")
            .arg(site.root())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut splitway = Process::spawn(&mut command).unwrap();
        drop(splitway.child().stdout.take());
        wait::until(SOON, "a download", || download(HTTP_V4, &file).ok()).unwrap();
        signal(splitway.pid(), Signal::INT).unwrap();
        assert!(splitway.wait(SOON).unwrap().success());
    });
}

#[test]
fn the_program_may_be_replaced_while_it_runs() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let program = site.outside().join("program");
        fs::copy(PROGRAM, &program).unwrap();
        let mut splitway = Splitway::serve(&program, site.root(), [""; 0]).unwrap();
        fs::remove_file(&program).unwrap();
        download(HTTP_V4, &file).unwrap();
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
    });
}

#[test]
fn a_root_whose_name_looks_like_an_option_is_served() {
    isolated(|site| {
        let root = site.outside().join("--root dir");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("index.html"), "hello").unwrap();
        let mut command = Command::new(PROGRAM);
        command
            .args(["serve", "--", "--root dir"])
            .current_dir(site.outside());
        let _splitway = Splitway::start(&mut command).unwrap();
        assert_eq!(sh("curl -sS http://10.77.0.2/"), "hello");
    });
}

#[test]
fn it_ends_while_connections_are_open() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let mut splitway = Splitway::serve(Path::new(PROGRAM), site.root(), [""; 0]).unwrap();
        let connections: Vec<_> = (0..20)
            .map(|_| {
                let mut connection = testbed::http::Connection::open(HTTP_V4).unwrap();
                connection.send_get(file.name()).unwrap();
                connection.read_file_head(&file).unwrap();
                connection
            })
            .collect();
        assert!(splitway.end_with(Signal::INT).unwrap().success());
        assert!(!sh("ip link").contains("splitway0"));
        drop(connections);
    });
}
