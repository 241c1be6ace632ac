//! A peer of the proxy: our own TCP, which sends bytes that are known and compares all that it
//! gets.

use std::net::SocketAddr;
use std::time::Duration;

use tcp::{CloseReason, Config, Connection, ConnectionEvent, Instant, Keepalive, Limits, Piece};
use wire::frame::{TcpPacket, TcpTemplate};
use wire::tcp::Header;

use crate::random::Random;

/// What a stream consists of, by the number of its pair and the side that sends it.
pub(crate) fn byte_of(pair: usize, side: usize, at: u64) -> u8 {
    let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ ((pair * 2 + side) as u64) << 40);
    (mixed >> 56) as u8 ^ (mixed >> 32) as u8
}

/// How a peer behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    pub(crate) bytes: u64,
    /// It closes when all is sent; otherwise when the other has closed.
    pub(crate) closes_first: bool,
    /// It resets the connection when it has got so many bytes.
    pub(crate) resets_at: Option<u64>,
    /// Longest superpacket, in bytes.
    pub(crate) packet_bytes_max: usize,
    /// It reads no more than this in a millisecond.
    pub(crate) read_bytes_max: usize,
    /// It sends nothing more for a while when it has sent so many.
    pub(crate) pauses_at: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) pair: usize,
    pub(crate) side: usize,
    pub(crate) mac: [u8; 6],
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) tcp: Connection,
    pub(crate) manners: Manners,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) closed: Option<CloseReason>,
    has_finished: bool,
    peer_has_finished: bool,
    reads_from_us: u64,
    resumes_us: u64,
    /// RSTs for what comes after the end.
    answers: Vec<Header>,
}

impl Peer {
    pub(crate) fn new(
        (pair, side): (usize, usize),
        mac: [u8; 6],
        (local, remote): (SocketAddr, SocketAddr),
        tcp: Connection,
        manners: Manners,
    ) -> Peer {
        Peer {
            pair,
            side,
            mac,
            local,
            remote,
            tcp,
            manners,
            sent: 0,
            received: 0,
            closed: None,
            has_finished: false,
            peer_has_finished: false,
            reads_from_us: 0,
            resumes_us: 0,
            answers: Vec::new(),
        }
    }

    /// All of both streams has gone its way.
    pub(crate) fn is_done(&self) -> bool {
        self.closed.is_some() && self.tcp.unread_bytes() == 0
    }

    pub(crate) fn on_packet(&mut self, now: Instant, packet: &TcpPacket<'_>) {
        if self.tcp.is_closed() {
            self.answers.extend(tcp::reset_for(&packet.segment));
        }
        self.tcp.on_segment(now, &packet.segment);
    }

    /// Does what there is to do; returns the frames that leave.
    pub(crate) fn turn(&mut self, now_us: u64, host_mac: [u8; 6]) -> Vec<Vec<u8>> {
        let now = Instant::from_us(now_us);
        if self.tcp.next_timeout().is_some_and(|at| at <= now) {
            self.tcp.on_timeout(now);
        }
        self.read(now_us);
        while let Some(event) = self.tcp.poll_event() {
            match event {
                ConnectionEvent::PeerFinished => self.peer_has_finished = true,
                ConnectionEvent::Closed { reason } => self.closed = Some(reason),
                _ => {}
            }
        }
        self.write(now_us);
        self.frames(now, host_mac)
    }

    fn read(&mut self, now_us: u64) {
        if now_us < self.reads_from_us {
            return;
        }
        let mut buffer = vec![0; self.manners.read_bytes_max];
        let count = self.tcp.read(&mut buffer);
        for &byte in &buffer[..count] {
            let expected = byte_of(self.pair, 1 - self.side, self.received);
            assert_eq!(
                byte, expected,
                "pair {} side {}: byte {} is wrong",
                self.pair, self.side, self.received
            );
            self.received += 1;
        }
        if count > 0 {
            self.reads_from_us = now_us + 1000;
        }
        let resets = self.manners.resets_at;
        if resets.is_some_and(|at| self.received >= at) && self.closed.is_none() {
            self.tcp.abort();
        }
    }

    fn write(&mut self, now_us: u64) {
        if self.manners.pauses_at.is_some_and(|at| self.sent >= at) {
            self.manners.pauses_at = None;
            self.resumes_us = now_us + 2_000_000;
        }
        while self.sent < self.manners.bytes && now_us >= self.resumes_us {
            let count = (self.manners.bytes - self.sent).min(4096);
            let bytes: Vec<u8> = (0..count)
                .map(|at| byte_of(self.pair, self.side, self.sent + at))
                .collect();
            let taken = self.tcp.write(&bytes);
            self.sent += taken as u64;
            if taken < bytes.len() {
                break;
            }
        }
        let may_close = self.manners.closes_first || self.peer_has_finished;
        if self.sent == self.manners.bytes && may_close && !self.has_finished {
            self.has_finished = true;
            self.tcp.shutdown();
        }
    }

    fn frames(&mut self, now: Instant, host_mac: [u8; 6]) -> Vec<Vec<u8>> {
        let limits = Limits {
            bytes_max: self.manners.packet_bytes_max,
            pieces_max: 8,
            real_bytes_max: self.manners.packet_bytes_max,
            direct_bytes_max: 0,
        };
        let template = TcpTemplate::new(self.mac, host_mac, self.local, self.remote);
        let answers = self.answers.drain(..);
        let mut frames: Vec<_> = answers.map(|it| template.to_frame(&it, &[])).collect();
        while let Some(transmit) = self.tcp.poll_transmit(now, &limits) {
            let mut payload = Vec::new();
            for piece in self.tcp.pieces(transmit.range.clone()) {
                if let Piece::Real(bytes) = piece {
                    payload.extend_from_slice(bytes);
                }
            }
            frames.push(template.to_frame(&transmit.header, &payload));
            if let Some(transmission) = transmit.transmission {
                self.tcp.on_departed(transmission, now);
            }
        }
        frames
    }

    pub(crate) fn next_us(&self, now_us: u64) -> u64 {
        let tcp_us = self.tcp.next_timeout().map_or(u64::MAX, Instant::as_us);
        let reads_us = match self.tcp.unread_bytes() {
            0 => u64::MAX,
            _ => self.reads_from_us,
        };
        let resumes_us = match self.resumes_us > now_us {
            true => self.resumes_us,
            false => u64::MAX,
        };
        tcp_us.min(reads_us).min(resumes_us)
    }
}

/// What a peer's TCP is like.
pub(crate) fn config_of(random: &mut Random, timestamps: bool) -> Config {
    let mss = random.pick(&[1460, 1460, 1220, 536, 300]);
    let buffer = random.pick(&[8 << 10, 64 << 10, 1 << 20]) as usize;
    Config {
        mss,
        window_scaling: !random.permille(100),
        sack: !random.permille(200),
        timestamps,
        fin_wait_2: Some(Duration::from_secs(600)),
        ecn: random.pick(&[tcp::EcnPolicy::Offer, tcp::EcnPolicy::Accept]),
        receive_buffer_bytes: buffer,
        receive_buffer_bytes_max: buffer,
        keepalive: Some(Keepalive {
            idle: Duration::from_secs(60),
            ..Keepalive::default()
        }),
        ..Config::default()
    }
}
