//! The host process never touches content: it could not.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal};
use testbed::http::download;
use testbed::injection::{Argument, system_call_within};
use testbed::namespace::isolated;
use testbed::process::signal;
use testbed::site::Site;
use testbed::splitway::Splitway;
use testbed::web::{Reply, Web, content};

use crate::origin::get;
use crate::support::{FAMILIES, SOON, fetcher, observer, program, serve, serve_with, started};

pub(crate) const EPERM: i32 = 1;
const EACCES: i32 = 13;

/// A system call and its arguments.
pub(crate) type Call = (i64, &'static [Argument<'static>]);

const OPENAT2: i64 = 437;
const AT_FDCWD: i64 = -100;

/// What `/proc` says of a process; `None` if there is none.
pub(crate) fn status(pid: Pid, name: &str) -> Option<String> {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = std::fs::read_to_string(path).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    Some(line?.trim_start_matches(':').trim().to_owned())
}

/// Has a running process make a system call: what it returns, an error as its negated number.
/// `None`: that has ended the process.
pub(crate) fn call_within(pid: Pid, (number, arguments): Call) -> Option<i64> {
    // One that has just been started is on its way there.
    let is_confined = || (status(pid, "Seccomp").as_deref() == Some("2")).then_some(());
    testbed::wait::until(SOON, "a system call filter", is_confined).unwrap();
    system_call_within(pid, number, arguments).unwrap()
}

/// Has a running process open a file; `Err` is its `errno`.
pub(crate) fn open_within(pid: Pid, path: &Path) -> Result<i64, i32> {
    let path = format!("{}\0", path.display());
    // `O_RDONLY` without a condition: a `struct open_how` full of zeros.
    let how = [0; 24];
    let arguments = [
        Argument::Number(AT_FDCWD),
        Argument::Bytes(path.as_bytes()),
        Argument::Bytes(&how),
        Argument::Number(how.len() as i64),
    ];
    match system_call_within(pid, OPENAT2, &arguments).unwrap() {
        Some(descriptor @ 0..) => Ok(descriptor),
        Some(error) => Err(-error as i32),
        None => panic!("no deadly call"),
    }
}

#[test]
fn the_host_process_cannot_open_what_the_nic_process_is_sending() {
    isolated(|site| {
        let file = site.file("file", 50_000_000).unwrap();
        let path = site.root().join(file.name());
        let mut splitway = serve(&site);
        let mut downloads = FAMILIES.map(|server| started(server, &file));
        for connection in &mut downloads {
            connection.read_file_part(&file, 0..1_000_000).unwrap();
        }
        // Of its two locks the outer one answers. The inner one has answered when the process
        // began: it says so.
        assert_eq!(open_within(splitway.host(), &path), Err(EPERM));
        assert_eq!(open_within(splitway.host(), site.root()), Err(EPERM));
        splitway
            .line(|line| line.contains("Landlock ABI") && line.contains("Permission denied"))
            .unwrap();
        assert!(open_within(splitway.nic(), &path).is_ok());
        for connection in &mut downloads {
            connection
                .read_file_part(&file, 1_000_000..file.size())
                .unwrap();
        }
    });
}

#[test]
fn the_nic_process_cannot_open_what_is_not_served() {
    isolated(|site| {
        let secret = site.outside().join("secret");
        std::fs::write(&secret, "not for you").unwrap();
        let splitway = serve(&site);
        assert_eq!(open_within(splitway.nic(), &secret), Err(EACCES));
    });
}

#[test]
fn all_processes_have_a_system_call_filter_in_all_threads() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let web = Web::new(|_| Reply::ok("", &content(100_000, 1)));
        let (splitway, _) = serve_all(&site, &web, &["--workers", "2"]);
        download(FAMILIES[0], &file).unwrap();
        // Both of these have threads by now.
        assert!(get("/from-origin").body == content(100_000, 1));
        let others = [fetcher(&splitway), observer(&splitway)].map(Option::unwrap);
        for pid in [splitway.host(), splitway.nic()].into_iter().chain(others) {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
            for task in tasks {
                let thread = task.unwrap().file_name().into_string().unwrap();
                let thread = Pid::from_raw(thread.parse().unwrap()).unwrap();
                // SECCOMP_MODE_FILTER.
                assert_eq!(status(thread, "Seccomp").as_deref(), Some("2"));
                assert_eq!(status(thread, "NoNewPrivs").as_deref(), Some("1"));
                assert_eq!(status(thread, "CapEff"), status(pid, "CapEff"));
            }
        }
    });
}

/// Makes a socket of TCP.
pub(crate) const SOCKET: Call = (
    41,
    &[
        Argument::Number(2),
        Argument::Number(1),
        Argument::Number(0),
    ],
);

/// Asks for memory that can be executed: private and anonymous.
const CODE: Call = (
    9,
    &[
        Argument::Number(0),
        Argument::Number(4096),
        Argument::Number(7),
        Argument::Number(0x22),
        Argument::Number(-1),
        Argument::Number(0),
    ],
);

#[test]
fn a_nic_process_that_does_what_it_may_not_is_killed_and_replaced() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let mut splitway = serve(&site);
        let mut connection = started(FAMILIES[0], &file);
        let half = file.size() / 2;
        connection.read_file_part(&file, 0..half).unwrap();
        assert_eq!(call_within(splitway.nic(), SOCKET), None);
        splitway
            .line(|line| line.contains("serves in the place of the one before"))
            .unwrap();
        connection.read_file_part(&file, half..file.size()).unwrap();
    });
}

/// A server of a site and of an origin, with a log: where that is.
fn serve_all(site: &Site, web: &Web, arguments: &[&str]) -> (Splitway, PathBuf) {
    let log = site.outside().join("access.log");
    let mut all = vec!["--access-log", log.to_str().unwrap(), "--origin", &web.url];
    all.extend(arguments);
    (serve_with(site, &all), log)
}

/// Runs a program.
pub(crate) const PROGRAM: Call = (
    59,
    &[
        Argument::Bytes(b"/bin/true\0"),
        Argument::Number(0),
        Argument::Number(0),
    ],
);

#[test]
fn an_observer_that_does_what_it_may_not_is_killed_and_replaced() {
    isolated(|site| {
        let file = site.file("file", 1_000).unwrap();
        let web = Web::new(|_| Reply::default());
        let (mut splitway, log) = serve_all(&site, &web, &[]);
        let mut last = observer(&splitway).unwrap();
        // They are installed one after the other.
        let filters = status(last, "Seccomp_filters");
        for call in [SOCKET, PROGRAM, CODE] {
            assert_eq!(call_within(last, call), None, "{call:?}");
            let is_confined = |pid: Pid| status(pid, "Seccomp_filters") == filters;
            let another = || observer(&splitway).filter(|&pid| pid != last && is_confined(pid));
            last = testbed::wait::until(SOON, "another observer", another).unwrap();
        }
        splitway
            .line(|line| line.contains("observer process") && line.contains("may not make"))
            .unwrap();
        download(FAMILIES[0], &file).unwrap();
        testbed::wait::until(SOON, "a line", || {
            let text = std::fs::read_to_string(&log).ok()?;
            text.contains("GET /file ").then_some(())
        })
        .unwrap();
    });
}

#[test]
fn a_fetcher_that_does_what_it_may_not_is_refused_or_killed_and_replaced() {
    isolated(|site| {
        let web = Web::new(|_| Reply::ok("", &content(100_000, 1)));
        let (mut splitway, _) = serve_all(&site, &web, &[]);
        let first = fetcher(&splitway).unwrap();
        // What a module that resolves names may try does not end it.
        let packets: Call = (
            41,
            &[
                Argument::Number(17),
                Argument::Number(3),
                Argument::Number(0),
            ],
        );
        for call in [packets, CODE] {
            let refused = Some(-i64::from(EPERM));
            assert_eq!(call_within(first, call), refused, "{call:?}");
        }
        assert!(call_within(first, SOCKET).is_some_and(|socket| socket >= 0));
        assert_eq!(call_within(first, PROGRAM), None);
        splitway
            .line(|line| line.contains("fetcher") && line.contains("may not make"))
            .unwrap();
        assert!(get("/x").body == content(100_000, 1));
        assert!(fetcher(&splitway).is_some_and(|pid| pid != first));
    });
}

#[test]
fn what_a_forbidden_system_call_has_done_to_a_nic_process_is_said() {
    isolated(|site| {
        let mut splitway = serve(&site);
        // As the kernel does, and without a debugger who delays the news.
        signal(splitway.nic(), Signal::SYS).unwrap();
        splitway
            .line(|line| line.contains("NIC process") && line.contains("may not make"))
            .unwrap();
    });
}

#[test]
fn a_host_process_that_does_what_it_may_not_ends_the_server_which_says_why() {
    isolated(|site| {
        let mut splitway = serve(&site);
        assert_eq!(call_within(splitway.host(), CODE), None);
        splitway
            .line(|line| {
                line.contains("host process") && line.contains("system call that it may not make")
            })
            .unwrap();
        assert!(!splitway.wait().unwrap().success());
    });
}

/// Several NIC stacks of many workers take more descriptors than the usual soft limit.
#[test]
fn the_host_process_may_open_as_many_descriptors_as_the_hard_limit_allows() {
    isolated(|site| {
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -Sn 200; ulimit -Hn 700; exec \"$@\"", "sh"]);
        limited.arg(program()).arg("serve").arg(site.root());
        let splitway = Splitway::start(&mut limited).unwrap();
        let path = format!("/proc/{}/limits", splitway.host().as_raw_nonzero());
        let limits = std::fs::read_to_string(path).unwrap();
        let line = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"));
        let limits: Vec<&str> = line.unwrap().split_whitespace().take(2).collect();
        assert_eq!(limits, ["700", "700"]);
    });
}

/// Landlock governs opening, not what is open already.
#[test]
fn no_process_keeps_a_descriptor_that_it_has_inherited() {
    isolated(|site| {
        let secret = site.outside().join("secret");
        std::fs::write(&secret, "of another").unwrap();
        let web = Web::new(|_| Reply::default());
        let log = site.outside().join("access.log");
        let mut inheriting = Command::new("sh");
        inheriting.args(["-c", "exec 7<\"$0\" 9<\"$0\"; exec \"$@\""]);
        inheriting.arg(&secret).arg(program()).arg("serve");
        inheriting.arg(site.root());
        inheriting.arg("--access-log").arg(log);
        inheriting.args(["--origin", &web.url]);
        let splitway = Splitway::start(&mut inheriting).unwrap();
        let processes = [
            Some(splitway.supervisor()),
            Some(splitway.host()),
            Some(splitway.nic()),
            observer(&splitway),
            fetcher(&splitway),
        ];
        for pid in processes.map(Option::unwrap) {
            let open = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap();
            for entry in open {
                let target = std::fs::read_link(entry.unwrap().path()).unwrap_or_default();
                assert_ne!(target, secret, "{pid:?} has it open");
            }
        }
    });
}

/// The memory of a process that is its own to read and write, piece by piece.
fn each_piece_of_memory(pid: Pid, mut look: impl FnMut(&[u8])) {
    let process = format!("/proc/{}", pid.as_raw_nonzero());
    let maps = std::fs::read_to_string(format!("{process}/maps")).unwrap();
    let memory = File::open(format!("{process}/mem")).unwrap();
    let mut buffer = vec![0; 1 << 20];
    for line in maps.lines().filter(|line| line.contains(" r")) {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [mut start, end] =
            [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        while start < end {
            let len = (end - start).min(buffer.len() as u64) as usize;
            // Some mappings belong to devices or to the kernel and cannot be read.
            let Ok(read) = memory.read_at(&mut buffer[..len], start) else {
                break;
            };
            look(&buffer[..read]);
            if read == 0 {
                break;
            }
            start += read as u64;
        }
    }
}

/// How many pieces of the file's content are found anywhere in the memory of a process.
fn content_found_in(pid: Pid, site: &Site, name: &str) -> usize {
    let content = std::fs::read(site.root().join(name)).unwrap();
    // Content lies at addresses divisible by eight or not: every sixteen bytes of it are looked for
    // everywhere.
    let probes: BTreeMap<[u8; 8], [u8; 8]> = content
        .chunks_exact(16)
        .map(|bytes| {
            (
                bytes[..8].try_into().unwrap(),
                bytes[8..].try_into().unwrap(),
            )
        })
        .collect();
    let mut first_bytes = vec![false; 1 << 16];
    for probe in probes.keys() {
        first_bytes[usize::from(u16::from_le_bytes([probe[0], probe[1]]))] = true;
    }
    let mut found = 0;
    each_piece_of_memory(pid, |memory| {
        for bytes in memory.windows(16) {
            if first_bytes[usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))] {
                let (first, second) = bytes.split_at(8);
                found += usize::from(probes.get(first).is_some_and(|expected| expected == second));
            }
        }
    });
    found
}

pub(crate) fn no_content_in_the_host(site: &Site, splitway: &Splitway, names: &[&str]) {
    for name in names {
        assert_eq!(
            content_found_in(splitway.host(), site, name),
            0,
            "of {name} in the host process"
        );
    }
}

#[test]
fn no_byte_of_content_is_ever_found_in_the_memory_of_the_host_process() {
    isolated(|site| {
        let files = [
            site.file("small", 400).unwrap(),
            site.file("large", 30_000).unwrap(),
        ];
        let splitway = serve(&site);
        for server in FAMILIES {
            for file in &files {
                for _ in 0..20 {
                    download(server, file).unwrap();
                }
            }
        }
        no_content_in_the_host(&site, &splitway, &["small", "large"]);
        // The same search does find it where it is.
        assert!(
            content_found_in(splitway.nic(), &site, "large") > 0,
            "in the NIC process"
        );
    });
}
