//! Memory for the bytes of connections, sized by use.
//!
//! Each place for a socket is promised the smallest FIFO for each direction, so that every accepted
//! connection can carry bytes; the remaining memory makes FIFOs larger. A connection has no FIFO
//! before the first byte in that direction. While more than half of the memory is free, the first
//! received byte also brings the FIFO for the response, and establishment the one for the request,
//! so that no program waits for one. When less is free, each request for a FIFO examines some
//! sockets in a circle, and takes back those of idle connections (CLOCK, Corbató 1968): this costs
//! nothing per byte, and needs no timer.
//!
//! A tx FIFO grows for a program whose nonblocking writes exceed its room, as the send buffer of
//! Linux does (`tcp_sndbuf_expand`): with the congestion window, or to the size of one write if
//! that is larger. It shrinks once all its bytes have left.

use host::app::StreamId;
use rustix::io::Errno;
use socket_channel::attach::MODE_BUFFERS_ON_DEMAND;
use socket_channel::fifo_area::{FIFO_BYTES_MAX, FIFO_BYTES_USUAL};
use socket_channel::{Block, Flags, SocketId};

use crate::application::{App, Context};
use crate::state::socket::{Kind, Socket};

/// Congestion windows that a tx FIFO holds. Linux has memory for two, and a segment of 1460 bytes
/// takes three times its size (`tcp_sndbuf_expand`).
const TX_WINDOWS: u64 = 6;

/// Sockets examined for each requested FIFO while memory is short.
const LOOKED_AT: usize = 8;

impl App {
    /// Reports whether connections have FIFOs only while they carry bytes.
    pub(crate) fn has_buffers_on_demand(&self) -> bool {
        self.has_mode(MODE_BUFFERS_ON_DEMAND)
    }

    /// Reports whether more than half of the memory is free.
    fn has_plenty(&self) -> bool {
        self.area.is_half_free()
    }

    /// Allocates a promised FIFO of about `asked_bytes`, or of the usual size.
    pub(crate) fn allocate_promised(&mut self, asked_bytes: Option<usize>) -> Option<Block> {
        if !self.has_plenty() {
            self.take_back_idle();
        }
        self.area.withdraw(1);
        let block = match asked_bytes {
            Some(bytes) => self.area.allocate(bytes),
            None => self.area.allocate_usual(),
        };
        if block.is_none() {
            self.area.promise(1);
        }
        block
    }

    /// Releases FIFOs, and restores their promises.
    pub(crate) fn release_fifos(&mut self, blocks: impl IntoIterator<Item = Option<Block>>) {
        for block in blocks.into_iter().flatten() {
            self.area.release(block);
            self.area.promise(1);
        }
    }

    /// Provides both FIFOs of a connection whose application does not request them.
    pub(crate) fn provide_both(&mut self, id: SocketId) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        let options = socket.options;
        let rx = self.allocate_promised(options.receive_buffer_bytes);
        let tx = self.allocate_promised(options.send_buffer_bytes);
        if let Some(socket) = self.socket(id) {
            socket.record.set_blocks(rx, tx);
        }
    }

    /// Provides an rx FIFO if a connection has none, or one of the usual size in place of a small
    /// empty one. False if there is no memory.
    pub(crate) fn provide_rx(&mut self, id: SocketId) -> bool {
        let Some(socket) = self.socket(id) else {
            return false;
        };
        let asked_bytes = socket.options.receive_buffer_bytes;
        if socket.record.rx_bytes() > 0 {
            return asked_bytes.is_none() && self.enlarge_rx(id);
        }
        let Some(block) = self.allocate_promised(asked_bytes) else {
            return false;
        };
        if let Some(socket) = self.socket(id) {
            socket.record.replace_rx(Some(block));
        }
        self.anticipate_tx(id);
        true
    }

    fn enlarge_rx(&mut self, id: SocketId) -> bool {
        if !self.has_buffers_on_demand() || !self.has_plenty() {
            return false;
        }
        let Some(block) = self.area.allocate_usual() else {
            return false;
        };
        let socket = self.socket(id);
        let smaller = socket.filter(|socket| socket.record.rx_bytes() < block.bytes());
        match smaller.map(|socket| socket.record.replace_rx(Some(block))) {
            Some(old) => {
                old.into_iter().for_each(|old| self.area.release(old));
                true
            }
            None => {
                self.area.release(block);
                false
            }
        }
    }

    /// Provides a tx FIFO for a connection whose application is about to write, if memory is
    /// plentiful.
    pub(crate) fn anticipate_tx(&mut self, id: SocketId) {
        if self.has_buffers_on_demand() && self.has_plenty() {
            self.provide_tx(id);
        }
    }

    /// Provides a tx FIFO for a connection that has none.
    fn provide_tx(&mut self, id: SocketId) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        let asked_bytes = socket.options.send_buffer_bytes;
        if socket.record.tx_bytes() > 0 || !matches!(socket.kind, Kind::Stream(_)) {
            return;
        }
        let Some(block) = self.allocate_promised(asked_bytes) else {
            return;
        };
        let Some(socket) = self.socket(id) else {
            return;
        };
        if socket.record.replace_tx(Some(block)).is_err() {
            return self.release_fifos([Some(block)]);
        }
        // The FIFO stays empty until the application sees it: the first examination must not find
        // it idle.
        if let Some(stream) = socket.stream_mut() {
            stream.moved_bytes[1] = u64::MAX;
        }
        let max = if asked_bytes.is_none() {
            FIFO_BYTES_MAX
        } else {
            0
        };
        socket.record.set_tx_max(max as u64);
    }

    /// Makes room for a write of `bytes` that found too little room, or no FIFO.
    pub(crate) fn make_room(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        bytes: u64,
    ) -> Result<(), Errno> {
        // Lets TCP take as many bytes as it has room for.
        self.look(cx, id);
        if self.socket(id).ok_or(Errno::BADF)?.stream().is_none() {
            return Err(Errno::NOTCONN);
        }
        self.provide_tx(id);
        self.grow_tx(cx, id, bytes);
        self.touch(id);
        Ok(())
    }

    fn grow_tx(&mut self, cx: &mut Context<'_>, id: SocketId, bytes: u64) {
        let Some(socket) = self.socket(id).filter(|it| it.record.tx_max() > 0) else {
            return;
        };
        if socket.options.send_buffer_bytes.is_some() {
            return socket.record.set_tx_max(0);
        }
        let record = &socket.record;
        let (has, queued) = (record.tx_bytes(), record.tx_waiting_bytes());
        let Some(stream) = socket.stream().filter(|stream| !stream.is_gone) else {
            return;
        };
        let bound = congestion_windows_bytes(cx, stream.id).max(bytes);
        let wanted = bytes.saturating_add(queued as u64).min(bound);
        let wanted = usize::try_from(wanted).unwrap_or(FIFO_BYTES_MAX);
        if wanted > has
            && let Some(block) = self.area.allocate(wanted)
        {
            self.exchange_tx(id, block, |block| block.bytes() > has);
        }
        if let Some(socket) = self.socket(id)
            && socket.record.tx_bytes() == has
            && has - queued < usize::try_from(bytes).unwrap_or(usize::MAX)
        {
            // It may grow again when it is empty, or the congestion window has grown.
            socket.record.set_tx_max(has as u64);
        }
    }

    /// Lets a tx FIFO at its limit, of which TCP has taken bytes, grow again once the congestion
    /// window has room for twice its size.
    #[cold]
    pub(crate) fn raise_tx_max(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        let Some(stream) = socket.stream().filter(|stream| !stream.is_gone) else {
            return;
        };
        if congestion_windows_bytes(cx, stream.id) >= 2 * socket.record.tx_bytes() as u64 {
            socket.record.set_tx_max(FIFO_BYTES_MAX as u64);
        }
    }

    /// Replaces a grown tx FIFO, all of whose bytes have left, by one of the usual size, which may
    /// grow again.
    #[cold]
    pub(crate) fn shrink_tx(&mut self, id: SocketId) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        socket.record.set_tx_max(FIFO_BYTES_MAX as u64);
        let has = socket.record.tx_bytes();
        if has > FIFO_BYTES_USUAL
            && let Some(block) = self.area.allocate_usual()
        {
            self.exchange_tx(id, block, |_| true);
        }
    }

    /// Replaces a tx FIFO by another one, if that fits.
    fn exchange_tx(&mut self, id: SocketId, block: Block, fits: impl FnOnce(Block) -> bool) {
        let socket = self.socket(id).filter(|_| fits(block));
        let replaced = socket.and_then(|socket| socket.record.replace_tx(Some(block)).ok());
        match replaced {
            Some(old) => old.into_iter().for_each(|old| self.area.release(old)),
            None => self.area.release(block),
        }
    }

    /// Takes back FIFOs that are empty and were not used since their last examination.
    fn take_back_idle(&mut self) {
        if !self.has_buffers_on_demand() {
            return;
        }
        for _ in 0..LOOKED_AT.min(self.sockets_ever()) {
            let place = self.hand;
            self.hand = (place + 1) % self.sockets_ever();
            let Some(socket) = self.sockets.get_mut(place) else {
                continue;
            };
            let blocks = idle_fifos(socket);
            self.release_fifos(blocks);
        }
    }
}

/// Returns the bytes of the congestion windows that a tx FIFO holds.
fn congestion_windows_bytes(cx: &Context<'_>, stream: StreamId) -> u64 {
    cx.io.congestion_window(stream).saturating_mul(TX_WINDOWS)
}

/// Removes the idle FIFOs of a socket from its record, and returns them.
fn idle_fifos(socket: &mut Socket) -> [Option<Block>; 2] {
    let record = &mut socket.record;
    let Kind::Stream(stream) = &mut socket.kind else {
        return [None; 2];
    };
    // A Kick whose change this look finds still arrives, and is handled then.
    if record.flags().has(Flags::SPLICED) || record.look().is_err() {
        return [None; 2];
    }
    let moved = record.moved_bytes();
    let before = std::mem::replace(&mut stream.moved_bytes, moved);
    let is_idle =
        |direction: usize, waiting: usize| before[direction] == moved[direction] && waiting == 0;
    let (rx_is_idle, tx_is_idle) = (
        is_idle(0, record.rx_unread_bytes()),
        is_idle(1, record.tx_waiting_bytes()),
    );
    let rx = rx_is_idle.then(|| record.replace_rx(None)).flatten();
    let tx = tx_is_idle.then(|| record.replace_tx(None).ok());
    [rx, tx.flatten().flatten()]
}
