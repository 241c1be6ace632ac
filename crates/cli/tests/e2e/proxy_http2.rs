//! `splitway proxy` with TLS: curl and h2load speak HTTP/2 and HTTP/1.1, backends HTTP/1.1.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::Signal;
use testbed::backend::{Backend, Speech};
use testbed::namespace::isolated;
use testbed::process::{run, signal, tool};
use testbed::site::Site;
use testbed::web::content;
use testbed::{Context, Failure, Result, wait};

use crate::deaths::{counted, host_counter, lose_packets};
use crate::https::{Certificate, Choice, Client, HTTPS, finish};
use crate::proxy::{listen, pool, started, written};
use crate::stat::json;
use crate::support::{SOON, ctl, on_threads};

pub(crate) fn certificate(site: &Site, name: &str) -> Certificate {
    Certificate::new(site.outside(), name, "ec", &["localhost"])
}

/// A port that terminates TLS, and the certificate for it.
pub(crate) fn listen_tls(certificate: &Certificate) -> String {
    let [_, chain, _, key] = certificate.options();
    let listen = listen(443, "web", "tls = true");
    format!("{listen}[[tls.certificate]]\nchain = \"{chain}\"\nkey = \"{key}\"\n")
}

fn curl(certificate: &Certificate, options: &str) -> std::process::Command {
    let mut command = tool(&format!(
        "curl -q --silent --show-error --fail --max-time 100 {options}"
    ));
    command.arg("--cacert").arg(&certificate.certificate);
    command
}

/// Downloads bodies of these lengths on one connection, and compares every byte.
pub(crate) fn download(
    folder: &Path,
    (server, certificate): (&str, &Certificate),
    options: &str,
    lengths: &[usize],
) -> Result<()> {
    fs::create_dir_all(folder).context(|| format!("creating {folder:?}"))?;
    let version = if options.contains("--http2") {
        "2 200"
    } else {
        "1.1 200"
    };
    let mut command = curl(certificate, options);
    command.args(["--write-out", "%{http_version} %{http_code}\n"]);
    let targets = lengths.iter().enumerate().map(|(at, length)| {
        let in_chunks = at % 2 == 1 && *length > 100;
        let path = if in_chunks { "chunked/" } else { "" };
        (
            folder.join(format!("body{at}")),
            format!("{server}/{path}{length}"),
        )
    });
    let targets: Vec<_> = targets.collect();
    for (file, url) in &targets {
        command.arg("--output").arg(file).arg(url);
    }
    let text = run(&mut command).context(|| "curl".to_owned())?;
    assert!(text.lines().all(|line| line == version), "{text}");
    for ((file, url), &length) in targets.iter().zip(lengths) {
        let bytes = fs::read(file).context(|| format!("reading {file:?}"))?;
        if bytes != content(length, length as u64) {
            return Err(Failure::new(format!("{url}: {} other bytes", bytes.len())));
        }
    }
    Ok(())
}

/// Uploads a body, has it back, and compares every byte.
pub(crate) fn upload(
    folder: &Path,
    (server, certificate): (&str, &Certificate),
    options: &str,
    body: &[u8],
) -> Result<()> {
    fs::create_dir_all(folder).context(|| format!("creating {folder:?}"))?;
    let [sent, received] = ["sent", "received"].map(|name| folder.join(name));
    fs::write(&sent, body).context(|| "writing a body".to_owned())?;
    let mut command = curl(certificate, options);
    command
        .arg("--data-binary")
        .arg(format!("@{}", sent.display()));
    command.arg("--output").arg(&received);
    run(command.arg(format!("{server}/echo"))).context(|| "curl".to_owned())?;
    let bytes = fs::read(&received).context(|| "reading a body".to_owned())?;
    match bytes == body {
        true => Ok(()),
        false => Err(Failure::new(format!("{} other bytes", bytes.len()))),
    }
}

pub(crate) fn urls() -> [String; 2] {
    HTTPS.map(|server| format!("https://{server}"))
}

pub(crate) const AT_ONCE: &str = "--http2 --parallel --parallel-max 50";

pub(crate) const LENGTHS: [usize; 8] = [0, 1, 5000, 16_375, 65_536, 300_000, 1_000_000, 3_000_000];

#[test]
fn every_byte_gets_through_over_tls_in_both_versions() {
    isolated(|site| {
        let backends = [9001, 9002].map(|port| Backend::new(port, Speech::Http));
        let certificate = certificate(&site, "server");
        let text = listen_tls(&certificate) + &pool("web", "", &[9001, 9002]);
        let proxy = started(&written(&site, &text));
        on_threads(8, |index| {
            let folder = site.outside().join(format!("client{index}"));
            let server = (&*urls()[index % 2], &certificate);
            for options in [AT_ONCE, "--http1.1", "--http2 --tls-max 1.2"] {
                download(&folder, server, options, &LENGTHS)?;
                let body = content(400_000 + index, index as u64);
                upload(&folder, server, options, &body)?;
                let in_chunks = format!("{options} --header Transfer-Encoding:chunked");
                upload(&folder, server, &in_chunks, &body)?;
            }
            Ok(())
        });
        let heads = backends.iter().flat_map(Backend::heads);
        for head in heads {
            assert!(head.contains("\r\nX-Forwarded-Proto: https\r\n"), "{head}");
        }
        let names = [
            "proxy_http2_stream_errors",
            "proxy_http2_connection_errors",
            "proxy_refused_5xx",
            "tls_failed",
        ];
        assert_eq!(counted(proxy, names), [0; 4]);
    });
}

#[test]
fn streams_arrive_where_packets_are_lost() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Http);
        let certificate = certificate(&site, "server");
        let text = listen_tls(&certificate) + &pool("web", "", &[9001]);
        let proxy = started(&written(&site, &text));
        lose_packets();
        on_threads(10, |index| {
            let folder = site.outside().join(format!("client{index}"));
            let server = (&*urls()[index % 2], &certificate);
            download(&folder, server, AT_ONCE, &LENGTHS)?;
            upload(&folder, server, "--http2", &content(300_000, index as u64))
        });
        let names = ["proxy_http2_stream_errors", "proxy_http2_connection_errors"];
        assert_eq!(counted(proxy, names), [0, 0]);
    });
}

#[test]
fn streams_outlive_a_backend_that_dies_and_comes_back() {
    isolated(|site| {
        let steady = Backend::new(9002, Speech::Http);
        let dying = Backend::new(9001, Speech::Http);
        let certificate = certificate(&site, "server");
        let checks = "check = \"http\"\ncheck_path = \"/5\"\ncheck_interval = \"200ms\"\n\
                      check_timeout = \"200ms\"";
        let text = listen_tls(&certificate) + &pool("web", checks, &[9001, 9002]);
        let mut proxy = started(&written(&site, &text));
        let (is_over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
        let progress = |more: usize| {
            let target = rounds.load(Ordering::Relaxed) + more;
            let is_there = || (rounds.load(Ordering::Relaxed) >= target).then_some(());
            wait::until(SOON, "downloads", is_there).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                on_threads(4, |index| {
                    let folder = site.outside().join(format!("client{index}"));
                    let server = (&*urls()[index % 2], &certificate);
                    while !is_over.load(Ordering::Relaxed) {
                        // A response that has begun cannot go on at another backend.
                        download(&folder, server, AT_ONCE, &[10; 20])?;
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                });
            });
            progress(8);
            drop(dying);
            progress(20);
            let back = Backend::new(9001, Speech::Http);
            let serves = || (back.requests() > 50).then_some(());
            wait::until(SOON, "the backend to be used again", serves).unwrap();
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(steady.requests() > 100);
        proxy.end_with(Signal::TERM).unwrap();
        assert_eq!(host_counter(&mut proxy, "proxy_refused_5xx"), 0);
    });
}

#[test]
fn an_upgrade_over_tls_carries_another_protocol_and_its_end() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Http);
        let certificate = certificate(&site, "server");
        let text = listen_tls(&certificate) + &pool("web", "", &[9001]);
        let _proxy = started(&written(&site, &text));
        on_threads(5, |client| {
            let trusting = Client::new(&[&certificate], Choice::Any);
            let mut connection = trusting.open(HTTPS[client % 2])?;
            connection.send(
                b"GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
            )?;
            let head = connection.read_head()?;
            assert_eq!((head.status, head.field("upgrade")), (101, Some("echo")));
            for round in 0..20 {
                let sent = content(20_000 + client, round);
                connection.send(&sent)?;
                let mut received = Vec::new();
                connection.read_body(sent.len() as u64, |_, piece| {
                    received.extend_from_slice(piece);
                    Ok(())
                })?;
                assert!(received == sent, "round {round}");
            }
            finish(connection)
        });
    });
}

#[test]
fn thousands_of_requests_of_h2load_succeed() {
    isolated(|site| {
        let backend = Backend::new(9001, Speech::Http);
        let certificate = certificate(&site, "server");
        let text = listen_tls(&certificate) + &pool("web", "idle_max = 400", &[9001]);
        let proxy = started(&written(&site, &text));
        let mut command = tool("h2load -n 4000 -c 10 -m 40");
        let text = run(command.arg(format!("{}/2000", urls()[0]))).unwrap();
        assert!(
            text.contains("4000 succeeded, 0 failed, 0 errored"),
            "{text}"
        );
        let connections = backend.connections();
        assert!(
            connections < 1000,
            "{connections} connections for 4000 requests"
        );
        assert_eq!(counted(proxy, ["proxy_http2_requests"]), [4000]);
    });
}

#[test]
fn a_certificate_is_renewed_and_a_drain_completes_responses() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Http);
        let old = certificate(&site, "old");
        let text = listen_tls(&old) + &pool("web", "", &[9001]);
        let path = written(&site, &text);
        let mut proxy = started(&path);
        let folder = site.outside().join("client");
        let url = &*urls()[0];
        download(&folder, (url, &old), "--http2", &[1000]).unwrap();
        let new = certificate(&site, "new");
        fs::write(&path, listen_tls(&new) + &pool("web", "", &[9001])).unwrap();
        let (is_done, said) = ctl("reload", None);
        assert!(is_done, "{said}");
        download(&folder, (url, &new), "--http2", &[1000]).unwrap();
        assert!(download(&folder, (url, &old), "--http2", &[1000]).is_err());
        let requests = json(&["--summary"])["host"]["counters"]["proxy_requests"].as_u64();
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| {
                let options = "--http2 --limit-rate 8M";
                download(&folder, (url, &new), options, &[20_000_000])
            });
            wait::until(SOON, "a request", || {
                let now = &json(&["--summary"])["host"]["counters"]["proxy_requests"];
                (now.as_u64() > requests).then_some(())
            })
            .unwrap();
            signal(proxy.supervisor(), Signal::QUIT).unwrap();
            slow.join().unwrap().unwrap();
        });
        assert!(proxy.wait().unwrap().success());
    });
}
