//! Bytes between the FIFOs of a connection and TCP.
//!
//! The tx FIFO only passes bytes on: TCP takes them as far as its send buffer has room, and keeps
//! them until they are acknowledged. File ranges and the end of the stream have places between
//! these bytes, their *marks*. Bytes received by TCP go to the rx FIFO as far as it has room; the
//! rest keeps the window closed. Without Eager Receive, bytes stay in TCP until the application
//! requests them.

use std::time::Duration;

use host::app::{CloseReason, StreamOption};
use rustix::io::Errno;
use socket_channel::attach::MODE_EAGER_RECEIVE;
use socket_channel::fifo_area::FIFO_BYTES_USUAL;
use socket_channel::host_record::{More, Turn};
use socket_channel::{Flags, SocketId};

use crate::application::{App, Context};
use crate::errno;
use crate::state::file::Progress;
use crate::state::socket::Kind;
use crate::state::stream::{Mark, What};

/// Bytes moved in a step.
const STEP_BYTES: usize = 16 << 10;

/// Smallest bound of file bytes that are queued and not sent; twice the congestion window if that
/// is more. File bytes take no memory, so the bound only limits delay: a program learns that a
/// client has stopped reading while half of the bound is still unsent. Files of usual sizes fit
/// into one call.
const FILE_BYTES_MIN: u64 = 1 << 20;

/// Time without acknowledgments after which a connection that its application has closed is given
/// up.
const CLOSING_PATIENCE: Duration = Duration::from_secs(60);

/// Most marks that may arrive before their predecessors.
const EARLY_MARKS_MAX: usize = 64;

/// Most marks that may wait in a stream; a connection with more, such as ranges of a byte each that
/// the peer does not accept, is reset.
const MARKS_MAX: usize = 4096;

impl App {
    /// Examines a socket's record for changes by the application.
    pub(crate) fn look(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        if socket.record.look().is_err() {
            return self.reset_nonsense(cx, id);
        }
        if socket.record.flags().has(Flags::LISTENER) {
            self.bound_queue(cx, id);
        } else {
            self.pump(cx, id);
        }
    }

    /// Moves bytes both ways.
    pub(crate) fn pump(&mut self, cx: &mut Context<'_>, id: SocketId) {
        if self.is_spliced(id) {
            return self.go_on_moving(cx, id);
        }
        self.fill_rx(cx, id, 0);
        self.drain_tx(cx, id);
        self.publish_acked(cx, id);
        self.touch(id);
    }

    /// Moves held bytes that an application requests, until the rx FIFO has `bytes`.
    pub(crate) fn receive(&mut self, cx: &mut Context<'_>, id: SocketId, bytes: u64) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        if socket.record.look().is_err() {
            return self.reset_nonsense(cx, id);
        }
        if !self.is_spliced(id) {
            self.fill_rx(cx, id, bytes);
        }
        self.touch(id);
    }

    /// Publishes the acknowledged bytes at each step of a stream, since the stack has no event for
    /// every ACK. The last publication follows the acknowledgment of all queued bytes.
    pub(crate) fn publish_acked(&mut self, cx: &mut Context<'_>, id: SocketId) {
        if let Some(socket) = self.socket(id)
            && let Some(stream) = socket.stream().filter(|stream| !stream.is_gone)
        {
            let acknowledged = cx.io.acknowledged(stream.id);
            socket.record.set_acked(acknowledged);
        }
    }

    /// Moves received bytes to the rx FIFO: all, or held bytes only until the FIFO has
    /// `asked_bytes`.
    fn fill_rx(&mut self, cx: &mut Context<'_>, id: SocketId, asked_bytes: u64) {
        let mut step = std::mem::take(&mut self.step);
        step.resize(STEP_BYTES, 0);
        self.fill_rx_by(cx, id, asked_bytes, &mut step);
        self.step = step;
    }

    fn fill_rx_by(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        asked_bytes: u64,
        buffer: &mut [u8],
    ) {
        let is_eager = self.has_mode(MODE_EAGER_RECEIVE);
        let holds = !is_eager && asked_bytes == 0;
        if !self.prepare_rx(cx, id, holds) {
            return;
        }
        loop {
            let Some(socket) = self.socket(id) else {
                return;
            };
            let record = &mut socket.record;
            let Kind::Stream(stream) = &mut socket.kind else {
                return;
            };
            if record.flags().has(Flags::FAILED) {
                return;
            }
            let mut room = record.rx_room_bytes().min(STEP_BYTES);
            let holds = !stream.is_gone && (!is_eager || stream.waits_for_handle);
            let held = if holds { cx.io.unread(stream.id) } else { 0 };
            if held > 0 {
                record.set_held(held as u64);
                let wanted = asked_bytes.saturating_sub(record.rx_unread_bytes() as u64);
                room = room.min(usize::try_from(wanted).unwrap_or(usize::MAX));
                if room == 0 {
                    return;
                }
            }
            // Without a FIFO, no bytes wait.
            if room == 0 && record.rx_bytes() > 0 {
                if record.rx_wait_for_room() {
                    return;
                }
                if record.look().is_err() {
                    return self.reset_nonsense(cx, id);
                }
                // An application that revokes its announcement harms only itself.
                if record.rx_room_bytes() == 0 {
                    return;
                }
                continue;
            }
            let count = if stream.is_gone {
                let count = room.min(stream.rest.len());
                for (to, byte) in buffer.iter_mut().zip(stream.rest.drain(..count)) {
                    *to = byte;
                }
                count
            } else {
                cx.io.read(stream.id, &mut buffer[..room])
            };
            if count == 0 {
                record.set_held(0);
                if stream.is_gone {
                    record.set(Flags::PEER_FINISHED | Flags::SHUT_WRITE | Flags::CLOSED);
                } else if stream.peer_finished {
                    record.set(Flags::PEER_FINISHED);
                }
                return;
            }
            cx.counters.received_bytes += count as u64;
            record.rx_write(&buffer[..count]);
        }
    }

    /// Provides a FIFO, or a larger one, if received bytes wait for it and are not held. False if
    /// there is no memory.
    fn prepare_rx(&mut self, cx: &mut Context<'_>, id: SocketId, holds: bool) -> bool {
        let Some(socket) = self.socket(id) else {
            return false;
        };
        let has = socket.record.rx_bytes();
        if has >= FIFO_BYTES_USUAL || socket.record.rx_unread_bytes() > 0 {
            return true;
        }
        let waiting = match socket.stream() {
            Some(stream) if stream.is_gone => stream.rest.len(),
            Some(stream) if !holds => cx.io.unread(stream.id),
            Some(_) | None => 0,
        };
        let fits = waiting <= has || self.provide_rx(id);
        fits || has > 0
    }

    /// Divides the limit of unsent bytes (`TCP_NOTSENT_LOWAT`): half in the tx FIFO, half in TCP.
    pub(crate) fn bound_notsent(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        if let Kind::Stream(_) = &socket.kind {
            let lowat_bytes = socket.options.notsent_lowat_bytes();
            socket.record.limit_tx(lowat_bytes.map(|bytes| bytes / 2));
            self.pump(cx, id);
        }
    }

    pub(crate) fn drain_tx(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let mut sends_files = false;
        self.follow_cork(cx, id, false);
        let has_grown = loop {
            let Some(socket) = self.socket(id) else {
                return;
            };
            let record = &mut socket.record;
            let Kind::Stream(stream) = &mut socket.kind else {
                return;
            };
            if stream.is_gone {
                return;
            }
            let limit = stream.marks.front().map_or(u64::MAX, |mark| mark.at);
            let io = &mut *cx.io;
            let stream_id = stream.id;
            let lowat_bytes = socket.options.notsent_lowat_bytes();
            let taken = record.tx_read(limit, |chunk| {
                // As in Linux, the mark is checked before a chunk, not within it.
                let enough = lowat_bytes.map(|bytes| (bytes / 2).max(1));
                if enough.is_some_and(|bytes| io.unsent(stream_id) >= bytes) {
                    return 0;
                }
                io.write(stream_id, chunk)
            });
            cx.counters.sent_bytes += taken as u64;
            let has_grown = record.tx_has_grown(FIFO_BYTES_USUAL as u64);
            if record.tx_head() < limit.min(record.tx_tail()) {
                // TCP has no room, or enough bytes: `Writable` follows. A held-back segment would
                // wait in vain, since no more bytes come before it leaves (as in Linux's
                // tcp_sendmsg).
                if std::mem::take(&mut stream.is_corked) {
                    cx.io.set_option(stream_id, StreamOption::Cork(false));
                }
                if let Some(bytes) = lowat_bytes {
                    cx.io.set_notsent_lowat(stream_id, bytes / 4);
                }
                if record.tx_is_bounded() {
                    self.raise_tx_max(cx, id);
                }
                return;
            }
            match stream.marks.front_mut().map(|mark| &mut mark.what) {
                None => break has_grown,
                Some(What::File(range)) => {
                    match range.send(cx.io, stream_id, &mut stream.current) {
                        Progress::Done => {
                            stream.marks.pop_front();
                            sends_files = true;
                        }
                        Progress::Waits => break has_grown,
                        Progress::Opens(before) => {
                            self.note_opening(id, before);
                            break has_grown;
                        }
                        Progress::Failed(errno) => {
                            return self.abort(cx, id, errno, Flags::default());
                        }
                    }
                }
                Some(What::Finish) => {
                    cx.io.shutdown(stream_id);
                    record.set(Flags::SHUT_WRITE);
                    stream.marks.clear();
                    break has_grown;
                }
            }
        };
        self.follow_cork(cx, id, true);
        if has_grown {
            self.shrink_tx(id);
        }
        if sends_files {
            self.grant_file_credit(cx, id);
        }
        self.close_unnamed(cx, id);
        self.finish_closing(cx, id);
    }

    /// Lets TCP hold back partial segments if the application requests it, by `TCP_CORK` or by
    /// `MSG_MORE` with its last bytes. Marks end it: bytes before a file range wait for the range,
    /// and share a packet with it.
    pub(crate) fn follow_cork(&mut self, cx: &mut Context<'_>, id: SocketId, may_end: bool) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        let Kind::Stream(stream) = &mut socket.kind else {
            return;
        };
        if stream.is_gone {
            return;
        }
        let waits_for_mark = !stream.marks.is_empty() || socket.record.lacks_marks();
        let is_wanted = socket.options.cork()
            || match socket.record.more() {
                More::Nothing => false,
                More::Marks => waits_for_mark,
                More::Something => true,
            };
        let may_change = is_wanted || may_end && !waits_for_mark;
        if is_wanted != stream.is_corked && may_change {
            stream.is_corked = is_wanted;
            cx.io.set_option(stream.id, StreamOption::Cork(is_wanted));
        }
    }

    /// Adds a mark to a stream: a file range, or the end.
    pub(crate) fn add_mark(&mut self, cx: &mut Context<'_>, id: SocketId, mark: Mark) {
        let mut next = Some(mark);
        while let Some(mark) = next {
            let Some(socket) = self.socket(id) else {
                return;
            };
            let turn = socket.record.take_mark(mark.number, mark.at);
            let Some(stream) = socket.stream_mut() else {
                return self.reset_nonsense(cx, id);
            };
            match turn {
                Err(_) => return self.reset_nonsense(cx, id),
                Ok(Turn::Later) if stream.early.len() < EARLY_MARKS_MAX => {
                    return stream.early.push(mark);
                }
                Ok(Turn::Later) => return self.reset_nonsense(cx, id),
                Ok(Turn::Now) => {}
            }
            let following = mark.number.wrapping_add(1);
            let early = stream.early.iter().position(|it| it.number == following);
            next = early.map(|place| stream.early.swap_remove(place));
            let file_bytes = match &mark.what {
                What::File(range) => range.len,
                What::Finish => 0,
            };
            // The library sends no files on looped connections, since the record has the flag.
            if file_bytes > 0 && socket.record.flags().has(Flags::LOOPED) {
                return self.abort(cx, id, Errno::OPNOTSUPP, Flags::default());
            }
            // Checked before any counter includes a number that the application has made up.
            if socket.record.queue_file(file_bytes).is_err() {
                return self.reset_nonsense(cx, id);
            }
            let Some(stream) = socket.stream_mut() else {
                return;
            };
            if stream.is_gone || stream.is_finishing() {
                continue;
            }
            if stream.marks.len() >= MARKS_MAX {
                return self.reset_nonsense(cx, id);
            }
            stream.marks.push_back(mark);
            cx.counters.file_bytes += file_bytes;
        }
        self.pump(cx, id);
        self.grant_file_credit(cx, id);
    }

    /// Grants file credit so that at most two congestion windows of file bytes wait to be sent, and
    /// requests an event when half have left.
    pub(crate) fn grant_file_credit(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        let Some(stream) = socket.stream().filter(|stream| !stream.is_gone) else {
            return;
        };
        let (stream_id, waiting) = (stream.id, stream.waiting_file_bytes());
        let window = cx.io.congestion_window(stream_id);
        let bound = FILE_BYTES_MIN.max(window.saturating_mul(2));
        let unsent = cx.io.unsent(stream_id);
        let credit = socket.record.file_credit_bytes();
        let wanted = bound.saturating_sub(waiting + unsent);
        // If more than half of the credit is left, or the grant would add little, no process is
        // woken: the next event comes when half of the bound has left.
        if credit <= bound / 2 && wanted >= credit + bound / 4 {
            socket.record.add_file_credit(wanted - credit);
            self.touch(id);
        }
        // Ranges whose file is being opened are pumped when that is done.
        if unsent > bound / 2 {
            cx.io.set_notsent_lowat(stream_id, bound / 2);
        }
    }

    /// Handles new room in the stack, or the departure of queued bytes.
    pub(crate) fn on_writable(&mut self, cx: &mut Context<'_>, id: SocketId) {
        self.pump(cx, id);
        let has_used_credit = self.socket(id).is_some_and(|socket| {
            let window = FILE_BYTES_MIN / 2;
            socket.record.file_credit_bytes() < window
                || socket.stream().is_some_and(|it| it.current.is_some())
        });
        if has_used_credit {
            self.grant_file_credit(cx, id);
        }
    }

    /// Handles the peer's FIN.
    pub(crate) fn on_peer_finished(&mut self, cx: &mut Context<'_>, id: SocketId) {
        self.note_peer_finished(id);
        self.pump(cx, id);
    }

    /// Notes the peer's FIN, even if the connection is over.
    pub(crate) fn note_peer_finished(&mut self, id: SocketId) {
        if let Some(socket) = self.socket(id)
            && let Some(stream) = socket.stream_mut()
        {
            stream.peer_finished = true;
            socket.record.set(Flags::FIN_RECEIVED);
        }
    }

    /// Handles the acknowledgment of all queued bytes.
    pub(crate) fn on_drained(&mut self, cx: &mut Context<'_>, id: SocketId) {
        self.publish_acked(cx, id);
        self.touch(id);
    }

    /// Handles the end of a connection at the stack; the peer has acknowledged `acknowledged`
    /// bytes.
    pub(crate) fn on_closed(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        reason: CloseReason,
        acknowledged: u64,
    ) {
        self.leave_splice(cx, id, errno::of_close(reason, false));
        let Some(socket) = self.socket(id) else {
            return;
        };
        if let Some(stream) = socket.stream().map(|stream| stream.id) {
            // Published before the final state.
            socket.record.set_acked(acknowledged);
            let unread = cx.io.take_unread(stream);
            self.end_stream(cx, id, reason, unread);
        }
    }

    /// Ends a connection that has `unread` received bytes.
    pub(crate) fn end_stream(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        reason: CloseReason,
        unread: Vec<u8>,
    ) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        let Kind::Stream(stream) = &mut socket.kind else {
            return;
        };
        stream.is_gone = true;
        socket.record.clear(Flags::SPLICED);
        let current = stream.current.take();
        stream.marks.clear();
        let (stream_id, peer_finished) = (stream.id, stream.peer_finished);
        cx.places.streams.remove(&stream_id);
        self.note_closed(id, current);
        let Some(socket) = self.socket(id) else {
            return;
        };
        let Kind::Stream(stream) = &mut socket.kind else {
            return;
        };
        if stream.is_closing {
            if let Some(binding) = stream.binding.take() {
                cx.io.release(binding);
            }
            return self.remove(id, cx.counters);
        }
        let is_shut = socket.record.flags().has(Flags::SHUT_WRITE);
        match errno::of_close(reason, peer_finished && !is_shut) {
            Some(errno) => {
                // Bytes received before the error are read before it.
                let mut count = 0;
                if socket.record.rx_bytes() == 0 && !unread.is_empty() {
                    self.provide_rx(id);
                }
                let Some(socket) = self.socket(id) else {
                    return;
                };
                if socket.record.look().is_ok() {
                    count = socket.record.rx_write(&unread);
                    cx.counters.received_bytes += count as u64;
                }
                let mut errno = errno;
                if count < unread.len() {
                    // Bytes are missing, so the stream has no proper end.
                    socket.record.clear(Flags::FIN_RECEIVED);
                    errno = errno::of_close(reason, false).unwrap_or(errno);
                }
                socket.record.set_held(0);
                let flags = Flags::FAILED | Flags::CLOSED;
                socket.record.fail(errno::number(errno), flags);
                self.touch(id);
            }
            None => {
                stream.rest = unread.into();
                self.pump(cx, id);
            }
        }
    }

    /// Closes a connection whose last descriptor is closed: queued bytes are still sent, then FIN;
    /// if any byte was not read, RST (RFC 2525 §2.17), as close(2) does.
    pub(crate) fn close_stream(&mut self, cx: &mut Context<'_>, id: SocketId) {
        if self.is_joined(id) {
            // The reset reaches both peers.
            self.abort(cx, id, Errno::CONNRESET, Flags::default());
            return self.remove(id, cx.counters);
        }
        self.leave_splice(cx, id, None);
        self.look(cx, id);
        let Some(socket) = self.socket(id) else {
            return;
        };
        let unread_bytes = socket.record.rx_unread_bytes();
        let is_opening = socket.record.flags().has(Flags::CONNECTING);
        let resets = socket.options.linger_ms == Some(0);
        let Some(stream) = socket.stream_mut() else {
            return;
        };
        if stream.is_gone {
            if let Some(binding) = stream.binding.take() {
                cx.io.release(binding);
            }
            return self.remove(id, cx.counters);
        }
        let unread = unread_bytes > 0 || cx.io.unread(stream.id) > 0;
        if is_opening || resets || unread {
            if !is_opening && cx.io.unsent(stream.id) > 0 {
                // Resets in the next turn: Linux's send(2) would have sent the bytes that the
                // windows allow.
                stream.is_closing = true;
                stream.is_resetting = true;
                return cx.io.set_timer(stream.id, Some(Duration::ZERO));
            }
            self.abort(cx, id, Errno::CONNRESET, Flags::default());
            return self.remove(id, cx.counters);
        }
        stream.is_closing = true;
        cx.io.set_timer(stream.id, Some(CLOSING_PATIENCE));
        self.drain_tx(cx, id);
    }

    /// Leaves a closed connection to the stack once all its bytes are queued there.
    fn finish_closing(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        let is_empty = socket.record.tx_waiting_bytes() == 0;
        let Some(stream) = socket.stream_mut() else {
            return;
        };
        let must_stay = stream.is_resetting || !is_empty || !stream.marks.is_empty();
        if !stream.is_closing || must_stay {
            return;
        }
        let (stream_id, binding) = (stream.id, stream.binding.take());
        cx.io.set_timer(stream_id, None);
        cx.io.close(stream_id);
        cx.places.streams.remove(&stream_id);
        if let Some(binding) = binding {
            cx.io.release(binding);
        }
        self.remove(id, cx.counters);
    }

    /// Handles the timer of a closed connection: gives it up if the peer has acknowledged nothing
    /// since.
    pub(crate) fn on_closing_timer(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        if stream.splice.is_some() {
            return self.on_moving_timer(cx, id);
        }
        if stream.is_resetting {
            self.abort(cx, id, Errno::CONNRESET, Flags::default());
            return self.remove(id, cx.counters);
        }
        let acknowledged = cx.io.acknowledged(stream.id);
        if std::mem::replace(&mut stream.acknowledged, acknowledged) < acknowledged {
            cx.io.set_timer(stream.id, Some(CLOSING_PATIENCE));
        } else if stream.is_closing {
            self.abort(cx, id, Errno::TIMEDOUT, Flags::default());
            self.remove(id, cx.counters);
        }
    }
}
