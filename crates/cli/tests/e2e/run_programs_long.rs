//! Unmodified programs on the split stack that are large: they are installed for long tests only.

mod list;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use testbed::namespace::isolated_long;
use testbed::process::{Process, run, tool};
use testbed::site::KnownFile;

use crate::deaths::lose_packets;
use crate::programs::{Stack, at};
use crate::run::{PORT, download_all, end, files, splitway_run, splitway_run_on, start};

/// A program that Debian keeps in a folder of its version, and not in `PATH`.
fn of_version(name: &str, versions: &str) -> PathBuf {
    let of = |place: PathBuf| place.join("bin").join(name);
    let places = fs::read_dir(versions).into_iter().flatten().flatten();
    let mut found = places
        .map(|place| of(place.path()))
        .filter(|it| it.exists());
    found.next().unwrap_or_else(|| PathBuf::from(name))
}

#[test]
#[ignore = "needs a JDK of version 18 or later, which Debian 12 does not have"]
fn a_java_machine_serves_files() {
    let server = of_version("jwebserver", "/usr/lib/jvm");
    if !server.exists() {
        println!("skipped: no JDK of version 18 or later is below /usr/lib/jvm");
        return;
    }
    isolated_long(|site| {
        let files = files(&site, &[10, 20_000, 500_000, 3_000_000]);
        let stack = Stack::serve(&site);
        let mut command = splitway_run_on(&stack, &["--"]);
        command.arg(&server).args(["--bind-address", "0.0.0.0"]);
        command.args(["--output", "none", "--port", &PORT.to_string()]);
        let mut java = start(command.arg("--directory").arg(site.root()));
        lose_packets();
        for _ in 0..3 {
            download_all(&files);
        }
        end(&mut java, Signal::TERM);
        stack.assert_nothing_left();
    });
}

/// What a user that may run PostgreSQL runs: it refuses root.
fn as_user(folder: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    command.current_dir(folder);
    command
}

/// The server, with a folder below this one.
fn postgres(stack: &Stack, outside: &Path) -> Process {
    let folder = outside.join("postgres");
    fs::create_dir(&folder).unwrap();
    run(tool("chown 65534:65534").arg(&folder)).unwrap();
    let of = |name: &str| of_version(name, "/usr/lib/postgresql");
    let data = folder.join("data");
    let mut making = as_user(&folder);
    making
        .arg(of("initdb"))
        .args(["--auth=trust", "--username=it", "--no-sync"]);
    run(making.arg("--pgdata").arg(&data)).unwrap();
    let rule = "host all all 10.77.0.0/24 trust\n";
    fs::write(data.join("pg_hba.conf"), rule).unwrap();
    let mut command = as_user(&folder);
    let on = splitway_run_on(stack, &["--"]);
    command.arg(on.get_program()).args(on.get_args());
    command.arg(of("postgres")).arg("-D").arg(&data);
    command.args(["-c", "listen_addresses=0.0.0.0", "-c", "fsync=off"]);
    command.arg("-c").arg(format!("port={PORT}"));
    command
        .arg("-c")
        .arg(format!("unix_socket_directories={}", folder.display()));
    start(command.stdin(Stdio::null()))
}

#[test]
#[ignore = "needs PostgreSQL"]
fn postgres_answers_many_clients() {
    isolated_long(|site| {
        let stack = Stack::serve(&site);
        let mut postgres = postgres(&stack, site.outside());
        lose_packets();

        let address = at(PORT).ip().to_string();
        let asked = |line: &[&str], program: Command| {
            let mut psql = program;
            psql.args([
                "--host",
                &address,
                "--port",
                &PORT.to_string(),
                "--username=it",
            ]);
            run(psql
                .args(["--dbname=postgres", "--no-align", "--tuples-only"])
                .args(line))
            .unwrap()
        };
        let psql = || {
            let mut command = Command::new("psql");
            command.env("PGCONNECT_TIMEOUT", "10");
            command
        };
        asked(
            &["--command=CREATE TABLE files (name text PRIMARY KEY, bytes bytea)"],
            psql(),
        );
        // By clients of the kernel's and of the stack, side by side: a value in, and out again.
        std::thread::scope(|scope| {
            for number in 0..8 {
                let (asked, psql, folder) = (&asked, &psql, &stack.folder);
                scope.spawn(move || {
                    let sockets = folder.join("sockets");
                    let stack = ["--sockets", sockets.to_str().unwrap()];
                    let rule = ["--connect", "10.77.0.0/24", "--", "psql"];
                    let line = [&stack[..], &rule].concat();
                    let client = || match number % 2 {
                        0 => psql(),
                        _ => splitway_run(&line),
                    };
                    let size = 50_000 * (1 + number);
                    let bytes = KnownFile::whole(&number.to_string(), size).bytes(0, size as usize);
                    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                    let script = folder.join(format!("{number}.sql"));
                    let text = format!("INSERT INTO files VALUES ('{number}', '\\x{hex}');\n");
                    fs::write(&script, text).unwrap();
                    asked(&["--quiet", "--file", script.to_str().unwrap()], client());
                    let query =
                        format!("--command=SELECT bytes FROM files WHERE name = '{number}'");
                    let found = asked(&[&query], client());
                    assert!(found.trim() == format!("\\x{hex}"), "{number}: other bytes");
                });
            }
        });
        let end = end(&mut postgres, Signal::INT);
        assert!(end.success(), "{end}");
        stack.assert_nothing_left();
    });
}
