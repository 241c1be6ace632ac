//! Streams longer than the sequence space.

use tcp::{Config, Connection, ConnectionEvent, Instant, Limits};
use wire::tcp::{Flags, Header, Options, Segment};

/// A peer that acknowledges everything at once takes a file of 9 GiB: sequence numbers wrap twice.
///
/// Covers: RFC 9293 §3.4
#[test]
fn nine_gibibytes_of_virtual_data_wrap_the_sequence_numbers_twice() {
    const LEN: u64 = 9 << 30;
    let config = Config {
        window_scaling: true,
        timestamps: false,
        ..Config::default()
    };
    let limits = Limits {
        bytes_max: 1 << 20,
        pieces_max: 32,
        real_bytes_max: 4096,
        direct_bytes_max: 0,
    };
    let (iss, irs) = (u32::MAX - 7, 99);
    let syn = Header {
        seq: irs,
        flags: Flags::SYN,
        window: 65535,
        options: Options {
            mss: Some(1460),
            window_scale: Some(14),
            ..Options::default()
        },
        ..Header::default()
    };
    let mut now = Instant::from_us(0);
    let mut connection = Connection::accept(
        &config,
        &Segment {
            header: syn,
            payload: &[],
            ecn: wire::ip::Ecn::NotEct,
        },
        iss,
        0,
        now,
    )
    .expect("a SYN");
    let syn_ack = connection.poll_transmit(now, &limits).expect("a SYN,ACK");
    connection.on_departed(
        syn_ack.transmission.expect("it occupies sequence space"),
        now,
    );
    let acknowledge = |position: u64| Header {
        seq: irs.wrapping_add(1),
        ack: iss.wrapping_add(position as u32),
        flags: Flags::ACK,
        window: 65535,
        ..Header::default()
    };
    connection.on_segment(
        now,
        &Segment {
            header: acknowledge(1),
            payload: &[],
            ecn: wire::ip::Ecn::NotEct,
        },
    );
    assert_eq!(connection.write_virtual(3, 17, LEN), LEN);
    connection.shutdown();

    let mut sent = 0;
    while sent < LEN {
        let mut last = None;
        while let Some(transmit) = connection.poll_transmit(now, &limits) {
            assert_eq!(transmit.range.start, sent, "in order, without gap");
            assert_eq!(
                transmit.header.seq,
                iss.wrapping_add(1).wrapping_add(sent as u32)
            );
            let pieces: Vec<_> = connection.pieces(transmit.range.clone()).collect();
            let len = transmit.range.end - transmit.range.start;
            assert_eq!(
                pieces,
                [tcp::Piece::Virtual {
                    object: 3,
                    offset: 17 + sent,
                    len
                }]
            );
            sent = transmit.range.end;
            connection.on_departed(transmit.transmission.expect("data"), now);
            last = Some(transmit);
        }
        assert_eq!(
            last.expect("it goes on").header.flags.contains(Flags::FIN),
            sent == LEN
        );
        now = now + std::time::Duration::from_millis(10);
        connection.on_segment(
            now,
            &Segment {
                header: acknowledge(1 + sent),
                payload: &[],
                ecn: wire::ip::Ecn::NotEct,
            },
        );
        assert_eq!(connection.acknowledged_bytes(), sent);
    }
    connection.on_segment(
        now,
        &Segment {
            header: acknowledge(2 + LEN),
            payload: &[],
            ecn: wire::ip::Ecn::NotEct,
        },
    );
    let events: Vec<_> = std::iter::from_fn(|| connection.poll_event()).collect();
    assert_eq!(
        events,
        [
            ConnectionEvent::Connected,
            ConnectionEvent::Released {
                object: 3,
                stream_end: LEN
            },
            ConnectionEvent::Drained,
        ]
    );
    assert_eq!(connection.state(), tcp::State::FinWait2);
}
