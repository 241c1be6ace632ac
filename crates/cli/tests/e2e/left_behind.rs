//! Files of servers of which every process was killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};
use testbed::namespace::isolated;
use testbed::process::signal;
use testbed::splitway::Splitway;
use testbed::wait;

use crate::lifetime::other_processes;
use crate::proxy::{listen, pool, written};
use crate::run::splitway_run;
use crate::support::{SOON, program};

/// Runs a command until it prints a line, and kills all of its processes.
fn killed(mut command: Command, line: &str) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_there = lines.any(|read| read.unwrap().contains(line));
    assert!(is_there, "no line with {line}");
    for (pid, _) in other_processes() {
        // Those that are bound to another are gone by then.
        let _ = signal(Pid::from_raw(pid).unwrap(), Signal::KILL);
    }
    child.wait().unwrap();
    let all = wait::until(SOON, "the end of all processes", || {
        other_processes().is_empty().then_some(())
    });
    all.unwrap();
}

fn names(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn files_of_servers_that_were_killed_go_with_the_next_start() {
    isolated(|site| {
        site.file("file", 1_000).unwrap();
        let temporary = site.outside().join("tmp");
        fs::create_dir(&temporary).unwrap();
        let with_place = |mut command: Command| {
            command
                .env("TMPDIR", &temporary)
                .current_dir(site.outside());
            command
        };
        let serve = || {
            let mut command = Command::new(program());
            command.args(["serve", "--tls-listen", "443", "--tls-self-signed"]);
            with_place(command)
        };
        let path = written(&site, &(listen(80, "all", "") + &pool("all", "", &[8080])));
        let mut proxy = Command::new(program());
        proxy.args(["proxy", "--config"]).arg(path);
        let mut demo = Command::new(program());
        demo.arg("demo");
        let mut run = splitway_run(&["--"]);
        run.args(["sh", "-c", "echo runs; exec sleep 1000"]);
        let mut left = 0;
        for (command, line) in [
            (with_place(proxy), "End with"),
            (with_place(run), "runs"),
            (with_place(demo), "small site"),
        ] {
            killed(command, line);
            let there = names(&temporary).len();
            assert!(there > 0, "{line}: nothing is left, which proves nothing");
            left += there;
        }
        let mut command = serve();
        command.arg(site.root());
        killed(command, "End with");
        assert!(!names(&temporary).is_empty());
        assert!(left >= 3, "{left}");

        let mut command = serve();
        let splitway = Splitway::start(command.arg(site.root())).unwrap();
        let live = names(&temporary);
        assert_eq!(live.len(), 1, "the certificate of the server: {live:?}");
        assert!(live[0].join("certificate.pem").exists());
        let sockets = names(Path::new("/run/splitway"));
        assert_eq!(sockets.len(), 1, "its control socket: {sockets:?}");

        // The next start removes nothing of it, and fails because the link is taken.
        let mut refused = serve();
        let output = refused.arg(site.root()).output().unwrap();
        assert!(!output.status.success());
        assert_eq!(names(&temporary), live);
        drop(splitway);
    });
}
