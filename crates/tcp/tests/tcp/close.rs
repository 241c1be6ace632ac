//! Closing connections (RFC 9293 §3.6, §3.10.4, §3.10.7.4).

use crate::script::{Script, config};
use tcp::Config;

/// Covers: RFC 9293 §3.6, RFC 9293 §3.6.1, RFC 9293 §3.10.4
#[test]
fn active_close() {
    let mut script = Script::established();
    script.trace(
        "
        shutdown
        = FinWait1
        > FIN ACK 1 ack 1
        < ACK 1 ack 2 win 10000
        = FinWait2
        < FIN ACK 1 ack 2 win 10000
        > ACK 2 ack 2
        = TimeWait
        ! PeerFinished, Closed(Finished)
        +59999ms
        = TimeWait
        +1ms
        = Closed
        !
        ",
    );
    assert!(script.tcp().is_closed());
}

/// Covers: RFC 9293 §3.6, RFC 9293 §3.10.7.4 (eighth)
#[test]
fn passive_close() {
    let mut script = Script::established();
    script.trace(
        "
        < FIN ACK 1 ack 1 win 10000
        > ACK 1 ack 2
        = CloseWait
        ! PeerFinished
        shutdown
        > FIN ACK 1 ack 2
        = LastAck
        < ACK 2 ack 2 win 10000
        = Closed
        ! Closed(Finished)
        ",
    );
    assert!(script.tcp().is_closed());
}

/// §3.6, figure 13.
///
/// Covers: RFC 9293 §3.6
#[test]
fn simultaneous_close() {
    let mut script = Script::established();
    script.trace(
        "
        shutdown
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

/// Covers: RFC 9293 §3.10.7.4 (eighth)
#[test]
fn fin_wait_1_goes_to_time_wait_when_fin_and_ack_come_together() {
    let mut script = Script::in_state("FinWait1");
    script.trace(
        "
        < FIN ACK 1 ack 2 win 10000
        > ACK 2 ack 2
        = TimeWait
        ",
    );
}

/// Covers: RFC 9293 §3.6, RFC 9293 §3.10.7.4 (seventh)
#[test]
fn half_close_goes_on_receiving() {
    let mut script = Script::in_state("FinWait2");
    script.trace(
        "
        < ACK 1..1001 ack 2 win 10000
        < PSH ACK 1001..2001 ack 2 win 10000
        > ACK 2 ack 2001
        ! Readable
        read 2000
        < FIN ACK 2001..2101 ack 2 win 10000
        > ACK 2 ack 2102
        ! Readable, PeerFinished, Closed(Finished)
        = TimeWait
        read 100
        ",
    );
}

/// Covers: RFC 9293 §3.6
#[test]
fn half_closed_by_the_peer_goes_on_sending() {
    let mut script = Script::in_state("CloseWait");
    script.trace(
        "
        write 2000
        > PSH ACK 1..2001 ack 2
        < ACK 2 ack 2001 win 10000
        ! Drained
        = CloseWait
        ",
    );
}

/// Covers: RFC 9293 §3.10.4, RFC 9293 §3.10.7.4 (fifth)
#[test]
fn fin_follows_all_that_is_queued() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 1500 mss 1000
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 1500
        write 2000; shutdown
        > ACK 1..1001 ack 1
        = FinWait1
        < ACK 1 ack 1001 win 1500
        > FIN PSH ACK 1001..2001 ack 1
        < ACK 1 ack 2001 win 1500
        = FinWait1
        < ACK 1 ack 2002 win 1500
        = FinWait2
        ",
    );
}

/// Covers: RFC 9293 §3.10.2, RFC 9293 §3.10.4
#[test]
fn nothing_can_be_written_after_shutdown() {
    let mut script = Script::in_state("FinWait1");
    assert_eq!(script.tcp().write(b"more"), 0);
    assert_eq!(script.tcp().write_virtual(1, 0, 10), 0);
    script.trace("shutdown\n = FinWait1");
}

/// Covers: RFC 9293 §3.6, RFC 6298 §5.4
#[test]
fn a_lost_fin_is_sent_again() {
    let mut script = Script::in_state("FinWait1");
    script.trace(
        "
        +210ms
        > FIN ACK 1 ack 1
        < ACK 1 ack 2 win 10000
        = FinWait2
        ",
    );
    let mut script = Script::in_state("LastAck");
    script.trace(
        "
        +210ms
        > FIN ACK 1 ack 2
        < ACK 2 ack 2 win 10000
        = Closed
        ",
    );
}

/// Covers: RFC 6298 §5.4
#[test]
fn a_lost_fin_goes_again_with_the_text_before_it() {
    let mut script = Script::established();
    script.trace(
        "
        write 500; shutdown
        > FIN PSH ACK 1..501 ack 1
        +210ms
        > FIN PSH ACK 1..501 ack 1
        < ACK 1 ack 501 win 10000
        = FinWait1
        +420ms
        > FIN ACK 501 ack 1
        < ACK 1 ack 502 win 10000
        = FinWait2
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (eighth)
#[test]
fn fin_ahead_of_the_text_before_it_waits() {
    let mut script = Script::established();
    script.trace(
        "
        < FIN PSH ACK 1001..1101 ack 1 win 10000
        > ACK 1 ack 1
        = Established
        !
        < ACK 1..1001 ack 1 win 10000
        > ACK 1 ack 1102
        = CloseWait
        ! Readable, PeerFinished
        read 1100
        ",
    );
    let mut script = Script::established();
    script.trace(
        "
        < FIN ACK 101 ack 1 win 10000
        > ACK 1 ack 1
        < ACK 1..101 ack 1 win 10000
        > ACK 1 ack 102
        = CloseWait
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (first)
#[test]
fn a_repeated_fin_is_acknowledged_again() {
    for state in ["CloseWait", "Closing", "LastAck", "TimeWait"] {
        let mut script = Script::in_state(state);
        let seq = match state {
            "CloseWait" => 1,
            _ => 2,
        };
        script.trace(&format!(
            "
            < FIN ACK 1 ack 1 win 10000
            > ACK {seq} ack 2
            = {state}
            "
        ));
    }
}

/// Covers: RFC 9293 §3.10.7.4 (seventh)
#[test]
fn text_after_the_fin_is_ignored() {
    for state in ["CloseWait", "Closing", "LastAck"] {
        let mut script = Script::in_state(state);
        script.trace(&format!(
            "
            < ACK 2..102 ack 1 win 10000
            = {state}
            !
            "
        ));
        assert_eq!(script.tcp().unread_bytes(), 0);
    }
}

/// Covers: RFC 9293 §3.6
#[test]
fn fin_wait_2_gives_up_on_a_silent_peer_only() {
    let mut script = Script::in_state("FinWait2");
    script.trace(
        "
        +59s
        < ACK 1..101 ack 2 win 10000
        +40ms
        > ACK 2 ack 101
        read 100
        +59s
        = FinWait2
        +1s
        = Closed
        ! Readable, Closed(TimedOut)
        ",
    );
    let mut script = Script::established_with(Config {
        fin_wait_2: None,
        ..config()
    });
    script.trace(
        "
        shutdown
        > FIN ACK 1 ack 1
        < ACK 1 ack 2 win 10000
        +100000s
        = FinWait2
        ",
    );
}

/// Covers: RFC 9293 §3.10.5
#[test]
fn abort_resets_a_peer_that_still_hopes_for_something() {
    // §3.10.5, ABORT
    for state in ["Established", "FinWait1", "FinWait2", "CloseWait"] {
        let mut script = Script::in_state(state);
        let (seq, ack) = match state {
            "Established" => (1, 1),
            "CloseWait" => (1, 2),
            _ => (2, 1),
        };
        script.trace(&format!(
            "
            abort
            > RST ACK {seq} ack {ack}
            {}
            = Closed
            ! Closed(Aborted)
            ",
            // FIN may be lost.
            match state {
                "FinWait1" => "> RST ACK 1 ack 1",
                _ => "",
            }
        ));
        assert!(script.tcp().is_closed());
    }
    for state in ["Closing", "LastAck"] {
        let mut script = Script::in_state(state);
        script.trace("abort\n = Closed\n ! Closed(Aborted)");
    }
    let mut script = Script::in_state("TimeWait");
    script.trace("abort\n = Closed\n !");
    let mut script = Script::connect(config());
    script.trace("> SYN 0\n abort\n = Closed\n ! Closed(Aborted)");
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 10000
        > SYN ACK 0 ack 1
        abort
        > RST ACK 1 ack 1
        = Closed
        ",
    );
}

/// Covers: RFC 5961 §3.2, IO-TCP §3.5
#[test]
fn a_reset_stands_where_that_ends_which_has_departed() {
    // Nothing has, some has, some is acknowledged: then the rest may be lost.
    for (steps, resets) in [
        ("", &[1][..]),
        ("depart", &[3001, 1]),
        ("depart\n< ACK 1 ack 1001 win 10000", &[3001, 1001]),
        ("depart\n< ACK 1 ack 3001 win 10000", &[3001]),
        ("depart; depart", &[6001, 1]),
        // An acknowledgment tells more than the reports that are there.
        ("< ACK 1 ack 4001 win 10000", &[4001]),
    ] {
        let mut script = Script::established();
        script.trace(
            "
            hold
            virtual 3000
            > PSH ACK 1..3001 ack 1
            virtual 3000
            > PSH ACK 3001..6001 ack 1
            ",
        );
        let resets = resets.iter().map(|seq| format!("> RST ACK {seq} ack 1\n"));
        let resets: String = resets.collect();
        script.trace(&format!("{steps}\nabort\n{resets}= Closed"));
        assert!(script.tcp().is_closed());
    }
}

/// Covers: RFC 5961 §3.2
#[test]
fn a_reset_is_acceptable_to_a_peer_whose_window_is_full() {
    let mut script = Script::opened(config(), "win 3000 mss 1000", 3000);
    script.trace(
        "
        hold
        virtual 20000
        > ACK 1..3001 ack 1
        depart
        < ACK 1 ack 3001 win 0
        < ACK 1 ack 3001 win 2000
        > ACK 3001..5001 ack 1
        abort
        > RST ACK 3001 ack 1
        ",
    );
}

/// Covers: RFC 5961 §3.2, RFC 2018 §8
#[test]
fn what_was_selectively_acknowledged_or_lost_has_departed() {
    let mut script = Script::opened(config(), "win 10000 mss 1000 sackOK", 10_000);
    script.trace(
        "
        write 4000
        > PSH ACK 1..4001 ack 1
        hold
        virtual 3000
        > PSH ACK 4001..7001 ack 1
        < ACK 1 ack 1001 win 10000 sack 2001..5001
        > ACK 1001..2001 ack 1
        abort
        > RST ACK 5001 ack 1
        > RST ACK 1001 ack 1
        ",
    );
}

/// Covers: RFC 5961 §3.2, IO-TCP §3.5
#[test]
fn where_a_departure_is_in_doubt_there_is_a_reset_for_each_case() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        depart
        virtual 3000
        > PSH ACK 3001..6001 ack 1
        forget
        > PSH ACK 3001..6001 ack 1
        abort
        > RST ACK 3001 ack 1
        > RST ACK 6001 ack 1
        > RST ACK 1 ack 1
        = Closed
        ",
    );
}

/// Covers: RFC 9293 §3.10.5
#[test]
fn a_peer_that_has_closed_is_reset_if_it_may_lack_data_or_fin() {
    for (steps, resets) in [
        // Data that has not departed, that may be lost, FIN that has not departed.
        (
            "hold\nvirtual 500; shutdown\n> FIN PSH ACK 1..501 ack 2",
            "> RST ACK 1 ack 2",
        ),
        (
            "write 500; shutdown\n> FIN PSH ACK 1..501 ack 2",
            "> RST ACK 502 ack 2\n> RST ACK 1 ack 2",
        ),
        ("hold\nshutdown\n> FIN ACK 1 ack 2", "> RST ACK 1 ack 2"),
        // It lacks nothing.
        (
            "write 500; shutdown\n> FIN PSH ACK 1..501 ack 2\n< ACK 2 ack 501 win 10000",
            "",
        ),
    ] {
        let mut script = Script::in_state("CloseWait");
        script.trace(&format!("{steps}\n= LastAck\nabort\n{resets}\n= Closed"));
        assert!(script.tcp().is_closed());
    }
}

/// Covers: RFC 9293 §3.10.7.1
#[test]
fn closed_answers_what_carries_an_acknowledgment_with_rst() {
    let mut script = Script::in_state("Established");
    script.trace(
        "
        abort
        > RST ACK 1 ack 1
        ! Closed(Aborted)
        < ACK 1..100 ack 1 win 10000
        > RST 1
        < FIN ACK 1 ack 1 win 10000
        > RST 1
        < RST 1
        < SYN 1
        abort
        shutdown
        +1000s
        = Closed
        !
        ",
    );
    assert_eq!(script.tcp().write(b"x"), 0);
    assert_eq!(script.tcp().write_virtual(1, 0, 1), 0);
    assert_eq!(script.tcp().next_timeout(), None);
}

/// Covers: RFC 9293 §3.6, RFC 5961 §5.2
#[test]
fn fin_wait_2_is_not_prolonged_by_who_guesses() {
    let mut script = Script::in_state("FinWait2");
    script.trace(
        "
        < ACK 1..101 ack 2 win 10000
        +40ms
        > ACK 2 ack 101
        +50s
        < ACK 50000000 ack 2 win 10000
        > ACK 2 ack 101
        +5s
        < ACK 101 ack 50000000 win 10000
        > ACK 2 ack 101
        +5s
        = Closed
        ",
    );
}

/// Covers: RFC 9293 §3.6, RFC 9293 §3.8.6.1
#[test]
fn fin_wait_2_does_not_count_the_time_in_which_the_peer_waits_for_us() {
    let mut script = Script::in_state("FinWait2");
    script.trace(
        "
        < ACK 1..10001 ack 2 win 10000
        > ACK 2 ack 10001 win 0
        +50s
        # It probes our closed window.
        < ACK 10000 ack 2 win 10000
        > ACK 2 ack 10001 win 0
        +50s
        = FinWait2
        +10s
        = Closed
        ",
    );
}

/// Covers: RFC 9293 §3.10.4
#[test]
fn an_application_that_is_gone_has_what_it_queued_delivered() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 1500 mss 1000
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 1500
        write 2000; close
        > ACK 1..1001 ack 1
        = FinWait1
        < ACK 1 ack 1001 win 1500
        > FIN PSH ACK 1001..2001 ack 1
        < FIN ACK 1 ack 2002 win 1500
        > ACK 2002 ack 2
        = TimeWait
        ! Connected, PeerFinished, Drained, Closed(Finished)
        ",
    );
    let mut script = Script::in_state("CloseWait");
    script.trace("close\n> FIN ACK 1 ack 2\n< ACK 2 ack 2 win 10000\n! Closed(Finished)");
}

/// Covers: RFC 9293 §3.6.1, RFC 2525 §2.17
#[test]
fn close_with_unread_bytes_resets_the_peer() {
    for state in ["Established", "FinWait1", "FinWait2"] {
        let mut script = Script::in_state(state);
        let seq = if state == "Established" { 1 } else { 2 };
        script.trace(&format!(
            "
            < PSH ACK 1..101 ack {seq} win 10000
            ! Readable
            close
            > RST ACK {seq} ack 101
            ! Closed(Aborted)
            "
        ));
        assert!(script.tcp().is_closed());
    }
    // In CLOSE-WAIT and LAST-ACK, too, and with something queued.
    for shutdown in ["write 100; shutdown\n> FIN PSH ACK 1..101 ack 102", ""] {
        let mut script = Script::established();
        let resets = if shutdown.is_empty() {
            "> RST ACK 1 ack 102"
        } else {
            "> RST ACK 102 ack 102\n> RST ACK 1 ack 102"
        };
        script.trace(&format!(
            "
            < FIN PSH ACK 1..101 ack 1 win 10000
            > ACK 1 ack 102
            {shutdown}
            close
            {resets}
            = Closed
            "
        ));
    }
}

/// Covers: RFC 9293 §3.6.1, RFC 2525 §2.17
#[test]
fn bytes_that_arrive_after_close_reset_the_peer() {
    for state in ["FinWait1", "FinWait2"] {
        let mut script = Script::in_state("Established");
        script.trace("close\n> FIN ACK 1 ack 1");
        if state == "FinWait2" {
            script.trace("< ACK 1 ack 2 win 10000\n= FinWait2");
        }
        script.trace(
            "
            < FIN PSH ACK 1..101 ack 2 win 10000
            > RST ACK 2 ack 1
            = Closed
            ! Closed(Aborted)
            ",
        );
    }
    // Out of order as well. What was read, and comes again, is not lost.
    let mut script = Script::established();
    script.trace(
        "
        < PSH ACK 1..101 ack 1 win 10000
        read 100
        close
        > FIN ACK 1 ack 101
        < PSH ACK 1..101 ack 1 win 10000
        > ACK 2 ack 101
        = FinWait1
        < PSH ACK 201..301 ack 2 win 10000
        > RST ACK 2 ack 101
        = Closed
        ",
    );
}

/// Covers: RFC 9293 §3.6.1, RFC 9293 §3.10.4
#[test]
fn after_shutdown_alone_bytes_are_welcome() {
    let mut script = Script::in_state("FinWait2");
    script.trace("< PSH ACK 1..101 ack 2 win 10000\n+40ms\n> ACK 2 ack 101\nread 100\nclose");
    script.trace("= FinWait2\n< FIN ACK 101 ack 2 win 10000\n> ACK 2 ack 102\n= TimeWait");
}

/// Covers: RFC 9293 §3.6.1, RFC 9293 §3.10.4
#[test]
fn a_connection_that_is_closed_while_it_opens_resets_a_peer_that_speaks() {
    let mut script = Script::connect(config());
    script.trace(
        "
        > SYN 0
        write 100; close
        < SYN ACK 0 ack 1 win 10000 mss 1000
        > FIN PSH ACK 1..101 ack 1
        < PSH ACK 1..101 ack 102 win 10000
        > RST ACK 102 ack 1
        ! Connected, Drained, Closed(Aborted)
        ",
    );
}

/// Covers: RFC 9293 §3.6.1
#[test]
fn in_time_wait_close_drops_what_is_unread_and_stays() {
    let mut script = Script::in_state("FinWait2");
    script.trace(
        "
        < FIN PSH ACK 1..101 ack 2 win 10000
        > ACK 2 ack 102
        = TimeWait
        ",
    );
    assert!(script.tcp().time_wait().is_none());
    script.trace("close\n= TimeWait");
    assert!(script.tcp().time_wait().is_some());
}
