//! The ends of sockets, descriptors and processes; and the turns of an application.

use rustix::io::Errno;
use socket_channel::{ChannelId, Flags, HandleId, SocketId};
use sockets::Woken;

use crate::message::Body;
use crate::node::Context;
use crate::node::application::{App, Phase, Use};
use crate::node::socket::{End, Socket};

/// Time after which a closed connection is reset if its bytes do not leave, in microseconds: as
/// long as a host stack waits for its peer.
pub(crate) const CLOSING_PATIENCE_US: u64 = 60_000_000;

/// Time within which a process adopts a connection from an accept queue, in microseconds, unless
/// the process has ended before.
const ADOPTION_US_MAX: u64 = 1_000_000;

impl App {
    /// Does a round of work; true if there was any.
    pub(crate) fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        self.on_time(cx.now_us);
        let mut worked = self.say_closes(cx);
        if self.phase != Phase::Attaching {
            let (has_taken, is_all) = self.take_commands(cx);
            worked |= has_taken;
            if is_all {
                // Their last commands have been executed.
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

    /// Sends pending ends of sockets to the stack node.
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

    /// Notes the close of a descriptor's last copy.
    pub(crate) fn hang_up(&mut self, handle: HandleId) {
        self.hung.insert(handle);
    }

    /// Closes a handle after its last copy was closed, or at the program's request.
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

    /// Closes listeners and unconnected sockets whose last descriptor was closed before the command
    /// now executed, which may need their address: the command overtook the hang-up.
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

    /// Closes a socket whose last descriptor is closed.
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

    /// Hands a closed connection over to the stack node once all its bytes are sent.
    pub(crate) fn finish_closing(&mut self, id: SocketId) {
        let Some(socket) = self.live(id) else {
            return;
        };
        let is_closing = socket.closing_until_us.is_some();
        let lacks_marks = socket.record.lacks_marks();
        let is_empty = socket.record.tx_waiting_bytes() == 0 && socket.marks.is_empty();
        let is_sent = is_empty && !lacks_marks;
        // The unsent bytes of a connection that is over go nowhere.
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
        // Connections that a process has already taken belong to that process.
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

    /// Handles the end of a process, and searches for its unreported changes.
    fn end_channel(&mut self, cx: &mut Context<'_>, ended: ChannelId) {
        let Some(place) = self.channels.iter().position(|it| it.id == ended) else {
            return;
        };
        let channel = self.channels.remove(place);
        // A process that is alive can still ring: the copy closed here does not close its bell.
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
        // Another process may be about to adopt a connection that it took.
        for doubtful_us in self.unadopted.values_mut() {
            doubtful_us.get_or_insert(until_us);
        }
    }

    /// Resets connections that an ended process took but did not adopt, streams that lack marks,
    /// and connections that did not drain within [`CLOSING_PATIENCE_US`] of their close.
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
