//! Programs at their jobs on the kernel's sockets and on split ones: the table in docs/run.md is
//! made of it. `scripts/setup.sh long` installs them.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal};
use testbed::namespace::isolated_long;
use testbed::process::{Process, signal, tool};
use testbed::procfs::children;
use testbed::site::{KnownFile, Site};
use testbed::wait;

use super::list::{PROGRAMS, Served};
use crate::interop_long::page::{Row, table, without_versions};
use crate::programs::{Stack, at};
use crate::run::{PORT, splitway_run_on};
use crate::run_compat::compat_on;
use crate::support::SOON;

const UPDATE: &str = "UPDATE_PROGRAMS=1 cargo test -p splitway-cli --test e2e \
                      programs_of_every_style -- --ignored";

/// Names programs of which alone the test is, by their scripts, in words; the page stays then.
const ONLY: &str = "SPLITWAY_PROGRAMS";

const HEADS: [&str; 5] = ["Program", "Version", "Job", "Kernel", "Split"];

/// Where a program is reached on the kernel's sockets, and the server that some forward to.
const KERNEL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 1));
const BACKEND_PORT: u16 = 8090;

/// In memory: a program that gives up its privileges may not read where tests are built.
const PLACE: &str = "/run/programs";

/// The programs' server, and files.
struct Bench {
    stack: Stack,
    site: Site,
    installed: PathBuf,
    _backend: Process,
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/served")
}

/// A process and all that it has started, and these in turn.
fn family(of: Pid) -> Vec<Pid> {
    let mut found = vec![of];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(children(parent).unwrap_or_default());
        next += 1;
    }
    found
}

fn last_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end().lines().last().unwrap_or("").to_owned()
}

impl Bench {
    fn new(site: Site) -> Bench {
        let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../served");
        let is_complete = installed.join("complete").exists();
        assert!(is_complete, "programs are missing: scripts/setup.sh long");
        let root = Path::new(PLACE).join("root");
        fs::create_dir_all(&root).unwrap();
        for size in [10, 20_000, 500_000, 3_000_000] {
            let file = KnownFile::whole(&size.to_string(), size);
            fs::write(root.join(file.name()), file.bytes(0, size as usize)).unwrap();
        }
        let stack = Stack::serve(&site);
        let mut backend = tool("python3");
        backend.arg(scripts().join("backend.py")).arg(&root);
        backend.arg(BACKEND_PORT.to_string()).stderr(Stdio::null());
        let backend = Process::spawn(&mut backend).unwrap();
        let address = SocketAddr::new(KERNEL, BACKEND_PORT);
        let answers = || TcpStream::connect(address).ok();
        wait::until(SOON, "a server to forward to", answers).unwrap();
        Bench {
            stack,
            site,
            installed: installed.canonicalize().unwrap(),
            _backend: backend,
        }
    }

    /// A function of a program's script, on what it serves at a host.
    fn script(
        &self,
        mut command: Command,
        served: &Served,
        function: &str,
        host: IpAddr,
    ) -> Command {
        let (name, style) = served.script;
        command.arg(scripts().join("job.sh"));
        command.args([name, function, style]);
        command.env("ROOT", Path::new(PLACE).join("root"));
        command.env("WORK", Path::new(PLACE).join("work"));
        command.env("HOST", host.to_string());
        command.env("PORT", PORT.to_string());
        command.env("BACKEND", format!("{KERNEL}:{BACKEND_PORT}"));
        command.env("BACKEND_HOST", KERNEL.to_string());
        command.env("PLACE", &self.installed);
        command.stdin(Stdio::null());
        command
    }

    /// Starts a program, has its client do its job, and ends it; or what fails.
    fn attempt(&self, served: &Served, host: IpAddr, command: Command) -> Result<(), String> {
        let work = Path::new(PLACE).join("work");
        fs::create_dir(&work).unwrap();
        let log = fs::File::create(Path::new(PLACE).join("log")).unwrap();
        let errors = log.try_clone().unwrap();
        let mut command = self.script(command, served, "start", host);
        // Some send signals to their whole group.
        command.process_group(0).stdout(log).stderr(errors);
        let mut started = Process::spawn(&mut command).unwrap();
        let address = SocketAddr::new(host, PORT);
        let listens = || TcpStream::connect(address).ok();
        let mut done = Err("it does not listen".to_owned());
        if wait::until(SOON, "the program listens", listens).is_ok() {
            let client = self.script(tool("timeout 120 bash"), served, "check", host);
            done = outcome(self.output(client));
        }
        let all = family(started.pid());
        signal(started.pid(), Signal::TERM).unwrap();
        let ended = started.wait(SOON);
        for left in all {
            // Most have ended.
            let _ = signal(left, Signal::KILL);
        }
        drop(started);
        if done.is_err() {
            let log = fs::read(Path::new(PLACE).join("log")).unwrap();
            println!("{}", String::from_utf8_lossy(&log));
        }
        fs::remove_dir_all(&work).unwrap();
        done?;
        ended.map_err(|_| "it does not end".to_owned())?;
        let gone = || TcpStream::connect(address).is_err().then_some(());
        wait::until(SOON, "nothing listens", gone)
            .map_err(|_| "it listens after its end".to_owned())
    }

    fn output(&self, mut client: Command) -> Output {
        client.output().unwrap()
    }

    fn on_kernel(&self, served: &Served) -> Result<(), String> {
        self.attempt(served, KERNEL, Command::new("bash"))
    }

    fn on_split(&mut self, served: &Served) -> Result<(), String> {
        let options = [served.options, &["--", "bash"]].concat();
        let command = match served.is_compat {
            true => compat_on(&self.stack, &options),
            false => splitway_run_on(&self.stack, &options),
        };
        let done = self.attempt(served, at(PORT).ip(), command);
        if done.is_ok() {
            self.stack.assert_nothing_left();
        } else {
            // Of a program that failed, processes may hold on to it.
            self.stack.kill();
            self.stack.serve_again(&self.site);
        }
        done
    }
}

/// The outcome of a client: the last line of its output is the reason of a failure.
fn outcome(output: Output) -> Result<(), String> {
    let printed = last_line(&output.stdout);
    match output.status.code() {
        Some(0) => return Ok(()),
        Some(124) => return Err("its client hangs".to_owned()),
        _ => println!("{}", String::from_utf8_lossy(&output.stderr)),
    }
    match printed.is_empty() {
        true => Err(last_line(&output.stderr)),
        false => Err(printed),
    }
}

/// The page with another table, which stands below these heads.
fn with_table(page: &str, table: &str) -> String {
    let head = format!("| {} |\n", HEADS.join(" | "));
    let start = page.find(&head).expect("docs/run.md has the table");
    let len = page[start..].find("\n\n").expect("an empty line below it") + 1;
    format!("{}{table}{}", &page[..start], &page[start + len..])
}

#[test]
fn only_the_table_of_programs_is_replaced() {
    let head = format!("| {} |\n|---|---|---|---|---|\n", HEADS.join(" | "));
    let page = format!("before\n\n{head}| old |\n\nafter\n\n| other |\n");
    let table = format!("{head}| new |\n");
    let expected = format!("before\n\n{table}\nafter\n\n| other |\n");
    assert_eq!(with_table(&page, &table), expected);
}

#[test]
#[ignore = "its programs take long to install"]
fn programs_of_every_style_do_their_jobs_as_the_page_says() {
    isolated_long(|site| {
        let only = std::env::var(ONLY).ok();
        let is_meant = |served: &&Served| {
            let mut only = only.iter().flat_map(|only| only.split_whitespace());
            let name = served.script.0;
            only.clone().next().is_none() || only.any(|meant| meant == name)
        };
        let mut bench = Bench::new(site);
        let (mut rows, mut failures): (Vec<Row>, Vec<String>) = (Vec::new(), Vec::new());
        for served in PROGRAMS.iter().filter(is_meant) {
            let kernel = bench.on_kernel(served);
            let split = bench.on_split(served);
            println!("{}: kernel {kernel:?}, split {split:?}", served.name);
            let mut row = [served.name, served.job, "whole", "whole"].map(str::to_owned);
            if let Err(why) = kernel {
                failures.push(format!("{} on the kernel: {why}", served.name));
            }
            match (split, served.gap) {
                (Ok(()), None) => (),
                (Err(_), Some(gap)) => row[3] = format!("fails: {gap}"),
                (Err(why), None) => failures.push(format!("{}: {why}", served.name)),
                (Ok(()), Some(_)) => {
                    failures.push(format!("{} is whole: remove its gap", served.name));
                }
            }
            let mut row = Vec::from(row);
            row.insert(1, served.source.version(&bench.installed));
            rows.push(row);
        }
        assert!(failures.is_empty(), "{failures:#?}");
        if only.is_some() {
            return;
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/run.md");
        let written = fs::read_to_string(&path).unwrap();
        let found = with_table(&written, &table(&HEADS, &rows));
        if std::env::var_os("UPDATE_PROGRAMS").is_some() {
            fs::write(&path, &found).unwrap();
        }
        let written = fs::read_to_string(&path).unwrap();
        assert_eq!(
            without_versions(&written),
            without_versions(&found),
            "docs/run.md differs from the outcomes: {UPDATE}"
        );
    });
}
