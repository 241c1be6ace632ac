//! Frames as they come from a port, and SEND headers as they come from a host stack.

#![no_main]

use std::net::SocketAddr;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use wire::frame::{self, HeaderMut, Received, TcpTemplate};
use wire::tcp::{Flags, Header, Options, Segment};
use wire::{ParseError, checksum, ethernet};

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Frame(Vec<u8>),
    Header {
        header: &'a [u8],
        payload: &'a [u8],
    },
    /// A good TCP packet, then some bytes changed.
    Patched {
        packet: Packet<'a>,
        patches: Vec<(u16, u8)>,
    },
}

#[derive(Arbitrary, Debug)]
struct Packet<'a> {
    ipv6: bool,
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    options: &'a [u8],
    payload: &'a [u8],
}

fuzz_target!(|input: Input<'_>| match input {
    Input::Frame(mut frame) => {
        receive(&frame);
        repair_ipv4_checksum(&mut frame);
        receive(&frame);
    }
    Input::Header { header, payload } => send(header, payload),
    Input::Patched { packet, patches } => {
        let (mut frame, header_len) = packet.frame();
        assert!(matches!(frame::parse(&frame, false), Ok(Received::Tcp(_))));
        for (at, value) in patches {
            let len = frame.len();
            frame[usize::from(at) % len] = value;
        }
        receive(&frame);
        repair_ipv4_checksum(&mut frame);
        receive(&frame);
        let (header, payload) = frame.split_at(header_len);
        send(header, payload);
    }
});

impl Packet<'_> {
    /// The frame, and the length of its headers.
    fn frame(&self) -> (Vec<u8>, usize) {
        let [source, destination]: [SocketAddr; 2] = if self.ipv6 {
            [
                ([0xfd77, 0, 0, 0, 0, 0, 0, 1], 80).into(),
                ([0xfd77, 0, 0, 0, 0, 0, 0, 2], 40_000).into(),
            ]
        } else {
            [([10, 0, 0, 1], 80).into(), ([10, 0, 0, 2], 40_000).into()]
        };
        let header = Header {
            seq: self.seq,
            ack: self.ack,
            flags: Flags(self.flags),
            window: self.window,
            options: Options::parse(self.options),
            ..Header::default()
        };
        let mut frame = vec![0; frame::HEADER_BYTES_MAX];
        let len = TcpTemplate::new([2; 6], [4; 6], source, destination)
            .write(&header, &mut frame)
            .unwrap();
        frame.truncate(len);
        frame::complete_checksum(&mut frame, [self.payload]).unwrap();
        frame.extend_from_slice(self.payload);
        (frame, len)
    }
}

/// Few random frames have a right checksum, and behind it is what matters.
fn repair_ipv4_checksum(frame: &mut [u8]) {
    let Some(packet) = frame.get_mut(ethernet::HEADER_BYTES..) else {
        return;
    };
    let Some(len) = packet.first().map(|byte| usize::from(byte & 15) * 4) else {
        return;
    };
    if let Some(header) = packet.get_mut(..len)
        && header.len() >= 20
    {
        header[10..12].fill(0);
        let sum = checksum::of(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// A frame is the same whether its checksum was known to be valid or was verified.
fn receive(frame: &[u8]) {
    let trusting = frame::parse(frame, true);
    let verifying = frame::parse(frame, false);
    match verifying {
        Err(ParseError::BadTcpChecksum) => assert!(matches!(trusting, Ok(Received::Tcp(_)))),
        other => assert_eq!(other, trusting),
    }
    if let Ok(Received::Tcp(packet)) = trusting {
        write_and_parse(packet.segment.header);
    }
}

/// What we write, we read; and writing what we have read changes nothing any more.
fn write_and_parse(header: Header) {
    let mut first = [0; 60];
    let len = header.write(&mut first);
    assert_eq!(len, header.len_bytes());
    let read = Segment::parse(&first[..len]).unwrap();
    assert!(read.payload.is_empty());
    let mut second = [0; 60];
    let same_len = read.header.write(&mut second);
    assert_eq!(first[..len], second[..same_len]);
}

/// The header of a SEND, if it is one, makes a frame that is received with the same payload.
fn send(header: &[u8], payload: &[u8]) {
    let mut bytes = header.to_vec();
    let Ok(mut header) = HeaderMut::parse(&mut bytes) else {
        return;
    };
    header.set_seq(header.seq().wrapping_add(payload.len() as u32));
    header.set_timestamp_value(7);
    header.set_identification(9);
    let (seq, flags) = (header.seq(), header.flags());
    header.finish(payload.len()).unwrap();
    header.complete_checksum([payload]).unwrap();
    bytes.extend_from_slice(payload);
    match frame::parse(&bytes, false) {
        Ok(Received::Tcp(packet)) => {
            assert_eq!(packet.segment.header.seq, seq);
            assert_eq!(packet.segment.header.flags, flags);
            assert_eq!(packet.segment.payload, payload);
        }
        // Written by the host as they are: addresses, and the place of a fragment.
        Err(ParseError::BadAddress | ParseError::Fragment) => {}
        other => panic!("{other:?}"),
    }
}
