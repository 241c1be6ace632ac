//! Clients of HTTP/2 on links that lose packets, while NIC processes die, with many streams, and
//! with streams that they cancel. docs/interop.md has the same clients at their jobs.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::Ordering;

use testbed::namespace::isolated_long;
use testbed::process::{run, tool};
use testbed::site::{KnownFile, Site};
use testbed::splitway::{STACK_V4, STACK_V6, Splitway};
use testbed::{Context, Failure, Result};

use crate::browser::Page;
use crate::deaths::{clients_outlive_nics, counted, keep_packets, lose_packets};
use crate::https::{Certificate, HTTPS, serve_tls};
use crate::interop_long::installed;
use crate::support::on_threads;

/// Functions of `programs/interop/jobs.sh`.
const CLIENTS: [&str; 8] = [
    "http2_curl",
    "http2_nghttp",
    "http2_go",
    "http2_httpx",
    "http2_niquests",
    "http2_node",
    "http2_java",
    "http2_reqwest",
];

/// Deaths of NIC processes.
const DEATHS: usize = 12;

/// Counters that stay at zero while clients do nothing wrong and all bytes are good.
const FAULTS: [&str; 5] = [
    "http_http2_stream_errors",
    "http_http2_connection_errors",
    "tls_records_unproven",
    "tls_seal_mismatches",
    "reads_failed",
];

/// A site, its server's certificate, and the clients that are installed.
struct Lab<'a> {
    site: &'a Site,
    certificate: Certificate,
    clients: PathBuf,
    files: Vec<KnownFile>,
}

impl Lab<'_> {
    fn new(site: &Site, sizes: impl Iterator<Item = u64>) -> Lab<'_> {
        let files = sizes.enumerate();
        let files = files.map(|(index, size)| site.file(&format!("f{index}"), size).unwrap());
        Lab {
            site,
            certificate: Certificate::new(site.outside(), "server", "ec", &["localhost"]),
            clients: installed(),
            files: files.collect(),
        }
    }

    fn serve(&self) -> Splitway {
        serve_tls(self.site, &[&self.certificate], &[])
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(KnownFile::name)
    }

    /// Has a program of `jobs.sh` download all files at once and compare them, in a folder of its
    /// own.
    fn download(&self, client: &str, host: &str, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).context(|| format!("creating {folder:?}"))?;
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/interop");
        let mut job = tool("timeout 120 bash");
        job.arg(scripts.join("jobs.sh")).arg(client);
        job.args(self.names()).env("HOME", folder).env("HOST", host);
        self.finish(job.current_dir(folder))
    }

    /// Has the program of Go open connections with this many streams each.
    fn crowd(&self, kind: &str, connections: u32, streams: u32) -> Result<()> {
        let mut crowd = std::process::Command::new(self.clients.join("go-http2"));
        crowd.arg(kind);
        crowd.args([connections, streams].map(|number| number.to_string()));
        crowd.args(self.names()).env("HOST", STACK_V4.to_string());
        self.finish(&mut crowd)
    }

    fn finish(&self, command: &mut std::process::Command) -> Result<()> {
        command.env("ROOT", self.site.root());
        command.env("CLIENTS", &self.clients);
        command.env("TRUST", &self.certificate.certificate);
        let output = command.stdin(Stdio::null()).output();
        let output = output.context(|| format!("{command:?}"))?;
        match output.status.success() {
            true => Ok(()),
            false => {
                let text = [output.stdout, output.stderr].concat();
                let text = String::from_utf8_lossy(&text).into_owned();
                Err(Failure::new(format!("{command:?}: {text}")))
            }
        }
    }
}

#[test]
#[ignore = "its clients take long to install"]
fn clients_outlive_nic_processes_and_lost_packets() {
    isolated_long(|site| {
        let lab = Lab::new(&site, (0..20).map(|index| 100_000 + 17 * index));
        let splitway = lab.serve();
        lose_packets();
        clients_outlive_nics(&splitway, CLIENTS.len(), DEATHS, |index, progress| {
            let host = match index % 2 {
                0 => STACK_V4.to_string(),
                _ => format!("[{STACK_V6}]"),
            };
            let folder = site.outside().join(CLIENTS[index]);
            while !progress.is_over.load(Ordering::Relaxed) {
                lab.download(CLIENTS[index], &host, &folder)?;
                let responses = lab.files.len() as u64;
                progress.responses.fetch_add(responses, Ordering::Relaxed);
            }
            Ok(())
        });
        keep_packets();
        assert_eq!(counted(splitway, FAULTS), [0; FAULTS.len()]);
    });
}

#[test]
#[ignore = "its clients take long to install"]
fn a_thousand_streams_of_ten_connections_are_served_at_once() {
    isolated_long(|site| {
        let lab = Lab::new(&site, (1..=20).map(|index| 30_000 * index));
        let splitway = lab.serve();
        lab.crowd("crowd", 10, 100).unwrap();
        lose_packets();
        lab.crowd("crowd", 10, 100).unwrap();
        keep_packets();
        let mut h2load = tool("h2load --requests=20000 --clients=10 --max-concurrent-streams=100");
        let report = run(h2load.arg(format!("https://{}/f0", HTTPS[0]))).unwrap();
        let all = "20000 succeeded, 0 failed, 0 errored, 0 timeout";
        assert!(report.contains(all), "{report}");
        let names = ["http_http2_requests", "http_http2_stream_errors"];
        // A request before each crowd makes its connection.
        assert_eq!(counted(splitway, names), [2 * 1010 + 20_000, 0]);
    });
}

/// Half of the requests are cancelled somewhere; the others are complete, on the same connections.
#[test]
#[ignore = "its clients take long to install"]
fn streams_that_are_cancelled_at_random_harm_no_others() {
    isolated_long(|site| {
        let lab = Lab::new(&site, (1..=20).map(|index| 100_000 * index));
        let splitway = lab.serve();
        on_threads(5, |_| lab.crowd("cancel", 2, 100));
        lose_packets();
        on_threads(5, |_| lab.crowd("cancel", 2, 100));
        keep_packets();
        assert_eq!(counted(splitway, FAULTS), [0; FAULTS.len()]);
    });
}

#[test]
#[ignore = "needs a browser, which takes long to install"]
fn chromium_loads_a_page_of_two_hundred_objects_over_one_connection() {
    isolated_long(|site| {
        let lab = Lab::new(&site, (0..200).map(|index| 1 + 300 * index));
        let files: Vec<&KnownFile> = lab.files.iter().collect();
        for is_lossy in [false, true] {
            let splitway = lab.serve();
            if is_lossy {
                lose_packets();
            }
            let mut page = Page::open(&site, &lab.certificate, "");
            page.downloads(&site, ("h2", &format!("https://{STACK_V4}")), &files);
            drop(page);
            let names = ["http_http2_requests", "http_http2_stream_errors"];
            let [requests, errors] = counted(splitway, names);
            // The page, perhaps its icon, and the objects.
            assert!((201..=202).contains(&requests), "{requests}");
            assert_eq!(errors, 0);
        }
    });
}
