//! Ways to send datagrams.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use netdev::packet::PacketPort;
use netdev::uring::SendRing;
use netdev::{Offload, Port, SendError, Superpacket};
use nix::sys::socket::{
    ControlMessage, MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg, sendmsg,
};
use serde::Serialize;
use testbed::{Context, Failure, Result};
use wire::datagram::{DatagramHeader, HEADERS_BYTES_MAX};
use wire::frame::UdpHeaderMut;
use wire::ip;

use super::batch::{Batch, DATAGRAM_BYTES};
use super::{ADDRESS, DEVICE, NEIGHBOUR, NEIGHBOUR_MAC};

/// Destination port.
const PORT: u16 = 443;

/// The way to send datagrams.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Engine {
    /// A system call per datagram.
    Sendmsg,
    /// One call for all, with a message per datagram.
    Sendmmsg,
    /// One call for all, with an io_uring request per datagram.
    IoUring,
    /// One call for all, segmented by the kernel or the link (GSO).
    UdpSegment,
    /// The same, past the kernel's UDP, with our own headers.
    Packet,
}

impl Engine {
    pub(super) const ALL: [Engine; 5] = [
        Engine::Sendmsg,
        Engine::Sendmmsg,
        Engine::IoUring,
        Engine::UdpSegment,
        Engine::Packet,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Engine::Sendmsg => "sendmsg",
            Engine::Sendmmsg => "sendmmsg",
            Engine::IoUring => "io_uring",
            Engine::UdpSegment => "UDP_SEGMENT",
            Engine::Packet => "AF_PACKET",
        }
    }

    /// Opens a sender of this kind, from the link's address to its neighbor.
    pub(super) fn open(self) -> Result<Sender> {
        if self == Engine::Packet {
            let opening = || format!("opening {DEVICE}");
            let port = PacketPort::send_only(DEVICE).context(opening)?;
            return Ok(Sender::Packet(Box::new(port)));
        }
        let binding = || format!("opening a UDP socket at {ADDRESS}");
        let socket = UdpSocket::bind((ADDRESS, 0)).context(binding)?;
        let to = (NEIGHBOUR, PORT);
        socket.connect(to).context(binding)?;
        Ok(match self {
            Engine::Sendmmsg => Sender::Sendmmsg(socket),
            Engine::IoUring => {
                let ring = SendRing::new().context(|| "opening io_uring".into())?;
                Sender::IoUring(socket, Box::new(ring))
            }
            Engine::UdpSegment => Sender::UdpSegment(socket),
            Engine::Sendmsg | Engine::Packet => Sender::Sendmsg(socket),
        })
    }
}

/// An open sender.
pub(super) enum Sender {
    Sendmsg(UdpSocket),
    Sendmmsg(UdpSocket),
    IoUring(UdpSocket, Box<SendRing>),
    UdpSegment(UdpSocket),
    Packet(Box<PacketPort>),
}

impl Sender {
    /// Sends all of a batch.
    pub(super) fn send(&mut self, batch: &Batch) -> Result<()> {
        match self {
            Sender::Sendmsg(socket) => batch
                .datagrams()
                .try_for_each(|datagram| send_message(socket, datagram, &[])),
            Sender::Sendmmsg(socket) => send_messages(socket, batch),
            Sender::IoUring(socket, ring) => {
                let sent = ring.send(socket.as_fd(), batch.datagrams());
                sent.context(|| "io_uring".into())
            }
            Sender::UdpSegment(socket) => {
                let segment = [ControlMessage::UdpGsoSegments(&(DATAGRAM_BYTES as u16))];
                send_message(socket, batch.bytes(), &segment)
            }
            Sender::Packet(port) => send_superpacket(port, batch),
        }
    }
}

/// Sends one message, of one datagram or of several to be segmented.
fn send_message(socket: &UdpSocket, bytes: &[u8], control: &[ControlMessage<'_>]) -> Result<()> {
    let sent = sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(bytes)],
        control,
        MsgFlags::empty(),
        None,
    );
    let sent = sent.context(|| "sendmsg".into())?;
    all(sent, bytes.len())
}

fn send_messages(socket: &UdpSocket, batch: &Batch) -> Result<()> {
    let slices: Vec<[IoSlice<'_>; 1]> = batch.datagrams().map(|it| [IoSlice::new(it)]).collect();
    let to: Vec<Option<SockaddrStorage>> = vec![None; slices.len()];
    let mut headers = MultiHeaders::preallocate(slices.len(), None);
    let results = sendmmsg(
        socket.as_raw_fd(),
        &mut headers,
        &slices,
        to,
        [],
        MsgFlags::empty(),
    );
    let sent = results.context(|| "sendmmsg".into())?.count();
    all(sent, slices.len())
}

fn send_superpacket(port: &mut PacketPort, batch: &Batch) -> Result<()> {
    let address = |text: &str| -> IpAddr { text.parse().expect("an address") };
    let header = DatagramHeader {
        source_mac: port.mac(),
        destination_mac: NEIGHBOUR_MAC,
        source: SocketAddr::new(address(ADDRESS), PORT),
        destination: SocketAddr::new(address(NEIGHBOUR), PORT),
        ecn: ip::Ecn::NotEct,
    };
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let made = header.write(&mut buffer);
    let len = made.ok_or_else(|| Failure::new("a header of UDP"))?;
    let making = || "a header of UDP".to_owned();
    let mut header = UdpHeaderMut::parse(&mut buffer[..len]).context(making)?;
    header.finish(batch.bytes().len()).context(making)?;
    let offload = Offload::Udp {
        udp_offset: header.udp_offset() as u16,
        payload_bytes: DATAGRAM_BYTES as u16,
        ipv6: false,
    };
    let packet = Superpacket {
        header: &buffer[..len],
        payload: &[IoSlice::new(batch.bytes())],
        offload,
    };
    loop {
        match port.send(&packet) {
            Ok(()) => return Ok(()),
            Err(SendError::WouldBlock) => {}
            Err(SendError::Dropped) => return Err(Failure::new("the link has dropped datagrams")),
            Err(SendError::Failed(error)) => return Err(error).context(|| "sending".into()),
        }
    }
}

fn all(sent: usize, wanted: usize) -> Result<()> {
    if sent == wanted {
        Ok(())
    } else {
        let what = format!("of {wanted} bytes or messages, {sent} were sent");
        Err(Failure::new(what))
    }
}
