//! Whatever arrives, in whatever order it is called: nothing panics, nothing spins, bounds hold.

use std::time::Duration;

use crate::network::Random;
use crate::pairs::for_seeds;
use tcp::{Config, Connection, ConnectionEvent, EcnPolicy, Instant, Keepalive, Limits, Piece};
use wire::tcp::{FastOpen, Flags, Header, Options, Segment, Timestamps};

const ISS: u32 = 0xffff_f000;
const IRS: u32 = 0x7fff_f000;

/// Numbers near those that the connection expects, or anywhere.
fn near(random: &mut Random, base: u32, forward: u64) -> u32 {
    match random.within(0..10) {
        0 => random.next() as u32,
        1 => base.wrapping_sub(random.within(0..70_000) as u32),
        2..6 => base.wrapping_add(random.within(0..4) as u32),
        _ => base.wrapping_add(random.within(0..forward + 2) as u32),
    }
}

fn arbitrary_header(random: &mut Random, snd: u32, rcv: u32, now: Instant) -> Header {
    let flags = match random.within(0..10) {
        0 => random.next() as u8,
        1 => Flags::SYN.0,
        2 => Flags::FIN.0 | Flags::ACK.0,
        3 => Flags::SYN.0 | Flags::ACK.0,
        4 if random.percent(20) => Flags::RST.0,
        _ => Flags::ACK.0,
    };
    let optional = |random: &mut Random| random.percent(60).then(|| random.next());
    let value = if random.percent(80) {
        (now.as_us() / 1000) as u32
    } else {
        random.next() as u32
    };
    Header {
        source_port: 2,
        destination_port: 1,
        seq: near(random, rcv, 70_000),
        ack: near(random, snd, 100_000),
        flags: Flags(flags),
        window: random.pick(&[0, 1, 100, 5000, 65535]),
        options: Options {
            mss: optional(random).map(|n| n as u16),
            window_scale: optional(random).map(|n| n as u8),
            timestamps: random.percent(85).then_some(Timestamps {
                value,
                echo_reply: value,
            }),
            sack_permitted: random.percent(50),
            fast_open: optional(random).map(|n| FastOpen::Cookie(n.to_be_bytes())),
            sack: [
                optional(random).map(|n| (n as u32, (n >> 32) as u32)),
                None,
                None,
                None,
            ],
        },
    }
}

fn arbitrary_config(random: &mut Random) -> Config {
    Config {
        mss: random.pick(&[0, 1, 70, 1460, 65535]),
        peer_mss_default: random.pick(&[0, 536, 65535]),
        ipv6: random.percent(50),
        receive_buffer_bytes: random.pick(&[0, 1, 3000, 1 << 17, 1 << 24]),
        receive_buffer_bytes_max: random.pick(&[0, 1 << 20]),
        send_buffer_bytes: random.pick(&[0, 1, 5000, 1 << 16]),
        send_buffer_bytes_max: random.pick(&[0, 1 << 18]),
        keepalive: random.pick(&[
            None,
            Some(Keepalive {
                idle: Duration::ZERO,
                interval: Duration::ZERO,
                probes: 1,
            }),
        ]),
        nodelay: random.percent(50),
        ecn: random.pick(&[EcnPolicy::Off, EcnPolicy::Accept, EcnPolicy::Offer]),
        extents_max: random.pick(&[0, 1, 4, 256]),
        reassembly_fragments_max: random.pick(&[0, 1, 64]),
        window_scaling: random.percent(70),
        timestamps: random.percent(70),
        rto_initial: Duration::from_micros(random.pick(&[0, 1, 1_000_000, u64::MAX])),
        rto_min: Duration::from_micros(random.pick(&[0, 1, 200_000, 1 << 60])),
        rto_max: Duration::from_micros(random.pick(&[1, 60_000_000, u64::MAX])),
        delayed_ack: Duration::from_micros(random.pick(&[1, 40_000, u64::MAX])),
        retries: random.pick(&[0, 3, 255]),
        syn_retries: random.pick(&[0, 3, 255]),
        challenge_acks_max: random.pick(&[0, 10, u16::MAX]),
        time_wait: Duration::from_micros(random.pick(&[1, 60_000_000, u64::MAX])),
        ..Config::default()
    }
}

/// Covers: RFC 9293 §3.10.7
#[test]
fn nothing_that_arrives_or_is_called_panics_or_spins() {
    for_seeds(3000, |seed| {
        let mut random = Random::seeded(seed);
        let config = if random.percent(50) {
            Config {
                receive_buffer_bytes: 30_000,
                ..Config::default()
            }
        } else {
            arbitrary_config(&mut random)
        };
        let mut now =
            Instant::from_us(random.pick(&[0, 1_000_000, u64::MAX / 2, u64::MAX - 50_000_000]));
        let text: Vec<u8> = (0..70_000).map(|i| i as u8).collect();
        let (mut snd, mut rcv) = (ISS, IRS);
        let mut connection = if random.percent(50) {
            Connection::connect(&config, 1, 2, ISS, 5, now)
        } else {
            let options = arbitrary_header(&mut random, 0, 0, now).options;
            let syn = Header {
                seq: IRS,
                flags: Flags::SYN,
                window: 9000,
                options,
                ..Header::default()
            };
            let segment = Segment {
                header: syn,
                payload: &[],
                ecn: wire::ip::Ecn::NotEct,
            };
            Connection::accept(&config, &segment, ISS, 5, now).expect("a SYN")
        };
        let mut ends = 0;
        let mut issued = 0;
        for _ in 0..random.within(1..200) {
            match random.within(0..16) {
                0..8 => {
                    let header = arbitrary_header(&mut random, snd, rcv, now);
                    let len = random.pick(&[0, 0, 0, 1, 100, 1460, 5000, 70_000]);
                    let payload = &text[..random.within(0..len + 1) as usize];
                    connection.on_segment(
                        now,
                        &Segment {
                            header,
                            payload,
                            ecn: wire::ip::Ecn::NotEct,
                        },
                    );
                }
                8 => {
                    let wild = random.next();
                    let transmission = random.pick(&[issued, wild, 0]);
                    let at = Instant::from_us(random.pick(&[now.as_us(), 0, u64::MAX]));
                    connection.on_departed(transmission, at);
                }
                9 if random.percent(30) => {
                    let seq = near(&mut random, snd, 100_000);
                    let mtu = random.pick(&[0, 40, 600, 1300, 9000, u32::MAX]);
                    connection.on_icmp_too_big(now, mtu, seq);
                    connection.on_icmp_unreachable(random.percent(5), seq);
                }
                9 => {
                    let us = random.pick(&[0, 1, 1000, 300_000, 100_000_000, 1 << 42]);
                    now = now + Duration::from_micros(us);
                }
                10 => drop(connection.write(&text[..random.within(0..5000) as usize])),
                11 => {
                    let len = random.pick(&[0, 1, 5000, 1 << 20, 1 << 40, u64::MAX]);
                    connection.write_virtual(1, random.pick(&[0, u64::MAX]), len);
                }
                12 => drop(connection.read(&mut vec![0; random.within(0..40_000) as usize])),
                13 if random.percent(10) => connection.shutdown(),
                13 if random.percent(5) => connection.abort(),
                13 => now = connection.next_timeout().unwrap_or(now).max(now),
                14 => {
                    let mtu = random.pick(&[0, 1, 552, 600, 1280, 65_535, u32::MAX]);
                    let seq = near(&mut random, snd, 3000);
                    connection.on_icmp_too_big(now, mtu, seq);
                    connection.on_icmp_unreachable(random.percent(50), seq);
                }
                _ => {
                    let transmission = issued;
                    connection.on_departed(transmission, now);
                }
            }
            if random.percent(70) {
                connection.on_timeout(now);
                let limits = Limits {
                    bytes_max: random.pick(&[0, 1, 3000, 1 << 20]),
                    pieces_max: random.pick(&[0, 1, 32]),
                    real_bytes_max: random.pick(&[0, 1, 4096]),
                    direct_bytes_max: random.pick(&[0, 1, 3000, 1 << 16]),
                };
                for round in 0.. {
                    // A byte at a time takes many rounds, but not for ever.
                    assert!(round < 200_000, "does not stop sending");
                    let Some(transmit) = connection.poll_transmit(now, &limits) else {
                        break;
                    };
                    let len: u64 = connection
                        .pieces(transmit.range.clone())
                        .map(|piece| match piece {
                            Piece::Real(bytes) => bytes.len() as u64,
                            Piece::Virtual { len, .. } => len,
                        })
                        .sum();
                    assert_eq!(len, transmit.range.end - transmit.range.start);
                    assert!(transmit.mss > 0 && transmit.tsval_fraction_us < 1000);
                    issued = transmit.transmission.unwrap_or(issued);
                    if transmit.header.flags.contains(Flags::ACK) {
                        rcv = transmit.header.ack;
                    }
                    if transmit.transmission.is_some() && random.percent(50) {
                        snd = transmit.header.seq;
                        connection.on_departed(issued, now);
                    }
                }
                assert!(
                    connection
                        .next_timeout()
                        .is_none_or(|at| at > now || at.as_us() == u64::MAX)
                );
            }
            while let Some(event) = connection.poll_event() {
                assert_eq!(ends, 0, "{event:?} after the end");
                ends += u32::from(matches!(event, ConnectionEvent::Closed { .. }));
            }
            assert!(
                connection.unread_bytes() <= {
                    let buffer = config
                        .receive_buffer_bytes
                        .max(config.receive_buffer_bytes_max);
                    buffer.max(1) + (1 << 14)
                }
            );
            if let Some(mut time_wait) = connection.time_wait() {
                let header = arbitrary_header(&mut random, snd, rcv, now);
                let segment = Segment {
                    header,
                    payload: &text[..random.within(0..100) as usize],
                    ecn: wire::ip::Ecn::NotEct,
                };
                time_wait.may_be_replaced_by(&segment);
                time_wait.on_segment(now, &segment);
            }
        }
    });
}

/// A segment of the peer that acknowledges selectively.
fn selective(ack: u32, block: Option<(u32, u32)>) -> Segment<'static> {
    Segment {
        header: Header {
            source_port: 2,
            destination_port: 1,
            seq: IRS.wrapping_add(1),
            ack,
            flags: Flags::ACK,
            window: u16::MAX,
            options: Options {
                sack: [block, None, None, None],
                ..Options::default()
            },
        },
        payload: &[],
        ecn: wire::ip::Ecn::NotEct,
    }
}

/// A peer whose segments have 64 bytes acknowledges every other one of some thousand. To look at
/// all of them each time is postponed, and nothing that is lost is overlooked.
///
/// Covers: RFC 8985 §6.2
#[test]
fn losses_among_many_small_segments_are_found_by_the_timer_at_the_latest() {
    const MSS: u32 = 64;
    const SEGMENTS: u32 = 2000;
    let config = Config {
        timestamps: false,
        ..Config::default()
    };
    let mut now = Instant::from_us(1_000_000);
    let mut syn = selective(0, None);
    syn.header.seq = IRS;
    syn.header.flags = Flags::SYN;
    syn.header.options = Options {
        mss: Some(MSS as u16),
        window_scale: Some(7),
        sack_permitted: true,
        ..Options::default()
    };
    let mut connection = Connection::accept(&config, &syn, ISS, 5, now).expect("a SYN");
    let send = |connection: &mut Connection, now: Instant| {
        let limits = Limits {
            bytes_max: 1 << 20,
            pieces_max: 32,
            real_bytes_max: 4096,
            direct_bytes_max: 0,
        };
        while let Some(transmit) = connection.poll_transmit(now, &limits) {
            if let Some(transmission) = transmit.transmission {
                connection.on_departed(transmission, now);
            }
        }
    };
    send(&mut connection, now);
    let mut una = ISS.wrapping_add(1);
    connection.on_segment(now, &selective(una, None));
    connection.write_virtual(1, 0, 10_000_000);
    send(&mut connection, now);
    while connection.info(now).flight < u64::from(MSS * SEGMENTS) {
        now = now + Duration::from_millis(20);
        una = una.wrapping_add(connection.info(now).flight as u32);
        connection.on_segment(now, &selective(una, None));
        connection.on_timeout(now);
        send(&mut connection, now);
    }
    now = now + Duration::from_millis(20);
    for number in 0..SEGMENTS / 2 {
        let start = una.wrapping_add((2 * number + 1) * MSS);
        let block = (start, start.wrapping_add(MSS));
        connection.on_segment(now, &selective(una, Some(block)));
    }
    let holes = u64::from(SEGMENTS / 2 * MSS);
    assert!(connection.info(now).lost < holes, "nothing was postponed");
    let timer = connection.next_timeout().expect("detection is postponed");
    assert!(timer <= now + Duration::from_millis(1));
    connection.on_timeout(timer);
    assert_eq!(connection.info(timer).lost, holes);
}
