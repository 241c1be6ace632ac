//! A socket from both sides, and against an application that breaks the rules.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::thread;

use proptest::prelude::*;
use socket_channel::fifo_area::FifoArea;
use socket_channel::host_record::{Busy, More, News, QueueFull, Turn};
use socket_channel::record::RECORD_WORDS;
use socket_channel::{
    AppRecord, ChannelId, FileMeta, Flags, HostRecord, Layout, Limits, Lock, Nonsense, Readiness,
    Segment, SocketId, Unusable, Wanted,
};

const ID: SocketId = SocketId {
    index: 1,
    generation: 5,
};
const FIFO_BYTES: usize = 4096;

/// Words of a record, as the table in the documentation numbers them.
const RX_TAIL: usize = 2;
const RX_FIFO: usize = 8;
const RX_HEAD: usize = 32;
const TX_TAIL: usize = 33;
const ACCEPT_HEAD: usize = 44;

fn segment() -> Segment {
    let limits = Limits {
        sockets_max: 3,
        segment_bytes: 1 << 20,
    };
    Segment::in_memory(Layout::of(limits).unwrap())
}

/// A socket with two blocks.
fn socket_of(segment: &Segment, flags: Flags) -> HostRecord {
    let mut area = FifoArea::new(segment.layout());
    let blocks = [(); 2].map(|()| area.allocate(FIFO_BYTES));
    HostRecord::new(segment, ID, flags, blocks[0], blocks[1])
}

fn connection(segment: &Segment) -> HostRecord {
    socket_of(segment, Flags::STREAM | Flags::CONNECTED)
}

fn app(segment: &Segment) -> AppRecord<'_> {
    AppRecord::of(segment, ID).unwrap()
}

/// What a process does that breaks the rules.
fn overwrite(segment: &Segment, word: usize, value: u64) {
    let records = 64 + ID.index as usize * RECORD_WORDS;
    segment.words()[records + word].store(value, Ordering::Relaxed);
}

fn taken(host: &mut HostRecord, until: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let len = host.tx_read(until, |chunk| {
        bytes.extend_from_slice(chunk);
        chunk.len()
    });
    assert_eq!(len, bytes.len());
    bytes
}

fn read(app: AppRecord<'_>, max: usize) -> Vec<u8> {
    let mut bytes = vec![0; max];
    let len = app.read(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

fn readiness(app: AppRecord<'_>) -> Readiness {
    app.look().unwrap().readiness()
}

#[test]
fn bytes_come_out_as_they_went_in_wherever_the_fifo_ends() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    let stream: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let (mut sent, mut heard) = (Vec::new(), Vec::new());
    let (mut to_send, mut to_hear) = (&stream[..], &stream[..]);
    for len in (1..4200).step_by(37).cycle() {
        let part = &to_send[..len.min(to_send.len())];
        to_send = &to_send[app.write(part).unwrap()..];
        let part = &to_hear[..len.min(to_hear.len())];
        to_hear = &to_hear[host.rx_write(part)..];
        host.look().unwrap();
        sent.extend(taken(&mut host, u64::MAX));
        heard.extend(read(app, len / 2 + 1));
        if to_send.is_empty() && heard.len() == stream.len() {
            break;
        }
    }
    assert!(sent == stream);
    assert!(heard == stream);
}

#[test]
fn a_full_fifo_takes_no_more_until_bytes_are_taken() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    let bytes = [7; FIFO_BYTES + 1];
    assert_eq!(app.write(&bytes), Ok(FIFO_BYTES));
    assert_eq!(app.write(&bytes), Ok(0));
    assert_eq!(host.rx_write(&bytes), FIFO_BYTES);
    assert_eq!(host.rx_write(&bytes), 0);
    let news = host.look().unwrap();
    assert_eq!(news.tx_added_bytes, FIFO_BYTES as u64);
    assert_eq!(taken(&mut host, 10).len(), 10);
    assert_eq!(app.tx_room_bytes(), Ok(10));
    assert_eq!(read(app, 3).len(), 3);
    assert_eq!(host.rx_room_bytes(), 0, "until the next look");
    assert_eq!(host.look().unwrap().rx_taken_bytes, 3);
    assert_eq!(host.rx_room_bytes(), 3);
}

#[test]
fn a_sink_that_takes_a_part_is_asked_no_more_and_the_rest_stays() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    app.write(b"abcdef").unwrap();
    host.look().unwrap();
    assert_eq!(host.tx_read(u64::MAX, |_| 4), 4);
    assert_eq!(host.tx_waiting_bytes(), 2);
    let mut bytes = [0; 2];
    assert!(host.tx_copy(4, &mut bytes));
    assert_eq!(&bytes, b"ef");
    for position in [3, 5, u64::MAX] {
        assert!(!host.tx_copy(position, &mut bytes), "{position}");
    }
    // A sink that claims more than it was given.
    assert_eq!(host.tx_read(u64::MAX, |_| 100), 2);
    app.write(b"xyz").unwrap();
    host.look().unwrap();
    host.tx_release(u64::MAX);
    assert_eq!((host.tx_head(), host.tx_tail()), (9, 9));
}

#[test]
fn peeked_bytes_stay_and_discarded_ones_go() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    host.rx_write(b"abcdef");
    let mut bytes = [0; 3];
    assert_eq!(app.peek(&mut bytes), Ok(3));
    assert_eq!(app.discard(4), Ok(4));
    assert_eq!(app.rx_waiting_bytes(), 2);
    assert_eq!(read(app, 9), b"ef");
    assert_eq!(app.discard(4), Ok(0));
}

#[test]
fn one_kick_is_on_its_way_at_a_time() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    app.write(b"1").unwrap();
    assert!(app.must_kick());
    assert!(!app.must_kick());
    assert!(host.is_kicked());
    host.look().unwrap();
    assert!(app.must_kick());
}

#[test]
fn a_reader_kicks_only_a_host_that_waits_for_room_and_once() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    assert!(!host.rx_wait_for_room(), "it is empty");
    host.rx_write(&[1; FIFO_BYTES]);
    assert_eq!(read(app, 100).len(), 100);
    assert!(!app.rx_must_kick(100));
    host.look().unwrap();
    assert!(host.rx_wait_for_room());
    let mut kicks = Vec::new();
    for part in 1..=38 {
        assert_eq!(read(app, 100).len(), 100);
        if app.rx_must_kick(100) {
            kicks.push(100 + part * 100);
        }
    }
    assert_eq!(kicks, [2100], "half of it was free");
}

#[test]
fn a_hint_goes_to_whom_it_concerns_once() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    assert_eq!(host.take_wanted(), Wanted::None);
    let edge = app.edge();
    assert!(app.want(ChannelId(3), edge));
    assert!(app.want(ChannelId(3), edge));
    host.rx_write(b"x");
    assert_eq!(host.take_wanted(), Wanted::By(ChannelId(3)));
    assert_eq!(host.take_wanted(), Wanted::None);
    assert!(!app.want(ChannelId(3), edge), "something has come");
    assert!(app.want(ChannelId(4), app.edge()));
    assert!(app.want(ChannelId(3), app.edge()));
    assert_eq!(host.take_wanted(), Wanted::None, "they have seen all");
    host.rx_write(b"y");
    assert_eq!(host.take_wanted(), Wanted::BySeveral);
}

#[test]
fn each_change_has_an_edge() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    app.write(b"abc").unwrap();
    host.look().unwrap();
    let changes: [fn(&mut HostRecord); 3] = [
        |host| assert_eq!(host.rx_write(b"x"), 1),
        |host| host.set(Flags::PEER_FINISHED),
        |host| host.fail(104, Flags::FAILED),
    ];
    for (number, change) in changes.iter().enumerate() {
        let before = app.edge();
        change(&mut host);
        assert!(app.edge() > before, "change {number}");
    }
    let before = app.edge();
    host.set(Flags::PEER_FINISHED);
    assert_eq!(host.rx_write(b""), 0);
    assert_eq!(app.edge(), before, "nothing has changed");
}

#[test]
fn room_has_an_edge_for_a_writer_that_waits_for_it() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    let mut changes_edge = |change: &dyn Fn(&mut HostRecord)| {
        let before = app.edge();
        host.look().unwrap();
        change(&mut host);
        app.edge() > before
    };
    app.write(b"abc").unwrap();
    assert!(!changes_edge(&|host| assert_eq!(host.tx_read(3, |_| 3), 3)));
    assert!(!changes_edge(&|host| host.add_file_credit(10)));

    let more_than_fits = [1; FIFO_BYTES + 1];
    assert_eq!(app.write(&more_than_fits), Ok(FIFO_BYTES));
    assert!(
        !changes_edge(&|host| assert_eq!(host.tx_read(4, |_| 1), 1)),
        "there is not enough"
    );
    assert!(changes_edge(&|host| assert_eq!(
        host.tx_read(u64::MAX, |chunk| chunk.len()),
        FIFO_BYTES - 1
    )));
    assert!(!changes_edge(&|host| host.add_file_credit(1)), "once");

    assert_eq!(app.queue_file(12), 11);
    assert!(changes_edge(&|host| host.add_file_credit(1)));
    assert_eq!(app.queue_file(1), 1);
    assert!(
        !app.look().unwrap().readiness().writable,
        "who looks, waits"
    );
    assert!(changes_edge(&|host| host.add_file_credit(1)));
    assert!(app.look().unwrap().readiness().writable);
}

#[test]
fn a_writer_hears_of_room_by_the_limit_that_it_has() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    host.limit_tx(Some(1000));
    assert_eq!(app.write(&[1; 2000]), Ok(2000));
    assert!(!app.look().unwrap().readiness().writable);
    host.look().unwrap();
    let edge = app.edge();
    host.tx_read(1000, |chunk| chunk.len());
    assert_eq!(app.edge(), edge, "half of the FIFO, and all of the limit");
    host.tx_read(u64::MAX, |chunk| chunk.len());
    assert_ne!(app.edge(), edge);
    assert!(app.look().unwrap().readiness().writable);
}

#[test]
fn what_follows_on_bytes_is_known_until_a_mark_ends_it() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    let more = |host: &mut HostRecord| {
        host.look().unwrap();
        host.more()
    };
    assert_eq!(more(&mut host), More::Nothing);
    app.write_with_more(b"ab").unwrap();
    assert_eq!(more(&mut host), More::Something);
    app.write(b"c").unwrap();
    assert_eq!(more(&mut host), More::Nothing);
    app.write_with_more(b"d").unwrap();
    let (mark, at) = app.mark();
    app.end_more_with_mark();
    assert_eq!(host.take_mark(mark, at), Ok(Turn::Now));
    assert_eq!(more(&mut host), More::Marks);
    app.write(b"e").unwrap();
    assert_eq!(more(&mut host), More::Nothing);
    app.mark();
    app.end_more_with_mark();
    assert_eq!(host.more(), More::Nothing, "nothing was promised");

    app.write_with_more(b"").unwrap();
    assert_eq!(
        more(&mut host),
        More::Nothing,
        "on nothing, nothing follows"
    );
    app.write_with_more(b"f").unwrap();
    assert_eq!(more(&mut host), More::Something);
    app.write_with_more(b"g").unwrap();
    assert_eq!(host.more(), More::Something, "written since the look");
    assert_eq!(more(&mut host), More::Something);
    app.end_more();
    assert_eq!(host.more(), More::Nothing);
}

#[test]
fn an_error_is_reported_once_and_a_second_one_again() {
    let segment = segment();
    let mut host = socket_of(&segment, Flags::STREAM | Flags::CONNECTING);
    let app = app(&segment);
    assert_eq!(app.take_error(), 0);
    host.fail(111, Flags::FAILED);
    assert!(readiness(app).error);
    assert_eq!((app.take_error(), app.take_error()), (111, 0));
    assert_eq!(app.last_error(), 111);
    assert!(!readiness(app).error);
    host.fail(111, Flags::FAILED);
    assert_eq!(app.take_error(), 111);
}

/// Between two changes it would look like a socket that was never connected, which has hung up.
#[test]
fn an_opening_connection_is_established_or_fails_in_one_change() {
    let segment = segment();
    let mut host = socket_of(&segment, Flags::STREAM | Flags::CONNECTING);
    let app = app(&segment);
    let before = app.edge();
    host.replace(Flags::CONNECTING, Flags::CONNECTED);
    assert_eq!(app.edge(), before + 1);
    assert_eq!(app.flags(), Ok(Flags::STREAM | Flags::CONNECTED));

    let (segment, flags) = (self::segment(), Flags::STREAM | Flags::CONNECTING);
    let (mut host, app) = (socket_of(&segment, flags), self::app(&segment));
    let before = app.edge();
    host.fail(111, Flags::FAILED);
    assert_eq!(app.edge(), before + 1);
    assert_eq!(app.flags(), Ok(Flags::STREAM | Flags::FAILED));
}

#[test]
fn addresses_and_metadata_arrive() {
    let segment = segment();
    let mut host = socket_of(&segment, Flags::FILE);
    let app = app(&segment);
    assert_eq!((app.local(), app.peer()), (None, None));
    let local: SocketAddr = "192.0.2.7:80".parse().unwrap();
    let peer: SocketAddr = "[fe80::1:2%9]:65535".parse().unwrap();
    host.set_local(local);
    host.set_peer(peer);
    host.set_acked(77);
    assert_eq!((app.local(), app.peer()), (Some(local), Some(peer)));
    assert_eq!(app.acked_bytes(), 77);
    let meta = FileMeta {
        size: u64::MAX,
        mtime_ns: -1,
        ctime_ns: i64::MIN,
        inode: 3,
        device: 4,
        is_weak: true,
    };
    host.set_file_meta(meta);
    assert_eq!(app.file_meta(), Ok(None));
    host.set(Flags::FILE_OPEN);
    assert_eq!(app.file_meta(), Ok(Some(meta)));
}

#[test]
fn file_bytes_are_queued_up_to_the_credit() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    assert_eq!(app.queue_file(5), 0);
    host.add_file_credit(100);
    assert_eq!(app.queue_file(60), 60);
    assert!(readiness(app).writable);
    assert_eq!(app.queue_file(60), 40);
    assert!(!readiness(app).writable);
    assert_eq!(host.queue_file(60), Ok(()));
    assert_eq!(host.queue_file(41), Err(Nonsense));
    assert_eq!(host.queue_file(u64::MAX), Err(Nonsense));
    assert_eq!(host.queue_file(40), Ok(()));
    assert!(!host.state().readiness().writable);
    host.add_file_credit(1);
    assert_eq!((app.file_credit_bytes(), host.file_credit_bytes()), (1, 1));
}

#[test]
fn no_byte_behind_a_mark_is_taken_before_the_mark_has_come() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    app.write(b"ab").unwrap();
    let first = app.mark();
    app.write(b"cd").unwrap();
    let second = app.mark();
    app.write(b"ef").unwrap();
    assert_eq!((first, second), ((1, 2), (2, 4)));
    // Whatever the host stack looks for, what is behind is not there yet.
    assert_eq!(host.look().unwrap().tx_added_bytes, 0);
    assert!(host.lacks_marks());
    assert_eq!(host.take_mark(2, 4), Ok(Turn::Later));
    assert_eq!(host.take_mark(1, 2), Ok(Turn::Now));
    assert_eq!(host.tx_tail(), 2);
    assert_eq!(host.take_mark(2, 4), Ok(Turn::Now));
    assert!(!host.lacks_marks());
    assert_eq!(host.tx_tail(), 6);
}

#[test]
fn marks_are_counted_and_between_what_was_taken_and_written() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    app.write(b"abcdef").unwrap();
    assert_eq!(host.take_mark(1, 6), Err(Nonsense), "not counted");
    taken(&mut host, 4);
    let (mark, at) = app.mark();
    for wrong in [3, 5, 7, u64::MAX] {
        assert_eq!(host.take_mark(mark, wrong), Err(Nonsense), "{wrong}");
    }
    assert_eq!(host.take_mark(mark, at), Ok(Turn::Now));
    assert_eq!(host.take_mark(mark, at), Err(Nonsense), "twice");
    assert_eq!(host.take_mark(mark + 5, at), Err(Nonsense), "not counted");
}

#[test]
fn a_name_is_stale_when_its_socket_has_ended() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    assert!(app.want(ChannelId(3), app.edge()));
    let edge = app.edge();
    host.rx_write(b"abc");
    let blocks = host.blocks();
    let retired = host.retire();
    assert_eq!(retired.blocks, blocks);
    assert_eq!(retired.wanted, Wanted::By(ChannelId(3)));
    let stale = Some(Unusable::Stale);
    assert_eq!(app.look().err(), stale);
    assert_eq!(app.read(&mut [0; 3]).err(), stale);
    assert_eq!(app.write(b"x").err(), stale);
    assert_eq!(app.accept().err(), stale);
    assert!(!app.want(ChannelId(3), edge));

    let next = ID.next_generation();
    let host = HostRecord::new(&segment, next, Flags::STREAM, blocks[0], blocks[1]);
    assert_eq!(app.flags().err(), stale);
    let app = AppRecord::of(&segment, next).unwrap();
    assert_eq!(app.flags(), Ok(host.flags()));
    assert_eq!((app.rx_waiting_bytes(), app.tx_tail()), (0, 0));
    let beyond = SocketId {
        index: 3,
        generation: 1,
    };
    let error = AppRecord::of(&segment, beyond).err();
    assert_eq!(error, Some(Unusable::Nonsense));
}

#[test]
fn a_lock_has_one_owner_and_a_dead_one_loses_it_to_one() {
    let segment = segment();
    let _host = connection(&segment);
    let app = app(&segment);
    let [one, two, three] = [1, 2, 3].map(|thread| NonZeroU32::new(thread).unwrap());
    assert_eq!(app.try_lock(Lock::Rx, one), Ok(()));
    assert_eq!(app.try_lock(Lock::Rx, two), Err(1));
    assert_eq!(app.try_lock(Lock::Tx, two), Ok(()));
    app.unlock(Lock::Rx, two);
    assert_eq!(app.try_lock(Lock::Rx, three), Err(1));
    assert!(app.take_over(Lock::Rx, 1, two));
    assert!(!app.take_over(Lock::Rx, 1, three));
    app.unlock(Lock::Rx, two);
    assert_eq!(app.try_lock(Lock::Rx, three), Ok(()));
}

fn listener(segment: &Segment) -> HostRecord {
    let mut area = FifoArea::new(segment.layout());
    HostRecord::new(
        segment,
        ID,
        Flags::LISTENER,
        area.allocate(FIFO_BYTES),
        None,
    )
}

fn peer(index: u32) -> SocketId {
    SocketId {
        index,
        generation: index + 1,
    }
}

#[test]
fn connections_are_accepted_in_order_and_the_host_learns_which() {
    let segment = segment();
    let (mut host, app) = (listener(&segment), app(&segment));
    assert_eq!(app.accept(), Ok(None));
    assert_eq!(host.accept_queue_max(), 512);
    for index in 0..512 {
        assert_eq!(host.accept_push(peer(index)), Ok(()));
    }
    assert_eq!(host.accept_push(peer(512)), Err(QueueFull));
    assert!(readiness(app).readable);
    let accepted = [(); 3].map(|()| app.accept());
    assert_eq!(accepted, [0, 1, 2].map(|index| Ok(Some(peer(index)))));
    assert_eq!(host.accept_taken(), None, "until the next look");
    assert_eq!(host.look().unwrap().accepted, 3);
    let taken: Vec<_> = std::iter::from_fn(|| host.accept_taken()).collect();
    assert_eq!(taken, [0, 1, 2].map(peer));
    assert_eq!(host.accept_push(peer(512)), Ok(()));
    assert_eq!(host.accept_waiting(), 510);
    let waiting: Vec<_> = host.accept_waiting_ids().collect();
    assert_eq!(waiting, (3..=512).map(peer).collect::<Vec<_>>());
    assert_eq!(host.rx_write(b"x"), 0, "a listener has no bytes");
}

#[test]
fn threads_that_race_accept_each_connection_once() {
    const CONNECTIONS: u32 = 20_000;
    let segment = segment();
    let mut host = listener(&segment);
    let takers = [(); 2].map(|()| {
        let segment = segment.clone();
        thread::spawn(move || {
            let app = AppRecord::of(&segment, ID).unwrap();
            let mut accepted = Vec::new();
            loop {
                match app.accept().unwrap() {
                    Some(connection) => accepted.push(connection),
                    None if app.flags().unwrap().has(Flags::CLOSED) => return accepted,
                    None => thread::yield_now(),
                }
            }
        })
    });
    let mut known = Vec::new();
    for index in 0..CONNECTIONS {
        while host.accept_push(peer(index)).is_err() {
            host.look().unwrap();
            known.extend(std::iter::from_fn(|| host.accept_taken()));
        }
    }
    host.set(Flags::CLOSED);
    let accepted = takers.map(|taker| taker.join().unwrap());
    host.look().unwrap();
    known.extend(std::iter::from_fn(|| host.accept_taken()));
    let mut all = accepted.concat();
    all.sort_unstable();
    let pushed: Vec<_> = (0..CONNECTIONS).map(peer).collect();
    assert!(all == pushed);
    assert!(known == pushed);
}

#[test]
fn poll_says_what_linux_says() {
    let stream = Flags::STREAM;
    let connected = stream | Flags::CONNECTED;
    let cases = [
        // Flags, and readable, writable, peer finished, hang-up.
        (stream, "·w·h"),
        (stream | Flags::CONNECTING, "····"),
        (connected, "·w··"),
        (connected | Flags::PEER_FINISHED, "rwf·"),
        (connected | Flags::SHUT_WRITE, "·w··"),
        (connected | Flags::PEER_FINISHED | Flags::SHUT_WRITE, "rwfh"),
        (stream | Flags::CONNECTING | Flags::FAILED, "rwfh"),
        (connected | Flags::FAILED, "rwfh"),
        (connected | Flags::CLOSED, "rwfh"),
        (connected | Flags::DETACHED, "rwfh"),
        (Flags::LISTENER, "····"),
        (Flags::LISTENER | Flags::DETACHED, "r··h"),
        (Flags::FILE, "····"),
        (Flags::FILE | Flags::FILE_OPEN, "r···"),
        (Flags::FILE | Flags::FAILED, "r··h"),
    ];
    for (flags, expected) in cases {
        let segment = segment();
        let host = socket_of(&segment, flags);
        let seen = readiness(app(&segment));
        assert_eq!(host.state().readiness(), seen, "{flags:?}");
        let shown = [
            (seen.readable, 'r'),
            (seen.writable, 'w'),
            (seen.peer_finished, 'f'),
            (seen.hangup, 'h'),
        ];
        let shown: String = shown
            .map(|(is_so, letter)| if is_so { letter } else { '·' })
            .iter()
            .collect();
        assert_eq!(shown, expected, "{flags:?}");
    }
}

#[test]
fn a_writer_is_writable_again_when_a_quarter_is_free() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    app.write(&[1; FIFO_BYTES]).unwrap();
    host.look().unwrap();
    taken(&mut host, 1023);
    assert!(!readiness(app).writable);
    taken(&mut host, 1024);
    assert!(readiness(app).writable);
}

#[test]
fn indices_that_go_back_or_overtake_are_nonsense_for_that_socket() {
    for (word, values) in [
        (RX_HEAD, [2, 6, u64::MAX]),
        (TX_TAIL, [3, 4101, u64::MAX]),
        (ACCEPT_HEAD, [1, 2, u64::MAX]),
    ] {
        for value in values {
            let segment = segment();
            let (mut host, app) = (connection(&segment), app(&segment));
            host.rx_write(b"12345");
            read(app, 3);
            app.write(b"1234").unwrap();
            host.look().unwrap();
            overwrite(&segment, word, value);
            assert_eq!(host.look(), Err(Nonsense), "word {word}: {value}");
        }
    }
}

#[test]
fn an_application_survives_what_is_not_the_hosts() {
    let segment = segment();
    let (mut host, app) = (connection(&segment), app(&segment));
    host.rx_write(b"12345");
    for block in [0, 1, 200, 3 << 8 | 40, u64::MAX] {
        overwrite(&segment, RX_FIFO, block);
        assert_eq!(app.read(&mut [0; 9]), Err(Unusable::Nonsense), "{block}");
    }
    for tail in [1 << 40, u64::MAX] {
        overwrite(&segment, RX_TAIL, tail);
        assert_eq!(app.read(&mut [0; 9]), Err(Unusable::Nonsense), "{tail}");
        assert_eq!(app.look().map(|look| look.waiting), Ok(tail));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Look,
    Take(usize),
    RxWrite(usize),
    Read(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let len = 0..FIFO_BYTES + 100;
    prop_oneof![
        len.clone().prop_map(Step::Write),
        Just(Step::Look),
        len.clone().prop_map(Step::Take),
        len.clone().prop_map(Step::RxWrite),
        len.prop_map(Step::Read),
    ]
}

/// The next bytes of a stream that does not repeat with the FIFO.
fn bytes(next: &mut u64, len: usize) -> Vec<u8> {
    let bytes = (*next..).map(|i| (i ^ i >> 7) as u8).take(len).collect();
    *next += len as u64;
    bytes
}

proptest! {
    #[test]
    fn the_fifos_are_queues(steps in prop::collection::vec(step(), 0..200)) {
        let segment = segment();
        let (mut host, app) = (connection(&segment), app(&segment));
        let (mut tx, mut rx) = (VecDeque::new(), VecDeque::new());
        let (mut seen, mut given) = (0, FIFO_BYTES);
        let mut next = 0;
        for step in steps {
            match step {
                Step::Write(len) => {
                    let bytes = bytes(&mut next, len);
                    let len = app.write(&bytes).unwrap();
                    prop_assert_eq!(len, bytes.len().min(FIFO_BYTES - tx.len()));
                    tx.extend(&bytes[..len]);
                }
                Step::Look => {
                    let news = host.look().unwrap();
                    prop_assert_eq!(news.tx_added_bytes as usize, tx.len() - seen);
                    seen = tx.len();
                    given = FIFO_BYTES - rx.len();
                }
                Step::Take(len) => {
                    let until = host.tx_head() + len as u64;
                    let bytes = taken(&mut host, until);
                    prop_assert_eq!(bytes.len(), len.min(seen));
                    seen -= bytes.len();
                    prop_assert!(bytes.iter().copied().eq(tx.drain(..bytes.len())));
                }
                Step::RxWrite(len) => {
                    let bytes = bytes(&mut next, len);
                    let len = host.rx_write(&bytes);
                    prop_assert_eq!(len, bytes.len().min(given));
                    given -= len;
                    rx.extend(&bytes[..len]);
                }
                Step::Read(len) => {
                    let bytes = read(app, len);
                    prop_assert_eq!(bytes.len(), len.min(rx.len()));
                    prop_assert!(bytes.iter().copied().eq(rx.drain(..bytes.len())));
                }
            }
        }
    }

    /// Whatever is written over a record and its FIFOs: the host stack answers, and what it says is
    /// within what the FIFOs hold.
    #[test]
    fn garbage_never_panics_and_never_overflows(
        garbage in prop::collection::vec((0..RECORD_WORDS, any_word()), 1..60),
        listens in any::<bool>(),
    ) {
        let segment = segment();
        let flags = if listens { Flags::LISTENER } else { Flags::STREAM | Flags::CONNECTED };
        let mut host = socket_of(&segment, flags);
        let app = app(&segment);
        for (number, (word, value)) in garbage.into_iter().enumerate() {
            let _ = app.write(b"some bytes");
            let _ = app.accept();
            overwrite(&segment, word, value);
            let _ = host.accept_push(peer(number as u32));
            host.rx_write(b"other bytes");
            let news = host.look();
            if let Ok(News { rx_taken_bytes, tx_added_bytes, .. }) = news {
                prop_assert!(rx_taken_bytes <= FIFO_BYTES as u64);
                prop_assert!(tx_added_bytes <= FIFO_BYTES as u64);
            }
            prop_assert!(host.tx_waiting_bytes() <= FIFO_BYTES);
            prop_assert!(host.rx_room_bytes() <= FIFO_BYTES);
            prop_assert!(host.accept_waiting() <= 512);
            let _ = host.rx_wait_for_room();
            let _ = taken(&mut host, u64::MAX);
            let _ = host.take_wanted();
            let _ = host.accept_taken();
            let _ = (app.look(), app.read(&mut [0; 50]), app.discard(1), app.take_error());
            let _ = (app.local(), app.peer(), app.queue_file(value), app.rx_must_kick(9));
        }
    }
}

fn any_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..200u64,
        any::<u64>(),
        (0..9u64).prop_map(|n| u64::MAX - n),
        (0..9u64).prop_map(|n| 4090 + n),
    ]
}

#[test]
fn a_tx_fifo_grows_and_shrinks_with_all_that_is_queued() {
    let segment = segment();
    let mut area = FifoArea::new(segment.layout());
    let flags = Flags::STREAM | Flags::CONNECTED;
    let mut host = HostRecord::new(&segment, ID, flags, None, None);
    let app = app(&segment);
    assert_eq!(app.write(b"x"), Err(Unusable::NoFifo));
    assert!(app.look().unwrap().readiness().writable);
    let small = area.allocate(1024);
    assert_eq!(host.replace_tx(small), Ok(None));
    let bytes: Vec<u8> = (0..3000u32).map(|at| at as u8).collect();
    assert_eq!(app.write(&bytes), Ok(1024));
    host.look().unwrap();
    let mut taken = Vec::new();
    let mut take = |host: &mut HostRecord, most: usize| {
        host.look().unwrap();
        let mut left = most;
        host.tx_read(u64::MAX, |chunk| {
            let len = chunk.len().min(left);
            taken.extend_from_slice(&chunk[..len]);
            left -= len;
            len
        });
    };
    take(&mut host, 100);
    // It wraps in the small one, and does not in the large one.
    assert_eq!(app.write(&bytes[1024..]), Ok(100));
    let large = area.allocate(4096);
    assert_eq!(host.replace_tx(large), Ok(small));
    assert_eq!(app.write(&bytes[1124..]), Ok(3000 - 1124));
    host.look().unwrap();
    assert_eq!(host.replace_tx(small), Err(Busy), "too much is queued");
    take(&mut host, 2500);
    assert_eq!(host.replace_tx(small), Ok(large));
    take(&mut host, 3000);
    assert_eq!(host.replace_tx(None), Ok(small));
    assert_eq!(taken, bytes);
    assert_eq!(app.write(b"x"), Err(Unusable::NoFifo));
}

#[test]
fn a_tx_fifo_stays_as_long_as_a_writer_has_the_lock() {
    let segment = segment();
    let mut area = FifoArea::new(segment.layout());
    let (rx, tx) = (area.allocate(FIFO_BYTES), area.allocate(FIFO_BYTES));
    let flags = Flags::STREAM | Flags::CONNECTED;
    let mut host = HostRecord::new(&segment, ID, flags, rx, tx);
    let app = app(&segment);
    let thread = NonZeroU32::new(7).unwrap();
    app.try_lock(Lock::Tx, thread).unwrap();
    assert_eq!(host.replace_tx(None), Err(Busy));
    // The lock for reading is another one.
    app.unlock(Lock::Tx, thread);
    app.try_lock(Lock::Rx, thread).unwrap();
    assert_eq!(host.replace_tx(None), Ok(tx));
    assert_eq!(app.try_lock(Lock::Tx, thread), Ok(()));
}

#[test]
fn an_rx_fifo_is_replaced_while_it_is_empty_and_no_byte_is_lost() {
    let segment = segment();
    let mut area = FifoArea::new(segment.layout());
    let flags = Flags::STREAM | Flags::CONNECTED;
    let mut host = HostRecord::new(&segment, ID, flags, None, None);
    let app = app(&segment);
    let mut received = Vec::new();
    for (round, bytes) in [1024, 4096, 2048].into_iter().enumerate() {
        assert_eq!(app.read(&mut [0; 10]), Ok(0));
        let block = area.allocate(bytes);
        let before = host.replace_rx(block);
        assert_eq!(before.is_some(), round > 0);
        let sent = vec![round as u8; 700];
        assert_eq!(host.rx_write(&sent), 700);
        let mut buffer = [0; 1000];
        assert_eq!(app.read(&mut buffer), Ok(700));
        received.extend_from_slice(&buffer[..700]);
        host.look().unwrap();
    }
    let expected: Vec<u8> = (0..3).flat_map(|round| vec![round; 700]).collect();
    assert_eq!(received, expected);
}
