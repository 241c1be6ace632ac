//! The ring and its sleep, checked by loom over the executions that the memory model allows:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p splitway-shm --lib
//! ```
//!
//! A lost wake-up shows as a deadlock, a missing barrier as a wrong message.

use ::loom::sync::Notify;
use ::loom::thread;

use crate::memory::{Memory, WORD_BYTES};
use crate::sync::Arc;

use super::{Consumer, Full, Producer, ring, ring_words};

/// Two messages of one word fill the ring.
const CAPACITY_BYTES: usize = 4 * WORD_BYTES;

/// Stands for the event descriptor on which an end sleeps.
#[derive(Clone)]
struct Bell(Arc<Notify>);

impl Bell {
    fn new() -> Self {
        Bell(Arc::new(Notify::new()))
    }

    fn ring_if(&self, needed: bool) {
        if needed {
            self.0.notify();
        }
    }

    fn wait(&self) {
        self.0.wait();
    }
}

fn small_ring() -> (Producer, Consumer) {
    let memory = Arc::new(Memory::heap(ring_words(CAPACITY_BYTES)));
    ring(&memory, 0, CAPACITY_BYTES, WORD_BYTES)
}

/// Never the value that the ring's memory holds already at the same place.
fn message(number: u64) -> [u8; WORD_BYTES] {
    (number + 1000).to_ne_bytes()
}

fn write(producer: &mut Producer, number: u64) -> Result<(), Full> {
    producer.write(&message(number))
}

/// Checks every execution with up to three preemptions; bugs of this kind need one or two.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Reads `count` messages, sleeping whenever there is none.
fn read_all(consumer: &mut Consumer, own: &Bell, peer: &Bell, count: u64) {
    let mut read = 0;
    while read < count {
        if consumer.release_is_due() {
            peer.ring_if(consumer.release());
        }
        match consumer.read().unwrap() {
            Some(bytes) => {
                assert_eq!(bytes, message(read));
                read += 1;
            }
            None => {
                if consumer.arm() {
                    own.wait();
                    consumer.disarm();
                }
            }
        }
    }
}

/// Writes `count` messages, publishing each, and sleeping whenever there is no room.
fn write_all(producer: &mut Producer, own: &Bell, peer: &Bell, count: u64) {
    for number in 0..count {
        while write(producer, number) == Err(Full) {
            assert!(!producer.is_corrupt());
            if producer.arm() {
                own.wait();
                producer.disarm();
            }
        }
        peer.ring_if(producer.publish());
    }
}

fn exchange(count: u64) {
    check(move || {
        let (mut producer, mut consumer) = small_ring();
        let (to_producer, to_consumer) = (Bell::new(), Bell::new());
        let (own, peer) = (to_consumer.clone(), to_producer.clone());
        let reader = thread::spawn(move || read_all(&mut consumer, &own, &peer, count));
        write_all(&mut producer, &to_producer, &to_consumer, count);
        reader.join().unwrap();
    });
}

#[test]
fn a_sleeping_consumer_is_woken_for_each_message() {
    exchange(2);
}

#[test]
fn a_producer_that_sleeps_on_a_full_ring_is_woken_for_room() {
    exchange(4);
}

#[test]
fn a_batch_is_seen_whole_and_in_order() {
    check(|| {
        let (mut producer, mut consumer) = small_ring();
        let (to_producer, to_consumer) = (Bell::new(), Bell::new());
        let (own, peer) = (to_consumer.clone(), to_producer);
        let reader = thread::spawn(move || read_all(&mut consumer, &own, &peer, 2));
        write(&mut producer, 0).unwrap();
        write(&mut producer, 1).unwrap();
        to_consumer.ring_if(producer.publish());
        reader.join().unwrap();
    });
}

#[test]
fn a_peer_that_is_awake_is_not_woken() {
    check(|| {
        let (mut producer, mut consumer) = small_ring();
        consumer.disarm();
        let reader = thread::spawn(move || {
            while consumer.read().unwrap().is_none() {
                thread::yield_now();
            }
        });
        write(&mut producer, 0).unwrap();
        assert!(!producer.publish());
        reader.join().unwrap();
    });
}
