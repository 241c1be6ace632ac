//! TCP Fast Open of the passive side (RFC 7413).
//!
//! A peer with a cookie from an earlier connection sends it with text in its SYN. The text goes to
//! the application at once, and the application's answer leaves before the handshake is over: a
//! round trip is saved. The cookie shows that the peer has received a segment at its address
//! before, so that a forged SYN costs no more than a SYN,ACK.
//!
//! A SYN may come twice, with all of its text, when the first connection is over (RFC 7413 §2.1):
//! an application that accepts text of SYNs must tolerate that.

use std::hash::Hasher;
use std::net::IpAddr;

use siphasher::sip::SipHasher24;
use wire::tcp::{FAST_OPEN_COOKIE_BYTES, FastOpen, Segment};

use crate::config::{Config, Limits};
use crate::connection::Connection;
use crate::handshake::isn::hash_ip;
use crate::receiver::rcv::Arrival;
use crate::sender::output::Transmit;
use crate::time::Instant;

/// Makes and verifies cookies: a hash of both addresses under a key (RFC 7413 §4.1.2).
#[derive(Clone)]
pub struct FastOpenCookies {
    keys: [[u8; 16]; 2],
}

impl FastOpenCookies {
    /// Cookies are made with the first key, and accepted if they were made with either: the second
    /// is the previous key (RFC 7413 §4.1.2). Keys must be secret and random.
    pub fn new(keys: [[u8; 16]; 2]) -> FastOpenCookies {
        FastOpenCookies { keys }
    }

    /// Returns the keys.
    pub fn keys(&self) -> [[u8; 16]; 2] {
        self.keys
    }

    /// Returns the cookie of a peer, for a SYN,ACK.
    pub fn cookie(&self, local: IpAddr, remote: IpAddr) -> FastOpen {
        FastOpen::Cookie(cookie(&self.keys[0], local, remote))
    }

    /// Returns true if a SYN has the cookie of its peer.
    pub fn are_good(&self, local: IpAddr, remote: IpAddr, option: FastOpen) -> bool {
        let is_of = |key| option == FastOpen::Cookie(cookie(key, local, remote));
        self.keys.iter().any(is_of)
    }
}

fn cookie(key: &[u8; 16], local: IpAddr, remote: IpAddr) -> [u8; FAST_OPEN_COOKIE_BYTES] {
    let mut hasher = SipHasher24::new_with_key(key);
    for ip in [local, remote] {
        hash_ip(&mut hasher, ip);
    }
    hasher.finish().to_be_bytes()
}

impl std::fmt::Debug for FastOpenCookies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FastOpenCookies { keys: secret }")
    }
}

impl Connection {
    /// Answers a SYN whose cookie is good, as [`Connection::accept`] does, and takes its text (RFC
    /// 7413 §4.2.2). The application's data leaves in SYN-RECEIVED; the FIN waits for ESTABLISHED.
    /// A FIN in the SYN is ignored: the peer repeats it.
    pub fn accept_fast_open(
        config: &Config,
        syn: &Segment<'_>,
        isn: u32,
        ts_offset: u32,
        now: Instant,
    ) -> Option<Connection> {
        let mut connection = Connection::accept(config, syn, isn, ts_offset, now)?;
        connection.is_fast_open = true;
        // RFC 7323 §2.2: the window of a SYN is not scaled.
        connection.update_window(&syn.header, 0, 0, 0);
        let mss = connection.snd.mss;
        connection.congestion.on_established(now, mss, false);
        if let Arrival::InOrder(_) = connection.rcv.on_text(1, syn.payload) {
            connection.events.readable = true;
        }
        Some(connection)
    }

    /// Returns data to send before the handshake is over. Lost data waits for the end of the
    /// handshake: the SYN,ACK alone is repeated.
    pub(crate) fn poll_fast_open(&mut self, now: Instant, limits: &Limits) -> Option<Transmit> {
        if !self.is_fast_open {
            return None;
        }
        let data = self.poll_data(now, limits, false)?;
        Some(self.transmit_data(now, data))
    }
}
