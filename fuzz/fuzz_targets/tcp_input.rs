//! A TCP connection whose peer sends any segment at any time, and whose application does anything.
//!
//! Whatever comes, the connection must not panic, must send only what it may, must deliver the
//! peer's stream unaltered, must report its end once, and must not set a timer that never lets time
//! pass.

#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::time::Duration;

use tcp::{
    Config, Connection, ConnectionEvent, Instant, Limits, Piece, State, TimeWait, reset_for,
};
use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Options, Segment, Timestamps};

#[derive(Arbitrary, Debug)]
struct Input {
    active: bool,
    plain: bool,
    isn: u32,
    peer_isn: u32,
    syn_options: Vec<u8>,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// A segment somewhere near where the connection is.
    Segment {
        flags: u8,
        seq: i16,
        ack: i16,
        window: u16,
        len: u8,
        timestamp: Option<i8>,
        sack: Option<(i16, i16)>,
        traffic_class: u8,
    },
    /// What an orderly peer would send: the next bytes, acknowledging all.
    Next {
        len: u16,
        fin: bool,
    },
    /// A segment of any bytes.
    Raw(Vec<u8>),
    /// A router speaks of a segment that may be in flight.
    Icmp {
        too_big: Option<u32>,
        hard: bool,
        seq: i16,
    },
    Write(u16),
    WriteVirtual {
        offset: u64,
        len: u32,
    },
    Read(u16),
    Depart(u8),
    Wait {
        us: u32,
    },
    WaitForTimer,
    Shutdown,
    Abort,
}

const LIMITS: Limits = Limits {
    bytes_max: 65_536,
    pieces_max: 5,
    real_bytes_max: 4096,
    direct_bytes_max: 65_536,
};

/// Real bytes queued at most; how often something may be sent at one moment is bounded by it.
const SEND_BUFFER_BYTES: usize = 8192;

/// Long after every connection without a peer has given up.
const END: Instant = Instant::from_us(3600 * 1_000_000);

fuzz_target!(|input: Input| {
    let Some(mut rig) = Rig::new(&input) else {
        return;
    };
    for step in &input.steps {
        rig.step(step);
        rig.settle();
    }
    // No segment comes any more: the connection gives up, or it waits for its application.
    while rig.now < END && rig.wait_for_timer() {}
});

struct Rig {
    connection: Connection,
    now: Instant,
    /// The peer's initial sequence number (RFC 9293 §3.3.1).
    irs: u32,
    /// Where the connection's own segments say that it is.
    snd_nxt: u32,
    rcv_nxt: u32,
    ts_recent: u32,
    undeparted: Vec<u64>,
    written: u64,
    read: i64,
    acknowledged: u64,
    closed: bool,
}

/// What the peer's stream holds: byte `n` after its SYN.
fn peer_byte(n: i64) -> u8 {
    n.rem_euclid(251) as u8
}

impl Rig {
    fn new(input: &Input) -> Option<Rig> {
        let config = Config {
            window_scaling: !input.plain,
            timestamps: !input.plain,
            send_buffer_bytes: SEND_BUFFER_BYTES,
            send_buffer_bytes_max: SEND_BUFFER_BYTES,
            receive_buffer_bytes: 20_000,
            receive_buffer_bytes_max: 40_000,
            extents_max: 16,
            reassembly_fragments_max: 8,
            ..Config::default()
        };
        let now = Instant::from_us(1_000_000);
        let syn = Segment {
            header: Header {
                source_port: 1000,
                destination_port: 80,
                seq: input.peer_isn,
                flags: Flags::SYN | Flags::ECE | Flags::CWR,
                window: 5000,
                options: Options::parse(&input.syn_options),
                ..Header::default()
            },
            payload: &[],
            ecn: Ecn::NotEct,
        };
        let connection = if input.active {
            Connection::connect(&config, 80, 1000, input.isn, 7, now)
        } else {
            Connection::accept(&config, &syn, input.isn, 7, now)?
        };
        let mut rig = Rig {
            connection,
            now,
            irs: input.peer_isn,
            snd_nxt: input.isn,
            rcv_nxt: input.peer_isn,
            ts_recent: 0,
            undeparted: Vec::new(),
            written: 0,
            read: 0,
            acknowledged: 0,
            closed: false,
        };
        rig.settle();
        Some(rig)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Segment {
                flags,
                seq,
                ack,
                window,
                len,
                timestamp,
                sack,
                traffic_class,
            } => {
                self.ts_recent = self
                    .ts_recent
                    .wrapping_add_signed(timestamp.unwrap_or(0).into());
                let edge = |distance: i16| self.snd_nxt.wrapping_add_signed(distance.into());
                let options = Options {
                    timestamps: timestamp.map(|_| self.timestamps()),
                    sack: [
                        sack.map(|(left, right)| (edge(left), edge(right))),
                        None,
                        None,
                        None,
                    ],
                    ..Options::default()
                };
                let header = Header {
                    seq: self.rcv_nxt.wrapping_add_signed(seq.into()),
                    ack: self.snd_nxt.wrapping_add_signed(ack.into()),
                    flags: Flags(flags),
                    window,
                    options,
                    ..Header::default()
                };
                self.receive(header, usize::from(len) * 16, Ecn::of(traffic_class));
            }
            Step::Next { len, fin } => {
                let opening = self.rcv_nxt == self.irs;
                let mut flags = Flags::ACK;
                if opening {
                    flags = flags | Flags::SYN;
                } else if fin {
                    flags = flags | Flags::FIN;
                }
                let header = Header {
                    seq: self.rcv_nxt,
                    ack: self.snd_nxt,
                    flags,
                    window: 60_000,
                    options: Options {
                        timestamps: Some(self.timestamps()),
                        ..Options::default()
                    },
                    ..Header::default()
                };
                self.receive(header, usize::from(len), Ecn::NotEct);
            }
            Step::Raw(ref bytes) => {
                if let Ok(mut segment) = Segment::parse(bytes) {
                    segment.payload = &[];
                    self.receive(segment.header, 0, Ecn::NotEct);
                }
            }
            Step::Icmp { too_big, hard, seq } => {
                let seq = self.snd_nxt.wrapping_add_signed(seq.into());
                match too_big {
                    Some(mtu) => {
                        self.connection.on_icmp_too_big(self.now, mtu, seq);
                    }
                    None => self.connection.on_icmp_unreachable(hard, seq),
                }
            }
            Step::Write(len) => {
                let bytes = vec![1; len.into()];
                let taken = self.connection.write(&bytes);
                assert!(taken <= bytes.len());
                self.written += taken as u64;
            }
            Step::WriteVirtual { offset, len } => {
                let len = len % (1 << 20);
                let queued = self.connection.write_virtual(5, offset, len.into());
                assert!(queued == 0 || queued == u64::from(len));
                self.written += queued;
            }
            Step::Read(len) => self.read(len.into()),
            Step::Depart(which) => {
                // Now and then a report without a cause.
                let known = usize::from(which) < self.undeparted.len();
                let transmission = if known {
                    self.undeparted.swap_remove(which.into())
                } else {
                    which.into()
                };
                self.connection.on_departed(transmission, self.now);
            }
            Step::Wait { us } => {
                self.now = self.now + Duration::from_micros(us.into());
                self.connection.on_timeout(self.now);
            }
            Step::WaitForTimer => {
                self.wait_for_timer();
            }
            Step::Shutdown => self.connection.shutdown(),
            Step::Abort => self.connection.abort(),
        }
    }

    /// False if there is no timer.
    fn wait_for_timer(&mut self) -> bool {
        let Some(at) = self.connection.next_timeout() else {
            return false;
        };
        self.now = self.now.max(at);
        self.connection.on_timeout(self.now);
        self.settle();
        let next = self.connection.next_timeout();
        assert!(next.is_none_or(|next| next > self.now), "time stands still");
        true
    }

    fn timestamps(&self) -> Timestamps {
        Timestamps {
            value: self.ts_recent,
            echo_reply: 7,
        }
    }

    /// A segment arrives whose text, wherever it lies, is that of the peer's stream.
    fn receive(&mut self, header: Header, len: usize, ecn: Ecn) {
        let is_syn = header.flags.contains(Flags::SYN);
        if is_syn && self.connection.state() == State::SynSent {
            // If the connection takes it, this is where the stream begins.
            self.irs = header.seq;
        }
        let first = header
            .seq
            .wrapping_add(is_syn.into())
            .wrapping_sub(self.irs);
        // Behind the SYN; what lies before the stream is negative, and must not be read.
        let first = i64::from(first as i32) - 1;
        let payload: Vec<u8> = (first..first + len as i64).map(peer_byte).collect();
        let segment = Segment {
            header,
            payload: &payload,
            ecn,
        };
        let _ = reset_for(&segment);
        if let Some(mut time_wait) = self.connection.time_wait() {
            self.receive_in_time_wait(&mut time_wait, &segment);
        }
        self.connection.on_segment(self.now, &segment);
    }

    fn receive_in_time_wait(&self, time_wait: &mut TimeWait, segment: &Segment<'_>) {
        let replaceable = time_wait.may_be_replaced_by(segment);
        assert_eq!(replaceable, self.connection.replaced_by(segment).is_some());
        let before = time_wait.expires();
        if let Some(answer) = time_wait.on_segment(self.now, segment) {
            assert_eq!(answer.flags, Flags::ACK);
        }
        assert!(time_wait.expires() >= before.min(self.now));
    }

    /// Everything that was read must be the peer's stream.
    fn read(&mut self, len: usize) {
        let unread = self.connection.unread_bytes();
        let mut buffer = vec![0; len];
        let count = self.connection.read(&mut buffer);
        assert_eq!(count, len.min(unread));
        for (n, byte) in (self.read..).zip(&buffer[..count]) {
            assert_eq!(*byte, peer_byte(n), "byte {n} of the peer's stream");
        }
        self.read += count as i64;
    }

    /// Collects what is to be done, as the documentation of `Connection` tells.
    fn settle(&mut self) {
        let mut sent = 0;
        while let Some(transmit) = self.connection.poll_transmit(self.now, &LIMITS) {
            sent += 1;
            assert!(sent < 10_000, "it never stops sending");
            assert!(transmit.tsval_fraction_us < 1000);
            assert!(transmit.mss > 0);
            let range = transmit.range.clone();
            assert!(range.start <= range.end && range.end <= self.written);
            let (mut pieces, mut real_bytes, mut bytes) = (0, 0, 0);
            for piece in self.connection.pieces(range.clone()) {
                pieces += 1;
                match piece {
                    Piece::Real(piece) => {
                        real_bytes += piece.len();
                        bytes += piece.len() as u64;
                    }
                    Piece::Virtual { len, .. } => bytes += len,
                }
            }
            assert_eq!(bytes, range.end - range.start);
            assert!(bytes <= LIMITS.bytes_max as u64);
            assert!(pieces <= LIMITS.pieces_max);
            assert!(real_bytes <= LIMITS.real_bytes_max);

            let header = transmit.header;
            let occupied = bytes as u32
                + u32::from(header.flags.contains(Flags::SYN))
                + u32::from(header.flags.contains(Flags::FIN));
            assert_eq!(transmit.transmission.is_some(), occupied > 0);
            if !header.flags.contains(Flags::RST) {
                let end = header.seq.wrapping_add(occupied);
                if (end.wrapping_sub(self.snd_nxt) as i32) > 0 {
                    self.snd_nxt = end;
                }
                if header.flags.contains(Flags::ACK) {
                    self.rcv_nxt = header.ack;
                }
            }
            self.undeparted.extend(transmit.transmission);
        }
        while let Some(event) = self.connection.poll_event() {
            assert!(!self.closed, "{event:?} after the end");
            self.closed = matches!(event, ConnectionEvent::Closed { .. });
        }
        if self.connection.is_closed() {
            assert!(self.closed, "the end was not reported");
            assert_eq!(self.connection.next_timeout(), None);
        }
        let acknowledged = self.connection.acknowledged_bytes();
        assert!(acknowledged >= self.acknowledged && acknowledged <= self.written);
        self.acknowledged = acknowledged;
    }
}
