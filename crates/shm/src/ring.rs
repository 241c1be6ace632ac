//! Single-producer single-consumer ring in shared memory.
//!
//! A ring is a sequence of 64-bit words:
//!
//! | Words | Written by | What |
//! |---|---|---|
//! | 0 | producer | `tail`: words published so far |
//! | 1 | producer | `room_alarm`: wake the producer when `head` passes this |
//! | 2 | producer | `heartbeat`: the number of the last heartbeat asked for |
//! | 16 | consumer | `head`: words consumed so far |
//! | 17 | consumer | `message_alarm`: wake the consumer when `tail` passes this |
//! | 18 | consumer | `answered`: the last heartbeat that the consumer has answered |
//! | 32… | producer | the messages: word `i` of the stream at `32 + i % capacity` |
//!
//! A message is one word with its length in bytes, then the message, padded to a whole word. It may
//! wrap from the end of the ring to its beginning. `head` and `tail` only grow, and do not wrap
//! within the life of a machine. The two sides' words lie in cache lines of their own, two apart,
//! because processors fetch lines in pairs; each side works on a copy of the other's index and
//! looks again only when that runs out.
//!
//! # Batches
//!
//! [`Producer::write`] is invisible to the peer until [`Producer::publish`]. [`Consumer::read`]
//! likewise gives room back in batches, with [`Consumer::release`].
//!
//! # Sleep
//!
//! Before it sleeps, a side sets its alarm to the index at which it wants to be woken, and then
//! looks at the other's index once more. The other side moves its index, and then looks at the
//! alarm. A sequentially consistent fence between the two steps, on both sides, makes it impossible
//! that both look too early. An alarm rings at most once, because an index passes it at most once:
//! a peer that is awake costs no system call. This is the event index of VIRTIO 1.2 §2.7.10. How a
//! side is woken is not the ring's business: `publish` and `release` return true when it must be.
//!
//! A zeroed ring is empty, with both alarms set to ring at the first message.
//!
//! # Heartbeat
//!
//! The producer asks for a heartbeat with a new number and wakes the consumer, which copies the
//! number in its next round. Neither needs room in the ring, so a consumer that leaves messages
//! where they are answers as well. A consumer that stands still does not.
//!
//! # Trust
//!
//! The peer may write anything anywhere at any time. Indices and lengths are checked before use,
//! and a message is copied out before it is read. A broken ring is [`Corrupt`].

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;

use zeroize::Zeroize;

use crate::memory::{Memory, WORD_BYTES};
use crate::sync::{Arc, AtomicU64, Ordering, fence};

const TAIL: usize = 0;
const ROOM_ALARM: usize = 1;
const HEARTBEAT: usize = 2;
const HEAD: usize = 16;
const MESSAGE_ALARM: usize = 17;
const ANSWERED: usize = 18;
const DATA: usize = 32;

/// Heartbeats that a consumer may miss before its first answer: it gets its memory then.
pub const HEARTBEATS_STARTING_MAX: u32 = 24;

/// No index ever passes this.
const NEVER: u64 = u64::MAX;

/// The ring has no room for the message now. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The ring's indices or lengths are invalid: the peer is broken, the ring is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Returns the words of a ring with the given capacity in bytes.
pub const fn ring_words(capacity_bytes: usize) -> usize {
    DATA + capacity_bytes / WORD_BYTES
}

/// Returns both ends of a ring that lies at word `base` of a memory.
///
/// `capacity_bytes` must be a power of two and hold two of the longest messages: both are constants
/// of the caller, never values read.
pub fn ring(
    memory: &Arc<Memory>,
    base: usize,
    capacity_bytes: usize,
    message_bytes_max: usize,
) -> (Producer, Consumer) {
    let capacity = (capacity_bytes / WORD_BYTES) as u64;
    let frame_words_max = frame_words(message_bytes_max);
    assert!(capacity.is_power_of_two() && 2 * frame_words_max <= capacity);
    assert!(base + ring_words(capacity_bytes) <= memory.words().len());
    let shared = Shared {
        memory: memory.clone(),
        base,
        capacity,
    };
    let producer = Producer {
        shared: shared.clone(),
        frame_words_max,
        tail: 0,
        published: 0,
        head: 0,
        starved: false,
        corrupt: false,
        heartbeat: 0,
        missed: 0,
        has_answered: false,
    };
    let consumer = Consumer {
        shared,
        head: 0,
        released: 0,
        tail: 0,
        copy: vec![0; message_bytes_max.next_multiple_of(WORD_BYTES)].into_boxed_slice(),
        copied: 0,
        erase_copy: false,
        message_bytes_max,
        answered: 0,
    };
    (producer, consumer)
}

/// Returns the least capacity, in bytes, of a ring for messages up to that length: room for two.
pub const fn capacity_bytes_min(message_bytes_max: usize) -> usize {
    (2 * frame_words(message_bytes_max) as usize * WORD_BYTES).next_power_of_two()
}

/// Returns the words of a message, including its length.
const fn frame_words(message_bytes: usize) -> u64 {
    1 + message_bytes.div_ceil(WORD_BYTES) as u64
}

/// True if the alarm rings when an index goes from `from` to `to`.
fn passes(alarm: u64, from: u64, to: u64) -> bool {
    from <= alarm && alarm < to
}

#[derive(Clone)]
struct Shared {
    memory: Arc<Memory>,
    base: usize,
    capacity: u64,
}

impl Shared {
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.memory.words()[self.base + index]
    }

    fn data(&self) -> Data<'_> {
        let start = self.base + DATA;
        Data(&self.memory.words()[start..start + self.capacity as usize])
    }
}

/// The words of the messages; their number is a power of two.
#[derive(Clone, Copy)]
struct Data<'a>(&'a [AtomicU64]);

impl<'a> Data<'a> {
    fn word(self, position: u64) -> &'a AtomicU64 {
        &self.0[position as usize & (self.0.len() - 1)]
    }

    /// Returns `words` words from `position` on, unless the end of the ring lies between.
    fn run(self, position: u64, words: u64) -> Option<&'a [AtomicU64]> {
        let start = position as usize & (self.0.len() - 1);
        self.0.get(start..start + words as usize)
    }
}

fn put(to: &AtomicU64, word: u64) {
    to.store(word, Ordering::Relaxed);
}

/// Stores all words, four in a step: a compiler does not unroll loops over atomics.
#[inline]
fn put_all(to: &[AtomicU64], words: &[[u8; WORD_BYTES]]) {
    let (to, to_rest) = to.as_chunks::<4>();
    let (words, words_rest) = words.as_chunks::<4>();
    for ([a, b, c, d], words) in to.iter().zip(words) {
        let [w, x, y, z] = words.map(u64::from_ne_bytes);
        put(a, w);
        put(b, x);
        put(c, y);
        put(d, z);
    }
    for (to, word) in to_rest.iter().zip(words_rest) {
        put(to, u64::from_ne_bytes(*word));
    }
}

/// Returns the end of a message, `rest`, which does not fill a word, padded with zeros.
#[inline]
fn last_word(message: &[u8], rest: &[u8]) -> u64 {
    let word = match message.last_chunk() {
        // The bytes before `rest` are shifted out.
        Some(last) => u64::from_le_bytes(*last) >> (8 * (WORD_BYTES - rest.len())),
        None => {
            let mut word = [0; WORD_BYTES];
            word[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(word)
        }
    };
    u64::from_ne_bytes(word.to_le_bytes())
}

/// The writing end.
pub struct Producer {
    shared: Shared,
    frame_words_max: u64,
    /// Words written so far.
    tail: u64,
    /// Words that the peer knows of.
    published: u64,
    /// The peer's head when last looked at.
    head: u64,
    /// The producer waits for room for a message of any length.
    starved: bool,
    corrupt: bool,
    /// The last heartbeat asked for.
    heartbeat: u64,
    /// Heartbeats missed in a row.
    missed: u32,
    /// The consumer has answered a heartbeat.
    has_answered: bool,
}

impl Producer {
    /// True if a message of any length fits now.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        self.fits(self.frame_words_max)
    }

    /// True if there was no room when asked, be it by writing or by [`Producer::has_room`], and a
    /// message of any length has not been found to fit since.
    #[inline]
    pub fn is_starved(&self) -> bool {
        self.starved
    }

    /// True if the peer's index was found to be invalid. The ring is full for ever then.
    #[inline]
    pub fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    /// Writes a message.
    ///
    /// # Panics
    /// If it is longer than the ring's longest.
    #[inline]
    pub fn write(&mut self, message: &[u8]) -> Result<(), Full> {
        self.write_parts(&[], message)
    }

    /// Writes a message that consists of `head` and `tail`, which need not be contiguous.
    ///
    /// # Panics
    /// If it is longer than the ring's longest.
    // So that the words of `head` need not be in memory before.
    #[inline(always)]
    pub fn write_parts<const N: usize>(
        &mut self,
        head: &[[u8; WORD_BYTES]; N],
        tail: &[u8],
    ) -> Result<(), Full> {
        let message_bytes = size_of_val(head) + tail.len();
        let frame = frame_words(message_bytes);
        assert!(
            frame <= self.frame_words_max,
            "a message of {message_bytes} bytes"
        );
        if !self.fits(frame) {
            return Err(Full);
        }
        let data = self.shared.data();
        let (words, rest) = tail.as_chunks();
        let rest = (!rest.is_empty()).then(|| last_word(tail, rest));
        let run = data.run(self.tail, frame).and_then(<[_]>::split_first);
        match run.and_then(|(length, body)| Some((length, body.split_first_chunk::<N>()?))) {
            Some((length, (first, body))) => {
                put(length, message_bytes as u64);
                for (to, word) in first.iter().zip(head) {
                    put(to, u64::from_ne_bytes(*word));
                }
                let (body, last) = body.split_at(words.len());
                put_all(body, words);
                if let (Some(rest), Some(last)) = (rest, last.first()) {
                    put(last, rest);
                }
            }
            None => {
                let words = head.iter().chain(words).copied();
                let words = words.map(u64::from_ne_bytes).chain(rest);
                put(data.word(self.tail), message_bytes as u64);
                for (position, word) in (self.tail + 1..).zip(words) {
                    put(data.word(position), word);
                }
            }
        }
        self.tail += frame;
        Ok(())
    }

    /// Makes the messages written visible. True if the peer must be woken.
    #[must_use]
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.tail == self.published {
            return false;
        }
        let from = std::mem::replace(&mut self.published, self.tail);
        self.shared.word(TAIL).store(self.tail, Ordering::Release);
        fence(Ordering::SeqCst);
        let alarm = self.shared.word(MESSAGE_ALARM).load(Ordering::Relaxed);
        passes(alarm, from, self.tail)
    }

    /// Before sleep: if [`Producer::is_starved`], asks to be woken once there is room for a message
    /// of any length. False if there is already, or never will be: do not sleep.
    pub fn arm(&mut self) -> bool {
        if self.corrupt || !self.starved {
            return !self.corrupt;
        }
        // The peer can consume only published messages; room beyond that never comes.
        debug_assert_eq!(self.tail, self.published, "publish before sleep");
        let head_wanted = (self.tail + self.frame_words_max).saturating_sub(self.shared.capacity);
        self.shared
            .word(ROOM_ALARM)
            .store(head_wanted.saturating_sub(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let still_starved = !self.has_room() && !self.corrupt;
        if !still_starved {
            self.disarm();
        }
        still_starved
    }

    /// Asks for a heartbeat. Returns the number of successive heartbeats that the consumer has not
    /// answered before the next one; before its first answer, only the number beyond
    /// [`HEARTBEATS_STARTING_MAX`]. The consumer must be woken.
    pub fn heartbeat(&mut self) -> u32 {
        let answered = self.shared.word(ANSWERED).load(Ordering::Relaxed);
        if self.heartbeat > 0 {
            let has_answered = answered == self.heartbeat;
            self.has_answered |= has_answered;
            self.missed = if has_answered {
                0
            } else {
                self.missed.saturating_add(1)
            };
        }
        self.heartbeat += 1;
        self.shared
            .word(HEARTBEAT)
            .store(self.heartbeat, Ordering::Relaxed);
        if self.has_answered {
            self.missed
        } else {
            self.missed.saturating_sub(HEARTBEATS_STARTING_MAX)
        }
    }

    /// After sleep: asks not to be woken.
    pub fn disarm(&mut self) {
        self.shared.word(ROOM_ALARM).store(NEVER, Ordering::Relaxed);
    }

    #[inline]
    fn fits(&mut self, words: u64) -> bool {
        let room = |tail: u64, head: u64| self.shared.capacity - (tail - head);
        if room(self.tail, self.head) < words {
            let head = self.shared.word(HEAD).load(Ordering::Acquire);
            // The consumer cannot go back, nor past the published messages.
            if self.corrupt || head < self.head || head > self.published {
                self.corrupt = true;
                return false;
            }
            self.head = head;
        }
        let room = room(self.tail, self.head);
        let fits = room >= words;
        // A short message that fits does not help a producer that waits for room for a long one.
        self.starved = !fits || (self.starved && room < self.frame_words_max);
        fits
    }
}

/// The reading end.
pub struct Consumer {
    shared: Shared,
    /// Words read so far.
    head: u64,
    /// Words that the peer knows to be read.
    released: u64,
    /// The peer's tail when last looked at.
    tail: u64,
    copy: Box<[u8]>,
    /// Length of the message in `copy`.
    copied: usize,
    /// The copy is to be overwritten before the next message comes.
    erase_copy: bool,
    message_bytes_max: usize,
    /// The last heartbeat answered.
    answered: u64,
}

impl Consumer {
    /// Returns the next message, if there is one. It is a private copy: the peer cannot change it
    /// any more.
    #[inline]
    pub fn read(&mut self) -> Result<Option<&[u8]>, Corrupt> {
        if std::mem::take(&mut self.erase_copy) {
            self.copy.zeroize();
        }
        if self.head == self.tail {
            let tail = self.shared.word(TAIL).load(Ordering::Acquire);
            // The producer cannot go back, nor overtake.
            if tail < self.head || tail - self.head > self.shared.capacity {
                return Err(Corrupt);
            }
            self.tail = tail;
            if self.head == self.tail {
                return Ok(None);
            }
        }
        let data = self.shared.data();
        let message_bytes = data.word(self.head).load(Ordering::Relaxed);
        if message_bytes > self.message_bytes_max as u64 {
            return Err(Corrupt);
        }
        let message_bytes = message_bytes as usize;
        let words = frame_words(message_bytes);
        if words > self.tail - self.head {
            return Err(Corrupt);
        }
        let (copy, _) = self.copy.as_chunks_mut();
        let get = |from: &AtomicU64| from.load(Ordering::Relaxed).to_ne_bytes();
        match data.run(self.head, words) {
            Some([_, body @ ..]) => {
                for (from, word) in body.iter().zip(copy) {
                    *word = get(from);
                }
            }
            _ => {
                for (position, word) in (self.head + 1..self.head + words).zip(copy) {
                    *word = get(data.word(position));
                }
            }
        }
        self.head += words;
        self.copied = message_bytes;
        Ok(Some(&self.copy[..message_bytes]))
    }

    /// Returns the end of the messages that the producer has published, for
    /// [`Consumer::has_read_to`]. Not checked: it may lie where no message ever ends.
    pub fn published(&self) -> u64 {
        self.shared.word(TAIL).load(Ordering::Acquire)
    }

    /// True if all messages before `end` have been read, a result of [`Consumer::published`].
    #[inline]
    pub fn has_read_to(&self, end: u64) -> bool {
        self.head >= end
    }

    /// Answers the heartbeat that the producer has asked for last, if there is a new one.
    #[inline]
    pub fn answer_heartbeat(&mut self) {
        let asked = self.shared.word(HEARTBEAT).load(Ordering::Relaxed);
        if asked != self.answered {
            self.answered = asked;
            self.shared.word(ANSWERED).store(asked, Ordering::Relaxed);
        }
    }

    /// Returns the message that was read last.
    #[inline]
    pub fn last(&self) -> &[u8] {
        &self.copy[..self.copied]
    }

    /// Overwrites the message that was read last where it was in shared memory, and its copy with
    /// the next [`Consumer::read`].
    pub fn erase(&mut self) {
        // Its room has not been given back, so the producer does not write there.
        debug_assert!(self.released < self.head, "erase before release");
        let data = self.shared.data();
        let words = frame_words(self.copied) - 1;
        for position in self.head - words..self.head {
            put(data.word(position), 0);
        }
        self.erase_copy = true;
    }

    /// True when it is time to [`Consumer::release`]: an eighth of the ring has been read, or all
    /// messages known to be there.
    #[inline]
    pub fn release_is_due(&self) -> bool {
        let read = self.head - self.released;
        read >= self.shared.capacity / 8 || (read > 0 && self.head == self.tail)
    }

    /// Gives the room of the messages read back. True if the peer must be woken.
    #[must_use]
    #[inline]
    pub fn release(&mut self) -> bool {
        if self.head == self.released {
            return false;
        }
        let from = std::mem::replace(&mut self.released, self.head);
        self.shared.word(HEAD).store(self.head, Ordering::Release);
        fence(Ordering::SeqCst);
        let alarm = self.shared.word(ROOM_ALARM).load(Ordering::Relaxed);
        passes(alarm, from, self.head)
    }

    /// Before sleep: asks to be woken by the next message. False if there is one already: do not
    /// sleep.
    pub fn arm(&mut self) -> bool {
        debug_assert_eq!(self.head, self.released, "release before sleep");
        self.shared
            .word(MESSAGE_ALARM)
            .store(self.head, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let empty = self.shared.word(TAIL).load(Ordering::Acquire) == self.head;
        if !empty {
            self.disarm();
        }
        empty
    }

    /// After sleep: asks not to be woken.
    pub fn disarm(&mut self) {
        self.shared
            .word(MESSAGE_ALARM)
            .store(NEVER, Ordering::Relaxed);
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("tail", &self.tail)
            .field("published", &self.published)
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("head", &self.head)
            .field("released", &self.released)
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ring is full")
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ring's indices make no sense: the peer is broken")
    }
}

impl std::error::Error for Full {}
impl std::error::Error for Corrupt {}
