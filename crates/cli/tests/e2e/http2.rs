//! HTTP/2 with curl, whose streams share a connection.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use testbed::http::Connection;
use testbed::namespace::isolated;
use testbed::process::{run, signal, tool};
use testbed::site::{KnownFile, Site};
use testbed::splitway::{HTTP_V4, Splitway};
use testbed::{Context, Result};

use crate::config::{configuration, serve_configured, version};
use crate::deaths::{clients_outlive_nics, counted, files, host_counter, lose_packets};
use crate::https::{Certificate, HTTPS, serve_tls};
use crate::isolation::no_content_in_the_host;
use crate::stat::json;
use crate::support::{ctl, on_threads};

/// Clients while NIC processes die.
const CLIENTS: usize = 10;

fn certificate(site: &Site) -> Certificate {
    Certificate::new(site.outside(), "server", "ec", &["localhost"])
}

fn serve(site: &Site, certificate: &Certificate, more: &[&str]) -> Splitway {
    serve_tls(site, &[certificate], more)
}

/// Streams at a time of a client's connection.
pub(crate) const AT_ONCE: &str = "--parallel --parallel-max 100";

/// Downloads all these files over one connection, and compares every byte. `folder` is the client's
/// own.
pub(crate) fn download(
    folder: &Path,
    (server, certificate): (&str, &Certificate),
    files: &[KnownFile],
    options: &str,
) -> Result<()> {
    fs::create_dir_all(folder).context(|| format!("creating {folder:?}"))?;
    let mut command = tool(&format!(
        "curl -q --silent --show-error --fail --max-time 100 {options}"
    ));
    command.arg("--cacert").arg(&certificate.certificate);
    command.args(["--write-out", "%{http_version} %{num_connects}\n"]);
    for file in files {
        command.arg("--output").arg(folder.join(file.name()));
        command.arg(format!("{server}/{}", file.name()));
    }
    let text = run(&mut command).context(|| "curl".to_owned())?;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), files.len(), "{text}");
    assert!(lines.iter().all(|line| line.starts_with("2 ")), "{text}");
    let connects = lines.iter().filter(|line| line.ends_with(" 1")).count();
    assert_eq!(connects, 1, "all streams share a connection: {text}");
    for file in files {
        let bytes = fs::read(folder.join(file.name())).context(|| "a download".to_owned())?;
        assert_eq!(bytes.len() as u64, file.size(), "{}", file.name());
        assert_eq!(file.check(0, &bytes), Ok(()), "{}", file.name());
    }
    Ok(())
}

/// The server's address in each family, as in a URL.
fn urls() -> [String; 2] {
    HTTPS.map(|server| format!("https://{server}"))
}

#[test]
fn every_byte_of_files_of_all_sizes_arrives_on_streams_of_one_connection() {
    isolated(|site| {
        let files: Vec<KnownFile> = [
            0, 1, 1000, 16_375, 16_384, 65_535, 65_536, 1_000_000, 20_000_000,
        ]
        .iter()
        .map(|&size| site.file(&format!("file{size}"), size).unwrap())
        .collect();
        let certificate = certificate(&site);
        let splitway = serve(&site, &certificate, &[]);
        let folder = site.outside().join("client");
        for url in urls() {
            for options in ["--http2", "--http2 --tls-max 1.2"] {
                let options = format!("{options} {AT_ONCE}");
                download(&folder, (&url, &certificate), &files, &options).unwrap();
            }
        }
        let names: Vec<&str> = files[6..].iter().map(KnownFile::name).collect();
        no_content_in_the_host(&site, &splitway, &names);
        let names = [
            "http_http2_requests",
            "http_http2_connection_errors",
            "tls_failed",
        ];
        assert_eq!(counted(splitway, names), [36, 0, 0]);
    });
}

/// ALPN decides, and so does the operator.
#[test]
fn clients_that_offer_http1_alone_get_that_and_so_do_all_where_http2_is_off() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let certificate = certificate(&site);
        let version = |options: &str| {
            let mut command = tool(&format!(
                "curl -q --silent --show-error --fail --max-time 60 --output /dev/null {options}"
            ));
            command.arg("--cacert").arg(&certificate.certificate);
            command.args(["--write-out", "%{http_version}"]);
            run(command.arg(format!("https://{}/{}", HTTPS[0], file.name()))).unwrap()
        };
        let splitway = serve(&site, &certificate, &[]);
        assert_eq!(version("--http2"), "2");
        assert_eq!(version("--http1.1"), "1.1");
        assert_eq!(version("--no-alpn"), "1.1");
        drop(splitway);
        let options = certificate.options();
        let text = format!(
            "[[listen]]\nport = 443\ntls = true\n[tls]\nhttp2 = false\n\
             [[tls.certificate]]\nchain = \"{}\"\nkey = \"{}\"\n",
            options[1], options[3]
        );
        let _splitway = serve_configured(&configuration(&site, &text));
        assert_eq!(version("--http2"), "1.1");
    });
}

#[test]
fn a_port_without_tls_speaks_http2_to_clients_that_begin_with_it() {
    isolated(|site| {
        let files: Vec<KnownFile> = [1000, 300_000, 5_000_000]
            .iter()
            .map(|&size| site.file(&format!("file{size}"), size).unwrap())
            .collect();
        let path = configuration(&site, "[http]\nhttp2_prior_knowledge = true\n");
        let _splitway = serve_configured(&path);
        let folder = site.outside().join("client");
        let url = format!("http://{HTTP_V4}");
        let certificate = certificate(&site);
        // A connection for each file: curl 7.88 fails where it reuses such a connection.
        let options = "--http2-prior-knowledge";
        for file in &files {
            let file = std::slice::from_ref(file);
            download(&folder, (&url, &certificate), file, options).unwrap();
        }
        let mut connection = Connection::open(HTTP_V4).unwrap();
        for file in &files {
            connection.get(file).unwrap();
        }
    });
}

#[test]
fn streams_of_many_connections_arrive_where_packets_are_lost() {
    isolated(|site| {
        let files = files(&site);
        let certificate = certificate(&site);
        let splitway = serve(&site, &certificate, &[]);
        lose_packets();
        on_threads(20, |index| {
            let folder = site.outside().join(format!("client{index}"));
            let server = (&*urls()[index % 2], &certificate);
            for _ in 0..3 {
                download(&folder, server, &files, &format!("--http2 {AT_ONCE}"))?;
            }
            Ok(())
        });
        let names = ["http_http2_stream_errors", "http_http2_connection_errors"];
        assert_eq!(counted(splitway, names), [0, 0]);
    });
}

#[test]
fn streams_outlive_nic_processes_and_lost_packets() {
    isolated(|site| {
        let files = files(&site);
        let certificate = certificate(&site);
        let splitway = serve(&site, &certificate, &[]);
        lose_packets();
        clients_outlive_nics(&splitway, CLIENTS, 8, |index, progress| {
            let folder = site.outside().join(format!("client{index}"));
            let server = (&*urls()[index % 2], &certificate);
            while !progress.is_over.load(Ordering::Relaxed) {
                download(&folder, server, &files, &format!("--http2 {AT_ONCE}"))?;
                let responses = files.len() as u64;
                progress.responses.fetch_add(responses, Ordering::Relaxed);
            }
            Ok(())
        });
        let names = [
            "http_http2_stream_errors",
            "http_http2_connection_errors",
            "tls_records_unproven",
            "tls_seal_mismatches",
            "reads_failed",
        ];
        assert_eq!(counted(splitway, names), [0; 5]);
    });
}

/// Rules, limits and certificates change while streams last; their connections stay.
#[test]
fn streams_outlive_reloads() {
    isolated(|site| {
        let files = files(&site);
        let certificate = certificate(&site);
        let tls = format!(
            "[[listen]]\nport = 443\ntls = true\n[[tls.certificate]]\nchain = {:?}\nkey = {:?}\n",
            certificate.certificate, certificate.key
        );
        let text = |number: u32| format!("{tls}{}", version(number));
        let path = configuration(&site, &text(0));
        let mut splitway = serve_configured(&path);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                on_threads(4, |index| {
                    let folder = site.outside().join(format!("client{index}"));
                    let server = (&*urls()[index % 2], &certificate);
                    let options = format!("--http2 {AT_ONCE} --limit-rate 500k");
                    while !is_over.load(Ordering::Relaxed) {
                        download(&folder, server, &files, &options)?;
                    }
                    Ok(())
                });
            });
            for number in 1..=20 {
                configuration(&site, &text(number));
                let (done, said) = ctl("reload", None);
                assert!(done && said.contains("configuration read again"), "{said}");
            }
            is_over.store(true, Ordering::Relaxed);
            clients.join().unwrap();
        });
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
        assert_eq!(host_counter(&mut splitway, "connections_broken"), 0);
        assert_eq!(host_counter(&mut splitway, "http_http2_stream_errors"), 0);
    });
}

/// GOAWAY, and the response to its end.
#[test]
fn a_server_that_drains_completes_responses() {
    isolated(|site| {
        let file = site.file("large", 20_000_000).unwrap();
        let certificate = certificate(&site);
        let mut splitway = serve(&site, &certificate, &[]);
        let folder = site.outside().join("client");
        std::thread::scope(|scope| {
            let download = scope.spawn(|| {
                let server = (&*urls()[0], &certificate);
                let options = "--http2 --limit-rate 8M";
                download(&folder, server, std::slice::from_ref(&file), options)
            });
            testbed::wait::until(crate::support::SOON, "a request", || {
                let host = &json(&["--summary"])["host"];
                (host["counters"]["http_http2_requests"] == 1).then_some(())
            })
            .unwrap();
            signal(splitway.supervisor(), Signal::QUIT).unwrap();
            download.join().unwrap().unwrap();
        });
        assert!(splitway.wait().unwrap().success());
        assert_eq!(host_counter(&mut splitway, "connections_broken"), 0);
    });
}
