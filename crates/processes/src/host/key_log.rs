//! The key log: secrets of connections in the NSS format (draft-ietf-tls-keylogfile), which
//! Wireshark reads, for debugging. They go only to the observer, which writes them; lines that its
//! socket does not take at once are dropped and counted.

use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use failure::Failure;
use observer::SocketSink;
use tls::KeyLog;
use zeroize::Zeroizing;

/// The host process's end.
#[derive(Debug)]
pub struct KeyLogger {
    observer: SocketSink,
    lost: AtomicU64,
}

impl KeyLogger {
    /// `observer` is the socket to the observer, which others write to as well.
    pub fn new(observer: &OwnedFd) -> Result<Self, Failure> {
        let socket = observer.try_clone();
        let socket = socket.map_err(|error| Failure::broken("making a socket", error))?;
        Ok(Self {
            observer: SocketSink(socket),
            lost: AtomicU64::new(0),
        })
    }
}

impl KeyLog for KeyLogger {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let line = line(label, client_random, secret);
        let lost = self.lost.load(Ordering::Relaxed);
        if !self.observer.take_keys(line.as_bytes(), lost) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Formats the label, client random and secret, the latter two in hexadecimal.
fn line(label: &str, client_random: &[u8], secret: &[u8]) -> Zeroizing<String> {
    let digits = 2 * (client_random.len() + secret.len());
    // Room for the whole line: a string that grows leaves copies of secrets behind.
    let mut line = Zeroizing::new(String::with_capacity(label.len() + digits + 3));
    line.push_str(label);
    for bytes in [client_random, secret] {
        line.push(' ');
        for byte in bytes {
            // Writing to a string does not fail.
            let _ = write!(line, "{byte:02x}");
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use netsetup::seqpacket;
    use observer::Packet;
    use rustix::net::{RecvFlags, recv};

    use super::*;

    #[test]
    fn a_line_has_a_label_and_two_numbers() {
        let line = line("SERVER_TRAFFIC_SECRET_0", &[0, 0xab], &[0x0f, 1, 2]);
        assert_eq!(*line, "SERVER_TRAFFIC_SECRET_0 00ab 0f0102\n");
        assert_eq!(line.capacity(), line.len());
    }

    #[test]
    fn what_the_observer_does_not_take_is_counted() {
        let (observer, host) = seqpacket::pair().unwrap();
        let logger = KeyLogger::new(&host).unwrap();
        let lost = || logger.lost.load(Ordering::Relaxed);
        while lost() == 0 {
            logger.log("EXPORTER_SECRET", &[1; 32], &[2; 32]);
        }
        let mut buffer = [0; 1000];
        let mut count = 0;
        while let Ok((_, len)) = recv(&observer, &mut buffer[..], RecvFlags::DONTWAIT) {
            count += 1;
            let Some(Packet::Keys { lost: 0, line }) = Packet::parse(&buffer[..len]) else {
                panic!("a line, and none lost before it");
            };
            assert!(line.starts_with(b"EXPORTER_SECRET 0101"));
        }
        assert!(count > 0);
        logger.log("EXPORTER_SECRET", &[1; 32], &[2; 32]);
        let (_, len) = recv(&observer, &mut buffer[..], RecvFlags::DONTWAIT).unwrap();
        assert!(matches!(
            Packet::parse(&buffer[..len]),
            Some(Packet::Keys { lost: 1, .. })
        ));
    }
}
