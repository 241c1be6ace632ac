//! A session between two stacks, from the handshake to the end of either.
//!
//! An end works in rounds, in each of which it
//!
//! 1. takes in received frames: [`Session::on_frame`];
//! 2. takes records out: [`Session::record`], [`Session::consume`];
//! 3. puts records in, while [`Session::has_room`]: [`Session::send`];
//! 4. lets time pass: [`Session::on_time`];
//! 5. sends frames while [`Session::transmit`] makes any, and sleeps until a frame arrives, a
//!    record is to be sent, or [`Session::next_timeout_us`].
//!
//! [`Session::end`] reports the end. No state is carried on to the next session: the host stack
//! opens a new epoch, as it does when a NIC process restarts.

use std::fmt;

use zerocopy::{FromBytes, IntoBytes};

use super::WINDOW;
use super::clock::PeerClock;
use super::frame::{
    self, ANSWER_WANTED, FRAME_BYTES_MAX, Head, Leaving, OVERHEAD_BYTES, SEALED, SealedHeader,
    Status,
};
use super::receiver::Receiver;
use super::replay::ReplayWindow;
use super::rtt::Rtt;
use super::seal::SealKey;
use super::sender::{Receipt, Sender};
use crate::limits::MESSAGE_BYTES_MAX;

pub use super::sender::Full;

/// Silence of the peer after which a session is over, in microseconds.
pub const SILENCE_US_MAX: u64 = 3_000_000;

/// Interval of frames without parcels, in microseconds, so that the peer does not take this side
/// for silent.
const KEEPALIVE_US: u64 = 300_000;

/// Frames that did not authenticate, until the key must be given up (RFC 9001 §6.6).
const FORGED_MAX: u64 = 1 << 36;

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// No frame has arrived for [`SILENCE_US_MAX`].
    Silent,
    /// The other stack has left.
    Left(Leaving),
    /// The other stack has broken this rule, although it has the key.
    Broken(&'static str),
    /// The number of frames with a wrong seal is so high that a forgery might soon pass.
    Attacked,
}

/// Why a frame was dropped. None of this ends a session: anyone on the link can send anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// No frame of a session.
    Malformed,
    /// A frame of another session, maybe of one that is over.
    OtherSession,
    /// It has arrived before, or is so old that it may have.
    Replayed,
    /// It was not sealed with this session's key.
    Forged,
}

counters::counters! {
    /// Counters of a session.
    pub struct Counters {
        /// Frames sent.
        frames_sent: Counter,
        /// Frames received and accepted.
        frames_received: Counter,
        /// Frames dropped: malformed, of other sessions, replayed, forged.
        frames_dropped: Counter,
        /// Records sent for the first time.
        records_sent: Counter,
        /// Records received.
        records_received: Counter,
        /// Parcels retransmitted.
        parcels_repeated: Counter,
        /// Duplicate parcels received.
        parcels_duplicate: Counter,
    }
}

/// What two stacks agree on at the end of the handshake.
pub(super) struct Agreed {
    pub(super) session: u64,
    pub(super) version: u8,
    pub(super) frame_bytes: usize,
    pub(super) own_key: SealKey,
    pub(super) peer_key: SealKey,
    /// The host stack's end, which speaks first.
    pub(super) is_host: bool,
}

/// One end of a session.
#[derive(Debug)]
pub struct Session {
    id: u64,
    version: u8,
    own_key: SealKey,
    peer_key: SealKey,
    /// Number of the next frame.
    next_frame: u64,
    replay: ReplayWindow,
    sender: Sender,
    receiver: Receiver,
    rtt: Rtt,
    clock: PeerClock,
    /// `sent_us` of the last frame received, and the time of its arrival.
    heard: Option<(u64, u64)>,
    /// The last `echo_us` with which a round trip was measured.
    echoed_us: u64,
    heard_us: u64,
    sent_us: u64,
    /// A frame must leave even without a parcel.
    wants_to_speak: bool,
    wants_answer: bool,
    leaving: Option<Leaving>,
    has_taken_leave: bool,
    end: Option<End>,
    forged: u64,
    counters: Counters,
}

impl Session {
    pub(super) fn new(now_us: u64, agreed: Agreed) -> Session {
        let parcel_bytes_max = agreed.frame_bytes - OVERHEAD_BYTES;
        Session {
            id: agreed.session,
            version: agreed.version,
            own_key: agreed.own_key,
            peer_key: agreed.peer_key,
            next_frame: 0,
            replay: ReplayWindow::default(),
            sender: Sender::new(parcel_bytes_max),
            receiver: Receiver::new(parcel_bytes_max),
            rtt: Rtt::default(),
            clock: PeerClock::default(),
            heard: None,
            echoed_us: 0,
            heard_us: now_us,
            sent_us: now_us,
            // The host's first frame proves to the NIC stack that the HELLO was not a recorded one.
            wants_to_speak: agreed.is_host,
            wants_answer: true,
            leaving: None,
            has_taken_leave: false,
            end: None,
            forged: 0,
            counters: Counters::default(),
        }
    }

    /// Returns its number, on the wire.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the reason of its end, if it is over.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        Counters {
            parcels_repeated: self.sender.repeated,
            parcels_duplicate: self.receiver.duplicates,
            ..self.counters
        }
    }

    /// Returns the lead of the other machine's clock over this one's, in microseconds; `None`
    /// before the first round trip.
    pub fn peer_clock_ahead_us(&self) -> Option<i64> {
        self.clock.ahead_us()
    }

    /// True if any record can be sent now.
    pub fn has_room(&self) -> bool {
        self.sender.has_room()
    }

    /// True if all that was sent has been acknowledged.
    pub fn is_quiet(&self) -> bool {
        self.sender.is_empty()
    }

    /// Sends a record of a worker, with the next [`Session::transmit`].
    ///
    /// # Panics
    /// If it is empty, or longer than [`MESSAGE_BYTES_MAX`].
    pub fn send(&mut self, worker: u16, record: &[u8]) -> Result<(), Full> {
        assert!((1..=MESSAGE_BYTES_MAX).contains(&record.len()));
        self.sender.push(worker, record)?;
        self.counters.records_sent += 1;
        Ok(())
    }

    /// Returns the next received record, with its worker; the same one until [`Session::consume`].
    /// The worker may be any number. Records that arrived complete and in order before the other
    /// side left, or fell silent, are still returned.
    pub fn record(&mut self) -> Option<(u16, &mut [u8])> {
        if let Some(End::Broken(_) | End::Attacked) = self.end {
            return None;
        }
        if let Err(rule) = self.receiver.assemble() {
            self.break_off(rule);
            return None;
        }
        self.receiver.record()
    }

    /// Releases the record; the next one follows.
    pub fn consume(&mut self) {
        self.counters.records_received += 1;
        self.receiver.consume();
    }

    /// Handles a frame: the bytes after the Ethernet header, padding included. Decrypts it in
    /// place, and overwrites it once its parcel has been taken out, since it may contain a key.
    pub fn on_frame(&mut self, now_us: u64, frame: &mut [u8]) -> Result<(), Dropped> {
        let taken = self.open(frame).map(|(number, status, parcel)| {
            self.replay.note(number);
            self.on_status(now_us, &status, parcel);
        });
        match taken {
            Ok(()) => {
                frame.fill(0);
                self.counters.frames_received += 1;
            }
            Err(_) => self.counters.frames_dropped += 1,
        }
        taken
    }

    /// Ends the session; the next [`Session::transmit`] notifies the peer.
    pub fn leave(&mut self, why: Leaving) {
        self.leaving.get_or_insert(why);
        self.wants_to_speak = true;
    }

    /// Handles the passing of time.
    pub fn on_time(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.heard_us) >= SILENCE_US_MAX {
            self.end.get_or_insert(End::Silent);
        }
        if self
            .sender
            .deadline_us(&self.rtt)
            .is_some_and(|at_us| at_us <= now_us)
        {
            self.wants_answer |= self.sender.on_timeout(now_us, &mut self.rtt);
            self.wants_to_speak |= self.wants_answer;
        }
        if now_us.saturating_sub(self.sent_us) >= self.pause_us() {
            self.wants_to_speak = true;
            self.wants_answer |= self.is_new();
        }
    }

    /// When to call [`Session::on_time`] at the latest.
    pub fn next_timeout_us(&self) -> u64 {
        let always = (self.sent_us + self.pause_us()).min(self.heard_us + SILENCE_US_MAX);
        self.sender
            .deadline_us(&self.rtt)
            .map_or(always, |at_us| at_us.min(always))
    }

    /// Writes the next frame, from the end of the Ethernet header on; false if there is none now.
    pub fn transmit(&mut self, now_us: u64, frame: &mut Vec<u8>) -> bool {
        if self.has_taken_leave || (self.end.is_some() && self.leaving.is_none()) {
            return false;
        }
        let number = self.next_frame;
        let flags = if self.wants_answer { ANSWER_WANTED } else { 0 };
        let departing = match self.leaving {
            None => self.sender.depart(now_us, number),
            Some(_) => None,
        };
        if departing.is_none() && !self.wants_to_speak && !self.receiver.is_receipt_due() {
            return false;
        }
        let (parcel, bytes) = departing.unwrap_or((0, &[]));
        let receipt = self.receiver.receipt(self.replay.largest());
        let (echo_us, echo_delay_us) = match self.heard {
            Some((sent_us, at_us)) => (sent_us, now_us.saturating_sub(at_us)),
            None => (0, 0),
        };
        let status = Status {
            sent_us: now_us.into(),
            echo_us: echo_us.into(),
            echo_delay_us: u32::try_from(echo_delay_us).unwrap_or(u32::MAX).into(),
            flags,
            leaving: self.leaving.map_or(0, |leaving| leaving as u8),
            parcel_bytes: (bytes.len() as u16).into(),
            largest: receipt.largest.into(),
            expected: receipt.expected.into(),
            credit: receipt.credit.into(),
            parcel: parcel.into(),
            received: receipt.received.map(Into::into),
        };
        let header = SealedHeader {
            head: Head::new(SEALED, self.version, OVERHEAD_BYTES + bytes.len()),
            session: self.id.into(),
            number: number.into(),
        };
        frame.clear();
        frame.extend_from_slice(header.as_bytes());
        frame.extend_from_slice(status.as_bytes());
        frame.extend_from_slice(bytes);
        self.own_key.seal(number, frame, size_of::<SealedHeader>());

        self.next_frame += 1;
        self.sent_us = now_us;
        self.wants_to_speak = false;
        self.wants_answer = false;
        self.counters.frames_sent += 1;
        if let Some(leaving) = self.leaving {
            self.has_taken_leave = true;
            self.end.get_or_insert(End::Left(leaving));
        }
        true
    }

    /// True until a round trip has been measured. Both sides ask for one with their first frame,
    /// and again.
    fn is_new(&self) -> bool {
        self.clock.ahead_us().is_none()
    }

    /// Longest silence of this side, in microseconds.
    fn pause_us(&self) -> u64 {
        if self.is_new() {
            self.rtt.timeout_us()
        } else {
            KEEPALIVE_US
        }
    }

    /// Returns number, status and parcel of a frame that is authentic and new.
    fn open<'a>(&mut self, frame: &'a mut [u8]) -> Result<(u64, Status, &'a [u8]), Dropped> {
        let (_, frame) = frame::unpadded(frame).ok_or(Dropped::Malformed)?;
        let header = frame::sealed_header(frame).ok_or(Dropped::Malformed)?;
        if frame.len() > FRAME_BYTES_MAX {
            return Err(Dropped::Malformed);
        }
        if header.session != self.id || header.head.version != self.version {
            return Err(Dropped::OtherSession);
        }
        let number = header.number.get();
        if !self.replay.may_be_new(number) {
            return Err(Dropped::Replayed);
        }
        let Some(opened) = self.peer_key.open(number, frame, size_of::<SealedHeader>()) else {
            self.forged += 1;
            if self.forged >= FORGED_MAX {
                self.end = Some(End::Attacked);
            }
            return Err(Dropped::Forged);
        };
        // The seal is valid, so a malformed status or parcel comes from the peer itself.
        let parcel = Status::read_from_prefix(opened)
            .ok()
            .and_then(|(status, parcel)| {
                (parcel.len() == usize::from(status.parcel_bytes)).then_some((status, parcel))
            });
        match parcel {
            Some((status, parcel)) => Ok((number, status, parcel)),
            None => {
                self.break_off("a frame holds what it says");
                Err(Dropped::Malformed)
            }
        }
    }

    fn on_status(&mut self, now_us: u64, status: &Status, parcel: &[u8]) {
        self.heard_us = now_us;
        self.heard = Some((status.sent_us.get(), now_us));
        self.on_echo(now_us, status);
        if let Some(leaving) = Leaving::from_byte(status.leaving) {
            self.end.get_or_insert(End::Left(leaving));
            return;
        }
        if status.flags & ANSWER_WANTED != 0 {
            self.wants_to_speak = true;
        }
        let receipt = Receipt {
            expected: status.expected.get(),
            received: status.received.map(|word| word.get()),
            credit: status.credit.get(),
            largest: status.largest.get(),
        };
        let mut result = self.sender.on_receipt(now_us, &receipt, &mut self.rtt);
        if !parcel.is_empty() {
            result = result.and(self.receiver.on_parcel(status.parcel.get(), parcel));
        }
        if let Err(rule) = result {
            self.break_off(rule);
        }
    }

    /// Ends the session with a peer that has broken a rule.
    fn break_off(&mut self, rule: &'static str) {
        self.end.get_or_insert(End::Broken(rule));
        self.leave(Leaving::PeerBroken);
    }

    /// Measures the round trip, once for each frame that is answered.
    fn on_echo(&mut self, now_us: u64, status: &Status) {
        let echo_us = status.echo_us.get();
        if echo_us <= self.echoed_us || echo_us > now_us {
            return;
        }
        self.echoed_us = echo_us;
        let rtt_us = (now_us - echo_us).saturating_sub(status.echo_delay_us.get().into());
        self.rtt.on_sample(rtt_us);
        self.clock.on_sample(now_us, status.sent_us.get(), rtt_us);
    }
}

const _: () = assert!(
    WINDOW.is_multiple_of(64),
    "receipts are made of whole words"
);

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Silent => write!(
                f,
                "the other machine has said nothing for {} s: check that it runs, the cable, and \
                 the switch",
                SILENCE_US_MAX / 1_000_000
            ),
            End::Left(leaving) => leaving.fmt(f),
            End::Broken(rule) => write!(
                f,
                "the other machine has the key and breaks a rule of the transport ({rule}): \
                 run the same release of splitway on both"
            ),
            End::Attacked => f.write_str(
                "too many frames with a wrong seal have come: a machine on this link tries to \
                 break in",
            ),
        }
    }
}

impl fmt::Display for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Leaving::Ended => "the other machine's splitway was ended",
            Leaving::ProcessGone => {
                "the stack on the other machine has ended: its own messages say why"
            }
            Leaving::Superseded => "the same machine has begun another session",
            Leaving::HostDied => "the host process on the other machine has died",
            Leaving::PeerBroken => {
                "the other machine says that this one breaks a rule of the transport: \
                 run the same release of splitway on both"
            }
        })
    }
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dropped::Malformed => "not a frame of a session",
            Dropped::OtherSession => "a frame of another session",
            Dropped::Replayed => "a frame that has come before",
            Dropped::Forged => {
                "a frame whose seal is wrong: damaged, or sent by a machine without the key"
            }
        })
    }
}

impl std::error::Error for End {}
impl std::error::Error for Dropped {}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Session, Session) {
        let end = |own: u8, peer: u8, is_host| {
            let agreed = Agreed {
                session: 1,
                version: 1,
                frame_bytes: 1500,
                own_key: SealKey::new(&[own; 32]),
                peer_key: SealKey::new(&[peer; 32]),
                is_host,
            };
            Session::new(1, agreed)
        };
        (end(1, 2, true), end(2, 1, false))
    }

    /// A frame with the right key, and otherwise arbitrary content.
    fn sealed(peer: &mut Session, status: &[u8], parcel: &[u8]) -> Vec<u8> {
        let number = peer.next_frame;
        peer.next_frame += 1;
        let header = SealedHeader {
            head: Head::new(
                SEALED,
                1,
                size_of::<SealedHeader>()
                    + status.len()
                    + parcel.len()
                    + super::super::seal::TAG_BYTES,
            ),
            session: 1.into(),
            number: number.into(),
        };
        let mut frame = [header.as_bytes(), status, parcel].concat();
        peer.own_key
            .seal(number, &mut frame, size_of::<SealedHeader>());
        frame
    }

    fn status() -> Status {
        let mut status = Status::read_from_bytes(&[0; size_of::<Status>()]).unwrap();
        status.sent_us = 1.into();
        status.credit = (WINDOW as u64).into();
        status
    }

    /// The bytes in a buffer before it was emptied.
    fn remains(buffer: &[u8], bytes: usize) -> &[u8] {
        // SAFETY: the buffer has been filled so far, and keeps its memory.
        unsafe { std::slice::from_raw_parts(buffer.as_ptr(), bytes) }
    }

    #[test]
    fn a_record_stays_nowhere_when_it_has_been_delivered_and_is_never_printed() {
        const SECRET: u8 = 0xab;
        let (mut host, mut nic) = pair();
        // More than a parcel holds.
        let record = [SECRET; 2000];
        host.send(0, &record).unwrap();
        let mut frame = Vec::new();
        let mut parcels = 0;
        while host.transmit(2, &mut frame) {
            nic.on_frame(2, &mut frame).unwrap();
            assert!(frame.iter().all(|byte| *byte == 0));
            parcels += 1;
        }
        assert!(parcels > 1);
        let printed = || format!("{host:?} {nic:?}");
        assert!(!printed().contains(&format!("{SECRET}, {SECRET}")));
        let (_, received) = nic.record().expect("all of it has come");
        assert_eq!(received, record);
        nic.consume();
        assert_eq!(nic.record(), None);
        assert!(nic.transmit(3, &mut frame));
        host.on_frame(3, &mut frame).unwrap();
        assert!(host.is_quiet());

        let buffers = [host.sender.buffer(0), nic.receiver.buffer(0)];
        for buffer in buffers.into_iter().chain([nic.receiver.record_buffer()]) {
            assert!(buffer.is_empty());
            let remains = remains(buffer, 1000);
            assert!(remains.iter().all(|byte| *byte == 0));
        }
    }

    /// Rules that only a peer with the key can break.
    #[test]
    fn a_peer_that_breaks_a_rule_gets_the_reason_and_is_heard_no_more() {
        let received_unsent = Status {
            expected: 1.into(),
            ..status()
        };
        let mut received_later = status();
        received_later.received[2] = 8.into();
        let beyond_credit = Status {
            parcel: (WINDOW as u64).into(),
            parcel_bytes: 1.into(),
            ..status()
        };
        let last = Status {
            parcel: u64::MAX.into(),
            parcel_bytes: 1.into(),
            ..status()
        };
        let too_long = Status {
            parcel_bytes: 4.into(),
            ..status()
        };
        let lying = Status {
            parcel_bytes: 100.into(),
            ..status()
        };
        for (status, parcel) in [
            (received_unsent, &b""[..]),
            (received_later, b""),
            (beyond_credit, b"x"),
            (last, b"x"),
            (too_long, b"\xff\xff\0\0"),
            (lying, b"x"),
        ] {
            let (mut host, mut nic) = pair();
            let mut frame = sealed(&mut host, status.as_bytes(), parcel);
            let _ = nic.on_frame(2, &mut frame);
            assert_eq!(nic.record(), None);
            assert!(matches!(nic.end(), Some(End::Broken(_))), "{:?}", nic.end());
            assert!(nic.transmit(2, &mut frame), "it says so");
            host.on_frame(2, &mut frame).unwrap();
            assert_eq!(host.end(), Some(End::Left(Leaving::PeerBroken)));
            assert!(!nic.transmit(3, &mut frame));
        }
    }

    /// A short version of the fuzzer.
    #[test]
    fn nothing_that_has_the_key_makes_a_session_panic() {
        for seed in 0..2000u64 {
            let mut state = seed;
            let mut random = || {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                state >> 33
            };
            let (mut host, mut nic) = pair();
            let mut now_us = 2;
            for _ in 0..40 {
                let mut bytes = status().as_bytes().to_vec();
                for _ in 0..random() % 6 {
                    let at = random() as usize % bytes.len();
                    bytes[at] = [0, 1, 0x7f, 0xff, random() as u8][random() as usize % 5];
                }
                let parcel: Vec<u8> = (0..random() % 40).map(|_| random() as u8 & 3).collect();
                let mut status = Status::read_from_bytes(&bytes).unwrap();
                if random() % 8 > 0 {
                    status.parcel_bytes = (parcel.len() as u16).into();
                    status.leaving = 0;
                    status.expected = 0.into();
                }
                let mut frame = sealed(&mut host, status.as_bytes(), &parcel);
                println!("seed {seed}");
                let _ = nic.on_frame(now_us, &mut frame);
                let _ = nic.send(0, &[1; 700]);
                while nic.record().is_some() {
                    nic.consume();
                }
                nic.on_time(now_us);
                while nic.transmit(now_us, &mut frame) {}
                now_us = nic.next_timeout_us().max(now_us);
            }
        }
    }
}
