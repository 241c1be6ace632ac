//! TCP options: any bytes are read, what is written is read again, and nothing that fits is lost.

#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use wire::tcp::{
    FAST_OPEN_COOKIE_BYTES, FastOpen, Header, OPTIONS_BYTES_MAX, Options, Segment, Timestamps,
};

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    /// As they come from the network.
    Bytes(&'a [u8]),
    /// As a connection wants to send them.
    Values {
        mss: Option<u16>,
        window_scale: Option<u8>,
        sack_permitted: bool,
        timestamps: Option<(u32, u32)>,
        sack: [Option<(u32, u32)>; 4],
        /// A cookie, or none to ask for one.
        fast_open: Option<Option<[u8; FAST_OPEN_COOKIE_BYTES]>>,
    },
}

fuzz_target!(|input: Input<'_>| match input {
    Input::Bytes(bytes) => {
        let options = Options::parse(bytes);
        write_and_parse(&options);
        // Padding in front of the same bytes (RFC 9293 §3.1) takes the shortcut for the usual
        // layout away, and changes nothing else.
        let padded = [&[1], bytes].concat();
        assert_eq!(Options::parse(&padded), options);
        // Nothing counts behind the end of the list.
        let ended = [&[0], bytes].concat();
        assert_eq!(Options::parse(&ended), Options::default());
    }
    Input::Values {
        mss,
        window_scale,
        sack_permitted,
        timestamps,
        sack,
        fast_open,
    } => write_and_parse(&Options {
        mss,
        window_scale,
        sack_permitted,
        timestamps: timestamps.map(|(value, echo_reply)| Timestamps { value, echo_reply }),
        sack,
        fast_open: fast_open.map(|cookie| cookie.map_or(FastOpen::Request, FastOpen::Cookie)),
    }),
});

fn write_and_parse(options: &Options) {
    let mut bytes = [0xff; OPTIONS_BYTES_MAX];
    let len = options.write(&mut bytes);
    assert_eq!(len, options.len_bytes());
    assert!(len.is_multiple_of(4) && len <= OPTIONS_BYTES_MAX);
    let read = Options::parse(&bytes[..len]);
    // All but blocks that do not fit, of which the first ones count most (RFC 2018 §4).
    let without_sack = |options: &Options| Options {
        sack: [None; 4],
        ..*options
    };
    assert_eq!(without_sack(&read), without_sack(options));
    let wanted: Vec<_> = options.sack.iter().flatten().collect();
    let sent: Vec<_> = read.sack.iter().flatten().collect();
    assert!(wanted.starts_with(&sent));
    let room = OPTIONS_BYTES_MAX - without_sack(options).len_bytes();
    assert!(sent.len() == wanted.len() || room < 4 + 8 * (sent.len() + 1));

    // The same within a header.
    let header = Header {
        options: *options,
        ..Header::default()
    };
    let mut bytes = [0; 60];
    let len = header.write(&mut bytes);
    let segment = Segment::parse(&bytes[..len]).expect("we have written it");
    assert_eq!(segment.header.options, read);
}
