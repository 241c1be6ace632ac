//! lighttpd with IO-TCP's functions for its files, as the paper has it, beside the one of the
//! distribution: `examples/lighttpd`.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use testbed::namespace::isolated_long;
use testbed::process::{Process, tool};
use testbed::site::{KnownFile, Site};

use crate::deaths::lose_packets;
use crate::programs::{Stack, at};
use crate::run::{end, files, program_of, splitway_run_on, start_at};
use crate::sockets_stat::applications;
use crate::support::{on_threads, started};

/// The port of the server that offloads, and that of the other.
const OFFLOADS: u16 = 8080;
const OTHER: u16 = 8081;

/// The program that `build.sh` has made, and its modules.
fn built() -> (PathBuf, PathBuf) {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../lighttpd");
    let program = place.join("lighttpd");
    assert!(
        program.exists(),
        "none is built: examples/lighttpd/build.sh"
    );
    (program, place.join("modules"))
}

/// Starts a server of the site by the configuration of the example, with another backend.
fn serve(stack: &Stack, site: &Site, line: &[&Path], backend: &str, port: u16) -> Process {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/lighttpd");
    let text = fs::read_to_string(example.join("lighttpd.conf")).unwrap();
    let changed = text.replace("\"splitway\"", &format!("{backend:?}"));
    let configuration = stack.folder.join(format!("lighttpd-{port}.conf"));
    fs::write(&configuration, changed).unwrap();
    let mut command = splitway_run_on(stack, &["--"]);
    command.args(line).arg("-D").arg("-f").arg(configuration);
    command.env("ROOT", site.root());
    start_at(command.env("PORT", port.to_string()), port)
}

/// How many files of a site a process has open.
fn open_files(process: Pid, site: &Site) -> usize {
    let folder = format!("/proc/{}/fd", process.as_raw_nonzero());
    let entries = fs::read_dir(folder).unwrap().flatten();
    let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.filter(|it| it.starts_with(site.root())).count()
}

/// What `splitway stat` says of a process.
fn shown(process: Pid) -> Value {
    let pid = process.as_raw_nonzero().get();
    let mut all = applications().into_iter();
    all.find(|it| it["pid"] == pid).expect("it is attached")
}

fn fetch_range(port: u16, file: &KnownFile, first: u64, len: usize) {
    let range = format!("{first}-{}", first + len as u64 - 1);
    let url = format!("http://{}/{}", at(port), file.name());
    let mut curl = tool("curl --silent --show-error --fail --range");
    let output = curl.args([&range, &url]).output().unwrap();
    assert!(output.status.success(), "{url}: {:?}", output.stderr);
    assert!(output.stdout == file.bytes(first, len), "{url} {range}");
}

#[test]
#[ignore = "needs lighttpd's source, which examples/lighttpd/build.sh fetches and builds"]
fn lighttpd_with_offload_functions_never_opens_what_it_serves() {
    isolated_long(|site| {
        let sizes = [10, 20_000, 500_000, 3_000_000, 20_000_000];
        let all = files(&site, &sizes);
        let stack = Stack::serve(&site);
        let (program, modules) = built();
        let line = [program.as_path(), Path::new("-m"), modules.as_path()];
        let mut ported = serve(&stack, &site, &line, "splitway", OFFLOADS);
        let line = [Path::new("/usr/sbin/lighttpd")];
        let mut other = serve(&stack, &site, &line, "sendfile", OTHER);
        lose_packets();
        for port in [OFFLOADS, OTHER] {
            on_threads(4, |_| {
                let mut all = all.iter();
                all.try_for_each(|file| testbed::http::download(at(port), file).map(drop))
            });
        }
        // Every byte of every file, and none of them in the program.
        let offloaded = &shown(program_of(&ported))["file_bytes"];
        assert_eq!(offloaded, 4 * sizes.iter().sum::<u64>());
        let share = shown(program_of(&other))["offloaded_share"].as_f64();
        assert!(share > Some(0.99), "{share:?}");
        for port in [OFFLOADS, OTHER] {
            fetch_range(port, &all[3], 1_000, 1_234_567);
        }

        // Amid a response, the one has files open and the other has not.
        let amid = |port| started(at(port), &all[4]);
        let connections = [amid(OFFLOADS), amid(OTHER)];
        assert_eq!(open_files(program_of(&ported), &site), 0);
        assert!(open_files(program_of(&other), &site) > 0);
        drop(connections);

        for server in [&mut ported, &mut other] {
            end(server, Signal::TERM);
        }
        stack.assert_nothing_left();
    });
}
