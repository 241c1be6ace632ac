//! Half-open connections: in a compact record, and in a cookie.

use std::net::SocketAddr;
use std::time::Duration;

use tcp::{
    Config, Connection, ConnectionEvent, HalfOpen, HalfOpenReaction, Instant, Limits, State,
    SynCookies,
};
use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Options, Segment, Timestamps};

const ISN: u32 = 7_000;
const TS_OFFSET: u32 = 500;
const SECOND_US: u64 = 1_000_000;
const OPENED: Instant = Instant::from_us(100 * SECOND_US);

fn syn() -> Header {
    Header {
        source_port: 40_000,
        destination_port: 80,
        seq: u32::MAX,
        flags: Flags::SYN,
        window: 64_240,
        options: Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps {
                value: 9_000,
                echo_reply: 0,
            }),
            ..Options::default()
        },
        ..Header::default()
    }
}

fn bare(header: Header) -> Segment<'static> {
    Segment {
        header,
        payload: &[],
        ecn: Ecn::NotEct,
    }
}

/// The peer's answer to a SYN,ACK.
fn ack_of(syn_ack: &Header) -> Header {
    Header {
        source_port: 40_000,
        destination_port: 80,
        seq: syn_ack.ack,
        ack: syn_ack.seq.wrapping_add(1),
        flags: Flags::ACK,
        window: 502,
        options: Options {
            timestamps: syn_ack.options.timestamps.map(|ours| Timestamps {
                value: 9_020,
                echo_reply: ours.value,
            }),
            ..Options::default()
        },
    }
}

fn after(us: u64) -> Instant {
    OPENED + Duration::from_micros(us)
}

fn half_open() -> (HalfOpen, Header) {
    HalfOpen::open(&Config::default(), &bare(syn()), ISN, TS_OFFSET, OPENED).expect("it is a SYN")
}

fn opened(reaction: HalfOpenReaction) -> Connection {
    match reaction {
        HalfOpenReaction::Opened(connection) => connection,
        other => panic!("{other:?}"),
    }
}

mod record {
    use super::*;

    /// Covers: RFC 4987 §3.3
    #[test]
    fn becomes_the_connection_that_would_have_been_kept() {
        let (mut half_open, syn_ack) = half_open();
        let request = Segment {
            header: ack_of(&syn_ack),
            payload: b"GET",
            ecn: Ecn::NotEct,
        };
        let now = after(20_000);
        let mut connection = opened(half_open.on_segment(&Config::default(), now, &request));
        assert_eq!(connection.state(), State::Established);
        assert_eq!(connection.poll_event(), Some(ConnectionEvent::Connected));
        assert_eq!(connection.poll_event(), Some(ConnectionEvent::Readable));
        assert_eq!(connection.smoothed_rtt(), Some(Duration::from_millis(20)));
        assert_eq!(connection.mss(), 1448);

        let mut kept =
            Connection::accept(&Config::default(), &bare(syn()), ISN, TS_OFFSET, OPENED).unwrap();
        let limits = Limits {
            bytes_max: 9000,
            pieces_max: 9,
            real_bytes_max: 9000,
            direct_bytes_max: 0,
        };
        let transmit = kept.poll_transmit(OPENED, &limits).expect("a SYN,ACK");
        assert_eq!(transmit.header, syn_ack);
        kept.on_departed(transmit.transmission.unwrap(), OPENED);
        kept.on_segment(now, &request);
        for connection in [&mut kept, &mut connection] {
            assert_eq!(connection.write(&[1; 5000]), 5000);
        }
        loop {
            let transmits = [&mut kept, &mut connection].map(|c| c.poll_transmit(now, &limits));
            assert_eq!(transmits[0], transmits[1]);
            if transmits[0].is_none() {
                break;
            }
        }
    }

    /// Covers: RFC 9293 §3.8.3
    #[test]
    fn gives_up_however_many_retries_are_configured() {
        let config = Config {
            syn_retries: u8::MAX,
            ..Config::default()
        };
        let (mut half_open, syn_ack) = half_open();
        for _ in 0..u8::MAX {
            assert_eq!(half_open.on_timeout(&config).unwrap().seq, syn_ack.seq);
        }
        assert!(half_open.on_timeout(&config).is_none());
    }

    /// Covers: RFC 6298 §5.5, RFC 9293 §3.8.3
    #[test]
    fn repeats_its_syn_ack_with_back_off_and_gives_up() {
        let config = Config::default();
        let (mut half_open, syn_ack) = half_open();
        let mut distances_s = Vec::new();
        let mut last = OPENED;
        loop {
            let at = half_open.next_timeout();
            distances_s.push(at.since(last).as_secs());
            last = at;
            let Some(again) = half_open.on_timeout(&config) else {
                break;
            };
            assert_eq!(half_open.syn_ack(&config), Some(again));
            assert_eq!((again.seq, again.ack), (syn_ack.seq, syn_ack.ack));
        }
        assert_eq!(distances_s, [1, 2, 4, 8, 16, 32, 60]);
    }

    /// Covers: RFC 6298 §3, RFC 7323 §3.2, RFC 7323 §4.1
    #[test]
    fn after_a_retransmission_only_timestamps_tell_the_round_trip() {
        let config = Config::default();
        let (mut half_open, syn_ack) = half_open();
        let again = half_open.on_timeout(&config).expect("a SYN,ACK");
        for (answered, ms) in [(again, 30), (syn_ack, 1030)] {
            let ack = bare(ack_of(&answered));
            let connection = opened(half_open.on_segment(&config, after(1_030_000), &ack));
            let measured = connection.smoothed_rtt();
            assert_eq!(measured, Some(Duration::from_millis(ms)));
        }
        let mut ack = ack_of(&again);
        ack.options.timestamps = None;
        let connection = opened(half_open.on_segment(&config, after(1_030_000), &bare(ack)));
        assert_eq!(connection.smoothed_rtt(), None);
    }

    /// Covers: RFC 5961 §7
    #[test]
    fn a_repeated_syn_is_answered_so_many_times() {
        let config = Config::default();
        let (mut half_open, syn_ack) = half_open();
        let mut answers = 0;
        for n in 1..=50 {
            let again = half_open.on_segment(&config, after(n * 1000), &bare(syn()));
            if let HalfOpenReaction::Answer(answer) = again {
                assert_eq!(answer.flags, Flags::SYN | Flags::ACK);
                assert_eq!((answer.seq, answer.ack), (syn_ack.seq, syn_ack.ack));
                answers += 1;
            }
        }
        assert_eq!(answers, config.challenge_acks_max);
    }

    /// Covers: RFC 3168 §6.1.1.1
    #[test]
    fn a_repeated_syn_says_again_whether_there_is_ecn_and_nothing_else() {
        let config = Config::default();
        let ecn = Header {
            flags: Flags::SYN | Flags::ECE | Flags::CWR,
            ..syn()
        };
        let opened_by = HalfOpen::open(&config, &bare(ecn), ISN, TS_OFFSET, OPENED);
        let (mut half_open, syn_ack) = opened_by.expect("it is a SYN");
        assert!(syn_ack.flags.contains(Flags::ECE));
        let repeated = Header {
            flags: Flags::SYN | Flags::FIN,
            ..syn()
        };
        let again = half_open.on_segment(&config, after(10), &bare(repeated));
        assert!(matches!(
            again,
            HalfOpenReaction::Answer(answer) if answer.flags == Flags::SYN | Flags::ACK
        ));
        opened(half_open.on_segment(&config, after(20_000), &bare(ack_of(&syn_ack))));
    }

    /// Covers: RFC 5961 §3.2, RFC 9293 §3.10.7.4 (fifth)
    #[test]
    fn what_is_out_of_place_opens_and_closes_nothing() {
        let config = Config::default();
        let (mut half_open, syn_ack) = half_open();
        let good = ack_of(&syn_ack);
        let mut tried = Vec::new();
        // An ACK of something else is refused with RST (RFC 9293 §3.10.7.4, fifth).
        for ack in [syn_ack.seq, syn_ack.seq.wrapping_add(2), 0] {
            tried.push((Header { ack, ..good }, Some(Flags::RST)));
        }
        // Out of the window: an ACK. A reset there is dropped, in the window it is challenged (RFC
        // 5961 §3.2).
        let seq = good.seq.wrapping_sub(5);
        let flags = Flags::RST;
        tried.push((Header { seq, ..good }, Some(Flags::ACK)));
        tried.push((Header { seq, flags, ..good }, None));
        let seq = good.seq.wrapping_add(5);
        tried.push((Header { seq, flags, ..good }, Some(Flags::ACK)));
        for (header, expected) in tried {
            let answer = match half_open.on_segment(&config, after(10), &bare(header)) {
                HalfOpenReaction::Answer(answer) => Some(answer.flags),
                HalfOpenReaction::Nothing => None,
                other => panic!("{header:?}: {other:?}"),
            };
            assert_eq!(answer, expected, "{header:?}");
        }
        opened(half_open.on_segment(&config, after(20_000), &bare(good)));
    }

    /// Covers: RFC 5961 §3.2
    #[test]
    fn a_reset_in_its_place_ends_it() {
        let (mut half_open, syn_ack) = half_open();
        let reset = Header {
            flags: Flags::RST,
            ..ack_of(&syn_ack)
        };
        let reaction = half_open.on_segment(&Config::default(), after(10), &bare(reset));
        assert!(matches!(reaction, HalfOpenReaction::Refused));
    }

    /// Covers: RFC 9293 §3.10.7.2
    #[test]
    fn whatever_is_no_plain_syn_opens_nothing() {
        for flags in [Flags::ACK, Flags::RST, Flags::SYN | Flags::ACK, Flags::FIN] {
            let header = Header { flags, ..syn() };
            let config = Config::default();
            assert!(HalfOpen::open(&config, &bare(header), ISN, 0, OPENED).is_none());
        }
    }
}

mod cookie {
    use super::*;

    fn cookies() -> SynCookies {
        SynCookies::new([3; 16])
    }

    fn local() -> SocketAddr {
        "192.0.2.1:80".parse().unwrap()
    }

    fn remote() -> SocketAddr {
        "198.51.100.7:40000".parse().unwrap()
    }

    fn answer(syn: Header, now: Instant) -> Header {
        let config = Config::default();
        cookies()
            .syn_ack(&config, local(), remote(), &bare(syn), TS_OFFSET, now)
            .expect("it is a SYN")
    }

    fn accept(ack: Header, now: Instant) -> Option<Connection> {
        let config = Config::default();
        cookies().accept(&config, local(), remote(), &bare(ack), TS_OFFSET, now)
    }

    /// Covers: RFC 4987 §3.6, RFC 7323 §2.2
    #[test]
    fn brings_every_option_back_that_it_has_room_for() {
        for bits in 0..1 << 7 {
            let (scale, sack, ecn) = (bits & 15, bits >> 4 & 1 == 1, bits >> 5 & 1 == 1);
            let mut syn = syn();
            syn.options.window_scale = (scale != 15).then_some(scale);
            syn.options.sack_permitted = sack;
            if ecn {
                syn.flags = syn.flags | Flags::ECE | Flags::CWR;
            }
            if bits >> 6 == 1 {
                syn.options.timestamps = None;
            }
            let syn_ack = answer(syn, OPENED);
            let has_room = syn.options.timestamps.is_some();
            assert_eq!(syn_ack.options.window_scale.is_some(), scale != 15);
            assert_eq!(syn_ack.options.sack_permitted, sack);
            assert_eq!(syn_ack.flags.contains(Flags::ECE), has_room && ecn);
            let ack = ack_of(&syn_ack);
            let mut connection = accept(ack, after(30_000)).expect("a good cookie");
            assert_eq!(connection.state(), State::Established);
            assert_eq!(connection.poll_event(), Some(ConnectionEvent::Connected));
            // The window field counts in units of the scale that came back.
            // Without timestamps it is rounded down.
            let shift = match (scale, has_room) {
                (15, _) => 0,
                (scale, true) => scale.min(14),
                (scale, false) => [0, 1, 2, 2, 4, 4, 6, 7]
                    .get(usize::from(scale))
                    .copied()
                    .unwrap_or(8),
            };
            let window = 502u64 << shift;
            assert_eq!(connection.write_virtual(1, 0, 1 << 30), 1 << 30);
            let limits = Limits {
                bytes_max: 1 << 20,
                pieces_max: 1,
                real_bytes_max: 1,
                direct_bytes_max: 0,
            };
            let mut sent = 0;
            while let Some(transmit) = connection.poll_transmit(after(30_000), &limits) {
                assert_eq!(transmit.ecn == Ecn::Ect0, has_room && ecn);
                sent = sent.max(transmit.range.end);
            }
            let room = window.min(connection.congestion_window());
            let mss = u64::from(connection.mss());
            let full = if room < mss { room } else { room / mss * mss };
            assert_eq!(sent, full, "{syn:?}");
        }
    }

    /// Of a SYN,ACK that another has sent, no departure is awaited: it holds up neither what is
    /// sent nor the end.
    #[test]
    fn opens_a_connection_that_waits_for_no_report() {
        let ack = ack_of(&answer(syn(), OPENED));
        let mut connection = accept(ack, after(30_000)).expect("a good cookie");
        let awaited = (
            connection.undeparted_transmissions(),
            connection.flight_bytes(),
        );
        assert_eq!(awaited, (0, 0));
        assert_eq!(connection.smoothed_rtt(), None);
        let limits = Limits {
            bytes_max: 1460,
            pieces_max: 1,
            real_bytes_max: 1460,
            direct_bytes_max: 1460,
        };
        let nothing = connection.poll_transmit(after(30_000), &limits);
        assert_eq!((nothing, connection.next_timeout()), (None, None));

        assert_eq!(connection.write(b"x"), 1);
        let sent = connection
            .poll_transmit(after(30_010), &limits)
            .expect("a byte");
        assert!(!sent.follows_undeparted && !sent.retransmission);
        assert_eq!((sent.header.seq, sent.range), (ack.ack, 0..1));
        connection.on_departed(sent.transmission.expect("it is data"), after(30_010));
        let acknowledges = Header {
            ack: ack.ack.wrapping_add(1),
            ..ack
        };
        connection.on_segment(after(31_010), &bare(acknowledges));
        assert_eq!(connection.smoothed_rtt(), Some(Duration::from_micros(1000)));

        connection.close();
        let remainder = connection.remainder().expect("its end alone is left");
        assert_eq!(remainder.fin_seq, acknowledges.ack);
    }

    /// Covers: RFC 4987 §3.6
    #[test]
    fn rounds_the_mss_down_and_never_up() {
        for mss in (0..=u16::MAX)
            .step_by(7)
            .chain([536, 1220, 1440, 1460, 8960])
        {
            let mut syn = syn();
            syn.options.timestamps = None;
            syn.options.mss = Some(mss);
            let config = Config {
                mss: 8960,
                ..Config::default()
            };
            let segment = bare(syn);
            let syn_ack = cookies()
                .syn_ack(&config, local(), remote(), &segment, 0, OPENED)
                .unwrap();
            let ack = bare(ack_of(&syn_ack));
            let connection = cookies()
                .accept(&config, local(), remote(), &ack, 0, after(5))
                .unwrap();
            assert!(connection.mss() <= mss.max(64), "{mss}");
            if [536, 1220, 1440, 1460, 8960].contains(&mss) {
                assert_eq!(connection.mss(), mss);
            }
        }
    }

    /// Covers: RFC 4987 §3.6
    #[test]
    fn is_good_for_64_s_and_never_for_more_than_128() {
        for second in 0..64 {
            let made = after(second * SECOND_US + 1);
            let ack = ack_of(&answer(syn(), made));
            for age_s in 0..400 {
                let good = accept(ack, made + Duration::from_secs(age_s)).is_some();
                assert!(good || age_s >= 64, "{second} {age_s}");
                assert!(!good || age_s < 128, "{second} {age_s}");
            }
        }
        assert_eq!(SynCookies::LIFETIME_US_MAX, 128 * SECOND_US);
    }

    /// Covers: RFC 4987 §3.6
    #[test]
    fn of_another_connection_or_key_is_worth_nothing() {
        let config = Config::default();
        let ack = ack_of(&answer(syn(), OPENED));
        let is_good = |cookies: &SynCookies, local: &str, remote: &str, ack: Header| {
            let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
            let ack = bare(ack);
            cookies
                .accept(&config, local, remote, &ack, TS_OFFSET, after(9))
                .is_some()
        };
        let (here, there) = ("192.0.2.1:80", "198.51.100.7:40000");
        assert!(is_good(&cookies(), here, there, ack));
        assert!(!is_good(&SynCookies::new([4; 16]), here, there, ack));
        assert!(!is_good(&cookies(), "192.0.2.2:80", there, ack));
        assert!(!is_good(&cookies(), "192.0.2.1:81", there, ack));
        assert!(!is_good(&cookies(), here, "198.51.100.8:40000", ack));
        assert!(!is_good(&cookies(), here, "198.51.100.7:40001", ack));
        assert!(!is_good(&cookies(), there, here, ack));
        let seq = ack.seq.wrapping_add(1);
        assert!(!is_good(&cookies(), here, there, Header { seq, ..ack }));
        for flags in [Flags::SYN | Flags::ACK, Flags::RST | Flags::ACK, Flags::PSH] {
            assert!(!is_good(&cookies(), here, there, Header { flags, ..ack }));
        }
    }

    /// Covers: RFC 4987 §3.6
    #[test]
    fn what_follows_a_lost_ack_is_known_for_as_long_as_the_cookie_is_good() {
        let config = Config::default();
        for timestamps in [true, false] {
            let mut syn = syn();
            if !timestamps {
                syn.options.timestamps = None;
            }
            let first = ack_of(&answer(syn, OPENED));
            let may_follow = |header: Header, at: Instant| {
                let segment = bare(header);
                cookies().may_follow(&config, local(), remote(), &segment, at)
            };
            for behind in [1, 1460, 1 << 30] {
                let later = Header {
                    seq: first.seq.wrapping_add(behind),
                    ..first
                };
                assert!(accept(later, after(9)).is_none());
                assert!(may_follow(later, after(9)));
                assert!(!may_follow(later, after(SynCookies::LIFETIME_US_MAX + 9)));
                let ack = later.ack.wrapping_add(1);
                assert!(!may_follow(Header { ack, ..later }, after(9)));
                let flags = Flags::RST | Flags::ACK;
                assert!(!may_follow(Header { flags, ..later }, after(9)));
            }
            let other = SynCookies::new([4; 16]);
            let segment = bare(first);
            assert!(!other.may_follow(&config, local(), remote(), &segment, after(9)));
        }
    }

    /// Covers: RFC 4987 §3.6
    #[test]
    fn cannot_be_changed_in_any_bit() {
        let ack = ack_of(&answer(syn(), OPENED));
        for bit in 0..32 {
            let changed = ack.ack.wrapping_sub(1) ^ 1 << bit;
            let changed = changed.wrapping_add(1);
            let header = Header {
                ack: changed,
                ..ack
            };
            assert!(accept(header, after(9)).is_none(), "bit {bit}");
        }
        // Nor can the peer give itself options that it has not offered.
        for bit in 0..6 {
            let mut header = ack;
            if let Some(timestamps) = &mut header.options.timestamps {
                timestamps.echo_reply ^= 1 << bit;
            }
            assert!(accept(header, after(9)).is_none(), "option bit {bit}");
        }
        let mut header = ack;
        header.options.timestamps = None;
        assert!(accept(header, after(9)).is_none());
        // Without timestamps all is in the ISN.
        let mut syn = syn();
        syn.options.timestamps = None;
        let ack = ack_of(&answer(syn, OPENED));
        assert!(accept(ack, after(9)).is_some());
        for bit in 0..32 {
            let changed = ack.ack.wrapping_sub(1) ^ 1 << bit;
            let header = Header {
                ack: changed.wrapping_add(1),
                ..ack
            };
            assert!(
                accept(header, after(9)).is_none(),
                "bit {bit} without timestamps"
            );
        }
    }

    #[test]
    fn is_not_guessed() {
        let ack = ack_of(&answer(syn(), OPENED));
        let config = Config::default();
        let guessed = (0..1u32 << 18)
            .map(|n| n.wrapping_mul(0x9e37_79b9))
            .filter(|&guess| {
                let ack = bare(Header { ack: guess, ..ack });
                let (local, remote) = (local(), remote());
                cookies()
                    .accept(&config, local, remote, &ack, TS_OFFSET, after(9))
                    .is_some()
            })
            .count();
        assert_eq!(guessed, 0, "2^18 guesses of 2^28");
    }

    #[test]
    fn does_not_measure_a_round_trip_without_a_departure() {
        let ack = ack_of(&answer(syn(), OPENED));
        let connection = accept(ack, after(40_000_000)).expect("a good cookie");
        assert_eq!(connection.smoothed_rtt(), None);
    }

    /// Covers: RFC 7323 §5
    #[test]
    fn timestamps_of_the_connection_are_never_older_than_those_of_its_cookie() {
        let limits = Limits {
            bytes_max: 1,
            pieces_max: 1,
            real_bytes_max: 1,
            direct_bytes_max: 0,
        };
        for ms in 0..200 {
            let now = after(ms * 1000);
            let syn_ack = answer(syn(), now);
            let mut connection = accept(ack_of(&syn_ack), now).expect("a good cookie");
            connection.write(b"x");
            let data = connection.poll_transmit(now, &limits).expect("data");
            let value = |header: &Header| header.options.timestamps.unwrap().value;
            let ahead = value(&data.header).wrapping_sub(value(&syn_ack));
            assert!(ahead < 64, "{ahead}");
        }
    }
}
