//! Stream data of the peer that the engine keeps until it is read.
//!
//! The engine does not report how much it keeps. A stream's share is bounded by the packets that
//! carried its data, and by the distance from the first unread byte to the last received one: the
//! engine copies data together once its packets take more than two and a half times that.

/// The engine copies data together only if that frees more than this, in bytes.
const SPARSE_BYTES: usize = 32 << 10;

#[derive(Debug)]
struct Stream {
    id: u64,
    /// Behind the last byte received.
    end: u64,
    /// Bytes read.
    read: u64,
    /// Bytes of packets with its data, since all was read.
    packet_bytes: usize,
}

impl Stream {
    fn memory_bytes(&self) -> usize {
        let unread = usize::try_from(self.end.saturating_sub(self.read)).unwrap_or(usize::MAX);
        let sparse = (unread / 2).saturating_mul(5).saturating_add(SPARSE_BYTES);
        self.packet_bytes.min(sparse)
    }
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// Open streams of the peer, by ID.
    streams: Vec<Stream>,
    /// How many streams the peer has opened: of both directions, and of one.
    accepted: [u64; 2],
}

impl Received {
    /// Data up to `end` has arrived in a packet of this size.
    pub(crate) fn on_data(&mut self, id: u64, end: u64, packet_bytes: usize) {
        let is_peers = id & 1 == 0;
        let is_accepted = id / 4 < self.accepted[usize::from(id & 2 != 0)];
        match self.streams.binary_search_by_key(&id, |it| it.id) {
            Ok(at) => {
                let stream = &mut self.streams[at];
                stream.end = stream.end.max(end);
                if stream.end > stream.read {
                    stream.packet_bytes += packet_bytes;
                }
            }
            Err(at) if is_peers && !is_accepted => {
                let stream = Stream {
                    id,
                    end,
                    read: 0,
                    packet_bytes,
                };
                self.insert(at, stream);
            }
            // It is over.
            Err(_) => {}
        }
    }

    /// The peer has opened a stream, and all of its kind with lower IDs.
    pub(crate) fn on_accepted(&mut self, id: u64) {
        let accepted = &mut self.accepted[usize::from(id & 2 != 0)];
        *accepted = (*accepted).max(id / 4 + 1);
        if let Err(at) = self.streams.binary_search_by_key(&id, |it| it.id) {
            let stream = Stream {
                id,
                end: 0,
                read: 0,
                packet_bytes: 0,
            };
            self.insert(at, stream);
        }
    }

    /// Most connections have one or two: room grows by one at first.
    fn insert(&mut self, at: usize, stream: Stream) {
        if self.streams.len() < 4 {
            self.streams.reserve_exact(1);
        }
        self.streams.insert(at, stream);
    }

    /// So many more bytes were read.
    pub(crate) fn on_read(&mut self, id: u64, bytes: usize) {
        if let Ok(at) = self.streams.binary_search_by_key(&id, |it| it.id) {
            let stream = &mut self.streams[at];
            stream.read += bytes as u64;
            if stream.read >= stream.end {
                stream.packet_bytes = 0;
            }
        }
    }

    /// The stream is over, or what arrives is discarded.
    pub(crate) fn forget(&mut self, id: u64) {
        if let Ok(at) = self.streams.binary_search_by_key(&id, |it| it.id) {
            self.streams.remove(at);
            if self.streams.is_empty() {
                self.streams = Vec::new();
            }
        }
    }

    /// An upper bound of the memory in use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.streams.iter().map(Stream::memory_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_takes_no_memory() {
        let mut received = Received::default();
        received.on_data(0, 1000, 1200);
        received.on_accepted(0);
        assert_eq!(received.memory_bytes(), 1200);
        received.on_read(0, 999);
        assert_eq!(
            received.memory_bytes(),
            1200,
            "the packet is kept for its last byte"
        );
        received.on_read(0, 1);
        assert_eq!(received.memory_bytes(), 0);
        // A copy of the packet.
        received.on_data(0, 1000, 1200);
        assert_eq!(received.memory_bytes(), 0);
    }

    #[test]
    fn many_packets_with_few_bytes_take_what_the_engine_leaves_of_them() {
        let mut received = Received::default();
        for end in 1..=100 {
            received.on_data(4, end, 1200);
        }
        assert_eq!(received.memory_bytes(), 250 + SPARSE_BYTES);
        // A gap takes as much as all that may be in it.
        received.on_data(4, 100_000, 1200);
        assert_eq!(received.memory_bytes(), 101 * 1200);
    }

    #[test]
    fn late_data_of_a_stream_that_is_over_is_not_counted() {
        let mut received = Received::default();
        received.on_data(4, 10, 1200);
        received.on_accepted(0);
        received.on_accepted(4);
        received.forget(4);
        received.on_data(4, 10, 1200);
        received.on_data(3, 10, 1200);
        assert_eq!(received.memory_bytes(), 0);
        // Streams of one direction are counted by themselves.
        received.on_data(2, 10, 1200);
        assert_eq!(received.memory_bytes(), 1200);
    }
}
