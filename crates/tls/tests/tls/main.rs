//! Connections against the client of rustls, and against a client that does as it likes. Records
//! are sealed and opened by RustCrypto, which shares no code with aws-lc.
#![forbid(unsafe_code)]

mod certificates;
mod close;
mod early_data;
mod handshakes;
mod hostile;
mod key_updates;
mod progress;
mod replays;
mod splits;
