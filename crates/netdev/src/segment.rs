//! Cutting superpackets in software, as the kernel and NICs do (`tcp_gso_segment`,
//! `__udp_gso_segment`).

use std::io::IoSlice;

use wire::frame::{HeaderError, HeaderMut, UdpHeaderMut};
use wire::tcp::Flags;

/// Cuts a TCP superpacket into frames of at most `mss` bytes of payload, with complete checksums.
///
/// The sequence number and the IPv4 identification count on; FIN and PSH stay on the last frame,
/// CWR on the first (RFC 3168 §6.1.2).
pub(crate) fn cut(
    header: &[u8],
    payload: &[IoSlice<'_>],
    mss: usize,
    mut emit: impl FnMut(Vec<u8>),
) -> Result<(), HeaderError> {
    let payload = gather(payload);
    let mss = mss.max(1);
    let packets = payload.len().div_ceil(mss).max(1);
    for packet in 0..packets {
        let start = packet * mss;
        let piece = &payload[start..payload.len().min(start + mss)];
        let mut frame = header.to_vec();
        let mut header = HeaderMut::parse(&mut frame)?;
        header.set_seq(header.seq().wrapping_add(start as u32));
        if let Some(identification) = header.identification() {
            header.set_identification(identification.wrapping_add(packet as u16));
        }
        if packet > 0 {
            header.set_flags(header.flags().without(Flags::CWR));
        }
        if packet + 1 < packets {
            header.set_flags(header.flags().without(Flags::FIN | Flags::PSH));
        }
        header.complete_checksum([piece])?;
        frame.extend_from_slice(piece);
        emit(frame);
    }
    Ok(())
}

/// Cuts a UDP superpacket into frames of `payload_bytes` bytes of payload, with complete lengths
/// and checksums; the last may be shorter. The IPv4 identification counts on.
pub(crate) fn cut_datagrams(
    header: &[u8],
    payload: &[IoSlice<'_>],
    payload_bytes: usize,
    mut emit: impl FnMut(Vec<u8>),
) -> Result<(), HeaderError> {
    let payload = gather(payload);
    let payload_bytes = payload_bytes.max(1);
    let datagrams = payload.len().div_ceil(payload_bytes).max(1);
    for datagram in 0..datagrams {
        let start = datagram * payload_bytes;
        let piece = &payload[start..payload.len().min(start + payload_bytes)];
        emit(nth_datagram(header, datagram, piece, piece.len())?);
    }
    Ok(())
}

/// Returns the frame of one datagram of a superpacket. `payload` holds the datagram's `len` bytes,
/// or the first ones: then the UDP checksum is that of the pseudo-header. The IPv4 identification
/// counts on.
pub(crate) fn nth_datagram(
    header: &[u8],
    datagram: usize,
    payload: &[u8],
    len: usize,
) -> Result<Vec<u8>, HeaderError> {
    let mut frame = Vec::with_capacity(header.len() + payload.len());
    frame.extend_from_slice(header);
    let mut header = UdpHeaderMut::parse(&mut frame)?;
    if let Some(identification) = header.identification() {
        header.set_identification(identification.wrapping_add(datagram as u16));
    }
    if payload.len() == len {
        header.complete_checksum([payload])?;
    } else {
        header.finish(len)?;
    }
    frame.extend_from_slice(payload);
    Ok(frame)
}

/// Returns a complete packet as one frame.
pub(crate) fn join(header: &[u8], payload: &[IoSlice<'_>]) -> Vec<u8> {
    let mut frame = header.to_vec();
    payload
        .iter()
        .for_each(|slice| frame.extend_from_slice(slice));
    frame
}

fn gather(payload: &[IoSlice<'_>]) -> Vec<u8> {
    let slices: Vec<&[u8]> = payload.iter().map(|slice| &**slice).collect();
    slices.concat()
}
