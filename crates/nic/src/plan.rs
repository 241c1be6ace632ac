//! Planning: cutting SENDs into superpackets and getting hold of the blocks they need.
//!
//! A superpacket gets all of its blocks or none, and never needs more than there are. A superpacket
//! that holds its blocks can therefore depart as soon as its reads complete; then they are pinned
//! until they are acknowledged, or for [`PIN_US`](crate::blocks::PIN_US) if others wait for them.
//! So blocks always come free again.
//!
//! While blocks are short, flows that need more wait in a queue: one superpacket for each, in turn.
//! No flow takes a block before the queue's head has all its blocks. A flow that needs only blocks
//! that the head could not have yet ([`Blocks::is_bound`]) bypasses the queue, above all for a
//! retransmission, whose acknowledgment ends pins. All others queue as well, and no pin is
//! refreshed meanwhile: so a second later at the latest every block is on its way to the head, and
//! no flow starves, however many others find their blocks in memory.

use netdev::Port;
use rustix::io::Errno;

use crate::blocks::{Before, BlockIndex, BlockName, Blocks, Content};
use crate::buffer::BLOCK_BYTES;
use crate::counters::Counters;
use crate::engine::Engine;
use crate::files::{FileState, Files};
use crate::flow::{Flow, Origin, Piece, Planned};
use crate::job::{Cursor, Job, JobKind, JobSegment};
use crate::need::{BlockNeed, NEEDS_MAX, Need, PIECES_MAX, RecentBlocks};
use crate::reader::{FileToken, Read, ReadToken, Reader};
use crate::sealed::{OUTPUT_BYTES_MAX, SealedStream, Source};
use crate::segment::Place;
use crate::slab::Key;

/// Superpackets of a flow that are planned and have not departed: how far reading runs ahead.
const PLANNED_MAX: usize = 16;

/// Result of planning one superpacket.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Planned,
    /// Enough is planned for now, or everything.
    Enough,
    /// The open of this file must complete first.
    FileOpening(Key),
    /// More blocks must become available first.
    NoBlocks,
}

impl<P: Port> Engine<P> {
    /// Queues a flow for planning, if it has something to cut.
    pub(crate) fn want_to_plan(&mut self, key: Key) {
        if let Some(flow) = self.flows.get_mut(key)
            && !flow.wants_to_plan
            && flow.has_uncut()
            && flow.planned.len() < PLANNED_MAX
        {
            flow.wants_to_plan = true;
            self.planners.push_back(key);
        }
    }

    /// Plans superpackets, the flows taking turns, as far as memory allows. True if any was
    /// planned.
    pub(crate) fn plan(&mut self) -> bool {
        let mut worked = false;
        while let Some(&key) = self.starved.front() {
            let outcome = self.plan_one(key, true);
            if outcome == Outcome::NoBlocks {
                break;
            }
            self.starved.pop_front();
            worked |= self.planned(key, outcome);
        }
        while let Some(key) = self.planners.pop_front() {
            let outcome = self.plan_one(key, self.starved.is_empty());
            worked |= self.planned(key, outcome);
        }
        self.blocks.want(!self.starved.is_empty());
        self.reader.submit();
        worked
    }

    /// Puts the first flow of a queue where its outcome sends it. True if it has planned a
    /// superpacket.
    fn planned(&mut self, key: Key, outcome: Outcome) -> bool {
        if outcome == Outcome::NoBlocks {
            self.counters.block_waits += 1;
            self.starved.push_back(key);
            return false;
        }
        if let Some(flow) = self.flows.get_mut(key) {
            flow.wants_to_plan = false;
        }
        match outcome {
            Outcome::Planned => {
                self.want_to_plan(key);
                self.want_to_send(key);
            }
            Outcome::FileOpening(file) => self.files.wait(file, key),
            Outcome::Enough | Outcome::NoBlocks => {}
        }
        outcome == Outcome::Planned
    }

    /// Plans a superpacket of a flow. Unless the flow is `first` among those that wait for memory,
    /// or none waits, plans only a superpacket that takes no block from them.
    fn plan_one(&mut self, key: Key, first: bool) -> Outcome {
        if self.prepares > 0
            && let Some(JobKind::Prepare { asker }) = self.flows.get(key).and_then(Flow::kind)
            && !self.is_asking(asker)
        {
            self.answer_prepare(key);
            return Outcome::Enough;
        }
        let Some(flow) = self.flows.get_mut(key) else {
            return Outcome::Enough;
        };
        if flow.planned.len() >= PLANNED_MAX {
            return Outcome::Enough;
        }
        let Some(job) = flow.jobs.get_mut(flow.cutting) else {
            return Outcome::Enough;
        };
        let start = job.cursor.payload;
        let (sealed, recent) = (flow.sealed.as_deref(), &mut self.recent_blocks);
        let cursor = match cut(job, &self.files, sealed, &mut self.needs, recent) {
            Ok(cursor) => cursor,
            Err(opening) => return Outcome::FileOpening(opening),
        };
        if !find(&self.blocks, &mut self.needs, recent, first) {
            return Outcome::NoBlocks;
        }
        let user = User::of(key, job.kind);
        // Found blocks are used before any is allocated for the missing ones.
        for need in self.needs.iter().filter_map(|need| need.block.as_ref()) {
            if let Some(found) = need.found {
                let before = self.blocks.use_again(found, user.flow);
                if self.blocks.content(found) == Content::Reading {
                    match before {
                        Before::Ahead => flow.read_ahead.on_late(),
                        Before::OtherFlow => self.counters.reads_shared += 1,
                        Before::SameFlow => {}
                    }
                }
                self.counters.block_hits += u64::from(!need.again && !user.prepares);
            }
        }

        job.cursor = cursor;
        let last = cursor.payload == job.payload_len;
        let mut follow = job.follow.filter(|_| last);
        if last {
            flow.cutting += 1;
            if let Some(stream) = &mut flow.sealed
                && job.ends_sealed()
            {
                follow = stream.follow(job.stream_offset + job.payload_len as u64);
            }
        }
        let is_sealed = |need: &Need| matches!(need.piece, Piece::Sealed { .. });
        flow.planned.push_back(Planned {
            place: Place {
                start,
                len: cursor.payload - start,
                last,
            },
            pieces: self.needs.len(),
            sealed: self.needs.iter().any(is_sealed),
        });
        for Need { mut piece, block } in self.needs.drain(..) {
            if let Piece::Block { block: index, .. } | Piece::PlainBlock { block: index, .. } =
                &mut piece
                && let Some(need) = block
            {
                *index = match need.found {
                    Some(found) => found,
                    None => {
                        if flow.read_ahead.would_be_next(need.name) {
                            flow.read_ahead.on_late();
                        }
                        let reader = self.reader.as_mut();
                        obtain(&mut self.blocks, reader, &mut self.counters, user, &need)
                    }
                };
                if self.blocks.content(*index) == Content::Reading {
                    self.blocks.wait(*index, key);
                }
            }
            flow.pieces.push_back(piece);
        }
        if let Some(follow) = follow {
            self.read_ahead(key, follow);
        }
        let occupied = self.blocks.occupied() as u64;
        self.counters.blocks_used_max = self.counters.blocks_used_max.max(occupied);
        Outcome::Planned
    }
}

/// The flow for which blocks are taken.
#[derive(Clone, Copy)]
struct User {
    flow: Key,
    /// For a PREPARE.
    prepares: bool,
}

impl User {
    fn of(key: Key, kind: JobKind) -> User {
        match kind {
            JobKind::Stream | JobKind::Datagrams => User {
                flow: key,
                prepares: false,
            },
            JobKind::Prepare { asker } => User {
                flow: asker,
                prepares: true,
            },
        }
    }
}

/// Lists the needs of a job's next superpacket. Returns where the one after it begins, or the file
/// whose open must complete first.
fn cut(
    job: &Job,
    files: &Files,
    sealed: Option<&SealedStream>,
    needs: &mut Vec<Need>,
    recent: &mut RecentBlocks,
) -> Result<Cursor, Key> {
    let room = Room {
        blocks: PIECES_MAX,
        needs: NEEDS_MAX,
        output_bytes: OUTPUT_BYTES_MAX,
    };
    let end = job.cursor.payload + job.superpacket_payload;
    let end = job.payload_len.min(end);
    needs.clear();
    match job.kind {
        JobKind::Datagrams => cut_datagrams(job, files, needs, recent, end),
        _ => cut_to(job, job.cursor, end, files, sealed, needs, room),
    }
}

/// Lists the needs of whole datagrams up to `end`: as many as [`PIECES_MAX`] blocks suffice for, or
/// one.
#[inline(never)]
fn cut_datagrams(
    job: &Job,
    files: &Files,
    needs: &mut Vec<Need>,
    recent: &mut RecentBlocks,
    end: usize,
) -> Result<Cursor, Key> {
    let mut cursor = job.cursor;
    let first = cursor.payload / usize::from(job.mss);
    recent.clear();
    let mut blocks = 0;
    for packet in &job.packets[first..] {
        if cursor.payload == end {
            break;
        }
        let (before, last) = (needs.len(), needs.last().map(|need| need.piece));
        for segment in &job.segments[packet.segments.clone()] {
            if let JobSegment::File { file, offset, len } = *segment {
                needs_of_range(files, file, offset, len, needs)?;
            }
        }
        let names = needs[before..]
            .iter()
            .filter_map(|need| need.block.as_ref());
        let is_other = |block: &&BlockNeed| !recent.get_or(block.name, || None).1;
        blocks += names.filter(is_other).count();
        if blocks > PIECES_MAX && cursor != job.cursor {
            needs.truncate(before);
            if let (Some(need), Some(piece)) = (needs.last_mut(), last) {
                need.piece = piece;
            }
            break;
        }
        cursor.payload = end.min(cursor.payload + usize::from(job.mss));
    }
    Ok(cursor)
}

/// Lists the needs of a file range. Bytes that continue the last need in the same block extend that
/// need.
fn needs_of_range(
    files: &Files,
    file: Key,
    mut offset: u64,
    len: usize,
    needs: &mut Vec<Need>,
) -> Result<(), Key> {
    let mut left = len;
    while left > 0 {
        let added = needs
            .last_mut()
            .map_or(0, |last| last.extend(file, offset, left));
        let len = if added > 0 {
            added
        } else {
            let (need, len) = need_of_file(files, file, offset, left)?;
            needs.push(need);
            len
        };
        offset += len as u64;
        left -= len;
    }
    Ok(())
}

/// Lists a job's needs from `cursor` to `end`, as far as there is room. Returns the cursor reached.
// For each superpacket of stream.
#[inline(always)]
fn cut_to(
    job: &Job,
    mut cursor: Cursor,
    end: usize,
    files: &Files,
    sealed: Option<&SealedStream>,
    needs: &mut Vec<Need>,
    mut room: Room,
) -> Result<Cursor, Key> {
    while cursor.payload < end {
        let segment = job.segments[cursor.segment];
        let rest = segment.len() - cursor.within;
        if rest == 0 {
            cursor.segment += 1;
            cursor.within = 0;
            continue;
        }
        let wanted = rest.min(end - cursor.payload);
        let (need, len) = match segment {
            JobSegment::Inline { start, .. } => {
                let start = start + cursor.within;
                let piece = Piece::Inline { start, len: wanted };
                (Need { piece, block: None }, wanted)
            }
            JobSegment::File { file, offset, .. } => {
                need_of_file(files, file, offset + cursor.within as u64, wanted)?
            }
            JobSegment::Sealed { .. } => {
                let start = job.stream_offset + cursor.payload as u64;
                let stream = sealed.expect("a run that a SEND needs is kept");
                let len = needs_of_records(stream, files, start, wanted, needs, &mut room)?;
                if len == 0 {
                    break;
                }
                cursor.payload += len;
                cursor.within += len;
                continue;
            }
        };
        if !room.takes(&need, needs.len()) {
            break;
        }
        needs.push(need);
        cursor.payload += len;
        cursor.within += len;
    }
    Ok(cursor)
}

/// Room left in a superpacket.
#[derive(Clone, Copy)]
struct Room {
    blocks: usize,
    /// Pieces, including those listed already.
    needs: usize,
    /// Bytes of whole records.
    output_bytes: usize,
}

impl Room {
    /// Takes the room of another piece, if there is enough.
    fn takes(&mut self, need: &Need, needs: usize) -> bool {
        let blocks = self
            .blocks
            .checked_sub(usize::from(need.block.is_some()))
            .filter(|_| needs < self.needs);
        self.blocks = blocks.unwrap_or(self.blocks);
        blocks.is_some()
    }
}

/// Lists the needs of a range of the sealed stream, as far as it lies in one run and there is room:
/// the plaintext of all records that it touches. Returns the number of bytes of the range covered.
fn needs_of_records(
    stream: &SealedStream,
    files: &Files,
    start: u64,
    wanted: usize,
    needs: &mut Vec<Need>,
    room: &mut Room,
) -> Result<usize, Key> {
    let run = stream
        .run_at(start)
        .expect("a run that a SEND needs is kept");
    let end = run.stream_end().min(start + wanted as u64);
    let first = needs.len();
    needs.push(Need {
        piece: Piece::Inline { start: 0, len: 0 },
        block: None,
    });
    let mut covered = 0;
    for record in run.records(start, (end - start) as usize) {
        let record_end = record.stream_offset + record.len as u64;
        let (before, room_before) = (needs.len(), *room);
        let last_before = needs[before - 1].piece;
        let mut fits = room.output_bytes >= record.len;
        room.output_bytes = room.output_bytes.saturating_sub(record.len);
        for (source, within, len) in run.pieces(record.plaintext_start, record.plaintext_len) {
            let mut done = 0;
            while done < len {
                let (need, len) = match source {
                    Source::Inline { start, .. } => {
                        let start = start + within;
                        let piece = Piece::PlainInline { start, len };
                        (Need { piece, block: None }, len)
                    }
                    Source::File { file, offset, .. } => {
                        let offset = offset + (within + done) as u64;
                        let (mut need, len) = need_of_file(files, file, offset, len - done)?;
                        need.piece = as_plaintext(need.piece, record_end);
                        (need, len)
                    }
                };
                done += len;
                let last = &mut needs.last_mut().expect("the sealed range itself").piece;
                if !goes_on(last, &need.piece) {
                    fits &= room.takes(&need, needs.len());
                    needs.push(need);
                }
            }
        }
        if !fits {
            needs.truncate(before);
            needs[before - 1].piece = last_before;
            *room = room_before;
            break;
        }
        covered = (record_end.min(end) - start) as usize;
    }
    let plaintext = needs.len() - first - 1;
    match covered {
        0 => needs.truncate(first),
        len => {
            needs[first].piece = Piece::Sealed {
                offset: start,
                len,
                plaintext,
            }
        }
    }
    Ok(covered)
}

/// Turns a piece of a file into plaintext of a record that ends at `record_end`.
fn as_plaintext(piece: Piece, record_end: u64) -> Piece {
    match piece {
        Piece::Block {
            block,
            start,
            len,
            origin,
        } => Piece::PlainBlock {
            block,
            start,
            len,
            origin,
            record_end,
        },
        other => other,
    }
}

/// Extends a piece of plaintext if the next one goes on where it ends. True if so.
fn goes_on(last: &mut Piece, next: &Piece) -> bool {
    match (last, *next) {
        (
            Piece::PlainInline { start, len },
            Piece::PlainInline {
                start: next_start,
                len: next_len,
            },
        ) if *start + *len == next_start => *len += next_len,
        (
            Piece::PlainBlock {
                start,
                len,
                origin,
                record_end,
                ..
            },
            Piece::PlainBlock {
                start: next_start,
                len: next_len,
                origin: next_origin,
                record_end: next_end,
                ..
            },
        ) if *origin == next_origin && *start + *len == next_start => {
            *len += next_len;
            *record_end = next_end;
        }
        _ => return false,
    }
    true
}

/// Returns the need for at most `wanted` bytes at `offset` of a file, and the number of bytes it
/// covers.
fn need_of_file(files: &Files, key: Key, offset: u64, wanted: usize) -> Result<(Need, usize), Key> {
    let missing = |id, offset, errno: u16| {
        let origin = Origin { file: id, offset };
        let piece = Piece::Missing { origin, errno };
        Ok((Need { piece, block: None }, wanted))
    };
    let file = files.get(key).expect("a file that a SEND needs is kept");
    match file.state {
        FileState::Opening => Err(key),
        FileState::Failed(errno) => missing(file.id, offset, errno),
        // The SEND came before the size was known, so its range has not been checked.
        FileState::Open { size, .. } if offset >= size => {
            missing(file.id, size, Errno::NODATA.raw_os_error() as u16)
        }
        FileState::Open { size, version } => {
            let number = offset / BLOCK_BYTES as u64;
            let block_offset = number * BLOCK_BYTES as u64;
            let start = (offset - block_offset) as usize;
            let block_len = (size - block_offset).min(BLOCK_BYTES as u64) as usize;
            let len = wanted.min(block_len - start);
            let piece = Piece::Block {
                block: BlockIndex::MAX,
                start,
                len,
                origin: Origin {
                    file: file.id,
                    offset: block_offset,
                },
            };
            let block = BlockNeed {
                name: BlockName { version, number },
                file: key,
                len: block_len,
                found: None,
                again: false,
            };
            let block = Some(block);
            Ok((Need { piece, block }, len))
        }
    }
}

/// Returns the block for a need that found none, and has it read if necessary.
fn obtain(
    blocks: &mut Blocks,
    reader: &mut dyn Reader,
    counters: &mut Counters,
    user: User,
    need: &BlockNeed,
) -> BlockIndex {
    // Another piece of the same superpacket may have allocated it meanwhile.
    if let Some(index) = blocks.find(need.name) {
        blocks.use_again(index, user.flow);
        return index;
    }
    let (index, buffer) = blocks.allocate(need.name, user.flow);
    if user.prepares {
        counters.blocks_prepared += 1;
    } else {
        counters.block_misses += 1;
    }
    counters.reads += 1;
    reader.read(Read {
        token: ReadToken(index),
        file: FileToken(need.file.to_bits()),
        offset: need.name.number * BLOCK_BYTES as u64,
        len: need.len,
        buffer,
    });
    index
}

/// Finds the blocks that are in memory. True if the superpacket may be planned: the `first` flow
/// gets the missing blocks if there is room without any of the found blocks; other flows may only
/// share bound blocks.
fn find(blocks: &Blocks, needs: &mut [Need], recent: &mut RecentBlocks, first: bool) -> bool {
    let mut missing = 0;
    let mut spoken_for = 0;
    recent.clear();
    let mut all_bound = true;
    for need in needs.iter_mut().filter_map(|need| need.block.as_mut()) {
        (need.found, need.again) = recent.get_or(need.name, || blocks.find(need.name));
        // A block that is needed twice may count twice: there are as many blocks as a superpacket
        // has needs.
        match need.found {
            _ if need.again => {}
            Some(found) => {
                spoken_for += usize::from(blocks.may_go(found));
                all_bound &= blocks.is_bound(found);
            }
            None => missing += 1,
        }
    }
    if first {
        missing == 0 || blocks.has_room(missing + spoken_for)
    } else {
        missing == 0 && all_bound
    }
}
