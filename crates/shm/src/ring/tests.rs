//! The ring in one thread: against a queue as its model, and against a peer that breaks the rules.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::memory::{Memory, WORD_BYTES};
use crate::sync::{Arc, Ordering};

use super::*;

const CAPACITY_BYTES: usize = 1024;
const MESSAGE_BYTES_MAX: usize = 300;

struct Rig {
    memory: Arc<Memory>,
    producer: Producer,
    consumer: Consumer,
}

fn rig() -> Rig {
    let memory = Arc::new(Memory::heap(ring_words(CAPACITY_BYTES)));
    let (producer, consumer) = ring(&memory, 0, CAPACITY_BYTES, MESSAGE_BYTES_MAX);
    Rig {
        memory,
        producer,
        consumer,
    }
}

impl Rig {
    fn write(&mut self, message: &[u8]) -> Result<(), Full> {
        self.producer.write(message)
    }

    fn write_and_publish(&mut self, message: &[u8]) {
        self.write(message).unwrap();
        let _ = self.producer.publish();
    }

    fn read(&mut self) -> Option<Vec<u8>> {
        self.consumer.read().unwrap().map(<[u8]>::to_vec)
    }

    /// Actions of a peer that breaks the rules.
    fn overwrite(&self, word: usize, value: u64) {
        self.memory.words()[word].store(value, Ordering::Relaxed);
    }
}

#[test]
fn nothing_is_left_of_a_message_that_is_erased() {
    let mut rig = rig();
    // Across the end of the ring as well.
    for len in [8, 64, 61, 299, 300, 1, 0, 250, 250] {
        rig.write_and_publish(&vec![0xaa; len]);
        assert_eq!(rig.read().unwrap(), vec![0xaa; len]);
        rig.consumer.erase();
        assert_eq!(rig.consumer.last(), vec![0xaa; len]);
        let words = &rig.memory.words()[DATA..];
        let left = |word: &AtomicU64| word.load(Ordering::Relaxed).to_ne_bytes().contains(&0xaa);
        assert!(!words.iter().any(left), "{len} bytes");
        assert_eq!(rig.read(), None);
        assert!(!rig.consumer.copy.contains(&0xaa), "{len} bytes");
        let _ = rig.consumer.release();
    }
}

#[test]
fn a_message_is_invisible_until_published() {
    let mut rig = rig();
    rig.write(b"GET").unwrap();
    assert_eq!(rig.read(), None);
    let _ = rig.producer.publish();
    assert_eq!(rig.read().unwrap(), b"GET");
    assert_eq!(rig.read(), None);
}

#[test]
fn a_message_may_be_empty() {
    let mut rig = rig();
    rig.write_and_publish(b"");
    assert_eq!(rig.read().unwrap(), b"");
}

#[test]
fn a_message_in_two_parts_is_one_wherever_the_ring_ends() {
    let mut rig = rig();
    for len in 0..MESSAGE_BYTES_MAX - 2 * WORD_BYTES {
        let tail: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let head = [[1; WORD_BYTES], [2; WORD_BYTES]];
        rig.producer.write_parts(&head, &tail).unwrap();
        let _ = rig.producer.publish();
        let expected = [head.as_flattened(), &tail].concat();
        assert_eq!(rig.read(), Some(expected), "{len}");
        let _ = rig.consumer.release();
    }
}

#[test]
fn room_comes_back_only_with_release() {
    let mut rig = rig();
    let message = [7; MESSAGE_BYTES_MAX];
    while rig.write(&message).is_ok() {}
    let _ = rig.producer.publish();
    assert!(!rig.producer.has_room());
    assert!(rig.read().is_some());
    assert!(!rig.producer.has_room());
    let _ = rig.consumer.release();
    assert!(rig.producer.has_room());
    assert_eq!(rig.write(&message), Ok(()));
}

#[test]
fn a_full_ring_still_takes_a_message_that_fits() {
    let mut rig = rig();
    while rig.write(&[7; MESSAGE_BYTES_MAX]).is_ok() {}
    assert!(!rig.producer.has_room());
    assert_eq!(rig.write(b"small"), Ok(()));
}

#[test]
fn an_armed_consumer_is_woken_once() {
    let mut rig = rig();
    assert!(rig.consumer.arm());
    rig.write(b"1").unwrap();
    assert!(rig.producer.publish());
    rig.write(b"2").unwrap();
    assert!(!rig.producer.publish());
    assert!(!rig.producer.publish(), "nothing to publish");
}

#[test]
fn a_disarmed_consumer_is_not_woken() {
    let mut rig = rig();
    assert!(rig.consumer.arm());
    rig.consumer.disarm();
    rig.write(b"1").unwrap();
    assert!(!rig.producer.publish());
}

#[test]
fn a_consumer_with_a_message_waiting_does_not_sleep() {
    let mut rig = rig();
    rig.write_and_publish(b"1");
    assert!(!rig.consumer.arm());
}

#[test]
fn a_starved_producer_is_woken_as_soon_as_any_message_fits() {
    let mut rig = rig();
    while rig.write(&[7; 16]).is_ok() {}
    let _ = rig.producer.publish();
    assert!(rig.producer.arm());
    loop {
        assert!(rig.read().is_some());
        let woken = rig.consumer.release();
        assert_eq!(rig.producer.has_room(), woken);
        if woken {
            break;
        }
    }
    rig.read().unwrap();
    assert!(!rig.consumer.release(), "woken once");
}

#[test]
fn a_short_message_that_fits_does_not_end_the_wait_for_room() {
    let mut rig = rig();
    while rig.producer.has_room() {
        rig.write(&[7; MESSAGE_BYTES_MAX]).unwrap();
    }
    assert_eq!(rig.write(b"short"), Ok(()));
    assert!(rig.producer.is_starved());
    let _ = rig.producer.publish();
    assert!(rig.producer.arm());
    assert!(rig.read().is_some());
    assert!(rig.consumer.release(), "there is room for any message now");
    assert!(rig.producer.has_room());
    assert!(!rig.producer.is_starved());
}

#[test]
fn a_producer_that_had_room_is_not_woken() {
    let mut rig = rig();
    rig.write_and_publish(b"1");
    rig.producer.disarm();
    assert!(rig.producer.arm());
    rig.read().unwrap();
    assert!(!rig.consumer.release());
}

#[test]
fn a_producer_does_not_sleep_when_room_has_come_meanwhile() {
    let mut rig = rig();
    while rig.write(&[7; MESSAGE_BYTES_MAX]).is_ok() {}
    let _ = rig.producer.publish();
    while rig.read().is_some() {}
    let _ = rig.consumer.release();
    assert!(!rig.producer.arm());
}

#[test]
#[should_panic(expected = "a message of 308 bytes")]
fn a_message_longer_than_the_longest_is_refused() {
    let _ = rig().write(&[7; MESSAGE_BYTES_MAX + WORD_BYTES]);
}

#[test]
fn a_tail_beyond_the_capacity_is_corrupt() {
    let mut rig = rig();
    rig.write_and_publish(b"1");
    rig.read().unwrap();
    for tail in [0, 1, 2 + 129, 1 << 32, u64::MAX] {
        rig.overwrite(TAIL, tail);
        assert_eq!(rig.consumer.read(), Err(Corrupt), "tail {tail}");
    }
}

#[test]
fn a_head_that_goes_back_or_overtakes_is_corrupt_for_ever() {
    for head in [0, 5, u64::MAX] {
        let mut rig = rig();
        rig.write_and_publish(b"1");
        rig.read().unwrap();
        let _ = rig.consumer.release();
        while rig.write(b"1").is_ok() {}
        assert!(!rig.producer.is_corrupt());
        // All published is 2 words, of which 2 have been released.
        rig.overwrite(HEAD, head);
        assert!(!rig.producer.has_room());
        assert!(rig.producer.is_corrupt(), "head {head}");
        assert!(!rig.producer.arm(), "no side sleeps on a corrupt ring");
        rig.overwrite(HEAD, 2);
        assert_eq!(rig.write(b"1"), Err(Full));
    }
}

#[test]
fn a_length_that_is_too_long_is_corrupt() {
    let limit = MESSAGE_BYTES_MAX as u64;
    for length in [limit + 1, 1 << 32, u64::MAX, u64::MAX - 7] {
        let mut rig = rig();
        rig.write_and_publish(&[1; MESSAGE_BYTES_MAX]);
        rig.overwrite(DATA, length);
        assert_eq!(rig.consumer.read(), Err(Corrupt), "length {length}");
    }
}

#[test]
fn a_length_beyond_what_is_published_is_corrupt() {
    let mut rig = rig();
    rig.write_and_publish(b"four");
    rig.overwrite(DATA, 9);
    assert_eq!(rig.consumer.read(), Err(Corrupt));
}

#[derive(Clone, Debug)]
enum Step {
    /// Returns a message of this length.
    Write(usize),
    Publish,
    Read,
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..=MESSAGE_BYTES_MAX).prop_map(Step::Write),
        2 => Just(Step::Publish),
        4 => Just(Step::Read),
        1 => Just(Step::Release),
    ]
}

proptest! {
    #[test]
    fn the_ring_is_a_queue(steps in prop::collection::vec(step(), 0..400)) {
        let mut rig = rig();
        let mut written = VecDeque::new();
        let mut published = VecDeque::new();
        let mut seed = 0u8;
        let mut words_in_use = 0;
        let mut words_read = 0;
        for step in steps {
            match step {
                Step::Write(len) => {
                    let message: Vec<u8> = std::iter::repeat_with(|| {
                        seed = seed.wrapping_add(1);
                        seed
                    })
                    .take(len)
                    .collect();
                    let words = 1 + message.len().div_ceil(WORD_BYTES);
                    let outcome = rig.write(&message);
                    let fits = words_in_use + words <= CAPACITY_BYTES / WORD_BYTES;
                    prop_assert_eq!(outcome.is_ok(), fits);
                    if fits {
                        words_in_use += words;
                        written.push_back(message);
                    }
                }
                Step::Publish => {
                    let _ = rig.producer.publish();
                    published.append(&mut written);
                }
                Step::Read => {
                    let message = rig.read();
                    prop_assert_eq!(&message, &published.pop_front());
                    if let Some(message) = message {
                        words_read += 1 + message.len().div_ceil(WORD_BYTES);
                    }
                }
                Step::Release => {
                    let _ = rig.consumer.release();
                    words_in_use -= words_read;
                    words_read = 0;
                }
            }
        }
    }

    /// A peer that scribbles over the whole memory gets an answer, in bounded time, without panic.
    #[test]
    fn garbage_never_panics(
        garbage in prop::collection::vec((0..ring_words(CAPACITY_BYTES), any_word()), 1..40),
    ) {
        let mut rig = rig();
        for (word, value) in garbage {
            rig.write(b"some message").ok();
            let _ = rig.producer.publish();
            rig.overwrite(word, value);
            let _ = rig.consumer.read();
            let _ = rig.consumer.release();
            let _ = rig.consumer.arm();
            let _ = rig.producer.arm();
        }
    }
}

fn any_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..200u64,
        any::<u64>(),
        (0..9u64).prop_map(|n| u64::MAX - n)
    ]
}

#[test]
fn a_consumer_that_stands_still_misses_heartbeats_and_a_full_ring_hinders_none() {
    let mut rig = rig();
    // A consumer that has not answered yet may still be starting.
    let starting = [(); HEARTBEATS_STARTING_MAX as usize + 1];
    assert_eq!(starting.map(|()| rig.producer.heartbeat()), [0; 25]);
    assert_eq!([(); 2].map(|()| rig.producer.heartbeat()), [1, 2]);
    rig.consumer.answer_heartbeat();
    assert_eq!(rig.producer.heartbeat(), 0);
    while rig.write(&[0; MESSAGE_BYTES_MAX]).is_ok() {}
    let _ = rig.producer.publish();
    rig.consumer.answer_heartbeat();
    assert_eq!([(); 4].map(|()| rig.producer.heartbeat()), [0, 1, 2, 3]);
    // The consumer continues: one answer is enough for all heartbeats.
    rig.consumer.answer_heartbeat();
    assert_eq!([(); 2].map(|()| rig.producer.heartbeat()), [0, 1]);
    // A number that was not requested is no answer.
    rig.overwrite(ANSWERED, u64::MAX);
    assert_eq!(rig.producer.heartbeat(), 2);
}
