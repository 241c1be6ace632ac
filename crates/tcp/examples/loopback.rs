//! Two connections in memory, and a lossy link of 10 ms between them: a download of a megabyte.
//!
//! `cargo run -p splitway-tcp --example loopback`
//!
//! The server queues a head, which are real bytes, and a file, which is virtual: the connection
//! counts it and never sees a byte. What a NIC stack does in Splitway, [`packets`] does here: it
//! fills virtual ranges in when packets leave.

use std::collections::BTreeMap;
use std::time::Duration;

use tcp::{Config, Connection, ConnectionEvent, Instant, Limits, Piece, Transmit};
use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Segment};

/// One way.
const DELAY: Duration = Duration::from_millis(10);

/// Of the packets that the server sends, one in so many is lost.
const LOST_ONE_IN: u64 = 50;

const REQUEST: &[u8] = b"GET /file\r\n";
const HEAD: &[u8] = b"1000000 bytes\r\n";
const FILE: u32 = 1;
const FILE_BYTES: u64 = 1_000_000;

const LIMITS: Limits = Limits {
    bytes_max: 65_536,
    pieces_max: 32,
    real_bytes_max: 65_536,
    direct_bytes_max: 0,
};

/// The byte of the file at an offset.
fn content(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8
}

/// A packet on its way.
struct Packet {
    to_server: bool,
    header: Header,
    payload: Vec<u8>,
}

/// Cuts a superpacket into packets.
fn packets(connection: &Connection, transmit: &Transmit) -> Vec<(Header, Vec<u8>)> {
    let mut payload = Vec::new();
    for piece in connection.pieces(transmit.range.clone()) {
        match piece {
            Piece::Real(bytes) => payload.extend_from_slice(bytes),
            Piece::Virtual { offset, len, .. } => {
                payload.extend((offset..offset + len).map(content));
            }
        }
    }
    if payload.is_empty() {
        return vec![(transmit.header, payload)];
    }
    let count = payload.len().div_ceil(transmit.mss.into());
    let cut = payload.chunks(transmit.mss.into()).enumerate();
    cut.map(|(number, bytes)| {
        let mut header = transmit.header;
        header.seq = header
            .seq
            .wrapping_add((number * usize::from(transmit.mss)) as u32);
        if number + 1 < count {
            // They belong to the end of the superpacket.
            header.flags = Flags(header.flags.0 & !(Flags::FIN.0 | Flags::PSH.0));
        }
        (header, bytes.to_vec())
    })
    .collect()
}

/// The link between both.
#[derive(Default)]
struct Wire {
    /// By their arrival, and a number that tells those apart which arrive together.
    under_way: BTreeMap<(Instant, u64), Packet>,
    sent: u64,
    lost: u64,
}

impl Wire {
    /// Sends all that a connection may send now.
    fn send_from(&mut self, connection: &mut Connection, to_server: bool, now: Instant) {
        while let Some(transmit) = connection.poll_transmit(now, &LIMITS) {
            let departs = transmit.not_before.unwrap_or(now).max(now);
            for (header, payload) in packets(connection, &transmit) {
                self.sent += 1;
                if !to_server && self.sent.is_multiple_of(LOST_ONE_IN) {
                    self.lost += 1;
                    continue;
                }
                let packet = Packet {
                    to_server,
                    header,
                    payload,
                };
                self.under_way.insert((departs + DELAY, self.sent), packet);
            }
            if let Some(transmission) = transmit.transmission {
                connection.on_departed(transmission, departs);
            }
        }
    }
}

fn main() {
    let config = Config::default();
    let mut now = Instant::from_us(1_000_000);
    let started = now;
    let mut client = Connection::connect(&config, 40_000, 80, 1_000, 0, now);
    let mut server = None;
    let mut wire = Wire::default();
    wire.send_from(&mut client, true, now);

    let mut received = Vec::new();
    let mut is_over = false;
    while !is_over {
        // The next thing that happens: a packet arrives, or a timer fires.
        let timers = [
            client.next_timeout(),
            server.as_ref().and_then(Connection::next_timeout),
        ];
        let arrival = wire.under_way.keys().next().map(|(arrives, _)| *arrives);
        let next = timers.into_iter().flatten().chain(arrival).min();
        now = next.expect("something is to happen until the end").max(now);

        client.on_timeout(now);
        if let Some(server) = &mut server {
            server.on_timeout(now);
        }
        while let Some(first) = wire.under_way.first_entry()
            && first.key().0 <= now
        {
            let packet = first.remove();
            let segment = Segment {
                header: packet.header,
                payload: &packet.payload,
                ecn: Ecn::NotEct,
            };
            if !packet.to_server {
                client.on_segment(now, &segment);
            } else if let Some(server) = &mut server {
                server.on_segment(now, &segment);
            } else {
                server = Connection::accept(&config, &segment, 9_000, 0, now);
            }
        }

        // The client asks, and reads to the end.
        while let Some(event) = client.poll_event() {
            match event {
                ConnectionEvent::Connected => {
                    let written = client.write(REQUEST);
                    assert_eq!(written, REQUEST.len());
                }
                ConnectionEvent::Readable | ConnectionEvent::PeerFinished => {
                    let mut buffer = [0; 16_384];
                    loop {
                        match client.read(&mut buffer) {
                            0 => break,
                            count => received.extend_from_slice(&buffer[..count]),
                        }
                    }
                    is_over |= event == ConnectionEvent::PeerFinished;
                }
                _ => {}
            }
        }
        // The server answers.
        if let Some(server) = &mut server {
            while let Some(event) = server.poll_event() {
                if event == ConnectionEvent::Readable {
                    let mut request = [0; 100];
                    let count = server.read(&mut request);
                    assert_eq!(&request[..count], REQUEST);
                    assert_eq!(server.write(HEAD), HEAD.len());
                    assert_eq!(server.write_virtual(FILE, 0, FILE_BYTES), FILE_BYTES);
                    server.shutdown();
                }
            }
            wire.send_from(server, false, now);
        }
        wire.send_from(&mut client, true, now);
    }

    let (head, file) = received.split_at(HEAD.len());
    assert_eq!(head, HEAD);
    assert_eq!(file.len() as u64, FILE_BYTES);
    assert!(
        (0..)
            .zip(file)
            .all(|(offset, byte)| content(offset) == *byte)
    );
    let info = server.expect("it has answered").info(now);
    println!(
        "{} bytes in {:?}, every one right: {} packets, {} lost, {} transmissions repeated, {} \
         timeouts",
        received.len(),
        now.since(started),
        wire.sent,
        wire.lost,
        info.retransmissions,
        info.timeouts,
    );
}
