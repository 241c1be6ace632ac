//! A machine off the path that forges "packet too big" about the connections of a splice. It knows
//! addresses and ports, and no sequence number.

use std::net::{IpAddr, SocketAddr};

use wire::frame::TcpTemplate;
use wire::tcp::Header;
use wire::{checksum, ethernet, ip};

use crate::random::Random;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// The message has so much of the packet: its header of IPv4, and eight bytes.
const QUOTED_BYTES: usize = 20 + 8;

#[derive(Debug)]
pub(crate) struct Forger {
    pub(crate) random: Random,
    pub(crate) sent: u64,
}

impl Forger {
    /// The message: a packet of `local`, whose link address is `mac`, to `remote` was too long.
    /// `first_seq`: the number of its first byte, of which a guess is always far.
    pub(crate) fn frame(
        &mut self,
        mac: [u8; 6],
        (local, remote): (SocketAddr, SocketAddr),
        first_seq: u32,
    ) -> Vec<u8> {
        self.sent += 1;
        let behind = 1 + self.random.below(1 << 31) as u32;
        let header = Header {
            seq: first_seq.wrapping_sub(behind),
            ..Header::default()
        };
        let quoted = TcpTemplate::new(mac, MAC, local, remote).to_frame(&header, &[0; 8]);
        let mtu = 552 + self.random.below(900) as u16;
        let mut icmp = vec![3, 4, 0, 0, 0, 0];
        icmp.extend(mtu.to_be_bytes());
        icmp.extend_from_slice(&quoted[14..14 + QUOTED_BYTES]);
        let sum = checksum::of(&icmp);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let (IpAddr::V4(destination), IpAddr::V4(source)) = (local.ip(), remote.ip()) else {
            panic!("both are of IPv4");
        };
        let header = ip::Header {
            addresses: ip::Addresses::V4 {
                source,
                destination,
            },
            protocol: ip::ICMP,
            ttl: ip::TTL,
            traffic_class: 0,
            identification: 0,
        };
        let link = ethernet::Header {
            destination: mac,
            source: MAC,
            ether_type: ethernet::IPV4,
        };
        let mut frame = link.to_bytes().to_vec();
        frame.resize(14 + 20, 0);
        header.write(icmp.len() as u16, &mut frame[14..]);
        frame.extend_from_slice(&icmp);
        frame
    }
}
