//! One connection of an endpoint.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use contract::quic::QuicConnectionId;
use quinn_proto::{
    ConnectionError, Dir, FinishError, ReadError, ReadableError, VarInt, WriteError,
};
use tcp::Instant;

use crate::engine::allowance::{self, Allowance, CHALLENGE_BYTES_MIN, KEPT_ACKS_MAX};
use crate::engine::amplification::AmplificationLimit;
use crate::engine::controller::{Excused, excusing};
use crate::engine::keys::Shared;
use crate::engine::preferred::{Path, Preferred};
use crate::types::{CloseReason, FileRange, Handle, Read, StreamError, StreamId};

/// Size of a piece of real bytes: if the peer's window admits only part of a piece, the whole piece
/// is kept until that part is acknowledged.
const REAL_PIECE_BYTES: usize = 4 << 10;

/// A connection, and its endpoint's state for it.
pub(super) struct Connection {
    pub(super) handle: Handle,
    pub(super) quinn: quinn_proto::Connection,
    pub(super) recorder: Shared,
    pub(super) amplification: AmplificationLimit,
    /// Its datagrams that wait for their turn, because its ClientHello is not complete.
    pub(super) waiting_datagrams: usize,
    /// The time limit of a half-open connection, whose address is not validated (RFC 9000 §8.1).
    pub(super) validate_by: Option<Instant>,
    /// If it may move to a preferred address.
    pub(super) preferred: Option<Preferred>,
    moves: Allowance,
    pub(super) ids_allowed: Allowance,
    fragments: Allowance,
    /// CONNECTION_CLOSE that may still be sent.
    pub(super) closes: Allowance,
    /// STREAM and CRYPTO frames that quinn-proto had taken when fragments were last counted.
    frames_taken: u64,
    /// Of what the client has had too much done, if of anything.
    pub(super) excess: Option<&'static str>,
    /// Number of streams of both directions that the peer has opened.
    accepted: u64,
    /// Bytes written on each writable stream.
    written: BTreeMap<u64, u64>,
    /// SENDs that have not departed.
    undeparted: VecDeque<Undeparted>,
    pub(super) undeparted_bytes: u64,
    /// The worker in which its SENDs wait.
    pub(super) worker: usize,
    /// When the packets were sent that may have been lost with a NIC stack, the last time.
    lost_with_nic: Option<Box<Excused>>,
    /// The next datagrams are probes: no window holds them back (RFC 9002 §7.5).
    pub(super) is_probing: bool,
    /// How long the last departed SEND took to depart.
    departure_delay: Duration,
    /// The time up to which packets were built; it may be in the future.
    pub(super) made_until: Instant,
    next_send: u64,
    /// There may be something to send.
    pub(super) is_dirty: bool,
    /// Its undeparted bytes have reached the limit: the next departure marks it dirty.
    pub(super) is_held: bool,
    /// Its time in the endpoint's list of timeouts.
    pub(super) timeout: Option<Instant>,
    /// It was closed because a packet could not be described.
    pub(super) is_undescribable: bool,
    /// [`CloseReason`] was reported.
    pub(super) is_over: bool,
    /// [`EventKind::Connected`](crate::EventKind::Connected) was reported.
    pub(super) is_connected: bool,
    /// It is traced.
    pub(super) is_traced: bool,
    /// The latest connection IDs that the peer may use: NIC stacks that open packets know them.
    pub(super) ids: VecDeque<QuicConnectionId>,
}

/// More connection IDs than a peer has at a time: quinn-proto issues eight.
const IDS_MAX: usize = 16;

/// Datagrams that probe at a time (RFC 9002 §6.2.4).
const PROBES: usize = 2;

/// No connection builds packets further ahead.
const LEAD_MAX: Duration = Duration::from_millis(20);

/// A SEND that has not departed.
#[derive(Debug)]
struct Undeparted {
    id: u64,
    bytes: u64,
    issued: Instant,
}

fn quinn_id(stream: StreamId) -> Option<quinn_proto::StreamId> {
    VarInt::from_u64(stream.0).ok().map(Into::into)
}

pub(super) fn stream_id(id: quinn_proto::StreamId) -> StreamId {
    StreamId(id.into())
}

/// An application error code, capped at the largest that a varint holds.
pub(super) fn code(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

impl Connection {
    pub(super) fn new(
        handle: Handle,
        quinn: quinn_proto::Connection,
        recorder: Shared,
        amplification: AmplificationLimit,
    ) -> Self {
        Self {
            is_traced: recorder.is_traced(),
            handle,
            quinn,
            recorder,
            amplification,
            waiting_datagrams: 0,
            validate_by: None,
            preferred: None,
            moves: allowance::MOVES,
            ids_allowed: allowance::IDS,
            fragments: allowance::FRAGMENTS,
            closes: allowance::CLOSES,
            frames_taken: 0,
            excess: None,
            accepted: 0,
            written: BTreeMap::new(),
            undeparted: VecDeque::new(),
            undeparted_bytes: 0,
            worker: 0,
            lost_with_nic: None,
            is_probing: false,
            departure_delay: Duration::ZERO,
            made_until: Instant::from_us(0),
            next_send: 0,
            is_dirty: false,
            is_held: false,
            timeout: None,
            is_undescribable: false,
            is_over: false,
            is_connected: false,
            ids: VecDeque::new(),
        }
    }

    /// The peer's address, and the local address from which non-probing packets leave.
    pub(super) fn path(&self) -> Path {
        let remote = self.quinn.remote_address();
        match &self.preferred {
            Some(preferred) => preferred.path(remote),
            None => (remote, self.quinn.local_ip()),
        }
    }

    /// True while a datagram may cost a signature: the client's ClientHello is not complete.
    pub(super) fn awaits_hello(&self) -> bool {
        !self.is_over && !self.recorder.has_answered_hello()
    }

    /// Hands in a datagram of `bytes` bytes from the peer, or from an alias of it. Those from other
    /// addresses are dropped once [`allowance::MOVES`] is used up.
    pub(super) fn on_arrival(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        bytes: usize,
        event: quinn_proto::ConnectionEvent,
    ) {
        let current = self.quinn.remote_address();
        if remote == current {
            self.hand_in(remote, bytes, event);
        } else if self.moves.left(now) > 0 {
            let challenges = self.quinn.stats().frame_rx.path_challenge;
            self.hand_in(remote, bytes, event);
            let is_challenged = self.quinn.stats().frame_rx.path_challenge > challenges;
            let has_moved = self.quinn.remote_address() != current;
            if has_moved || (is_challenged && bytes < CHALLENGE_BYTES_MIN) {
                self.moves.take(1);
            }
        }
        self.look_for_excess(now);
    }

    fn look_for_excess(&mut self, now: Instant) {
        let mut recorder = self.recorder.lock();
        let opened = recorder.take_fragments();
        if recorder.kept_acks() > KEPT_ACKS_MAX {
            self.excess = Some("too many acknowledgments");
        }
        drop(recorder);
        if opened == 0 {
            return;
        }
        // quinn-proto drops duplicates of a packet, which anyone can send, after opening them.
        let frames = self.quinn.stats().frame_rx;
        let taken = frames.stream + frames.crypto;
        let fragments = (taken - self.frames_taken).min(opened.into()) as u32;
        self.frames_taken = taken;
        if self.fragments.left(now) < fragments {
            self.excess = Some("too many fragments");
        }
        self.fragments.take(fragments);
    }

    fn hand_in(&mut self, remote: SocketAddr, bytes: usize, event: quinn_proto::ConnectionEvent) {
        let current = self.quinn.remote_address();
        let excused = self.lost_with_nic.as_deref().copied();
        let Some(preferred) = &mut self.preferred else {
            return excusing(excused, || self.quinn.handle_event(event));
        };
        if !preferred.admits(remote, bytes, current) {
            return;
        }
        let awaited = preferred.awaited(current);
        self.recorder.lock().set_awaited(awaited);
        excusing(excused, || self.quinn.handle_event(event));
        let is_answered = awaited.is_some() && !self.recorder.lock().awaits();
        if is_answered && self.quinn.remote_address() == current {
            preferred.on_answered();
            // quinn-proto's challenge for the path leaves with it.
            self.quinn.ping();
        }
    }

    /// The peer may use this connection ID.
    pub(super) fn add_id(&mut self, id: QuicConnectionId) {
        if self.ids.len() >= IDS_MAX {
            self.ids.pop_front();
        }
        self.ids.push_back(id);
    }

    /// Memory for received data and for the lists of what was sent, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let undeparted = self.undeparted.capacity() * size_of::<Undeparted>();
        self.recorder.lock().memory_bytes() + undeparted
    }

    /// Memory that it keeps while it is closed, in bytes: the same, and written real bytes.
    pub(super) fn closing_bytes(&self) -> usize {
        let real_bytes = self.recorder.lock().extents.real_bytes();
        self.memory_bytes() + usize::try_from(real_bytes).unwrap_or(usize::MAX)
    }

    /// The next stream that the peer has opened, if any.
    pub(super) fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        let stream = stream_id(self.quinn.streams().accept(dir)?);
        self.recorder.lock().received.on_accepted(stream.0);
        if stream.is_sendable() {
            self.written.insert(stream.0, 0);
            self.accepted += 1;
        }
        Some(stream)
    }

    /// How many streams of both directions the peer may have opened by now (RFC 9000 §4.6).
    pub(super) fn streams_max(&mut self) -> u64 {
        let open = self.quinn.streams().remote_open_streams(Dir::Bi);
        self.accepted + self.quinn.max_concurrent_streams(Dir::Bi) - open
    }

    pub(super) fn open(&mut self, dir: Dir) -> Option<StreamId> {
        let stream = stream_id(self.quinn.streams().open(dir)?);
        self.written.insert(stream.0, 0);
        Some(stream)
    }

    /// Reads at most `bytes_max`.
    pub(super) fn read(&mut self, stream: StreamId, bytes_max: usize) -> Result<Read, StreamError> {
        let id = quinn_id(stream).filter(|_| stream.is_readable());
        let mut receiving = self.quinn.recv_stream(id.ok_or(StreamError::Unknown)?);
        let mut chunks = receiving.read(true).map_err(|error| match error {
            ReadableError::ClosedStream | ReadableError::IllegalOrderedRead => StreamError::Unknown,
        })?;
        let read = match chunks.next(bytes_max) {
            Ok(Some(chunk)) => Ok(Read::Bytes(chunk.bytes)),
            Ok(None) => Ok(Read::Finished),
            Err(ReadError::Blocked) => Ok(Read::Blocked),
            Err(ReadError::Reset(code)) => Err(StreamError::Reset(code.into_inner())),
        };
        if let Ok(Read::Bytes(_) | Read::Finished) = &read {
            self.fragments.give_back();
        }
        match &read {
            Ok(Read::Bytes(bytes)) => {
                let mut recorder = self.recorder.lock();
                recorder.received.on_read(stream.0, bytes.len());
            }
            Ok(Read::Blocked) => {}
            Ok(Read::Finished) | Err(_) => self.recorder.lock().received.forget(stream.0),
        }
        // The endpoint checks for data to send after every read.
        let _ = chunks.finalize();
        read
    }

    /// Writes as many of these bytes as there is room for, with at most `extents_max` extents.
    pub(super) fn write(
        &mut self,
        stream: StreamId,
        bytes: &[u8],
        extents_max: usize,
    ) -> Result<usize, StreamError> {
        let mut done = 0;
        for piece in bytes.chunks(REAL_PIECE_BYTES) {
            let start = *self.written.get(&stream.0).ok_or(StreamError::Unknown)?;
            let offer = {
                let mut recorder = self.recorder.lock();
                if recorder.extents.len() >= extents_max {
                    break;
                }
                recorder.extents.offer_real(stream.0, start, piece)
            };
            let len = self.take(stream, offer.bytes.clone())?;
            self.recorder.lock().extents.insert(offer, len);
            done += len as usize;
            if (len as usize) < piece.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Writes as much of a range as there is room for.
    pub(super) fn write_file(
        &mut self,
        stream: StreamId,
        range: FileRange,
        extents_max: usize,
    ) -> Result<u64, StreamError> {
        let mut done = 0;
        while done < range.len {
            let start = *self.written.get(&stream.0).ok_or(StreamError::Unknown)?;
            let rest = FileRange {
                offset: range.offset + done,
                len: range.len - done,
                ..range
            };
            let offer = {
                let mut recorder = self.recorder.lock();
                if recorder.extents.len() >= extents_max {
                    break;
                }
                recorder.extents.offer_file(stream.0, start, rest)
            };
            let wanted = offer.bytes.len() as u64;
            let len = self.take(stream, offer.bytes.clone())?;
            self.recorder.lock().extents.insert(offer, len);
            done += len;
            if len < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// Has quinn-proto take the first of these bytes; returns how many.
    fn take(&mut self, stream: StreamId, bytes: Bytes) -> Result<u64, StreamError> {
        let id = quinn_id(stream).ok_or(StreamError::Unknown)?;
        match self.quinn.send_stream(id).write_chunks(&mut [bytes]) {
            Ok(written) => {
                let len = written.bytes as u64;
                if let Some(start) = self.written.get_mut(&stream.0) {
                    *start += len;
                }
                Ok(len)
            }
            Err(WriteError::Blocked) => Ok(0),
            Err(WriteError::Stopped(code)) => Err(StreamError::Stopped(code.into_inner())),
            Err(WriteError::ClosedStream) => Err(StreamError::Unknown),
        }
    }

    pub(super) fn finish(&mut self, stream: StreamId) -> Result<(), StreamError> {
        let id = self.sending(stream)?;
        self.written.remove(&stream.0);
        let finished = self.quinn.send_stream(id).finish();
        finished.map_err(|error| match error {
            FinishError::Stopped(code) => StreamError::Stopped(code.into_inner()),
            FinishError::ClosedStream => StreamError::Unknown,
        })
    }

    pub(super) fn reset(&mut self, stream: StreamId, error: u64) -> Result<(), StreamError> {
        let id = quinn_id(stream).filter(|_| stream.is_sendable());
        let id = id.ok_or(StreamError::Unknown)?;
        self.written.remove(&stream.0);
        self.recorder.lock().forget_stream(stream.0);
        let reset = self.quinn.send_stream(id).reset(code(error));
        reset.map_err(|_| StreamError::Unknown)
    }

    pub(super) fn stop(&mut self, stream: StreamId, error: u64) -> Result<(), StreamError> {
        let id = quinn_id(stream).filter(|_| stream.is_readable());
        let id = id.ok_or(StreamError::Unknown)?;
        self.recorder.lock().received.forget(stream.0);
        let stopped = self.quinn.recv_stream(id).stop(code(error));
        stopped.map_err(|_| StreamError::Unknown)
    }

    pub(super) fn prioritize(
        &mut self,
        stream: StreamId,
        priority: i32,
    ) -> Result<(), StreamError> {
        // One that is finished may still have bytes to send.
        let id = quinn_id(stream).filter(|_| stream.is_sendable());
        let id = id.ok_or(StreamError::Unknown)?;
        let set = self.quinn.send_stream(id).set_priority(priority);
        set.map_err(|_| StreamError::Unknown)
    }

    /// A stream that can be written on and is not finished.
    fn sending(&self, stream: StreamId) -> Result<quinn_proto::StreamId, StreamError> {
        let id = quinn_id(stream).filter(|_| self.written.contains_key(&stream.0));
        id.ok_or(StreamError::Unknown)
    }

    /// How far ahead of now packets may be built: half of the time that SENDs wait in the NIC
    /// stack.
    pub(super) fn lead(&self) -> Duration {
        (self.departure_delay / 2).min(LEAD_MAX)
    }

    /// A SEND of `bytes` bytes is issued; returns its id.
    pub(super) fn on_send(&mut self, now: Instant, bytes: u64) -> u64 {
        let id = self.next_send;
        self.next_send += 1;
        self.undeparted.push_back(Undeparted {
            id,
            bytes,
            issued: now,
        });
        self.undeparted_bytes += bytes;
        id
    }

    /// A SEND and those before it have departed; returns how many bytes.
    pub(super) fn on_departed(&mut self, now: Instant, id: u64) -> u64 {
        let before = self.undeparted_bytes;
        while let Some(departed) = self.undeparted.pop_front_if(|first| first.id <= id) {
            self.undeparted_bytes -= departed.bytes;
            self.departure_delay = now.since(departed.issued);
        }
        before - self.undeparted_bytes
    }

    /// A timer is due.
    pub(super) fn on_timeout(&mut self, at: std::time::Instant) {
        self.amplification.on_timeout();
        let excused = self.lost_with_nic.as_deref().copied();
        excusing(excused, || self.quinn.handle_timeout(at));
    }

    /// Packets at a NIC stack that is gone may have departed or not: they are left to loss
    /// detection, and never reissued. Probes follow at once: their acknowledgment shows which
    /// packets are lost, without a wait for the probe timeout, which has grown while no NIC stack
    /// sent its probes. Returns how many bytes.
    pub(super) fn on_nic_gone(&mut self, now: Instant) -> u64 {
        if let Some(first) = self.undeparted.front()
            && !self.quinn.is_closed()
        {
            let excused = (first.issued, now.max(self.made_until));
            self.lost_with_nic = Some(Box::new(excused));
            self.is_probing = true;
            self.quinn.ping();
        }
        self.undeparted.clear();
        self.recorder.lock().forget_keys();
        std::mem::take(&mut self.undeparted_bytes)
    }

    /// How many datagrams may be built next, of `of`. `None` if the window bounds them.
    pub(super) fn unbound_datagrams(&mut self, of: usize) -> Option<usize> {
        if self.quinn.is_closed() {
            Some(of)
        } else if std::mem::take(&mut self.is_probing) {
            Some(of.min(PROBES))
        } else {
            None
        }
    }

    pub(super) fn close_reason(&self, error: ConnectionError) -> CloseReason {
        match error {
            _ if self.is_undescribable => CloseReason::Undescribable,
            ConnectionError::LocallyClosed => CloseReason::Local,
            ConnectionError::ApplicationClosed(close) => {
                CloseReason::Application(close.error_code.into_inner())
            }
            ConnectionError::ConnectionClosed(close) => CloseReason::Peer(close.error_code.into()),
            ConnectionError::TransportError(error) => {
                CloseReason::Protocol(error.code.into(), error.reason)
            }
            ConnectionError::Reset => CloseReason::Reset,
            ConnectionError::TimedOut => CloseReason::TimedOut,
            ConnectionError::VersionMismatch | ConnectionError::CidsExhausted => {
                CloseReason::Refused
            }
        }
    }
}
