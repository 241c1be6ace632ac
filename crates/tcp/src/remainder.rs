//! State of a connection at its end: enough to continue it elsewhere.
//!
//! The application has closed, and nothing is left to be read, to be sent or to be acknowledged but
//! FIN. The state is then a few numbers. They make a connection again, which behaves as the first
//! one would have: it sends FIN, and repeats it, answers the peer's, and stays in TIME-WAIT.

use std::time::Duration;

use crate::challenge::AckLimiter;
use crate::config::Config;
use crate::connection::Connection;
use crate::receiver::rcv::WINDOW_SHIFT_MAX;
use crate::seq::SeqSpace;
use crate::state::State;
use crate::time::Instant;
use crate::time_wait::{TimeWait, milliseconds};
use crate::timer::Timer;
use crate::timestamps::Timestamps;

/// Largest window that can be offered, in bytes (RFC 7323 §2.3).
const WINDOW_BYTES_MAX: u32 = 0xffff << WINDOW_SHIFT_MAX;

/// State of a connection at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Our FIN is due; the peer has not closed.
    FinWait1,
    /// Our FIN is acknowledged; the peer has not closed.
    FinWait2,
    /// Our FIN is due; the peer has closed after us.
    Closing,
    /// Our FIN is due; the peer has closed before us.
    LastAck,
}

impl Stage {
    fn state(self) -> State {
        match self {
            Stage::FinWait1 => State::FinWait1,
            Stage::FinWait2 => State::FinWait2,
            Stage::Closing => State::Closing,
            Stage::LastAck => State::LastAck,
        }
    }
}

/// State of a connection at its end ([`Connection::remainder`], [`Connection::resume`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remainder {
    /// State of the connection.
    pub stage: Stage,
    /// The peer waits for an acknowledgment.
    pub owes_ack: bool,
    /// Sequence number of our FIN.
    pub fin_seq: u32,
    /// RCV.NXT.
    pub rcv_nxt: u32,
    /// RCV.WND, in bytes.
    pub rcv_window_bytes: u32,
    /// Rcv.Wind.Shift.
    pub rcv_shift: u8,
    /// SND.WND, in bytes.
    pub snd_window_bytes: u32,
    /// The largest window that the peer has offered, in bytes.
    pub snd_window_bytes_max: u32,
    /// Snd.Wind.Shift.
    pub snd_shift: u8,
    /// Offset that is added to the clock for TSval, and TS.Recent, if timestamps were negotiated.
    pub timestamps: Option<(u32, u32)>,
    /// Smoothed round-trip time and its variation, in microseconds; zero before any measurement.
    pub srtt_us: u32,
    /// See `srtt_us`.
    pub rttvar_us: u32,
    /// Number of times the RTO has been doubled.
    pub backoff: u8,
    /// Longest time that the peer may leave FIN unanswered, in milliseconds; 0 for as long as the
    /// retries take ([`Config::user_timeout`]).
    pub user_timeout_ms: u32,
}

impl Remainder {
    /// Returns SND.NXT when FIN has been sent: a connection that takes this one's place must begin
    /// beyond it.
    pub fn snd_nxt(&self) -> u32 {
        self.fin_seq.wrapping_add(1)
    }

    /// Returns TIME-WAIT, from `now` on, of a connection that has got there since: both FINs are
    /// acknowledged.
    pub fn time_wait(&self, config: &Config, now: Instant) -> TimeWait {
        let peer_had_finished = matches!(self.stage, Stage::Closing | Stage::LastAck);
        let window = self.rcv_window_bytes >> self.rcv_shift.min(WINDOW_SHIFT_MAX);
        TimeWait {
            snd_nxt: self.snd_nxt(),
            rcv_nxt: self.rcv_nxt.wrapping_add(u32::from(!peer_had_finished)),
            window: u16::try_from(window).unwrap_or(u16::MAX),
            answers_max: config.challenge_acks_max,
            answers_interval_ms: milliseconds(config.challenge_acks_interval),
            length_ms: milliseconds(config.time_wait),
            timestamps: self.timestamps,
            expires: now + config.time_wait,
            limiter: AckLimiter::default(),
        }
    }
}

impl Connection {
    /// Returns the connection's state if only its end is left: nothing is unread, all queued data
    /// is acknowledged, and FIN is due or acknowledged. `None` while FIN is in flight: its
    /// acknowledgment is on its way, or it is due again when it is lost.
    ///
    /// The application must be gone ([`Connection::close`]), or the peer must have closed as well:
    /// else there may be more to read.
    pub fn remainder(&self) -> Option<Remainder> {
        let stage = match self.state {
            State::FinWait1 => Stage::FinWait1,
            State::FinWait2 => Stage::FinWait2,
            State::Closing => Stage::Closing,
            State::LastAck => Stage::LastAck,
            _ => return None,
        };
        let nothing_to_read = self.orphaned || self.state.peer_has_finished();
        let fin_is_settled = match stage {
            Stage::FinWait2 => true,
            _ => self.snd.una == self.fin_position() && self.sent.flight() == 0,
        };
        if !nothing_to_read
            || !fin_is_settled
            || !self.queue.is_empty()
            || self.rcv.readable() > 0
            || self.rcv.has_gaps()
            || self.reset.is_some()
            || self.sent.unreported() > 0
        {
            return None;
        }
        let clamped = |us: u64| u32::try_from(us).unwrap_or(u32::MAX);
        let window = |bytes: u64| clamped(bytes).min(WINDOW_BYTES_MAX);
        let user_timeout = self.config.user_timeout;
        Some(Remainder {
            stage,
            owes_ack: self.acks.is_owed(),
            fin_seq: self.snd.space.wire(self.fin_position()),
            rcv_nxt: self.rcv.wire_nxt(),
            rcv_window_bytes: window(self.rcv.window()),
            rcv_shift: self.rcv.shift(),
            snd_window_bytes: window(self.snd.wnd),
            snd_window_bytes_max: window(self.snd.wnd_max),
            snd_shift: self.snd.shift,
            timestamps: self.timestamps.remembered(),
            srtt_us: self.rtt.srtt_us().map_or(0, |us| clamped(us).max(1)),
            rttvar_us: self.rtt.rttvar_us().map_or(0, clamped),
            backoff: self.rto.backoff(),
            user_timeout_ms: user_timeout
                .map_or(0, |timeout| clamped(timeout.as_millis() as u64).max(1)),
        })
    }

    /// Returns a connection that continues one that no longer exists. Its application is gone. FIN,
    /// if it is due, is the first segment that it has to send.
    ///
    /// Any numbers make a connection; the peer decides whether it knows the connection.
    pub fn resume(
        config: &Config,
        local_port: u16,
        remote_port: u16,
        remainder: &Remainder,
        now: Instant,
    ) -> Connection {
        let (ts_offset, ts_recent) = remainder.timestamps.unwrap_or_default();
        // The whole stream is acknowledged: FIN follows the SYN.
        let isn = remainder.fin_seq.wrapping_sub(1);
        let mut connection =
            Connection::connect(config, local_port, remote_port, isn, ts_offset, now);
        if remainder.user_timeout_ms > 0 {
            let timeout = Duration::from_millis(remainder.user_timeout_ms.into());
            connection.config.user_timeout = Some(timeout);
        }
        connection.config.keepalive = None;
        connection.state = remainder.stage.state();
        connection.passive = true;
        connection.orphaned = true;
        connection.fin_queued = true;

        let fin_is_acked = remainder.stage == Stage::FinWait2;
        let una = 1 + u64::from(fin_is_acked);
        let snd = &mut connection.snd;
        snd.space = SeqSpace::new(isn);
        (snd.una, snd.nxt, snd.wl2) = (una, una, una);
        snd.wnd = remainder.snd_window_bytes.into();
        snd.wnd_max = remainder.snd_window_bytes_max.into();
        snd.shift = remainder.snd_shift.min(WINDOW_SHIFT_MAX);

        let peer_has_finished = connection.state.peer_has_finished();
        connection.rcv.resume(
            remainder.rcv_nxt,
            remainder.rcv_window_bytes.into(),
            remainder.rcv_shift.min(WINDOW_SHIFT_MAX),
            peer_has_finished,
        );
        connection.last_ack_sent = connection.rcv.nxt();
        if remainder.timestamps.is_some() {
            connection.timestamps = Timestamps::resumed(ts_offset, ts_recent);
            connection.timestamps.refresh(now);
            connection.snd.mss = connection.without_options(connection.snd.mss);
        }
        let mss = connection.snd.mss;
        connection.congestion.on_established(now, mss, false);
        connection.pmtu.on_established(mss);
        if remainder.srtt_us > 0 {
            (connection.rtt).resume(remainder.srtt_us.into(), remainder.rttvar_us.into());
        }
        connection.rto.resume(remainder.backoff);
        if remainder.owes_ack {
            connection.acks.request();
        }
        if let (true, Some(silence)) = (fin_is_acked, config.fin_wait_2) {
            connection.timers.arm(Timer::Linger, now + silence);
        }
        connection
    }
}
