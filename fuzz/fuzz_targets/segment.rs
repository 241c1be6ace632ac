//! A segment: an application writes any words anywhere between any steps of the host stack, which
//! never panics and never takes or gives more than a FIFO holds.

#![no_main]

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use socket_channel::fifo_area::FifoArea;
use socket_channel::host_record::Turn;
use socket_channel::record::RECORD_WORDS;
use socket_channel::{
    AppRecord, ChannelId, Command, Event, Flags, HostRecord, Layout, Limits, Segment, SocketId,
};

/// Words in front of the records.
const HEADER_WORDS: usize = 64;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    kind: Kind,
    fifo_bytes: u16,
    steps: Vec<Step<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Kind {
    Stream,
    Listener,
    File,
}

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    /// A word of the record.
    Record(u8, u64),
    /// Any word of the segment.
    Anywhere(u32, u64),
    /// An index a little before or behind where it was.
    Move(u8, i16),
    Look,
    RxWrite(&'a [u8]),
    WaitForRoom,
    TxRead {
        bytes: u16,
        sink: u8,
    },
    TxCopy(u64),
    TxRelease(u64),
    Mark(u32, u64),
    Credit(u32),
    QueueFile(u64),
    Push(u32),
    Wanted,
    Fail(u32),
    Set(u32),
    /// What a process does that keeps the rules.
    App(&'a [u8]),
    Message(&'a [u8]),
}

struct Rig {
    segment: Segment,
    id: SocketId,
    host: HostRecord,
    fifo_bytes: usize,
    queued: VecDeque<SocketId>,
}

impl Rig {
    fn new(input: &Input<'_>) -> Rig {
        let limits = Limits {
            sockets_max: 8,
            segment_bytes: 1 << 20,
        };
        let segment = Segment::in_memory(Layout::of(limits).expect("a megabyte is enough"));
        let mut area = FifoArea::new(segment.layout());
        let bytes = usize::from(input.fifo_bytes);
        let blocks = [(); 2].map(|()| area.allocate(bytes));
        let fifo_bytes = blocks[0].expect("the area is empty").bytes();
        let flags = match input.kind {
            Kind::Stream => Flags::STREAM | Flags::CONNECTED,
            Kind::Listener => Flags::LISTENER,
            Kind::File => Flags::FILE,
        };
        let id = SocketId {
            index: 3,
            generation: 1,
        };
        let host = HostRecord::new(&segment, id, flags, blocks[0], blocks[1]);
        Rig {
            segment,
            id,
            host,
            fifo_bytes,
            queued: VecDeque::new(),
        }
    }

    fn record_word(&self, word: u8) -> usize {
        let records = HEADER_WORDS + self.id.index as usize * RECORD_WORDS;
        records + usize::from(word) % RECORD_WORDS
    }

    fn step(&mut self, step: &Step<'_>) {
        let words = self.segment.words();
        match *step {
            Step::Record(word, value) => {
                words[self.record_word(word)].store(value, Ordering::Relaxed);
            }
            Step::Anywhere(word, value) => {
                words[word as usize % words.len()].store(value, Ordering::Relaxed);
            }
            Step::Move(word, by) => {
                let word = &words[self.record_word(word)];
                let value = word.load(Ordering::Relaxed);
                word.store(value.wrapping_add_signed(by.into()), Ordering::Relaxed);
            }
            Step::Look => self.look(),
            Step::RxWrite(bytes) => {
                let room = self.host.rx_room_bytes();
                let len = self.host.rx_write(bytes);
                assert!(len <= room.min(bytes.len()));
            }
            Step::WaitForRoom => {
                let _ = self.host.rx_wait_for_room();
            }
            Step::TxRead { bytes, sink } => self.tx_read(bytes, sink),
            Step::TxCopy(position) => {
                let is_there = self.host.tx_copy(position, &mut [0; 100]);
                assert!(!is_there || position >= self.host.tx_head());
            }
            Step::TxRelease(until) => self.host.tx_release(until),
            Step::Mark(mark, at) => {
                if self.host.take_mark(mark, at) == Ok(Turn::Now) {
                    assert!(self.host.tx_head() <= at && at <= self.host.tx_tail());
                }
                self.accept();
            }
            Step::Credit(bytes) => self.host.add_file_credit(bytes.into()),
            Step::QueueFile(bytes) => {
                let credit = self.host.file_credit_bytes();
                assert_eq!(self.host.queue_file(bytes).is_ok(), bytes <= credit);
            }
            Step::Push(index) => {
                let connection = SocketId {
                    index,
                    generation: 1,
                };
                if self.host.accept_push(connection).is_ok() {
                    self.queued.push_back(connection);
                }
            }
            Step::Wanted => {
                let _ = self.host.take_wanted();
            }
            Step::Fail(errno) => self.host.fail(errno, Flags::FAILED),
            // The kind of a socket stays.
            Step::Set(flags) => self.host.set(Flags(flags & !7)),
            Step::App(bytes) => self.app(bytes),
            Step::Message(bytes) => {
                let _ = (Command::decode(bytes), Event::decode(bytes));
            }
        }
    }

    fn look(&mut self) {
        let Ok(news) = self.host.look() else { return };
        assert!(news.rx_taken_bytes <= self.fifo_bytes as u64);
        assert!(news.tx_added_bytes <= self.fifo_bytes as u64);
        self.accept();
        assert_eq!(self.host.accept_waiting(), self.queued.len());
    }

    /// Whatever is in shared memory: what was pushed is what was taken.
    fn accept(&mut self) {
        while let Some(taken) = self.host.accept_taken() {
            assert_eq!(Some(taken), self.queued.pop_front());
        }
    }

    fn tx_read(&mut self, bytes: u16, sink: u8) {
        let until = self.host.tx_head().saturating_add(bytes.into());
        let waiting = self.host.tx_waiting_bytes();
        let mut offered = 0;
        let taken = self.host.tx_read(until, |chunk| {
            offered += chunk.len();
            chunk.len().saturating_sub(sink.into())
        });
        assert!(offered <= waiting.min(bytes.into()) && taken <= offered);
    }

    fn app(&self, bytes: &[u8]) {
        let Ok(app) = AppRecord::of(&self.segment, self.id) else {
            return;
        };
        let mut read = [0; 500];
        let _ = (app.look(), app.write(bytes), app.must_kick());
        let _ = app.read(&mut read).map(|len| app.rx_must_kick(len));
        let _ = (app.peek(&mut read), app.discard(7), app.accept());
        let _ = (app.local(), app.peer(), app.file_meta(), app.take_error());
        let _ = (app.queue_file(9), app.want(ChannelId(1), app.edge()));
    }

    fn check(&self) {
        assert!(self.host.tx_waiting_bytes() <= self.fifo_bytes);
        assert!(self.host.rx_unread_bytes() <= self.fifo_bytes);
        assert!(self.host.rx_room_bytes() <= self.fifo_bytes);
        assert!(self.host.accept_waiting() <= self.host.accept_queue_max());
        let _ = self.host.state().readiness();
    }
}

fuzz_target!(|input: Input<'_>| {
    let mut rig = Rig::new(&input);
    for step in &input.steps {
        rig.step(step);
        rig.check();
    }
    let blocks = rig.host.blocks();
    assert_eq!(rig.host.retire().blocks, blocks);
});
