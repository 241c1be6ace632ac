//! Clients that may not connect: lists of the configuration, `ctl deny`, and fail2ban.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use testbed::namespace::isolated;
use testbed::process::{Process, run, tool};
use testbed::site::Site;
use testbed::splitway::{HTTP_V4, LINK, Splitway};
use testbed::wait;

use crate::config::{configuration, serve_configured};
use crate::stat::host_counted;
use crate::support::{SOON, ctl, program, serve_with, sh, started};

/// The kernel's address on the link, a second one that is added, and that of IPv6.
const CLIENTS: [&str; 3] = ["10.77.0.1", "10.77.0.9", "fd77::1"];

const DENIED: &str = "not at all";

/// What curl gets that connects from this address: the status, or [`DENIED`].
fn status(client: &str, more: &str) -> String {
    let server = match client.contains(':') {
        true => "http://[fd77::2]/file",
        false => "http://10.77.0.2/file",
    };
    let asked = Command::new("curl")
        .args([
            "--silent",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
        ])
        .args(["--connect-timeout", "1.2", "--interface", client])
        .args(more.split_terminator('|'))
        .arg(server)
        .output()
        .unwrap();
    match asked.status.code() {
        Some(0) => String::from_utf8(asked.stdout).unwrap(),
        // It timed out: no answer, not even a refusal.
        Some(28) => DENIED.to_owned(),
        code => panic!("curl from {client}: {code:?}"),
    }
}

fn statuses() -> [String; 3] {
    CLIENTS.map(|client| status(client, ""))
}

fn add_client() {
    sh(&format!("ip addr add {}/24 dev {LINK}", CLIENTS[1]));
}

fn end(mut splitway: Splitway) {
    assert!(splitway.end_with(Signal::TERM).unwrap().success());
}

#[test]
fn networks_of_the_configuration_may_connect_or_not_and_a_reload_ends_connections() {
    isolated(|site| {
        let large = site.file("large", 30_000_000).unwrap();
        site.file("file", 1000).unwrap();
        let file = site.outside().join("denied");
        fs::write(&file, "# nobody yet\n").unwrap();
        let reload = |section: &str| {
            configuration(&site, section);
            ctl("reload", None)
        };
        let section = format!("[firewall]\ndeny_file = \"{}\"\n", file.display());
        let splitway = serve_configured(&configuration(&site, &section));
        add_client();
        assert_eq!(statuses(), ["200", "200", "200"]);

        let mut download = started(HTTP_V4, &large);
        fs::write(&file, "10.77.0.9\nfd77::/64\n").unwrap();
        let (done, said) = reload(&section);
        assert!(
            done && said.contains("firewall: in force now; 0 connections were ended"),
            "{said}"
        );
        assert_eq!(statuses(), ["200", DENIED, DENIED]);
        assert!(host_counted("clients_denied") >= 2);

        // A wrong line changes nothing.
        fs::write(&file, "10.77.0.9\n10.77.0.0/33\n").unwrap();
        let (done, said) = reload(&section);
        assert!(!done && said.contains("line 2: \"10.77.0.0/33\""), "{said}");
        assert_eq!(statuses(), ["200", DENIED, DENIED]);
        download.read_file_part(&large, 0..5_000_000).unwrap();

        let (done, said) = reload("[firewall]\nallow = [\"10.77.0.8/31\"]\n");
        assert!(done && said.contains("1 connection was ended"), "{said}");
        assert!(
            download
                .read_file_part(&large, 5_000_000..large.size())
                .is_err()
        );
        assert_eq!(statuses(), [DENIED, "200", DENIED]);

        let (done, said) = reload("");
        assert!(done, "{said}");
        assert_eq!(statuses(), ["200", "200", "200"]);
        end(splitway);
    });
}

#[test]
fn what_ctl_denies_is_denied_until_it_is_allowed_or_the_time_is_over() {
    isolated(|site| {
        let large = site.file("large", 30_000_000).unwrap();
        site.file("file", 1000).unwrap();
        let splitway = serve_with(&site, &["--deny", "203.0.113.0/24", "2001:db8::/32"]);
        add_client();
        let asked = |command: &str| {
            let (done, said) = ctl(command, None);
            assert!(done, "{command}: {said}");
            said.trim_end().to_owned()
        };
        assert_eq!(
            asked("denied"),
            "no network is denied by `splitway ctl deny`"
        );

        let mut download = started(HTTP_V4, &large);
        let said = asked("deny 10.77.0.1 --for 1h");
        assert_eq!(said, "10.77.0.1 is denied for 1h; 1 connection was ended");
        assert!(download.read_file_part(&large, 0..large.size()).is_err());
        assert_eq!(
            asked("deny fd77::/64"),
            "fd77::/64 is denied until it is allowed"
        );
        assert_eq!(statuses(), [DENIED, "200", DENIED]);
        let listed = asked("denied");
        let lines: Vec<&str> = listed.lines().collect();
        assert!(lines[0].starts_with("10.77.0.1 # for "), "{listed}");
        assert_eq!(lines[1..], ["fd77::/64"]);

        // The list is a file for the same purpose.
        let file = site.outside().join("denied");
        fs::write(&file, &listed).unwrap();
        let toml = site.outside().join("check.toml");
        let (root, file) = (site.root().display(), file.display());
        let text = format!("[nic]\nroot = \"{root}\"\n[firewall]\ndeny_file = \"{file}\"\n");
        fs::write(&toml, text).unwrap();
        run(Command::new(program()).arg("check").arg(&toml)).unwrap();

        let said = asked("allow 10.77.0.1");
        assert_eq!(said, "10.77.0.1 is no longer denied by `splitway ctl deny`");
        assert_eq!(
            asked("allow 10.77.0.1"),
            "10.77.0.1 was not denied by `splitway ctl deny`"
        );
        assert!(asked("allow 203.0.113.7").contains("but the configuration denies it"));
        assert_eq!(
            asked("deny fd77::/64 --for 1s"),
            "fd77::/64 is denied for 1s"
        );
        wait::until(SOON, "the end of a denial", || {
            (status(CLIENTS[2], "") == "200").then_some(())
        })
        .unwrap();
        assert_eq!(statuses(), ["200", "200", "200"]);

        for (wrong, complaint) in [
            ("deny 10.77.0.0/33", "names no addresses"),
            ("deny host", "names no addresses"),
            ("deny 10.77.0.1 --for 5", "is no time"),
            ("allow", "<NETWORK>"),
        ] {
            let (done, said) = ctl(wrong, None);
            assert!(!done && said.contains(complaint), "{wrong}: {said}");
        }
        end(splitway);
    });
}

#[test]
fn a_client_that_a_proxy_names_is_denied_by_its_own_address() {
    isolated(|site| {
        site.file("file", 1000).unwrap();
        let text = "[http]\nforwarded_from = [\"10.77.0.1\"]\nhttp2_prior_knowledge = true\n\
                    [firewall]\ndeny = [\"192.0.2.7\"]\n";
        let splitway = serve_configured(&configuration(&site, text));
        add_client();
        let named = |client: &str, version: &str| {
            let field = format!("{version}|--header|X-Forwarded-For: {client}");
            status(CLIENTS[0], &field)
        };
        let versions = ["--http1.1", "--http2-prior-knowledge"];
        for version in versions {
            assert_eq!(named("192.0.2.7", version), "403");
            assert_eq!(named("192.0.2.8", version), "200");
        }
        assert!(ctl("deny 192.0.2.8", None).0);
        for version in versions {
            assert_eq!(named("192.0.2.8", version), "403");
        }
        // Of others such a field says nothing.
        assert_eq!(
            status(CLIENTS[1], "--header|X-Forwarded-For: 192.0.2.7"),
            "200"
        );
        assert_eq!(host_counted("clients_denied"), 4);
        end(splitway);
    });
}

/// fail2ban in folders of its own.
struct Fail2ban {
    folder: PathBuf,
    _server: Process,
}

impl Fail2ban {
    /// With the action and the filter of `deploy`, and a jail for three requests.
    fn start(site: &Site, log: &Path) -> Fail2ban {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/fail2ban");
        let folder = site.outside().join("fail2ban");
        for part in ["action.d", "filter.d"] {
            fs::create_dir_all(folder.join(part)).unwrap();
            for entry in fs::read_dir(deploy.join(part)).unwrap() {
                let entry = entry.unwrap();
                fs::copy(entry.path(), folder.join(part).join(entry.file_name())).unwrap();
            }
        }
        let jail = fs::read_to_string(deploy.join("jail.d/splitway.conf")).unwrap();
        let path = |name: &str| folder.join(name).display().to_string();
        let jail = jail
            .replace("/var/log/splitway/access.log", &log.display().to_string())
            .replace("maxretry = 10", "maxretry = 3")
            .replace(
                "action = splitway\n",
                &format!(
                    "action = splitway[ctl=\"{} ctl\"]\nbackend = polling\n",
                    program().display()
                ),
            );
        assert!(
            jail.contains("maxretry = 3") && jail.contains("polling"),
            "{jail}"
        );
        fs::write(folder.join("jail.conf"), jail).unwrap();
        let settings = format!(
            "[Definition]\nloglevel = INFO\nlogtarget = {}\nsyslogsocket = auto\nsocket = {}\n\
             pidfile = {}\ndbfile = None\ndbpurgeage = 1d\n",
            path("log"),
            path("socket"),
            path("pid"),
        );
        fs::write(folder.join("fail2ban.conf"), settings).unwrap();
        let mut server = Command::new("fail2ban-server");
        server.args(["-xf", "-c"]).arg(&folder).arg("start");
        server.stdout(Stdio::null()).stderr(Stdio::null());
        let server = Process::spawn(&mut server).unwrap();
        let fail2ban = Fail2ban {
            folder,
            _server: server,
        };
        wait::until(SOON, "fail2ban", || {
            fail2ban.ask("status splitway-probes").ok()
        })
        .unwrap_or_else(|failure| panic!("{failure}: {}", fail2ban.log()));
        fail2ban
    }

    fn ask(&self, what: &str) -> testbed::Result<String> {
        let mut client = tool("fail2ban-client");
        client.arg("-c").arg(&self.folder);
        run(client.args(what.split(' ')))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

#[test]
fn fail2ban_bans_clients_that_probe_for_files() {
    isolated(|site| {
        site.file("file", 1000).unwrap();
        let log = site.outside().join("access");
        let splitway = serve_with(&site, &["--access-log", &log.display().to_string()]);
        add_client();
        assert_eq!(statuses(), ["200", "200", "200"]);
        let fail2ban = Fail2ban::start(&site, &log);
        let probe = |client: &str, server: &str| {
            for number in 0..3 {
                let url = format!("http://{server}/wp-login-{number}.php");
                let mut curl = Command::new("curl");
                curl.args(["--silent", "--output", "/dev/null", "--interface", client]);
                run(curl.arg(&url)).unwrap();
            }
        };
        probe(CLIENTS[1], "10.77.0.2");
        probe(CLIENTS[2], "[fd77::2]");
        wait::until(Duration::from_secs(30), "two bans", || {
            let (_, said) = ctl("denied", None);
            (said.lines().count() == 2).then_some(())
        })
        .unwrap_or_else(|failure| panic!("{failure}: {}", fail2ban.log()));
        assert_eq!(statuses(), ["200", DENIED, DENIED]);

        fail2ban
            .ask("set splitway-probes unbanip 10.77.0.9")
            .unwrap();
        assert_eq!(statuses(), ["200", "200", DENIED]);
        fail2ban.ask("set splitway-probes banip 10.77.0.1").unwrap();
        assert_eq!(statuses(), [DENIED, "200", DENIED]);
        let log = fail2ban.log();
        assert!(!log.contains("ERROR"), "{log}");
        end(splitway);
    });
}
