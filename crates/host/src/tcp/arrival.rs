//! Arrival of frames from the port, and the part of segment arrival that precedes any connection
//! (RFC 9293 §3.10.7).

use netdev::Frame;
use tcp::{Instant, TimeWait};
use wire::frame::{self, TcpPacket, TcpTemplate};
use wire::tcp::Flags;

use crate::config::StackConfig;
use crate::episode::Episode;
use crate::ground::Ground;
use crate::link::icmp;
use crate::link::neighbor::Resolution;
use crate::link::reply_limit::ReplyLimit;
use crate::tables::bindings::Destination;
use crate::tables::connections::ConnectionHandle;
use crate::tables::time_wait::Answer;
use crate::tables::tuple::Tuple;
use crate::tcp::TcpLayer;
use crate::tcp::turns::queue_dirty;

/// The fate of a segment that belongs to no connection of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bare {
    /// Sent, or dropped as links do.
    Gone,
    /// Dropped, while the next hop's address is being resolved.
    Pending,
}

/// The limit on RSTs outside of connections.
#[derive(Debug)]
pub(crate) struct Resets {
    limit: ReplyLimit,
    /// All connections have been reset. Every further segment with ACK gets RST, regardless of the
    /// limit, since the first RST may have missed RCV.NXT.
    is_parting: bool,
    suppressed: Episode,
}

impl Resets {
    pub(crate) fn new(config: &StackConfig, now_us: u64) -> Resets {
        Resets {
            limit: ReplyLimit::new(config.resets_per_second, now_us),
            is_parting: false,
            suppressed: Episode::default(),
        }
    }

    /// The stack is about to end.
    pub(crate) fn part(&mut self) {
        self.is_parting = true;
    }

    /// True if a segment of no connection may be answered with RST now.
    fn allow_reset(&mut self, now_us: u64, flags: Flags) -> bool {
        let is_of_connection = flags.contains(Flags::ACK) && !flags.contains(Flags::SYN);
        (self.is_parting && is_of_connection) || self.limit.allows(now_us)
    }

    /// Changes the limit.
    pub(crate) fn change(&mut self, config: &StackConfig) {
        self.limit.set_rate(config.resets_per_second);
    }
}

impl TcpLayer {
    /// Handles an ICMP error that quotes a segment: the connection knows whether it can have sent
    /// it. Half-open ones ignore it (the table in `tcp`): no path is too small for a SYN,ACK.
    pub(crate) fn on_icmp_error(&mut self, ground: &mut Ground, now_us: u64, error: &icmp::Error) {
        let tuple = Tuple {
            local: error.quoted.source,
            remote: error.quoted.destination,
        };
        let Some(handle) = self.connections.find(&tuple) else {
            if let icmp::ErrorKind::TooBig { mtu } = error.kind {
                self.on_too_big_for_splice(ground, now_us, &tuple, mtu, error.quoted.seq);
            }
            return;
        };
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        // A connection with both ends here passes no router.
        if entry.route.is_looped() {
            return;
        }
        let seq = error.quoted.seq;
        match error.kind {
            icmp::ErrorKind::TooBig { mtu } => self.on_too_big(ground, now_us, handle, mtu, seq),
            icmp::ErrorKind::Unreachable { hard } => {
                entry.tcp.on_icmp_unreachable(hard, seq);
                self.mark_dirty(handle);
            }
        }
    }

    pub(crate) fn on_too_big(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        handle: ConnectionHandle,
        mtu: u32,
        seq: u32,
    ) {
        let now = Instant::from_us(now_us);
        if let Some(entry) = self.connections.get_mut(handle)
            && entry.tcp.on_icmp_too_big(now, mtu, seq)
        {
            ground.counters.mtus_reduced += 1;
            self.mark_dirty(handle);
        }
    }

    /// A connection gives way to a new one of the same four-tuple: TIME-WAIT takes over.
    pub(crate) fn replace(
        &mut self,
        ground: &mut Ground,
        handle: ConnectionHandle,
        tuple: &Tuple,
        time_wait: TimeWait,
    ) {
        self.forget(ground, handle);
        self.time_waits.insert(tuple, time_wait);
    }

    /// The same for a segment sent by this stack.
    #[cold]
    pub(crate) fn on_looped(&mut self, ground: &mut Ground, now_us: u64, packet: &TcpPacket<'_>) {
        let (tuple, segment) = (Tuple::of(packet), &packet.segment);
        ground.counters.segments_received += 1;
        if let Some(handle) = self.connections.find(&tuple)
            && let Some(entry) = self.connections.get_mut(handle)
        {
            let Some(time_wait) = entry.tcp.replaced_by(segment) else {
                entry.tcp.on_segment(Instant::from_us(now_us), segment);
                entry.is_share_stale |= !segment.payload.is_empty();
                return self.mark_dirty(handle);
            };
            self.replace(ground, handle, &tuple, time_wait);
        }
        self.on_stray(ground, now_us, packet, None);
    }

    /// Handles a segment that belongs to no connection of the table, in the frame that it came in.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_stray_frame(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        packet: &TcpPacket<'_>,
        frame: &Frame<'_>,
    ) {
        if self.has_splices() && self.on_spliced(ground, now_us, packet, frame.bytes) {
            return;
        }
        if self.teardown.parted.len() == 0 || !self.hand_on(ground, packet, frame.bytes) {
            self.on_stray(ground, now_us, packet, Some(frame.bytes));
        }
    }

    /// Handles a segment that belongs to no connection of the table, with its frame, if any.
    #[cold]
    fn on_stray(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        packet: &TcpPacket<'_>,
        frame: Option<&[u8]>,
    ) {
        let (tuple, segment) = (Tuple::of(packet), &packet.segment);
        let now = Instant::from_us(now_us);
        if self.on_half_open(ground, now_us, tuple, segment) {
            return;
        }
        if ground.config.is_shared && !ground.config.is_own(tuple.local.ip()) {
            // The address has gone, and its connections with it.
            self.refuse(ground, now_us, tuple, segment);
            return;
        }
        let mut before = None;
        match self.time_waits.on_segment(now, &tuple, segment) {
            Answer::Unknown => {
                if self.hands_syns_on()
                    && !ground.is_handed_up
                    && frame.is_some_and(|bytes| self.hand_syn_on(ground, packet, bytes))
                {
                    return;
                }
            }
            Answer::Replaced(old) => before = Some(old),
            Answer::Handled(None) => return,
            Answer::Handled(Some(header)) => {
                self.send_bare(ground, now_us, tuple, &header);
                return;
            }
        }
        let is_taken = match self.destination(ground, &tuple) {
            Destination::Listener(listener) => {
                self.on_listen(ground, now_us, tuple, segment, before, listener)
            }
            Destination::Full => {
                ground.counters.listen_overflows += 1;
                true
            }
            Destination::Closed => false,
        };
        if !is_taken {
            self.refuse(ground, now_us, tuple, segment);
        }
    }

    /// Answers a segment of no connection with RST, unless it is an RST itself.
    pub(crate) fn refuse(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        tuple: Tuple,
        segment: &wire::tcp::Segment<'_>,
    ) {
        let Some(reset) = tcp::reset_for(segment) else {
            return;
        };
        // Refusing a program of this stack uses up none of the answers for others.
        let flags = segment.header.flags;
        if self.loops(ground, tuple.remote.ip()) || self.resets.allow_reset(now_us, flags) {
            ground.counters.resets_sent += 1;
            self.send_bare(ground, now_us, tuple, &reset);
            return;
        }
        ground.counters.resets_suppressed += 1;
        if self.resets.suppressed.begins(now_us) {
            let limit = ground.config.resets_per_second;
            tracing::warn!(
                limit,
                "the rate limit of replies to segments of no connection is reached"
            );
        }
    }

    /// Sends a segment without data that belongs to no connection of the table, if the next hop's
    /// address is known.
    pub(crate) fn send_bare(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        tuple: Tuple,
        header: &wire::tcp::Header,
    ) -> Bare {
        if self.loops(ground, tuple.remote.ip()) {
            self.loop_bare(ground, tuple, header);
            return Bare::Gone;
        }
        let next_hop = ground.neighbors.next_hop(tuple.remote.ip());
        let destination_mac = match ground.neighbors.resolve(now_us, next_hop) {
            Resolution::Known(mac) => mac,
            Resolution::Pending => return Bare::Pending,
            Resolution::Unreachable | Resolution::Own => return Bare::Gone,
        };
        let mut buffer = [0; contract::limits::HEADER_BYTES_MAX];
        let traffic_class = if header.flags.contains(Flags::SYN) && self.bindings.has_classes() {
            self.class_of_listener(ground, &tuple)
        } else {
            0
        };
        let template = TcpTemplate {
            traffic_class,
            ..TcpTemplate::new(ground.link.mac, destination_mac, tuple.local, tuple.remote)
        };
        if let Some(length) = template.write(header, &mut buffer) {
            let frame = &mut buffer[..length];
            if frame::complete_checksum(frame, []).is_ok() {
                ground.frames.push_back(frame.to_vec());
            }
        }
        Bare::Gone
    }

    pub(crate) fn on_mtu(&mut self, ground: &mut Ground, now_us: u64) {
        let now = Instant::from_us(now_us);
        let mss = [ground.link.mss(false), ground.link.mss(true)];
        (self.config_v4.mss, self.config_v6.mss) = (mss[0], mss[1]);
        for handle in self.connections.handles() {
            if let Some(entry) = self.connections.get_mut(handle)
                && !entry.route.is_looped()
            {
                let ipv6 = entry.tuple.local.is_ipv6();
                if entry.tcp.on_link_mss(now, mss[usize::from(ipv6)]) {
                    queue_dirty(&mut self.dirty, entry);
                }
            }
        }
    }
}
