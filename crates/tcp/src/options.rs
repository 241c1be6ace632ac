//! Settings that an application may change during a connection: socket options, as tcp(7) and
//! socket(7) name them.
//!
//! | Option | Here |
//! |---|---|
//! | SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT | [`Connection::set_keepalive`] |
//! | SO_LINGER | off: [`Connection::close`]; of 0 s: [`Connection::abort`] |
//! | SO_MAX_PACING_RATE | [`Connection::set_max_pacing_rate`] |
//! | SO_RCVBUF | [`Connection::set_receive_buffer_bytes`] |
//! | SO_SNDBUF | [`Connection::set_send_buffer_bytes`], [`Connection::set_virtual_bytes_max`] |
//! | TCP_CONGESTION | [`Connection::set_congestion`] |
//! | TCP_CORK | [`Connection::set_cork`] |
//! | TCP_INFO | [`Connection::info`] |
//! | TCP_MAXSEG | [`Connection::set_mss_max`] |
//! | TCP_NODELAY | [`Connection::set_nodelay`] |
//! | TCP_QUICKACK | [`Connection::set_quickack`] |
//! | TCP_USER_TIMEOUT | [`Connection::set_user_timeout`] |
//! | MSG_MORE of send(2) | [`Connection::expect_more`] |

use std::time::Duration;

use crate::connection::{Connection, MSS_MIN};
use crate::keepalive::Keepalive;
use crate::state::State;
use crate::time::Instant;
use crate::timer::Timer;

impl Connection {
    /// Probes a silent peer, or no longer does with `None` (RFC 9293 §3.8.4; SO_KEEPALIVE and the
    /// times of tcp(7)). Probing that begins counts the silence from `now`; other times count it
    /// from the peer's last segment, so that a probe may be due at once.
    pub fn set_keepalive(&mut self, now: Instant, keepalive: Option<Keepalive>) {
        let before = std::mem::replace(&mut self.config.keepalive, keepalive);
        let Some(keepalive) = keepalive else {
            self.silence.stop();
            return self.timers.cancel(Timer::Keepalive);
        };
        // In earlier states, `establish` starts the timer; in the others another one runs.
        if !matches!(self.state, State::Established | State::CloseWait) {
            return;
        }
        if before.is_some() {
            let at = self.silence.on_change(now, &keepalive);
            self.timers.bound(Timer::Keepalive, Some(at));
        } else {
            self.silence.on_start(now);
            self.timers.arm(Timer::Keepalive, now + keepalive.idle);
        }
    }

    /// Returns the times of probes of a silent peer; `None` if there are none.
    pub fn keepalive(&self) -> Option<Keepalive> {
        self.config.keepalive
    }

    /// Sets how long the peer may leave a segment unanswered
    /// ([`Config::user_timeout`](crate::Config::user_timeout); RFC 5482 §3, TCP_USER_TIMEOUT). A
    /// wait that has begun counts from its start.
    pub fn set_user_timeout(&mut self, user_timeout: Option<Duration>) {
        self.config.user_timeout = user_timeout;
        self.bound_by_user_timeout();
    }

    /// Returns how long the peer may leave a segment unanswered; `None`: as long as the retries
    /// take.
    pub fn user_timeout(&self) -> Option<Duration> {
        self.config.user_timeout
    }

    /// False: less than a full segment waits while data is in flight (the Nagle algorithm, RFC 9293
    /// §3.7.4). True: it does not, and waiting data is sent, even [corked](Connection::set_cork)
    /// (TCP_NODELAY); later data waits until the cork is out.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.nodelay = nodelay;
        if nodelay {
            self.cork.release(self.fin_position());
        }
    }

    /// Returns true if no data waits for data in flight.
    pub fn nodelay(&self) -> bool {
        self.nodelay
    }

    /// True: less than a full segment, real and virtual bytes together, waits for more to be
    /// queued, at most 200 ms and not at the end of the stream, for any `nodelay` (TCP_CORK). A
    /// write that comes back short does not wait either. False: waiting data is sent at once.
    pub fn set_cork(&mut self, is_in: bool) {
        if self.cork.is_in && !is_in {
            self.cork.more = false;
            self.cork.release(self.fin_position());
            if !self.fin_queued {
                self.timers.cancel(Timer::CORK);
            }
        }
        self.cork.is_in = is_in;
    }

    /// Returns true between `set_cork(true)` and `set_cork(false)`.
    pub fn is_corked(&self) -> bool {
        self.cork.is_in
    }

    /// To be called after [`write`](Connection::write) or
    /// [`write_virtual`](Connection::write_virtual): more will be written, and a partial segment
    /// waits for it as if corked, until the next write (MSG_MORE).
    pub fn expect_more(&mut self) {
        self.cork.more = true;
    }

    /// True: a delayed acknowledgment is sent at once, and so are those of the next segments, small
    /// ones too: 16, or [`Config::quick_acks`](crate::Config::quick_acks) if that is more. False:
    /// acknowledgments are delayed ([`Config::delayed_ack`](crate::Config::delayed_ack)). Neither
    /// is for ever (TCP_QUICKACK): after a pause or a gap TCP decides itself again (RFC 5681 §4.2).
    pub fn set_quickack(&mut self, quickack: bool) {
        self.quick_acks.set(quickack, self.config.quick_acks);
        if quickack && self.timers.is_armed(Timer::DelayedAck) {
            self.acks.request();
        }
    }

    /// Returns true if acknowledgments of full-sized segments are not delayed at present.
    pub fn quickack(&self) -> bool {
        self.quick_acks.is_on()
    }

    /// Fixes the size of the receive buffer, at least 1 byte, which no longer grows by itself
    /// (SO_RCVBUF). An offered window is not withdrawn (RFC 9293 §3.8.6.2.2, SHLD-14): a smaller
    /// buffer takes effect as the peer uses the window up. Once SYNs have been exchanged, their
    /// window scale bounds the window for any size.
    pub fn set_receive_buffer_bytes(&mut self, bytes: usize) {
        self.config.receive_buffer_bytes = bytes;
        self.config.receive_buffer_bytes_max = bytes;
        let before_syn = self.state == State::SynSent && self.snd.nxt == 0;
        self.rcv.fix(bytes, before_syn);
        if self.state.takes_text() && self.rcv.is_update_due(self.receive_mss()) {
            self.acks.request();
        }
    }

    /// Returns how many received bytes may be left unread at present.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.rcv.buffer_bytes()
    }

    /// Sets how many real bytes, at least 1, may be queued and not acknowledged, for any congestion
    /// window (SO_SNDBUF). Bytes queued beyond that stay.
    pub fn set_send_buffer_bytes(&mut self, bytes: usize) {
        self.config.send_buffer_bytes = bytes.max(1);
        self.config.send_buffer_bytes_max = bytes.max(1);
        self.wake_writer();
    }

    /// Sets how many virtual bytes, at least 1, may be queued and not yet sent; the bound is twice
    /// the congestion window if that is more; `None`: any number
    /// ([`Config::virtual_bytes_max`](crate::Config::virtual_bytes_max)). Bytes queued beyond that
    /// stay.
    pub fn set_virtual_bytes_max(&mut self, bytes: Option<u64>) {
        self.config.virtual_bytes_max = bytes.unwrap_or(u64::MAX);
        self.wake_writer();
    }

    /// Bounds the MSS, in bytes: the one that our SYN advertises, and payload and options of our
    /// segments (TCP_MAXSEG). The bound is at least 64 bytes, and none raises the MSS. Returns
    /// false, and changes nothing, if our SYN was issued already.
    pub fn set_mss_max(&mut self, bytes: u16) -> bool {
        let before_syn = self.state.is_opening() && self.snd.nxt == 0;
        if before_syn {
            self.config.mss = self.config.mss.min(bytes.max(MSS_MIN));
            self.snd.mss = self.snd.mss.min(self.without_options(self.config.mss));
        }
        before_syn
    }
}
