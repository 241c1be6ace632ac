//! The file of one connection: qlog as a sequence of JSON texts (RFC 7464,
//! draft-ietf-quic-qlog-main-schema §5).

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use failure::Failure;
use serde_json::{Value, json};
use time::OffsetDateTime;

/// Precedes each text.
const RECORD_SEPARATOR: u8 = 0x1e;

/// Schemas of the events. The first is that of a draft, with its number.
const SCHEMAS: [&str; 2] = [
    "urn:ietf:params:qlog:events:quic-12",
    "urn:splitway:qlog:events:splitway",
];

/// A trace file that is being written.
#[derive(Debug)]
pub(super) struct TraceFile<W: Write = File> {
    name: String,
    into: BufWriter<W>,
    bytes: u64,
}

impl TraceFile {
    /// Creates the file, which must not exist. Times of events count from `unix_time_us`, in
    /// microseconds since 1970.
    pub(super) fn create(path: PathBuf, title: &str, unix_time_us: u64) -> Result<Self, Failure> {
        let name = format!("file {}", path.display());
        let mut options = OpenOptions::new();
        // Only the owner may read the addresses of clients.
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&path).map_err(|error| {
            let failure = Failure::input(&name, &error);
            match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    failure.remedy("It is from an earlier trace: choose another directory with -d.")
                }
                _ => failure.remedy("Choose a directory where this user may write with -d."),
            }
        })?;
        Self::begin(name, file, title, unix_time_us)
    }
}

impl<W: Write> TraceFile<W> {
    fn begin(name: String, into: W, title: &str, unix_time_us: u64) -> Result<Self, Failure> {
        let mut file = Self {
            name,
            into: BufWriter::with_capacity(64 << 10, into),
            bytes: 0,
        };
        file.text(&json!({
            "file_schema": "urn:ietf:params:qlog:file:sequential",
            "serialization_format": "application/qlog+json-seq",
            "title": title,
            "trace": {
                "event_schemas": SCHEMAS,
                "vantage_point": { "name": "splitway", "type": "server" },
                "common_fields": {
                    "time_format": "relative_to_epoch",
                    "reference_time": {
                        "clock_type": "monotonic",
                        "epoch": "unknown",
                        "wall_clock_time": rfc3339(unix_time_us),
                    },
                },
            },
        }))?;
        Ok(file)
    }

    /// Returns the number of bytes written.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn event(&mut self, time_us: u64, name: &str, data: &Value) -> Result<(), Failure> {
        // Milliseconds, as all times in qlog.
        let time = time_us as f64 / 1000.0;
        self.text(&json!({ "time": time, "name": name, "data": data }))
    }

    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        let flushed = self.into.flush();
        flushed.map_err(|error| self.failed(&error))
    }

    /// Flushes the file; returns the number of bytes written.
    pub(super) fn end(mut self) -> Result<u64, Failure> {
        self.flush()?;
        Ok(self.bytes)
    }

    fn text(&mut self, text: &Value) -> Result<(), Failure> {
        let text = text.to_string();
        let parts = [&[RECORD_SEPARATOR][..], text.as_bytes(), b"\n"];
        for part in parts {
            let written = self.into.write_all(part);
            written.map_err(|error| self.failed(&error))?;
            self.bytes += part.len() as u64;
        }
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::broken(&self.name, error).remedy("Make room, or choose another place with -d.")
    }
}

/// Formats a time in microseconds since 1970, to the millisecond.
fn rfc3339(unix_time_us: u64) -> String {
    let nanos = i128::from(unix_time_us) * 1000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos);
    let time = time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.to_hms();
    let (month, ms) = (u8::from(month), time.millisecond());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_header_and_events_each_behind_a_separator() {
        let mut written = Vec::new();
        let at_us = 1_700_000_000_123_456;
        let mut file = TraceFile::begin("a file".to_owned(), &mut written, "title", at_us).unwrap();
        file.event(
            1500,
            "quic:packet_lost",
            &json!({ "trigger": "time_threshold" }),
        )
        .unwrap();
        let bytes = file.end().unwrap();
        assert_eq!(bytes, written.len() as u64);
        let texts: Vec<Value> = written
            .split(|&byte| byte == RECORD_SEPARATOR)
            .skip(1)
            .map(|text| serde_json::from_slice(text).unwrap())
            .collect();
        let [header, event] = &texts[..] else {
            panic!("two texts: {texts:?}");
        };
        let fields = &header["trace"]["common_fields"]["reference_time"];
        assert_eq!(fields["wall_clock_time"], "2023-11-14T22:13:20.123Z");
        assert_eq!(header["trace"]["vantage_point"]["type"], "server");
        let wanted = json!({
            "time": 1.5, "name": "quic:packet_lost", "data": { "trigger": "time_threshold" },
        });
        assert_eq!(*event, wanted);
    }

    #[test]
    fn no_earlier_trace_is_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("7.sqlog");
        TraceFile::create(path.clone(), "first", 0)
            .unwrap()
            .end()
            .unwrap();
        let failure = TraceFile::create(path, "second", 0)
            .unwrap_err()
            .to_string();
        assert!(
            failure.contains("7.sqlog") && failure.contains("earlier trace"),
            "{failure}"
        );
    }
}
