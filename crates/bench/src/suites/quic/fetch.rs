//! The client of `quic-link`: connections that begin together, each downloading one long file,
//! until time is up.
//!
//! It counts goodput: bytes of bodies received in order.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quinn_proto::{Connection, Dir, Event, ReadError, StreamEvent, StreamId};
use testbed::{Context, Failure, Result};

use super::driver::Driver;
use super::http3::{self, Response};
use super::{LINK_WINDOW_BYTES, client};
use crate::load::{print_line, take_place};
use crate::suites::goodput::FILE;
use crate::suites::goodput::fetch::{Flow, Outcome};
use crate::suites::tls::identity;

/// The downloads.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Settings {
    /// Address of the server
    #[arg(long)]
    pub(super) server: SocketAddr,
    /// The server's certificate
    #[arg(long)]
    pub(super) certificate: PathBuf,
    /// Number of connections
    #[arg(long)]
    pub(super) flows: usize,
    /// Time to run, in milliseconds
    #[arg(long)]
    pub(super) milliseconds: u64,
}

impl Settings {
    /// The settings as command-line arguments.
    pub(super) fn arguments(&self) -> Vec<String> {
        vec![
            "quic-fetch".into(),
            format!("--server={}", self.server),
            format!("--certificate={}", self.certificate.display()),
            format!("--flows={}", self.flows),
            format!("--milliseconds={}", self.milliseconds),
        ]
    }
}

/// A connection's download.
#[derive(Default)]
struct Download {
    stream: Option<StreamId>,
    response: Response,
    bytes: u64,
}

/// Fetches until time is up; prints the [`Outcome`].
pub(crate) fn fetch(settings: &Settings) -> Result<()> {
    take_place()?;
    let mut driver = Driver::new((Ipv4Addr::UNSPECIFIED, 0).into(), None)?;
    let config = client::config(&settings.certificate, LINK_WINDOW_BYTES)?;
    let began = Instant::now();
    let mut downloads = Vec::new();
    for _ in 0..settings.flows {
        let index = driver.connect(config.clone(), settings.server, identity::NAME)?;
        downloads.resize_with(index + 1, Download::default);
    }
    let length = Duration::from_millis(settings.milliseconds);
    while let Some(left) = length.checked_sub(began.elapsed()) {
        driver.turn(left, &mut |index, quinn, event| {
            downloads[index].on_event(quinn, event)
        })?;
    }
    let flows = downloads.iter().map(|download| Flow {
        bytes: download.bytes,
        fair_bytes: 0,
    });
    let outcome = Outcome {
        flows: flows.collect(),
        elapsed_ns: began.elapsed().as_nanos() as u64,
    };
    print_line(&serde_json::to_string(&outcome).context(|| "writing JSON".into())?)
}

impl Download {
    fn on_event(&mut self, quinn: &mut Connection, event: Event) -> Result<()> {
        match event {
            Event::Connected => {
                let control = quinn.streams().open(Dir::Uni);
                let control = control.ok_or_else(|| Failure::new("no control stream"))?;
                client::write(quinn, control, &http3::control_stream())?;
                let stream = quinn.streams().open(Dir::Bi);
                let stream = stream.ok_or_else(|| Failure::new("the server permits no stream"))?;
                client::write(quinn, stream, &http3::request(&format!("/{FILE}")))?;
                let finished = quinn.send_stream(stream).finish();
                finished.context(|| "ending a request".into())?;
                self.stream = Some(stream);
                Ok(())
            }
            Event::ConnectionLost { reason } => {
                Err(Failure::new(format!("a connection is lost: {reason}")))
            }
            Event::Stream(StreamEvent::Readable { id }) if self.stream == Some(id) => {
                self.read(quinn, id)
            }
            _ => Ok(()),
        }
    }

    fn read(&mut self, quinn: &mut Connection, stream: StreamId) -> Result<()> {
        let mut receiving = quinn.recv_stream(stream);
        let reading = || "reading a stream".to_owned();
        let mut chunks = receiving.read(true).context(reading)?;
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => self.take(&chunk.bytes)?,
                Ok(None) => {
                    return Err(Failure::new(
                        "a response has ended: is the file long enough?",
                    ));
                }
                Err(ReadError::Blocked) => break,
                Err(error) => return Err(error).context(reading),
            }
        }
        // Flow-control updates leave with the next packets.
        let _ = chunks.finalize();
        Ok(())
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<()> {
        while let Some(body) = self.response.next(&mut bytes)? {
            if body.iter().any(|byte| *byte != 0) {
                return Err(Failure::new("a hole in a file has more than zeros"));
            }
            self.bytes += body.len() as u64;
        }
        Ok(())
    }
}
