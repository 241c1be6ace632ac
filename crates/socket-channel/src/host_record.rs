//! A socket as the host stack sees it.
//!
//! It keeps its own copy of all that it has written, and never reads that back. What the
//! application writes is copied before it is looked at, and has to make sense: indices only grow,
//! and never pass what was offered. If it does not, that socket is to be reset, and no other.

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

/// The accept queue has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

/// The application has the lock of a FIFO, or too much is queued in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// What an application has done since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Bytes that it has taken out of the rx FIFO.
    pub rx_taken_bytes: u64,
    /// Bytes that it has put into the tx FIFO.
    pub tx_added_bytes: u64,
    /// Entries that it has taken out of the accept queue.
    pub accepted: u64,
}

/// Whose turn it is among the marks of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// This one's.
    Now,
    /// That of one which has not come yet.
    Later,
}

/// What follows soon on the bytes of a tx FIFO, so that a segment that they do not fill may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// Nothing, as far as is known.
    Nothing,
    /// The marks behind them, and no more.
    Marks,
    /// Something.
    Something,
}

/// What is left of a socket that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// Blocks to be given back.
    pub blocks: [Option<Block>; 2],
    /// Whom to send Ready.
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
    /// How much of the tx FIFO is used, in bytes; 0: all of it.
    tx_limit: u64,
    /// Bytes up to which the tx FIFO grows.
    tx_max: u64,
    file_limit: u64,
    file_queued: u64,
    /// Bytes or connections that are held.
    held: u64,
    /// Marks that have come.
    tx_marks: u32,
    accept_head: u64,
    accept_tail: u64,
    /// What is in the accept queue, for what is there may be overwritten.
    queue: VecDeque<SocketId>,
    errors: u32,
    error: u32,
    edge: u64,
    acked: u64,
    disconnects: u64,
    /// Number of the last news of a splice.
    splice_news: u32,
    /// Bytes that have passed in its splice, in and out.
    spliced: [u64; 2],
    /// Something has changed since the last hint.
    is_untold: bool,
}

impl HostRecord {
    /// Makes a socket of the kind that `flags` names. A stream that has FIFOs has both; the queue
    /// of a listener goes by `rx`.
    ///
    /// # Panics
    /// If the segment has no such place, or a block is not of its area: both are the host's own.
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
        // Until the new state is there, processes that know the old name find none.
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

    /// The name.
    pub fn id(&self) -> SocketId {
        self.id
    }

    /// The state.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// The blocks of rx and tx, to be given back when the socket is no more.
    pub fn blocks(&self) -> [Option<Block>; 2] {
        [self.rx, self.tx]
    }

    /// True if nothing has come to its blocks, as far as was looked.
    pub fn is_unused(&self) -> bool {
        self.rx_tail == 0 && self.tx_tail == 0 && self.accept_tail == 0
    }

    /// Gives blocks to a socket that had none: it is bound before it is a listener or connects.
    /// Before the state that tells of it.
    ///
    /// # Panics
    /// If it had some that were in use.
    pub fn set_blocks(&mut self, rx: Option<Block>, tx: Option<Block>) {
        assert!(self.is_unused(), "blocks in use stay");
        self.rx = rx;
        self.tx = tx;
        let raw = |block: Option<Block>| block.map_or(0, Block::to_raw);
        let words = self.record();
        words.set(RX_FIFO, raw(rx));
        words.set(TX_FIFO, raw(tx));
    }

    /// Has the application fill the tx FIFO with no more than so many bytes; `None`: all of it.
    pub fn limit_tx(&mut self, bytes: Option<u64>) {
        self.tx_limit = bytes.map_or(0, |bytes| bytes.max(1));
        self.record().set(TX_LIMIT, self.tx_limit);
        self.bump_edge();
    }

    /// Puts another rx FIFO, or none, into the place of one that is empty, as far as was looked.
    /// Returns that one, to be given back.
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

    /// Puts another tx FIFO, or none, into the place of the one that there is, with all that is
    /// queued. Returns that one, to be given back; [`Busy`] if a writer has the lock, or more is
    /// queued than the new one holds.
    pub fn replace_tx(&mut self, tx: Option<Block>) -> Result<Option<Block>, Busy> {
        if self.tx.is_none() {
            // No writer has anything to do with it before.
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
        // Also what is behind a mark that has not come.
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

    /// Lets the application ask for a tx FIFO of up to so many bytes.
    pub fn set_tx_max(&mut self, bytes: u64) {
        if bytes != self.tx_max {
            self.tx_max = bytes;
            self.record().set(TX_MAX, bytes);
        }
    }

    /// Bytes up to which the tx FIFO grows.
    pub fn tx_max(&self) -> u64 {
        self.tx_max
    }

    /// True if the tx FIFO has grown as far as it may, and could be larger.
    pub fn tx_is_bounded(&self) -> bool {
        self.tx_max == self.tx_bytes() as u64 && (1..FIFO_BYTES_MAX as u64).contains(&self.tx_max)
    }

    /// True if all of the tx FIFO was taken, and it is larger than usual, or has grown as far as it
    /// may until then.
    pub fn tx_has_grown(&self, usual_bytes: u64) -> bool {
        let bytes = self.tx_bytes() as u64;
        self.tx_max > 0
            && self.tx_head == self.tx_tail
            && (bytes > usual_bytes || bytes == self.tx_max)
    }

    /// Size of the rx FIFO, in bytes; 0 if there is none.
    pub fn rx_bytes(&self) -> usize {
        self.rx.map_or(0, Block::bytes)
    }

    /// Size of the tx FIFO, in bytes; 0 if there is none.
    pub fn tx_bytes(&self) -> usize {
        self.tx.map_or(0, Block::bytes)
    }

    /// Bytes that were put into both FIFOs until the last look.
    pub fn moved_bytes(&self) -> [u64; 2] {
        [self.rx_tail, self.tx_tail]
    }

    /// Makes it a socket that nothing has come to yet, of the kind that `flags` names. Returns the
    /// blocks to be given back. What applies to the socket itself stays: errors, notes of the
    /// application, whom to send Ready.
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
        // Last: who accepts meanwhile compares this one.
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

    /// Sets flags, after all that they tell of.
    pub fn set(&mut self, flags: Flags) {
        self.change(self.flags | flags);
    }

    /// Clears flags.
    pub fn clear(&mut self, flags: Flags) {
        self.change(self.flags - flags);
    }

    /// Clears flags and sets others in one change: the state between would mean another thing.
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

    /// Reports an error, an `errno`, with `flags` for the state that it leads to. It ends the
    /// opening of a connection.
    pub fn fail(&mut self, errno: u32, flags: Flags) {
        // Error number 0 would say that there was none.
        self.errors = self.errors.wrapping_add(1).max(1);
        self.error = errno;
        let error = u64::from(self.errors) << 32 | u64::from(errno);
        self.record().set_release(ERROR, error);
        self.flags = (self.flags - Flags::CONNECTING) | flags;
        self.publish_state();
        self.bump_edge();
    }

    /// Last of all, so that a process that knows the number has seen what it tells of.
    fn bump_edge(&mut self) {
        self.edge += 1;
        self.is_untold = true;
        self.record().set_release(EDGE, self.edge);
    }

    /// Says where this end is. Before the state that tells of it.
    pub fn set_local(&mut self, address: SocketAddr) {
        let words = address_to_words(Some(address));
        self.record().set_all(LOCAL, words);
    }

    /// Says where the peer is. Before the state that tells of it.
    pub fn set_peer(&mut self, address: SocketAddr) {
        let words = address_to_words(Some(address));
        self.record().set_all(PEER, words);
    }

    /// Says what an open file is. Before [`Flags::FILE_OPEN`].
    pub fn set_file_meta(&mut self, meta: FileMeta) {
        self.record().set_all(FILE_META, meta.to_words());
    }

    /// Says what the options are, for those who would ask for them.
    pub fn set_options(&mut self, value: impl Fn(SocketOption) -> u64) {
        self.record().set_all(OPTIONS, options_to_words(value));
    }

    /// Says of the options what another record says.
    pub fn set_option_words(&mut self, words: [u64; OPTION_WORDS]) {
        self.record().set_all(OPTIONS, words);
    }

    /// Says how many bytes, or connections of a listener, are there and handed over when they are
    /// asked for.
    pub fn set_held(&mut self, held: u64) {
        if held != self.held {
            let is_more = held > self.held;
            self.held = held;
            self.record().set_release(HELD, held);
            // Those that were handed over have told of it themselves.
            if is_more {
                self.bump_edge();
            }
        }
    }

    /// Bytes, or connections of a listener, that are held.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Says how much of the stream the peer has acknowledged, in bytes.
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
        // One who writes another meanwhile looks at what was set.
        let word = words.word(ACK_ALARM);
        let _ = word.compare_exchange(alarm, 0, Ordering::Relaxed, Ordering::Relaxed);
        self.bump_edge();
    }

    /// Says how far its splice has come, and why no further: an `errno`, or 0. While it is being
    /// joined that is no news.
    pub fn set_splice(&mut self, stage: SpliceStage, errno: u16) {
        if stage != SpliceStage::Joining {
            self.splice_news = self.splice_news.wrapping_add(1);
        }
        let word = splice_to_word(self.splice_news, stage, errno);
        self.record().set_release(SPLICE, word);
        self.bump_edge();
    }

    /// Says how many bytes have passed in its splice: from its peer, and to it.
    pub fn set_spliced(&mut self, in_bytes: u64, out_bytes: u64) {
        if self.spliced != [in_bytes, out_bytes] {
            self.spliced = [in_bytes, out_bytes];
            self.record().set_release(SPLICE_IN, in_bytes);
            self.record().set_release(SPLICE_OUT, out_bytes);
            self.bump_edge();
        }
    }

    /// Bytes that have passed in its splice: from its peer, and to it.
    pub fn spliced_bytes(&self) -> [u64; 2] {
        self.spliced
    }

    /// Looks at what the application has done. The Kick that led here, if any, is answered.
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
        // After the tail: what is in front of it has been counted.
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

    /// True if a Kick is on its way, as far as is seen: for tests, and to look before it comes.
    pub fn is_kicked(&self) -> bool {
        self.record().get(KICKED) != 0
    }

    /// Room in the rx FIFO at the last look, in bytes.
    pub fn rx_room_bytes(&self) -> usize {
        let bytes = self.rx.map_or(0, Block::bytes);
        bytes - (self.rx_tail - self.rx_head) as usize
    }

    /// Bytes in the rx FIFO at the last look.
    pub fn rx_unread_bytes(&self) -> usize {
        (self.rx_tail - self.rx_head) as usize
    }

    /// Puts bytes into the rx FIFO, as many as there is room for, and tells how many. They are
    /// visible at once.
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

    /// Takes bytes out of the rx FIFO in the application's place, which is not to read meanwhile.
    /// `sink` tells how many of a chunk it takes; if not all, that was the last. Returns how many
    /// bytes were taken.
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

    /// Asks to be kicked once half of the rx FIFO is free. False if it is already: look again
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

    /// Bytes in the tx FIFO at the last look.
    pub fn tx_waiting_bytes(&self) -> usize {
        (self.tx_tail - self.tx_head) as usize
    }

    /// Position up to which the tx FIFO has been taken: total bytes.
    pub fn tx_head(&self) -> u64 {
        self.tx_head
    }

    /// Position up to which the tx FIFO was filled at the last look: total bytes.
    pub fn tx_tail(&self) -> u64 {
        self.tx_tail
    }

    /// Takes bytes out of the tx FIFO, up to the position `until` and in chunks. `sink` tells how
    /// many of a chunk it takes; if not all, that was the last. Returns how many bytes were taken.
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

    /// Tells a writer that waits, if what has come is enough for it.
    fn unblock(&mut self, is_enough: bool) {
        fence(Ordering::SeqCst);
        let words = self.record();
        if is_enough && words.get(TX_BLOCKED) != 0 {
            words.set(TX_BLOCKED, 0);
            self.bump_edge();
        }
    }

    /// What was to follow soon on the last bytes that the tx FIFO had at the last look.
    pub fn more(&self) -> More {
        let more = self.record().get(TX_MORE);
        let position = more & !MORE_ENDS_WITH_MARK;
        if self.tx_tail == 0 || position < self.tx_tail {
            More::Nothing
        } else if position > self.tx_tail {
            // It was written since, and those bytes follow.
            More::Something
        } else if more & MORE_ENDS_WITH_MARK != 0 {
            More::Marks
        } else {
            More::Something
        }
    }

    /// Copies what the tx FIFO has from a position on, and leaves it there. False if not all of it
    /// is there.
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

    /// Gives the room of the tx FIFO up to a position back, for those who copy and keep it. A
    /// position beyond what is there is that.
    pub fn tx_release(&mut self, until: u64) {
        let until = until.min(self.tx_tail);
        if until > self.tx_head {
            self.tx_head = until;
            self.record().set_release(TX_HEAD, self.tx_head);
            self.unblock(!self.state().is_blocked());
        }
    }

    /// Takes the mark that a SendFile or a Shutdown brings: the bytes up to its position are there,
    /// and it is between what was taken and what the application has written. Looks, for the
    /// message may overtake the Kick. A mark whose turn has not come is not looked at: another
    /// process has still to send the one before.
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

    /// True if marks were counted that have not come: no byte behind them is taken until they have.
    pub fn lacks_marks(&self) -> bool {
        self.record().get(TX_MARKS) as u32 != self.tx_marks
    }

    /// Lets the application queue so many file bytes more.
    pub fn add_file_credit(&mut self, bytes: u64) {
        self.file_limit = self.file_limit.saturating_add(bytes);
        self.record().set_release(FILE_LIMIT, self.file_limit);
        self.unblock(true);
    }

    /// Accounts file bytes that a SendFile queues; they must not pass the limit.
    pub fn queue_file(&mut self, bytes: u64) -> Result<(), Nonsense> {
        let queued = self.file_queued.checked_add(bytes).ok_or(Nonsense)?;
        if queued > self.file_limit {
            return Err(Nonsense);
        }
        self.file_queued = queued;
        Ok(())
    }

    /// File bytes that may be queued and are not.
    pub fn file_credit_bytes(&self) -> u64 {
        self.file_limit - self.file_queued
    }

    /// Entries that the accept queue holds.
    pub fn accept_queue_max(&self) -> usize {
        let queue = self.rx.filter(|_| self.flags.has(Flags::LISTENER));
        queue.map_or(0, |block| block.bytes() / size_of::<u64>())
    }

    /// Entries in the accept queue at the last look.
    pub fn accept_waiting(&self) -> usize {
        (self.accept_tail - self.accept_head) as usize
    }

    /// Puts a connection into the accept queue. Its record is complete.
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

    /// A connection that was taken out of the accept queue before the last look, and was not named
    /// here before. The oldest first.
    pub fn accept_taken(&mut self) -> Option<SocketId> {
        if self.queue.len() > self.accept_waiting() {
            self.queue.pop_front()
        } else {
            None
        }
    }

    /// Connections that are still in the accept queue: they are reset when the listener closes.
    pub fn accept_waiting_ids(&self) -> impl Iterator<Item = SocketId> + '_ {
        self.queue.iter().copied()
    }

    /// Whom to send Ready, after all changes of a turn; no one if there were none. Who has asked
    /// since the last change has seen it.
    pub fn take_wanted(&mut self) -> Wanted {
        if std::mem::take(&mut self.is_untold) {
            self.record().take_wanted()
        } else {
            Wanted::None
        }
    }

    /// What readiness depends on, as an application sees it that has read all errors.
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

    /// File bytes that the application says it has queued: not to be relied on.
    pub fn file_queued_by_app(&self) -> u64 {
        self.record().get(FILE_QUEUED)
    }

    /// Ends the socket: processes that know its name find none from now on. Its blocks are to be
    /// given back, and those who wait for it get a last Ready.
    pub fn retire(mut self) -> Retired {
        self.record().set_release(STATE, 0);
        self.bump_edge();
        Retired {
            blocks: [self.rx, self.tx],
            wanted: self.record().take_wanted(),
        }
    }
}
