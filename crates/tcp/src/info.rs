//! Snapshot of a connection for operators: the facts that the kernel reports about its own
//! connections (`tcp_info`), in its words and those of the RFCs (RFC 9293 §3.9.1.5, STATUS).

use crate::congestion::algorithm::CongestionAlgorithm;
use crate::connection::Connection;
use crate::recovery::state::Phase;
use crate::sender::send_queue::Piece;
use crate::state::State;
use crate::stats::{Samples, Stats};
use crate::time::{Instant, whole_us};

/// Snapshot of a connection. Sizes are in bytes, times in microseconds, rates in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// State of the connection.
    pub state: State,
    /// Phase of loss recovery.
    pub ca_state: CaState,
    /// Congestion control in use.
    pub congestion: CongestionAlgorithm,
    /// Eff.snd.MSS (RFC 9293 §3.7.1): payload of a full packet.
    pub mss: u64,
    /// Path MTU as far as is known: the size of a full packet with its IP header.
    pub pmtu: u64,
    /// Payload of the largest packet that the peer has sent, 536 at least; 0 if it has sent none.
    pub rcv_mss: u64,
    /// The congestion window (RFC 5681 §2).
    pub cwnd: u64,
    /// The slow start threshold; `None` as long as there was no congestion.
    pub ssthresh: Option<u64>,
    /// SRTT, RTTVAR (RFC 6298 §2), once measured.
    pub srtt_us: Option<u64>,
    /// See [`Info::srtt_us`].
    pub rttvar_us: Option<u64>,
    /// The least round-trip time of the last minutes.
    pub min_rtt_us: Option<u64>,
    /// The retransmission timeout that applies now, backed off.
    pub rto_us: u64,
    /// Retransmission timeouts in a row, without an answer.
    pub backoff: u16,
    /// Window probes in a row, without an answer (RFC 9293 §3.8.6.1).
    pub probes: u16,
    /// Payload sent for the first time.
    pub bytes_sent: u64,
    /// Payload that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Payload received in order.
    pub bytes_received: u64,
    /// Payload sent again.
    pub bytes_retransmitted: u64,
    /// Transmissions that repeated bytes: superpackets, each of which may be many packets; SYN and
    /// FIN as well.
    pub retransmissions: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Queued and not acknowledged, sent or not: Send-Q.
    pub queued: u64,
    /// Part of [`queued`](Info::queued) that was never sent.
    pub unsent: u64,
    /// Received and not read: Recv-Q.
    pub unread: u64,
    /// Issued and not acknowledged: SND.NXT - SND.UNA.
    pub flight: u64,
    /// Part of [`flight`](Info::flight) that is neither delivered nor lost as far as is known
    /// (`pipe` of RFC 6675 §2).
    pub pipe: u64,
    /// Part of the flight that is issued, and has not departed.
    pub undeparted: u64,
    /// Part of the flight that is acknowledged selectively.
    pub sacked: u64,
    /// Part of the flight that is lost, and was not sent again.
    pub lost: u64,
    /// SND.WND: the window that the peer offers.
    pub snd_wnd: u64,
    /// RCV.WND: the window that we offer.
    pub rcv_wnd: u64,
    /// Bytes that the receive buffer may hold at present.
    pub receive_buffer: u64,
    /// Real bytes that the send buffer may hold at present.
    pub send_buffer: u64,
    /// The rate at which data leaves; `None`: as fast as the windows allow.
    pub pacing_rate: Option<u64>,
    /// Timestamps are used (RFC 7323).
    pub timestamps: bool,
    /// Selective acknowledgments are used (RFC 2018).
    pub sack: bool,
    /// Explicit congestion notification is used (RFC 3168).
    pub ecn: bool,
    /// Snd.Wind.Shift and Rcv.Wind.Shift, if windows are scaled (RFC 7323 §2).
    pub window_shifts: Option<(u8, u8)>,
    /// Time since the connection was opened.
    pub age_us: u64,
    /// Time since the peer last acknowledged new data, or since the connection was opened.
    pub since_progress_us: u64,
    /// Time since the last acceptable segment of the peer, if the handshake is complete.
    pub since_heard_us: Option<u64>,
    /// Time since text last arrived in order, if any has.
    pub since_text_us: Option<u64>,
}

/// Phase of loss recovery, in the kernel's words (`tcp_ca_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaState {
    /// Nothing is known to be lost.
    Open,
    /// Fast recovery.
    Recovery,
    /// Slow start after a retransmission timeout.
    Loss,
}

impl CaState {
    /// Returns the name of the phase in lower case.
    pub fn name(self) -> &'static str {
        match self {
            CaState::Open => "open",
            CaState::Recovery => "recovery",
            CaState::Loss => "loss",
        }
    }
}

impl Connection {
    /// Takes the round-trip times measured since the last call, and those measured by timestamps:
    /// nearly every acknowledgment adds one.
    #[inline]
    pub fn take_round_trips(&mut self) -> (Samples, Samples) {
        let stats = &mut self.stats;
        (
            std::mem::take(&mut stats.round_trips),
            std::mem::take(&mut stats.timestamp_round_trips),
        )
    }

    /// Returns true if [`take_stats`](Connection::take_stats) has more to report than round-trip
    /// times.
    #[inline]
    pub fn has_rare_stats(&self) -> bool {
        let stats = &self.stats;
        let rare = stats.timeouts
            | stats.spurious_timeouts
            | stats.timestamps_missing
            | stats.ecn_reductions
            | stats.lost_undeparted;
        rare != 0
    }

    /// Takes the counters of the time since the last call.
    pub fn take_stats(&mut self) -> Stats {
        std::mem::take(&mut self.stats)
    }

    /// Returns the number of transmissions that repeated bytes, so far.
    pub fn retransmissions(&self) -> u32 {
        self.lifetime.retransmissions
    }

    /// Returns the connection's snapshot at `now`.
    pub fn info(&self, now: Instant) -> Info {
        let ssthresh = self.congestion.ssthresh();
        // Positions count SYN and FIN.
        let sent = self.snd.nxt.saturating_sub(1).min(self.queue.end());
        let fin = u64::from(self.state.peer_has_finished());
        let scaled = self.rcv.is_scaled();
        let text_at = self.quick_acks.text_at();
        Info {
            state: self.state,
            ca_state: match self.recovery.phase {
                Phase::Open => CaState::Open,
                Phase::FastRecovery => CaState::Recovery,
                Phase::AfterTimeout => CaState::Loss,
            },
            congestion: self.config.congestion,
            mss: self.snd.mss.into(),
            pmtu: u64::from(self.snd.mss) + u64::from(self.header_bytes()),
            rcv_mss: self.acks.segment_bytes().into(),
            cwnd: self.cwnd(),
            ssthresh: (ssthresh != u64::MAX).then_some(ssthresh),
            srtt_us: self.rtt.srtt_us(),
            rttvar_us: self.rtt.rttvar_us(),
            min_rtt_us: self.min_rtt.get_us(),
            rto_us: whole_us(self.rto()),
            backoff: self.rto.timeouts(),
            probes: self.persist.unanswered(),
            bytes_sent: sent,
            bytes_acked: self.queue.acknowledged(),
            bytes_received: self.rcv.nxt().saturating_sub(1 + fin),
            bytes_retransmitted: self.lifetime.bytes_retransmitted,
            retransmissions: self.lifetime.retransmissions.into(),
            timeouts: self.lifetime.timeouts.into(),
            queued: self.queued_bytes(),
            unsent: self.queue.end() - sent,
            unread: self.rcv.readable() as u64,
            flight: self.snd.flight(),
            pipe: self.sent.flight(),
            undeparted: self.sent.undeparted_bytes(),
            sacked: self.sent.sacked(),
            lost: self.sent.lost(),
            snd_wnd: self.snd.wnd,
            rcv_wnd: self.rcv.window(),
            receive_buffer: self.rcv.buffer_bytes() as u64,
            send_buffer: self.send_buffer_bytes() as u64,
            pacing_rate: self.pacing_rate(),
            timestamps: self.timestamps.are_negotiated(),
            sack: self.sacks.is_permitted(),
            ecn: self.ecn.is_agreed(),
            window_shifts: scaled.then(|| (self.snd.shift, self.rcv.offered_shift())),
            age_us: now.us_since(self.opened),
            since_progress_us: now.us_since(self.idle_since),
            since_heard_us: (!self.state.is_opening()).then(|| now.us_since(self.silence.heard())),
            since_text_us: (text_at != Instant::NEVER).then(|| now.us_since(text_at)),
        }
    }

    /// Returns the object of the first virtual byte that is queued and not acknowledged, and the
    /// byte's offset there.
    pub fn first_virtual(&self) -> Option<(u32, u64)> {
        let queued = self.queue.acknowledged()..self.queue.end();
        self.queue.pieces(queued).find_map(|piece| match piece {
            Piece::Virtual { object, offset, .. } => Some((object, offset)),
            Piece::Real(_) => None,
        })
    }
}
