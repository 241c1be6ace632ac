//! Access and error logs, whatever becomes of their files and of who writes them.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use testbed::http::Connection;
use testbed::namespace::isolated;
use testbed::process::{await_end, run, signal};
use testbed::site::Site;
use testbed::splitway::{HTTP_V4, HTTP_V6, Splitway};
use testbed::wait;

use crate::config::{configuration, serve_configured};
use crate::deaths::host_counter;
use crate::metrics::{ADMIN, WORKER_BYTES, awaited};
use crate::support::{FAMILIES, SOON, ctl, kill_nic, observer, program, serve_with, sh, started};

/// Lines of a log, once they are so many.
#[track_caller]
fn lines(path: &Path, count: usize) -> Vec<String> {
    wait::until(
        SOON,
        &format!("{count} lines in {}", path.display()),
        || {
            let text = fs::read_to_string(path).ok()?;
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            (text.ends_with('\n') && lines.len() >= count).then_some(lines)
        },
    )
    .unwrap()
}

/// A site with a file, and a server that logs its accesses; the path of the log.
fn logging(site: &Site, options: &[&str]) -> (Splitway, PathBuf) {
    let log = site.outside().join("access.log");
    let mut all = vec!["--access-log", log.to_str().unwrap()];
    all.extend(options);
    (serve_with(site, &all), log.clone())
}

/// Requests whose lines are known, each on a connection of its own: what is sent, and with TLS or
/// without.
fn ask(site: &Site) {
    let file = site.file("clip.mp4", 3_000_000).unwrap();
    for server in FAMILIES {
        let mut connection = Connection::open(server).unwrap();
        connection
            .send(
                b"GET /clip.mp4?q=%22 HTTP/1.1\r\nHost: example.org:80\r\nRange: \
                    bytes=10-2000009\r\nReferer: http://example.net/\"x\"\r\nUser-Agent: \
                    na\xc3\xafve \\ 1.0\r\n\r\n",
            )
            .unwrap();
        assert_eq!(connection.read_head().unwrap().status, 206);
        connection.read_file_part(&file, 10..2_000_010).unwrap();
        connection
            .send(b"HEAD /clip.mp4 HTTP/1.1\r\nHost:\r\n\r\n")
            .unwrap();
        connection.read_file_head(&file).unwrap();
        connection.send(b"nonsense\r\n\r\n").unwrap();
        assert_eq!(connection.read_head().unwrap().status, 400);
    }
    let mut curl = Command::new("curl");
    curl.args(["-q", "--silent", "--insecure", "--tls-max", "1.2", "-o"]);
    curl.args(["/dev/null", "--max-time", "20", "--user-agent", "curl"]);
    curl.args(["--ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256"]);
    run(curl.arg("https://10.77.0.2/clip.mp4")).unwrap();
}

const TLS: [&str; 5] = ["--listen", "80", "--tls-listen", "443", "--tls-self-signed"];

#[test]
fn lines_in_combined_form_are_those_of_nginx() {
    isolated(|site| {
        let (mut splitway, log) = logging(&site, &TLS);
        ask(&site);
        let lines = lines(&log, 7);
        let mut without_time = Vec::new();
        for line in &lines {
            let (before, rest) = line.split_once('[').unwrap();
            let (time, after) = rest.split_once(']').unwrap();
            let mut date = Command::new("date");
            date.args(["--utc", "--date"])
                .arg(time.replacen(':', " ", 1).replace('/', " "));
            let logged: u64 = run(date.arg("+%s")).unwrap().trim().parse().unwrap();
            let now: u64 = sh("date +%s").trim().parse().unwrap();
            assert!(logged <= now && logged + 60 > now, "{line}");
            without_time.push(format!("{before}{after}"));
        }
        let bad = |line: &str| line.rsplit(' ').nth(2).unwrap().to_owned();
        let mut expected = Vec::new();
        for (address, number) in [("10.77.0.1", 2), ("fd77::1", 5)] {
            let size = bad(&without_time[number]);
            expected.extend([
                format!(
                    "{address} - -  \"GET /clip.mp4?q=%22 HTTP/1.1\" 206 2000000 \
                     \"http://example.net/\\x22x\\x22\" \"na\\xC3\\xAFve \\x5C 1.0\""
                ),
                format!("{address} - -  \"HEAD /clip.mp4 HTTP/1.1\" 200 0 \"-\" \"-\""),
                format!("{address} - -  \"nonsense\" 400 {size} \"-\" \"-\""),
            ]);
        }
        expected
            .push(r#"10.77.0.1 - -  "GET /clip.mp4 HTTP/2.0" 200 3000000 "-" "curl""#.to_owned());
        assert_eq!(without_time, expected);
        splitway.end_with(Signal::TERM).unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap().lines().count(), 7);
    });
}

#[test]
fn lines_in_json_have_everything() {
    isolated(|site| {
        let mut options = vec!["--access-log-format", "json"];
        options.extend(TLS);
        let (mut splitway, log) = logging(&site, &options);
        ask(&site);
        let file = site.file("large", 50_000_000).unwrap();
        let mut left = started(HTTP_V4, &file);
        left.read_file_part(&file, 0..1_000_000).unwrap();
        drop(left);
        let lines = lines(&log, 8);
        let values: Vec<serde_json::Value> = lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let mut connections = BTreeSet::new();
        for value in &values {
            let number = |name: &str| value[name].as_u64();
            connections.insert(number("connection").unwrap());
            assert!(number("first_byte_us").unwrap() <= number("total_us").unwrap());
            assert!(number("total_us").unwrap() < SOON.as_micros() as u64);
            assert!(number("remote_port").unwrap() > 1023);
            assert!(number("retransmissions").is_some());
            assert!(value["time"].as_str().unwrap().starts_with("20"), "{value}");
            assert_eq!(value.as_object().unwrap().len(), 26, "{value}");
        }
        assert_eq!(connections.len(), 4);
        let known = |value: &serde_json::Value| {
            let mut value = value.clone();
            let clock = [
                "time",
                "remote_port",
                "connection",
                "first_byte_us",
                "total_us",
                "retransmissions",
            ];
            for name in clock {
                value.as_object_mut().unwrap().remove(name);
            }
            value
        };
        let first = serde_json::json!({
            "remote_addr": "fd77::1", "peer_addr": null, "connection_request": 1, "method": "GET",
            "target": "/clip.mp4?q=%22",
            "protocol": "HTTP/1.1", "host": "example.org:80", "site": null, "status": 206,
            "body_bytes": 2_000_000,
            "offloaded_bytes": 2_000_000, "range": "bytes=10-2000009",
            "referer": "http://example.net/\"x\"",
            "user_agent": "naïve \\ 1.0", "content_coding": null, "cache": null, "cut_short": false,
            "tls_version": null,
            "tls_cipher": null, "tls_resumed": null,
        });
        assert_eq!(known(&values[3]), first);
        let nonsense = known(&values[5]);
        assert_eq!(
            (&nonsense["target"], &nonsense["method"]),
            (&"nonsense".into(), &().into())
        );
        assert_eq!(
            (
                &nonsense["connection_request"],
                &nonsense["offloaded_bytes"]
            ),
            (&3.into(), &0.into())
        );
        assert_eq!(values[6]["tls_version"], "TLSv1.2");
        assert_eq!(values[6]["tls_cipher"], "AES-128-GCM");
        assert_eq!(values[6]["tls_resumed"], false);
        let left = known(&values[7]);
        assert_eq!(
            (&left["cut_short"], &left["status"]),
            (&true.into(), &200.into())
        );
        let bytes = left["body_bytes"].as_u64().unwrap();
        assert!((1_000_000..50_000_000).contains(&bytes), "{bytes}");
        assert_eq!(left["offloaded_bytes"], bytes);
        splitway.end_with(Signal::TERM).unwrap();
    });
}

#[test]
fn logs_are_renamed_and_reopened_without_losing_a_line() {
    isolated(|site| {
        let file = site.file("file", 1_000).unwrap();
        let errors = site.outside().join("error.log");
        let (mut splitway, log) = logging(
            &site,
            &["--error-log", errors.to_str().unwrap(), "--log", "info"],
        );
        let mut connections: Vec<_> = (0..4).map(|_| Connection::open(HTTP_V6).unwrap()).collect();
        let mut asked = 0;
        for round in 0..10 {
            for number in 0..200 {
                connections[number % 4]
                    .send(format!("GET /file?{asked} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes())
                    .unwrap();
                connections[number % 4].read_file(&file).unwrap();
                asked += 1;
                if number == 100 {
                    for log in [&log, &errors] {
                        fs::rename(log, log.with_extension(format!("{round}"))).unwrap();
                    }
                    match round % 2 {
                        0 => {
                            let mut ctl = Command::new(program());
                            let said = run(ctl.args(["ctl", "reopen"])).unwrap();
                            assert_eq!(said, "logs reopened\n");
                            assert!(log.exists() && errors.exists());
                        }
                        _ => signal(splitway.supervisor(), Signal::USR1).unwrap(),
                    }
                    let is_there = || (log.exists() && errors.exists()).then_some(());
                    wait::until(SOON, "logs", is_there).unwrap();
                }
            }
        }
        // The end of a connection acknowledges what it has brought.
        drop(connections);
        wait::until(SOON, "the last lines", || {
            let text = fs::read_to_string(&log).ok()?;
            let mut last = asked - 4..asked;
            last.all(|number| text.contains(&format!("file?{number} ")))
                .then_some(())
        })
        .unwrap();
        splitway.end_with(Signal::TERM).unwrap();
        let mut seen = Vec::new();
        for round in 0..=10 {
            let path = match round {
                10 => log.clone(),
                round => log.with_extension(format!("{round}")),
            };
            let text = fs::read_to_string(path).unwrap();
            assert!(text.is_empty() || text.ends_with('\n'));
            seen.extend(text.lines().map(|line| {
                let (_, rest) = line.split_once("GET /file?").unwrap();
                assert!(rest.ends_with(" HTTP/1.1\" 200 1000 \"-\" \"-\""), "{line}");
                rest.split(' ').next().unwrap().parse::<u32>().unwrap()
            }));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..asked).collect::<Vec<_>>());
        // What the processes say at the start is in the first one.
        let said = fs::read_to_string(errors.with_extension("0")).unwrap();
        assert!(
            said.contains("INFO") && said.contains("memory for content"),
            "{said}"
        );
        assert!(!said.contains('\x1b'), "no colours: {said}");
        let printed = splitway.output().join("\n");
        assert!(!printed.contains("memory for content"), "{printed}");
    });
}

/// What the file says of logs and metrics takes effect with a reload, in the midst of a download.
#[test]
fn logs_metrics_and_the_level_change_on_reload() {
    isolated(|site| {
        sh("ip link set lo up");
        let large = site.file("large", 30_000_000).unwrap();
        let file = site.file("file", 1_000).unwrap();
        let outside = |name: &str| site.outside().join(name);
        let [first, second, errors] = ["logs/first", "second", "errors"].map(outside);
        fs::create_dir(outside("logs")).unwrap();
        let reload = |said: &str| {
            let error = errors.display();
            configuration(&site, &format!("[logs]\nerror = \"{error}\"\n{said}"));
            let (done, said) = ctl("reload", None);
            assert!(done && !said.contains("restart"), "{said}");
        };
        let get = || Connection::open(HTTP_V4).unwrap().get(&file).unwrap();

        // Nothing is logged at first but errors, and nothing is watched.
        let path = configuration(
            &site,
            &format!("[logs]\nerror = \"{}\"\n", errors.display()),
        );
        let mut splitway = serve_configured(&path);
        let mut download = started(HTTP_V4, &large);
        get();

        reload(&format!("access = \"{}\"\n", first.display()));
        get();
        assert!(lines(&first, 1)[0].ends_with("\"GET /file HTTP/1.1\" 200 1000 \"-\" \"-\""));

        // A log that goes on as before is not in the way of what else is read again.
        fs::rename(outside("logs"), outside("elsewhere")).unwrap();
        reload(&format!(
            "access = \"{}\"\n[http]\nranges_max = 3\n",
            first.display()
        ));
        fs::rename(outside("elsewhere"), outside("logs")).unwrap();

        reload(&format!(
            "access = \"{}\"\naccess_format = \"json\"\n[operation]\nadmin = \"{ADMIN}\"\n",
            second.display()
        ));
        get();
        assert!(lines(&second, 1)[0].starts_with('{'));
        // The listener answers, and counts of both stacks reach it.
        awaited(&[
            ("splitway_access_responses_total{status=\"200\"}", 1.0),
            (WORKER_BYTES, 1.0),
        ]);

        // An address that is taken leaves everything as it was.
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = taken.local_addr().unwrap();
        configuration(&site, &format!("[operation]\nadmin = \"{taken}\"\n"));
        let (done, said) = ctl("reload", None);
        assert!(!done && said.contains("stays"), "{said}");
        get();
        lines(&second, 2);

        // No access log and no metrics any more; each process says more.
        reload("level = \"debug\"\n");
        // The observer that listened may end after the answer.
        let is_closed = || TcpStream::connect(ADMIN).is_err().then_some(());
        wait::until(SOON, "nothing listens", is_closed).unwrap();
        let changed = |line: &&String| line.contains("the log level has changed");
        wait::until(SOON, "lines of supervisor, host and NIC process", || {
            // The host process may hear of the level behind a request.
            get();
            let all = lines(&errors, 1);
            let is_host_heard = all.iter().any(|line| line.contains("DEBUG server::"));
            (is_host_heard && all.iter().filter(changed).count() == 3).then_some(())
        })
        .unwrap();
        assert_eq!((lines(&first, 1).len(), lines(&second, 2).len()), (1, 2));

        download.read_file_part(&large, 0..large.size()).unwrap();
        download.finish().unwrap();
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
        assert_eq!(host_counter(&mut splitway, "connections_broken"), 0);
    });
}

#[test]
fn an_observer_that_dies_is_followed_by_another_and_no_download_notices() {
    isolated(|site| {
        let file = site.file("file", 2_000_000).unwrap();
        let (mut splitway, log) = logging(&site, &[]);
        let mut download = started(HTTP_V4, &file);
        for round in 0..4 {
            let before = observer(&splitway).unwrap();
            signal(before, Signal::KILL).unwrap();
            let part = round * 500_000..(round + 1) * 500_000;
            download.read_file_part(&file, part).unwrap();
            Connection::open(HTTP_V6).unwrap().get(&file).unwrap();
            // What was said while there was none, the next one has heard. What one had in hand that
            // was killed, such as the end of the download, is lost.
            wait::until(SOON, "a line of what was asked for", || {
                let text = fs::read_to_string(&log).ok()?;
                let asked = text.lines().filter(|line| line.starts_with("fd77::1 "));
                (asked.count() == round as usize + 1).then_some(())
            })
            .unwrap();
            let is_another = || observer(&splitway).filter(|&pid| pid != before);
            wait::until(SOON, "another observer", is_another).unwrap();
        }
        let output = splitway.output().join("\n");
        assert!(
            output.contains("SIGKILL") && output.contains("observer"),
            "{output}"
        );
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
    });
}

#[test]
fn a_full_disk_stops_no_download_and_the_log_goes_on_when_there_is_room() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let small = site.file("small", 1_000).unwrap();
        let disk = site.outside().join("disk");
        fs::create_dir(&disk).unwrap();
        sh(&format!(
            "mount -t tmpfs -o size=64k tmpfs {}",
            disk.display()
        ));
        let log = disk.join("access.log");
        let mut splitway = serve_with(&site, &["--access-log", log.to_str().unwrap()]);
        let mut download = started(HTTP_V4, &file);
        let mut connection = Connection::open(HTTP_V4).unwrap();
        connection.get(&small).unwrap();
        lines(&log, 1);
        let ballast = disk.join("ballast");
        let filled = fs::write(&ballast, vec![0; 1 << 20]);
        assert!(filled.is_err(), "the disk is full");
        let asked = 2_000;
        for _ in 0..asked {
            connection.get(&small).unwrap();
        }
        download.read_file_part(&file, 0..file.size()).unwrap();
        let warning = |line: &str| line.contains("access.log") && line.contains("No space left");
        splitway.line(warning).unwrap();
        let written = fs::read_to_string(&log).unwrap().lines().count();
        assert!(written < asked / 2, "{written}");
        fs::remove_file(&ballast).unwrap();
        // The whole of it does not fit here, but elsewhere.
        fs::rename(&log, disk.join("access.log.1")).unwrap();
        fs::remove_file(disk.join("access.log.1")).unwrap();
        run(Command::new(program()).args(["ctl", "reopen"])).unwrap();
        connection.get(&small).unwrap();
        let last = |line: &str| line.contains("written again");
        splitway.line(last).unwrap();
        let warnings = splitway
            .output()
            .iter()
            .filter(|line| warning(line))
            .count();
        assert_eq!(warnings, 1, "it is logged once");
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
    });
}

#[test]
fn a_log_that_cannot_be_reopened_stays_as_it_is() {
    isolated(|site| {
        let file = site.file("file", 1_000).unwrap();
        let directory = site.outside().join("logs");
        fs::create_dir(&directory).unwrap();
        let log = directory.join("access.log");
        let mut splitway = serve_with(&site, &["--access-log", log.to_str().unwrap()]);
        let moved = site.outside().join("moved");
        fs::rename(&directory, &moved).unwrap();
        let said = Command::new(program())
            .args(["ctl", "reopen"])
            .output()
            .unwrap();
        assert!(!said.status.success());
        let said = String::from_utf8(said.stderr).unwrap();
        assert!(
            said.contains("access.log") && said.contains("Make its directory"),
            "{said}"
        );
        Connection::open(HTTP_V4).unwrap().get(&file).unwrap();
        assert_eq!(lines(&moved.join("access.log"), 1).len(), 1);
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
    });
}

#[test]
fn the_observer_may_do_nothing_but_write_what_it_was_given() {
    isolated(|site| {
        let (splitway, _) = logging(&site, &[]);
        let observer = observer(&splitway).unwrap();
        let status = |name| crate::isolation::status(observer, name).unwrap();
        assert_eq!(status("CapEff"), "0000000000000000");
        assert_eq!(status("CapPrm"), "0000000000000000");
        assert_eq!(status("NoNewPrivs"), "1");
        let limits = fs::read_to_string(format!("/proc/{}/limits", observer.as_raw_nonzero()));
        let core = |line: &&str| line.starts_with("Max core file size");
        let limits = limits.unwrap();
        let core = limits.lines().find(core).unwrap();
        assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
        assert_eq!(
            crate::isolation::open_within(observer, site.root()),
            Err(crate::isolation::EPERM)
        );
    });
}

#[test]
fn the_failure_that_ends_a_server_is_in_the_error_log() {
    isolated(|site| {
        for is_observed in [true, false] {
            let log = site.outside().join(format!("error-{is_observed}.log"));
            let mut splitway = serve_with(&site, &["--error-log", log.to_str().unwrap()]);
            if !is_observed {
                signal(observer(&splitway).unwrap(), Signal::KILL).unwrap();
            }
            signal(splitway.host(), Signal::KILL).unwrap();
            assert_eq!(splitway.wait().unwrap().code(), Some(1));
            // The line may be read after the end of the process.
            let is_why = |line: &str| line.starts_with("splitway: ") && line.contains("SIGKILL");
            let why = splitway.line(is_why).unwrap();
            let why = why.trim_start_matches("splitway: ");
            assert!(why.contains("host process"), "{why}");
            let written = fs::read_to_string(&log).unwrap();
            let line = format!("the server ends: {why}");
            assert_eq!(written.matches(&line).count(), 1, "{written}");
        }
    });
}

#[test]
fn a_start_that_fails_is_in_the_error_log() {
    isolated(|site| {
        site.file("file", 1_000).unwrap();
        let log = site.outside().join("error.log");
        // Before any process is started, before any serves, and when all do.
        let certificate = "--tls-listen 443 --tls-cert nowhere.pem --tls-key nowhere.key";
        for (options, part) in [
            (certificate, "nowhere.key"),
            ("--dev nowhere --addr 192.0.2.1/24", "nowhere"),
            ("--control-socket nowhere/control", "nowhere/control"),
        ] {
            let mut command = Command::new(program());
            command
                .arg("serve")
                .arg(site.root())
                .args(["--error-log"])
                .arg(&log);
            let output = command.args(options.split(' ')).output().unwrap();
            assert!(!output.status.success());
            let complaint = String::from_utf8(output.stderr).unwrap();
            let why = complaint
                .lines()
                .find_map(|line| line.strip_prefix("splitway: "));
            let why = why.expect(&complaint);
            assert!(why.contains(part), "{complaint}");
            let written = fs::read_to_string(&log).unwrap();
            assert!(
                written.contains(&format!("the server ends: {why}")),
                "{written}"
            );
            fs::remove_file(&log).unwrap();
        }
    });
}

/// What was reported before the supervisor was killed reaches the file, though the observer had not
/// taken it.
#[test]
fn an_observer_writes_what_has_arrived_when_its_supervisor_is_killed() {
    isolated(|site| {
        let log = site.outside().join("error.log");
        let mut splitway = serve_with(&site, &["--error-log", log.to_str().unwrap()]);
        let observer = observer(&splitway).unwrap();
        signal(observer, Signal::STOP).unwrap();
        kill_nic(&splitway);
        let serves = |line: &str| line.contains("serves in the place of the one before");
        splitway.line(serves).unwrap();
        signal(splitway.supervisor(), Signal::KILL).unwrap();
        signal(observer, Signal::CONT).unwrap();
        wait::until(SOON, "the line about the NIC process", || {
            let written = fs::read_to_string(&log).ok()?;
            written.contains("another one is started").then_some(())
        })
        .unwrap();
        await_end(observer, SOON).unwrap();
    });
}
