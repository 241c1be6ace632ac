//! The Debian package: built, installed on a copy of this machine, served from, and removed without
//! a trace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::http::download;
use testbed::namespace::isolated_long;
use testbed::process::{run, tool};
use testbed::splitway::{HTTP_V4, Splitway};

use crate::installed::staged;
use crate::manual::commands;
use crate::pod::tree;
use crate::support::sh;

/// Builds the package as `make deb` does, but of the program of this build.
fn package(place: &Path) -> PathBuf {
    let release = staged(place, "/usr");
    let pages = fs::read_dir(release.join("package/man")).unwrap();
    let mut gzip = Command::new("gzip");
    gzip.args(["--best", "--no-name", "--keep"]);
    run(gzip.args(pages.map(|page| page.unwrap().path()))).unwrap();
    let mut deb = Command::new(env!("CARGO"));
    deb.args("deb --no-build --strip --locked --quiet -p splitway-cli".split(' '));
    deb.env("CARGO_TARGET_DIR", place).current_dir(tree(""));
    run(&mut deb).unwrap();
    let mut found = fs::read_dir(place.join("debian")).unwrap();
    found.next().expect("a package").unwrap().path()
}

/// Pages that were installed link to what was installed as well; code is in the tree alone.
fn links_lead_somewhere(documentation: &Path) {
    let mut count = 0;
    for directory in ["", "docs", "deploy"].map(|name| documentation.join(name)) {
        for entry in fs::read_dir(&directory).unwrap() {
            let page = entry.unwrap().path();
            if page.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let text = fs::read_to_string(&page).unwrap();
            for (_, link) in text
                .match_indices("](")
                .map(|(at, _)| text.split_at(at + 2))
            {
                let link = link.split([')', '#']).next().unwrap();
                let is_code = ["crates/", "scripts/", "fuzz/", "examples/"]
                    .iter()
                    .any(|name| link.trim_start_matches("../").starts_with(name));
                if link.is_empty() || link.contains("://") || is_code {
                    continue;
                }
                assert!(directory.join(link).exists(), "{}: {link}", page.display());
                count += 1;
            }
        }
    }
    assert!(count > 50, "{count} links");
}

#[test]
#[ignore = "needs cargo-deb, which takes long to install"]
fn the_package_installs_serves_and_goes() {
    isolated_long(|site| {
        let file = site.file("file", 1_000_001).unwrap();
        let package = package(site.outside());
        // This machine's files, with all changes elsewhere: in memory.
        let place = site.outside().join("machine");
        fs::create_dir(&place).unwrap();
        let shown = place.display();
        sh(&format!("mount -t tmpfs splitway-test {shown}"));
        for directory in ["changes", "work", "root"] {
            fs::create_dir(place.join(directory)).unwrap();
        }
        sh(&format!(
            "mount -t overlay overlay -o lowerdir=/,upperdir={shown}/changes,workdir={shown}/work \
             {shown}/root"
        ));
        let root = place.join("root");
        sh(&format!("mount --bind /proc {}/proc", root.display()));
        fs::copy(&package, root.join("package.deb")).unwrap();
        let within = |line: &str| {
            let mut chroot = tool("chroot");
            chroot
                .arg(&root)
                .args(line.split(' '))
                .env("DEBIAN_FRONTEND", "noninteractive");
            chroot
        };
        run(&mut within("dpkg --install /package.deb")).unwrap();

        for name in commands() {
            let found = run(&mut within(&format!("man --path {name}"))).unwrap();
            assert!(
                found.contains(&format!("/usr/share/man/man1/{name}.1")),
                "{found}"
            );
        }
        for path in [
            "etc/splitway/splitway.toml",
            "etc/splitway/nic.conf",
            "etc/splitway/sockets-node.conf",
            "usr/share/doc/splitway/deploy/sockets-gate.conf",
            "usr/lib/systemd/system/splitway.service",
            "usr/lib/systemd/system/splitway-proxy.service",
            "usr/share/doc/splitway/deploy/proxy.toml",
            "usr/lib/systemd/system/splitway-nic.service",
            "usr/lib/systemd/system/splitway-sockets-node.service",
            "usr/lib/systemd/system/splitway-sockets-gate@.service",
            "usr/share/bash-completion/completions/splitway",
            "etc/logrotate.d/splitway",
            "usr/share/doc/splitway/docs/http.md",
            "usr/include/splitway.h",
            "usr/share/man/man3/sw_sendto.3.gz",
            "usr/share/man/man7/splitway.7.gz",
            "usr/lib/libsplitway.so",
            "usr/lib/libsplitway-preload.so",
            "usr/lib/pkgconfig/splitway.pc",
        ] {
            assert!(root.join(path).exists(), "{path}");
        }
        links_lead_somewhere(&root.join("usr/share/doc/splitway"));
        // The configuration does not say yet what to serve.
        let enabled = within("systemctl is-enabled splitway.service")
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&enabled.stdout).trim(), "disabled");
        run(&mut within("systemctl enable splitway.service")).unwrap();
        run(&mut within(
            "systemd-analyze verify --man=no splitway.service splitway-nic.service \
             splitway-sockets-node.service splitway-sockets-gate@.service",
        ))
        .unwrap();

        // What systemd would do, by the unit.
        let unit = fs::read_to_string(root.join("usr/lib/systemd/system/splitway.service"));
        let unit = unit.unwrap();
        let setting = |name: &str| {
            let mut lines = unit.lines();
            let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_else(|| panic!("no {name}"))
        };
        fs::create_dir_all(root.join("srv/www")).unwrap();
        fs::create_dir_all(root.join("run").join(setting("RuntimeDirectory"))).unwrap();
        fs::copy(
            site.root().join(file.name()),
            root.join("srv/www").join(file.name()),
        )
        .unwrap();
        run(&mut within("splitway check /etc/splitway/splitway.toml")).unwrap();
        let mut splitway = Splitway::start(&mut within(setting("ExecStart"))).unwrap();
        download(HTTP_V4, &file).unwrap();
        run(&mut within(setting("ExecReload"))).unwrap();
        download(HTTP_V4, &file).unwrap();
        assert_eq!(setting("KillSignal"), "SIGQUIT");
        let end = splitway.end_with(rustix::process::Signal::QUIT).unwrap();
        assert!(end.success(), "{end}");

        run(&mut within("dpkg --purge splitway")).unwrap();
        let left = sh(&format!(
            "find {shown}/changes/etc {shown}/changes/usr {shown}/changes/var -iname *splitway* \
             -not -type c"
        ));
        assert_eq!(left, "");
    });
}
