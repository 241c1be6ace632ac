//! The NIC process dies, or is replaced, and only the counters notice.

mod heartbeat;

use std::fs;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send,
};
use rustix::process::{Pid, Signal};
use testbed::http::{Connection, download};
use testbed::namespace::{isolated, isolated_long};
use testbed::process::{await_end, signal};
use testbed::procfs::{children, processes};
use testbed::site::Site;
use testbed::splitway::{HTTP_V4, Splitway};
use testbed::{Failure, wait};

use crate::deaths::{self, DOWNLOADS, host_counter, lose_packets};
use crate::support::{FAMILIES, Random, SOON, ctl, program, serve, serve_with, started};

/// The NIC processes that there are, even those that have only just been started: mostly one.
fn nics(splitway: &Splitway) -> Vec<Pid> {
    let mut found = children(splitway.supervisor()).unwrap();
    found.retain(|pid| *pid != splitway.host());
    found
}

/// The NIC process that is said to serve now.
pub(crate) fn serving(said: &str) -> Option<Pid> {
    let (_, rest) = said.split_once("nic process ")?;
    let (digits, _) = rest.split_once(": serves")?;
    Pid::from_raw(digits.parse().ok()?)
}

/// Waits for a NIC process that is not this one, and takes commands.
fn another_nic(splitway: &mut Splitway, before: Pid) -> Pid {
    let line = splitway
        .line(|line| serving(line).is_some_and(|pid| pid != before))
        .unwrap();
    serving(&line).unwrap()
}

/// Kills the NIC process at random moments, so many times, while two hundred clients download over
/// links that lose packets.
fn downloads_outlive(site: &Site, deaths: usize) {
    let mut random = Random::seeded();
    let files = deaths::files(site);
    let mut splitway = serve_with(site, &["--report-json"]);
    lose_packets();
    deaths::downloads_outlive(&splitway, FAMILIES, &files, deaths, &mut random, || {
        // There may be none: then it was not to be.
        let nic = nics(&splitway).pop();
        nic.is_some_and(|nic| signal(nic, Signal::KILL).is_ok())
    });
    splitway.end_with(Signal::TERM).unwrap();
    // Each client has had one connection from the beginning to the end.
    assert_eq!(
        host_counter(&mut splitway, "connections_accepted"),
        DOWNLOADS as u64
    );
    let restarts = host_counter(&mut splitway, "nic_restarts");
    println!("{restarts} of them of NIC processes that served");
    // Some died before they served, but not most.
    let deaths = deaths as u64;
    assert!((deaths / 2..=deaths).contains(&restarts), "{restarts}");
}

#[test]
fn two_hundred_downloads_outlive_twenty_nic_processes() {
    isolated(|site| downloads_outlive(&site, 20));
}

#[test]
#[ignore = "takes minutes"]
fn two_hundred_downloads_outlive_a_thousand_nic_processes() {
    isolated_long(|site| downloads_outlive(&site, 1000));
}

/// The root has gone, and with it the NIC process.
fn without_nic_and_root(site: &Site, splitway: &mut Splitway) -> PathBuf {
    let away = site.outside().join("root-away");
    fs::rename(site.root(), &away).unwrap();
    signal(splitway.nic(), Signal::KILL).unwrap();
    let root = site.root().display().to_string();
    splitway
        .line(|line| line.contains("no other NIC process") && line.contains(&root))
        .unwrap();
    away
}

#[test]
fn a_response_whose_file_changes_while_there_is_no_nic_process_is_aborted() {
    isolated(|site| {
        let [same, rewritten, replaced, removed] = ["same", "rewritten", "replaced", "removed"]
            .map(|name| site.file(name, 50_000_000).unwrap());
        let mut splitway = serve(&site);
        let mut connections = [&same, &rewritten, &replaced, &removed].map(|file| {
            let mut connection = started(HTTP_V4, file);
            connection.read_file_part(file, 0..1_000_000).unwrap();
            connection
        });
        let away = without_nic_and_root(&site, &mut splitway);
        // Of the same size: only the content differs, and the times.
        let other = vec![0x5a; 50_000_000];
        fs::write(away.join("rewritten"), &other).unwrap();
        fs::write(away.join("replacement"), &other).unwrap();
        fs::rename(away.join("replacement"), away.join("replaced")).unwrap();
        fs::remove_file(away.join("removed")).unwrap();
        fs::rename(&away, site.root()).unwrap();

        let [goes_on, ends @ ..] = &mut connections;
        goes_on
            .read_file_part(&same, 1_000_000..same.size())
            .unwrap();
        for (connection, file) in ends.iter_mut().zip([&rewritten, &replaced, &removed]) {
            let failure = connection
                .read_file_part(file, 1_000_000..file.size())
                .unwrap_err()
                .to_string();
            assert!(!failure.contains("wrong byte"), "{failure}");
        }
        // And who asks now gets what is there now.
        let mut connection = Connection::open(HTTP_V4).unwrap();
        for name in ["rewritten", "replaced"] {
            connection.send_get(name).unwrap();
            assert_eq!(connection.read_head().unwrap().status, 200);
            let all_new = |offset: u64, bytes: &[u8]| {
                if bytes.iter().all(|byte| *byte == 0x5a) {
                    Ok(())
                } else {
                    Err(Failure::new(format!("an old byte after {offset}")))
                }
            };
            connection.read_body(50_000_000, all_new).unwrap();
        }
        connection.send_get("removed").unwrap();
        assert_eq!(connection.read_head().unwrap().status, 404);
    });
}

#[test]
fn who_asks_while_there_is_no_nic_process_waits() {
    isolated(|site| {
        let file = site.file("file", 3_000_000).unwrap();
        let mut splitway = serve(&site);
        let away = without_nic_and_root(&site, &mut splitway);
        let mut connections = FAMILIES.map(|server| Connection::open(server).unwrap());
        for connection in &mut connections {
            connection.send_get("file").unwrap();
        }
        // They have been heard, and nothing more.
        let nic = splitway.nic();
        fs::rename(&away, site.root()).unwrap();
        let another = another_nic(&mut splitway, nic);
        assert_ne!(another, nic);
        for connection in &mut connections {
            connection.read_file(&file).unwrap();
        }
    });
}

/// `splitway ctl restart-nic`: whether it succeeded, and what it said.
pub(crate) fn restart_nic(socket: &Path) -> (bool, String) {
    ctl("restart-nic", Some(socket))
}

/// The only line of `splitway ctl nics`.
fn the_nic(socket: &Path) -> String {
    let (done, said) = ctl("nics", Some(socket));
    assert!(done && said.lines().count() == 1, "{said}");
    said
}

#[test]
fn what_keeps_a_nic_process_from_serving_is_logged_once_and_answered_every_time() {
    isolated(|site| {
        let file = site.file("file", 1000).unwrap();
        let socket = site.outside().join("control");
        let control = [
            "--workers",
            "2",
            "--control-socket",
            socket.to_str().unwrap(),
        ];
        let mut splitway = serve_with(&site, &control);
        let nic = splitway.nic().as_raw_nonzero();
        let said = the_nic(&socket);
        assert!(said.starts_with("NIC process: serves for "), "{said}");
        assert!(said.contains("s, 2 workers, process"), "{said}");
        assert!(said.trim_end().ends_with(&nic.to_string()), "{said}");

        let away = without_nic_and_root(&site, &mut splitway);
        // The wait is as long as this after several attempts.
        wait::until(SOON, "the wait before the next attempt", || {
            let said = the_nic(&socket);
            let (_, wait) = said.split_once("tried again in ")?;
            let root = site.root().display().to_string();
            assert!(
                said.contains("missing for") && said.contains(&root),
                "{said}"
            );
            (!wait.starts_with("0 s")).then_some(())
        })
        .unwrap();
        let complaints = splitway.output().iter();
        let complaints = complaints.filter(|line| line.contains("no other NIC process"));
        assert_eq!(complaints.count(), 1, "{:?}", splitway.output());

        fs::rename(&away, site.root()).unwrap();
        let dead = splitway.nic();
        another_nic(&mut splitway, dead);
        assert!(the_nic(&socket).contains("serves for"));
        download(HTTP_V4, &file).unwrap();
    });
}

#[test]
fn memory_that_a_later_nic_process_cannot_have_is_named_until_it_can() {
    isolated(|site| {
        let file = site.file("file", 1000).unwrap();
        let socket = site.outside().join("control");
        let options = [
            "--cache",
            "1G",
            "--control-socket",
            socket.to_str().unwrap(),
        ];
        let mut splitway = serve_with(&site, &options);
        let supervisor = Some(splitway.supervisor());
        let limit = |bytes| {
            let now = rustix::process::prlimit(
                supervisor,
                rustix::process::Resource::As,
                rustix::process::Rlimit {
                    current: bytes,
                    maximum: None,
                },
            );
            now.unwrap()
        };
        // More than the supervisor needs, and less than the cache.
        limit(Some(512 << 20));
        let nic = splitway.nic();
        // It is asked for while the one that serves goes on.
        let (done, said) = restart_nic(&socket);
        assert!(!done && said.contains("--cache 1G"), "{said}");
        assert!(said.contains("ulimit -v"), "{said}");
        download(HTTP_V4, &file).unwrap();
        assert_eq!(splitway.nic(), nic);

        signal(nic, Signal::KILL).unwrap();
        let said = wait::until(SOON, "the reason", || {
            let said = the_nic(&socket);
            said.contains("--cache 1G").then_some(said)
        });
        let said = said.unwrap();
        assert!(said.contains("missing for"), "{said}");
        limit(None);
        another_nic(&mut splitway, nic);
        download(HTTP_V4, &file).unwrap();
    });
}

#[test]
fn a_default_cache_that_would_take_all_memory_is_smaller() {
    isolated(|site| {
        let file = site.file("file", 3_000_000).unwrap();
        let socket = site.outside().join("control");
        let mut command = Command::new("sh");
        let script = "ulimit -v 800000 && exec \"$0\" serve \"$1\" --control-socket \"$2\"";
        command.args(["-c", script]).arg(program());
        command.arg(site.root()).arg(&socket);
        let mut splitway = Splitway::start(&mut command).unwrap();
        // Half of it, in whole megabytes.
        let is_smaller = |line: &str| line.contains("the cache has 390M instead of");
        let line = splitway.line(is_smaller).unwrap();
        assert!(line.contains("ulimit -v"), "{line}");
        download(HTTP_V4, &file).unwrap();
        // The next one has as much.
        let (done, said) = restart_nic(&socket);
        assert!(done, "{said}");
        download(HTTP_V4, &file).unwrap();
        let lines = splitway.output().iter();
        assert_eq!(lines.filter(|line| is_smaller(line)).count(), 1);
    });
}

#[test]
fn a_nic_process_is_replaced_in_the_middle_of_downloads() {
    isolated(|site| {
        let file = site.file("file", 80_000_000).unwrap();
        let socket = site.outside().join("control");
        let mut splitway = serve_with(
            &site,
            &[
                "--report-json",
                "--control-socket",
                socket.to_str().unwrap(),
            ],
        );
        let mode = fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "no other user may connect");
        let mut connections = FAMILIES.map(|server| started(server, &file));
        let mut nic = splitway.nic();
        for round in 0..4 {
            for connection in &mut connections {
                let part = round * 20_000_000..(round + 1) * 20_000_000;
                connection.read_file_part(&file, part).unwrap();
            }
            let (done, said) = restart_nic(&socket);
            assert!(done, "{said}");
            await_end(nic, SOON).unwrap();
            nic = serving(&said).unwrap();
            assert_eq!(nics(&splitway), [nic]);
        }
        for connection in &mut connections {
            connection.finish().unwrap();
            connection.read_end().unwrap();
        }
        splitway.end_with(Signal::TERM).unwrap();
        assert!(!socket.exists(), "it goes with the server");
        assert_eq!(host_counter(&mut splitway, "nic_restarts"), 4);
        assert_eq!(host_counter(&mut splitway, "connections_broken"), 0);
        // All of them have told what they did.
        let line = splitway.line(|line| line.starts_with("{\"host\"")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(report["nic"]["file_sent_bytes"].as_u64().unwrap() >= 2 * file.size());
    });
}

/// The program that a process runs.
fn executable(pid: Pid) -> String {
    let link = fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).unwrap();
    link.display().to_string()
}

/// Puts a program in the place of another at once, as installing does.
fn install(path: &Path, write: impl FnOnce(&Path)) {
    let new = path.with_extension("new");
    write(&new);
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&new, path).unwrap();
}

/// Set where this program is to play a NIC process.
const STRANGER: &str = "SPLITWAY_TEST_STRANGER";

/// Started in the place of a NIC process, says hello in a version that no host stack speaks. Does
/// nothing otherwise.
#[test]
fn plays_a_nic_process_of_another_version() {
    if std::env::var_os(STRANGER).is_none() {
        return;
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 100];
    let pieces = &mut [IoSliceMut::new(&mut bytes)];
    recvmsg(std::io::stdin(), pieces, &mut ancillary, RecvFlags::empty()).unwrap();
    let passed: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(passed) => Some(passed),
            _ => None,
        })
        .flatten()
        .collect();
    let [_settings, host] = &passed[..] else {
        panic!("{passed:?}");
    };
    let hello = b"splitway\x63\0\0\0\x01\0\0\0";
    send(host, hello, SendFlags::empty()).unwrap();
    // Until the host process, or the supervisor, has hung up.
    while matches!(
        recv(host, &mut [0; 100][..], RecvFlags::empty()),
        Ok((1.., _))
    ) {}
}

#[test]
fn an_upgrade_replaces_the_nic_process_unless_it_does_not_fit() {
    isolated(|site| {
        let file = site.file("file", 60_000_000).unwrap();
        let socket = site.outside().join("control");
        let installed = site.outside().join("splitway");
        let copy = |path: &Path| {
            fs::copy(program(), path).unwrap();
        };
        install(&installed, copy);
        let mut splitway = Splitway::serve(
            &installed,
            site.root(),
            [Path::new("--control-socket"), &socket],
        )
        .unwrap();
        let first = splitway.nic();
        let mut connection = started(HTTP_V4, &file);
        connection.read_file_part(&file, 0..10_000_000).unwrap();

        let own = std::env::current_exe().unwrap();
        let stranger = format!(
            "#!/bin/sh\nexport {STRANGER}=1\nexec {} --exact \
             restart::plays_a_nic_process_of_another_version >&2\n",
            own.display()
        );
        for (script, complaint) in [
            (&*stranger, "speaks version 99 of the contract"),
            ("#!/bin/sh\nexit 3\n", "exit code 3"),
            ("no program", "starting the NIC process"),
        ] {
            install(&installed, |path| fs::write(path, script).unwrap());
            let (done, said) = restart_nic(&socket);
            assert!(!done && said.contains(complaint), "{said}");
            wait::until(SOON, "the end of the new one", || {
                (nics(&splitway) == [first]).then_some(())
            })
            .unwrap();
        }
        fs::remove_file(&installed).unwrap();
        let (done, said) = restart_nic(&socket);
        assert!(
            !done && said.contains(installed.to_str().unwrap()),
            "{said}"
        );
        connection
            .read_file_part(&file, 10_000_000..20_000_000)
            .unwrap();

        // One that dies is followed by one of the same program, whatever lies at its path.
        signal(first, Signal::KILL).unwrap();
        let second = another_nic(&mut splitway, first);
        assert!(executable(second).ends_with("splitway (deleted)"));
        connection
            .read_file_part(&file, 20_000_000..40_000_000)
            .unwrap();

        install(&installed, copy);
        let (done, said) = restart_nic(&socket);
        assert!(done, "{said}");
        let third = another_nic(&mut splitway, second);
        assert_eq!(Path::new(&executable(third)), installed);
        connection
            .read_file_part(&file, 40_000_000..file.size())
            .unwrap();
    });
}

#[test]
fn a_server_is_found_by_every_user_who_may_ask_it() {
    isolated(|site| {
        let ctl = || {
            let output = Command::new(program())
                .args(["ctl", "restart-nic"])
                .output()
                .unwrap();
            (
                output.status.code(),
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )
        };
        let (code, said) = ctl();
        assert_eq!(code, Some(2));
        assert!(said.contains("none runs"), "{said}");
        assert!(said.contains("/run/splitway/0: "), "{said}");

        let file = site.file("file", 100_000).unwrap();
        let mut splitway = serve(&site);
        assert_eq!(ctl().0, Some(0));
        let line = splitway.line(|line| line.starts_with("control socket: "));
        let path = line.unwrap()["control socket: ".len()..].to_owned();
        assert!(path.starts_with("/run/splitway/"), "{path}");
        download(HTTP_V4, &file).unwrap();

        // Killed, it leaves its socket behind, which misleads no client.
        splitway.end_with(Signal::KILL).unwrap();
        assert!(Path::new(&path).exists());
        let (code, said) = ctl();
        assert_eq!(code, Some(2));
        assert!(said.contains("none runs"), "{said}");
    });
}

#[test]
fn without_a_nic_process_it_ends_as_with_one() {
    isolated(|site| {
        let file = site.file("file", 50_000_000).unwrap();
        for end in [Signal::TERM, Signal::KILL] {
            let mut splitway = serve(&site);
            let connection = started(HTTP_V4, &file);
            let away = without_nic_and_root(&site, &mut splitway);
            splitway.end_with(end).unwrap();
            drop(connection);
            await_end(splitway.host(), SOON).unwrap();
            wait::until(SOON, "the end of all processes", || {
                let left = processes().unwrap();
                (left.iter().all(|(_, name)| !name.starts_with("splitway"))).then_some(())
            })
            .unwrap();
            fs::rename(&away, site.root()).unwrap();
        }
        let small = site.file("small", 5000).unwrap();
        let _again = serve(&site);
        download(HTTP_V4, &small).unwrap();
    });
}

/// Has a NIC process write nonsense into its rings, as one that is broken would.
fn corrupt_rings(nic: Pid) {
    let process = format!("/proc/{}", nic.as_raw_nonzero());
    let maps = fs::read_to_string(format!("{process}/maps")).unwrap();
    let channel = maps
        .lines()
        .find(|line| line.contains("splitway-channel"))
        .expect("rings");
    let (start, rest) = channel.split_once('-').unwrap();
    let end = rest.split(' ').next().unwrap();
    let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
    let memory = fs::File::options()
        .read(true)
        .write(true)
        .open(format!("{process}/mem"))
        .unwrap();
    // All indices, among everything else: none is ever so large.
    let nonsense = vec![0xff; usize::try_from(end - start).unwrap()];
    memory.write_all_at(&nonsense, start).unwrap();
}

#[test]
fn a_nic_process_that_breaks_its_ring_is_replaced_and_no_download_notices() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let mut splitway = serve(&site);
        let mut connection = started(FAMILIES[0], &file);
        let half = file.size() / 2;
        connection.read_file_part(&file, 0..half).unwrap();
        let nic = splitway.nic();
        // So that it does not mend what is broken, by going on.
        signal(nic, Signal::STOP).unwrap();
        corrupt_rings(nic);
        connection.read_file_part(&file, half..file.size()).unwrap();
        splitway.line(|line| line.contains("is corrupt")).unwrap();
        splitway
            .line(|line| line.contains("serves in the place of the one before"))
            .unwrap();
    });
}
