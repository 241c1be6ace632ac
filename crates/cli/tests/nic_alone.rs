//! A NIC process that runs alone, and the host stacks that attach to it.
#![forbid(unsafe_code)]

// What only the other tests use of it.
#[allow(dead_code)]
mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use support::{PROGRAM, sh, splitway_in};
use testbed::http::{Connection, download};
use testbed::namespace::isolated;
use testbed::process::{Process, signal};
use testbed::site::Site;
use testbed::splitway::Splitway;

const SOON: Duration = Duration::from_secs(20);
const ADDRESS: &str = "192.0.2.10/24";

fn server() -> SocketAddr {
    "192.0.2.10:80".parse().unwrap()
}

/// A NIC process on `far`, whose other end, `wire`, is the client's.
struct NicAlone {
    process: Process,
    output: BufReader<ChildStdout>,
}

impl NicAlone {
    fn start(site: &Site) -> NicAlone {
        sh("ip link add wire type veth peer name far");
        sh("ip link set wire up");
        sh("ip link set far up");
        sh("ip address add 192.0.2.1/24 dev wire");
        NicAlone::on_link(site)
    }

    /// The same on the link that is there.
    fn on_link(site: &Site) -> NicAlone {
        let mut command = Command::new(PROGRAM);
        command
            .args(["nic", "--dev", "far", "--socket", "socket", "--root"])
            .arg(site.root());
        command
            .current_dir(site.outside())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command).unwrap();
        let output = BufReader::new(process.child().stdout.take().unwrap());
        let mut nic = NicAlone { process, output };
        nic.await_line("listening on socket");
        nic
    }

    /// Reads its output up to a line that begins like this; the rest of that line.
    fn await_line(&mut self, beginning: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.output.read_line(&mut line).unwrap(),
                0,
                "it has ended before {beginning:?}"
            );
            if let Some(rest) = line.strip_prefix(beginning) {
                return rest.trim().to_owned();
            }
        }
    }

    /// The process that serves the next host stack.
    fn next_session(&mut self) -> Pid {
        let line = self.await_line("nic process ");
        let digits = line.split(':').next().unwrap();
        Pid::from_raw(digits.parse().unwrap()).unwrap()
    }

    fn attach(&self, site: &Site) -> Splitway {
        let arguments = [
            "serve", "--nic", "socket", "--dev", "far", "--addr", ADDRESS,
        ];
        Splitway::start(
            Command::new(PROGRAM)
                .args(arguments)
                .current_dir(site.outside()),
        )
        .unwrap()
    }
}

#[test]
fn host_stacks_come_and_go() {
    isolated(|site| {
        let file = site.file("file", 3_000_000).unwrap();
        let mut nic = NicAlone::start(&site);
        let mode = fs::metadata(site.outside().join("socket"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "no other user may connect");
        for _ in 0..3 {
            let mut host = nic.attach(&site);
            download(server(), &file).unwrap();
            assert!(host.end_with(Signal::INT).unwrap().success());
        }
        // One that does not even say good-bye.
        let mut host = nic.attach(&site);
        host.end_with(Signal::KILL).unwrap();
        let _host = nic.attach(&site);
        download(server(), &file).unwrap();

        assert!(nic.process.stop(SOON).unwrap().success());
        assert!(!site.outside().join("socket").exists());
    });
}

#[test]
fn one_host_stack_is_served_at_a_time() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let nic = NicAlone::start(&site);
        let _host = nic.attach(&site);
        let second = [
            "serve",
            "--nic",
            "socket",
            "--dev",
            "far",
            "--addr",
            "192.0.2.11/24",
        ];
        let outcome = splitway_in(site.outside(), &second);
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!(
            outcome.stderr.contains("serves one at a time"),
            "{outcome:?}"
        );
        download(server(), &file).unwrap();
    });
}

#[test]
fn a_place_that_a_living_process_listens_on_is_kept_and_that_of_a_dead_one_reused() {
    isolated(|site| {
        let mut nic = NicAlone::start(&site);
        let process = format!("(process {})", nic.process.pid().as_raw_nonzero());
        let again = ["nic", "--root", ".", "--dev", "far", "--socket", "socket"];
        splitway_in(site.outside(), &again).refused(&[
            "NIC socket socket",
            "in use by another splitway",
            &process,
        ]);
        // Being asked did not disturb it.
        drop(nic.attach(&site));

        signal(nic.process.pid(), Signal::KILL).unwrap();
        nic.process.wait(SOON).unwrap();
        assert!(site.outside().join("socket").exists());
        let attach = [
            "serve", "--nic", "socket", "--dev", "far", "--addr", ADDRESS,
        ];
        splitway_in(site.outside(), &attach).refused(&["no NIC process listens there any more"]);

        sh("ip link delete wire");
        let nic = NicAlone::start(&site);
        drop(nic.attach(&site));
    });
}

#[test]
fn a_host_stack_outlives_its_session_and_the_nic_process_too() {
    isolated(|site| {
        let file = site.file("file", 50_000_000).unwrap();
        let mut nic = NicAlone::start(&site);
        let mut host = nic.attach(&site);
        let mut connection = Connection::open(server()).unwrap();
        connection.send_get("file").unwrap();
        connection.read_file_head(&file).unwrap();
        for (start, end) in [(0, 10_000_000), (10_000_000, 20_000_000)] {
            connection.read_file_part(&file, start..end).unwrap();
            let session = nic.next_session();
            assert_ne!(session, nic.process.pid());
            signal(session, Signal::KILL).unwrap();
        }
        connection
            .read_file_part(&file, 20_000_000..30_000_000)
            .unwrap();

        // It has not started this one, so it does not replace it.
        let line = host.line(|line| line.starts_with("control socket: "));
        let socket = line.unwrap()["control socket: ".len()..].to_owned();
        let asked = splitway_in(site.outside(), &["ctl", "restart-nic", "--socket", &socket]);
        assert_eq!(asked.code, Some(1), "{asked:?}");
        assert!(
            asked.stderr.contains("was not started by this server"),
            "{asked:?}"
        );

        signal(nic.process.pid(), Signal::KILL).unwrap();
        nic.process.wait(SOON).unwrap();
        host.line(|line| line.contains("none listens there any more"))
            .unwrap();
        drop(nic);
        let _nic = NicAlone::on_link(&site);
        connection
            .read_file_part(&file, 30_000_000..file.size())
            .unwrap();
    });
}

#[test]
fn a_root_that_is_replaced_is_not_followed() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let nic = NicAlone::start(&site);
        let _host = nic.attach(&site);
        let moved = site.outside().join("moved");
        fs::rename(site.root(), &moved).unwrap();
        fs::create_dir(site.root()).unwrap();
        fs::write(site.root().join("file"), "another").unwrap();
        download(server(), &file).unwrap();
        assert!(Path::new(&moved).exists());
    });
}
