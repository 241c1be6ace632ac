//! Real and virtual bytes in one stream: what is sent together, what must wait its turn, and what a
//! retransmission consists of.

use crate::script::{LIMITS, Script, config};
use tcp::{Config, Limits};

/// Covers: IO-TCP §3.3
#[test]
fn header_and_file_share_a_transmission() {
    let mut script = Script::established();
    script.trace(
        "
        write 300; virtual 700
        > PSH ACK 1..1001 ack 1 real 300 file 700 alone
        ",
    );
}

/// Covers: IO-TCP §3.3
#[test]
fn any_mix_keeps_its_order_in_the_stream() {
    let mut script = Script::established();
    script.trace(
        "
        write 100; virtual 500; write 20; virtual 1; virtual 79; write 300; virtual 2000
        > PSH ACK 1..3001 ack 1 real 100 file 500 real 20 file 1 file 79 real 300 file 2000
        < ACK 1 ack 3001 win 10000
        ! Released(7 600), Released(7 621), Released(7 700), Released(7 3000), Drained
        ",
    );
}

/// Covers: IO-TCP §3.5
#[test]
fn real_bytes_behind_virtual_ones_follow_them_until_these_have_departed() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 1000
        > PSH ACK 1..1001 ack 1 file 1000 alone
        write 100
        > PSH ACK 1001..1101 ack 1 real 100 behind
        write 100
        > PSH ACK 1101..1201 ack 1 real 100 behind
        depart
        write 100
        > PSH ACK 1201..1301 ack 1 real 100 behind
        depart
        depart
        depart
        write 100
        > PSH ACK 1301..1401 ack 1 real 100 alone
        ",
    );
}

/// Covers: IO-TCP §3.5
#[test]
fn a_fin_behind_virtual_bytes_follows_them() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 1000
        > PSH ACK 1..1001 ack 1 file 1000
        shutdown
        > FIN ACK 1001 ack 1 behind
        +100s
        = FinWait1
        depart
        depart
        +10ms
        < ACK 1 ack 1002 win 10000
        = FinWait2
        ",
    );
}

/// Covers: IO-TCP §3.5
#[test]
fn a_fin_rides_on_the_last_virtual_byte() {
    let mut script = Script::established();
    script.trace(
        "
        virtual 1500; shutdown
        > FIN PSH ACK 1..1501 ack 1 file 1500
        < ACK 1 ack 1502 win 10000
        ! Released(7 1500), Drained
        = FinWait2
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 9293 §3.10.5
#[test]
fn a_reset_does_not_count_what_it_overtakes_but_says_that_it_may() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 5000
        > PSH ACK 1..5001 ack 1 file 5000
        abort
        > RST ACK 1 ack 1
        = Closed
        ! Closed(Aborted)
        depart
        +100s
        = Closed
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 6298 §5.4
#[test]
fn a_retransmission_consists_of_the_original_ranges() {
    let mut script = Script::established();
    script.trace(
        "
        write 300; virtual 900; write 50; virtual 250
        > PSH ACK 1..1501 ack 1 real 300 file 900 real 50 file 250
        +210ms
        > ACK 1..1001 ack 1 real 300 file 700
        < ACK 1 ack 1001 win 10000
        > PSH ACK 1001..1501 ack 1 file 200 real 50 file 250
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 9293 §3.8
#[test]
fn a_retransmission_merges_what_was_sent_apart() {
    let mut script = Script::established();
    script.trace(
        "
        write 200
        > PSH ACK 1..201 ack 1 real 200
        virtual 300
        > PSH ACK 201..501 ack 1 file 300
        write 100
        > PSH ACK 501..601 ack 1 real 100
        +210ms
        > PSH ACK 1..601 ack 1 real 200 file 300 real 100
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 9293 §3.4
#[test]
fn a_retransmission_leaves_out_the_part_of_a_range_that_is_acknowledged() {
    let mut script = Script::established();
    script.trace(
        "
        virtual 3000
        > PSH ACK 1..3001 ack 1 file 3000
        < ACK 1 ack 1501 win 10000
        +300ms
        > ACK 1501..2501 ack 1 file 1000
        < ACK 1 ack 2001 win 10000
        > PSH ACK 2501..3001 ack 1 file 500
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 6298 §5.4
#[test]
fn a_retransmission_waits_for_its_turn_behind_what_the_nic_stack_still_reads() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 1000
        > PSH ACK 1..1001 ack 1
        virtual 1000
        > PSH ACK 1001..2001 ack 1
        depart
        +210ms
        > ACK 1..1001 ack 1 file 1000 behind
        depart
        depart
        +10ms
        < ACK 1 ack 2001 win 10000
        ! Released(7 1000), Released(7 2000), Drained
        +100s
        = Established
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 9293 §3.8.6.1
#[test]
fn a_window_probe_costs_no_read() {
    let mut script = Script::established();
    script.trace(
        "
        virtual 1000
        > PSH ACK 1..1001 ack 1
        < ACK 1 ack 1001 win 0
        virtual 1000
        +300ms
        > ACK 1000 ack 1
        < ACK 1 ack 1001 win 10000
        > PSH ACK 1001..2001 ack 1 file 1000
        ",
    );
}

/// Covers: IO-TCP §3.3
#[test]
fn a_file_longer_than_a_send_is_cut_at_full_segments_and_its_ranges_join() {
    let mut script = Script::listen(config());
    script.limits = Limits {
        bytes_max: 3500,
        ..LIMITS
    };
    script.trace(
        "
        < SYN 0 win 60000 mss 1000
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 60000
        write 500; virtual 7000; write 10
        > ACK 1..3001 ack 1 real 500 file 2500
        > ACK 3001..6001 ack 1 file 3000
        > PSH ACK 6001..7511 ack 1 file 1500 real 10
        ",
    );
}

/// Covers: IO-TCP §3.3
#[test]
fn real_bytes_beyond_what_a_send_may_carry_inline_go_with_the_next_one() {
    let mut script = Script::established_with(Config {
        send_buffer_bytes: 20_000,
        ..config()
    });
    script.limits = Limits {
        real_bytes_max: 2000,
        ..LIMITS
    };
    script.trace(
        "
        virtual 1000; write 3000; virtual 500
        > ACK 1..3001 ack 1 file 1000 real 2000
        > PSH ACK 3001..4501 ack 1 real 1000 file 500
        ",
    );
}

/// What is all real leaves from the host's own port, where no SEND bounds it.
///
/// Covers: IO-TCP §3.3
#[test]
fn real_bytes_alone_go_together_unless_they_wait_for_what_has_not_departed() {
    let mut script = Script::established_with(Config {
        send_buffer_bytes: 20_000,
        ..config()
    });
    script.limits = Limits {
        real_bytes_max: 2000,
        direct_bytes_max: 6000,
        ..LIMITS
    };
    script.trace(
        "
        write 7000; virtual 1000
        > ACK 1..6001 ack 1 real 6000
        > PSH ACK 6001..8001 ack 1 real 1000 file 1000
        < ACK 1 ack 8001 win 20000
        ! Released(7 8000), Drained
        hold
        virtual 1000
        > PSH ACK 8001..9001 ack 1 file 1000
        write 3000
        > ACK 9001..11001 ack 1 real 2000
        > PSH ACK 11001..12001 ack 1 real 1000
        ",
    );
}

/// Covers: IO-TCP §3.5
#[test]
fn an_acknowledgment_within_a_range_releases_it_only_at_its_end() {
    let mut script = Script::established();
    script.trace(
        "
        virtual 1000; virtual 1000
        > PSH ACK 1..2001 ack 1 file 1000 file 1000
        < ACK 1 ack 1000 win 10000
        !
        < ACK 1 ack 1001 win 10000
        ! Released(7 1000)
        < ACK 1 ack 2000 win 10000
        !
        < ACK 1 ack 2001 win 10000
        ! Released(7 2000), Drained
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 6298 §5.3
#[test]
fn several_transmissions_are_outstanding_and_their_reports_may_come_in_any_batch() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 1000
        > PSH ACK 1..1001 ack 1
        virtual 1000
        > PSH ACK 1001..2001 ack 1
        virtual 1000
        > PSH ACK 2001..3001 ack 1
        +50ms
        depart; depart; depart
        +10ms
        < ACK 1 ack 3001 win 10000
        ! Released(7 1000), Released(7 2000), Released(7 3000), Drained
        +100s
        = Established
        ",
    );
    let rtt = script.tcp().smoothed_rtt().expect("measured");
    assert_eq!(rtt.as_millis(), 10, "from the departure");
}

/// Covers: IO-TCP §3.5
#[test]
fn a_reset_of_the_peer_ends_what_waits_for_its_departure() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 5000
        > PSH ACK 1..5001 ack 1
        < RST 1
        = Closed
        ! Closed(Reset)
        depart
        +100s
        = Closed
        !
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 9293 §3.6
#[test]
fn a_peer_that_closes_does_not_hurry_virtual_bytes() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 2000; shutdown
        > FIN PSH ACK 1..2001 ack 1
        < FIN ACK 1 ack 1 win 10000
        > ACK 2002 ack 2
        = Closing
        +100s
        = Closing
        depart
        < ACK 2 ack 2002 win 10000
        = TimeWait
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 1191 §6.4, RFC 4821 §7.8
#[test]
fn what_was_too_big_for_the_path_is_cut_again_and_keeps_its_ranges() {
    let mut script = Script::established();
    script.trace(
        "
        write 300; virtual 2700
        > PSH ACK 1..3001 ack 1 real 300 file 2700 cut 1000
        icmp too big 640 seq 1
        > PSH ACK 1..3001 ack 1 real 300 file 2700 cut 600
        < ACK 1 ack 3001 win 10000
        virtual 1000
        > PSH ACK 3001..4001 ack 1 file 1000 cut 600
        ",
    );
}

/// Covers: RFC 5927 §7.2, RFC 1191 §6.4
#[test]
fn a_forged_too_big_changes_nothing() {
    let mut script = Script::established();
    script.trace(
        "
        virtual 2000
        > PSH ACK 1..2001 ack 1
        # About nothing that is in flight, larger than what is sent, smaller than any path.
        icmp too big 640 seq 2001
        icmp too big 640 seq 4000000
        icmp too big 1500 seq 1
        icmp too big 20 seq 1
        < ACK 1 ack 2001 win 10000
        icmp too big 640 seq 1
        virtual 2000
        > PSH ACK 2001..4001 ack 1 cut 1000
        ",
    );
}

/// Covers: RFC 5461 §2, RFC 5927 §5.2, RFC 9293 §3.9.2.2
#[test]
fn unreachable_ends_nothing_that_is_established_whatever_it_says() {
    for state in Script::SYNCHRONIZED {
        let mut script = Script::in_state(state);
        script.trace(&format!(
            "
            icmp unreachable hard seq 0
            icmp unreachable hard seq 1
            icmp unreachable soft seq 1
            = {state}
            !
            < RST {}
            = Closed
            ",
            if matches!(state, "CloseWait" | "Closing" | "LastAck") {
                2
            } else {
                1
            }
        ));
    }
}

/// An object that is queued as far as there is room.
fn bounded(bytes: u64) -> Script {
    Script::established_with(Config {
        virtual_bytes_max: bytes,
        ..config()
    })
}

/// Covers: RFC 9293 §3.9.1.2
#[test]
fn virtual_bytes_that_are_not_sent_have_a_bound_of_their_own() {
    let mut script = bounded(30_000);
    // Twice the window, 20,000, is less.
    assert_eq!(script.tcp().virtual_room(), 30_000);
    script.trace("write 500\n> PSH ACK 1..501 ack 1");
    assert_eq!(script.tcp().virtual_room(), 30_000, "real bytes");
    script.trace("virtual 10000\n> ACK 501..9501 ack 1");
    assert_eq!(script.tcp().virtual_room(), 29_000, "what is in flight");
    assert!(script.tcp().takes_virtual());
    assert_eq!(script.tcp().write_virtual(7, 0, u64::MAX - 1), 29_000);
    assert_eq!(script.tcp().virtual_room(), 0);
    assert!(!script.tcp().takes_virtual());
    assert_eq!(script.tcp().write_virtual(7, 0, 1), 0);
    assert_eq!(script.tcp().write(b"real"), 4, "which have their own");
}

/// Covers: RFC 9293 §3.9.1.2
#[test]
fn a_writer_of_virtual_bytes_is_woken_when_a_quarter_of_the_bound_is_free() {
    let mut script = bounded(40_000);
    assert_eq!(script.tcp().write_virtual(7, 0, 100_000), 40_000);
    script.trace("> ACK 1..10001 ack 1\n!");
    // 30,000 are not sent: three quarters.
    script.trace("< ACK 1 ack 1 win 5000\n!\n< ACK 1 ack 1001 win 10000\n> ACK 10001..11001 ack 1");
    script.trace("! Writable");
    assert!(script.tcp().virtual_room() >= 10_000);
}

/// Covers: RFC 9293 §3.9.1.2
#[test]
fn the_bound_of_virtual_bytes_follows_the_window() {
    let mut script = bounded(1);
    assert_eq!(script.tcp().write_virtual(7, 0, 100_000), 20_000);
    script.trace(
        "
        > ACK 1..10001 ack 1
        !
        < ACK 1 ack 2001 win 20000
        window 12000
        > ACK 10001..14001 ack 1
        ! Writable
        ",
    );
    // 6,000 are not sent, of 24,000.
    assert_eq!(script.tcp().virtual_room(), 18_000);
}

/// Covers: RFC 9293 §3.9.1.2
#[test]
fn the_bound_of_virtual_bytes_may_change_and_end() {
    let mut script = Script::established();
    assert_eq!(script.tcp().virtual_room(), u64::MAX, "none by default");
    script.tcp().set_virtual_bytes_max(Some(25_000));
    assert_eq!(script.tcp().write_virtual(7, 0, 100_000), 25_000);
    script.trace("> ACK 1..10001 ack 1");
    assert_eq!(script.tcp().virtual_room(), 10_000);
    script.tcp().set_virtual_bytes_max(Some(19_000));
    assert_eq!(script.tcp().virtual_room(), 5_000, "two windows");
    script.trace("! Writable");
    assert_eq!(script.tcp().write_virtual(7, 0, 100_000), 5_000);
    script.trace("!");
    script.tcp().set_virtual_bytes_max(None);
    script.trace("! Writable");
    assert_eq!(script.tcp().write_virtual(7, 0, 100_000), 100_000);
    script.trace("shutdown");
    assert!(!script.tcp().takes_virtual());
}
