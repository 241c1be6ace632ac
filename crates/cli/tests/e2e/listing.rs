//! Listings of real directories, compared with what is in them, entry for entry.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use rustix::process::Signal;
use testbed::namespace::isolated;
use testbed::process::{run, signal};
use testbed::procfs::children;
use testbed::site::Site;
use testbed::wait;
use time::OffsetDateTime;

use crate::dpu::Machines;
use crate::support::{SOON, serve, serve_with};

/// What a listing says of entries: the size of files, and the time of the last modification.
type Told = BTreeMap<Vec<u8>, (Option<u64>, String)>;

const URLS: [&str; 2] = ["http://10.77.0.2", "http://[fd77::2]"];

/// So many entries that a listing comes in many parts.
const FILES: u64 = 3_000;

/// A directory with everything in it that can be in one.
fn fill(site: &Site) {
    let directory = site.root().join("music");
    fs::create_dir(&directory).unwrap();
    let at = |name: &[u8]| directory.join(OsStr::from_bytes(name));
    for number in 0..FILES {
        let file = fs::File::create(at(format!("track {number:05}.flac").as_bytes())).unwrap();
        file.set_len(number * 1_000_003).unwrap();
        let modified = UNIX_EPOCH + Duration::from_millis(number * 86_400_500);
        file.set_modified(modified).unwrap();
    }
    let odd: [&[u8]; 8] = [
        b"<b onclick='x()'>&amp;\"",
        b"100% #1?.txt",
        b"a:b",
        b"caf\xe9",
        b"new\nline\t",
        "日本語 \u{202e}gpj.exe".as_bytes(),
        &[b'n'; 255],
        b" ",
    ];
    for name in odd {
        fs::write(at(name), name).unwrap();
    }
    fs::create_dir(at(b"albums")).unwrap();
    fs::write(at(b"albums/one"), "1").unwrap();
    symlink("../track", at(b"albums/dangling")).unwrap();
    symlink("albums/one", at(b"a link")).unwrap();
    symlink("albums", at(b"a link to a directory")).unwrap();
    // What no listing shows.
    fs::create_dir(at(b".git")).unwrap();
    fs::write(at(b".htpasswd"), "secret").unwrap();
    symlink("/etc/passwd", at(b"passwd")).unwrap();
    symlink(site.outside(), at(b"outside")).unwrap();
    symlink("nothing", at(b"nowhere")).unwrap();
    drop(UnixListener::bind(at(b"socket")).unwrap());
}

/// What is to be told of a directory below the root, with times in this form.
fn expected(root: &Path, directory: &str, form: fn(u64) -> String) -> Told {
    let root = root.canonicalize().unwrap();
    let mut told = Told::new();
    for entry in fs::read_dir(root.join(directory)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_owned().into_vec();
        let target = path.canonicalize().ok();
        let Some(target) = target.filter(|target| target.starts_with(&root)) else {
            continue;
        };
        let meta = fs::metadata(&target).unwrap();
        if name.starts_with(b".") || !(meta.is_dir() || meta.is_file()) {
            continue;
        }
        let since = meta.modified().unwrap().duration_since(UNIX_EPOCH).unwrap();
        let size = meta.is_file().then_some(meta.len());
        told.insert(name, (size, form(since.as_secs())));
    }
    told
}

/// What curl gets.
fn curl(url: &str, arguments: &[&str]) -> String {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "60"]);
    run(curl.args(arguments).arg(url)).unwrap()
}

const JSON: [&str; 2] = ["--header", "Accept: application/json"];

fn unescaped(link: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = link.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    bytes
}

/// What a JSON document tells.
fn told_in_json(text: &str) -> Told {
    let entries: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
    let mut told = Told::new();
    for entry in entries {
        let name = match entry.get("href") {
            Some(link) => unescaped(link.as_str().unwrap()),
            None => entry["name"].as_str().unwrap().as_bytes().to_vec(),
        };
        let size = match entry["type"].as_str().unwrap() {
            "directory" => None,
            "file" => Some(entry["size"].as_u64().unwrap()),
            other => panic!("{other}"),
        };
        let modified = entry["mtime"].as_str().unwrap().to_owned();
        assert_eq!(told.insert(name, (size, modified)), None, "told twice");
    }
    told
}

/// What a page tells.
fn told_in_html(page: &str) -> Told {
    let mut told = Told::new();
    for row in page.lines().filter(|line| line.starts_with("<tr><td>")) {
        let between = |left: &str, right: &str| {
            let (_, rest) = row.split_once(left)?;
            Some(rest.split_once(right).unwrap().0)
        };
        let link = between("href=\"", "\"").unwrap();
        if link == "../" {
            continue;
        }
        let size = between("<data value=\"", "\"").map(|size| size.parse().unwrap());
        assert_eq!(size.is_none(), link.ends_with('/'), "{row}");
        let minute = between("<time>", "</time>").unwrap().to_owned();
        let name = unescaped(link.trim_end_matches('/'));
        assert_eq!(told.insert(name, (size, minute)), None, "told twice");
    }
    told
}

/// As pages have it.
fn minute(second: u64) -> String {
    let at = OffsetDateTime::from_unix_timestamp(second as i64).unwrap();
    let (date, time) = (at.date(), at.time());
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    format!(
        "{year}-{month:02}-{day:02} {:02}:{:02}",
        time.hour(),
        time.minute()
    )
}

/// As HTTP has it.
fn http_date(second: u64) -> String {
    let at = OffsetDateTime::from_unix_timestamp(second as i64).unwrap();
    let (date, time) = (at.date(), at.time());
    let [weekday, month] = [date.weekday().to_string(), date.month().to_string()];
    format!(
        "{}, {:02} {} {} {:02}:{:02}:{:02} GMT",
        &weekday[..3],
        date.day(),
        &month[..3],
        date.year(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

/// A page and a JSON document of a server tell what is in a directory.
fn compare(url: &str, site: &Site) {
    let wanted = expected(site.root(), "music", http_date);
    assert!(wanted.len() as u64 > FILES + 10);
    let found = told_in_json(&curl(&format!("{url}/music/"), &JSON));
    assert!(found == wanted, "{} of {}", found.len(), wanted.len());

    let wanted = expected(site.root(), "music", minute);
    let page = curl(&format!("{url}/music/"), &[]);
    assert!(!page.contains("<b onclick"), "a name is no markup");
    let found = told_in_html(&page);
    assert!(found == wanted, "{} of {}", found.len(), wanted.len());
}

#[test]
fn a_directory_is_listed_entry_for_entry() {
    isolated(|site| {
        fill(&site);
        let mut splitway = serve_with(&site, &["--listing"]);
        for url in URLS {
            compare(url, &site);
        }
        // Each link leads to what it names.
        let page = curl(&format!("{}/music/", URLS[0]), &[]);
        let links = page.split("href=\"").skip(1);
        let links = links.map(|rest| rest.split('"').next().unwrap());
        for link in links.filter(|link| !link.ends_with('/') && !link.starts_with("track")) {
            let name = unescaped(link);
            let known = fs::read(site.root().join("music").join(OsStr::from_bytes(&name))).unwrap();
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--fail", "--max-time", "20"]);
            let output = curl
                .arg(format!("{}/music/{link}", URLS[0]))
                .output()
                .unwrap();
            assert!(output.status.success() && output.stdout == known, "{link}");
        }
        // Changes are visible at once.
        fs::write(site.root().join("music/new"), "new").unwrap();
        fs::remove_file(site.root().join("music/track 00007.flac")).unwrap();
        compare(URLS[0], &site);
        assert!(splitway.end_with(Signal::INT).unwrap().success());
    });
}

#[test]
fn nothing_is_listed_unless_that_is_asked_for() {
    isolated(|site| {
        fs::create_dir(site.root().join("music")).unwrap();
        fs::write(site.root().join("music/secret"), "").unwrap();
        let _splitway = serve(&site);
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--max-time",
            "20",
            "--write-out",
            "%{http_code}",
        ]);
        let answer = run(curl.arg(format!("{}/music/", URLS[0]))).unwrap();
        assert!(
            answer.ends_with("404") && !answer.contains("secret"),
            "{answer}"
        );
    });
}

#[test]
fn listings_outlive_nic_processes() {
    isolated(|site| {
        fill(&site);
        let splitway = serve_with(&site, &["--listing"]);
        let wanted = expected(site.root(), "music", http_date);
        let is_over = AtomicBool::new(false);
        let count = std::thread::scope(|scope| {
            let lister = scope.spawn(|| {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let found = told_in_json(&curl(&format!("{}/music/", URLS[0]), &JSON));
                    assert!(found == wanted, "{} of {}", found.len(), wanted.len());
                    count += 1;
                }
                count
            });
            // A killed process stays among the children until the kernel has taken it apart.
            let mut killed = Vec::new();
            let mut deaths = || -> testbed::failure::Result<()> {
                let mut nic = splitway.nic();
                for _ in 0..6 {
                    std::thread::yield_now();
                    signal(nic, Signal::KILL)?;
                    killed.push(nic);
                    nic = wait::until(SOON, "another NIC process", || {
                        let children = children(splitway.supervisor()).ok()?;
                        let mut others = children.into_iter();
                        others.find(|child| !killed.contains(child) && *child != splitway.host())
                    })?;
                }
                Ok(())
            };
            let died = deaths();
            is_over.store(true, Ordering::Relaxed);
            died.unwrap();
            lister.join().unwrap()
        });
        assert!(count > 0);
    });
}

#[test]
fn a_directory_of_another_machine_is_listed_entry_for_entry() {
    isolated(|site| {
        fill(&site);
        let machines = Machines::new(site, &["--loss", "1%", "--reorder", "1%", "--seed", "5"]);
        let nic = machines.nic_stack();
        let _host = machines.host_stack_with(&nic, &["--listing"]);
        for url in ["http://10.91.0.2", "http://[fd91::2]"] {
            compare(url, &machines.site);
        }
    });
}
