//! Connections of an application that a NIC stack joins ([`host::splicing`]).
//!
//! Unread bytes of each connection first go to the other, after the bytes that the application has
//! written there: from FIFO to TCP, as far as TCP has room, for three seconds at most. Then the
//! stack joins the two. Until they return or end, their FIFOs stand still; bytes that a misbehaving
//! application writes there meanwhile are sent afterwards, or never.
//!
//! If a join is given up, the remaining bytes stay in the rx FIFO or in TCP.

use std::time::Duration;

use host::app::StreamOption;
use host::splicing::{SpliceEnd, SpliceEvent, SpliceLimits};
use rustix::io::Errno;
use socket_channel::{Flags, SocketId, SpliceStage};

use crate::application::{App, Context};
use crate::errno;
use crate::state::splice::{Splice, Stage};
use crate::state::stream::Stream;

/// Time limit for moving the FIFOs' bytes: the same as the stack's limit for connections to become
/// quiet.
const MOVING: Duration = Duration::from_secs(3);

/// Converts limits of a command: 0 is no limit.
pub(crate) fn limits(idle_ms: u32, life_ms: u32) -> SpliceLimits {
    let limit = |ms: u32| (ms > 0).then(|| Duration::from_millis(ms.into()));
    SpliceLimits {
        idle: limit(idle_ms),
        life: limit(life_ms),
    }
}

impl App {
    /// Joins two connections. The records report the result.
    pub(crate) fn splice(
        &mut self,
        cx: &mut Context<'_>,
        [first, second]: [SocketId; 2],
        limits: SpliceLimits,
    ) -> Result<(), Errno> {
        if first == second {
            return Err(Errno::INVAL);
        }
        for id in [first, second] {
            self.may_splice(cx, id)?;
        }
        for (id, other) in [(first, second), (second, first)] {
            let socket = self.socket(id).ok_or(Errno::BADF)?;
            socket.record.set_spliced(0, 0);
            socket.record.set_splice(SpliceStage::Joining, 0);
            socket.record.set(Flags::SPLICED);
            if let Some(stream) = socket.stream_mut() {
                stream.splice = Some(Splice {
                    other,
                    is_first: id == first,
                    stage: Stage::Moving,
                    limits,
                    moved_bytes: 0,
                });
            }
            self.touch(id);
        }
        let stream = self.stream(first);
        if let Some(stream) = stream.map(|stream| stream.id) {
            cx.io.set_timer(stream, Some(MOVING));
        }
        cx.counters.splices_begun += 1;
        self.go_on_moving(cx, first);
        Ok(())
    }

    /// Checks whether a socket may be part of a splice.
    fn may_splice(&mut self, cx: &mut Context<'_>, id: SocketId) -> Result<(), Errno> {
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        if socket.record.flags().has(Flags::FILE) {
            return Err(Errno::NOTSOCK);
        }
        let is_open =
            socket.record.flags().has(Flags::CONNECTED) && !socket.record.flags().is_over();
        let is_held = socket.handle.is_some();
        let stream = socket.stream().filter(|_| is_open).ok_or(Errno::NOTCONN)?;
        if stream.splice.is_some() {
            return Err(Errno::BUSY);
        }
        if stream.peer_finished || stream.is_finishing() || !is_held {
            return Err(Errno::NOTCONN);
        }
        if cx.io.is_looped(stream.id) {
            return Err(Errno::OPNOTSUPP);
        }
        if socket.record.look().is_err() {
            self.reset_nonsense(cx, id);
            return Err(Errno::CONNRESET);
        }
        Ok(())
    }

    fn splice_of(&mut self, id: SocketId) -> Option<&mut Splice> {
        self.socket(id)?.stream_mut()?.splice.as_mut()
    }

    /// Returns both sockets of a splice, the first in front.
    fn pair(&mut self, id: SocketId) -> Option<[SocketId; 2]> {
        let splice = self.splice_of(id)?;
        Some(if splice.is_first {
            [id, splice.other]
        } else {
            [splice.other, id]
        })
    }

    /// Moves bytes of the FIFOs on to TCP; once all are moved, requests the join from the stack.
    pub(crate) fn go_on_moving(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let is_moving = |splice: &mut Splice| splice.stage == Stage::Moving;
        let Some([first, second]) = self.pair(id) else {
            return;
        };
        for (from, to) in [(first, second), (second, first)] {
            if !self.splice_of(to).is_some_and(is_moving) {
                return;
            }
            self.drain_tx(cx, to);
            if self.has_sent_all(to) {
                self.move_unread(cx, from, to);
            }
        }
        // A file range that cannot be sent ends its connection.
        let Some(pair) = self.pair(id) else {
            return;
        };
        let has_ended = |stream: &Stream| stream.peer_finished || stream.is_finishing();
        let is_over = pair.iter().any(|id| {
            let stream = self.stream(*id);
            stream.is_none_or(|stream| has_ended(stream))
        });
        if is_over {
            return self.give_up(cx, pair, Errno::NOTCONN);
        }
        let is_clear = pair.iter().all(|id| {
            let is_read = |app: &mut App| {
                let socket = app.socket(*id);
                socket.is_some_and(|socket| socket.record.rx_unread_bytes() == 0)
            };
            self.has_sent_all(*id) && is_read(self)
        });
        if is_clear {
            self.ask_to_join(cx, pair);
        }
    }

    /// Reports whether TCP has all bytes that the application has written to a connection.
    fn has_sent_all(&mut self, id: SocketId) -> bool {
        self.socket(id).is_some_and(|socket| {
            let has_marks = socket.record.lacks_marks()
                || socket.stream().is_none_or(|it| !it.marks.is_empty());
            socket.record.tx_waiting_bytes() == 0 && !has_marks
        })
    }

    fn move_unread(&mut self, cx: &mut Context<'_>, from: SocketId, to: SocketId) {
        let target = self.stream(to);
        let Some(target) = target.map(|stream| stream.id) else {
            return;
        };
        let Some(socket) = self.socket(from) else {
            return;
        };
        let io = &mut *cx.io;
        let moved = socket.record.rx_take(|chunk| io.write(target, chunk));
        if let Some(splice) = self.splice_of(from) {
            splice.moved_bytes += moved as u64;
        }
    }

    fn ask_to_join(&mut self, cx: &mut Context<'_>, pair: [SocketId; 2]) {
        let mut streams = [None, None];
        for (stream_id, id) in streams.iter_mut().zip(pair) {
            if let Some(stream) = self.stream(id) {
                *stream_id = Some(stream.id);
                // No later bytes can complete a segment that is held back.
                if std::mem::take(&mut stream.is_corked) {
                    cx.io.set_option(stream.id, StreamOption::Cork(false));
                }
            }
        }
        let ([Some(first), Some(second)], Some(splice)) = (streams, self.splice_of(pair[0])) else {
            return;
        };
        let limits = splice.limits;
        cx.io.set_timer(first, None);
        match cx.io.splice(first, second, limits) {
            Ok(()) => self.set_stage(pair, Stage::Joining),
            Err(error) => self.give_up(cx, pair, errno::of_splice(error)),
        }
    }

    fn set_stage(&mut self, pair: [SocketId; 2], stage: Stage) {
        for id in pair {
            if let Some(splice) = self.splice_of(id) {
                splice.stage = stage;
            }
        }
    }

    /// Gives up a splice whose bytes took too long to move.
    pub(crate) fn on_moving_timer(&mut self, cx: &mut Context<'_>, id: SocketId) {
        if let Some(pair) = self.pair(id) {
            self.give_up(cx, pair, Errno::TIMEDOUT);
        }
    }

    /// Returns two connections that were not joined to the application, as far as they exist.
    fn give_up(&mut self, cx: &mut Context<'_>, pair: [SocketId; 2], errno: Errno) {
        self.tell_of_bytes(cx, pair, [0; 2]);
        self.return_spliced(cx, pair, Some(errno));
    }

    fn return_spliced(&mut self, cx: &mut Context<'_>, pair: [SocketId; 2], error: Option<Errno>) {
        if error.is_some() {
            cx.counters.splices_given_up += 1;
        }
        let errno = error.map_or(0, errno::number) as u16;
        let mut returned = Vec::new();
        for id in pair {
            let Some(socket) = self.socket(id) else {
                continue;
            };
            let stream = socket.stream_mut();
            let was_spliced = stream.is_some_and(|stream| {
                // The timer for moving; a closing timer is not set yet.
                cx.io.set_timer(stream.id, None);
                stream.splice.take().is_some()
            });
            if was_spliced {
                socket.record.set_splice(SpliceStage::Returned, errno);
                socket.record.clear(Flags::SPLICED);
                returned.push(id);
            }
        }
        for id in returned {
            self.pump(cx, id);
            self.grant_file_credit(cx, id);
        }
    }

    /// Requests the return of a splice.
    pub(crate) fn unsplice(&mut self, cx: &mut Context<'_>, id: SocketId) -> Result<(), Errno> {
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        let stream = socket.stream().ok_or(Errno::INVAL)?;
        let (stream_id, splice) = (stream.id, stream.splice.ok_or(Errno::INVAL)?);
        if splice.stage != Stage::Moving {
            cx.io.unsplice(stream_id);
        } else if let Some(pair) = self.pair(id) {
            self.give_up(cx, pair, Errno::CANCELED);
        }
        Ok(())
    }

    /// Handles an event of the splice whose first connection this is.
    pub(crate) fn on_splice(&mut self, cx: &mut Context<'_>, id: SocketId, event: SpliceEvent) {
        let Some(pair) = self.pair(id) else {
            return;
        };
        match event {
            SpliceEvent::Joined => {
                cx.counters.splices_joined += 1;
                self.set_stage(pair, Stage::Joined);
                for id in pair {
                    if let Some(socket) = self.socket(id) {
                        socket.record.set_held(0);
                        socket.record.set_splice(SpliceStage::Joined, 0);
                        self.touch(id);
                    }
                }
            }
            SpliceEvent::Progress { bytes } => self.tell_of_bytes(cx, pair, bytes),
            SpliceEvent::Returned { error, bytes } => {
                self.tell_of_bytes(cx, pair, bytes);
                self.return_spliced(cx, pair, error.map(errno::of_splice));
            }
            SpliceEvent::Ended { end, bytes } => {
                self.tell_of_bytes(cx, pair, bytes);
                for (side, id) in pair.into_iter().enumerate() {
                    self.note_splice_end(id, of_end(end, side == 1));
                }
            }
        }
    }

    /// Publishes the total of bytes passed: those that the stack counts, and those moved from the
    /// FIFOs before.
    fn tell_of_bytes(&mut self, cx: &mut Context<'_>, pair: [SocketId; 2], bytes: [u64; 2]) {
        let mut passed = bytes;
        for (passed, id) in passed.iter_mut().zip(pair) {
            *passed += self.splice_of(id).map_or(0, |splice| splice.moved_bytes);
        }
        let mut before = None;
        for (side, id) in pair.into_iter().enumerate() {
            if let Some(socket) = self.socket(id) {
                before.get_or_insert(socket.record.spliced_bytes());
                socket.record.set_spliced(passed[side], passed[1 - side]);
                self.touch(id);
            }
        }
        let all = |bytes: [u64; 2]| bytes[0].saturating_add(bytes[1]);
        let before = before.map_or(0, all);
        cx.counters.spliced_bytes += all(passed).saturating_sub(before);
    }

    /// Notes the end of a splice whose connections are about to end.
    fn note_splice_end(&mut self, id: SocketId, errno: Option<Errno>) {
        if let Some(socket) = self.socket(id)
            && let Some(stream) = socket.stream_mut()
            && stream.splice.take().is_some()
        {
            let errno = errno.map_or(0, errno::number) as u16;
            // The socket's final state follows with the end of the connection.
            socket.record.set_splice(SpliceStage::Ended, errno);
            self.touch(id);
        }
    }

    /// Handles a connection's end that the splice did not cause. If the two are not joined yet, the
    /// other is returned to the application; if they are, it ends too.
    pub(crate) fn leave_splice(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        errno: Option<Errno>,
    ) {
        let Some(splice) = self.splice_of(id).copied() else {
            return;
        };
        self.note_splice_end(id, errno);
        if splice.stage == Stage::Joining {
            // The event reaches the first of the two, if it exists.
            let stream = self.stream(id);
            if let Some(stream) = stream.map(|stream| stream.id) {
                cx.io.unsplice(stream);
            }
        }
        let event_follows = splice.stage == Stage::Joining && !splice.is_first;
        if splice.stage != Stage::Joined
            && !event_follows
            && let Some(pair) = self.pair(splice.other)
        {
            self.give_up(cx, pair, Errno::CANCELED);
        }
    }

    /// Reports whether a connection is part of a splice, or about to be.
    pub(crate) fn is_spliced(&mut self, id: SocketId) -> bool {
        self.splice_of(id).is_some()
    }

    /// Reports whether a NIC stack has a connection.
    pub(crate) fn is_joined(&mut self, id: SocketId) -> bool {
        let splice = self.splice_of(id);
        splice.is_some_and(|splice| splice.stage == Stage::Joined)
    }
}

/// Returns the error with which a connection of a splice has ended; `None` if in order.
fn of_end(end: SpliceEnd, is_second: bool) -> Option<Errno> {
    match end {
        SpliceEnd::Finished => None,
        SpliceEnd::Reset { by_second } if by_second == is_second => Some(Errno::CONNRESET),
        SpliceEnd::Reset { .. } | SpliceEnd::Aborted => Some(Errno::CONNABORTED),
        SpliceEnd::Idle | SpliceEnd::Overdue => Some(Errno::TIMEDOUT),
        SpliceEnd::DataPlaneFailed => Some(Errno::IO),
    }
}
