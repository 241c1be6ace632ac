//! How sockets, descriptors and processes end; and the turns of an application.

use rustix::io::Errno;
use socket_channel::{ChannelId, Flags, HandleId, SocketId};
use sockets::Woken;

use crate::message::Body;
use crate::node::Context;
use crate::node::application::{App, Phase, Use};
use crate::node::socket::{End, Socket};

/// A connection that its program has closed is reset if its bytes do not leave for so long, in
/// microseconds: as long as a host stack waits for its peer.
pub(crate) const CLOSING_PATIENCE_US: u64 = 60_000_000;

/// A connection that a process has taken out of an accept queue is adopted so soon after, in
/// microseconds, or its process has ended before it could.
const ADOPTION_US_MAX: u64 = 1_000_000;

impl App {
    /// A round of work; true if there was any.
    pub(crate) fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        self.on_time(cx.now_us);
        let mut worked = self.say_closes(cx);
        if self.phase != Phase::Attaching {
            let (has_taken, is_all) = self.take_commands(cx);
            worked |= has_taken;
            if is_all {
                // What they did last is known.
                worked |= self.end_what_ended(cx);
            }
        } else if self.channels.iter().all(|it| self.ended.contains(&it.id)) {
            worked |= self.end_what_ended(cx);
        }
        worked |= self.serve_sockets(cx);
        worked | self.say_closes(cx)
    }

    fn end_what_ended(&mut self, cx: &mut Context<'_>) -> bool {
        let hung = std::mem::take(&mut self.hung);
        let ended = std::mem::take(&mut self.ended);
        let worked = !hung.is_empty() || !ended.is_empty();
        for handle in hung {
            self.close_handle(cx, handle);
        }
        for channel in ended {
            self.end_channel(cx, channel);
        }
        worked
    }

    /// Tells the stack node which sockets have ended.
    pub(crate) fn say_closes(&mut self, cx: &mut Context<'_>) -> bool {
        let mut worked = false;
        while self.may_ask() && cx.has_room() {
            let Some(end) = self.closes.pop_front() else {
                break;
            };
            self.untaken += 1;
            let End {
                socket,
                got,
                resets,
            } = end;
            let close = Body::Close {
                socket,
                got,
                resets,
            };
            cx.say(self.id, close);
            worked = true;
        }
        worked
    }

    /// The last copy of a descriptor is closed.
    pub(crate) fn hang_up(&mut self, handle: HandleId) {
        self.hung.insert(handle);
    }

    /// The last copy of a descriptor is closed, or the program says so.
    pub(crate) fn close_handle(&mut self, cx: &mut Context<'_>, handle: HandleId) {
        let Some(closed) = self.handles.remove(&handle) else {
            return;
        };
        if let Use::Socket(id) = closed.use_of {
            if let Some(socket) = self.socket(id) {
                socket.handle = None;
            }
            self.close(cx, id);
        }
    }

    /// Closes listeners, and sockets that are not connected, whose last descriptor was closed
    /// before a command that may need their address: the command was faster than the hang-up.
    pub(crate) fn close_hung_up(&mut self, cx: &mut Context<'_>) {
        let found = cx.waker.map(|waker| waker.look()).unwrap_or_default();
        for woken in found {
            match woken {
                Woken::HungUp(app, handle) if app == self.id => self.hang_up(handle),
                other => cx.woken.push(other),
            }
        }
        let hung: Vec<HandleId> = self.hung.iter().copied().collect();
        for handle in hung {
            let use_of = self.handles.get(&handle).map(|handle| handle.use_of);
            let Some(Use::Socket(id)) = use_of else {
                continue;
            };
            let is_connection = Flags(Flags::CONNECTED.0 | Flags::CONNECTING.0 | Flags::FILE.0);
            let holds_address = |flags: Flags| flags.0 & is_connection.0 == 0;
            let found = self.socket(id).map(|socket| socket.record.flags());
            if found.is_some_and(holds_address) {
                self.hung.remove(&handle);
                self.close_handle(cx, handle);
            }
        }
    }

    /// The last descriptor of a socket is closed.
    pub(crate) fn close(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        let flags = socket.record.flags();
        if socket.is_dead {
            return self.retire(id);
        }
        if flags.has(Flags::LISTENER) {
            return self.close_listener(cx, id);
        }
        if flags.has(Flags::FILE) {
            let is_in_use = socket.references > 0;
            socket.closing_until_us = Some(u64::MAX);
            if !is_in_use {
                self.end(id, false);
            }
            return;
        }
        let is_connected = flags.has(Flags::CONNECTED) && !flags.has(Flags::CLOSED);
        if !is_connected {
            return self.end(id, flags.has(Flags::CONNECTING));
        }
        if socket.record.look().is_err() {
            return self.reset_nonsense_and_retire(id);
        }
        if socket.record.rx_unread_bytes() > 0 || socket.resets_when_closed() {
            // As close(2) does (RFC 2525 §2.17).
            return self.end(id, true);
        }
        socket.closing_until_us = Some(cx.now_us + CLOSING_PATIENCE_US);
        self.closing.insert(id);
        self.enqueue(id);
        self.finish_closing(id);
    }

    fn reset_nonsense_and_retire(&mut self, id: SocketId) {
        self.reset_nonsense(id);
        self.retire(id);
    }

    /// A connection that its program has closed is the stack node's alone once all has been sent.
    pub(crate) fn finish_closing(&mut self, id: SocketId) {
        let Some(socket) = self.live(id) else {
            return;
        };
        let is_closing = socket.closing_until_us.is_some();
        let lacks_marks = socket.record.lacks_marks();
        let is_empty = socket.record.tx_waiting_bytes() == 0 && socket.marks.is_empty();
        let is_sent = is_empty && !lacks_marks;
        // What is left of one that is over goes nowhere.
        let is_over = socket.record.flags().is_over();
        if is_closing && (is_sent || is_over) {
            self.end(id, false);
        }
    }

    fn close_listener(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        if socket.record.look().is_err() {
            return self.reset_nonsense_and_retire(id);
        }
        // What a process has taken before is its own.
        self.serve_listener(cx, id);
        let Some(socket) = self.socket(id) else {
            return;
        };
        let waiting: Vec<SocketId> = socket.record.accept_waiting_ids().collect();
        for connection in waiting {
            self.end(connection, true);
        }
        self.end(id, false);
    }

    /// A process has ended: what it did without a word is looked for.
    fn end_channel(&mut self, cx: &mut Context<'_>, ended: ChannelId) {
        let Some(place) = self.channels.iter().position(|it| it.id == ended) else {
            return;
        };
        let channel = self.channels.remove(place);
        // Whose process is alive can still ring: its bell is not closed with the copy here.
        if let (Some(waker), Some(bell)) = (cx.waker, channel.end.wake_fd()) {
            waker.remove_bell(bell);
        }
        let until_us = cx.now_us + ADOPTION_US_MAX;
        let ids: Vec<SocketId> = self.sockets.values().map(|it| it.record.id()).collect();
        for id in ids {
            self.enqueue(id);
            let lacks_marks = |socket: &mut Socket| !socket.is_dead && socket.record.lacks_marks();
            if self.socket(id).is_some_and(lacks_marks) {
                self.unmarked.entry(id).or_insert(until_us);
            }
            let is_listener = self.socket(id).is_some_and(|socket| {
                socket.record.flags().has(Flags::LISTENER) && socket.record.look().is_ok()
            });
            if is_listener {
                self.serve_listener(cx, id);
            }
        }
        // Another process may be about to adopt what it has taken.
        for doubtful_us in self.unadopted.values_mut() {
            doubtful_us.get_or_insert(until_us);
        }
    }

    /// Resets connections that a process which has ended had taken, and not adopted; that lack
    /// marks; and those that were closed long ago.
    fn on_time(&mut self, now_us: u64) {
        let lost = self.unadopted.iter();
        let lost = lost.filter(|(_, until)| until.is_some_and(|until_us| until_us <= now_us));
        let lost: Vec<SocketId> = lost.map(|(id, _)| *id).collect();
        for id in lost {
            self.unadopted.remove(&id);
            self.end(id, true);
        }
        let unmarked = self.unmarked.iter();
        let unmarked = unmarked.filter(|(_, until_us)| **until_us <= now_us);
        let unmarked: Vec<SocketId> = unmarked.map(|(id, _)| *id).collect();
        for id in unmarked {
            self.unmarked.remove(&id);
            if self
                .live(id)
                .is_some_and(|socket| socket.record.lacks_marks())
            {
                self.abort(id, Errno::CONNRESET, Flags::default());
            }
        }
        let closing: Vec<SocketId> = self.closing.iter().copied().collect();
        for id in closing {
            let until_us = self.socket(id).and_then(|socket| socket.closing_until_us);
            if until_us.is_some_and(|until_us| until_us <= now_us) {
                self.end(id, true);
            }
        }
    }
}
