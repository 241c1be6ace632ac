//! RTO, fast retransmit and fast recovery (RFC 6298, RFC 5681, RFC 6582, RFC 3042).

use std::time::Duration;

use crate::script::{Script, config};
use tcp::Config;

/// Covers: RFC 6298 §5.4, RFC 6298 §5.5, RFC 6298 §5.6, RFC 9293 §3.8.3
#[test]
fn rto_backs_off_and_gives_up_after_the_retries() {
    let mut script = Script::established_with(Config {
        retries: 4,
        ..config()
    });
    // The handshake has measured 10 ms; RTO = SRTT + max(200 ms, 4 * RTTVAR) = 210 ms.
    script.trace(
        "
        write 500
        > PSH ACK 1..501 ack 1
        +209ms
        +1ms
        > PSH ACK 1..501 ack 1
        +419ms
        +1ms
        > PSH ACK 1..501 ack 1
        +840ms
        > PSH ACK 1..501 ack 1
        +1680ms
        > PSH ACK 1..501 ack 1
        +3359ms
        = Established
        +1ms
        = Closed
        ! Closed(TimedOut)
        ",
    );
}

/// Covers: RFC 9293 §3.10.8
#[test]
fn the_user_timeout_ends_it_earlier() {
    let user_timeout = Some(Duration::from_secs(1));
    let mut script = Script::established_with(Config {
        user_timeout,
        ..config()
    });
    script.trace(
        "
        write 500
        > PSH ACK 1..501 ack 1
        +210ms
        > PSH ACK 1..501 ack 1
        +420ms
        > PSH ACK 1..501 ack 1
        +840ms
        = Closed
        ! Closed(TimedOut)
        ",
    );
}

/// Covers: RFC 6298 §5.2, RFC 6298 §5.3
#[test]
fn an_ack_of_new_data_restarts_the_timer_and_the_last_one_stops_it() {
    // RFC 6298 §5.2, §5.3
    let mut script = Script::established();
    script.trace(
        "
        write 2000
        > PSH ACK 1..2001 ack 1
        +200ms
        < ACK 1 ack 1001 win 10000
        +209ms
        < ACK 1 ack 2001 win 10000
        +100s
        = Established
        ",
    );
}

/// Covers: RFC 6298 §3, RFC 6298 §5.5
#[test]
fn karn_without_timestamps_the_backoff_stays_until_fresh_data_is_acknowledged() {
    let mut script = Script::established();
    script.trace(
        "
        write 500
        > PSH ACK 1..501 ack 1
        +210ms
        > PSH ACK 1..501 ack 1
        +10ms
        < ACK 1 ack 501 win 10000
        write 500
        > PSH ACK 501..1001 ack 1
        +419ms
        +1ms
        > PSH ACK 501..1001 ack 1
        < ACK 1 ack 1001 win 10000
        write 500
        > PSH ACK 1001..1501 ack 1
        +10ms
        < ACK 1 ack 1501 win 10000
        write 500
        > PSH ACK 1501..2001 ack 1
        +209ms
        +1ms
        > PSH ACK 1501..2001 ack 1
        ",
    );
}

/// Covers: RFC 5681 §3.1, RFC 6298 §5.4
#[test]
fn after_a_timeout_slow_start_goes_through_what_was_in_flight() {
    let mut script = Script::established();
    script.trace(
        "
        write 8000
        > ACK 1..4001 ack 1
        > PSH ACK 4001..8001 ack 1
        +210ms
        > ACK 1..1001 ack 1
        < ACK 1 ack 1001 win 10000
        > ACK 1001..3001 ack 1
        < ACK 1 ack 3001 win 10000
        > ACK 3001..7001 ack 1
        # The rest had arrived before: it is not sent again.
        < ACK 1 ack 8001 win 10000
        +100s
        = Established
        ",
    );
}

/// Covers: RFC 9293 §3.4
#[test]
fn what_was_acknowledged_is_never_sent_again() {
    let mut script = Script::established();
    script.trace(
        "
        write 8000
        > ACK 1..4001 ack 1
        > PSH ACK 4001..8001 ack 1
        +210ms
        > ACK 1..1001 ack 1
        < ACK 1 ack 5501 win 10000
        > PSH ACK 5501..8001 ack 1
        ",
    );
}

/// Covers: RFC 3042 §2, RFC 5681 §3.2, RFC 6582 §3.2 (step 3)
#[test]
fn three_duplicates_retransmit_and_limited_transmit_keeps_the_clock() {
    let mut script = Script::opened(config(), "win 60000 mss 1000", 60_000);
    script.trace(
        "
        virtual 20000
        > ACK 1..10001 ack 1
        # RFC 3042: a new segment for each of the first two duplicates.
        < ACK 1 ack 1 win 60000
        > ACK 10001..11001 ack 1
        < ACK 1 ack 1 win 60000
        > ACK 11001..12001 ack 1
        < ACK 1 ack 1 win 60000
        > ACK 1..1001 ack 1
        # ssthresh = 6000, cwnd = 9000, and 1000 more for each duplicate; 12000 are in flight.
        < ACK 1 ack 1 win 60000
        < ACK 1 ack 1 win 60000
        < ACK 1 ack 1 win 60000
        < ACK 1 ack 1 win 60000
        > ACK 12001..13001 ack 1
        < ACK 1 ack 1 win 60000
        > ACK 13001..14001 ack 1
        < ACK 1 ack 12001 win 60000
        # Recovered: cwnd = ssthresh = 6000; 2000 are in flight.
        > ACK 14001..18001 ack 1
        ",
    );
}

/// Covers: RFC 6582 §3.2 (step 3)
#[test]
fn partial_acknowledgments_retransmit_the_next_hole() {
    let mut script = Script::established();
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        > ACK 1..1001 ack 1
        < ACK 1 ack 4001 win 10000
        > ACK 4001..5001 ack 1
        # Crumbs do not bring the same segment again.
        < ACK 1 ack 4002 win 10000
        < ACK 1 ack 4003 win 10000
        < ACK 1 ack 8001 win 10000
        > ACK 8001..9001 ack 1
        < ACK 1 ack 10001 win 10000
        ! Released(7 10000), Drained
        +100s
        ",
    );
}

/// RFC 6582 §4, the impatient variant.
///
/// Covers: RFC 6582 §4
#[test]
fn only_the_first_partial_acknowledgment_restarts_the_timer() {
    let mut script = Script::established();
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        > ACK 1..1001 ack 1
        +100ms
        < ACK 1 ack 2001 win 10000
        > ACK 2001..3001 ack 1
        +100ms
        < ACK 1 ack 4001 win 10000
        > ACK 4001..5001 ack 1
        +109ms
        +1ms
        > ACK 4001..5001 ack 1
        ",
    );
}

/// Covers: RFC 6582 §3.2 (step 2)
#[test]
fn duplicates_after_a_timeout_do_not_start_fast_recovery() {
    // RFC 6582 §3.2 step 2: they stem from our own retransmissions.
    let mut script = Script::established();
    script.trace(
        "
        virtual 5000
        > PSH ACK 1..5001 ack 1
        +210ms
        > ACK 1..1001 ack 1
        < ACK 1 ack 3001 win 10000
        > PSH ACK 3001..5001 ack 1
        ",
    );
    script.trace(
        "
        < ACK 1 ack 5001 win 10000
        virtual 2000
        > PSH ACK 5001..7001 ack 1
        < ACK 1 ack 5001 win 10000
        < ACK 1 ack 5001 win 10000
        < ACK 1 ack 5001 win 10000
        ",
    );
}

/// Covers: RFC 5681 §2
#[test]
fn what_looks_like_a_duplicate_and_is_none() {
    // RFC 5681 §2: no text, no FIN, the same window, and something in flight.
    let mut script = Script::established();
    script.trace(
        "
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        virtual 5000
        > PSH ACK 1..5001 ack 1
        < ACK 1 ack 1 win 9999
        < ACK 1 ack 1 win 9998
        < ACK 1 ack 1 win 9997
        < ACK 1..11 ack 1 win 9997
        < ACK 11..21 ack 1 win 9997
        < ACK 21..31 ack 1 win 9997
        < FIN ACK 31 ack 1 win 9997
        > ACK 5001 ack 32
        < ACK 32 ack 1 win 9997
        < ACK 32 ack 1 win 9997
        = CloseWait
        < ACK 32 ack 1 win 9997
        > ACK 1..1001 ack 32
        ",
    );
}

/// Covers: RFC 5681 §3.2
#[test]
fn a_flood_of_duplicates_inflates_the_window_by_no_more_than_was_in_flight() {
    let mut script = Script::opened(config(), "win 65535 mss 1000", 65_535);
    script.trace(
        "
        virtual 100000
        > ACK 1..10001 ack 1
        ",
    );
    let now = script.now;
    let limits = script.limits;
    let mut highest = 0;
    for _ in 0..1000 {
        let header = wire::tcp::Header {
            source_port: 40_000,
            destination_port: 80,
            seq: crate::script::IRS.wrapping_add(1),
            ack: crate::script::ISS.wrapping_add(1),
            flags: wire::tcp::Flags::ACK,
            window: 65535,
            ..Default::default()
        };
        script.tcp().on_segment(
            now,
            &wire::tcp::Segment {
                header,
                payload: &[],
                ecn: wire::ip::Ecn::NotEct,
            },
        );
        while let Some(transmit) = script.tcp().poll_transmit(now, &limits) {
            highest = highest.max(transmit.range.end);
        }
    }
    // 12 in flight when the loss was seen: 6 + 12.
    assert_eq!(highest, 18_000);
}

/// Covers: RFC 6298 §5.4
#[test]
fn a_lost_retransmission_is_found_by_the_timer() {
    let mut script = Script::established();
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        > ACK 1..1001 ack 1
        +210ms
        > ACK 1..1001 ack 1
        +420ms
        > ACK 1..1001 ack 1
        < ACK 1 ack 10001 win 10000
        ! Released(7 10000), Drained
        ",
    );
}

/// Covers: IO-TCP §3.4
#[test]
fn mixed_content_is_retransmitted_as_it_was() {
    let mut script = Script::established();
    script.trace(
        "
        write 300
        > PSH ACK 1..301 ack 1
        virtual 900
        > PSH ACK 301..1201 ack 1
        write 50
        > PSH ACK 1201..1251 ack 1
        +210ms
        > ACK 1..1001 ack 1
        ",
    );
    let kinds: Vec<String> = script
        .tcp()
        .pieces(0..1000)
        .map(|piece| match piece {
            tcp::Piece::Real(bytes) => format!("real {}", bytes.len()),
            tcp::Piece::Virtual {
                object,
                offset,
                len,
            } => format!("virtual {object} {offset} {len}"),
        })
        .collect();
    assert_eq!(kinds, ["real 300", "virtual 7 300 700"]);
}

/// Covers: RFC 9293 §3.8.6 (SHLD-15)
#[test]
fn after_a_timeout_retransmissions_respect_a_window_that_has_shrunk() {
    let mut script = Script::established();
    script.trace(
        "
        write 8000
        > ACK 1..4001 ack 1
        > PSH ACK 4001..8001 ack 1
        +210ms
        > ACK 1..1001 ack 1
        < ACK 1 ack 1001 win 1500
        > ACK 1001..2001 ack 1
        < ACK 1 ack 2001 win 3000
        > ACK 2001..5001 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.10.4
#[test]
fn a_fin_waits_until_what_is_lost_has_been_sent_again() {
    let mut script = Script::established();
    script.trace(
        "
        write 3000
        > PSH ACK 1..3001 ack 1
        +210ms
        > ACK 1..1001 ack 1
        shutdown
        < ACK 1 ack 1001 win 10000
        > PSH ACK 1001..3001 ack 1
        > FIN ACK 3001 ack 1
        ",
    );
}

/// Covers: RFC 6582 §3.2 (step 3)
#[test]
fn a_partial_acknowledgment_deflates_the_window() {
    let mut script = Script::opened(config(), "win 60000 mss 1000", 60_000);
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1
        < ACK 1 ack 1 win 60000
        < ACK 1 ack 1 win 60000
        < ACK 1 ack 1 win 60000
        > ACK 1..1001 ack 1
        ",
    );
    // ssthresh = 5000, plus three segments.
    assert_eq!(script.tcp().congestion_window(), 8000);
    script.trace("< ACK 1 ack 1 win 60000\n < ACK 1 ack 4001 win 60000\n > ACK 4001..5001 ack 1");
    // 9000, less 4000 acknowledged, plus one segment.
    assert_eq!(script.tcp().congestion_window(), 6000);
    // Recovery ends at ssthresh.
    script.trace("< ACK 1 ack 10001 win 60000");
    assert_eq!(script.tcp().congestion_window(), 5000);
}
