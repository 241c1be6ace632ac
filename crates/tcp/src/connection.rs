//! The connection: its state, and the calls of the host and the application.

use std::ops::Range;
use std::time::Duration;

use wire::tcp::{Flags, Header, Segment};

use crate::challenge::AckLimiter;
use crate::config::Config;
use crate::congestion::algorithm::CongestionAlgorithm;
use crate::congestion::rate::DeliveryRate;
use crate::congestion::{self, Congestion};
use crate::ecn::Ecn;
use crate::event::{CloseReason, ConnectionEvent, Events};
use crate::keepalive::{KeepaliveTimer, Verdict};
use crate::pmtu::Pmtu;
use crate::receiver::ack::Acks;
use crate::receiver::quickack::QuickAcks;
use crate::receiver::rcv::{Receiver, WINDOW_SHIFT_MAX};
use crate::receiver::rcv_autotune::AutoTune;
use crate::recovery::min_rtt::MinRtt;
use crate::recovery::rto::Rto;
use crate::recovery::rtt::Rtt;
use crate::recovery::sack::Sacks;
use crate::recovery::state::Recovery;
use crate::reset::{Boundaries, Reset};
use crate::sender::cork::Cork;
use crate::sender::pacing::Pacing;
use crate::sender::persist::Persist;
use crate::sender::scoreboard::{Departure, Scoreboard};
use crate::sender::send_queue::{Piece, SendQueue};
use crate::sender::sndbuf;
use crate::seq::SeqSpace;
use crate::state::State;
use crate::stats::{Lifetime, Stats};
use crate::time::{Instant, whole_us};
use crate::time_wait::{TimeWait, milliseconds};
use crate::timer::{Timer, Timers};
use crate::timestamps::Timestamps;

/// Least MSS accepted from a peer: with a smaller one, a peer could make us send a packet for each
/// byte.
pub(crate) const MSS_MIN: u16 = 64;

/// Bytes of the timestamps option in each packet, padding included.
const TIMESTAMPS_BYTES: u16 = 12;

/// One TCP connection, from its SYN to the end of TIME-WAIT.
///
/// It does no I/O and reads no clock. The caller passes in each event with its time, then collects
/// the resulting actions:
///
/// 1. Report an event with any of [`on_segment`](Connection::on_segment),
///    [`on_timeout`](Connection::on_timeout), [`on_departed`](Connection::on_departed),
///    [`write`](Connection::write), [`write_virtual`](Connection::write_virtual),
///    [`read`](Connection::read), [`shutdown`](Connection::shutdown), [`close`](Connection::close),
///    [`abort`](Connection::abort).
/// 2. Call [`poll_transmit`](Connection::poll_transmit) until it returns `None`, or a
///    [`Transmit`](crate::Transmit) that [is the last](crate::Transmit::is_last), and send each
///    one.
/// 3. Call [`poll_event`](Connection::poll_event) until it returns `None`. The application's
///    response may make step 2 necessary again.
/// 4. Set a timer to [`next_timeout`](Connection::next_timeout); each of the calls above may change
///    it.
/// 5. Drop the connection when [`is_closed`](Connection::is_closed) returns true.
///
/// # Sending
///
/// A [`Transmit`](crate::Transmit) is a superpacket: its payload may span many segments, and its
/// sender cuts it into packets. The payload is a range of the stream, whose contents
/// [`pieces`](Connection::pieces) returns. Stream offsets begin with 0 for the first byte after the
/// SYN and never wrap.
///
/// If a `Transmit` has a [`transmission`](crate::Transmit::transmission) number, the caller reports
/// with [`on_departed`](Connection::on_departed) when its packets have left: at once if it sends
/// them itself, on the echo if the NIC stack does. Until then the retransmission timer does not run
/// for them.
///
/// # Example
///
/// ```
/// use tcp::{Config, Connection, ConnectionEvent, Instant, Limits};
/// use wire::ip::Ecn;
/// use wire::tcp::Segment;
///
/// let config = Config::default();
/// let limits = Limits {
///     bytes_max: 65_536,
///     pieces_max: 32,
///     real_bytes_max: 65_536,
///     direct_bytes_max: 0,
/// };
/// let now = Instant::from_us(0);
///
/// let mut client = Connection::connect(&config, 40_000, 80, 1_000, 0, now);
/// let syn = client.poll_transmit(now, &limits).expect("a SYN");
/// client.on_departed(syn.transmission.expect("a SYN occupies sequence space"), now);
///
/// let syn = Segment { header: syn.header, payload: &[], ecn: Ecn::NotEct };
/// let mut server = Connection::accept(&config, &syn, 9_000, 0, now).expect("it is a SYN");
/// let syn_ack = server.poll_transmit(now, &limits).expect("a SYN,ACK");
/// server.on_departed(syn_ack.transmission.expect("so does a SYN,ACK"), now);
///
/// client.on_segment(now, &Segment { header: syn_ack.header, payload: &[], ecn: Ecn::NotEct });
/// assert_eq!(client.poll_event(), Some(ConnectionEvent::Connected));
/// ```
#[derive(Debug)]
pub struct Connection {
    pub(crate) config: Config,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    pub(crate) state: State,
    /// Opened by the peer's SYN.
    pub(crate) passive: bool,
    /// Text in the peer's SYN was accepted (RFC 7413).
    pub(crate) is_fast_open: bool,
    pub(crate) opened: Instant,

    pub(crate) snd: SendSpace,
    pub(crate) queue: SendQueue,
    pub(crate) fin_queued: bool,
    /// The last write came back short.
    write_blocked: bool,
    pub(crate) sent: Scoreboard,
    pub(crate) rtt: Rtt,
    pub(crate) stats: Stats,
    pub(crate) lifetime: Lifetime,
    /// Departure timeouts since the last departure report or acknowledgment.
    pub(crate) departure_timeouts: u8,
    pub(crate) min_rtt: MinRtt,
    pub(crate) rto: Rto,
    pub(crate) recovery: Recovery,
    pub(crate) rate: DeliveryRate,
    pub(crate) congestion: Box<dyn Congestion>,
    pub(crate) pacing: Pacing,
    /// The application or congestion control sets a pacing rate.
    pub(crate) is_rate_set: bool,
    /// Data before this position was sent until the congestion window was used up.
    pub(crate) limited_until: u64,
    /// Start of the idle period, if nothing is in flight.
    pub(crate) idle_since: Instant,
    pub(crate) persist: Persist,
    pub(crate) ecn: Ecn,
    pub(crate) pmtu: Pmtu,
    /// "Too big" messages.
    pub(crate) too_big: AckLimiter,
    pub(crate) silence: KeepaliveTimer,
    pub(crate) nodelay: bool,
    pub(crate) cork: Cork,
    /// The application has closed: arriving text has no reader.
    pub(crate) orphaned: bool,

    pub(crate) rcv: Receiver,
    pub(crate) rcv_autotune: AutoTune,
    pub(crate) sacks: Sacks,
    pub(crate) acks: Acks,
    pub(crate) quick_acks: QuickAcks,
    /// Last.ACK.sent (RFC 7323 §4.3), as a position.
    pub(crate) last_ack_sent: u64,

    pub(crate) timestamps: Timestamps,
    pub(crate) timers: Timers,
    /// Challenge ACKs.
    pub(crate) challenges: AckLimiter,
    /// ACKs of unacceptable segments that carry no text.
    pub(crate) unacceptable: AckLimiter,
    pub(crate) events: Events,
    /// The end of the connection was reported.
    ended: bool,
    pub(crate) reset: Option<Box<Reset>>,
    pub(crate) time_wait: Option<TimeWait>,
}

/// SND variables (RFC 9293 §3.3.1), as positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendSpace {
    pub(crate) space: SeqSpace,
    pub(crate) una: u64,
    pub(crate) nxt: u64,
    pub(crate) wnd: u64,
    /// The largest window that the peer has ever offered (RFC 5961 §5.2, RFC 9293 §3.8.6.2.1).
    pub(crate) wnd_max: u64,
    /// SND.WL1: a position in the peer's direction.
    pub(crate) wl1: i64,
    /// SND.WL2
    pub(crate) wl2: u64,
    /// Snd.Wind.Shift
    pub(crate) shift: u8,
    /// Eff.snd.MSS: payload bytes of a full packet, all options accounted for.
    pub(crate) mss: u16,
}

/// Seed of a connection's random choices: its initial sequence number is unpredictable.
fn seed(isn: u32, salt: u32) -> u64 {
    u64::from(isn) << 32 | u64::from(salt)
}

/// Returns true if a connection may begin with the segment. "Third, check for a SYN" (RFC 9293
/// §3.10.7.2): other controls and text in it are left for later: the peer repeats them.
pub(crate) fn is_plain_syn(header: &Header) -> bool {
    let Flags(bits) = header.flags;
    let Flags(ruled_out) = Flags::RST | Flags::ACK;
    header.flags.contains(Flags::SYN) && bits & ruled_out == 0
}

impl SendSpace {
    /// Bytes issued and not acknowledged.
    pub(crate) fn flight(&self) -> u64 {
        self.nxt - self.una
    }
}

impl Connection {
    /// Opens a connection to a peer (active open). `isn` and `ts_offset` come from an
    /// [`IsnGenerator`](crate::IsnGenerator).
    pub fn connect(
        config: &Config,
        local_port: u16,
        remote_port: u16,
        isn: u32,
        ts_offset: u32,
        now: Instant,
    ) -> Connection {
        Connection {
            config: *config,
            local_port,
            remote_port,
            state: State::SynSent,
            passive: false,
            is_fast_open: false,
            opened: now,
            snd: SendSpace {
                space: SeqSpace::new(isn),
                una: 0,
                nxt: 0,
                wnd: 0,
                wnd_max: 0,
                wl1: 0,
                wl2: 0,
                shift: 0,
                mss: config.peer_mss_default.min(config.mss).max(MSS_MIN),
            },
            queue: SendQueue::default(),
            fin_queued: false,
            write_blocked: false,
            sent: Scoreboard::default(),
            rtt: Rtt::default(),
            stats: Stats::default(),
            lifetime: Lifetime::default(),
            departure_timeouts: 0,
            min_rtt: MinRtt::default(),
            rto: Rto::default(),
            recovery: Recovery::default(),
            rate: DeliveryRate::new(config.congestion.uses_rate()),
            congestion: congestion::new(config.congestion, seed(isn, ts_offset)),
            pacing: Pacing::default(),
            is_rate_set: config.congestion.paces(),
            limited_until: 0,
            idle_since: now,
            persist: Persist::default(),
            ecn: Ecn::default(),
            pmtu: Pmtu::default(),
            too_big: AckLimiter::default(),
            silence: KeepaliveTimer::default(),
            nodelay: config.nodelay,
            cork: Cork::default(),
            orphaned: false,
            rcv: Receiver::new(
                config.receive_buffer_bytes,
                config.receive_buffer_bytes_max,
                config.reassembly_fragments_max,
            ),
            rcv_autotune: AutoTune::default(),
            sacks: Sacks::default(),
            acks: Acks::default(),
            quick_acks: QuickAcks::new(config.quick_acks),
            last_ack_sent: 0,
            timestamps: Timestamps::new(ts_offset),
            timers: Timers::new(),
            challenges: AckLimiter::default(),
            unacceptable: AckLimiter::default(),
            events: Events::default(),
            ended: false,
            reset: None,
            time_wait: None,
        }
    }

    /// Answers a SYN that has reached a listener (passive open; RFC 9293 §3.10.7.2). `None` if the
    /// segment is not a plain SYN: the host then answers with [`reset_for`](crate::reset_for) if it
    /// carries an ACK, and ignores it if not.
    ///
    /// Text that comes with the SYN is not kept: it is not acknowledged, and the peer sends it
    /// again.
    pub fn accept(
        config: &Config,
        syn: &Segment<'_>,
        isn: u32,
        ts_offset: u32,
        now: Instant,
    ) -> Option<Connection> {
        let header = &syn.header;
        if !is_plain_syn(header) {
            return None;
        }
        let mut connection = Connection::connect(
            config,
            header.destination_port,
            header.source_port,
            isn,
            ts_offset,
            now,
        );
        connection.on_passive_open(now, syn);
        Some(connection)
    }

    /// Opens the connection by the peer's SYN instead of our own.
    pub(crate) fn on_passive_open(&mut self, now: Instant, syn: &Segment<'_>) {
        self.state = State::SynReceived;
        self.passive = true;
        self.on_peer_syn(now, &syn.header);
        self.ecn.on_syn(self.config.ecn, syn);
    }

    /// Takes IRS and the options from the peer's SYN.
    pub(crate) fn on_peer_syn(&mut self, now: Instant, header: &Header) {
        let options = &header.options;
        // RFC 7323 §2.2: windows are scaled in both directions or in none.
        let theirs = options.window_scale.filter(|_| self.config.window_scaling);
        self.rcv.on_syn(header.seq, theirs.is_some());
        self.snd.shift = theirs.unwrap_or(0).min(WINDOW_SHIFT_MAX);
        self.last_ack_sent = self.rcv.nxt();
        if let (Some(timestamps), true) = (options.timestamps, self.config.timestamps) {
            self.timestamps.negotiate(now, timestamps.value);
        }
        if options.sack_permitted && self.config.sack {
            self.sacks.permit();
        }
        // RFC 9293 §3.7.1: Eff.snd.MSS; RFC 6691: options count against the data, not against the
        // MSS.
        let theirs = options.mss.unwrap_or(self.config.peer_mss_default);
        self.snd.mss = self.without_options(theirs.min(self.config.mss).max(MSS_MIN));
    }

    /// Options of every segment, in bytes.
    pub(crate) fn option_bytes(&self) -> u16 {
        if self.timestamps.are_negotiated() {
            TIMESTAMPS_BYTES
        } else {
            0
        }
    }

    pub(crate) fn without_options(&self, mss: u16) -> u16 {
        if self.timestamps.are_negotiated() {
            mss.max(MSS_MIN) - TIMESTAMPS_BYTES
        } else {
            mss.max(1)
        }
    }

    /// Payload of the largest packet that the peer may send.
    pub(crate) fn receive_mss(&self) -> u16 {
        self.without_options(self.config.mss)
    }

    /// Completes the handshake.
    pub(crate) fn establish(&mut self, now: Instant) {
        // CLOSE was called before: RFC 9293 §3.10.4, SYN-RECEIVED: queued until ESTABLISHED.
        self.state = if self.fin_queued {
            State::FinWait1
        } else {
            State::Established
        };
        self.events.connected = true;
        let lost = self.rto.timeouts();
        if !self.is_fast_open || lost > 1 {
            self.congestion.on_established(now, self.snd.mss, lost > 1);
        }
        self.rto
            .on_established(lost > 0 && self.rtt.srtt().is_none());
        self.timers.cancel(Timer::Retransmit);
        self.pmtu.on_established(self.snd.mss);
        self.silence.on_heard(now);
        if let Some(keepalive) = self.config.keepalive {
            self.timers.arm(Timer::Keepalive, now + keepalive.idle);
        }
    }

    /// Adds a measured round-trip time to the estimates (RFC 6298 §2).
    pub(crate) fn on_round_trip(&mut self, sample_us: u64) {
        self.stats.round_trips.add(sample_us);
        self.rtt.on_sample(sample_us);
        self.rto.on_sample();
    }

    pub(crate) fn rto(&self) -> Duration {
        Duration::from_micros(self.rto.current_us(&self.config, &self.rtt))
    }

    /// Starts or restarts the retransmission timer (RFC 6298 §5.1, §5.3).
    pub(crate) fn arm_retransmission(&mut self, from: Instant) {
        let rto_us = self.rto.current_us(&self.config, &self.rtt);
        self.timers.arm(Timer::Retransmit, from.after_us(rto_us));
    }

    /// Records that the packets of a transmission have left, and when. A report for a transmission
    /// that is acknowledged already, or was never issued, is harmless.
    ///
    /// Reports come in the order in which the transmissions were issued: a later report ends the
    /// wait for a missing one.
    pub fn on_departed(&mut self, transmission: u64, at: Instant) {
        let unheard = self.depart_unheard(transmission, at);
        if self.acks.on_departed(transmission, self.rcv.nxt()) {
            self.on_ack_sent();
        }
        let departure = self.sent.depart(transmission, at, &mut self.rate);
        if let Departure::Acknowledged(round_trip) = departure
            && !self.config.rtt_from_timestamps
        {
            let round_trip_us = whole_us(round_trip);
            self.min_rtt.on_sample(at + round_trip, round_trip_us);
            self.on_round_trip(round_trip_us);
        }
        if unheard || departure == Departure::InFlight {
            self.on_departure_heard(at);
            // RFC 6298 §5.1, with "sent" meaning departed. The timer belongs to the first byte not
            // acknowledged.
            if !self.timers.is_armed(Timer::Retransmit) && self.sent.has_departed() {
                self.arm_retransmission(at);
                self.bound_by_user_timeout();
            }
            self.schedule_probe(at);
        }
    }

    /// Returns when to call [`on_timeout`](Connection::on_timeout). It is up to date once
    /// [`poll_transmit`](Connection::poll_transmit) has returned `None`, or a `Transmit` that [is
    /// the last](crate::Transmit::is_last).
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Handles expired timers. To be called at [`next_timeout`](Connection::next_timeout); an early
    /// call does nothing.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.timers.take_expired(Timer::Reorder, now) {
            self.on_reordering_timeout(now);
        }
        if self.timers.take_expired(Timer::Pto, now) {
            self.on_probe_timeout(now);
        }
        if self.timers.take_expired(Timer::Departure, now) {
            self.on_departure_timeout();
        }
        if self.timers.take_expired(Timer::Retransmit, now) {
            self.on_retransmission_timeout(now);
        }
        if self.timers.take_expired(Timer::Persist, now)
            && !self
                .persist
                .on_timeout(now, self.retries(), self.config.user_timeout)
        {
            self.end(CloseReason::TimedOut);
        }
        if self.timers.take_expired(Timer::DelayedAck, now) {
            self.quick_acks.on_delayed();
            self.acks.request();
        }
        if self.timers.take_expired(Timer::Keepalive, now) {
            self.on_keepalive_timeout(now);
        }
        // `poll_transmit` sends the data that pacing held back.
        self.timers.take_expired(Timer::Pace, now);
        if self.fin_queued {
            if self.timers.take_expired(Timer::Linger, now) {
                // TIME-WAIT has reported its end already; in FIN-WAIT-2 the peer has been silent
                // for too long.
                self.end(CloseReason::TimedOut);
            }
        } else if self.timers.take_expired(Timer::CORK, now) {
            self.cork.on_timeout(self.snd.nxt, self.fin_position());
        }
    }

    /// Bounds the retransmission and persist timers by the user timeout.
    #[inline(never)]
    pub(crate) fn bound_by_user_timeout(&mut self) {
        let user_timeout = self.config.user_timeout;
        let retransmissions_end = self.rto.deadline(user_timeout);
        self.timers.bound(Timer::Retransmit, retransmissions_end);
        let probes_end = self.persist.deadline(user_timeout);
        self.timers.bound(Timer::Persist, probes_end);
    }

    /// Handles a retransmission timeout (RFC 6298 §5.4 to §5.7).
    fn on_retransmission_timeout(&mut self, now: Instant) {
        // Data that was issued again and still waits in the NIC stack is not late. Its departure
        // arms the timer.
        if !self.sent.has_departed() {
            return;
        }
        self.stats.timeouts += 1;
        self.lifetime.on_timeout();
        let again = self.rto.timeouts() > 0;
        let retries = self.retries();
        if !self.rto.on_timeout(now, retries, self.config.user_timeout) {
            self.end(CloseReason::TimedOut);
        } else if self.state.is_opening() {
            self.sent.lose_positions(0..1);
        } else {
            self.lose_after_timeout(now, again);
        }
    }

    /// Returns how many times in a row the peer may fail to answer.
    fn retries(&self) -> u8 {
        let config = &self.config;
        if self.state.is_opening() {
            config.syn_retries
        } else if self.fin_queued && self.queue.is_empty() {
            config.fin_retries.min(config.retries)
        } else {
            config.retries
        }
    }

    fn on_keepalive_timeout(&mut self, now: Instant) {
        // In FIN-WAIT-2 and TIME-WAIT another timer runs; in the other states our FIN is on its
        // way.
        let (Some(keepalive), State::Established | State::CloseWait) =
            (self.config.keepalive, self.state)
        else {
            return;
        };
        let busy = self.snd.flight() > 0 || !self.queue.is_empty();
        let user_timeout = self.config.user_timeout;
        match (self.silence).on_timeout(now, &keepalive, user_timeout, busy) {
            Verdict::Wait(until) | Verdict::Probe(until) => {
                self.timers.arm(Timer::Keepalive, until);
            }
            Verdict::GiveUp => self.end(CloseReason::TimedOut),
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<ConnectionEvent> {
        self.events.poll()
    }

    /// Queues bytes and returns how many were taken. If not all,
    /// [`Writable`](ConnectionEvent::Writable) follows, unless the connection is closed or
    /// [shut down](Connection::shutdown).
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        if !self.may_write() {
            return 0;
        }
        let needs_extent = !self.queue.ends_real();
        let room = if needs_extent && self.queue.extents() >= self.config.extents_max {
            0
        } else {
            self.send_buffer_bytes()
                .saturating_sub(self.queue.real_bytes())
        };
        let taken = bytes.len().min(room);
        self.queue.push_real(&bytes[..taken]);
        self.cork.more = false;
        if taken < bytes.len() {
            self.block_writer();
        }
        taken
    }

    /// Queues `len` bytes of an object, from `offset` on, without touching them, and returns how
    /// many were queued: all; fewer if there is less [room](Connection::virtual_room), and
    /// [`Writable`](ConnectionEvent::Writable) follows as after [`write`](Connection::write); 0 if
    /// there is none, or if the range that fits is longer than any file can be.
    /// [`Released`](ConnectionEvent::Released) follows when the queued range is acknowledged. An
    /// empty range is queued without effect and without event.
    pub fn write_virtual(&mut self, object: u32, offset: u64, len: u64) -> u64 {
        if !self.may_write() || len == 0 {
            return 0;
        }
        let taken = len.min(self.virtual_room());
        self.cork.more = false;
        if taken < len {
            self.block_writer();
        }
        if self.queue.push_virtual(object, offset, taken) {
            taken
        } else {
            0
        }
    }

    /// Returns true if [`Connection::write_virtual`] takes a range now, whole or in part.
    pub fn takes_virtual(&self) -> bool {
        self.may_write() && self.virtual_room() > 0
    }

    /// Returns how many bytes [`Connection::write_virtual`] takes: `u64::MAX` if they are unbounded
    /// ([`Config::virtual_bytes_max`]), 0 if too many extents are queued.
    pub fn virtual_room(&self) -> u64 {
        if self.queue.extents() >= self.config.extents_max {
            return 0;
        }
        self.virtual_bound().map_or(u64::MAX, |bound| {
            bound.saturating_sub(self.unsent_virtual())
        })
    }

    /// Returns the bound on virtual bytes queued and not sent, if one is configured.
    fn virtual_bound(&self) -> Option<u64> {
        let configured = self.config.virtual_bytes_max;
        if configured == u64::MAX {
            return None;
        }
        Some(sndbuf::virtual_bytes_max(configured, self.cwnd()))
    }

    /// Returns the number of virtual bytes queued and not sent.
    fn unsent_virtual(&self) -> u64 {
        self.queue
            .virtual_bytes_from(self.snd.nxt.saturating_sub(1))
    }

    /// Marks the writer as blocked and releases the cork: no more bytes can join the held segment.
    #[cold]
    fn block_writer(&mut self) {
        self.write_blocked = true;
        self.cork.release(self.fin_position());
    }

    fn may_write(&self) -> bool {
        !self.fin_queued && self.state != State::Closed
    }

    /// Returns how many real bytes may be queued and not acknowledged at present.
    pub fn send_buffer_bytes(&self) -> usize {
        sndbuf::bytes_max(&self.config, self.cwnd())
    }

    /// Wakes a blocked writer after an acknowledgment, once there is room.
    pub(crate) fn wake_writer(&mut self) {
        if self.write_blocked && self.has_room_again() {
            self.write_blocked = false;
            self.events.writable = !self.fin_queued;
        }
    }

    /// Returns true if a quarter of each bound is free.
    #[inline(never)]
    fn has_room_again(&self) -> bool {
        let low = |bound: usize| bound - bound.div_ceil(4);
        let bound = self.virtual_bound();
        self.queue.real_bytes() <= low(self.send_buffer_bytes())
            && self.queue.extents() <= low(self.config.extents_max)
            && bound.is_none_or(|bound| self.unsent_virtual() <= bound - bound.div_ceil(4))
    }

    /// Takes received bytes and returns how many; 0 if there are none.
    pub fn read(&mut self, buf: &mut [u8]) -> usize {
        let count = self.rcv.read(buf);
        if count > 0 && self.state.takes_text() && self.rcv.is_update_due(self.receive_mss()) {
            self.acks.request();
        }
        count
    }

    /// Copies received bytes that stay unread, and returns how many.
    pub fn peek(&self, buf: &mut [u8]) -> usize {
        self.rcv.peek(buf)
    }

    /// Bytes received and not read.
    pub fn unread_bytes(&self) -> usize {
        self.rcv.readable()
    }

    /// Closes our direction: FIN follows all queued data (RFC 9293 §3.10.4). The peer may continue
    /// to send.
    ///
    /// In SYN-SENT, where the RFC deletes the connection, FIN waits for the handshake, as in
    /// SYN-RECEIVED: queued data is still delivered.
    pub fn shutdown(&mut self) {
        match self.state {
            State::SynSent | State::SynReceived => {}
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            // "connection closing"
            _ => return,
        }
        self.fin_queued = true;
        self.timers.cancel(Timer::CORK);
    }

    /// Ends the application's use of the connection: queued data is still sent, then FIN, as after
    /// [`shutdown`](Connection::shutdown). If bytes are unread, or more arrive, the peer is reset,
    /// since its data is lost (RFC 9293 §3.6.1, SHLD-3; RFC 2525 §2.17), and queued data is lost as
    /// well. In TIME-WAIT, where both sides have closed, unread bytes are dropped.
    pub fn close(&mut self) {
        match self.state {
            State::TimeWait | State::Closed => self.rcv.discard(),
            _ if self.rcv.readable() > 0 => self.reset_peer(CloseReason::Aborted),
            _ => {
                self.orphaned = true;
                self.shutdown();
            }
        }
    }

    /// Ends the connection at once. The peer is reset if it may still expect a segment (RFC 9293
    /// §3.10.5): in CLOSING and LAST-ACK, if it may lack data, or FIN has not left.
    pub fn abort(&mut self) {
        match self.state {
            State::SynReceived
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait => self.reset_peer(CloseReason::Aborted),
            State::Closing | State::LastAck if self.may_lack_data() => {
                self.reset_peer(CloseReason::Aborted)
            }
            State::SynSent | State::Closing | State::LastAck | State::TimeWait | State::Closed => {
                self.end(CloseReason::Aborted)
            }
        }
    }

    /// Returns true if the peer may wait for data, or for FIN.
    fn may_lack_data(&self) -> bool {
        let (departed, _) = self.sent.departed_ends(self.snd.una);
        !self.queue.is_empty() || departed <= self.fin_position()
    }

    /// Ends the connection with a reset.
    pub(crate) fn reset_peer(&mut self, reason: CloseReason) {
        let una = self.snd.una;
        let (certain, possible) = self.sent.departed_ends(una);
        // A peer that has not got our SYN knows no sequence number of ours.
        let seqs = [certain, possible, una].map(|position| self.snd.space.wire(position.max(1)));
        self.reset = Some(Box::new(Reset::Abort(Boundaries::new(seqs))));
        self.end(reason);
    }

    /// Enters CLOSED; the first reason is the one reported. Received data can still be read.
    pub(crate) fn end(&mut self, reason: CloseReason) {
        self.state = State::Closed;
        self.timers.cancel_all();
        self.sent = Scoreboard::default();
        self.report_end(reason);
    }

    pub(crate) fn report_end(&mut self, reason: CloseReason) {
        if !std::mem::replace(&mut self.ended, true) {
            self.events.closed = Some(reason);
        }
    }

    /// Enters TIME-WAIT (RFC 9293 §3.10.7.4): starts its timer, turns off the others.
    pub(crate) fn enter_time_wait(&mut self, now: Instant) {
        self.state = State::TimeWait;
        let window = self.rcv.offer_window(self.receive_mss());
        let time_wait = TimeWait {
            snd_nxt: self.snd.space.wire(self.snd.nxt),
            rcv_nxt: self.rcv.wire_nxt(),
            window,
            answers_max: self.config.challenge_acks_max,
            answers_interval_ms: milliseconds(self.config.challenge_acks_interval),
            length_ms: milliseconds(self.config.time_wait),
            timestamps: self.timestamps.remembered(),
            expires: now + self.config.time_wait,
            limiter: AckLimiter::default(),
        };
        self.time_wait = Some(time_wait);
        self.timers.cancel_all();
        self.timers.arm(Timer::Linger, time_wait.expires());
        self.report_end(CloseReason::Finished);
    }

    /// In TIME-WAIT, once all is read and [`poll_transmit`](Connection::poll_transmit) has returned
    /// `None`: returns the state that can replace this connection, in a fraction of its memory.
    pub fn time_wait(&self) -> Option<TimeWait> {
        match self.state {
            State::TimeWait if self.rcv.readable() == 0 => self.time_wait,
            _ => None,
        }
    }

    /// If this connection is in TIME-WAIT and the SYN may begin a new incarnation
    /// ([`TimeWait::may_be_replaced_by`]): returns the state beyond whose numbers the new
    /// incarnation must begin. Unread data is lost.
    pub fn replaced_by(&self, syn: &Segment<'_>) -> Option<TimeWait> {
        match &self.time_wait {
            Some(time_wait) if self.state == State::TimeWait => {
                time_wait.may_be_replaced_by(syn).then_some(*time_wait)
            }
            _ => None,
        }
    }

    /// Returns the memory held for text, received or to be sent, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.rcv.memory_bytes() + self.queue.memory_bytes()
    }

    /// Sets whether memory is short: then the window is not opened beyond
    /// [`Config::RECEIVE_BUFFER_BYTES_PRESSED`] (RFC 9293 §3.8.6.2.2 permits any size; an offered
    /// window is not withdrawn).
    pub fn set_memory_pressure(&mut self, is_pressed: bool) {
        let bytes = self.config.receive_buffer_bytes;
        self.rcv.set_pressed(is_pressed, bytes);
    }

    /// Returns the state of the connection (RFC 9293 §3.3.2).
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns true if nothing is left to be done: the connection may be dropped.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed && self.reset.is_none()
    }

    /// Returns true if all our data has been sent, FIN included: every further step is the peer's.
    pub fn has_sent_fin(&self) -> bool {
        match self.state {
            State::FinWait1 | State::Closing | State::LastAck => self.snd.nxt > self.fin_position(),
            State::FinWait2 | State::TimeWait => true,
            _ => false,
        }
    }

    /// Returns the stream offset of the first byte that the peer has not acknowledged.
    pub fn acknowledged_bytes(&self) -> u64 {
        self.queue.acknowledged()
    }

    /// Returns the number of queued bytes that the peer has not acknowledged, sent or not.
    pub fn queued_bytes(&self) -> u64 {
        self.queue.end() - self.queue.acknowledged()
    }

    /// Returns the contents of a [`Transmit`](crate::Transmit)'s payload: the pieces of a range of
    /// the stream, in order, without the bytes acknowledged meanwhile.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece<'_>> + Clone {
        self.queue.pieces(range)
    }

    /// Returns the piece of a range that lies within the first virtual extent, as usual while a
    /// file is sent, and [how many bytes](Connection::virtual_bytes_behind) of its object are
    /// queued behind it. `None` for any other range.
    #[inline]
    pub fn only_piece(&self, range: &Range<u64>) -> Option<(Piece<'_>, u64)> {
        self.queue.only_piece(range)
    }

    /// Returns true if an issued transmission may still have to leave. Where echoes can be lost
    /// ([`Config::departure_timeout`](crate::Config::departure_timeout)), none is awaited for data
    /// that the peer has acknowledged.
    pub fn awaits_departure(&self) -> bool {
        let is_lossless = self.config.departure_timeout.is_none();
        self.sent.unreported() > 0 && (is_lossless || self.sent.has_undeparted())
    }

    /// Returns true if no departed data is in flight: all data in flight, if any, has not left yet.
    pub fn nothing_departed_in_flight(&self) -> bool {
        self.sent.flight() == self.sent.undeparted_bytes()
    }

    /// Returns how many bytes of an object are queued behind `end`, if the byte before it belongs
    /// to the same object and was queued with them: the continuation of the stream.
    pub fn virtual_bytes_behind(&self, end: u64) -> u64 {
        self.queue.virtual_bytes_behind(end)
    }

    /// Returns the payload of a full packet, in bytes: the [`Transmit::mss`](crate::Transmit::mss)
    /// of transmissions to come.
    pub fn mss(&self) -> u16 {
        self.snd.mss
    }

    /// Returns the smoothed round-trip time, once measured.
    pub fn smoothed_rtt(&self) -> Option<Duration> {
        self.rtt.srtt()
    }

    /// Returns the congestion control in use.
    pub fn congestion(&self) -> CongestionAlgorithm {
        self.config.congestion
    }

    /// Replaces the congestion control. The new one begins with the congestion window and the slow
    /// start threshold of the previous one.
    pub fn set_congestion(&mut self, now: Instant, algorithm: CongestionAlgorithm) {
        if algorithm == self.config.congestion {
            return;
        }
        self.config.congestion = algorithm;
        self.rate.set_used(algorithm.uses_rate());
        let mut next =
            congestion::new(algorithm, seed(self.snd.space.wire(0), self.snd.mss.into()));
        // In earlier states, `establish` sets the initial window.
        if !self.state.is_opening() || self.is_fast_open {
            let window = self.congestion.window();
            next.adopt(now, self.snd.mss, window, self.congestion.ssthresh());
        }
        self.congestion = next;
        self.update_pacing();
    }

    /// Returns how many sequence numbers were issued and not acknowledged by the peer.
    pub fn flight_bytes(&self) -> u64 {
        self.snd.flight()
    }

    /// Returns how many sequence numbers in flight are neither delivered nor lost as far as is
    /// known (`pipe` of RFC 6675 §2).
    pub fn pipe_bytes(&self) -> u64 {
        self.sent.flight()
    }

    /// Returns true if a tail loss probe was sent and is not answered: it may exceed the congestion
    /// window (RFC 8985 §7.3).
    pub fn has_tail_probe(&self) -> bool {
        self.recovery.tlp.has_probe()
    }

    /// Returns how many bytes may be sent at once now: the usable window of RFC 9293 §3.8.6.2.1, as
    /// far as congestion window and pacing permit.
    pub fn usable_window_bytes(&self) -> u64 {
        let window = self.cwnd();
        let cwnd_room = window.saturating_sub(self.sent.flight());
        let peer_room = (self.snd.una + self.snd.wnd).saturating_sub(self.snd.nxt);
        cwnd_room.min(peer_room).min(self.unpaced_bytes(window))
    }

    /// Returns the number of issued transmissions whose departure was neither reported nor
    /// concluded.
    pub fn undeparted_transmissions(&self) -> usize {
        self.sent.unreported()
    }

    /// Returns the congestion window, in bytes.
    pub fn congestion_window(&self) -> u64 {
        self.cwnd()
    }
}
