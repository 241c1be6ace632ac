//! Audits the wire: every segment of either end must be consistent with all segments before it.

use std::collections::HashMap;
use std::net::SocketAddr;

use wire::frame::TcpPacket;
use wire::tcp::{Flags, Header};

use crate::random::Random;
use crate::violation::{Check, ensure};

/// All conversations, by the peer's address and port; the server's are known.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// Bytes handed to the NIC stack may be lost there, so the server may send later bytes first.
    allows_gaps: bool,
    conversations: HashMap<SocketAddr, Conversation>,
}

#[derive(Debug, Default)]
struct Conversation {
    /// The server's port.
    port: u16,
    server: Half,
    peer: Half,
}

/// Sequence space of one end. Positions count from its initial sequence number, without wrap.
#[derive(Debug, Default)]
struct Half {
    isn: Option<u32>,
    /// Initial sequence number and window scale of each SYN; `is_chosen` once the other end has
    /// acknowledged one of the SYNs.
    proposals: Vec<(u32, Option<u8>)>,
    is_chosen: bool,
    /// One past the highest position sent.
    end: u64,
    /// One past the highest position allowed by the other end's windows that have arrived here.
    allowed: u64,
    has_reset: bool,
    /// Position of FIN.
    fin: Option<u64>,
    /// Shift of the windows that it offers, once both ends have agreed on window scaling.
    shift: u8,
    sent: SentBytes,
}

/// Another peer's connection, as a network scan shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    /// The peer's address and port.
    pub(crate) peer: SocketAddr,
    /// The server's port.
    pub(crate) port: u16,
    /// One past the last sequence number sent by the peer.
    pub(crate) peer_end: u32,
    /// One past the last sequence number sent by the server.
    pub(crate) server_end: u32,
}

/// The payload sent so far; `known` is false in gaps.
#[derive(Debug, Default)]
pub(crate) struct SentBytes {
    bytes: Vec<u8>,
    known: Vec<bool>,
}

impl SentBytes {
    /// Reports whether `payload` agrees with all bytes sent at its place before, and remembers it.
    pub(crate) fn is_the_same(&mut self, offset: u64, payload: &[u8]) -> bool {
        let place = offset as usize..offset as usize + payload.len();
        if self.bytes.len() < place.end {
            self.bytes.resize(place.end, 0);
            self.known.resize(place.end, false);
        }
        let (bytes, known) = (&mut self.bytes[place.clone()], &mut self.known[place]);
        let same = bytes.iter().zip(payload).zip(&*known);
        let same =
            !known.contains(&true) || same.into_iter().all(|((a, b), known)| !known || a == b);
        bytes.copy_from_slice(payload);
        known.fill(true);
        same
    }
}

impl Half {
    fn begin(&mut self, isn: u32) {
        self.isn = Some(isn);
        self.end = 1;
        self.allowed = 1;
    }

    /// Returns the position of a sequence number near the end of the sent bytes.
    fn position(&self, seq: u32) -> Option<u64> {
        let near = self.isn?.wrapping_add(self.end as u32);
        self.end
            .checked_add_signed(i64::from(seq.wrapping_sub(near) as i32))
    }
}

/// Describes a segment for reports.
fn describe(who: &str, peer: SocketAddr, header: &Header) -> String {
    format!(
        "{who} towards {peer}: seq {}, ack {}, flags {:02x}",
        header.seq, header.ack, header.flags.0
    )
}

impl Audit {
    pub(crate) fn new(allows_gaps: bool) -> Audit {
        Audit {
            allows_gaps,
            ..Audit::default()
        }
    }

    /// Starts a new conversation if the peer reuses its address and port for a new connection.
    fn begin(&mut self, peer: SocketAddr, header: &Header) -> &mut Conversation {
        let conversation = self.conversations.entry(peer).or_default();
        let opens = header.flags.contains(Flags::SYN) && !header.flags.contains(Flags::ACK);
        if opens && conversation.peer.isn != Some(header.seq) {
            *conversation = Conversation {
                port: header.destination_port,
                ..Conversation::default()
            };
        }
        conversation
    }

    /// Picks a connection in which both ends have sent bytes and neither has ended. `is_there`
    /// reports whether the server still has a connection with a peer: it may have dropped it and
    /// its RST may have been lost; the server then answers segments in the peer's name as a
    /// stranger's.
    pub(crate) fn victim(
        &self,
        random: &mut Random,
        is_there: impl Fn(SocketAddr) -> bool,
    ) -> Option<Victim> {
        let is_open = |half: &Half| half.end > 1 && half.fin.is_none() && !half.has_reset;
        let mut open: Vec<_> = self
            .conversations
            .iter()
            .filter(|(peer, conversation)| {
                is_open(&conversation.peer) && is_open(&conversation.server) && is_there(**peer)
            })
            .collect();
        // The map's order follows no seed.
        open.sort_by_key(|(peer, _)| **peer);
        let seq = |half: &Half| half.isn.unwrap_or(0).wrapping_add(half.end as u32);
        (!open.is_empty()).then(|| {
            let (peer, conversation) = random.pick(&open);
            Victim {
                peer: *peer,
                port: conversation.port,
                peer_end: seq(&conversation.peer),
                server_end: seq(&conversation.server),
            }
        })
    }

    /// Checks a packet that a well-behaved peer sends.
    pub(crate) fn peer_sends(&mut self, packet: &TcpPacket<'_>) -> Check {
        let header = &packet.segment.header;
        let peer = SocketAddr::new(packet.source, header.source_port);
        let conversation = self.begin(peer, header);
        let (own, other) = (&mut conversation.peer, &mut conversation.server);
        check_sent("client", peer, packet, own, other, false)
    }

    /// Counts the window of a peer's packet that has reached the server.
    pub(crate) fn server_hears(&mut self, packet: &TcpPacket<'_>) {
        let header = &packet.segment.header;
        let peer = SocketAddr::new(packet.source, header.source_port);
        if let Some(conversation) = self.conversations.get_mut(&peer) {
            note_window(header, &conversation.peer, &mut conversation.server);
        }
    }

    /// Checks a packet that the server sends.
    pub(crate) fn server_sends(&mut self, packet: &TcpPacket<'_>) -> Check {
        let header = &packet.segment.header;
        let peer = SocketAddr::new(packet.destination, header.destination_port);
        let allows_gaps = self.allows_gaps;
        let Some(conversation) = self.conversations.get_mut(&peer) else {
            // To a host that is not watched.
            return Ok(());
        };
        let (own, other) = (&mut conversation.server, &mut conversation.peer);
        if own.has_reset {
            // The connection is over. An intruder may open another in the peer's name, which is
            // none of the peer's.
            return Ok(());
        }
        check_sent("server", peer, packet, own, other, allows_gaps)
    }

    /// Counts the window of a server's packet that has reached a peer.
    pub(crate) fn peer_hears(&mut self, packet: &TcpPacket<'_>) {
        let header = &packet.segment.header;
        let peer = SocketAddr::new(packet.destination, header.destination_port);
        if let Some(conversation) = self.conversations.get_mut(&peer) {
            note_window(header, &conversation.server, &mut conversation.peer);
        }
    }
}

/// Notes a window that `from` has offered and `to` has received.
fn note_window(header: &Header, from: &Half, to: &mut Half) {
    if !header.flags.contains(Flags::ACK) || header.flags.contains(Flags::RST) {
        return;
    }
    let shift = if header.flags.contains(Flags::SYN) {
        0
    } else {
        from.shift
    };
    if let Some(position) = to.position(header.ack) {
        let allowed = position + (u64::from(header.window) << shift);
        to.allowed = to.allowed.max(allowed);
    }
}

fn check_sent(
    who: &str,
    peer: SocketAddr,
    packet: &TcpPacket<'_>,
    own: &mut Half,
    other: &mut Half,
    allows_gaps: bool,
) -> Check {
    let header = &packet.segment.header;
    let payload = packet.segment.payload;
    let flags = header.flags;
    if flags.contains(Flags::RST) {
        own.has_reset = true;
        return Ok(());
    }
    if flags.contains(Flags::SYN) {
        let proposal = (header.seq, header.options.window_scale);
        own.proposals.push(proposal);
        if own.isn.is_none() {
            own.begin(header.seq);
        }
        return Ok(());
    }
    // A server without a memory of its first answer may give a different one to the same SYN (RFC
    // 4987 §3.6). The other end's first acknowledgment decides which one counts, and with it
    // whether windows are scaled.
    if !other.is_chosen && flags.contains(Flags::ACK) {
        other.is_chosen = true;
        let isn = header.ack.wrapping_sub(1);
        let chosen = other.proposals.iter().find(|proposal| proposal.0 == isn);
        if let Some(&(isn, theirs)) = chosen
            && other.end == 1
        {
            other.begin(isn);
            let ours = own.proposals.last().and_then(|proposal| proposal.1);
            if let (Some(ours), Some(theirs)) = (ours, theirs) {
                (own.shift, other.shift) = (ours, theirs);
            }
        }
    }
    let Some(start) = own.position(header.seq) else {
        return ensure(own.isn.is_none(), || {
            format!("before its first byte: {}", describe(who, peer, header))
        });
    };
    let len = payload.len() as u64;
    let end = start + len;
    // An acknowledgment names SND.NXT, and may overtake bytes that the NIC stack has yet to read.
    let occupies = len > 0 || flags.contains(Flags::FIN);
    ensure(!occupies || allows_gaps || start <= own.end, || {
        format!(
            "a gap of {} bytes in what is sent: {}",
            start - own.end,
            describe(who, peer, header)
        )
    })?;
    ensure(len == 0 || end <= own.allowed, || {
        format!(
            "{} bytes beyond the window: {}",
            end - own.allowed,
            describe(who, peer, header)
        )
    })?;
    if flags.contains(Flags::FIN) {
        ensure(own.fin.is_none_or(|fin| fin == end), || {
            format!("FIN at another place: {}", describe(who, peer, header))
        })?;
        own.fin = Some(end);
    }
    ensure(
        own.fin.is_none_or(|fin| end <= fin + u64::from(len == 0)),
        || format!("text behind FIN: {}", describe(who, peer, header)),
    )?;
    if len > 0 {
        ensure(
            start >= 1 && own.sent.is_the_same(start - 1, payload),
            || format!("content has changed: {}", describe(who, peer, header)),
        )?;
    }
    if occupies {
        own.end = own.end.max(end + u64::from(flags.contains(Flags::FIN)));
    }
    if flags.contains(Flags::ACK)
        && let Some(acknowledged) = other.position(header.ack)
    {
        ensure(acknowledged <= other.end, || {
            format!(
                "acknowledges what was not sent: {}",
                describe(who, peer, header)
            )
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_is_a_connection_that_the_server_has() {
        let mut audit = Audit::default();
        let ends = [1, 2].map(|port| SocketAddr::new([10, 77, 0, 1].into(), port));
        for peer in ends {
            let conversation = audit.conversations.entry(peer).or_default();
            for half in [&mut conversation.peer, &mut conversation.server] {
                half.begin(7);
                half.end = 2;
            }
        }
        let mut random = Random::new(1);
        for is_there in ends {
            let victim = audit.victim(&mut random, |peer| peer == is_there);
            assert_eq!(victim.map(|victim| victim.peer), Some(is_there));
        }
        assert!(audit.victim(&mut random, |_| false).is_none());
    }
}
