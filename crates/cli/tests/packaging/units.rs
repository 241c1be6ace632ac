//! systemd's units.

use std::fs;
use std::path::Path;
use std::process::Command;

use testbed::http::download;
use testbed::namespace::isolated;
use testbed::process::tool;
use testbed::splitway::{HTTP_V4, Splitway};

use crate::pod::tree;
use crate::support::PROGRAM;

const UNITS: [&str; 5] = [
    "splitway.service",
    "splitway-proxy.service",
    "splitway-nic.service",
    "splitway-sockets-node.service",
    "splitway-sockets-gate@.service",
];

/// The text of a unit.
fn text(unit: &str) -> String {
    fs::read_to_string(tree("deploy/systemd").join(unit)).unwrap()
}

/// The value of a setting.
fn setting<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("no {name}"))
}

/// The unit with the program of this build in the place of the one that would be installed.
fn put(unit: &str, directory: &Path) -> String {
    let path = directory.join(unit);
    fs::write(&path, text(unit).replace("/usr/bin/splitway", PROGRAM)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn systemd_understands_the_units() {
    let directory = tempfile::tempdir().unwrap();
    for unit in UNITS {
        let path = put(unit, directory.path());
        let mut verify = tool("systemd-analyze verify --man=no --recursive-errors=no");
        let output = verify.arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && !said.contains("splitway"),
            "{unit}: {said}"
        );
    }
}

#[test]
fn the_units_leave_little_to_an_attacker() {
    let directory = tempfile::tempdir().unwrap();
    // Of ten: what systemd calls OK, and what it calls medium since a link of one's own takes
    // CAP_SYS_ADMIN.
    for (unit, tenths_max) in UNITS.into_iter().zip([35, 35, 25, 25, 25]) {
        let path = put(unit, directory.path());
        let mut security = tool("systemd-analyze security --no-pager --offline=true");
        security.arg(format!("--threshold={tenths_max}"));
        let output = security.arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let level = said.lines().last().unwrap_or_default();
        assert!(output.status.success(), "{unit}: {level}");
    }
}

#[test]
fn the_proxy_is_confined_and_restarted_like_the_server() {
    const OWN: [&str; 8] = [
        "CacheDirectory=",
        "CacheDirectoryMode=",
        "Description=",
        "Documentation=",
        "ExecReload=",
        "ExecStart=",
        "LogsDirectory=",
        "RuntimeDirectory=",
    ];
    let common = |unit: &str| {
        let text = text(unit);
        let is_own =
            |line: &str| line.starts_with('#') || OWN.iter().any(|it| line.starts_with(it));
        let lines = text.lines().filter(|line| !is_own(line));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(common("splitway.service"), common("splitway-proxy.service"));
}

#[test]
fn what_the_configurations_say_lies_where_the_unit_lets_it_write() {
    let of_server = ["deploy/splitway.toml", "deploy/default.toml"];
    for (unit, files) in [
        ("splitway.service", &of_server[..]),
        ("splitway-proxy.service", &["deploy/proxy.toml"]),
    ] {
        lies_where_it_may_write(&text(unit), files);
    }
}

fn lies_where_it_may_write(unit: &str, names: &[&str]) {
    assert_eq!(setting(unit, "ProtectSystem"), "strict");
    // Also what they propose behind a number sign.
    let mut files = String::new();
    for name in names {
        files += &fs::read_to_string(tree(name)).unwrap();
    }
    let values: Vec<&str> = files.split('"').collect();
    for (place, name) in [
        ("/var/log/", "LogsDirectory"),
        ("/var/cache/", "CacheDirectory"),
        ("/run/", "RuntimeDirectory"),
    ] {
        if !values.iter().any(|value| value.starts_with(place)) {
            continue;
        }
        let directory = format!("{place}{}/", setting(unit, name));
        for path in values.iter().filter(|value| value.starts_with(place)) {
            assert!(path.starts_with(&directory), "{path}: not in {directory}");
        }
    }
    assert!(
        values.iter().any(|value| value.ends_with("/access.log")),
        "not proposed any more"
    );
}

#[test]
fn a_unit_that_stops_takes_nothing_from_another() {
    let mut directories: Vec<String> = UNITS
        .map(text)
        .iter()
        // A gate writes nothing.
        .filter(|unit| unit.contains("RuntimeDirectory="))
        .map(|unit| setting(unit, "RuntimeDirectory").to_owned())
        .collect();
    directories.sort();
    let all = directories.len();
    directories.dedup();
    assert_eq!((all, directories.len()), (4, 4), "{directories:?}");
}

#[test]
fn it_serves_with_the_capabilities_that_the_unit_leaves() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let text = text("splitway.service");
        assert_eq!(setting(&text, "NoNewPrivileges"), "yes");
        let capabilities: Vec<String> = setting(&text, "CapabilityBoundingSet")
            .split(' ')
            .map(|name| name.to_lowercase().replace("cap_", "+"))
            .collect();
        let mut command = Command::new("setpriv");
        command.arg("--no-new-privs");
        command.arg(format!("--bounding-set=-all,{}", capabilities.join(",")));
        command.arg(PROGRAM).arg("serve").arg(site.root());
        let _splitway = Splitway::start(&mut command).unwrap();
        download(HTTP_V4, &file).unwrap();
    });
}
