//! Whole frames: what a received one is, and the headers of outgoing ones.

mod header;
mod received;
mod template;

pub use header::{HeaderError, HeaderMut};
pub use received::{Received, parse};
pub use template::{HEADER_BYTES_MAX, TcpTemplate};

use crate::{ethernet, ip};

/// A frame whose payload `write` fills in.
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
