//! A server with a configuration file, which changes while it runs.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use testbed::http::{Connection, Head};
use testbed::namespace::isolated;
use testbed::process::signal;
use testbed::site::{KnownFile, Site, write_secret};
use testbed::splitway::{HTTP_V4, Splitway};
use testbed::wait;

use crate::deaths::host_counter;
use crate::metrics::{self, ADMIN};
use crate::restart::serving;
use crate::support::{SOON, ctl, program, sh, started};

/// A configuration that serves this site and says this besides, in a file beside it.
pub(crate) fn configuration(site: &Site, more: &str) -> PathBuf {
    let path = site.outside().join("splitway.toml");
    let root = site.root().display();
    fs::write(&path, format!("[nic]\nroot = \"{root}\"\n{more}")).unwrap();
    path
}

/// `splitway serve` with it and nothing else.
pub(crate) fn serve_configured(path: &Path) -> Splitway {
    Splitway::start(
        Command::new(program())
            .args(["serve", "--report-json", "--config"])
            .arg(path),
    )
    .unwrap()
}

/// Asks for a target of a host; no body is read.
fn ask(connection: &mut Connection, host: &str, target: &str) -> Head {
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    connection.send(request.as_bytes()).unwrap();
    connection.read_head().unwrap()
}

fn head_of(host: &str, target: &str) -> Head {
    ask(&mut Connection::open(HTTP_V4).unwrap(), host, target)
}

#[test]
fn sites_rules_and_signed_urls_are_served_as_the_file_says() {
    isolated(|site| {
        for directory in ["one", "two"] {
            fs::create_dir(site.root().join(directory)).unwrap();
            fs::write(site.root().join(directory).join("page"), directory).unwrap();
        }
        fs::write(site.root().join("one/lost.html"), "lost").unwrap();
        let secret = "0123456789abcdef0123456789abcdef";
        write_secret(&site.outside().join("films.key"), &format!("{secret}\n")).unwrap();
        let path = configuration(
            &site,
            r#"
            [[listen]]
            port = 80
            [[listen]]
            port = 8080
            [signing_keys]
            films = "films.key"
            [[site]]
            names = ["one.example"]
            root = "one"
            error_pages = { 404 = "lost.html" }
            [[site.rule]]
            path = "/old/*"
            redirect = { status = 308, to = "/new/*" }
            [[site.rule]]
            path = "*"
            cache_control = "max-age=60"
            fields = ["X-Site: one"]
            [[site]]
            names = ["*.two.example"]
            root = "two"
            [[site.rule]]
            path = "/page"
            signed_by = ["films"]
            "#,
        );
        let splitway = serve_configured(&path);
        let head = head_of("one.example", "/page");
        assert_eq!((head.status, head.field("x-site")), (200, Some("one")));
        assert_eq!(head.field("cache-control"), Some("max-age=60"));
        let lost = head_of("one.example", "/missing");
        assert_eq!((lost.status, lost.content_length().unwrap()), (404, 4));
        let moved = head_of("one.example", "/old/x");
        assert_eq!(
            (moved.status, moved.field("location")),
            (308, Some("/new/x"))
        );
        assert_eq!(head_of("www.two.example", "/page").status, 403);
        let mut keys = server::SigningKeys::default();
        keys.add("films", secret.as_bytes()).unwrap();
        let signed = keys.sign("/page", "films", 4_000_000_000).unwrap();
        assert_eq!(head_of("www.two.example", &signed).status, 200);
        let other = (HTTP_V4.ip(), 8080).into();
        let mut connection = Connection::open(other).unwrap();
        assert_eq!(ask(&mut connection, "one.example", "/page").status, 200);
        // The secret is shown nowhere.
        for pid in [splitway.supervisor(), splitway.host(), splitway.nic()] {
            let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap();
            assert!(!String::from_utf8_lossy(&line).contains(secret));
        }
    });
}

/// A rule that names this version of the configuration.
pub(crate) fn version(number: u32) -> String {
    format!("[[site]]\n[[site.rule]]\npath = \"*\"\nfields = [\"X-Version: {number}\"]\n")
}

fn served_version(connection: &mut Connection, file: &KnownFile) -> String {
    let head = connection.get(file).unwrap();
    head.field("x-version").unwrap().to_owned()
}

#[test]
fn a_configuration_is_reloaded_in_the_midst_of_downloads() {
    isolated(|site| {
        let large = site.file("large", 30_000_000).unwrap();
        let small = site.file("small", 5000).unwrap();
        let path = configuration(&site, &version(1));
        let mut splitway = serve_configured(&path);
        let mut downloads = [(); 3].map(|()| started(HTTP_V4, &large));
        let mut kept = Connection::open(HTTP_V4).unwrap();
        assert_eq!(served_version(&mut kept, &small), "1");

        configuration(&site, &version(2));
        let (done, said) = ctl("reload", None);
        assert!(done && said.contains("configuration read again"), "{said}");
        assert_eq!(served_version(&mut kept, &small), "2");

        // What is no good changes nothing, and what cannot change is named.
        configuration(&site, &format!("{}typo = 3\n", version(3)));
        let (done, said) = ctl("reload", None);
        assert!(
            !done && said.contains("stays") && said.contains("`typo`"),
            "{said}"
        );
        assert_eq!(served_version(&mut kept, &small), "2");
        configuration(&site, &format!("workers = 3\n{}", version(3)));
        let (done, said) = ctl("reload", None);
        assert!(
            done && said.contains("not before a restart: nic.workers"),
            "{said}"
        );

        for number in 4..24 {
            configuration(&site, &version(number));
            signal(splitway.supervisor(), Signal::HUP).unwrap();
            let number = number.to_string();
            wait::until(SOON, "the new configuration", || {
                (served_version(&mut kept, &small) == number).then_some(())
            })
            .unwrap();
        }
        for download in &mut downloads {
            download.read_file_part(&large, 0..large.size()).unwrap();
            assert_eq!(served_version(download, &small), "23");
            download.finish().unwrap();
        }
        kept.finish().unwrap();
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
        assert_eq!(host_counter(&mut splitway, "connections_broken"), 0);
    });
}

#[test]
fn a_limit_of_tcp_changes_in_the_midst_of_downloads_and_ends_none() {
    isolated(|site| {
        let large = site.file("large", 30_000_000).unwrap();
        let small = site.file("small", 5000).unwrap();
        let path = configuration(&site, "");
        let mut splitway = serve_configured(&path);
        let mut downloads = [(); 3].map(|()| started(HTTP_V4, &large));

        // No limit was there, so that nothing was counted.
        configuration(&site, "[tcp]\nconnections_per_source = 2\necn = \"off\"\n");
        let (done, said) = ctl("reload", None);
        assert!(
            done && said.contains("TCP: limits hold from now on"),
            "{said}"
        );
        assert!(!said.contains("restart"), "{said}");
        // The SYN is dropped.
        let refused = TcpStream::connect_timeout(&HTTP_V4, Duration::from_millis(500));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut);
        for download in &mut downloads {
            download.read_file_part(&large, 0..large.size()).unwrap();
            download.get(&small).unwrap();
        }

        configuration(&site, "[tcp]\nconnections_per_source = 4\n");
        assert!(ctl("reload", None).0);
        let mut fourth = Connection::open(HTTP_V4).unwrap();
        fourth.get(&small).unwrap();
        let refused = TcpStream::connect_timeout(&HTTP_V4, Duration::from_millis(500));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut);

        configuration(&site, "");
        assert!(ctl("reload", None).0);
        Connection::open(HTTP_V4).unwrap().get(&small).unwrap();
        for mut download in downloads {
            download.get(&small).unwrap();
            download.finish().unwrap();
        }
        fourth.finish().unwrap();
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
        assert_eq!(host_counter(&mut splitway, "connections_broken"), 0);
        assert!(host_counter(&mut splitway, "sources_refused") >= 2);
    });
}

/// The file `page`, which has three bytes.
fn page() -> String {
    let mut connection = Connection::open(HTTP_V4).unwrap();
    connection.send_get("page").unwrap();
    connection.read_head().unwrap();
    let mut page = Vec::new();
    let collect = |_, bytes: &[u8]| {
        page.extend_from_slice(bytes);
        Ok(())
    };
    connection.read_body(3, collect).unwrap();
    String::from_utf8(page).unwrap()
}

/// Points a link elsewhere at once, as tools that deploy releases do.
fn point(link: &Path, to: &str) {
    let new = link.with_extension("new");
    symlink(to, &new).unwrap();
    fs::rename(&new, link).unwrap();
}

#[test]
fn a_root_that_is_a_link_is_followed_at_the_start_and_on_reload_only() {
    isolated(|site| {
        let same = site.file("same", 20_000_000).unwrap();
        for release in ["one", "two"] {
            let directory = site.outside().join(release);
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("page"), release).unwrap();
            fs::hard_link(site.root().join("same"), directory.join("same")).unwrap();
        }
        let link = site.outside().join("current");
        point(&link, "one");
        let mut splitway = Splitway::serve(program(), &link, ["--report-json"]).unwrap();
        assert_eq!(page(), "one");
        let mut download = started(HTTP_V4, &same);
        download.read_file_part(&same, 0..5_000_000).unwrap();

        point(&link, "two");
        let mut nic = splitway.nic();
        let next = |splitway: &mut Splitway, before: Pid| {
            let is_later = |pid: Pid| pid.as_raw_nonzero() > before.as_raw_nonzero();
            let line = splitway.line(|line| serving(line).is_some_and(is_later));
            serving(&line.unwrap()).unwrap()
        };
        signal(nic, Signal::KILL).unwrap();
        nic = next(&mut splitway, nic);
        assert_eq!(page(), "one");
        download
            .read_file_part(&same, 5_000_000..9_000_000)
            .unwrap();

        let (done, said) = ctl("reload", None);
        let leads_to = site.outside().join("two").display().to_string();
        assert!(done && said.contains(&leads_to), "{said}");
        nic = next(&mut splitway, nic);
        assert_eq!(page(), "two");
        download
            .read_file_part(&same, 9_000_000..13_000_000)
            .unwrap();
        // A link that leads nowhere changes nothing.
        point(&link, "three");
        let (_, said) = ctl("reload", None);
        assert!(said.contains("no such directory"), "{said}");
        signal(nic, Signal::KILL).unwrap();
        next(&mut splitway, nic);
        assert_eq!(page(), "two");
        let rest = 13_000_000..same.size();
        download.read_file_part(&same, rest).unwrap();
    });
}

/// Waits for the metric to say that the path of a directory in use leads to another one, or to it.
pub(crate) fn await_replaced(directory: &Path, is_replaced: bool) {
    let (path, value) = (directory.display(), u8::from(is_replaced));
    let sample = format!("splitway_directory_replaced{{path=\"{path}\"}} {value}\n");
    wait::until(SOON, "the metric", || {
        let (_, metrics) = metrics::ask("GET /metrics HTTP/1.1\r\n\r\n");
        metrics.contains(&sample).then_some(())
    })
    .unwrap();
}

#[test]
fn a_root_that_another_directory_replaces_is_read_again_on_reload() {
    isolated(|site| {
        sh("ip link set lo up");
        let same = site.file("same", 20_000_000).unwrap();
        let [root, new, old] = ["root", "new", "old"].map(|name| site.outside().join(name));
        for (directory, text) in [(&root, "one"), (&new, "two")] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("page"), text).unwrap();
            fs::hard_link(site.root().join("same"), directory.join("same")).unwrap();
        }
        let options = ["--report-json", "--admin", ADMIN];
        let mut splitway = Splitway::serve(program(), &root, options).unwrap();
        assert_eq!(page(), "one");
        // Nothing has changed, and nothing is started.
        let nic = splitway.nic();
        let (done, said) = ctl("reload", None);
        assert!(done && said == "the root is followed again\n", "{said}");
        assert_eq!(splitway.nic(), nic);
        let mut download = started(HTTP_V4, &same);
        download.read_file_part(&same, 0..5_000_000).unwrap();

        fs::rename(&root, &old).unwrap();
        fs::rename(&new, &root).unwrap();
        let is_warning = |line: &str| line.contains("another directory has taken its place");
        splitway.line(is_warning).unwrap();
        await_replaced(&root, true);
        assert_eq!(page(), "one", "it is still in use");

        let (done, said) = ctl("reload", None);
        assert!(done && said.contains("is another directory now"), "{said}");
        let is_later = |pid: Pid| pid.as_raw_nonzero() > nic.as_raw_nonzero();
        splitway
            .line(|line| serving(line).is_some_and(is_later))
            .unwrap();
        assert_eq!(page(), "two");
        await_replaced(&root, false);
        let warnings = splitway.output().iter().filter(|line| is_warning(line));
        assert_eq!(warnings.count(), 1);
        let rest = 5_000_000..same.size();
        download.read_file_part(&same, rest).unwrap();
        download.finish().unwrap();
    });
}
