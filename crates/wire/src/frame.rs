//! Whole frames: classification of received ones, headers of outgoing ones.

mod cut;
mod header;
mod header_error;
mod lengths;
mod prefix;
mod received;
mod template;
mod udp_header;

pub use cut::{cut, pieces};
pub use header::HeaderMut;
pub use header_error::HeaderError;
pub use prefix::TcpPrefix;
pub use received::{Icmp4Packet, Icmp6Packet, Received, TcpPacket, parse, parse_segment};
pub(crate) use template::write_link;
pub use template::{HEADER_BYTES_MAX, TcpTemplate};
pub use udp_header::UdpHeaderMut;

use crate::{ethernet, ip};

/// Prepares the header of a TCP packet for a port that completes the TCP checksum: see
/// [`HeaderMut::finish`].
pub fn finish(header: &mut [u8], payload_len: usize) -> Result<(), HeaderError> {
    HeaderMut::parse(header)?.finish(payload_len)
}

/// Prepares the header of a TCP packet for a port that completes nothing: see
/// [`HeaderMut::complete_checksum`].
pub fn complete_checksum<'p>(
    header: &mut [u8],
    payload: impl IntoIterator<Item = &'p [u8]> + Clone,
) -> Result<(), HeaderError> {
    HeaderMut::parse(header)?.complete_checksum(payload)
}

/// Returns a frame whose payload `write` fills in.
///
/// # Panics
/// If the payload is longer than 65,535 bytes.
pub(crate) fn assemble(
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
    header: &ip::Header,
    payload_len: usize,
    write: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let headers_len = ethernet::HEADER_BYTES + header.addresses.header_bytes();
    let mut frame = vec![0; headers_len + payload_len];
    let payload_len = u16::try_from(payload_len).expect("payload fits into an IP packet");
    template::write_link_and_ip(source_mac, destination_mac, header, payload_len, &mut frame);
    write(&mut frame[headers_len..]);
    frame
}
