//! What `make install` puts below a prefix: a program in C is built with it, and runs.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use testbed::namespace::isolated;
use testbed::process::{Process, run};
use testbed::splitway::Splitway;
use testbed::wait;

use crate::pod::tree;
use crate::support::PROGRAM;

const SOON: Duration = Duration::from_secs(30);

/// Makes what `make man library release` does, of this build, for a place at `prefix`; returns the
/// folder that stands for `target/release`.
pub(crate) fn staged(place: &Path, prefix: &str) -> PathBuf {
    let release = place.join("release");
    fs::create_dir(&release).unwrap();
    fs::copy(PROGRAM, release.join("splitway")).unwrap();
    for (what, directory) in [
        ("man", "package/man"),
        ("completions", "package/completions"),
    ] {
        run(Command::new(PROGRAM)
            .args(["generate", what])
            .arg(release.join(directory)))
        .unwrap();
    }
    let test = std::env::current_exe().unwrap();
    let mut archives = test.ancestors().map(|it| it.join("libsplitway.a"));
    let archive = archives.find(|it| it.exists());
    let archive = archive.expect("cargo build -p splitway-capi");
    let mut library = Command::new(tree("scripts/library.sh"));
    library
        .arg("stage")
        .args([&archive, &release.join("package")]);
    run(library.arg(prefix)).unwrap();
    release
}

/// Installs what was staged within a root, and returns the prefix there.
fn install(release: &Path, root: &Path) -> PathBuf {
    let prefix = root.join("usr/local");
    let mut install = Command::new(tree("scripts/install.sh"));
    install.args([release, &prefix]).env("DESTDIR", root);
    run(&mut install).unwrap();
    prefix
}

#[test]
fn a_program_in_c_is_built_with_what_is_installed_and_runs() {
    isolated(|site| {
        let place = site.outside();
        let root = place.join("root");
        let prefix = install(&staged(place, "/usr/local"), &root);
        let mut pkg_config = Command::new("pkg-config");
        pkg_config
            .args(["--cflags", "--libs", "splitway"])
            .env("PKG_CONFIG_SYSROOT_DIR", &root)
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        let flags = run(&mut pkg_config).unwrap();
        let program = place.join("echo");
        let mut cc = Command::new("cc");
        cc.arg("-o").arg(&program);
        cc.arg(tree("examples/c/echo.c"));
        run(cc.args(flags.split_whitespace())).unwrap();

        let sockets = place.join("sockets");
        let arguments = [Path::new("--sockets"), &sockets];
        let installed = prefix.join("bin/splitway");
        let _splitway = Splitway::serve(&installed, site.root(), arguments).unwrap();
        let mut echo = Command::new(&program);
        echo.arg("9000")
            .env("SPLITWAY_SOCKET", &sockets)
            .env("LD_LIBRARY_PATH", prefix.join("lib"))
            .stdout(Stdio::null());
        let _echo = Process::spawn(&mut echo).unwrap();
        let connected = || TcpStream::connect("10.77.0.2:9000").ok();
        let mut stream = wait::until(SOON, "the program listens", connected).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(b"installed").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"installed");

        // It finds the library that was installed with it.
        let mut under_run = Command::new(&installed);
        under_run.args(["run", "--sockets"]).arg(&sockets);
        let said = run(under_run.args(["--", "grep", "-c", "preload", "/proc/self/maps"]));
        assert_ne!(said.unwrap().trim(), "0");

        let man = prefix.join("share/man");
        for page in [
            "man1/splitway.1",
            "man3/sw_socket.3",
            "man3/offload_open.3",
            "man7/splitway.7",
        ] {
            assert!(man.join(page).exists(), "{page}");
        }
    });
}
