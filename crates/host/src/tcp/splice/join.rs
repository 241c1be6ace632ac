//! The way into a splice: two connections become quiet, and a NIC worker gets them.

use tcp::{Instant, State};
use wire::frame::{self, Received, TcpPacket};
use wire::tcp::{Flags, Header, Segment};

use super::BOTH;
use crate::app::StreamId;
use crate::ground::Ground;
use crate::ground::workers::Life;
use crate::link::neighbor::Resolution;
use crate::nics::nic_stacks::NicSet;
use crate::splicing::{SpliceError, SpliceEvent, SpliceLimits};
use crate::tables::connections::ConnectionHandle;
use crate::tables::splices::{Leg, Place, Side, Splice, Stage};
use crate::tcp::TcpLayer;

/// Two connections become quiet within so long, in microseconds: a few round trips, or a lost
/// segment and its retransmission.
const JOIN_US: u64 = 3_000_000;

/// Bytes that go from one connection to the other at a time.
const SCRATCH_BYTES: usize = 16 << 10;

impl TcpLayer {
    /// Joins two streams in a NIC stack. See [`Io::splice`](crate::app::Io::splice).
    pub(crate) fn splice(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        streams: [StreamId; 2],
        limits: SpliceLimits,
    ) -> Result<(), SpliceError> {
        let handles = self.may_join(ground, now_us, streams)?;
        let worker = self
            .worker_for(ground, handles[0])
            .ok_or(SpliceError::NoNicStack)?;
        let deadline_us = now_us.saturating_add(JOIN_US);
        let mut legs = [None, None];
        for side in BOTH {
            let Some(entry) = self.connections.get_mut(handles[side]) else {
                return Err(SpliceError::NotOpen);
            };
            legs[side] = Some(Leg {
                stream: entry.stream,
                tuple: entry.tuple,
                mac: [0; 6],
                traffic_class: entry.traffic_class,
                numbers: None,
                fin_end: None,
                app_deadline_us: entry.app_deadline_us,
                is_let_go: false,
            });
            entry.told = false;
            entry.idle_since_us = None;
            entry.notsent_lowat = None;
            entry.app_deadline_us = (side == 0).then_some(deadline_us);
            let tuple = entry.tuple;
            self.connections.take_off(&tuple);
            self.mark_dirty(handles[side]);
        }
        let [Some(first), Some(second)] = legs else {
            return Err(SpliceError::NotOpen);
        };
        ground.counters.splices_begun += 1;
        let place = self.splicing.splices.insert(Splice {
            legs: [first, second],
            stage: Stage::Joining,
            worker,
            limits,
            held: Vec::new(),
            held_bytes: 0,
            moved_bytes: [0; 2],
            passed_bytes: [0; 2],
            is_again: false,
        });
        self.go_on_joining(ground, now_us, place);
        Ok(())
    }

    /// Two streams that may be joined.
    fn may_join(
        &self,
        ground: &Ground,
        now_us: u64,
        streams: [StreamId; 2],
    ) -> Result<[ConnectionHandle; 2], SpliceError> {
        let [first, second] = streams;
        let mut handles = [None, None];
        let mut timestamps = [false; 2];
        for side in BOTH {
            let entry = self.connections.by_stream(streams[side]);
            let entry = entry.filter(|entry| entry.told && !entry.is_deferred);
            let entry = entry.ok_or(SpliceError::NotOpen)?;
            if entry.tls.is_some() {
                return Err(SpliceError::Tls);
            }
            if entry.route.is_looped() {
                return Err(SpliceError::Looped);
            }
            if entry.tcp.state() != State::Established || entry.data_plane_failed {
                return Err(SpliceError::NotOpen);
            }
            handles[side] = Some(entry.handle());
            timestamps[side] = entry.tcp.has_timestamps();
        }
        let ([Some(a), Some(b)], true) = (handles, first != second) else {
            return Err(SpliceError::NotOpen);
        };
        if timestamps[0] != timestamps[1] {
            return Err(SpliceError::Timestamps);
        }
        let is_full = self.splicing.splices.len() >= ground.config.splices_max;
        if is_full || now_us < self.splicing.from_us {
            return Err(SpliceError::Full);
        }
        Ok([a, b])
    }

    /// The NIC worker that a splice of this connection goes to: its own, if it serves.
    fn worker_for(&self, ground: &Ground, handle: ConnectionHandle) -> Option<usize> {
        let own = self.connections.get(handle)?.nic.worker;
        let serves = |worker: usize| ground.workers[worker].life == Life::Serving;
        if serves(own) {
            return Some(own);
        }
        let there = ground.nic_stacks.workers_to_choose(NicSet::default());
        ground.least_busy(there).filter(|it| serves(*it))
    }

    /// A segment of a connection that is being joined.
    pub(super) fn on_joining_segment(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        (place, side): (Place, Side),
        segment: &Segment<'_>,
        bytes: &[u8],
    ) {
        let Some(stream) = self.stream_of(place, side) else {
            return;
        };
        let Some(entry) = self.connections.by_stream_mut(stream) else {
            return;
        };
        let (now, handle) = (Instant::from_us(now_us), entry.handle());
        if entry.tcp.brings_more(segment) {
            if entry.tcp.hears_news_in(&segment.header) {
                let flags = segment.header.flags.without(Flags::FIN | Flags::PSH);
                let bare = Segment {
                    header: Header {
                        flags,
                        ..segment.header
                    },
                    payload: &[],
                    ecn: segment.ecn,
                };
                entry.tcp.on_segment(now, &bare);
            }
            if self.splicing.splices.hold(place, side, bytes) {
                ground.counters.splice_frames_held += 1;
            } else {
                ground.counters.frames_not_handed_on += 1;
            }
        } else {
            entry.tcp.on_segment(now, segment);
        }
        self.mark_dirty(handle);
        self.go_on_joining(ground, now_us, place);
    }

    fn stream_of(&self, place: Place, side: Side) -> Option<StreamId> {
        Some(self.splicing.splices.get(place)?.legs[side].stream)
    }

    /// Moves unread bytes to the other connection; joins the two if they are quiet.
    pub(super) fn go_on_joining(&mut self, ground: &mut Ground, now_us: u64, place: Place) {
        for side in BOTH {
            self.move_unread(place, side);
        }
        for side in BOTH {
            let stream = self.stream_of(place, side);
            let entry = stream.and_then(|stream| self.connections.by_stream(stream));
            if entry.is_none_or(|entry| entry.tcp.state() != State::Established) {
                return self.give_up_joining(ground, now_us, place, SpliceError::Ended);
            }
        }
        if self.are_quiet(ground, now_us, place) {
            self.join(ground, now_us, place);
        }
    }

    fn move_unread(&mut self, place: Place, side: Side) {
        let (from, to) = (self.stream_of(place, side), self.stream_of(place, 1 - side));
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        let mut scratch = [0; SCRATCH_BYTES];
        loop {
            let Some(entry) = self.connections.by_stream_mut(to) else {
                return;
            };
            let (room, receiver) = (entry.tcp.write_room(), entry.handle());
            let Some(entry) = self.connections.by_stream_mut(from) else {
                return;
            };
            let sender = entry.handle();
            let count = entry.tcp.read(&mut scratch[..room.min(SCRATCH_BYTES)]);
            if count == 0 {
                return;
            }
            if let Some(splice) = self.splicing.splices.get_mut(place) {
                splice.moved_bytes[side] += count as u64;
            }
            if let Some(entry) = self.connections.get_mut(receiver) {
                let taken = entry.tcp.write(&scratch[..count]);
                debug_assert_eq!(taken, count, "there is room");
            }
            self.mark_dirty(sender);
            self.mark_dirty(receiver);
        }
    }

    /// True if nothing of the two connections is under way, and the way to both peers is known:
    /// their numbers are noted.
    fn are_quiet(&mut self, ground: &mut Ground, now_us: u64, place: Place) -> bool {
        let now = Instant::from_us(now_us);
        let Some(splice) = self.splicing.splices.get_mut(place) else {
            return false;
        };
        for leg in &mut splice.legs {
            let Some(entry) = self.connections.by_stream_mut(leg.stream) else {
                return false;
            };
            if entry.nic.holds > 0 || entry.nic.is_to_move {
                return false;
            }
            leg.numbers = entry.tcp.join_numbers(now);
            let Resolution::Known(mac) = ground.neighbors.resolve_route(now_us, &mut entry.route)
            else {
                return false;
            };
            leg.mac = mac;
        }
        splice.legs.iter().all(|leg| leg.numbers.is_some())
    }

    /// Gives two quiet connections to the NIC worker, if it has room.
    fn join(&mut self, ground: &mut Ground, now_us: u64, place: Place) {
        let Some(splice) = self.splicing.splices.get(place) else {
            return;
        };
        let worker = splice.worker;
        let Some(command) = self.splice_command(ground, splice, false) else {
            return self.give_up_joining(ground, now_us, place, SpliceError::NotOpen);
        };
        let nic = &mut ground.workers[worker];
        if !nic.has_room() || nic.channel.send(&command.command()).is_err() {
            return;
        }
        ground.counters.splices_joined += 1;
        for side in BOTH {
            let Some(stream) = self.stream_of(place, side) else {
                continue;
            };
            if let Some(entry) = self.connections.by_stream_mut(stream) {
                entry.tcp.stand_still();
                entry.app_deadline_us = None;
            }
        }
        for (side, bytes) in self.splicing.splices.take_held(place) {
            if let Some(packet) = packet_in(&bytes) {
                self.note_fin(place, side, &packet.segment);
            }
            self.hand_on_spliced(ground, place, side, &bytes);
        }
        if let Some(splice) = self.splicing.splices.get_mut(place) {
            splice.stage = Stage::Joined;
        }
        self.tell_of_splice(ground, place, SpliceEvent::Joined);
    }

    /// Handles the timer of a joining stream, which the application does not see: the join takes
    /// too long.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_join_timeout(&mut self, ground: &mut Ground, now_us: u64, stream: StreamId) {
        if let Some((place, _)) = self.splicing.splices.by_stream(stream)
            && let Some(splice) = self.splicing.splices.get(place)
            && splice.stage == Stage::Joining
        {
            self.give_up_joining(ground, now_us, place, SpliceError::NotQuiet);
        }
    }

    /// Gives two connections back to their application without a join; held frames are processed as
    /// if they had just arrived.
    pub(super) fn give_up_joining(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        place: Place,
        error: SpliceError,
    ) {
        let held = self.splicing.splices.take_held(place);
        ground.counters.splices_given_up += 1;
        tracing::debug!(%error, "connections are not joined");
        let Some(splice) = self.give_back(ground, place, Some(error)) else {
            return;
        };
        let now = Instant::from_us(now_us);
        for (side, bytes) in held {
            let Some(packet) = packet_in(&bytes) else {
                continue;
            };
            if let Some(entry) = self.connections.by_stream_mut(splice.legs[side].stream) {
                let handle = entry.handle();
                entry.tcp.on_segment(now, &packet.segment);
                self.mark_dirty(handle);
            }
        }
    }
}

/// The segment in a frame that was held. Frames that arrive have a parser of their own, which is in
/// line there, and nowhere else.
fn packet_in(frame: &[u8]) -> Option<TcpPacket<'_>> {
    let checksum_valid = true;
    match frame::parse(frame, checksum_valid) {
        Ok(Received::Tcp(packet)) => Some(packet),
        _ => None,
    }
}
