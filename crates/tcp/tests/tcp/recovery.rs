//! Recovery with SACK: RACK, PRR, tail loss probes, and what turns out to have been a mistake.
//!
//! In these traces the round trip takes 10 ms, so the reordering window is 2.5 ms at first, its
//! timer 2 ms more, and a tail loss probe comes after 22 ms.

use crate::sack::{established, established_with};
use crate::script::{Script, config};
use tcp::Config;

fn with_timestamps() -> Script {
    let timestamps = Config {
        timestamps: true,
        ..config()
    };
    established_with(timestamps, "ts 5 1000")
}

/// Covers: RFC 8985 §6.2 (step 4), RFC 6675 §4
#[test]
fn three_segments_behind_a_hole_are_a_loss() {
    let mut script = established();
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..2001
        < ACK 1 ack 1 win 60000 sack 1001..3001
        < ACK 1 ack 1 win 60000 sack 1001..4001
        > ACK 1..1001 ack 1
        +10ms
        < ACK 1 ack 10001 win 60000
        ! Released(7 10000), Drained
        ",
    );
}

/// Covers: RFC 8985 §6.2 (step 5)
#[test]
fn fewer_than_three_are_a_loss_after_the_reordering_window() {
    let mut script = established();
    script.trace(
        "
        virtual 3000
        > PSH ACK 1..3001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 2001..3001
        +4ms
        +500us
        > ACK 1..1001 ack 1
        +10ms
        < ACK 1 ack 1001 win 60000 sack 2001..3001
        > ACK 1001..2001 ack 1
        +10ms
        < ACK 1 ack 3001 win 60000
        +10s
        ",
    );
}

/// Covers: RFC 3042 §2, RFC 6675 §5
#[test]
fn what_is_selectively_acknowledged_makes_room_for_new_data() {
    let mut script = established();
    script.trace(
        "
        virtual 20000
        > ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..2001
        > ACK 10001..11001 ack 1
        < ACK 1 ack 1 win 60000 sack 1001..3001
        > ACK 11001..12001 ack 1
        < ACK 1 ack 1 win 60000 sack 1001..4001
        > ACK 1..1001 ack 1
        ",
    );
}

/// Covers: RFC 9937 §6
#[test]
fn acknowledgments_that_are_answered_together_count_as_one_when_a_loss_is_detected() {
    let mut script = established();
    script.trace(
        "
        virtual 30000
        > ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 6001 win 60000; < ACK 1 ack 6001 win 60000 sack 7001..9001;
        < ACK 1 ack 6001 win 60000 sack 7001..10001
        # 9000 were delivered, nothing is in flight. ssthresh = 8000.
        > ACK 6001..7001 ack 1
        > ACK 10001..17001 ack 1
        +10ms
        < ACK 1 ack 17001 win 60000
        > ACK 17001..25001 ack 1
        ",
    );
}

/// Covers: RFC 6675 §5, RFC 9937 §6
#[test]
fn several_holes_are_filled_in_order_and_in_one_transmission_where_they_are_wide() {
    let mut script = established();
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 3001..4001
        < ACK 1 ack 1 win 60000 sack 6001..10001 3001..4001
        # Lost: 1..3001 and 4001..6001. Nothing is in flight; the 4000
        # that were delivered may be replaced.
        > ACK 1..3001 ack 1
        > ACK 4001..5001 ack 1
        +10ms
        < ACK 1 ack 4001 win 60000 sack 6001..10001
        > ACK 5001..6001 ack 1
        < ACK 1 ack 10001 win 60000
        +10s
        ",
    );
}

/// Covers: RFC 8985 §6.2
#[test]
fn a_lost_retransmission_is_found_by_what_was_sent_after_it() {
    let mut script = established();
    script.trace(
        "
        virtual 20000
        > ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..4001
        # ssthresh = 5000: 3000 delivered are worth 1500.
        > ACK 1..1001 ack 1
        +5ms
        < ACK 1 ack 1 win 60000 sack 1001..10001
        > ACK 10001..14001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 10001..11001 1001..10001
        > ACK 1..1001 ack 1
        > ACK 14001..15001 ack 1
        ",
    );
}

/// Covers: RFC 8985 §6.2 (step 3), RFC 8985 §6.2 (step 4)
#[test]
fn a_network_that_reorders_gets_time() {
    let mut script = established();
    script.trace(
        "
        virtual 3000
        > PSH ACK 1..3001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..2001
        < ACK 1 ack 3001 win 60000
        ! Released(7 3000), Drained
        virtual 10000
        > PSH ACK 3001..13001 ack 1
        +10ms
        < ACK 1 ack 3001 win 60000 sack 4001..13001
        +4ms
        < ACK 1 ack 13001 win 60000
        +10s
        ",
    );
}

/// Covers: RFC 8985 §6.2 (step 4)
#[test]
fn d_sacks_make_the_window_for_reordering_wider() {
    let mut script = established();
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..10001
        > ACK 1..1001 ack 1
        +1ms
        < ACK 1 ack 10001 win 60000
        +9ms
        < ACK 1 ack 10001 win 60000 sack 1..1001
        virtual 10000
        > PSH ACK 10001..20001 ack 1
        +10ms
        # Two quarters of 10 ms, and 2 ms.
        < ACK 1 ack 10001 win 60000 sack 11001..20001
        +6ms
        +1ms
        > ACK 10001..11001 ack 1
        ",
    );
}

/// Covers: RFC 2883 §5, RFC 3708 §3, RFC 4015 §3
#[test]
fn a_retransmission_that_was_not_needed_is_undone_by_its_d_sack() {
    let mut script = established();
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..10001
        > ACK 1..1001 ack 1
        +1ms
        < ACK 1 ack 10001 win 60000
        ",
    );
    assert!(script.tcp().congestion_window() <= 5_000);
    script.trace("+9ms\n < ACK 1 ack 10001 win 60000 sack 1..1001");
    assert!(script.tcp().congestion_window() >= 10_000);
}

/// Covers: RFC 3522 §3.2, RFC 4015 §3
#[test]
fn an_echo_from_before_the_retransmission_undoes_fast_recovery() {
    let mut script = with_timestamps();
    script.trace(
        "
        virtual 9880
        > PSH ACK 1..9881 ack 1 ts 1010 5
        +10ms
        < ACK 1 ack 1 win 60000 ts 5 1010 sack 989..9881
        > ACK 1..989 ack 1 ts 1020 5
        +1ms
        < ACK 1 ack 9881 win 60000 ts 6 1010
        ",
    );
    assert!(script.tcp().congestion_window() >= 9_880);
    // An echo of the retransmission does not.
    let mut script = with_timestamps();
    script.trace(
        "
        virtual 9880
        > PSH ACK 1..9881 ack 1 ts 1010 5
        +10ms
        < ACK 1 ack 1 win 60000 ts 5 1010 sack 989..9881
        > ACK 1..989 ack 1 ts 1020 5
        +10ms
        < ACK 1 ack 9881 win 60000 ts 6 1020
        ",
    );
    assert!(script.tcp().congestion_window() < 6_000);
}

/// Covers: RFC 4015 §3
#[test]
fn what_arrives_before_it_is_sent_again_was_not_lost() {
    // Both acknowledgments are taken in before anything is sent.
    let mut script = established();
    script.trace(
        "
        virtual 20000
        > ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..10001; < ACK 1 ack 10001 win 60000
        > PSH ACK 10001..20001 ack 1
        ",
    );
    assert!(script.tcp().congestion_window() >= 10_000);
    // The second of two that are lost has not arrived: it is sent again when it is late, and then
    // the window shrinks.
    let mut script = established();
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 2001..10001; < ACK 1 ack 1001 win 60000 sack 2001..10001
        +4ms
        +1ms
        > ACK 1001..2001 ack 1
        +10ms
        < ACK 1 ack 10001 win 60000
        ",
    );
    assert!(script.tcp().congestion_window() < 10_000);
}

/// Covers: RFC 8985 §7.2, RFC 8985 §7.3
#[test]
fn a_silent_tail_is_probed_with_its_last_segment() {
    let mut script = established();
    script.trace(
        "
        virtual 4500
        > PSH ACK 1..4501 ack 1
        +21ms
        +1ms
        > PSH ACK 3501..4501 ack 1
        # One probe at a time: the next is the retransmission timer.
        +209ms
        +1ms
        > ACK 1..1001 ack 1
        ",
    );
}

/// Covers: RFC 8985 §7.3
#[test]
fn a_probe_is_new_data_if_there_is_any() {
    let mut script = established();
    script.trace(
        "
        virtual 20000
        > ACK 1..10001 ack 1
        +22ms
        > ACK 10001..11001 ack 1
        ",
    );
    // Not beyond the peer's window.
    let mut script = established();
    script.trace(
        "
        < ACK 1 ack 1 win 10500
        virtual 20000
        > ACK 1..10001 ack 1
        +22ms
        > ACK 9001..10001 ack 1
        ",
    );
}

/// Covers: RFC 8985 §7.2
#[test]
fn one_segment_waits_for_a_delayed_acknowledgment_before_it_is_probed() {
    let mut script = established();
    // 2 * 10 ms + 200 ms, but not later than the retransmission timer.
    script.trace(
        "
        virtual 500
        > PSH ACK 1..501 ack 1
        +209ms
        +1ms
        > PSH ACK 1..501 ack 1
        ",
    );
    assert_eq!(script.tcp().congestion_window(), 10_000);
}

/// Covers: RFC 8985 §7.2
#[test]
fn the_probe_counts_from_the_departure() {
    let mut script = established();
    script.trace(
        "
        hold
        virtual 4000
        > PSH ACK 1..4001 ack 1
        +100s
        depart
        +21ms
        +1ms
        > PSH ACK 3001..4001 ack 1
        ",
    );
}

/// Covers: RFC 8985 §7.2
#[test]
fn a_lost_retransmission_with_nothing_behind_it_is_probed_once() {
    let mut script = established();
    script.trace(
        "
        virtual 4000
        > PSH ACK 1..4001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..4001
        > ACK 1..1001 ack 1
        +21ms
        +1ms
        > ACK 1..1001 ack 1
        # Then the retransmission timer.
        +209ms
        +1ms
        > ACK 1..1001 ack 1
        ",
    );
    // It takes nothing more from the window.
    let mut script = established();
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..10001
        > ACK 1..1001 ack 1
        ",
    );
    script.trace(
        "
        +22ms
        > ACK 1..1001 ack 1
        +10ms
        < ACK 1 ack 10001 win 60000
        virtual 20000
        > ACK 10001..15001 ack 1
        ",
    );
    assert_eq!(script.tcp().congestion_window(), 5_000);
}

/// Covers: RFC 8985 §7.4
#[test]
fn a_probe_that_repairs_a_loss_is_a_loss() {
    let mut script = established();
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 9001 win 60000
        +210ms
        > PSH ACK 9001..10001 ack 1
        < ACK 1 ack 10001 win 60000
        virtual 2000
        > PSH ACK 10001..12001 ack 1
        < ACK 1 ack 12001 win 60000
        ",
    );
    // Half of what slow start had reached.
    assert_eq!(script.tcp().congestion_window(), 10_000);
}

/// Covers: RFC 8985 §7.4
#[test]
fn a_probe_that_arrives_twice_has_repaired_nothing() {
    for answer in ["sack 9001..10001", ""] {
        let mut script = established();
        script.trace(&format!(
            "
            virtual 10000
            > PSH ACK 1..10001 ack 1
            +22ms
            > PSH ACK 9001..10001 ack 1
            < ACK 1 ack 10001 win 60000
            < ACK 1 ack 10001 win 60000 {answer}
            virtual 2000
            > PSH ACK 10001..12001 ack 1
            < ACK 1 ack 12001 win 60000
            "
        ));
        assert!(script.tcp().congestion_window() >= 10_000, "{answer}");
    }
}

/// Covers: RFC 8985 §7.4
#[test]
fn what_lies_behind_a_probe_shows_what_is_lost() {
    let mut script = established();
    script.trace(
        "
        virtual 4000
        > PSH ACK 1..4001 ack 1
        +22ms
        > PSH ACK 3001..4001 ack 1
        +10ms
        # All four were lost.
        < ACK 1 ack 1 win 60000 sack 3001..4001
        > ACK 1..1001 ack 1
        ",
    );
}

/// Covers: RFC 5682 §3.1
#[test]
fn a_timeout_is_undone_when_originals_arrive() {
    let mut script = established();
    script.trace(
        "
        virtual 20000
        > ACK 1..10001 ack 1
        +22ms
        > ACK 10001..11001 ack 1
        +210ms
        > ACK 1..1001 ack 1
        < ACK 1 ack 3001 win 60000
        > ACK 11001..16001 ack 1
        ",
    );
    assert!(script.tcp().congestion_window() >= 10_000);
}

/// Covers: RFC 5682 §3.1, IO-TCP §3.5
#[test]
fn what_departs_only_after_a_timeout_undoes_nothing() {
    let mut script = established();
    script.trace(
        "
        hold
        virtual 2000
        > PSH ACK 1..2001 ack 1
        virtual 3000
        > PSH ACK 2001..5001 ack 1 behind
        depart
        +210ms
        > ACK 1..1001 ack 1 behind
        depart
        +10ms
        < ACK 1 ack 1 win 60000 sack 2001..5001
        depart
        +10ms
        < ACK 1 ack 1001 win 60000 sack 2001..5001
        > ACK 1001..2001 ack 1
        depart
        +10ms
        < ACK 1 ack 5001 win 60000
        ",
    );
    let stats = script.tcp().take_stats();
    assert_eq!((stats.timeouts, stats.spurious_timeouts), (1, 0));
}

/// Covers: RFC 5682 §3.1
#[test]
fn a_timeout_is_real_when_only_the_retransmission_is_acknowledged() {
    let mut script = established();
    script.trace(
        "
        virtual 20000
        > ACK 1..10001 ack 1
        +22ms
        > ACK 10001..11001 ack 1
        +210ms
        > ACK 1..1001 ack 1
        +10ms
        < ACK 1 ack 1001 win 60000
        > ACK 11001..13001 ack 1
        +10ms
        < ACK 1 ack 1001 win 60000 sack 11001..12001
        > ACK 1001..3001 ack 1
        ",
    );
}

/// Covers: RFC 5682 §2.1
#[test]
fn without_sack_two_acknowledgments_that_advance_undo_a_timeout() {
    let mut script = Script::opened(config(), "win 60000 mss 1000", 60_000);
    script.trace(
        "
        virtual 20000
        > ACK 1..10001 ack 1
        +210ms
        > ACK 1..1001 ack 1
        < ACK 1 ack 2001 win 60000
        > ACK 10001..12001 ack 1
        < ACK 1 ack 4001 win 60000
        > ACK 12001..16001 ack 1
        ",
    );
    assert!(script.tcp().congestion_window() >= 10_000);
}

/// Covers: RFC 5682 §2.1
#[test]
fn without_sack_a_duplicate_makes_a_timeout_real() {
    let mut script = Script::opened(config(), "win 60000 mss 1000", 60_000);
    script.trace(
        "
        virtual 20000
        > ACK 1..10001 ack 1
        +210ms
        > ACK 1..1001 ack 1
        < ACK 1 ack 1001 win 60000
        > ACK 10001..12001 ack 1
        < ACK 1 ack 1001 win 60000
        > ACK 1001..3001 ack 1
        ",
    );
}

/// Covers: RFC 6675 §5.1, RFC 6298 §5.4
#[test]
fn after_a_timeout_only_holes_are_sent_again() {
    let mut script = established();
    script.trace(
        "
        virtual 6000
        > PSH ACK 1..6001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 3001..4001
        +4500us
        > ACK 1..1001 ack 1
        +210ms
        > ACK 1..1001 ack 1
        +10ms
        < ACK 1 ack 1001 win 60000 sack 3001..4001
        > ACK 1001..3001 ack 1
        +10ms
        < ACK 1 ack 4001 win 60000
        > PSH ACK 4001..6001 ack 1
        ",
    );
}

/// Covers: RFC 2018 §8
#[test]
fn what_the_peer_has_dropped_is_sent_again_after_a_timeout() {
    let mut script = established();
    script.trace(
        "
        virtual 4000
        > PSH ACK 1..4001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..4001
        > ACK 1..1001 ack 1
        +10ms
        < ACK 1 ack 1001 win 60000
        +210ms
        > ACK 1001..2001 ack 1
        < ACK 1 ack 2001 win 60000
        > PSH ACK 2001..4001 ack 1
        ",
    );
}

/// Covers: RFC 2018 §5, RFC 2883 §4, RFC 5961 §5.2
#[test]
fn blocks_of_an_acknowledgment_that_was_overtaken_count() {
    let mut script = established();
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 3001 win 60000
        < ACK 1 ack 1001 win 60000 sack 2001..3001 4001..8001
        > ACK 3001..4001 ack 1
        +10ms
        < ACK 1 ack 10001 win 60000
        ! Released(7 10000), Drained
        ",
    );
}

/// Covers: RFC 2883 §4, RFC 3708 §3
#[test]
fn a_d_sack_of_an_acknowledgment_that_was_overtaken_undoes_a_retransmission() {
    let mut script = established();
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..4001
        > ACK 1..1001 ack 1
        +5ms
        < ACK 1 ack 10001 win 60000
        +5ms
        < ACK 1 ack 4001 win 60000 sack 1..1001
        window 10000
        ",
    );
}

/// Covers: RFC 2018 §3
#[test]
fn blocks_that_make_no_sense_are_ignored() {
    let mut script = established();
    script.trace(
        "
        virtual 5000
        > PSH ACK 1..5001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..9001 4001..2001 3001..3001
        < ACK 1 ack 1 win 60000 sack 6001..9001
        +10ms
        < ACK 1 ack 5001 win 60000
        +10s
        = Established
        ",
    );
    // So are blocks of a peer that has not permitted them.
    let mut script = Script::established();
    script.trace(
        "
        virtual 5000
        > PSH ACK 1..5001 ack 1
        +10ms
        < ACK 1 ack 1 win 10000 sack 1001..5001
        +199ms
        ",
    );
}

/// Covers: RFC 8985 §6.2
#[test]
fn what_has_not_departed_is_not_lost() {
    let mut script = established();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        virtual 5000
        > PSH ACK 3001..8001 ack 1
        depart
        depart
        +10ms
        < ACK 1 ack 1 win 60000 sack 3001..8001
        > ACK 1..3001 ack 1
        # The second transmission of 1..3001 waits for its file.
        +100s
        depart
        +210ms
        > ACK 1..1001 ack 1
        ",
    );
}
