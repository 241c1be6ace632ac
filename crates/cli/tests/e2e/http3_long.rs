//! HTTP/3 with clients that others wrote: what each of them does is a row of the table in
//! docs/quic.md.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use testbed::namespace::isolated_long;
use testbed::process::{run, tool};
use testbed::site::{KnownFile, Site};
use testbed::splitway::Splitway;

use crate::browser::chromium;
use crate::https::{Certificate, HTTPS};
use crate::stat::host_counted;
use crate::support::{nft, serve_with};

/// Clients, and the cases that each of them knows.
const CLIENTS: [(&str, &[&str]); 4] = [
    ("curl", &["transfer", "resumption", "loss"]),
    (
        "aioquic",
        &[
            "transfer",
            "multiplexing",
            "resumption",
            "retry",
            "version negotiation",
            "key update",
            "connection ID",
            "loss",
        ],
    ),
    (
        "ngtcp2",
        &[
            "transfer",
            "multiplexing",
            "resumption",
            "retry",
            "key update",
            "migration",
            "loss",
        ],
    ),
    ("Chromium", &["transfer", "loss"]),
];

/// A page that downloads a file, and shows its length and sum.
const PAGE: &str = r#"<!doctype html><title>download</title><p id="sum"></p><script>
(async () => {
  const response = await fetch("/file2");
  const bytes = await response.arrayBuffer();
  const sum = await crypto.subtle.digest("SHA-256", bytes);
  const hex = Array.from(new Uint8Array(sum), (byte) => byte.toString(16).padStart(2, "0"));
  const entry = performance.getEntriesByName(response.url)[0];
  document.getElementById("sum").textContent =
    `${entry.nextHopProtocol} ${bytes.byteLength} ${hex.join("")}`;
})();
</script>"#;

fn serve(site: &Site, certificate: &Certificate, case: &str) -> Splitway {
    let options = certificate.options();
    let mut all = vec!["--tls-listen", "443", "--http3"];
    all.extend(options.iter().map(String::as_str));
    let configuration = site.outside().join("quic.toml");
    fs::write(&configuration, "[quic]\nretry_above = 0\n").unwrap();
    let configuration = configuration.to_str().unwrap().to_owned();
    if case == "retry" {
        all.extend(["--config", &configuration]);
    }
    serve_with(site, &all)
}

/// Python with the clients that it has.
fn python() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = target.unwrap_or_else(|| workspace.join("target"));
    target.join("http3-clients/bin/python")
}

fn download(client: &str, case: &str, site: &Site, files: &[KnownFile]) {
    for server in HTTPS {
        let host = server.ip().to_string();
        let mut command = match client {
            "ngtcp2" => ngtcp2(case, site, &host, files),
            _ => {
                let script = "tests/e2e/http3/clients.py";
                let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
                let mut python = tool(python().to_str().unwrap());
                python.arg(script).args([client, case, &host, "443"]);
                python
                    .arg(site.root())
                    .args(files.iter().map(KnownFile::name));
                python
            }
        };
        run(&mut command).unwrap_or_else(|error| panic!("{client}, {case}, {host}: {error}"));
        if client == "ngtcp2" {
            if case == "resumption" {
                let before = host_counted("quic_resumed");
                run(&mut ngtcp2(case, site, &host, files)).unwrap();
                assert_eq!(host_counted("quic_resumed"), before + 1, "{host}");
            }
            for file in files {
                let path = site.outside().join("downloads").join(file.name());
                let bytes = fs::read(&path).unwrap();
                assert!(
                    bytes == file.bytes(0, file.size() as usize),
                    "{client}, {case}"
                );
                fs::remove_file(path).unwrap();
            }
        }
    }
}

fn ngtcp2(case: &str, site: &Site, host: &str, files: &[KnownFile]) -> std::process::Command {
    let downloads = site.outside().join("downloads");
    fs::create_dir_all(&downloads).unwrap();
    let mut client = tool("gtlsclient --exit-on-all-streams-close --no-quic-dump --no-http-dump");
    client.arg("--download").arg(downloads);
    match case {
        "key update" => client.args(["--key-update", "2ms"]),
        "migration" => client.args(["--change-local-addr", "2ms"]),
        "resumption" => {
            let session = site.outside().join(format!("session-{}", host.len()));
            client.arg("--session-file").arg(session)
        }
        _ => &mut client,
    };
    client.args([host, "443"]);
    let place = match host.contains(':') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    };
    for file in files {
        client.arg(format!("https://{place}/{}", file.name()));
    }
    client
}

fn show_in_chromium(site: &Site, certificate: &Certificate, files: &[KnownFile]) {
    fs::write(site.root().join("page.html"), PAGE).unwrap();
    let sum = run(tool("sha256sum").arg(site.root().join(files[2].name()))).unwrap();
    let expected = format!("h3 {} {}", files[2].size(), sum.split(' ').next().unwrap());
    for server in HTTPS {
        let options = "--virtual-time-budget=100000 --enable-quic \
                       --origin-to-force-quic-on=splitway.test:443";
        let mut browser = chromium(site, certificate, options);
        // An address of IPv6 is no origin to force.
        let host = match server {
            SocketAddr::V4(server) => server.ip().to_string(),
            SocketAddr::V6(server) => format!("[{}]", server.ip()),
        };
        browser.arg(format!("--host-resolver-rules=MAP splitway.test {host}"));
        browser.args(["--dump-dom", "https://splitway.test/page.html"]);
        let page = run(&mut browser).unwrap();
        let (_, rest) = page.split_once("<p id=\"sum\">").expect(&page);
        assert_eq!(rest.split_once('<').unwrap().0, expected, "{server}");
    }
}

/// One datagram in a hundred is lost, in either direction. A drop any earlier on their way out
/// would be an error of `sendmsg`, which some clients take for the end.
fn lose_datagrams(table: &str) {
    for hook in ["ingress", "egress"] {
        nft(&format!(
            "add table netdev {table}; \
             add chain netdev {table} {hook} \
             {{ type filter hook {hook} device splitway0 priority 0; }}; \
             add rule netdev {table} {hook} meta l4proto udp numgen random mod 100 < 1 drop"
        ));
    }
}

/// The rows of the table.
fn rows() -> String {
    let mut cases: Vec<&str> = Vec::new();
    for case in CLIENTS.iter().flat_map(|(_, cases)| *cases) {
        if !cases.contains(case) {
            cases.push(case);
        }
    }
    let mut rows = String::from("|");
    for (client, _) in CLIENTS {
        rows += &format!(" | {client}");
    }
    rows += " |\n|---";
    rows += &"|---".repeat(CLIENTS.len());
    rows += "|\n";
    for case in cases {
        rows += &format!("| {case}");
        for (_, known) in CLIENTS {
            rows += if known.contains(&case) {
                " | yes"
            } else {
                " |"
            };
        }
        rows += " |\n";
    }
    rows
}

#[test]
fn the_page_has_the_table_of_clients_and_cases() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/quic.md");
    let page = fs::read_to_string(page).unwrap();
    let rows = rows();
    assert!(page.contains(&rows), "docs/quic.md is to have:\n{rows}");
}

#[test]
#[ignore = "needs clients that take long to install"]
fn clients_of_others_download_every_byte() {
    isolated_long(|site| {
        let files: Vec<KnownFile> = [1000, 300_000, 5_000_000]
            .iter()
            .enumerate()
            .map(|(at, &size)| site.file(&format!("file{at}"), size).unwrap())
            .collect();
        let certificate = Certificate::new(site.outside(), "localhost", "ec", &["localhost"]);
        for (client, cases) in CLIENTS {
            for case in cases {
                let _splitway = serve(&site, &certificate, case);
                if *case == "loss" {
                    lose_datagrams(&format!("{client}_loss"));
                }
                match client {
                    "Chromium" => show_in_chromium(&site, &certificate, &files),
                    _ => download(client, case, &site, &files),
                }
                println!("{client}: {case}");
            }
        }
    });
}
