//! Connections whose end someone else runs: packets leave as if it had not been taken over.

use std::time::Duration;

use crate::script::{LIMITS, Script, config};
use tcp::{Config, Connection, Instant, Remainder, Stage};
use wire::tcp::{Flags, Header, Segment};

/// Covers: RFC 9293 §3.6, RFC 9293 §3.10.7.4 (eighth)
#[test]
fn last_ack_is_parted_with_before_fin_has_left() {
    let mut script = Script::in_state("CloseWait");
    script.trace(
        "
        close; part
        > FIN ACK 1 ack 2
        = LastAck
        < ACK 2 ack 2 win 10000
        = Closed
        ! Closed(Finished)
        ",
    );
    assert!(script.tcp().is_closed());
}

/// Covers: RFC 9293 §3.6, RFC 9293 §3.6.1
#[test]
fn active_close_is_parted_with_before_fin_has_left() {
    let mut script = Script::established();
    script.trace(
        "
        close; part
        > FIN ACK 1 ack 1
        = FinWait1
        < ACK 1 ack 2 win 10000
        = FinWait2
        < FIN ACK 1 ack 2 win 10000
        > ACK 2 ack 2
        = TimeWait
        ! PeerFinished, Closed(Finished)
        +60s
        = Closed
        !
        ",
    );
}

/// Covers: RFC 9293 §3.6
#[test]
fn active_close_is_parted_with_when_fin_is_acknowledged() {
    let mut script = Script::established();
    script.trace(
        "
        close
        > FIN ACK 1 ack 1
        < ACK 1 ack 2 win 10000
        part
        = FinWait2
        < FIN ACK 1 ack 2 win 10000
        > ACK 2 ack 2
        = TimeWait
        ! PeerFinished, Closed(Finished)
        < FIN ACK 1 ack 2 win 10000
        > ACK 2 ack 2
        ",
    );
}

/// §3.6, figure 13.
///
/// Covers: RFC 9293 §3.6
#[test]
fn simultaneous_close_goes_on() {
    let mut script = Script::established();
    script.trace(
        "
        close; part
        > FIN ACK 1 ack 1
        < FIN ACK 1 ack 1 win 10000
        > ACK 2 ack 2
        = Closing
        ! PeerFinished
        < ACK 2 ack 2 win 10000
        = TimeWait
        ! Closed(Finished)
        ",
    );
}

/// Covers: RFC 6298 §5.5, RFC 9293 §3.8.3
#[test]
fn fin_is_retransmitted_with_backoff_and_given_up() {
    let mut script = Script::established_with(Config {
        fin_retries: 3,
        ..config()
    });
    script.trace(
        "
        close; part
        > FIN ACK 1 ack 1
        +210ms
        > FIN ACK 1 ack 1
        +420ms
        > FIN ACK 1 ack 1
        +840ms
        > FIN ACK 1 ack 1
        +1679ms
        = FinWait1
        +1ms
        = Closed
        ! Closed(TimedOut)
        ",
    );
}

/// Covers: RFC 6298 §5.5
#[test]
fn a_fin_that_was_lost_is_parted_with_and_its_backoff_goes_on() {
    let mut script = Script::established();
    script.trace(
        "
        close
        > FIN ACK 1 ack 1
        ",
    );
    assert_eq!(script.tcp().remainder(), None, "it is in flight");
    script.now = script.now + Duration::from_millis(210);
    let now = script.now;
    script.tcp().on_timeout(now);
    script.part();
    script.trace(
        "
        > FIN ACK 1 ack 1
        +419ms
        = FinWait1
        +1ms
        > FIN ACK 1 ack 1
        < ACK 1 ack 2 win 10000
        = FinWait2
        ",
    );
}

/// Covers: RFC 9293 §3.10.4, RFC 2525 §2.17
#[test]
fn data_after_close_is_answered_with_a_reset() {
    let mut script = Script::established();
    script.trace(
        "
        close; part
        > FIN ACK 1 ack 1
        < ACK 1 ack 2 win 10000
        < ACK 1..101 ack 2 win 10000
        > RST ACK 2 ack 1
        = Closed
        ! Closed(Aborted)
        ",
    );
}

/// Covers: RFC 5961 §3.2, RFC 5961 §4.2, RFC 5961 §5.2
#[test]
fn blind_attacks_are_challenged() {
    for (begin, ack) in [
        ("close; part\n> FIN ACK 1 ack 1", "1"),
        (
            "close\n> FIN ACK 1 ack 1\n< ACK 1 ack 2 win 10000\npart",
            "1",
        ),
    ] {
        let mut script = Script::established();
        script.trace(begin);
        for attack in [
            "RST 2",
            "SYN 1 win 100",
            "SYN 5000 win 100",
            "ACK 1 ack 50000000 win 100",
        ] {
            script.trace(&format!("< {attack}\n> ACK 2 ack {ack}"));
        }
        script.trace("< RST 20000\n< RST 1\n= Closed\n! Closed(Reset)");
    }
}

/// Covers: RFC 5961 §7
#[test]
fn challenges_have_a_limit() {
    let mut script = Script::established_with(Config {
        challenge_acks_max: 2,
        ..config()
    });
    script.trace(
        "
        close; part
        > FIN ACK 1 ack 1
        < ACK 1 ack 2 win 10000
        < RST 2
        > ACK 2 ack 1
        < RST 2
        > ACK 2 ack 1
        < RST 2
        < RST 3
        +5s
        < RST 2
        > ACK 2 ack 1
        ",
    );
}

/// A NIC stack that has taken the place of another hears of what that one has done from the peer.
///
/// Covers: RFC 9293 §3.6, RFC 9293 §3.10.7.4 (fifth)
#[test]
fn a_late_successor_learns_from_the_peer_where_it_is() {
    // The peer has acknowledged FIN, and has sent its own, which was acknowledged.
    let mut script = Script::established();
    script.trace(
        "
        close; part
        > FIN ACK 1 ack 1
        < ACK 2 ack 2 win 10000
        = FinWait2
        +60s
        = Closed
        ! Closed(TimedOut)
        ",
    );
    // It has sent FIN, and has not heard that it has arrived.
    let mut script = Script::established();
    script.trace(
        "
        close; part
        > FIN ACK 1 ack 1
        < FIN ACK 1 ack 2 win 10000
        > ACK 2 ack 2
        = TimeWait
        ! PeerFinished, Closed(Finished)
        ",
    );
    // It knows nothing any more: FIN was answered with a reset.
    let mut script = Script::established();
    script.trace("close; part\n> FIN ACK 1 ack 1\n< RST 1\n= Closed\n! Closed(Reset)");
}

/// Covers: RFC 9293 §3.6
#[test]
fn what_is_more_than_an_end_is_not_parted_with() {
    for (state, steps) in [
        ("Established", ""),
        ("CloseWait", ""),
        // FIN is in flight.
        ("FinWait1", ""),
        ("Closing", ""),
        ("LastAck", ""),
        // The application reads.
        ("FinWait2", ""),
        ("TimeWait", ""),
        // Data is not acknowledged.
        (
            "Established",
            "write 100; close\n> FIN PSH ACK 1..101 ack 1",
        ),
        ("CloseWait", "write 100; close\n> FIN PSH ACK 1..101 ack 2"),
        // A reset is on its way.
        ("Established", "abort\n> RST ACK 1 ack 1"),
    ] {
        let mut script = Script::in_state(state);
        script.trace(steps);
        assert_eq!(script.tcp().remainder(), None, "{state} {steps}");
    }
}

/// Covers: RFC 7323 §3.2, RFC 7323 §5.3 (R1)
#[test]
fn timestamps_go_on() {
    let mut script = Script::opened(
        Config {
            timestamps: true,
            ..config()
        },
        "win 10000 mss 1000 ts 700 0",
        10_000,
    );
    script.trace(
        "
        close; part
        > FIN ACK 1 ack 1 ts 1010 700
        +30ms
        < ACK 1 ack 2 win 10000 ts 730 1010
        < FIN ACK 1 ack 2 win 10000 ts 600 1010
        > ACK 2 ack 1 ts 1040 730
        < FIN ACK 1 ack 2 win 10000 ts 740 1010
        > ACK 2 ack 2 ts 1040 740
        = TimeWait
        ",
    );
}

/// Sends what there is to send. True if the connection is closed.
fn settle(connection: &mut Connection, now: Instant) -> bool {
    while let Some(transmit) = connection.poll_transmit(now, &LIMITS) {
        if let Some(transmission) = transmit.transmission {
            connection.on_departed(transmission, now);
        }
    }
    connection.is_closed()
}

/// Whatever a host says, no segment and no time makes a connection of it panic or stay for ever.
#[test]
fn any_numbers_make_a_connection_that_ends() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..5_000 {
        let number = next();
        let stages = [
            Stage::FinWait1,
            Stage::FinWait2,
            Stage::Closing,
            Stage::LastAck,
        ];
        let wild = |word: u64| match word % 4 {
            0 => 0,
            1 => u32::MAX,
            _ => (word >> 8) as u32,
        };
        let remainder = Remainder {
            stage: stages[number as usize % 4],
            owes_ack: number & 16 > 0,
            fin_seq: wild(next()),
            rcv_nxt: wild(next()),
            rcv_window_bytes: wild(next()),
            rcv_shift: next() as u8,
            snd_window_bytes: wild(next()),
            snd_window_bytes_max: wild(next()),
            snd_shift: next() as u8,
            timestamps: (number & 32 > 0).then(|| (wild(next()), wild(next()))),
            srtt_us: wild(next()),
            rttvar_us: wild(next()),
            backoff: next() as u8,
            user_timeout_ms: wild(next()) % 1_000_000,
        };
        let config = Config {
            mss: (next() as u16).max(1),
            fin_retries: 3,
            rto_max: Duration::from_millis(next() % 60_000),
            time_wait: Duration::from_millis(next() % 60_000),
            ..Config::default()
        };
        let mut now = Instant::from_us(next() % 1_000_000_000);
        let mut connection = Connection::resume(&config, 80, 4000, &remainder, now);
        for _ in 0..100 {
            if settle(&mut connection, now) {
                break;
            }
            if next() % 4 == 0 {
                let header = Header {
                    seq: remainder.rcv_nxt.wrapping_add(wild(next()) % 3),
                    ack: remainder.fin_seq.wrapping_add(wild(next()) % 3),
                    flags: Flags(next() as u8) | Flags::ACK,
                    window: next() as u16,
                    ..Header::default()
                };
                let payload = &[0; 10][..(next() % 10) as usize];
                let ecn = wire::ip::Ecn::NotEct;
                connection.on_segment(
                    now,
                    &Segment {
                        header,
                        payload,
                        ecn,
                    },
                );
                continue;
            }
            let Some(at) = connection.next_timeout() else {
                continue;
            };
            now = at.max(now);
            connection.on_timeout(now);
        }
    }
}
