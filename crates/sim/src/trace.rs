//! A run as text in the manner of tcpdump, as a capture, and as a hash.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write;
use std::net::SocketAddr;

use contract::{Command, Event, Segment};
use wire::datagram;
use wire::frame::{Received, TcpPacket, parse};
use wire::tcp::Flags;

use crate::link::Loss;
use crate::pcap;
use crate::scenario::BEGINNING_US;

/// A sink for bytes, such as standard output or a file.
pub type Sink<'a> = &'a RefCell<dyn Write>;

/// Trace sinks and switches of a run.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// Readable text, one line per event.
    pub trace: Option<Sink<'a>>,
    /// A capture of the server's link in the format of libpcap.
    pub pcap: Option<Sink<'a>>,
    /// Lets NIC stacks run the end of connections; for some seeds, of a few at a time.
    pub teardown: bool,
    /// Lets NIC workers answer SYNs; for about half of the seeds, SYNs that a map steers to them.
    pub setup: bool,
}

/// Trace of a run.
pub(crate) struct Trace<'a> {
    options: Options<'a>,
    hash: u64,
    /// Initial sequence numbers from the first address to the second, for relative ones.
    isns: HashMap<(SocketAddr, SocketAddr), u32>,
    scratch: Vec<u8>,
}

impl<'a> Trace<'a> {
    pub(crate) fn new(options: Options<'a>) -> Trace<'a> {
        if let Some(sink) = options.pcap {
            // The reader of a trace may close it early.
            let _ = pcap::write_header(&mut *sink.borrow_mut());
        }
        Trace {
            options,
            hash: 0xcbf2_9ce4_8422_2325,
            isns: HashMap::new(),
            scratch: Vec::new(),
        }
    }

    /// Returns the hash of all events: equal for equal runs.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn has_text(&self) -> bool {
        self.options.trace.is_some()
    }

    fn add(&mut self, bytes: &[u8]) {
        let mut mix = |word: u64| {
            self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        };
        mix(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|&word| mix(u64::from_le_bytes(word)));
        rest.iter().for_each(|&byte| mix(byte.into()));
    }

    fn say(&self, now_us: u64, text: &str) {
        if let Some(sink) = self.options.trace {
            let elapsed_us = now_us.saturating_sub(BEGINNING_US);
            let (seconds, us) = (elapsed_us / 1_000_000, elapsed_us % 1_000_000);
            let _ = writeln!(sink.borrow_mut(), "{seconds:3}.{us:06} {text}");
        }
    }

    /// Writes a line.
    pub(crate) fn note(&mut self, now_us: u64, text: impl FnOnce() -> String) {
        if self.has_text() {
            self.say(now_us, &text());
        }
    }

    /// Traces a frame that a host sends.
    pub(crate) fn sent(&mut self, now_us: u64, frame: &[u8]) {
        self.add(&now_us.to_le_bytes());
        self.add(frame);
        if self.has_text() {
            let text = self.describe(frame);
            self.say(now_us, &format!("packet {text}"));
        }
    }

    /// Traces the loss of the last frame traced.
    pub(crate) fn lost(&mut self, now_us: u64, loss: Loss) {
        self.add(&[loss as u8]);
        self.note(now_us, || format!("lost   it: {loss:?}"));
    }

    /// Captures a frame that passes the server's end of its link.
    pub(crate) fn capture(&mut self, now_us: u64, frame: &[u8]) {
        if let Some(sink) = self.options.pcap {
            let _ = pcap::write_frame(&mut *sink.borrow_mut(), now_us - BEGINNING_US, frame);
        }
    }

    /// Traces a command of the host stack.
    pub(crate) fn command(&mut self, now_us: u64, worker: usize, command: &Command<'_>) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        command.encode(&mut scratch);
        self.add(&scratch);
        self.scratch = scratch;
        if self.has_text() {
            self.say(
                now_us,
                &format!("nic{worker} < {}", describe_command(command)),
            );
        }
    }

    /// Traces an event of a worker.
    pub(crate) fn event(&mut self, now_us: u64, worker: usize, event: &Event) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        event.encode(&mut scratch);
        self.add(&scratch);
        self.scratch = scratch;
        if self.has_text() {
            self.say(now_us, &format!("nic{worker} > {event:?}"));
        }
    }

    fn describe(&mut self, frame: &[u8]) -> String {
        match parse(frame, true) {
            Ok(Received::Tcp(packet)) => self.describe_tcp(&packet),
            Ok(Received::Icmp4(packet)) => {
                format!(
                    "{} > {}: ICMP {:?}",
                    packet.source, packet.destination, packet.message
                )
            }
            Ok(Received::Icmp6(packet)) => {
                format!(
                    "{} > {}: ICMPv6 {:?}",
                    packet.source, packet.destination, packet.message
                )
            }
            Ok(Received::Arp(packet)) => {
                format!(
                    "ARP {:?} {} > {}",
                    packet.operation, packet.sender, packet.target
                )
            }
            Ok(Received::Other) => describe_datagram(frame),
            Err(error) => format!("{} bytes, damaged: {error}", frame.len()),
        }
    }

    fn describe_tcp(&mut self, packet: &TcpPacket<'_>) -> String {
        let header = &packet.segment.header;
        let source = SocketAddr::new(packet.source, header.source_port);
        let destination = SocketAddr::new(packet.destination, header.destination_port);
        if header.flags.contains(Flags::SYN) {
            self.isns.insert((source, destination), header.seq);
        }
        let isn = |from, to| self.isns.get(&(from, to)).copied().unwrap_or(0);
        let (own, theirs) = (isn(source, destination), isn(destination, source));
        let seq = header.seq.wrapping_sub(own);
        let len = packet.segment.payload.len() as u32;
        let mut text = format!("{source} > {destination}: [{}]", flags(header.flags));
        let _ = match len {
            0 => write!(text, " seq {seq}"),
            _ => write!(text, " seq {seq}:{}", seq.wrapping_add(len)),
        };
        if header.flags.contains(Flags::ACK) {
            let _ = write!(text, " ack {}", header.ack.wrapping_sub(theirs));
        }
        let _ = write!(text, " win {}", header.window);
        if packet.segment.ecn != wire::ip::Ecn::NotEct {
            let _ = write!(text, " {:?}", packet.segment.ecn);
        }
        let options = &header.options;
        if let Some(mss) = options.mss {
            let _ = write!(text, " mss {mss}");
        }
        if let Some(shift) = options.window_scale {
            let _ = write!(text, " wscale {shift}");
        }
        if options.sack_permitted {
            text.push_str(" sackOK");
        }
        if let Some(timestamps) = options.timestamps {
            let _ = write!(
                text,
                " TS {} ecr {}",
                timestamps.value, timestamps.echo_reply
            );
        }
        for (left, right) in options.sack.iter().flatten() {
            let [left, right] = [left, right].map(|edge| edge.wrapping_sub(theirs));
            let _ = write!(text, " sack {left}:{right}");
        }
        let _ = write!(text, " len {len}");
        text
    }
}

fn describe_datagram(frame: &[u8]) -> String {
    match datagram::parse(frame, true) {
        Ok(Some(packet)) => format!(
            "{} > {}: UDP {:?} {} bytes",
            packet.source,
            packet.destination,
            packet.ecn,
            packet.payload.len()
        ),
        _ => format!("{} bytes of something else", frame.len()),
    }
}

fn flags(flags: Flags) -> String {
    const NAMES: [(Flags, char); 8] = [
        (Flags::SYN, 'S'),
        (Flags::FIN, 'F'),
        (Flags::RST, 'R'),
        (Flags::PSH, 'P'),
        (Flags::URG, 'U'),
        (Flags::ECE, 'E'),
        (Flags::CWR, 'W'),
        (Flags::ACK, '.'),
    ];
    let set = NAMES.iter().filter(|(flag, _)| flags.contains(*flag));
    set.map(|(_, name)| name).collect()
}

fn describe_command(command: &Command<'_>) -> String {
    match command {
        Command::Open { file, growth, path } => {
            let path = String::from_utf8_lossy(path);
            format!("OPEN {} {growth:?} {path}", file.0)
        }
        Command::OpenPassed { file, passed } => format!("OPENPASSED {} {}", file.0, passed.0),
        Command::List { file, from, path } => {
            let path = String::from_utf8_lossy(path);
            format!("LIST {} {path} from {from}", file.0)
        }
        Command::Close { file } => format!("CLOS {}", file.0),
        Command::Acked {
            flow,
            stream_offset,
            last,
        } => format!(
            "ACKD flow {:x} {stream_offset}{}",
            flow.0,
            if *last { " last" } else { "" }
        ),
        Command::Key(key) => format!(
            "KEY flow {:x} epoch {} {:?}",
            key.flow.0, key.epoch, key.suite
        ),
        Command::Frame { bytes } => format!("FRAME {} bytes", bytes.len()),
        Command::Part(part) => format!(
            "PART flow {:x} {:?} fin {} rcv {}",
            part.flow.0, part.stage, part.fin_seq, part.rcv_nxt
        ),
        Command::Setup(setup) => format!(
            "SETUP {} with {} listeners",
            setup.epoch,
            setup.listeners.iter().count()
        ),
        Command::PartGone { flow } => format!("PARTGONE flow {:x}", flow.0),
        Command::Splice(splice) => format!(
            "SPLICE flow {:x}{} snd {:?} rcv {:?}",
            splice.flow.0,
            if splice.is_again { " again" } else { "" },
            splice.legs.map(|leg| leg.snd_nxt),
            splice.legs.map(|leg| leg.rcv_nxt)
        ),
        Command::SpliceMss {
            flow,
            leg,
            mss,
            seq,
        } => format!("SPLICEMSS flow {:x} leg {leg}: {mss}, of {seq}", flow.0),
        Command::Unsplice { flow, kind } => format!("UNSPLICE flow {:x} {kind:?}", flow.0),
        Command::KeyGone { flow, epoch } => format!("KEYGONE flow {:x} epoch {epoch}", flow.0),
        Command::Records(records) => format!(
            "RECORDS flow {:x} epoch {} from {} at {}: {} of {} bytes, {} tags",
            records.flow.0,
            records.epoch,
            records.number,
            records.stream_offset,
            records.count(),
            records.plaintext_bytes(),
            records.tags.len()
        ),
        Command::Send(send) => {
            let mut text = format!(
                "SEND {:x} flow {:x} acked {} from {}:",
                send.id.0, send.flow.0, send.acked_offset, send.stream_offset
            );
            for segment in send.segments.iter() {
                let _ = match segment {
                    Segment::Inline(bytes) => write!(text, " [{} bytes]", bytes.len()),
                    Segment::File { file, offset, len } => {
                        write!(text, " [file {} {offset}+{len}]", file.0)
                    }
                    Segment::Sealed { len } => write!(text, " [sealed {len}]"),
                };
            }
            text
        }
        _ => describe_quic(command),
    }
}

/// Describes a command of a QUIC connection.
fn describe_quic(command: &Command<'_>) -> String {
    match command {
        Command::QuicKey(key) => {
            format!("QKEY flow {:x} generation {}", key.flow.0, key.generation)
        }
        Command::QuicKeyGone { flow, generation } => {
            format!("QKEYGONE flow {:x} generation {generation}", flow.0)
        }
        Command::QuicSend(send) => format!(
            "QSEND {} flow {:x}: packets {:?}",
            send.id.0,
            send.flow.0,
            send.packets
                .iter()
                .map(|packet| packet.number)
                .collect::<Vec<_>>()
        ),
        Command::QuicReceiveKey(key) => {
            format!("QRXKEY flow {:x} generation {}", key.flow.0, key.generation)
        }
        Command::QuicConnectionId { flow, id } => {
            format!("QCID flow {:x}: {:02x?}", flow.0, id.as_bytes())
        }
        Command::QuicReceiveKeyGone { flow } => format!("QRXKEYGONE flow {:x}", flow.0),
        Command::Prepare(prepare) => format!(
            "PREPARE {} flow {:x}: file {} at {}, {} bytes",
            prepare.id.0, prepare.flow.0, prepare.file.0, prepare.offset, prepare.len
        ),
        Command::QuicRelease {
            flow,
            file,
            offset,
            len,
        } => format!(
            "QRELEASE flow {:x}: file {} at {offset}, {len} bytes",
            flow.0, file.0
        ),
        _ => String::new(),
    }
}
