//! Reads the blocks that a flow needs next, as far as its [read-ahead](crate::read_ahead) goes.

use netdev::Port;

use crate::blocks::BlockName;
use crate::buffer::BLOCK_BYTES;
use crate::engine::Engine;
use crate::files::FileState;
use crate::follow::Follow;
use crate::reader::{FileToken, Read, ReadToken};
use crate::slab::Key;

impl<P: Port> Engine<P> {
    /// Reads the blocks after a SEND that has been planned to its end.
    pub(crate) fn read_ahead(&mut self, key: Key, follow: Follow) {
        for flow in self.blocks.take_wasted() {
            if let Some(flow) = self.flows.get_mut(flow) {
                flow.read_ahead.on_wasted();
            }
        }
        let Some(file) = self.files.get(follow.file) else {
            return;
        };
        let (FileState::Open { size, version }, Some(flow)) = (file.state, self.flows.get_mut(key))
        else {
            return;
        };
        let end = follow.offset.saturating_add(follow.bytes).min(size);
        // The block in which the SEND ends is there; a block that begins at its end is not.
        let first = follow.offset.div_ceil(BLOCK_BYTES as u64);
        let behind = first
            .saturating_add(flow.read_ahead.depth())
            .min(end.div_ceil(BLOCK_BYTES as u64));
        let from = flow.read_ahead.go_on(version, first);
        for number in from..behind {
            let name = BlockName { version, number };
            if self.blocks.find(name).is_none() {
                // Flows that need memory now have priority.
                if !self.starved.is_empty() {
                    return;
                }
                let Some((index, buffer)) = self.blocks.allocate_ahead(name, key) else {
                    return;
                };
                let offset = number * BLOCK_BYTES as u64;
                self.counters.reads += 1;
                self.counters.blocks_ahead += 1;
                self.reader.read(Read {
                    token: ReadToken(index),
                    file: FileToken(follow.file.to_bits()),
                    offset,
                    len: (size - offset).min(BLOCK_BYTES as u64) as usize,
                    buffer,
                });
            }
            flow.read_ahead.on_asked(version, number + 1);
        }
    }
}
