//! What a connection tells of itself.

use std::time::Duration;

use tcp::{CaState, Config, State};

use crate::script::{Script, config};

/// Covers: RFC 9293 §3.9.1.5
#[test]
fn it_tells_what_is_in_flight_and_where_the_file_is() {
    let mut script = Script::established();
    script.trace(
        "
        write 300; virtual 2700
        > PSH ACK 1..3001 ack 1 real 300 file 2700
        ",
    );
    let now = script.now;
    let info = script.tcp().info(now);
    assert_eq!(info.state, State::Established);
    assert_eq!(info.state.name(), "ESTABLISHED");
    assert_eq!(info.ca_state, CaState::Open);
    assert_eq!((info.mss, info.cwnd, info.ssthresh), (1000, 10_000, None));
    assert_eq!((info.bytes_sent, info.bytes_acked), (3000, 0));
    assert_eq!((info.queued, info.flight, info.pipe), (3000, 3000, 3000));
    assert_eq!((info.retransmissions, info.bytes_retransmitted), (0, 0));
    assert_eq!(info.window_shifts, None);
    // The object is the stream itself.
    assert_eq!(script.tcp().first_virtual(), Some((7, 300)));

    script.trace("< ACK 1 ack 2001 win 10000");
    let info = script.tcp().info(now);
    assert_eq!((info.bytes_acked, info.flight), (2000, 1000));
    assert_eq!(script.tcp().first_virtual(), Some((7, 2000)));
    script.trace("< ACK 1 ack 3001 win 10000");
    assert_eq!(script.tcp().first_virtual(), None);
    assert_eq!(script.tcp().info(now).queued, 0);
}

/// Covers: RFC 9293 §3.10.6, RFC 6298 §5.5
#[test]
fn it_counts_what_was_sent_again_over_its_whole_life() {
    let mut script = Script::established();
    script.trace(
        "
        virtual 1000
        > PSH ACK 1..1001 ack 1
        ",
    );
    for _ in 0..2 {
        let now = script.now;
        let rto = Duration::from_micros(script.tcp().info(now).rto_us);
        let pause = format!("+{}ms", rto.as_millis() + 1);
        script.trace(&format!("{pause}\n > PSH ACK 1..1001 ack 1"));
        // A sum over all connections takes these away.
        script.tcp().take_stats();
    }
    let now = script.now;
    let info = script.tcp().info(now);
    assert!(info.retransmissions >= 2, "{info:?}");
    assert_eq!(info.bytes_retransmitted, 1000 * info.retransmissions);
    assert_eq!(info.bytes_sent, 1000, "again is not more");
    assert!(info.timeouts >= 1, "{info:?}");
    assert_eq!(u64::from(info.backoff), info.timeouts, "in a row");
    assert_eq!(info.ca_state, CaState::Loss);
    assert!(info.since_progress_us > 0 && info.age_us >= info.since_progress_us);
}

/// Covers: RFC 9293 §3.9.1.5
#[test]
fn received_bytes_are_text_and_not_the_fin() {
    let mut script = Script::established();
    script.trace(
        "
        < PSH ACK 1..101 ack 1 win 10000
        +1s
        > ACK 1 ack 101
        ",
    );
    let now = script.now;
    let info = script.tcp().info(now);
    assert_eq!((info.bytes_received, info.unread), (100, 100));
    script.trace(
        "
        < FIN ACK 101 ack 1 win 10000
        > ACK 1 ack 102
        ",
    );
    assert_eq!(script.tcp().info(now).bytes_received, 100);
}

/// Covers: RFC 9293 §3.9.1.5
#[test]
fn it_tells_what_a_path_carries_and_buffers_hold() {
    let mut script = Script::listen(Config {
        timestamps: true,
        ..config()
    });
    let now = script.now;
    script.trace("< SYN 0 win 10000 mss 800 ts 1 0\n> SYN ACK 0 ack 1");
    let info = script.tcp().info(now);
    assert_eq!((info.since_heard_us, info.since_text_us), (None, None));
    script.trace(
        "
        < ACK 1 ack 1 win 10000 ts 1 1000
        virtual 20000
        > ACK 1..7881 ack 1
        < ACK 1 ack 789 win 0 ts 1 1000
        ",
    );
    let info = script.tcp().info(now);
    assert_eq!((info.mss, info.pmtu, info.rcv_mss), (788, 840, 0));
    assert_eq!((info.queued, info.unsent), (19_212, 20_000 - 7_880));
    assert_eq!((info.receive_buffer, info.send_buffer), (10_000, 64 << 10));
    assert_eq!(info.probes, 0);
}

/// Covers: RFC 9293 §3.9.1.5
#[test]
fn it_tells_how_long_the_peer_has_been_silent_and_asked_in_vain() {
    let mut script = Script::established();
    script.trace(
        "
        < PSH ACK 1..901 ack 1 win 10000
        +2s
        > ACK 1 ack 901
        < ACK 901 ack 1 win 0
        write 1
        +210ms
        > ACK 0 ack 901
        +1ms
        ",
    );
    let now = script.now;
    let info = script.tcp().info(now);
    assert_eq!(info.since_heard_us, Some(211_000));
    assert_eq!(info.since_text_us, Some(2_211_000));
    assert_eq!((info.probes, info.rcv_mss), (1, 900));
}
