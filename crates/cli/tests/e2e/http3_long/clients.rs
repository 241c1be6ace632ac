//! Clients that are programs: downloads, and that every byte is right.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::process::{run, tool};
use testbed::site::KnownFile;

use super::Trial;

/// Where clients are that no distribution has.
fn place() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = target.unwrap_or_else(|| workspace.join("target"));
    target.join("http3-clients")
}

/// Downloads all files.
pub(super) fn attempt(trial: &Trial<'_>) {
    match trial.client {
        "ngtcp2" => attempt_with_ngtcp2(trial),
        "quic-go" => download_and_compare(trial, Command::new(place().join("quic-go"))),
        client => {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/http3/clients.py");
            let mut python = Command::new(place().join("bin/python"));
            python.arg(script).arg(client);
            download_and_compare(trial, python);
        }
    }
}

/// With a client that compares what it gets with the files.
fn download_and_compare(trial: &Trial<'_>, mut client: Command) {
    let server = trial.server;
    client.args([
        trial.case,
        &server.ip().to_string(),
        &server.port().to_string(),
    ]);
    client.arg(trial.site.root());
    client.args(trial.files.iter().map(KnownFile::name));
    run(&mut client).unwrap_or_else(|error| panic!("{trial}: {error}"));
}

/// What the client says that begins to update its keys while the server does so of its own accord.
/// It gives up then.
const SERVER_WAS_FIRST: &str = "ngtcp2_conn_initiate_key_update: ERR_INVALID_STATE";

fn attempt_with_ngtcp2(trial: &Trial<'_>) {
    let begin = || {
        for _ in 0..50 {
            let output = ngtcp2(trial).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if trial.case == "key update" && said.contains(SERVER_WAS_FIRST) {
                continue;
            }
            assert!(output.status.success(), "{trial}: {said}");
            compare(trial);
            return said;
        }
        panic!("{trial}: the server was always first");
    };
    let said = begin();
    match trial.case {
        "key update" => {
            assert!(said.contains("Initiate key update"), "{trial}: {said}");
            assert!(said.contains("key update confirmed"), "{trial}: {said}");
        }
        "resumption" => drop(begin()),
        "0-RTT" | "0-RTT refused" => {
            let said = begin();
            assert!(said.contains("type=0RTT"), "{trial}: {said}");
            let is_refused = said.contains("Early data was rejected");
            assert_eq!(is_refused, trial.case == "0-RTT refused", "{trial}: {said}");
        }
        _ => {}
    }
}

/// What ngtcp2 has put into a folder.
fn compare(trial: &Trial<'_>) {
    for file in trial.files {
        let path = downloads(trial).join(file.name());
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{trial}: {error}"));
        assert!(
            bytes == file.bytes(0, file.size() as usize),
            "{trial}: {}",
            file.name()
        );
        fs::remove_file(path).unwrap();
    }
}

fn downloads(trial: &Trial<'_>) -> PathBuf {
    trial.site.outside().join("downloads")
}

fn ngtcp2(trial: &Trial<'_>) -> Command {
    fs::create_dir_all(downloads(trial)).unwrap();
    let mut client = tool("gtlsclient --exit-on-all-streams-close --no-quic-dump --no-http-dump");
    client.arg("--download").arg(downloads(trial));
    let host = trial.server.ip().to_string();
    let kept = |what: &str| {
        let name = format!("{what}-{}-{}", trial.case, host.len());
        trial.site.outside().join(name)
    };
    match trial.case {
        "version negotiation" => client.args(["--version=0x1a2a3a4a", "--preferred-versions=v1"]),
        "key update" => client.args(["--key-update", "2ms"]),
        "migration" => client.args(["--change-local-addr", "2ms"]),
        "resumption" => client.arg("--session-file").arg(kept("session")),
        "0-RTT" | "0-RTT refused" => {
            client.arg("--session-file").arg(kept("session"));
            client.arg("--tp-file").arg(kept("parameters"))
        }
        _ => &mut client,
    };
    client.args([&host, &trial.server.port().to_string()]);
    for file in trial.files {
        client.arg(format!("https://{}/{}", trial.server, file.name()));
    }
    client
}
