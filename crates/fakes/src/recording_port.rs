//! A port that records sent packets, with results chosen by the test.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use contract::FlowId;
use netdev::steering::Target;
use netdev::{Frame, Offload, Port, SendError, Superpacket};
use wire::datagram;
use wire::frame::{HeaderMut, Received, UdpHeaderMut};
use wire::tcp::Flags;

/// Sequence number of the first payload byte of every flow: the stream soon wraps around.
pub const FIRST_SEQ: u32 = u32::MAX - 1000;

/// A packet passed to the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Ethernet, IP and TCP header.
    pub header: Vec<u8>,
    /// Payload.
    pub payload: Vec<u8>,
    /// Offset of the TCP header.
    pub tcp_offset: usize,
    /// Payload of each segment after segmentation, in bytes.
    pub mss: u16,
}

impl Packet {
    /// Parses the header: sequence number, flags, TSval.
    pub fn parsed(&self) -> (u32, Flags, Option<u32>) {
        let mut bytes = self.header.clone();
        let header = HeaderMut::parse(&mut bytes).expect("a header");
        (header.seq(), header.flags(), header.timestamp_value())
    }

    /// Returns the sequence number.
    pub fn seq(&self) -> u32 {
        self.parsed().0
    }

    /// Returns the flags.
    pub fn flags(&self) -> Flags {
        self.parsed().1
    }

    /// Returns TSval.
    pub fn timestamp(&self) -> u32 {
        self.parsed().2.expect("a timestamps option")
    }

    /// Returns the flow: tests put its id into the destination port.
    pub fn flow(&self) -> FlowId {
        let at = self.tcp_offset + 2;
        FlowId(u16::from_be_bytes([self.header[at], self.header[at + 1]]).into())
    }

    /// Returns the offset in the stream of the first payload byte.
    pub fn stream_offset(&self) -> usize {
        self.seq().wrapping_sub(FIRST_SEQ) as usize
    }

    /// Completes the packet as the port would, and checks that a receiver would accept it.
    pub fn check(&self) {
        let mut frame = self.header.clone();
        frame.extend_from_slice(&self.payload);
        let mut sum = 0u32;
        for pair in frame[self.tcp_offset..].chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let at = self.tcp_offset + 16;
        frame[at..at + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        match wire::frame::parse(&frame, false) {
            Ok(Received::Tcp(packet)) => assert_eq!(packet.segment.payload, self.payload),
            other => panic!("not a TCP packet: {other:?}"),
        }
    }
}

/// Datagrams passed to the port as one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagrams {
    /// Ethernet, IP and UDP header.
    pub header: Vec<u8>,
    /// Payload of all datagrams.
    pub payload: Vec<u8>,
    /// Payload of each datagram but the last, in bytes.
    pub payload_bytes: usize,
}

impl Datagrams {
    /// Returns the payload of each datagram.
    pub fn each(&self) -> impl Iterator<Item = &[u8]> {
        self.payload.chunks(self.payload_bytes)
    }

    /// Returns the flow: tests put its id into the destination port.
    pub fn flow(&self) -> FlowId {
        let at = self.header.len() - datagram::HEADER_BYTES + 2;
        FlowId(u16::from_be_bytes([self.header[at], self.header[at + 1]]).into())
    }

    /// Returns the IPv4 identification.
    pub fn identification(&self) -> Option<u16> {
        let mut bytes = self.header.clone();
        let header = UdpHeaderMut::parse(&mut bytes).expect("a header");
        header.identification()
    }

    /// Checks that lengths and the pseudo-header's sum are as the port requires.
    fn check(&self) {
        let mut bytes = self.header.clone();
        let mut header = UdpHeaderMut::parse(&mut bytes).expect("a header");
        header.finish(self.payload.len()).expect("it fits");
        assert_eq!(bytes, self.header, "a header is finished");
    }
}

/// Result of a send.
#[derive(Debug)]
pub enum Answer {
    /// The port has no room.
    Busy,
    /// The port drops the packet.
    Drop,
    /// The port fails.
    Fail,
}

#[derive(Debug, Default)]
struct Tap {
    packets: Vec<Packet>,
    datagrams: Vec<Datagrams>,
    answers: VecDeque<Answer>,
    arriving: VecDeque<Vec<u8>>,
    closed: bool,
    lenient: bool,
}

/// Shares a port's packets with the test, and decides the results of sends.
#[derive(Clone, Debug, Default)]
pub struct Recording(Arc<Mutex<Tap>>);

impl Recording {
    /// Returns the packets sent so far.
    pub fn packets(&self) -> Vec<Packet> {
        self.0.lock().unwrap().packets.clone()
    }

    /// Removes and returns the packets sent so far.
    pub fn take(&self) -> Vec<Packet> {
        std::mem::take(&mut self.0.lock().unwrap().packets)
    }

    /// Removes and returns the datagrams sent so far.
    pub fn take_datagrams(&self) -> Vec<Datagrams> {
        std::mem::take(&mut self.0.lock().unwrap().datagrams)
    }

    /// Sets the results of the next sends.
    pub fn answer(&self, answers: impl IntoIterator<Item = Answer>) {
        self.0.lock().unwrap().answers.extend(answers);
    }

    /// Lets a frame arrive, with an unverified checksum.
    pub fn arrive(&self, frame: Vec<u8>) {
        self.0.lock().unwrap().arriving.push_back(frame);
    }

    /// Returns the number of frames that have arrived and were not received.
    pub fn arriving(&self) -> usize {
        self.0.lock().unwrap().arriving.len()
    }

    /// Makes the port busy until it is opened again.
    pub fn close(&self, closed: bool) {
        self.0.lock().unwrap().closed = closed;
    }

    /// Accepts packets that a receiver would reject.
    pub fn be_lenient(&self) {
        self.0.lock().unwrap().lenient = true;
    }

    /// Returns the reassembled streams, by flow. Bytes sent twice must be the same.
    pub fn streams(&self) -> BTreeMap<u64, Vec<u8>> {
        let mut streams: BTreeMap<u64, Vec<Option<u8>>> = BTreeMap::new();
        for packet in self.packets() {
            let stream = streams.entry(packet.flow().0).or_default();
            let start = packet.stream_offset();
            let end = start + packet.payload.len();
            stream.resize(stream.len().max(end), None);
            for (place, byte) in stream[start..end].iter_mut().zip(&packet.payload) {
                assert!(place.is_none_or(|old| old == *byte), "content has changed");
                *place = Some(*byte);
            }
        }
        let whole = |stream: Vec<Option<u8>>| -> Vec<u8> {
            stream
                .into_iter()
                .map(|byte| byte.expect("no hole"))
                .collect()
        };
        streams
            .into_iter()
            .map(|(flow, stream)| (flow, whole(stream)))
            .collect()
    }
}

/// A port that records its packets.
#[derive(Debug)]
pub struct RecordingPort {
    recording: Recording,
    superpacket_max: usize,
    /// Packets until it becomes busy.
    takes: Option<usize>,
    target: Option<Target>,
}

impl RecordingPort {
    /// Returns a port for superpackets of at most `superpacket_max` bytes.
    pub fn new(recording: &Recording, superpacket_max: usize) -> RecordingPort {
        let recording = recording.clone();
        RecordingPort {
            recording,
            superpacket_max,
            takes: None,
            target: None,
        }
    }

    /// Sets the port's target in a steering map.
    pub fn set_target(&mut self, target: Option<Target>) {
        self.target = target;
    }

    /// Makes the port busy after `packets` packets, until it is opened again.
    pub fn close_after(&mut self, packets: usize) {
        self.takes = Some(packets);
    }
}

impl Port for RecordingPort {
    fn mac(&self) -> [u8; 6] {
        [2, 0, 0, 0, 0, 1]
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn superpacket_max(&self, _ipv6: bool) -> usize {
        self.superpacket_max
    }

    fn send(&mut self, packet: &Superpacket<'_>) -> Result<(), SendError> {
        let mut tap = self.recording.0.lock().unwrap();
        if tap.closed {
            return Err(SendError::WouldBlock);
        }
        match tap.answers.pop_front() {
            Some(Answer::Busy) => return Err(SendError::WouldBlock),
            Some(Answer::Drop) => return Err(SendError::Dropped),
            Some(Answer::Fail) => return Err(SendError::Failed(io::ErrorKind::NetworkDown.into())),
            None => {}
        }
        let payload: Vec<u8> = packet.payload.iter().flat_map(|s| s.to_vec()).collect();
        assert!(packet.header.len() - 14 + payload.len() <= self.superpacket_max);
        let header = packet.header.to_vec();
        match packet.offload {
            Offload::Tcp {
                tcp_offset, mss, ..
            } => {
                let packet = Packet {
                    header,
                    payload,
                    tcp_offset: tcp_offset.into(),
                    mss,
                };
                if !tap.lenient {
                    packet.check();
                }
                tap.packets.push(packet);
            }
            Offload::Udp { payload_bytes, .. } => {
                let datagrams = Datagrams {
                    header,
                    payload,
                    payload_bytes: payload_bytes.into(),
                };
                datagrams.check();
                tap.datagrams.push(datagrams);
            }
            Offload::None => panic!("a SEND makes TCP packets, a QSEND datagrams"),
        }
        if let Some(takes) = &mut self.takes {
            *takes -= 1;
            if *takes == 0 {
                tap.closed = true;
                self.takes = None;
            }
        }
        Ok(())
    }

    fn receive(&mut self, budget: usize, handle: &mut dyn FnMut(Frame<'_>)) -> io::Result<usize> {
        for received in 0..budget {
            let arrived = self.recording.0.lock().unwrap().arriving.pop_front();
            let Some(bytes) = arrived else {
                return Ok(received);
            };
            handle(Frame {
                bytes: &bytes,
                checksum_valid: false,
                segment_bytes: None,
            });
        }
        Ok(budget)
    }

    fn target(&self) -> Option<Target> {
        self.target
    }

    fn receive_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn send_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
