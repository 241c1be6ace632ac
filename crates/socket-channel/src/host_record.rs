//! A socket as the host stack sees it.
//!
//! The host keeps its own copy of all words that it writes, and never reads them back. The
//! application's words are copied before they are checked: indices must only grow, and never pass
//! the offered range. If a check fails, this socket is to be reset, and no other.

use std::collections::VecDeque;
use std::net::SocketAddr;

use shm::sync::{Ordering, fence};

use crate::fifo::Fifo;
use crate::fifo_area::FIFO_BYTES_MAX;
use crate::ids::SocketId;
use crate::message::SocketOption;
use crate::record::{
    ACCEPT_HEAD, ACCEPT_TAIL, ACK_ALARM, ACKED, DISCONNECTS, EDGE, ERROR, FILE_LIMIT, FILE_META,
    FILE_QUEUED, FileMeta, Flags, HELD, KICKED, LOCAL, LOCKED_BY_HOST, Look, MORE_ENDS_WITH_MARK,
    NEVER, Nonsense, OPTION_WORDS, OPTIONS, PEER, RX_ALARM, RX_FIFO, RX_HEAD, RX_TAIL, Record,
    SPLICE, SPLICE_IN, SPLICE_OUT, SPLICE_SEEN, SPLICE_TAKEN, STATE, SpliceStage, TX_BLOCKED,
    TX_FIFO, TX_HEAD, TX_LIMIT, TX_LOCK, TX_MARKS, TX_MAX, TX_MORE, TX_TAIL, Wanted,
    address_to_words, options_to_words, splice_to_word,
};
use crate::segment::{Block, Segment};

/// Bytes that [`HostRecord::tx_read`] hands over at a time.
const CHUNK_BYTES: usize = 4096;

/// The accept queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

/// The application has the lock of a FIFO, or too many bytes are queued in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// Actions of an application since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Bytes taken out of the rx FIFO.
    pub rx_taken_bytes: u64,
    /// Bytes put into the tx FIFO.
    pub tx_added_bytes: u64,
    /// Entries taken out of the accept queue.
    pub accepted: u64,
}

/// Order of a mark of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is the next mark.
    Now,
    /// An earlier mark has not arrived yet.
    Later,
}

/// Announcement of data that follows the bytes of a tx FIFO, so that a partial segment may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// None.
    Nothing,
    /// The marks behind the bytes, and no more.
    Marks,
    /// More bytes or marks.
    Something,
}

/// Remains of an ended socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// Blocks to be freed.
    pub blocks: [Option<Block>; 2],
    /// Receivers of a Ready.
    pub wanted: Wanted,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub struct HostRecord {
    segment: Segment,
    id: SocketId,
    flags: Flags,
    rx: Option<Block>,
    tx: Option<Block>,
    rx_tail: u64,
    rx_head: u64,
    tx_tail: u64,
    tx_head: u64,
    /// Usable bytes of the tx FIFO; 0: all.
    tx_limit: u64,
    /// Size up to which the tx FIFO may grow, in bytes.
    tx_max: u64,
    file_limit: u64,
    file_queued: u64,
    /// Held bytes or connections.
    held: u64,
    /// Number of marks that have arrived.
    tx_marks: u32,
    accept_head: u64,
    accept_tail: u64,
    /// Private copy of the accept queue, since the application may overwrite the shared one.
    queue: VecDeque<SocketId>,
    errors: u32,
    error: u32,
    edge: u64,
    acked: u64,
    disconnects: u64,
    /// Number of the last report about a splice.
    splice_news: u32,
    /// Bytes passed in its splice, in and out.
    spliced: [u64; 2],
    /// The record has changed since the last hint.
    is_untold: bool,
}

impl HostRecord {
    /// Makes a socket of the kind that `flags` gives. A stream has both FIFOs or none; `rx` is the
    /// queue of a listener.
    ///
    /// # Panics
    /// If the segment has no such place, or a block is outside its area: the host chooses both.
    pub fn new(
        segment: &Segment,
        id: SocketId,
        flags: Flags,
        rx: Option<Block>,
        tx: Option<Block>,
    ) -> HostRecord {
        let mut record = HostRecord {
            segment: segment.clone(),
            id,
            flags,
            rx: None,
            tx: None,
            rx_tail: 0,
            rx_head: 0,
            tx_tail: 0,
            tx_head: 0,
            tx_limit: 0,
            tx_max: 0,
            file_limit: 0,
            file_queued: 0,
            held: 0,
            tx_marks: 0,
            accept_head: 0,
            accept_tail: 0,
            queue: VecDeque::new(),
            errors: 0,
            error: 0,
            edge: 0,
            acked: 0,
            disconnects: 0,
            splice_news: 0,
            spliced: [0; 2],
            is_untold: true,
        };
        let words = record.record();
        // Processes with the old ID find no socket until the new state is stored.
        words.set(STATE, 0);
        fence(Ordering::Release);
        for at in STATE + 1..crate::record::RECORD_WORDS {
            words.set(at, 0);
        }
        words.set(RX_ALARM, NEVER);
        record.set_blocks(rx, tx);
        record.publish_state();
        record
    }

    fn record(&self) -> Record<'_> {
        self.segment
            .record(self.id)
            .expect("the host stack chooses places of the segment")
    }

    fn fifo(&self, block: Option<Block>) -> Option<Fifo<'_>> {
        let words = self.segment.block(block?);
        Fifo::new(words.expect("the host stack allocates in the area"))
    }

    /// Returns the ID.
    pub fn id(&self) -> SocketId {
        self.id
    }

    /// Returns the state.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Returns the blocks of rx and tx, to be freed when the socket has ended.
    pub fn blocks(&self) -> [Option<Block>; 2] {
        [self.rx, self.tx]
    }

    /// Reports whether its blocks were unused at the last look.
    pub fn is_unused(&self) -> bool {
        self.rx_tail == 0 && self.tx_tail == 0 && self.accept_tail == 0
    }

    /// Sets the blocks of a socket that had none: it is bound before it listens or connects. To be
    /// called before the state that refers to them.
    ///
    /// # Panics
    /// If its blocks were in use.
    pub fn set_blocks(&mut self, rx: Option<Block>, tx: Option<Block>) {
        assert!(self.is_unused(), "blocks in use stay");
        self.rx = rx;
        self.tx = tx;
        let raw = |block: Option<Block>| block.map_or(0, Block::to_raw);
        let words = self.record();
        words.set(RX_FIFO, raw(rx));
        words.set(TX_FIFO, raw(tx));
    }

    /// Limits the bytes that the application puts into the tx FIFO; `None`: its size.
    pub fn limit_tx(&mut self, bytes: Option<u64>) {
        self.tx_limit = bytes.map_or(0, |bytes| bytes.max(1));
        self.record().set(TX_LIMIT, self.tx_limit);
        self.bump_edge();
    }

    /// Replaces the rx FIFO, which must be empty at the last look, by another one or none. Returns
    /// the old one, to be freed.
    ///
    /// # Panics
    /// If it was not empty, or the socket listens.
    pub fn replace_rx(&mut self, rx: Option<Block>) -> Option<Block> {
        assert!(
            self.rx_head == self.rx_tail && !self.flags.has(Flags::LISTENER),
            "a queue in use stays"
        );
        self.record().set(RX_FIFO, rx.map_or(0, Block::to_raw));
        std::mem::replace(&mut self.rx, rx)
    }

    /// Replaces the tx FIFO, with all queued bytes, by another one or none. Returns the old one, to
    /// be freed; [`Busy`] if a writer has the lock, or the new one is too small.
    pub fn replace_tx(&mut self, tx: Option<Block>) -> Result<Option<Block>, Busy> {
        if self.tx.is_none() {
            // No writer uses the FIFO before it exists.
            return self.replace_locked_tx(tx);
        }
        let (lock, own) = (self.record().word(TX_LOCK), u64::from(LOCKED_BY_HOST));
        let locked = lock.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed);
        locked.map_err(|_| Busy)?;
        let replaced = self.replace_locked_tx(tx);
        let lock = self.record().word(TX_LOCK);
        let _ = lock.compare_exchange(own, 0, Ordering::Release, Ordering::Relaxed);
        if replaced.is_ok() {
            self.unblock(!self.state().is_blocked());
        }
        replaced
    }

    fn replace_locked_tx(&mut self, tx: Option<Block>) -> Result<Option<Block>, Busy> {
        // Includes bytes behind a mark that has not arrived.
        let tail = self.record().get_acquire(TX_TAIL);
        let queued = tail.checked_sub(self.tx_head).ok_or(Busy)?;
        let (from, to) = (self.tx, tx);
        let least = [from, to].map(|block| block.map_or(0, Block::bytes) as u64);
        if least.iter().any(|bytes| queued > *bytes) {
            return Err(Busy);
        }
        if let (Some(from), Some(to)) = (self.fifo(from), self.fifo(to)) {
            let mut chunk = [0; CHUNK_BYTES];
            let mut at = self.tx_head;
            while at < tail {
                let len = (tail - at).min(CHUNK_BYTES as u64);
                let chunk = &mut chunk[..len as usize];
                from.get(at, chunk);
                to.put(at, chunk);
                at += len;
            }
        }
        self.record().set(TX_FIFO, tx.map_or(0, Block::to_raw));
        Ok(std::mem::replace(&mut self.tx, tx))
    }

    /// Sets the size up to which the application may request a tx FIFO.
    pub fn set_tx_max(&mut self, bytes: u64) {
        if bytes != self.tx_max {
            self.tx_max = bytes;
            self.record().set(TX_MAX, bytes);
        }
    }

    /// Returns the size up to which the tx FIFO may grow, in bytes.
    pub fn tx_max(&self) -> u64 {
        self.tx_max
    }

    /// Reports whether the tx FIFO has its maximum size, and that maximum could be raised.
    pub fn tx_is_bounded(&self) -> bool {
        self.tx_max == self.tx_bytes() as u64 && (1..FIFO_BYTES_MAX as u64).contains(&self.tx_max)
    }

    /// Reports whether the tx FIFO is empty, and either larger than usual or at its maximum size.
    pub fn tx_has_grown(&self, usual_bytes: u64) -> bool {
        let bytes = self.tx_bytes() as u64;
        self.tx_max > 0
            && self.tx_head == self.tx_tail
            && (bytes > usual_bytes || bytes == self.tx_max)
    }

    /// Returns the size of the rx FIFO, in bytes; 0 if there is none.
    pub fn rx_bytes(&self) -> usize {
        self.rx.map_or(0, Block::bytes)
    }

    /// Returns the size of the tx FIFO, in bytes; 0 if there is none.
    pub fn tx_bytes(&self) -> usize {
        self.tx.map_or(0, Block::bytes)
    }

    /// Returns the bytes put into each FIFO up to the last look.
    pub fn moved_bytes(&self) -> [u64; 2] {
        [self.rx_tail, self.tx_tail]
    }

    /// Resets it to an unused socket of the kind that `flags` gives. Returns the blocks to be
    /// freed. State of the socket itself stays: errors, the application's word, receivers of Ready.
    pub fn disconnect(&mut self, flags: Flags) -> [Option<Block>; 2] {
        let blocks = self.blocks();
        (self.rx, self.tx) = (None, None);
        (self.rx_tail, self.rx_head, self.tx_tail, self.tx_head) = (0, 0, 0, 0);
        (
            self.tx_limit,
            self.file_limit,
            self.file_queued,
            self.tx_marks,
        ) = (0, 0, 0, 0);
        (self.held, self.acked) = (0, 0);
        (self.accept_head, self.accept_tail) = (0, 0);
        self.queue.clear();
        (self.splice_news, self.spliced) = (0, [0; 2]);
        self.disconnects += 1;
        self.tx_max = 0;
        let words = self.record();
        words.set(DISCONNECTS, self.disconnects);
        fence(Ordering::Release);
        for at in [
            RX_FIFO, TX_FIFO, TX_LIMIT, TX_MAX, RX_TAIL, TX_HEAD, FILE_LIMIT, ACKED, ACK_ALARM,
            HELD,
        ] {
            words.set(at, 0);
        }
        for at in [SPLICE, SPLICE_IN, SPLICE_OUT, SPLICE_SEEN, SPLICE_TAKEN] {
            words.set(at, 0);
        }
        for at in [
            RX_HEAD,
            TX_TAIL,
            FILE_QUEUED,
            TX_MARKS,
            TX_BLOCKED,
            TX_MORE,
            ACCEPT_TAIL,
        ] {
            words.set(at, 0);
        }
        words.set_all(PEER, address_to_words(None));
        words.set(RX_ALARM, NEVER);
        // Last: a concurrent accept compares this word.
        words.set_release(ACCEPT_HEAD, 0);
        self.flags = flags;
        self.publish_state();
        self.bump_edge();
        blocks
    }

    fn publish_state(&self) {
        let generation = u64::from(self.id.generation);
        let state = generation << 32 | u64::from(self.flags.0);
        self.record().set_release(STATE, state);
    }

    /// Sets flags, after the words that they announce.
    pub fn set(&mut self, flags: Flags) {
        self.change(self.flags | flags);
    }

    /// Sets flags that make no socket ready, such as [`Flags::LOOKED_UP`]: they are no edge.
    pub fn note(&mut self, flags: Flags) {
        self.flags |= flags;
        self.publish_state();
    }

    /// Clears flags.
    pub fn clear(&mut self, flags: Flags) {
        self.change(self.flags - flags);
    }

    /// Clears and sets flags in one change: the intermediate state would have another meaning.
    pub fn replace(&mut self, cleared: Flags, set: Flags) {
        self.change((self.flags - cleared) | set);
    }

    fn change(&mut self, flags: Flags) {
        if flags != self.flags {
            self.flags = flags;
            self.publish_state();
            self.bump_edge();
        }
    }

    /// Reports an error, an `errno`, with `flags` for the resulting state. Clears
    /// [`Flags::CONNECTING`].
    pub fn fail(&mut self, errno: u32, flags: Flags) {
        // Error number 0 means no error.
        self.errors = self.errors.wrapping_add(1).max(1);
        self.error = errno;
        let error = u64::from(self.errors) << 32 | u64::from(errno);
        self.record().set_release(ERROR, error);
        self.flags = (self.flags - Flags::CONNECTING) | flags;
        self.publish_state();
        self.bump_edge();
    }

    /// Called last, so that a process that sees the new number also sees the change.
    fn bump_edge(&mut self) {
        self.edge += 1;
        self.is_untold = true;
        self.record().set_release(EDGE, self.edge);
    }

    /// Sets the local address. To be called before the state that announces it.
    pub fn set_local(&mut self, address: SocketAddr) {
        let words = address_to_words(Some(address));
        self.record().set_all(LOCAL, words);
    }

    /// Sets the peer's address. To be called before the state that announces it.
    pub fn set_peer(&mut self, address: SocketAddr) {
        let words = address_to_words(Some(address));
        self.record().set_all(PEER, words);
    }

    /// Sets the metadata of an open file. To be called before [`Flags::FILE_OPEN`].
    pub fn set_file_meta(&mut self, meta: FileMeta) {
        self.record().set_all(FILE_META, meta.to_words());
    }

    /// Publishes the options, which saves requests for them.
    pub fn set_options(&mut self, value: impl Fn(SocketOption) -> u64) {
        self.record().set_all(OPTIONS, options_to_words(value));
    }

    /// Copies the options of another record.
    pub fn set_option_words(&mut self, words: [u64; OPTION_WORDS]) {
        self.record().set_all(OPTIONS, words);
    }

    /// Sets the number of bytes, or connections of a listener, that are held until a request.
    pub fn set_held(&mut self, held: u64) {
        if held != self.held {
            let is_more = held > self.held;
            self.held = held;
            self.record().set_release(HELD, held);
            // The handover of held items has grown the edge already.
            if is_more {
                self.bump_edge();
            }
        }
    }

    /// Returns the number of held bytes, or connections of a listener.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Sets the bytes of the stream that the peer has acknowledged.
    pub fn set_acked(&mut self, bytes: u64) {
        if bytes == self.acked {
            return;
        }
        self.acked = bytes;
        let words = self.record();
        words.set_release(ACKED, bytes);
        fence(Ordering::SeqCst);
        let alarm = words.get(ACK_ALARM);
        if alarm == 0 || alarm > bytes {
            return;
        }
        // A process that sets another alarm meanwhile checks `ACKED` after it.
        let word = words.word(ACK_ALARM);
        let _ = word.compare_exchange(alarm, 0, Ordering::Relaxed, Ordering::Relaxed);
        self.bump_edge();
    }

    /// Sets the stage of its splice, and the reason for its end or failure: an `errno`, or 0.
    /// [`SpliceStage::Joining`] is not reported as news.
    pub fn set_splice(&mut self, stage: SpliceStage, errno: u16) {
        if stage != SpliceStage::Joining {
            self.splice_news = self.splice_news.wrapping_add(1);
        }
        let word = splice_to_word(self.splice_news, stage, errno);
        self.record().set_release(SPLICE, word);
        self.bump_edge();
    }

    /// Sets the bytes passed in its splice: from its peer, and to it.
    pub fn set_spliced(&mut self, in_bytes: u64, out_bytes: u64) {
        if self.spliced != [in_bytes, out_bytes] {
            self.spliced = [in_bytes, out_bytes];
            self.record().set_release(SPLICE_IN, in_bytes);
            self.record().set_release(SPLICE_OUT, out_bytes);
            self.bump_edge();
        }
    }

    /// Returns the bytes passed in its splice: from its peer, and to it.
    pub fn spliced_bytes(&self) -> [u64; 2] {
        self.spliced
    }

    /// Examines the application's actions. Clears the Kick that led here, if any.
    pub fn look(&mut self) -> Result<News, Nonsense> {
        let words = self.record();
        words.unkick();
        let rx_head = words.get_acquire(RX_HEAD);
        let tx_tail = words.get_acquire(TX_TAIL);
        let accept_head = words.get_acquire(ACCEPT_HEAD);
        let tx_bytes = self.tx.map_or(0, Block::bytes) as u64;
        let rx_makes_sense = (self.rx_head..=self.rx_tail).contains(&rx_head);
        let tx_makes_sense = tx_tail
            .checked_sub(self.tx_head)
            .is_some_and(|queued| self.tx_tail <= tx_tail && queued <= tx_bytes);
        let accept_makes_sense = (self.accept_head..=self.accept_tail).contains(&accept_head);
        if !(rx_makes_sense && tx_makes_sense && accept_makes_sense) {
            return Err(Nonsense);
        }
        // Read after the tail: marks in front of the tail have been counted.
        let has_all_marks = words.get(TX_MARKS) as u32 == self.tx_marks;
        let tx_tail = if has_all_marks { tx_tail } else { self.tx_tail };
        let news = News {
            rx_taken_bytes: rx_head - self.rx_head,
            tx_added_bytes: tx_tail - self.tx_tail,
            accepted: accept_head - self.accept_head,
        };
        self.rx_head = rx_head;
        self.tx_tail = tx_tail;
        self.accept_head = accept_head;
        Ok(news)
    }

    /// Reports whether a Kick is pending: for tests, and to look before it arrives.
    pub fn is_kicked(&self) -> bool {
        self.record().get(KICKED) != 0
    }

    /// Returns the room in the rx FIFO at the last look, in bytes.
    pub fn rx_room_bytes(&self) -> usize {
        let bytes = self.rx.map_or(0, Block::bytes);
        bytes - (self.rx_tail - self.rx_head) as usize
    }

    /// Returns the bytes in the rx FIFO at the last look.
    pub fn rx_unread_bytes(&self) -> usize {
        (self.rx_tail - self.rx_head) as usize
    }

    /// Puts bytes into the rx FIFO as far as there is room; returns their number. They are visible
    /// at once.
    pub fn rx_write(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.rx_room_bytes());
        if self.flags.has(Flags::LISTENER) || len == 0 {
            return 0;
        }
        if let Some(fifo) = self.fifo(self.rx) {
            fifo.put(self.rx_tail, &bytes[..len]);
        }
        self.rx_tail += len as u64;
        self.record().set_release(RX_TAIL, self.rx_tail);
        self.bump_edge();
        len
    }

    /// Takes bytes out of the rx FIFO for the application, which must not read meanwhile. `sink`
    /// returns the number of bytes that it accepts of a chunk; a partial chunk is the last. Returns
    /// the number of bytes taken.
    pub fn rx_take(&mut self, mut sink: impl FnMut(&[u8]) -> usize) -> usize {
        let from = self.rx_head;
        let mut chunk = [0; CHUNK_BYTES];
        while self.rx_head < self.rx_tail {
            let len = self.rx_unread_bytes().min(CHUNK_BYTES);
            let chunk = &mut chunk[..len];
            let Some(fifo) = self.fifo(self.rx) else {
                break;
            };
            fifo.get(self.rx_head, chunk);
            let taken = sink(chunk).min(len);
            self.rx_head += taken as u64;
            if taken < len {
                break;
            }
        }
        let taken = self.rx_head - from;
        if taken > 0 {
            self.record().set_release(RX_HEAD, self.rx_head);
        }
        taken as usize
    }

    /// Requests a Kick once half of the rx FIFO is free. False if it is free already: look again
    /// instead of waiting.
    pub fn rx_wait_for_room(&mut self) -> bool {
        let half = self.rx.map_or(0, Block::bytes) as u64 / 2;
        let head_wanted = self.rx_tail.saturating_sub(half);
        let words = self.record();
        words.set(RX_ALARM, head_wanted.saturating_sub(1));
        fence(Ordering::SeqCst);
        let must_wait = words.get_acquire(RX_HEAD) < head_wanted;
        if !must_wait {
            words.set(RX_ALARM, NEVER);
        }
        must_wait
    }

    /// Returns the bytes in the tx FIFO at the last look.
    pub fn tx_waiting_bytes(&self) -> usize {
        (self.tx_tail - self.tx_head) as usize
    }

    /// Returns the position up to which the tx FIFO has been taken: total bytes.
    pub fn tx_head(&self) -> u64 {
        self.tx_head
    }

    /// Returns the position up to which the tx FIFO was filled at the last look: total bytes.
    pub fn tx_tail(&self) -> u64 {
        self.tx_tail
    }

    /// Takes bytes out of the tx FIFO, up to the position `until` and in chunks. `sink` returns the
    /// number of bytes that it accepts of a chunk; a partial chunk is the last. Returns the number
    /// of bytes taken.
    pub fn tx_read(&mut self, until: u64, mut sink: impl FnMut(&[u8]) -> usize) -> usize {
        let from = self.tx_head;
        let until = until.min(self.tx_tail);
        if from >= until {
            return 0;
        }
        let mut chunk = [0; CHUNK_BYTES];
        while self.tx_head < until {
            let len = (until - self.tx_head).min(CHUNK_BYTES as u64) as usize;
            let chunk = &mut chunk[..len];
            if !self.tx_copy(self.tx_head, chunk) {
                break;
            }
            let taken = sink(chunk).min(len);
            self.tx_head += taken as u64;
            if taken < len {
                break;
            }
        }
        let taken = (self.tx_head - from) as usize;
        if taken > 0 {
            self.record().set_release(TX_HEAD, self.tx_head);
            self.unblock(!self.state().is_blocked());
        }
        taken
    }

    /// Wakes a waiting writer, if there is enough room for it.
    fn unblock(&mut self, is_enough: bool) {
        fence(Ordering::SeqCst);
        let words = self.record();
        if is_enough && words.get(TX_BLOCKED) != 0 {
            words.set(TX_BLOCKED, 0);
            self.bump_edge();
        }
    }

    /// Returns the announcement about data that follows the last bytes of the tx FIFO at the last
    /// look.
    pub fn more(&self) -> More {
        let more = self.record().get(TX_MORE);
        let position = more & !MORE_ENDS_WITH_MARK;
        if self.tx_tail == 0 || position < self.tx_tail {
            More::Nothing
        } else if position > self.tx_tail {
            // Written since the last look: those bytes follow.
            More::Something
        } else if more & MORE_ENDS_WITH_MARK != 0 {
            More::Marks
        } else {
            More::Something
        }
    }

    /// Copies bytes of the tx FIFO from a position on without consuming. False if not all are
    /// present.
    pub fn tx_copy(&self, position: u64, bytes: &mut [u8]) -> bool {
        let end = position.checked_add(bytes.len() as u64);
        let is_there = position >= self.tx_head && end.is_some_and(|end| end <= self.tx_tail);
        match self.fifo(self.tx) {
            Some(fifo) if is_there => {
                fifo.get(position, bytes);
                true
            }
            _ => false,
        }
    }

    /// Frees the tx FIFO up to a position, or to its end: for callers of [`HostRecord::tx_copy`].
    pub fn tx_release(&mut self, until: u64) {
        let until = until.min(self.tx_tail);
        if until > self.tx_head {
            self.tx_head = until;
            self.record().set_release(TX_HEAD, self.tx_head);
            self.unblock(!self.state().is_blocked());
        }
    }

    /// Takes the mark of a SendFile or a Shutdown: all bytes up to its position are present, and it
    /// lies between the taken bytes and the application's last. Looks, since the message may
    /// overtake the Kick. An early mark is not examined further: another process has still to send
    /// the previous one.
    pub fn take_mark(&mut self, mark: u32, at: u64) -> Result<Turn, Nonsense> {
        self.look()?;
        let words = self.record();
        let tail = words.get_acquire(TX_TAIL);
        let counted = words.get(TX_MARKS) as u32;
        let ahead = mark.wrapping_sub(self.tx_marks);
        if ahead == 0 || ahead > counted.wrapping_sub(self.tx_marks) {
            return Err(Nonsense);
        }
        if ahead > 1 {
            return Ok(Turn::Later);
        }
        let tx_bytes = self.tx.map_or(0, Block::bytes) as u64;
        let is_there = (self.tx_tail..=tail).contains(&at) && at - self.tx_head <= tx_bytes;
        if !is_there {
            return Err(Nonsense);
        }
        self.tx_marks = mark;
        self.tx_tail = at;
        self.look()?;
        Ok(Turn::Now)
    }

    /// Reports whether counted marks are missing: no byte behind them is taken until they arrive.
    pub fn lacks_marks(&self) -> bool {
        self.record().get(TX_MARKS) as u32 != self.tx_marks
    }

    /// Lets the application queue `bytes` more file bytes.
    pub fn add_file_credit(&mut self, bytes: u64) {
        self.file_limit = self.file_limit.saturating_add(bytes);
        self.record().set_release(FILE_LIMIT, self.file_limit);
        self.unblock(true);
    }

    /// Accounts file bytes queued by a SendFile; fails beyond the limit.
    pub fn queue_file(&mut self, bytes: u64) -> Result<(), Nonsense> {
        let queued = self.file_queued.checked_add(bytes).ok_or(Nonsense)?;
        if queued > self.file_limit {
            return Err(Nonsense);
        }
        self.file_queued = queued;
        Ok(())
    }

    /// Returns the file bytes that may still be queued.
    pub fn file_credit_bytes(&self) -> u64 {
        self.file_limit - self.file_queued
    }

    /// Returns the capacity of the accept queue, in entries.
    pub fn accept_queue_max(&self) -> usize {
        let queue = self.rx.filter(|_| self.flags.has(Flags::LISTENER));
        queue.map_or(0, |block| block.bytes() / size_of::<u64>())
    }

    /// Returns the number of entries in the accept queue at the last look.
    pub fn accept_waiting(&self) -> usize {
        (self.accept_tail - self.accept_head) as usize
    }

    /// Puts a connection into the accept queue. Its record must be complete.
    pub fn accept_push(&mut self, connection: SocketId) -> Result<(), QueueFull> {
        if self.accept_waiting() >= self.accept_queue_max() {
            return Err(QueueFull);
        }
        let mask = self.accept_queue_max() as u64 - 1;
        let queue = self.rx.and_then(|block| self.segment.block(block));
        let queue = queue.expect("the host stack allocates in the area");
        let place = (self.accept_tail & mask) as usize;
        queue[place].store(connection.to_raw(), Ordering::Relaxed);
        self.accept_tail += 1;
        self.record().set_release(ACCEPT_TAIL, self.accept_tail);
        self.queue.push_back(connection);
        self.bump_edge();
        Ok(())
    }

    /// Returns the oldest connection that was taken out of the accept queue before the last look,
    /// and that was not returned here before.
    pub fn accept_taken(&mut self) -> Option<SocketId> {
        if self.queue.len() > self.accept_waiting() {
            self.queue.pop_front()
        } else {
            None
        }
    }

    /// Returns the connections in the accept queue, which are reset when the listener closes.
    pub fn accept_waiting_ids(&self) -> impl Iterator<Item = SocketId> + '_ {
        self.queue.iter().copied()
    }

    /// Returns the receivers of Ready after all changes of a turn; none if there were no changes. A
    /// process that has requested a hint since the last change has seen the change.
    pub fn take_wanted(&mut self) -> Wanted {
        if std::mem::take(&mut self.is_untold) {
            self.record().take_wanted()
        } else {
            Wanted::None
        }
    }

    /// Returns the values that readiness depends on, as for an application that has read all
    /// errors.
    pub fn state(&self) -> Look {
        let is_listener = self.flags.has(Flags::LISTENER);
        Look {
            flags: self.flags,
            error_is_new: false,
            waiting: self.held
                + if is_listener {
                    self.accept_waiting() as u64
                } else {
                    self.rx_unread_bytes() as u64
                },
            rx_lowat: 1,
            unsent_bytes: self.tx_waiting_bytes() as u64,
            tx_bytes: match (self.tx.map_or(0, Block::bytes) as u64, self.tx_limit) {
                (bytes, 0) => bytes,
                (bytes, limit) => bytes.min(limit),
            },
            is_file_blocked: self.file_limit > 0 && self.file_credit_bytes() == 0,
            splice_is_new: false,
            spliced_bytes: 0,
            seems_copied: false,
        }
    }

    /// Returns the file bytes that the application claims to have queued: not to be relied on.
    pub fn file_queued_by_app(&self) -> u64 {
        self.record().get(FILE_QUEUED)
    }

    /// Ends the socket: processes with its ID find no socket from now on. Its blocks are to be
    /// freed, and waiting processes get a last Ready.
    pub fn retire(mut self) -> Retired {
        self.record().set_release(STATE, 0);
        self.bump_edge();
        Retired {
            blocks: [self.rx, self.tx],
            wanted: self.record().take_wanted(),
        }
    }
}
