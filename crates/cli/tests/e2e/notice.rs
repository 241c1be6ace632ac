//! Notifications for a service manager.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testbed::namespace::isolated;
use testbed::process::signal;
use testbed::splitway::{HTTP_V4, Splitway};

use crate::config::configuration;
use crate::support::{SOON, ctl, program, started};

/// How long the manager would wait for a sign of life.
const WATCHDOG: Duration = Duration::from_millis(400);

/// The next notice that is no sign of life.
fn notice(manager: &UnixDatagram) -> String {
    loop {
        let text = received(manager, SOON).expect("a notice");
        if text != "WATCHDOG=1" {
            return text;
        }
    }
}

fn received(manager: &UnixDatagram, within: Duration) -> Option<String> {
    let mut bytes = [0; 4096];
    manager.set_read_timeout(Some(within)).unwrap();
    let length = manager.recv(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..length]).trim().to_owned())
}

#[test]
fn a_service_manager_hears_what_becomes_of_the_server_and_that_its_host_process_lives() {
    isolated(|site| {
        let manager = UnixDatagram::bind(site.outside().join("notify")).unwrap();
        let path = configuration(&site, "");
        let mut splitway = Splitway::start(
            Command::new(program())
                .args(["serve", "--config"])
                .arg(&path)
                .env("NOTIFY_SOCKET", site.outside().join("notify"))
                .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string()),
        )
        .unwrap();
        let ready = notice(&manager);
        assert!(
            ready.starts_with("READY=1\nSTATUS=serves port 80 of 10.77.0.2"),
            "{ready}"
        );

        let (done, said) = ctl("reload", None);
        assert!(done, "{said}");
        let reloading = notice(&manager);
        assert!(
            reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="),
            "{reloading}"
        );
        assert_eq!(notice(&manager), ready);
        // One that is no good is over as well.
        configuration(&site, "typo = 1\n");
        assert!(!ctl("reload", None).0);
        assert!(notice(&manager).starts_with("RELOADING=1\n"));
        assert_eq!(notice(&manager), ready);

        // It is the host process that lives: the supervisor alone is not enough.
        for _ in 0..3 {
            assert_eq!(received(&manager, SOON).as_deref(), Some("WATCHDOG=1"));
        }
        signal(splitway.host(), Signal::STOP).unwrap();
        let stopped = Instant::now();
        while received(&manager, 2 * WATCHDOG).is_some() {
            assert!(
                stopped.elapsed() < SOON,
                "signs of life of a process that is stopped"
            );
        }
        signal(splitway.host(), Signal::CONT).unwrap();
        assert_eq!(received(&manager, SOON).as_deref(), Some("WATCHDOG=1"));

        assert!(splitway.end_with(Signal::TERM).unwrap().success());
        assert!(notice(&manager).starts_with("STOPPING=1\n"));
    });
}

#[test]
fn a_manager_waits_as_long_as_downloads_may_take_and_hears_nothing_else_meanwhile() {
    isolated(|site| {
        let large = site.file("large", 30_000_000).unwrap();
        let manager = UnixDatagram::bind(site.outside().join("notify")).unwrap();
        let path = configuration(&site, "[operation]\ndrain_timeout = \"20m\"\n");
        let mut splitway = Splitway::start(
            Command::new(program())
                .args(["serve", "--config"])
                .arg(&path)
                .env("NOTIFY_SOCKET", site.outside().join("notify")),
        )
        .unwrap();
        assert!(notice(&manager).starts_with("READY=1\n"));
        let mut download = started(HTTP_V4, &large);
        download.read_file_part(&large, 0..100_000).unwrap();
        signal(splitway.supervisor(), Signal::QUIT).unwrap();
        assert_eq!(notice(&manager), "STOPPING=1\nSTATUS=ends");
        let minutes = |count: u64| count * 60_000_000;
        let in_time = extension_us(&manager);
        assert!(
            (minutes(19)..minutes(22)).contains(&in_time),
            "{in_time} us"
        );

        // More time, of which one notification can say an hour; none says that the server is ready.
        configuration(&site, "[operation]\ndrain_timeout = \"2h\"\n");
        let (done, said) = ctl("reload", None);
        assert!(done, "{said}");
        assert_eq!(extension_us(&manager), minutes(60));
        configuration(&site, "typo = 1\n");
        assert!(!ctl("reload", None).0);

        download
            .read_file_part(&large, 100_000..large.size())
            .unwrap();
        drop(download);
        assert!(splitway.wait().unwrap().success());
        // What the processes may need to end.
        assert!(extension_us(&manager) < minutes(5));
        manager.set_nonblocking(true).unwrap();
        let more = manager.recv(&mut [0; 4096]);
        assert!(more.is_err(), "a notice after the end");
    });
}

/// How long the manager is asked to wait by the next notice, in microseconds.
fn extension_us(manager: &UnixDatagram) -> u64 {
    let text = notice(manager);
    let number = text.strip_prefix("EXTEND_TIMEOUT_USEC=");
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn a_manager_that_is_gone_is_no_reason_to_end() {
    isolated(|site| {
        let file = site.file("file", 5000).unwrap();
        let mut splitway = Splitway::start(
            Command::new(program())
                .arg("serve")
                .arg(site.root())
                .env("NOTIFY_SOCKET", site.outside().join("gone")),
        )
        .unwrap();
        testbed::http::download(HTTP_V4, &file).unwrap();
        splitway
            .line(|line| line.contains("service manager could not be notified"))
            .unwrap();
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
    });
}
