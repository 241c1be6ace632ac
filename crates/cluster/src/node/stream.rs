//! Bytes and marks of a stream on their way to the stack node, and credit for incoming bytes.

use socket_channel::host_record::{More, Turn};
use socket_channel::{Block, Flags, SocketId};

use crate::message::{Body, DATA_BYTES_MAX, UNTAKEN_MAX};
use crate::node::Context;
use crate::node::application::App;
use crate::node::ends::CLOSING_PATIENCE_US;
use crate::node::socket::{Mark, What};

/// Most marks that may arrive before their turn.
const EARLY_MARKS_MAX: usize = 64;

/// Most marks of a stream that may wait for their position, as on the stack node.
const MARKS_MAX: usize = 4096;

/// Most looks at a record whose program keeps reading.
const LOOKS_MAX: usize = 2;

impl App {
    /// Whether the stack node accepts another message that goes through its ring.
    pub(crate) fn may_ask(&self) -> bool {
        self.untaken < UNTAKEN_MAX
    }

    /// Serves sockets that have changed. True if there were any.
    pub(crate) fn serve_sockets(&mut self, cx: &mut Context<'_>) -> bool {
        let mut worked = false;
        // Serves each socket once, so that none starves another.
        for _ in 0..self.queue.len() {
            if !cx.has_room() {
                break;
            }
            let Some(id) = self.queue.pop_front() else {
                break;
            };
            let Some(socket) = self.socket(id) else {
                continue;
            };
            socket.is_queued = false;
            worked = true;
            self.serve(cx, id);
        }
        worked
    }

    fn serve(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let Some(socket) = self.live(id) else {
            return;
        };
        let flags = socket.record.flags();
        if flags.has(Flags::FILE) {
            return;
        }
        if socket.record.look().is_err() {
            return self.reset_nonsense(id);
        }
        if flags.has(Flags::LISTENER) {
            return self.serve_listener(cx, id);
        }
        self.give_credit(cx, id);
        if self.send_bytes(cx, id) {
            self.enqueue(id);
        }
        self.finish_closing(id);
    }

    /// Collects connections that processes have accepted and that wait for their handles, and gives
    /// the stack node credit for more.
    pub(crate) fn serve_listener(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let app = self.id;
        let Some(socket) = self.live(id) else {
            return;
        };
        let waiting = socket.record.accept_waiting() as u64;
        let room = socket.backlog.min(socket.record.accept_queue_max() as u64);
        let until = socket.pushed - waiting + room;
        let is_new = until > socket.pushed_until;
        socket.pushed_until = socket.pushed_until.max(until);
        let mut taken = Vec::new();
        while let Some(connection) = socket.record.accept_taken() {
            taken.push(connection);
        }
        if is_new {
            cx.say(app, Body::Credit { socket: id, until });
        }
        for connection in taken {
            if self
                .socket(connection)
                .is_some_and(|it| it.handle.is_none())
            {
                self.unadopted.insert(connection, None);
            }
        }
    }

    /// Gives the stack node credit once the program has read a quarter of the FIFO, and requests a
    /// notification when the program reads.
    fn give_credit(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let app = self.id;
        for _ in 0..LOOKS_MAX {
            let Some(socket) = self.live(id) else {
                return;
            };
            // The other node's FIFO may be larger.
            let size = socket.record.blocks()[0].map_or(0, Block::bytes) as u64;
            let until = socket.rx_bytes + socket.record.rx_room_bytes() as u64;
            if until >= socket.rx_until + (size / 4).max(1) {
                socket.rx_until = until;
                cx.say(app, Body::Credit { socket: id, until });
            }
            let has_enough = socket.rx_until - socket.rx_bytes >= size / 2;
            if size == 0 || has_enough || socket.record.rx_wait_for_room() {
                return;
            }
            if socket.record.look().is_err() {
                return self.reset_nonsense(id);
            }
        }
    }

    /// Sends bytes as far as there is credit, then marks. True if there is more to send.
    pub(crate) fn send_bytes(&mut self, cx: &mut Context<'_>, id: SocketId) -> bool {
        let app = self.id;
        let may_ask = self.may_ask();
        let Some(socket) = self.live(id) else {
            return false;
        };
        let head = socket.record.tx_head();
        let limit = socket.marks.front().map_or(u64::MAX, |mark| mark.at);
        let until = limit.min(socket.tx_until);
        let until = until.min(head + DATA_BYTES_MAX as u64);
        let mut bytes = Vec::new();
        if until > head {
            socket.record.tx_read(until, |chunk| {
                bytes.extend_from_slice(chunk);
                chunk.len()
            });
        }
        if !bytes.is_empty() {
            let is_last = socket.record.tx_head() == socket.record.tx_tail();
            let data = Body::Data {
                socket: id,
                has_more: is_last && socket.record.more() != More::Nothing,
                bytes: &bytes,
            };
            cx.say(app, data);
            if let Some(until_us) = &mut socket.closing_until_us {
                *until_us = cx.now_us + CLOSING_PATIENCE_US;
            }
            self.touch(id);
            return true;
        }
        if head < limit || !may_ask {
            return head >= limit;
        }
        let Some(mark) = socket.marks.pop_front() else {
            return false;
        };
        let body = match mark.what {
            What::File { file, offset, len } => Body::SendFile {
                socket: id,
                file,
                offset,
                len,
                ends_more: socket.marks.is_empty() && socket.record.more() == More::Marks,
            },
            What::Finish => Body::Finish { socket: id },
        };
        self.untaken += 1;
        cx.say(app, body);
        self.release(&mark);
        true
    }

    /// Adds a program's mark to a stream: a range of a file, or the end.
    pub(crate) fn add_mark(&mut self, id: SocketId, mark: Mark) {
        if let What::File { file, .. } = mark.what
            && !self.refer(file)
        {
            return self.reset_nonsense(id);
        }
        let mut next = Some(mark);
        while let Some(mark) = next {
            let Some(socket) = self.live(id) else {
                return self.release(&mark);
            };
            let is_stream = socket.record.flags().has(Flags::STREAM);
            match socket.record.take_mark(mark.number, mark.at) {
                Ok(Turn::Now) if is_stream => {}
                Ok(Turn::Later) if is_stream && socket.early.len() < EARLY_MARKS_MAX => {
                    return socket.early.push(mark);
                }
                _ => {
                    self.release(&mark);
                    return self.reset_nonsense(id);
                }
            }
            let following = mark.number.wrapping_add(1);
            let early = socket.early.iter().position(|it| it.number == following);
            let following = early.map(|place| socket.early.swap_remove(place));
            let file_bytes = match mark.what {
                What::File { len, .. } => len,
                What::Finish => 0,
            };
            // Before a file length that the program made up enters any sum.
            let has_credit = socket.record.queue_file(file_bytes).is_ok();
            let is_ended = socket.is_finishing();
            let has_place = has_credit && socket.marks.len() < MARKS_MAX;
            if has_place && !is_ended {
                socket.marks.push_back(mark);
            } else {
                self.release(&mark);
                if !has_place {
                    return self.reset_nonsense(id);
                }
            }
            next = following;
        }
        self.enqueue(id);
    }

    /// Counts a reference to a file. False if there is no such file.
    fn refer(&mut self, file: SocketId) -> bool {
        let file = self.live(file);
        let file = file.filter(|file| file.record.flags().has(Flags::FILE));
        file.map(|file| file.references += 1).is_some()
    }
}
