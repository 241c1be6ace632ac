//! h2load of nghttp2, as a load generator.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use testbed::process::{Process, tool};
use testbed::{Context, Failure, Result};

use crate::CLIENT_CORE;
use crate::load::{Outcome, READY, conclude, print_line};

/// Time before anything is counted, for handshakes.
pub(super) const WARM_UP_SECONDS: f64 = 1.0;

/// A load.
#[derive(clap::Args, Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Address of the server
    #[arg(long)]
    pub(super) server: SocketAddr,
    /// Folder of the files, which are named by their numbers
    #[arg(long)]
    pub(super) folder: String,
    /// Number of files
    #[arg(long)]
    pub(super) files: usize,
    /// Size of each file, in bytes
    #[arg(long)]
    pub(super) file_bytes: u64,
    /// Number of connections
    #[arg(long)]
    pub(super) connections: usize,
    /// Requests at a time on each connection
    #[arg(long)]
    pub(super) streams: usize,
    /// HTTP/1.1
    #[arg(long)]
    pub(super) http1: bool,
    /// Seconds
    #[arg(long)]
    pub(super) seconds: f64,
    /// Directory for a list of the files
    #[arg(long)]
    pub(super) place: PathBuf,
}

impl Settings {
    /// The arguments that have this program generate the load.
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "http2-load".to_owned(),
            format!("--server={}", self.server),
            format!("--folder={}", self.folder),
            format!("--files={}", self.files),
            format!("--file-bytes={}", self.file_bytes),
            format!("--connections={}", self.connections),
            format!("--streams={}", self.streams),
            format!("--seconds={}", self.seconds),
            format!("--place={}", self.place.display()),
        ];
        arguments.extend(self.http1.then(|| "--http1".to_owned()));
        arguments
    }
}

/// Fails if h2load is missing, before anything is measured.
pub(super) fn must_be_there() -> Result<()> {
    let asked = Command::new("h2load").arg("--version").output();
    asked
        .map(drop)
        .context(|| "running h2load, which Debian has in nghttp2-client".into())
}

/// Runs h2load, with [`READY`] when its warm-up is over and an [`Outcome`] at the end.
pub(crate) fn generate(settings: &Settings) -> Result<()> {
    let list = settings.place.join("urls");
    let (server, folder) = (settings.server, &settings.folder);
    let urls = (0..settings.files).map(|index| format!("https://{server}/{folder}/{index}\n"));
    fs::write(&list, urls.collect::<String>()).context(|| format!("writing {}", list.display()))?;
    let mut command = tool(&format!(
        "taskset --cpu-list {CLIENT_CORE} h2load --warm-up-time={WARM_UP_SECONDS} \
         --duration={}ms --clients={} --max-concurrent-streams={} \
         --tls13-ciphers=TLS_AES_256_GCM_SHA384",
        (settings.seconds * 1e3) as u64,
        settings.connections,
        settings.streams,
    ));
    if settings.http1 {
        command.arg("--h1");
    }
    command.arg("--input-file").arg(&list);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = Process::spawn(&mut command)?;
    let stdout = process.child().stdout.take().expect("a pipe, as asked for");
    let mut text = String::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.context(|| "reading from h2load".into())?;
        if line.starts_with("Main benchmark duration is started") {
            print_line(READY)?;
        }
        text += &line;
        text += "\n";
    }
    let outcome = outcome_in(&text, settings.file_bytes);
    let outcome = outcome.ok_or_else(|| Failure::new(format!("h2load printed {text:?}")))?;
    conclude(&outcome)
}

/// The outcome that h2load has printed; `None` if a request has failed, a response was cut off, or
/// the cipher was another one.
fn outcome_in(text: &str, file_bytes: u64) -> Option<Outcome> {
    let line = |begin: &str| text.lines().find_map(|line| line.strip_prefix(begin));
    let word = |begin: &str, behind: &str| {
        let words: Vec<&str> = line(begin)?.split([' ', ',']).collect();
        let place = words.iter().position(|word| *word == behind)?;
        words.get(place.checked_sub(1)?).copied()
    };
    if !line("Cipher: ")?.contains("AES_256_GCM") {
        return None;
    }
    let number = |behind| word("requests: ", behind)?.parse::<u64>().ok();
    let responses = number("succeeded")?;
    if number("failed")? + number("errored")? + number("timeout")? > 0 {
        return None;
    }
    // The time that is printed has the warm-up as well.
    let rate: f64 = word("finished in ", "req/s")?.parse().ok()?;
    Some(Outcome {
        body_bytes: responses * file_bytes,
        responses,
        elapsed_ns: (responses as f64 / rate * 1e9) as u64,
        ..Outcome::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::tests::read;

    const PRINTED: &str = "Cipher: TLS_AES_256_GCM_SHA384\n\
        Main benchmark duration is started for thread #0.\n\
        finished in 1.70s, 30611.43 req/s, 2.85GB/s\n\
        requests: 21428 total, 21428 started, 21428 done, 21428 succeeded, 0 failed, 0 errored, \
        0 timeout\n";

    #[test]
    fn the_output_of_h2load_is_understood() {
        let outcome = outcome_in(PRINTED, 1000).unwrap();
        assert_eq!(
            (outcome.responses, outcome.body_bytes),
            (21_428, 21_428_000)
        );
        assert_eq!((outcome.elapsed_ns as f64 / 1e6).round(), 700.0);
        for (word, other) in [("0 failed", "1 failed"), ("AES_256", "AES_128")] {
            assert!(outcome_in(&PRINTED.replace(word, other), 1000).is_none());
        }
    }

    #[test]
    fn arguments_of_the_load_are_those_that_it_reads() {
        let load = Settings {
            server: "192.0.2.1:443".parse().unwrap(),
            folder: "large".to_owned(),
            files: 2,
            file_bytes: 3,
            connections: 4,
            streams: 5,
            http1: true,
            seconds: 0.5,
            place: "/place".into(),
        };
        assert_eq!(read::<Settings>(&load.arguments()), load);
    }
}
