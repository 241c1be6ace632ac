//! Data in SYNs: TCP Fast Open, the passive side (RFC 7413).
//!
//! A SYN that asks for a cookie gets one in the SYN,ACK. One with a valid cookie and data creates a
//! connection at once. The listener accepts it with its data, and it may send before the handshake
//! is complete.
//!
//! Until the peer has acknowledged the SYN,ACK, such a connection counts as silent: the backlog
//! bounds them, and the source with most pays. From half of the backlog on, the stack takes no
//! data, so that a flood from sources with cookies (RFC 7413 §5.1) leaves room for others.

use tcp::{Connection, FastOpenCookies, Instant, derive_key};
use wire::tcp::{FastOpen, Segment};

use crate::ground::Ground;
use crate::tables::bindings::Destination;
use crate::tables::tuple::Tuple;
use crate::tcp::TcpLayer;
use crate::tcp::proxied::header_timeout;

/// How long a key is used, in microseconds: a day. The previous key is valid for another day (RFC
/// 7413 §4.1.2), so that a peer that connects every day needs no cookies but those it gets.
const KEY_US: u64 = 86_400_000_000;

/// First purpose under which keys of cookies are derived from the stack's secret, one for each
/// period.
const KEY_PURPOSE: u64 = 2 << 32;

/// Cookies under the keys of a period.
#[derive(Debug)]
pub(crate) struct Cookies {
    period: u64,
    /// Under the keys of this period, and of the previous one.
    cookies: FastOpenCookies,
}

impl Cookies {
    pub(crate) fn new(secret: &[u8; 16], now_us: u64) -> Cookies {
        let period = now_us / KEY_US;
        let keys = [period + 1, period].map(|number| derive_key(secret, KEY_PURPOSE + number));
        Cookies {
            period,
            cookies: FastOpenCookies::new(keys),
        }
    }

    fn are_current(&self, now_us: u64) -> bool {
        self.period == now_us / KEY_US
    }

    /// The keys of this period, and of the previous one.
    pub(crate) fn keys(&self) -> [[u8; 16]; 2] {
        self.cookies.keys()
    }
}

/// The number of the period: it changes with the keys.
pub(crate) fn period(now_us: u64) -> u64 {
    now_us / KEY_US
}

impl TcpLayer {
    pub(crate) fn fast_open_cookies(&mut self, ground: &mut Ground, now_us: u64) -> &Cookies {
        if !self.fast_open.are_current(now_us) {
            self.fast_open = Cookies::new(&ground.config.secret, now_us);
        }
        &self.fast_open
    }

    /// The Fast Open option of a SYN, if its listener accepts data in SYNs.
    pub(crate) fn fast_open_option(
        &self,
        ground: &Ground,
        tuple: &Tuple,
        syn: &Segment<'_>,
    ) -> Option<FastOpen> {
        let option = syn.header.options.fast_open?;
        if header_timeout(ground, tuple).is_some() {
            return None;
        }
        let Destination::Listener(listener) = self.destination(ground, tuple) else {
            return None;
        };
        let options = self.bindings.options(listener)?;
        let takes_text = options.takes_syn_text(ground.config.fast_open);
        takes_text.then_some(option)
    }

    /// The cookie for the SYN,ACK, if the peer supports Fast Open.
    pub(crate) fn fast_open_cookie(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        tuple: &Tuple,
    ) -> FastOpen {
        ground.counters.fast_open_cookies_sent += 1;
        let cookies = &self.fast_open_cookies(ground, now_us).cookies;
        cookies.cookie(tuple.local.ip(), tuple.remote.ip())
    }

    /// Creates a connection from a SYN with a valid cookie and data. False if it is to be answered
    /// as any other.
    pub(crate) fn on_fast_open(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        tuple: Tuple,
        syn: &Segment<'_>,
        option: FastOpen,
        isn: u32,
    ) -> bool {
        let cookies = &self.fast_open_cookies(ground, now_us).cookies;
        let is_good = cookies.are_good(tuple.local.ip(), tuple.remote.ip(), option);
        if !is_good || syn.payload.is_empty() || self.gate.is_half_full() {
            return false;
        }
        let to = self.destination(ground, &tuple);
        let config = self.config_at(ground, &tuple, to);
        let ts_offset = self.isn.ts_offset(tuple.local, tuple.remote);
        let now = Instant::from_us(now_us);
        let connection = Connection::accept_fast_open(&config, syn, isn, ts_offset, now);
        let (Some(connection), Ok(listener)) = (connection, self.admit(ground, now_us, &tuple, to))
        else {
            return false;
        };
        ground.counters.fast_opens += 1;
        let handle = self.open(ground, now_us, tuple, listener, connection, None);
        if let Some(entry) = self.connections.get_mut(handle) {
            // The listener accepts it with its data.
            entry.is_deferred = true;
        }
        true
    }
}
