//! Frames as they come from a port, and SEND headers as they come from a host stack.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::frame::{self, HeaderMut, Received};
use wire::tcp::{Header, Segment};
use wire::{ParseError, checksum, ethernet};

fuzz_target!(|input: &[u8]| {
    receive(input);
    let mut repaired = input.to_vec();
    repair_ipv4_checksum(&mut repaired);
    receive(&repaired);

    // The first byte says where the header ends and the payload begins.
    if let Some((len, frame)) = input.split_first()
        && let Some((header, payload)) = frame.split_at_checked((*len).into())
    {
        send(header, payload);
    }
});

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
