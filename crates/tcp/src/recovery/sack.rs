//! Selective acknowledgments (RFC 2018), and reports of duplicate text (D-SACK, RFC 2883), as the
//! receiver of data makes them and as its sender reads them.

use std::ops::Range;

use wire::tcp::Options;

use crate::receiver::rcv::Receiver;
use crate::seq::SeqSpace;

/// Places for blocks in the option; with timestamps one fewer fits (RFC 2018 §3).
const BLOCKS_MAX: usize = 4;

/// Blocks to be reported to the peer. Positions are in its direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sacks {
    /// Both SYNs have carried SACK-permitted.
    permitted: bool,
    /// Places of the blocks that grew last, the latest first.
    recent: [u64; BLOCKS_MAX],
    /// Text that has arrived twice, for the next acknowledgment.
    duplicate: Option<(u64, u64)>,
}

impl Sacks {
    /// Both sides permit SACK.
    pub(crate) fn permit(&mut self) {
        self.permitted = true;
    }

    pub(crate) fn is_permitted(&self) -> bool {
        self.permitted
    }

    /// Records that text has arrived behind a hole, in this block.
    pub(crate) fn on_out_of_order(&mut self, block: &Range<u64>) {
        let known = self.recent.iter().position(|place| block.contains(place));
        self.recent
            .copy_within(0..known.unwrap_or(BLOCKS_MAX - 1), 1);
        self.recent[0] = block.start;
        for place in &mut self.recent[1..] {
            if block.contains(place) {
                *place = 0;
            }
        }
    }

    /// Records that text has arrived twice.
    pub(crate) fn on_duplicate(&mut self, positions: Range<u64>) {
        if self.permitted && positions.start < positions.end {
            self.duplicate = Some((positions.start, positions.end));
        }
    }

    /// Returns true if the next segment has no blocks.
    pub(crate) fn is_empty(&self, rcv: &Receiver) -> bool {
        !self.permitted || (self.duplicate.is_none() && !rcv.has_gaps())
    }

    /// Takes the blocks of the next segment. RFC 2018 §4: first the block that holds the text that
    /// has just arrived, then those that were first most recently. RFC 2883 §4: before them the
    /// duplicate text, once; if that lies within a block above RCV.NXT, this block follows.
    pub(crate) fn take(&mut self, rcv: &Receiver) -> Blocks {
        let mut blocks = Blocks::default();
        if self.is_empty(rcv) {
            return blocks;
        }
        let duplicate = self.duplicate.take();
        if let Some((start, end)) = duplicate {
            blocks.push(start..end);
        }
        let duplicated = duplicate.and_then(|(start, _)| rcv.block_at(start));
        for block in duplicated
            .into_iter()
            .chain(self.recent.iter().filter_map(|&place| rcv.block_at(place)))
            // Where blocks were merged there is room for those that have not been first for long.
            .chain(rcv.blocks())
        {
            let reported = &blocks.ranges[usize::from(duplicate.is_some())..blocks.count];
            if !reported.contains(&block) && !blocks.push(block) {
                break;
            }
        }
        blocks
    }
}

/// Blocks in the order of the option.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    ranges: [Range<u64>; BLOCKS_MAX],
    count: usize,
}

impl Blocks {
    /// Adds a block. Returns false if there is no place.
    fn push(&mut self, block: Range<u64>) -> bool {
        let place = self.ranges.get_mut(self.count);
        self.count += usize::from(place.is_some());
        place.map(|place| *place = block).is_some()
    }

    /// Writes as many blocks into the option as fit beside the others.
    pub(crate) fn write(&self, space: SeqSpace, options: &mut Options) {
        let count = match options.timestamps {
            Some(_) => self.count.min(BLOCKS_MAX - 1),
            None => self.count,
        };
        for (place, block) in options.sack.iter_mut().zip(&self.ranges[..count]) {
            *place = Some((space.wire(block.start), space.wire(block.end)));
        }
    }

    /// Returns the blocks that the peer has sent, and the text that it reports as duplicate (RFC
    /// 2883 §4): a first block below its own acknowledgment, or within the second block. Blocks
    /// outside of `una..nxt` and senseless ones are left out; parts below `una` are cut off.
    pub(crate) fn read(
        options: &Options,
        space: SeqSpace,
        una: u64,
        nxt: u64,
    ) -> (Blocks, Option<Range<u64>>) {
        let mut blocks = Blocks::default();
        let mut duplicate = None;
        let range = |(left, right): (u32, u32)| {
            let start = u64::try_from(space.position(left, una)).ok()?;
            let end = u64::try_from(space.position(right, una)).ok()?;
            (start < end && end <= nxt).then_some(start..end)
        };
        let [first, second, ..] = options.sack.map(|block| block.and_then(range));
        if let Some(first) = &first {
            let within = second.is_some_and(|s| s.start <= first.start && first.end <= s.end);
            if first.end <= una || within {
                duplicate = Some(first.clone());
            }
        }
        for block in options.sack.iter().flatten().filter_map(|&b| range(b)) {
            if block.end > una {
                blocks.push(block.start.max(una)..block.end);
            }
        }
        (blocks, duplicate)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges[..self.count].iter().cloned()
    }
}
