//! The peer's stream: its received part, its readable part, and the window offered for more.

use std::collections::VecDeque;
use std::ops::Range;

use crate::config::Config;
use crate::receiver::reassembly::Reassembly;
use crate::seq::SeqSpace;

/// RFC 7323 §2.3.
pub(crate) const WINDOW_SHIFT_MAX: u8 = 14;

/// Capacity beyond which an empty buffer is freed.
const IDLE_BYTES_MAX: usize = 2 << 10;

/// Returns the smallest shift with which the whole buffer can be offered.
pub(crate) fn window_shift(buffer_bytes: usize) -> u8 {
    (0..WINDOW_SHIFT_MAX)
        .find(|shift| buffer_bytes >> shift <= 0xffff)
        .unwrap_or(WINDOW_SHIFT_MAX)
}

/// Clamps the size of the buffer to the sizes that a window can offer.
fn within_window(bytes: usize) -> usize {
    bytes.clamp(1, 0xffff << WINDOW_SHIFT_MAX)
}

/// Effect of a segment's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// None of the text is new and in the window.
    Nothing,
    /// The text continues the stream: this number of bytes is ready, without a gap behind them.
    InOrder(usize),
    /// The text continues the stream, and early text stands behind it, or behind the next gap.
    FilledGap,
    /// Earlier text is missing.
    OutOfOrder,
}

/// RCV variables of a connection. All are positions in the peer's direction.
#[derive(Debug)]
pub(crate) struct Receiver {
    space: SeqSpace,
    /// RCV.NXT
    nxt: u64,
    /// Right edge of the window that we have offered. It never retreats (RFC 9293 §3.8.6, SHLD-14).
    edge: u64,
    /// Both sides scale windows; ours by Rcv.Wind.Shift.
    scaled: bool,
    shift: u8,
    /// Memory is short: the buffer has its minimal size.
    is_pressed: bool,
    /// Position of the peer's FIN, once seen.
    fin: Option<u64>,
    /// Text in order and not read.
    buffer: VecDeque<u8>,
    buffer_bytes_max: usize,
    /// Bound of the buffer's growth.
    grown_bytes_max: usize,
    /// The window scale of our SYN.
    offered_shift: u8,
    /// Bytes that the application has read.
    read: u64,
    reassembly: Reassembly,
    fragments_max: usize,
}

impl Receiver {
    pub(crate) fn new(
        buffer_bytes_max: usize,
        grown_bytes_max: usize,
        fragments_max: usize,
    ) -> Receiver {
        let buffer_bytes_max = within_window(buffer_bytes_max);
        let grown_bytes_max = within_window(grown_bytes_max).max(buffer_bytes_max);
        Receiver {
            space: SeqSpace::default(),
            nxt: 0,
            edge: 0,
            scaled: false,
            shift: 0,
            is_pressed: false,
            fin: None,
            buffer: VecDeque::new(),
            buffer_bytes_max,
            grown_bytes_max,
            offered_shift: window_shift(grown_bytes_max),
            read: 0,
            reassembly: Reassembly::default(),
            fragments_max,
        }
    }

    /// Takes the peer's SYN. `scaled`: both sides scale windows.
    pub(crate) fn on_syn(&mut self, irs: u32, scaled: bool) {
        self.space = SeqSpace::new(irs);
        let window = u64::from(self.syn_window());
        self.nxt = 1;
        self.scaled = scaled;
        self.shift = if scaled { self.offered_shift() } else { 0 };
        self.edge = self.nxt + window;
    }

    /// Continues another receiver: `nxt` is its RCV.NXT, and `window` bytes were offered behind it.
    pub(crate) fn resume(&mut self, nxt: u32, window: u64, shift: u8, has_fin: bool) {
        self.space = SeqSpace::new(nxt.wrapping_sub(1));
        self.nxt = 1;
        self.edge = self.nxt + window;
        self.scaled = shift > 0;
        self.shift = shift;
        // Behind RCV.NXT, where no repeated FIN can be taken for another.
        self.fin = has_fin.then_some(0);
    }

    /// Moves RCV.NXT to this sequence number, with `window` bytes behind it known to the peer.
    /// Window beyond the buffer is withdrawn: the peer sends its text again.
    pub(crate) fn move_to(&mut self, nxt: u32, window: u64) {
        self.space.place(self.nxt, nxt);
        self.edge = self.nxt + window.min(self.buffer_bytes_max as u64);
    }

    /// Rcv.Wind.Shift
    pub(crate) fn shift(&self) -> u8 {
        self.shift
    }

    /// The window scale of our SYN: the whole buffer can be offered when it has grown.
    pub(crate) fn offered_shift(&self) -> u8 {
        self.offered_shift
    }

    /// Fixes the size of the buffer, which no longer grows by itself. A window offered before stays
    /// valid. `before_syn`: our SYN, with the scale of the window, has not been issued, nor the
    /// peer's received.
    pub(crate) fn fix(&mut self, bytes: usize, before_syn: bool) {
        self.grown_bytes_max = within_window(bytes);
        if before_syn {
            self.offered_shift = window_shift(self.grown_bytes_max);
        }
        self.buffer_bytes_max = if self.is_pressed {
            self.grown_bytes_max
                .min(Config::RECEIVE_BUFFER_BYTES_PRESSED)
        } else {
            self.grown_bytes_max
        };
    }

    /// Returns the size of the buffer, in bytes.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes_max
    }

    /// Sets whether the window is limited to a small buffer; afterwards the buffer has `bytes`
    /// again, and may grow. A window offered before stays valid.
    pub(crate) fn set_pressed(&mut self, is_pressed: bool, bytes: usize) {
        match (self.is_pressed, is_pressed) {
            (false, true) => {
                self.buffer_bytes_max = self
                    .buffer_bytes_max
                    .min(Config::RECEIVE_BUFFER_BYTES_PRESSED)
            }
            (true, false) => self.buffer_bytes_max = bytes.clamp(1, self.grown_bytes_max),
            _ => {}
        }
        self.is_pressed = is_pressed;
    }

    /// Returns the memory held for text, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.buffer.capacity() + self.reassembly.memory_bytes()
    }

    /// Lets the buffer grow up to this size, or its bound. The window grows with it: no memory is
    /// reserved.
    pub(crate) fn grow(&mut self, bytes: usize) {
        if !self.is_pressed {
            self.buffer_bytes_max = bytes.clamp(self.buffer_bytes_max, self.grown_bytes_max);
        }
    }

    /// Returns the number of bytes that the application has read so far.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read
    }

    pub(crate) fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Returns RCV.NXT as on the wire.
    pub(crate) fn wire_nxt(&self) -> u32 {
        self.space.wire(self.nxt)
    }

    /// Returns the position of a sequence number; negative if it lies before the SYN.
    pub(crate) fn position(&self, seq: u32) -> i64 {
        self.space.position(seq, self.nxt)
    }

    /// Returns true if both sides scale windows. A shift of 0 is one, too.
    pub(crate) fn is_scaled(&self) -> bool {
        self.scaled
    }

    /// Returns RCV.WND: the offered window that the peer has not used.
    pub(crate) fn window(&self) -> u64 {
        self.edge - self.nxt
    }

    /// RFC 9293 §3.10.7.4, first: is any of the `len` positions from `start` on in the window?
    /// Beyond the RFC, a segment without text may also begin at the right edge: a peer that has
    /// filled the window sends its acknowledgments from there, even while we miss some of its text.
    /// A segment may also reach beyond both ends of the window.
    pub(crate) fn accepts(&self, start: i64, len: u64) -> bool {
        let nxt = self.nxt as i64;
        let edge = self.edge as i64;
        match (len, self.window()) {
            (0, _) => nxt <= start && start <= edge,
            (_, 0) => false,
            _ => start < edge && start.saturating_add_unsigned(len) > nxt,
        }
    }

    /// Returns the right edge of the window.
    pub(crate) fn edge(&self) -> i64 {
        self.edge as i64
    }

    /// Returns true if text has arrived ahead of its turn.
    pub(crate) fn has_gaps(&self) -> bool {
        !self.reassembly.is_empty()
    }

    /// Returns the text that has arrived ahead of its turn, in blocks without gaps.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Range<u64>> {
        self.reassembly.blocks()
    }

    /// Returns the block that holds a position.
    pub(crate) fn block_at(&self, position: u64) -> Option<Range<u64>> {
        self.blocks().find(|block| block.contains(&position))
    }

    /// Returns the first part of a text that has arrived before.
    pub(crate) fn duplicate_of(&self, start: i64, len: usize) -> Option<Range<u64>> {
        let end = u64::try_from(start.saturating_add_unsigned(len as u64)).ok()?;
        // Position 0 is the SYN.
        let start = u64::try_from(start.max(1)).ok()?;
        if start < self.nxt {
            return Some(start..end.min(self.nxt)).filter(|part| !part.is_empty());
        }
        let block = self.blocks().find(|b| b.start < end && start < b.end)?;
        Some(block.start.max(start)..block.end.min(end))
    }

    /// Returns the mapping of the peer's sequence numbers.
    pub(crate) fn space(&self) -> SeqSpace {
        self.space
    }

    /// Takes the new text of an acceptable segment, up to the window's edge and the FIN.
    pub(crate) fn on_text(&mut self, start: i64, text: &[u8]) -> Arrival {
        let old = usize::try_from((self.nxt as i64).saturating_sub(start))
            .unwrap_or(0)
            .min(text.len());
        let text = &text[old..];
        let start = start.saturating_add_unsigned(old as u64).max(0) as u64;
        let end_max = self.fin.unwrap_or(u64::MAX).min(self.edge);
        let text = &text[..text.len().min(end_max.saturating_sub(start) as usize)];
        if text.is_empty() {
            return Arrival::Nothing;
        }
        if start > self.nxt {
            self.reassembly.insert(start, text, self.fragments_max);
            return Arrival::OutOfOrder;
        }
        self.buffer.extend(text);
        self.nxt += text.len() as u64;
        if self.reassembly.is_empty() {
            return Arrival::InOrder(text.len());
        }
        while let Some((skip, bytes)) = self.reassembly.pop(self.nxt) {
            self.nxt += (bytes.len() - skip) as u64;
            self.buffer.extend(&bytes[skip..]);
        }
        Arrival::FilledGap
    }

    /// Takes a FIN at this position; ignored if it contradicts earlier segments or lies outside the
    /// window.
    pub(crate) fn on_fin(&mut self, position: i64) {
        let Ok(position) = u64::try_from(position) else {
            return;
        };
        let plausible = self.nxt <= position
            && position <= self.edge
            && self.reassembly.end().is_none_or(|end| end <= position);
        if self.fin.is_none() && plausible {
            self.fin = Some(position);
        }
    }

    /// Returns true if all text before the FIN has arrived; the FIN then counts as received.
    pub(crate) fn take_fin(&mut self) -> bool {
        let complete = self.fin == Some(self.nxt);
        if complete {
            self.nxt += 1;
            self.edge = self.edge.max(self.nxt);
        }
        complete
    }

    /// Returns the number of bytes that can be read.
    pub(crate) fn readable(&self) -> usize {
        self.buffer.len()
    }

    /// Copies bytes that can be read, and returns how many.
    pub(crate) fn peek(&self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.buffer.len());
        let (head, tail) = self.buffer.as_slices();
        let split = count.min(head.len());
        into[..split].copy_from_slice(&head[..split]);
        into[split..count].copy_from_slice(&tail[..count - split]);
        count
    }

    pub(crate) fn read(&mut self, into: &mut [u8]) -> usize {
        let count = self.peek(into);
        self.buffer.drain(..count);
        self.read += count as u64;
        if self.buffer.is_empty() && self.buffer.capacity() > IDLE_BYTES_MAX {
            self.buffer = VecDeque::new();
        }
        count
    }

    /// Drops unread text.
    pub(crate) fn discard(&mut self) {
        self.buffer = VecDeque::new();
    }

    /// Returns the right edge that the free part of the buffer allows.
    fn edge_allowed(&self) -> u64 {
        let free = self.buffer_bytes_max.saturating_sub(self.buffer.len()) as u64;
        let unit = 1u64 << self.shift;
        self.nxt + (free / unit * unit).min(0xffff << self.shift)
    }

    /// RFC 9293 §3.8.6.2.2: the right edge moves by at least `min(Fr * RCV.BUFF, Eff.snd.MSS)`,
    /// with `Fr = 1/2`.
    fn step(&self, mss: u16) -> u64 {
        (self.buffer_bytes_max as u64 / 2).clamp(1, u64::from(mss).max(1))
    }

    /// Returns true if reading has opened the window enough for an acknowledgment at once.
    pub(crate) fn is_update_due(&self, mss: u16) -> bool {
        let gain = self.edge_allowed().saturating_sub(self.edge);
        // The window at least doubles. While it is wide, the next acknowledgment will do.
        gain >= self.step(mss).max(self.window())
    }

    /// Returns the window field of the next segment.
    pub(crate) fn offer_window(&mut self, mss: u16) -> u16 {
        let allowed = self.edge_allowed();
        if allowed >= self.edge + self.step(mss) {
            self.edge = allowed;
        }
        // Rounded up: the edge must not retreat because of the scale (RFC 7323 §2.4). The buffer
        // may exceed its bound by less than one unit.
        let field = self.window().div_ceil(1 << self.shift).min(0xffff);
        self.edge = self.edge.max(self.nxt + (field << self.shift));
        field as u16
    }

    /// Returns the window field of a SYN, which is never scaled (RFC 7323 §2.2). A repeated SYN
    /// offers no less than before.
    pub(crate) fn syn_window(&mut self) -> u16 {
        let window = self.window().max(self.buffer_bytes_max as u64).min(0xffff);
        self.edge = self.edge.max(self.nxt + window);
        window as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u16 = 100;

    fn receiver(buffer_bytes: usize) -> Receiver {
        let mut receiver = Receiver::new(buffer_bytes, buffer_bytes, 8);
        receiver.on_syn(u32::MAX, true);
        receiver
    }

    /// Covers: RFC 7323 §2.3
    #[test]
    fn shift_is_the_smallest_that_offers_the_whole_buffer() {
        assert_eq!(window_shift(1), 0);
        assert_eq!(window_shift(65535), 0);
        assert_eq!(window_shift(65536), 1);
        assert_eq!(window_shift(128 << 10), 2);
        assert_eq!(window_shift(1 << 30), 14);
        assert_eq!(window_shift(usize::MAX), 14);
    }

    /// Covers: RFC 9293 §3.10.7.4 (first)
    #[test]
    fn segments_overlapping_the_window_are_acceptable() {
        let receiver = receiver(1000);
        assert_eq!(receiver.wire_nxt(), 0);
        for (start, len, acceptable) in [
            (1, 0, true),
            (0, 0, false),
            (1001, 0, true),
            (1002, 0, false),
            (1, 1, true),
            (0, 1, false),
            (0, 2, true),
            (-5, 6, false),
            (-5, 7, true),
            (1000, 1, true),
            (1001, 1, false),
            (-5, 5000, true),
        ] {
            assert_eq!(receiver.accepts(start, len), acceptable, "{start} {len}");
        }
    }

    #[test]
    fn under_pressure_a_small_buffer_is_offered_and_afterwards_the_usual_one() {
        let mut receiver = Receiver::new(64 << 10, 1 << 20, 8);
        receiver.on_syn(0, true);
        receiver.set_pressed(true, 64 << 10);
        receiver.grow(1 << 20);
        assert_eq!(
            receiver.buffer_bytes(),
            Config::RECEIVE_BUFFER_BYTES_PRESSED
        );
        receiver.set_pressed(false, 64 << 10);
        assert_eq!(receiver.buffer_bytes(), 64 << 10);
        receiver.grow(1 << 20);
        receiver.set_pressed(false, 64 << 10);
        assert_eq!(receiver.buffer_bytes(), 1 << 20);
    }

    #[test]
    fn with_a_closed_window_only_empty_segments_at_nxt_are_acceptable() {
        let mut receiver = receiver(10);
        assert_eq!(receiver.on_text(1, b"0123456789"), Arrival::InOrder(10));
        assert_eq!(receiver.window(), 0);
        assert!(receiver.accepts(11, 0));
        assert!(!receiver.accepts(10, 0));
        assert!(!receiver.accepts(12, 0));
        assert!(!receiver.accepts(11, 1));
    }

    #[test]
    fn text_is_cut_to_the_window_and_put_in_order() {
        let mut receiver = receiver(10);
        assert_eq!(receiver.on_text(4, b"3456"), Arrival::OutOfOrder);
        assert_eq!(receiver.on_text(0, b"S01"), Arrival::FilledGap);
        assert_eq!(receiver.nxt(), 3);
        assert_eq!(receiver.on_text(1, b"01"), Arrival::Nothing);
        assert_eq!(receiver.on_text(1, b"012"), Arrival::FilledGap);
        assert_eq!(receiver.on_text(8, b"789abc"), Arrival::InOrder(3));
        let mut bytes = [0; 16];
        assert_eq!(receiver.read(&mut bytes), 10);
        assert_eq!(&bytes[..10], b"0123456789");
    }

    #[test]
    fn fin_counts_when_all_before_it_has_come() {
        let mut receiver = receiver(10);
        receiver.on_fin(4);
        assert!(!receiver.take_fin());
        assert_eq!(receiver.on_text(2, b"bcdef"), Arrival::OutOfOrder);
        assert_eq!(receiver.on_text(1, b"a"), Arrival::FilledGap);
        assert_eq!(receiver.readable(), 3);
        assert!(receiver.take_fin());
        assert!(!receiver.take_fin());
        assert_eq!(receiver.nxt(), 5);
    }

    #[test]
    fn fin_before_text_that_is_there_or_outside_the_window_is_ignored() {
        let mut receiver = receiver(10);
        receiver.on_text(5, b"xyz");
        for position in [-1, 0, 7, 12] {
            receiver.on_fin(position);
            assert_eq!(receiver.fin, None, "{position}");
        }
        receiver.on_fin(8);
        assert_eq!(receiver.fin, Some(8));
    }

    /// Covers: RFC 9293 §3.8.6.2.2
    #[test]
    fn silly_windows_are_not_offered() {
        let mut receiver = receiver(1000);
        assert_eq!(receiver.offer_window(MSS), 1000);
        receiver.on_text(1, &[0; 1000]);
        assert_eq!(receiver.offer_window(MSS), 0);
        receiver.read(&mut [0; 99]);
        assert!(!receiver.is_update_due(MSS));
        assert_eq!(receiver.offer_window(MSS), 0);
        receiver.read(&mut [0; 1]);
        assert!(receiver.is_update_due(MSS));
        assert_eq!(receiver.offer_window(MSS), 100);
        assert!(!receiver.is_update_due(MSS));
    }

    /// Covers: RFC 9293 §3.8.6 (SHLD-14), RFC 7323 §2.2
    #[test]
    fn a_repeated_syn_takes_back_nothing_of_a_wide_window() {
        let mut receiver = receiver(1 << 20);
        assert_eq!(receiver.syn_window(), 0xffff);
        receiver.offer_window(MSS);
        assert_eq!(receiver.window(), 1 << 20);
        assert_eq!(receiver.syn_window(), 0xffff);
        assert_eq!(receiver.window(), 1 << 20);
    }

    /// Covers: RFC 9293 §3.8.6 (SHLD-14), RFC 7323 §2.4
    #[test]
    fn the_right_edge_never_retreats_although_windows_are_scaled() {
        let mut receiver = receiver(100_001);
        let mut edge = 0;
        let mut random = 7u32;
        for _ in 0..10_000 {
            random = random.wrapping_mul(1664525).wrapping_add(1013904223);
            let len = (random >> 8) as usize % 3000;
            if random & 1 == 0 {
                receiver.on_text(receiver.nxt() as i64, &vec![0; len]);
            } else {
                receiver.read(&mut vec![0; len]);
            }
            let offered =
                receiver.nxt() + (u64::from(receiver.offer_window(MSS)) << receiver.shift);
            assert!(offered >= edge, "{offered} < {edge}");
            edge = offered;
            assert!(receiver.readable() <= 100_001 + (1 << receiver.shift));
        }
        assert!(edge > 1_000_000);
    }
}
