//! A socket as a process of the application sees it.
//!
//! Processes and threads may share it, so all state is in the record; the locks serialise readers,
//! and writers. Values written by the host stack are checked as well: calls return, even if the
//! segment is corrupt.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use shm::sync::{Ordering, fence};

use crate::fifo::Fifo;
use crate::fifo_area::FIFO_BYTES_USUAL;
use crate::ids::{ChannelId, SocketId};
use crate::message::SocketOption;
use crate::record::{
    ACCEPT_HEAD, ACCEPT_TAIL, ACK_ALARM, ACKED, APP_FLAGS, DISCONNECTS, EDGE, ERROR, ERROR_TAKEN,
    FILE_LIMIT, FILE_META, FILE_QUEUED, FileMeta, Flags, HELD, LOCAL, Look, MORE_ENDS_WITH_MARK,
    NEVER, Nonsense, OPTION_WORDS, OPTIONS, PEER, RX_ALARM, RX_FIFO, RX_HEAD, RX_LOCK, RX_LOWAT,
    RX_TAIL, Record, SPLICE, SPLICE_IN, SPLICE_OUT, SPLICE_SEEN, SPLICE_TAKEN, SPLICE_WANTED_BACK,
    STATE, SpliceState, TX_BLOCKED, TX_FIFO, TX_HEAD, TX_LIMIT, TX_LOCK, TX_MARKS, TX_MAX, TX_MORE,
    TX_TAIL, address_from_words, option_from_words, splice_from_word,
};
use crate::segment::{Block, Segment};

/// Bytes that a write may take at once although the tx FIFO's limit leaves less room.
const TX_STEP_BYTES: u64 = 4096;

/// Reason why a socket cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The host stack has ended it; another socket may have its place.
    Stale,
    /// Its record is invalid.
    Nonsense,
    /// The socket is part of a splice: a NIC stack moves its bytes.
    Spliced,
    /// Its memory cannot be mapped within the address space that this process may have.
    NoMemory,
    /// The socket has no tx FIFO; a Room command allocates one.
    NoFifo,
}

/// Returns why a part of a segment is missing.
fn missing(segment: &Segment) -> Unusable {
    if segment.is_short_of_memory() {
        Unusable::NoMemory
    } else {
        Unusable::Nonsense
    }
}

/// A lock of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// For readers.
    Rx,
    /// For writers.
    Tx,
}

impl Lock {
    fn word(self) -> usize {
        match self {
            Lock::Rx => RX_LOCK,
            Lock::Tx => TX_LOCK,
        }
    }
}

/// See the [module documentation](self).
#[derive(Clone, Copy, Debug)]
pub struct AppRecord<'a> {
    segment: &'a Segment,
    record: Record<'a>,
    index: u32,
    generation: u32,
}

impl<'a> AppRecord<'a> {
    /// Returns the record of a socket; [`Unusable::Nonsense`] if the segment has no such place.
    pub fn of(segment: &'a Segment, id: SocketId) -> Result<AppRecord<'a>, Unusable> {
        let record = segment.record(id).ok_or_else(|| missing(segment))?;
        Ok(AppRecord {
            segment,
            record,
            index: id.index,
            generation: id.generation,
        })
    }

    /// Returns the socket's ID.
    pub fn id(&self) -> SocketId {
        SocketId {
            index: self.index,
            generation: self.generation,
        }
    }

    /// Returns the state.
    pub fn flags(&self) -> Result<Flags, Unusable> {
        let state = self.record.get_acquire(STATE);
        if (state >> 32) as u32 == self.generation {
            Ok(Flags(state as u32))
        } else {
            Err(Unusable::Stale)
        }
    }

    /// Checks that the application may move bytes of the stream, or end it. The result holds as
    /// long as the caller has the lock of that direction.
    pub fn may_move(&self) -> Result<(), Unusable> {
        let flags = self.flags()?;
        if flags.has(Flags::SPLICED) && !flags.is_over() {
            return Err(Unusable::Spliced);
        }
        Ok(())
    }

    /// Returns the values that readiness depends on. If a writer finds too little room, the edge
    /// grows when there is some.
    pub fn look(&self) -> Result<Look, Unusable> {
        let look = self.look_once()?;
        if look.is_blocked() {
            self.await_room();
            return self.look_once();
        }
        Ok(look)
    }

    fn look_once(&self) -> Result<Look, Unusable> {
        // The state comes first, so that all earlier writes of the host are visible.
        let flags = self.flags()?;
        let record = self.record;
        let (waiting, rx_lowat) = if flags.has(Flags::LISTENER) {
            let head = record.get_acquire(ACCEPT_HEAD);
            (record.get_acquire(ACCEPT_TAIL).saturating_sub(head), 1)
        } else {
            let head = record.get_acquire(RX_HEAD);
            let waiting = record.get_acquire(RX_TAIL).saturating_sub(head);
            (waiting, self.rx_lowat())
        };
        let tx = Block::from_raw(record.get(TX_FIFO));
        let tx_tail = record.get_acquire(TX_TAIL);
        Ok(Look {
            flags,
            error_is_new: (record.get_acquire(ERROR) >> 32) != record.get(ERROR_TAKEN),
            waiting: waiting.saturating_add(record.get_acquire(HELD)),
            rx_lowat,
            unsent_bytes: tx_tail.saturating_sub(record.get_acquire(TX_HEAD)),
            tx_bytes: self.tx_limit_bytes(tx.map_or(0, Block::bytes) as u64),
            is_file_blocked: record.get(FILE_LIMIT) > 0 && self.file_credit_bytes() == 0,
            splice_is_new: record.get_acquire(SPLICE) >> 32 != record.get(SPLICE_SEEN),
            spliced_bytes: self.spliced_bytes(),
            seems_copied: self.seems_copied(),
        })
    }

    /// Returns the number of bytes from which the socket is readable: at most half of the FIFO, so
    /// that it is reachable.
    fn rx_lowat(&self) -> u64 {
        let wanted = self.record.get(RX_LOWAT);
        if wanted <= 1 {
            return 1;
        }
        let rx = Block::from_raw(self.record.get(RX_FIFO));
        let most = rx.map_or(0, Block::bytes) as u64 / 2;
        wanted.min(most).max(1)
    }

    /// Returns `SO_RCVLOWAT` as it was set; 0 if it was not.
    pub fn wanted_rx_lowat(&self) -> u64 {
        self.record.get(RX_LOWAT)
    }

    /// Sets `SO_RCVLOWAT`.
    pub fn set_rx_lowat(&self, bytes: u64) {
        self.record.set(RX_LOWAT, bytes);
    }

    /// Announces that a writer waits for room, or for file credit. The caller must check again
    /// after it.
    pub fn await_room(&self) {
        if self.record.get(TX_BLOCKED) == 0 {
            self.record.set(TX_BLOCKED, 1);
        }
        fence(Ordering::SeqCst);
    }

    /// Returns the edge, which grows with each change by the host stack that affects readiness,
    /// except room without a waiting writer: for edge-triggered waiters.
    pub fn edge(&self) -> u64 {
        self.record.get_acquire(EDGE)
    }

    /// Requests a Ready to this channel at the next change. Returns false if the record has changed
    /// since [`AppRecord::edge`] returned `before`, which the caller read ahead of its last look:
    /// it must look again instead of sleeping.
    pub fn want(&self, channel: ChannelId, before: u64) -> bool {
        self.record.want(channel);
        self.edge() == before && self.flags().is_ok()
    }

    fn fifo(&self, at: usize) -> Result<Fifo<'a>, Unusable> {
        let block = Block::from_raw(self.record.get(at)).ok_or(Unusable::Nonsense)?;
        let words = self.segment.block(block);
        let words = words.ok_or_else(|| missing(self.segment))?;
        Fifo::new(words).ok_or(Unusable::Nonsense)
    }

    /// Reads from the rx FIFO without consuming; returns the number of bytes. The caller has the
    /// lock.
    pub fn peek(&self, bytes: &mut [u8]) -> Result<usize, Unusable> {
        self.rx_get(bytes).map(|(len, _)| len)
    }

    fn rx_get(&self, bytes: &mut [u8]) -> Result<(usize, u64), Unusable> {
        self.may_move()?;
        let head = self.record.get_acquire(RX_HEAD);
        let tail = self.record.get_acquire(RX_TAIL);
        if head == tail {
            return Ok((0, head));
        }
        let fifo = self.fifo(RX_FIFO)?;
        let waiting = tail.checked_sub(head).filter(|len| *len <= fifo.bytes());
        let waiting = waiting.ok_or(Unusable::Nonsense)?;
        let len = bytes.len().min(waiting as usize);
        fifo.get(head, &mut bytes[..len]);
        Ok((len, head))
    }

    /// Reads from the rx FIFO; returns the number of bytes, 0 if it is empty. The caller has the
    /// lock, and calls [`AppRecord::rx_must_kick`] afterwards.
    pub fn read(&self, bytes: &mut [u8]) -> Result<usize, Unusable> {
        let (len, head) = self.rx_get(bytes)?;
        self.record
            .set_release(RX_HEAD, head.wrapping_add(len as u64));
        Ok(len)
    }

    /// Drops bytes of the rx FIFO unread, for `MSG_TRUNC`; returns their number.
    pub fn discard(&self, bytes: usize) -> Result<usize, Unusable> {
        self.may_move()?;
        let head = self.record.get_acquire(RX_HEAD);
        let waiting = self.record.get_acquire(RX_TAIL).checked_sub(head);
        let waiting = waiting.ok_or(Unusable::Nonsense)?;
        let len = waiting.min(bytes as u64);
        self.record.set_release(RX_HEAD, head + len);
        Ok(len as usize)
    }

    /// Reports whether the caller must send a Kick after `len` bytes were read, because the host
    /// stack waits for room.
    pub fn rx_must_kick(&self, len: usize) -> bool {
        fence(Ordering::SeqCst);
        let alarm = self.record.get(RX_ALARM);
        let head = self.record.get(RX_HEAD);
        let passes = alarm != NEVER && head.wrapping_sub(len as u64) <= alarm && alarm < head;
        passes && self.record.kick()
    }

    /// Returns the room in the tx FIFO, in bytes.
    pub fn tx_room_bytes(&self) -> Result<usize, Unusable> {
        self.tx_room().map(|(room, ..)| room)
    }

    /// Returns the usable size of the tx FIFO, in bytes.
    fn tx_limit_bytes(&self, fifo_bytes: u64) -> u64 {
        match self.record.get(TX_LIMIT) {
            0 => fifo_bytes,
            limit => limit.min(fifo_bytes),
        }
    }

    fn tx_room(&self) -> Result<(usize, u64, Fifo<'a>), Unusable> {
        let (room, tail, fifo) = self.tx_free()?;
        let queued = fifo.bytes() - room as u64;
        let room = match self.tx_limit_bytes(fifo.bytes()).checked_sub(queued) {
            None | Some(0) => 0,
            // As in Linux, the limit is checked before a buffer is filled, not within it.
            Some(wanted) => wanted.max(TX_STEP_BYTES).min(room as u64) as usize,
        };
        Ok((room, tail, fifo))
    }

    /// Returns the free bytes of the tx FIFO, regardless of its limit.
    fn tx_free(&self) -> Result<(usize, u64, Fifo<'a>), Unusable> {
        self.may_move()?;
        if self.record.get(TX_FIFO) == 0 {
            return Err(Unusable::NoFifo);
        }
        let fifo = self.fifo(TX_FIFO)?;
        let tail = self.record.get_acquire(TX_TAIL);
        let head = self.record.get_acquire(TX_HEAD);
        let queued = tail.checked_sub(head).ok_or(Unusable::Nonsense)?;
        let free = fifo.bytes().checked_sub(queued).ok_or(Unusable::Nonsense)?;
        Ok((free as usize, tail, fifo))
    }

    /// Writes into the tx FIFO as far as there is room; returns the number of bytes, or
    /// [`Unusable::NoFifo`]. The caller has the lock, and calls [`AppRecord::must_kick`]
    /// afterwards.
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Unusable> {
        self.write_in_room(bytes, false)
    }

    /// Writes, and announces that more follows soon: a partial segment may wait for it.
    pub fn write_with_more(&self, bytes: &[u8]) -> Result<usize, Unusable> {
        self.write_in_room(bytes, true)
    }

    fn write_in_room(&self, bytes: &[u8], has_more: bool) -> Result<usize, Unusable> {
        let (mut room, tail, fifo) = self.tx_room()?;
        if room < bytes.len() {
            self.await_room();
            (room, ..) = self.tx_room()?;
        }
        let bytes = &bytes[..bytes.len().min(room)];
        Ok(self.put(tail, fifo, bytes, has_more))
    }

    /// Writes bytes of other writers, as [`AppRecord::write`] does, or with `has_more` as
    /// [`AppRecord::write_with_more`]; but ignores the FIFO's limit.
    pub fn fill(&self, bytes: &[u8], has_more: bool) -> Result<usize, Unusable> {
        let (free, tail, fifo) = self.tx_free()?;
        let bytes = &bytes[..bytes.len().min(free)];
        Ok(self.put(tail, fifo, bytes, has_more))
    }

    fn put(&self, tail: u64, fifo: Fifo<'_>, bytes: &[u8], has_more: bool) -> usize {
        fifo.put(tail, bytes);
        let tail = tail.wrapping_add(bytes.len() as u64);
        // An empty write must not change the announcement of earlier writers.
        if has_more && !bytes.is_empty() {
            self.record.set(TX_MORE, tail);
        }
        self.record.set_release(TX_TAIL, tail);
        bytes.len()
    }

    /// Announces that the last mark is all that [`AppRecord::write_with_more`] has promised. The
    /// caller has the lock, and has not sent the mark's command yet.
    pub fn end_more_with_mark(&self) {
        let more = self.record.get(TX_MORE);
        if more != 0 && more == self.record.get(TX_TAIL) {
            self.record.set(TX_MORE, more | MORE_ENDS_WITH_MARK);
        }
    }

    /// Withdraws any announcement that more follows. The caller has the lock.
    pub fn end_more(&self) {
        self.record.set(TX_MORE, 0);
    }

    /// Adds a mark at the end of the tx FIFO; returns its number and position for a SendFile or a
    /// Shutdown. The caller has the lock for writing, and sends the command before it unlocks.
    pub fn mark(&self) -> (u32, u64) {
        let mark = (self.record.get(TX_MARKS) as u32).wrapping_add(1);
        self.record.set_release(TX_MARKS, mark.into());
        (mark, self.record.get_acquire(TX_TAIL))
    }

    /// Returns the position up to which the host stack has taken the tx FIFO. The edge does not
    /// reflect it except after [`AppRecord::await_room`].
    pub fn tx_head(&self) -> u64 {
        self.record.get_acquire(TX_HEAD)
    }

    /// Returns the position up to which the rx FIFO has been read.
    pub fn rx_head(&self) -> u64 {
        self.record.get_acquire(RX_HEAD)
    }

    /// Returns the position up to which the tx FIFO is filled.
    pub fn tx_tail(&self) -> u64 {
        self.record.get_acquire(TX_TAIL)
    }

    /// Reports whether the caller must send a Kick after a write, because none is on its way.
    pub fn must_kick(&self) -> bool {
        self.record.kick()
    }

    /// Returns the file bytes that may be queued now.
    pub fn file_credit_bytes(&self) -> u64 {
        let limit = self.record.get_acquire(FILE_LIMIT);
        limit.saturating_sub(self.record.get(FILE_QUEUED))
    }

    /// Accounts file bytes before their SendFile, at most `bytes` and the credit; returns their
    /// number. The caller has the lock for writing.
    pub fn queue_file(&self, bytes: u64) -> u64 {
        let mut credit = self.file_credit_bytes();
        if credit < bytes {
            self.await_room();
            credit = self.file_credit_bytes();
        }
        let len = bytes.min(credit);
        let queued = self.record.get(FILE_QUEUED);
        self.record.set(FILE_QUEUED, queued.wrapping_add(len));
        len
    }

    /// Returns the file bytes queued since the socket was made.
    pub fn file_queued_bytes(&self) -> u64 {
        self.record.get(FILE_QUEUED)
    }

    /// Takes a connection out of the accept queue. Processes and threads may race; each connection
    /// goes to one. The taker sends Accept.
    pub fn accept(&self) -> Result<Option<SocketId>, Unusable> {
        if !self.flags()?.has(Flags::LISTENER) {
            return Err(Unusable::Nonsense);
        }
        let block = Block::from_raw(self.record.get(RX_FIFO)).ok_or(Unusable::Nonsense)?;
        let queue = self.segment.block(block);
        let queue = queue.ok_or_else(|| missing(self.segment))?;
        let word = self.record.word(ACCEPT_HEAD);
        let mut head = self.record.get_acquire(ACCEPT_HEAD);
        loop {
            let tail = self.record.get_acquire(ACCEPT_TAIL);
            let waiting = tail.checked_sub(head).ok_or(Unusable::Nonsense)?;
            if waiting == 0 {
                return Ok(None);
            }
            // A block's size is a power of two. The host stack overwrites the entry only after the
            // head has passed it, and then the exchange fails.
            let place = head as usize & (queue.len() - 1);
            let entry = queue[place].load(Ordering::Relaxed);
            match word.compare_exchange(head, head + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    return SocketId::from_raw(entry)
                        .map(Some)
                        .ok_or(Unusable::Nonsense);
                }
                Err(now) => head = now,
            }
        }
    }

    /// Returns and clears the unreported error (`SO_ERROR`): an `errno`, 0 if there is none.
    pub fn take_error(&self) -> u32 {
        let error = self.record.get_acquire(ERROR);
        let number = error >> 32;
        if self.record.word(ERROR_TAKEN).swap(number, Ordering::AcqRel) == number {
            return 0;
        }
        error as u32
    }

    /// Returns the last error, reported or not: an `errno`, 0 if there was none.
    pub fn last_error(&self) -> u32 {
        self.record.get_acquire(ERROR) as u32
    }

    /// Returns the state of its last splice, and marks it as reported.
    pub fn take_splice(&self) -> Result<SpliceState, Unusable> {
        let state = self.splice()?;
        let news = self.record.get_acquire(SPLICE) >> 32;
        self.record.set(SPLICE_SEEN, news);
        Ok(state)
    }

    /// Returns the state of its last splice.
    pub fn splice(&self) -> Result<SpliceState, Unusable> {
        self.flags()?;
        let record = self.record;
        loop {
            let word = record.get_acquire(SPLICE);
            let (in_bytes, out_bytes) = (
                record.get_acquire(SPLICE_IN),
                record.get_acquire(SPLICE_OUT),
            );
            // The counts belong to this stage only if the word is unchanged.
            if record.get_acquire(SPLICE) == word {
                let (stage, errno) = splice_from_word(word).ok_or(Unusable::Nonsense)?;
                return Ok(SpliceState {
                    stage,
                    errno,
                    in_bytes,
                    out_bytes,
                });
            }
        }
    }

    /// Turns accounting of bytes for the next splice on or off.
    pub fn take_note_of_splice(&self, takes: bool) {
        self.record.set_release(SPLICE_TAKEN, takes.into());
    }

    /// Reports whether the application accounts for the bytes of its last splice.
    pub fn takes_note_of_splice(&self) -> bool {
        self.record.get_acquire(SPLICE_TAKEN) > 0
    }

    /// Reports whether the application acts as if the program moved the bytes of its splice.
    fn seems_copied(&self) -> bool {
        let taken = self.record.get_acquire(SPLICE_TAKEN);
        taken > 0 && taken & SPLICE_WANTED_BACK == 0
    }

    /// Requests the connection's return, since the program sends bytes of its own. True the first
    /// time.
    pub fn want_back(&self) -> bool {
        let word = self.record.word(SPLICE_TAKEN);
        word.fetch_or(SPLICE_WANTED_BACK, Ordering::AcqRel) & SPLICE_WANTED_BACK == 0
    }

    /// Returns the bytes that have passed and are not accounted yet.
    fn spliced_bytes(&self) -> u64 {
        let taken = self.record.get_acquire(SPLICE_TAKEN) & !SPLICE_WANTED_BACK;
        taken.checked_sub(1).map_or(0, |taken| {
            self.record.get_acquire(SPLICE_IN).saturating_sub(taken)
        })
    }

    /// Accounts up to `bytes_max` bytes that have passed; returns their number. The caller has the
    /// lock for reading.
    pub fn take_spliced(&self, bytes_max: u64) -> u64 {
        let bytes = self.spliced_bytes().min(bytes_max);
        if bytes > 0 {
            self.record
                .word(SPLICE_TAKEN)
                .fetch_add(bytes, Ordering::AcqRel);
        }
        bytes
    }

    /// Returns the local address.
    pub fn local(&self) -> Option<SocketAddr> {
        address_from_words(self.record.get_all(LOCAL))
    }

    /// Returns the peer's address.
    pub fn peer(&self) -> Option<SocketAddr> {
        address_from_words(self.record.get_all(PEER))
    }

    /// Returns the metadata of an open file; `None` unless [`Flags::FILE_OPEN`].
    pub fn file_meta(&self) -> Result<Option<FileMeta>, Unusable> {
        let is_open = self.flags()?.has(Flags::FILE_OPEN);
        Ok(is_open.then(|| FileMeta::from_words(self.record.get_all(FILE_META))))
    }

    /// Returns the bytes, or connections of a listener, that the host stack holds until a request.
    pub fn held(&self) -> u64 {
        self.record.get_acquire(HELD)
    }

    /// Returns the value of an option, if the record has it.
    pub fn option(&self, option: SocketOption) -> Option<u64> {
        option_from_words(self.record.get_all(OPTIONS), option)
    }

    /// Returns the bytes of the stream that the peer has acknowledged.
    pub fn acked_bytes(&self) -> u64 {
        self.record.get_acquire(ACKED)
    }

    /// Reports whether the peer has acknowledged the stream up to a position. If not, the edge will
    /// grow when it has, or at the earlier position of another waiter.
    pub fn await_acked(&self, position: u64) -> bool {
        if self.acked_bytes() >= position {
            return true;
        }
        let word = self.record.word(ACK_ALARM);
        let mut alarm = self.record.get(ACK_ALARM);
        while alarm == 0 || alarm > position {
            match word.compare_exchange(alarm, position, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => alarm = now,
            }
        }
        fence(Ordering::SeqCst);
        self.acked_bytes() >= position
    }

    /// Returns the number of disconnects. Read after a position, it shows whether the position
    /// belongs to an earlier connection.
    pub fn disconnects(&self) -> u64 {
        self.record.get_acquire(DISCONNECTS)
    }

    /// Returns the size of the rx FIFO, or of the accept queue, in bytes; 0 if there is none.
    pub fn rx_bytes(&self) -> usize {
        let block = Block::from_raw(self.record.get(RX_FIFO));
        block.map_or(0, Block::bytes)
    }

    /// Returns the size of the tx FIFO, in bytes; 0 if there is none.
    pub fn tx_bytes(&self) -> usize {
        let block = Block::from_raw(self.record.get(TX_FIFO));
        block.map_or(0, Block::bytes)
    }

    /// Reports whether the segment is mapped in parts.
    pub fn is_in_parts(&self) -> bool {
        self.segment.is_in_parts()
    }

    /// Reports whether a Room can make the tx FIFO grow. In a segment mapped in parts it grows to
    /// the usual size only: a larger FIFO would stay mapped.
    pub fn tx_may_grow(&self) -> bool {
        let bytes = self.tx_bytes();
        self.record.get(TX_MAX) > bytes as u64
            && self.record.get(TX_LIMIT) == 0
            && (bytes < FIFO_BYTES_USUAL || !self.segment.is_in_parts())
    }

    /// Returns the limit of the tx FIFO, in bytes; `None`: its size.
    pub fn tx_limit(&self) -> Option<u64> {
        Some(self.record.get(TX_LIMIT)).filter(|limit| *limit > 0)
    }

    /// Returns the words of the options, for
    /// [`HostRecord::set_option_words`](crate::HostRecord::set_option_words) of another record.
    pub fn option_words(&self) -> [u64; OPTION_WORDS] {
        self.record.get_all(OPTIONS)
    }

    /// Returns the limit of file bytes queued since the socket was made.
    pub fn file_limit_bytes(&self) -> u64 {
        self.record.get_acquire(FILE_LIMIT)
    }

    /// Returns the bytes in the rx FIFO: `SIOCINQ`.
    pub fn rx_waiting_bytes(&self) -> u64 {
        let head = self.record.get_acquire(RX_HEAD);
        self.record.get_acquire(RX_TAIL).saturating_sub(head)
    }

    /// Takes a lock for a thread. The error is the thread that has it, which may be dead (see
    /// [`AppRecord::take_over`]), or [`LOCKED_BY_HOST`](crate::record::LOCKED_BY_HOST). Not
    /// recursive.
    pub fn try_lock(&self, lock: Lock, thread: NonZeroU32) -> Result<(), u32> {
        let word = self.record.word(lock.word());
        let own = u64::from(thread.get());
        match word.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(owner) => Err(owner as u32),
        }
    }

    /// Releases a lock; no effect if the thread does not have it.
    pub fn unlock(&self, lock: Lock, thread: NonZeroU32) {
        let word = self.record.word(lock.word());
        let own = u64::from(thread.get());
        let _ = word.compare_exchange(own, 0, Ordering::Release, Ordering::Relaxed);
    }

    /// Takes the lock of a dead thread; false if another was faster. The state is consistent: an
    /// index moves in one step, after the data that it covers.
    pub fn take_over(&self, lock: Lock, dead: u32, thread: NonZeroU32) -> bool {
        let word = self.record.word(lock.word());
        let (dead, own) = (u64::from(dead), u64::from(thread.get()));
        word.compare_exchange(dead, own, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Returns a word of this socket for communication between the application's processes; 0 in a
    /// new socket.
    pub fn app_flags(&self) -> &'a shm::sync::AtomicU64 {
        self.record.word(APP_FLAGS)
    }
}

impl From<Nonsense> for Unusable {
    fn from(_: Nonsense) -> Self {
        Unusable::Nonsense
    }
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unusable::Stale => f.write_str("the host stack has ended the socket"),
            Unusable::Nonsense => Nonsense.fmt(f),
            Unusable::Spliced => f.write_str("a NIC stack moves the bytes of the socket"),
            Unusable::NoMemory => f.write_str("its memory exceeds the limit of address space"),
            Unusable::NoFifo => f.write_str("the socket has no memory for bytes to send yet"),
        }
    }
}

impl std::error::Error for Unusable {}
