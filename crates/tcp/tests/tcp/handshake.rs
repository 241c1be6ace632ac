//! Opening connections (RFC 9293 §3.5, §3.10.7.2, §3.10.7.3).

use crate::script::{ISS, LIMITS, Script, config};
use tcp::{Config, Connection, Instant};
use wire::tcp::{Flags, Header, Segment};

/// Covers: RFC 9293 §3.5, RFC 9293 §3.10.7.2 (third), RFC 7323 §2.2, RFC 7323 §3.2
#[test]
fn passive_open() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1 win 10000 mss 1000 ws - ts -
        = SynReceived
        !
        < ACK 1 ack 1 win 10000
        = Established
        ! Connected
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.2
#[test]
fn passive_open_ignores_what_is_not_a_plain_syn() {
    for flags in [
        Flags::default(),
        Flags::ACK,
        Flags::RST,
        Flags::FIN,
        Flags::SYN | Flags::ACK,
        Flags::SYN | Flags::RST,
    ] {
        let header = Header {
            flags,
            ..Header::default()
        };
        let segment = Segment {
            header,
            payload: &[],
            ecn: wire::ip::Ecn::NotEct,
        };
        let accepted = Connection::accept(&config(), &segment, 1, 0, Instant::from_us(0));
        assert!(accepted.is_none(), "{flags:?}");
    }
}

/// Covers: RFC 9293 §3.5, RFC 9293 §3.10.7.3 (fourth)
#[test]
fn active_open() {
    let mut script = Script::connect(config());
    script.trace(
        "
        > SYN 0 win 10000 mss 1000
        = SynSent
        +10ms
        < SYN ACK 0 ack 1 win 10000 mss 1000
        > ACK 1 ack 1
        = Established
        ! Connected
        ",
    );
}

/// Covers: RFC 9293 §3.10.2
#[test]
fn data_queued_before_the_handshake_is_sent_after_it() {
    let mut script = Script::connect(config());
    script.trace(
        "
        > SYN 0
        write 300
        < SYN ACK 0 ack 1 win 10000 mss 1000
        > PSH ACK 1..301 ack 1
        ! Connected
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.2 (third), RFC 9293 §3.10.7.3 (fourth)
#[test]
fn text_with_the_syn_is_dropped_and_text_with_the_syn_ack_is_taken() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0..100 win 10000
        > SYN ACK 0 ack 1
        < ACK 1..101 ack 1 win 10000
        +40ms
        > ACK 1 ack 101
        read 100
        ",
    );

    // §3.10.7.3, fourth: "if there are other controls or text in the segment, then continue
    // processing".
    let header = Header {
        source_port: 40_000,
        destination_port: 80,
        seq: crate::script::IRS,
        ack: crate::script::ISS.wrapping_add(1),
        flags: Flags::SYN | Flags::ACK | Flags::FIN,
        window: 1000,
        ..Header::default()
    };
    let mut script = Script::connect(config());
    script.trace("> SYN 0");
    let now = script.now;
    script.tcp().on_segment(
        now,
        &Segment {
            header,
            payload: b"early",
            ecn: wire::ip::Ecn::NotEct,
        },
    );
    script.trace("> ACK 1 ack 7\n = CloseWait\n ! Connected, Readable, PeerFinished");
    let mut bytes = [0; 9];
    assert_eq!(script.tcp().read(&mut bytes), 5);
    assert_eq!(&bytes[..5], b"early");
}

/// §3.5, figure 8.
///
/// Covers: RFC 9293 §3.5, RFC 9293 §3.10.7.3 (fourth)
#[test]
fn simultaneous_open() {
    let mut script = Script::connect(config());
    script.trace(
        "
        > SYN 0
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1 mss 1000
        = SynReceived
        < SYN ACK 0 ack 1 win 10000 mss 1000
        > ACK 1 ack 1
        = Established
        ! Connected
        ",
    );
}

/// Covers: RFC 9293 §3.5
#[test]
fn simultaneous_open_whose_syn_ack_is_lost_is_completed_by_an_ack() {
    let mut script = Script::connect(config());
    script.trace(
        "
        > SYN 0
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 10000
        = Established
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.3 (first)
#[test]
fn syn_sent_refuses_an_ack_of_what_was_not_sent() {
    // First: "If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset (unless the RST bit is set)".
    let mut script = Script::connect(config());
    script.trace(
        "
        > SYN 0
        < ACK 7 ack 0
        > RST 0
        < SYN ACK 0 ack 2
        > RST 2
        < RST ACK 0 ack 2
        < RST ACK 0 ack 0
        = SynSent
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.3 (fifth)
#[test]
fn syn_sent_ignores_what_is_neither_syn_nor_rst() {
    let mut script = Script::connect(config());
    script.trace(
        "
        > SYN 0
        < ACK 5..50 ack 1
        < FIN ACK 5 ack 1
        < FIN 5
        = SynSent
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.3 (second)
#[test]
fn syn_sent_believes_a_reset_only_with_an_acceptable_ack() {
    let mut script = Script::connect(config());
    script.trace(
        "
        > SYN 0
        < RST 0
        = SynSent
        < RST ACK 0 ack 1
        = Closed
        ! Closed(Refused)
        ",
    );
    assert!(script.tcp().is_closed());
}

/// Covers: RFC 9293 §3.10.7.4 (first)
#[test]
fn syn_received_repeats_its_syn_ack_for_a_repeated_syn() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1 mss 1000
        < ACK 1 ack 1 win 10000
        = Established
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (fifth)
#[test]
fn syn_received_refuses_an_ack_of_what_was_not_sent() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1
        < ACK 1 ack 0
        > RST 0
        < ACK 1 ack 2
        > RST 2
        = SynReceived
        < ACK 1 ack 1 win 10000
        = Established
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (fifth)
#[test]
fn syn_received_drops_segments_without_ack() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1
        < . 1..101 win 10000
        = SynReceived
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (fourth)
#[test]
fn syn_received_returns_to_listen_on_a_new_syn_after_passive_open() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1
        < SYN 5 win 10000
        = Closed
        ! Closed(Refused)
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (fifth), RFC 9293 §3.10.7.4 (eighth)
#[test]
fn syn_received_takes_the_ack_of_the_handshake_with_text_and_fin() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1
        < FIN PSH ACK 1..101 ack 1 win 10000
        > ACK 1 ack 102
        = CloseWait
        ! Connected, Readable, PeerFinished
        ",
    );
}

/// Covers: RFC 9293 §3.10.4
#[test]
fn shutdown_before_the_handshake_waits_for_it() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1
        write 10
        shutdown
        = SynReceived
        < ACK 1 ack 1 win 10000
        > FIN PSH ACK 1..11 ack 1
        = FinWait1
        ",
    );
    let mut script = Script::connect(config());
    script.trace(
        "
        > SYN 0
        shutdown
        < SYN ACK 0 ack 1 win 10000
        > FIN ACK 1 ack 1
        = FinWait1
        ",
    );
}

/// Covers: RFC 6298 §2.1, RFC 6298 §5.5, RFC 9293 §3.8.3
#[test]
fn a_lost_syn_is_repeated_with_backoff_until_the_retries_are_used_up() {
    let mut script = Script::connect(Config {
        syn_retries: 3,
        ..config()
    });
    script.trace(
        "
        > SYN 0
        +999ms
        +1ms
        > SYN 0 mss 1000
        +2s
        > SYN 0
        +4s
        > SYN 0
        +7999ms
        = SynSent
        +1ms
        = Closed
        ! Closed(TimedOut)
        ",
    );
}

/// Covers: RFC 6298 §2.1, RFC 6298 §5.5
#[test]
fn a_lost_syn_ack_is_repeated() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1
        +1s
        > SYN ACK 0 ack 1 mss 1000
        +2s
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 10000
        = Established
        ",
    );
}

/// Covers: RFC 6298 §5.7
#[test]
fn after_a_lost_syn_the_first_data_waits_three_seconds() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1
        +1s
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 10000
        write 4000
        > PSH ACK 1..4001 ack 1
        +2999ms
        +1ms
        > ACK 1..1001 ack 1
        ",
    );
}

/// Covers: RFC 7323 §2.2, RFC 7323 §3.2
#[test]
fn options_are_answered_only_if_offered() {
    let offering = Config {
        timestamps: true,
        window_scaling: true,
        receive_buffer_bytes: 1 << 20,
        ..config()
    };
    let mut script = Script::listen(offering);
    script.trace(
        "
        < SYN 0 win 10000
        > SYN ACK 0 ack 1 win 65535 mss 1000 ws - ts -
        ",
    );
    let mut script = Script::listen(offering);
    script.trace(
        "
        < SYN 0 win 10000 ws 7 ts 5 0
        > SYN ACK 0 ack 1 win 65535 ws 5 ts 1000 5
        < ACK 1 ack 1 win 10000 ts 6 1000
        = Established
        ",
    );
    let mut script = Script::connect(offering);
    script.trace("> SYN 0 win 65535 ws 5 ts 1000 0");
    // An offer that is not answered is void.
    script.trace(
        "
        < SYN ACK 0 ack 1 win 10000
        > ACK 1 ack 1 ts - win 65535
        ",
    );
    // A server that does not want options does not take them.
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 10000 ws 7 ts 5 0
        > SYN ACK 0 ack 1 ws - ts -
        ",
    );
}

/// RFC 9293 §3.7.1: the peer's MSS, ours, and the options all bound what is sent.
///
/// Covers: RFC 9293 §3.7.1, RFC 6691 §2
#[test]
fn effective_send_mss() {
    for (offer, ours, options, mss) in [
        ("mss 1000", 1460, "", 1000),
        ("mss 1460", 1000, "", 1000),
        ("", 1460, "", 536),
        ("mss 1460", 1460, "ts 1 0", 1448),
        ("mss 1", 1460, "", 64),
        ("mss 0", 1460, "ts 1 0", 52),
        ("mss 65535", 65495, "", 65495),
    ] {
        let mut script = Script::listen(Config {
            mss: ours,
            timestamps: true,
            ..config()
        });
        script.trace(&format!(
            "< SYN 0 win 65535 {offer} {options}\n> SYN ACK 0 ack 1"
        ));
        let ts = if options.is_empty() { "" } else { "ts 1 1000" };
        script.trace(&format!("< ACK 1 ack 1 win 65535 {ts}\nhold"));
        let now = script.now;
        let limits = script.limits;
        script.tcp().write_virtual(1, 0, 100_000);
        let transmit = script.tcp().poll_transmit(now, &limits).expect("data");
        assert_eq!(transmit.mss, mss, "{offer} {ours} {options}");
        assert_eq!(
            (transmit.range.end - transmit.range.start) % u64::from(mss),
            0
        );
    }
}

/// Covers: RFC 5961 §4.2
#[test]
fn syn_received_after_active_open_challenges_a_new_syn() {
    let mut script = Script::connect(config());
    script.trace(
        "
        > SYN 0
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1
        < SYN 5 win 10000
        > ACK 1 ack 1
        = SynReceived
        ",
    );
}

/// Covers: RFC 9293 §3.7.1
#[test]
fn an_application_may_bound_the_mss_before_our_syn() {
    let mut script = Script::listen(config());
    let timestamps = Config {
        timestamps: true,
        ..config()
    };
    let mut client = Connection::connect(&timestamps, 80, 40_000, ISS, 0, script.now);
    assert!(client.set_mss_max(600));
    assert!(client.set_mss_max(700), "a larger one does not lift it");
    let syn = client.poll_transmit(script.now, &LIMITS).expect("a SYN");
    assert_eq!(syn.header.options.mss, Some(600));
    assert!(!client.set_mss_max(500), "too late");
    script.connection = Some(client);
    script.trace(
        "
        < SYN ACK 0 ack 1 win 10000 mss 1000 ts 5 1000
        > ACK 1 ack 1
        write 1200
        > PSH ACK 1..1201 ack 1 cut 588
        ",
    );

    let mut script = Script::listen(timestamps);
    script.trace("< SYN 0 win 10000 mss 1000 ts 5 0; nodelay off;");
    assert!(script.tcp().set_mss_max(1));
    script.trace(
        "
        > SYN ACK 0 ack 1 mss 64
        < ACK 1 ack 1 win 10000 ts 5 1000
        write 100
        > ACK 1..53 ack 1 cut 52
        ",
    );
}
