//! The packets of connections, as outputs.

use std::ops::Range;

use bytes::Bytes;
use quinn_proto::Transmit;
use tcp::Instant;

use crate::engine::connection::Connection;
use crate::engine::controller::unbound;
use crate::engine::preferred::{self, Path};
use crate::engine::{Endpoint, route};
use crate::frames::{self, Probe};
use crate::recorder::{Datagrams, DescribeError};
use crate::types::{CloseReason, DATAGRAMS_MAX, Described, Output, Piece, Send};

/// Most bytes of the datagrams of one SEND: the port takes them as one UDP packet to cut, whose
/// 16-bit length includes the IP and UDP headers.
const SEND_BYTES_MAX: usize = 65_535 - 40 - 8;

/// The application error code for a connection with an undescribable packet: H3_INTERNAL_ERROR (RFC
/// 9114 §8.1).
const UNDESCRIBABLE_CODE: u64 = 0x102;

impl Endpoint {
    /// Has a connection build as many datagrams as go at once. If it built any, it may have more.
    ///
    /// Pacing grants a connection few at a time. While its worker is saturated, packets wait there
    /// anyway, so the connection also builds those that pacing would grant meanwhile: all leave in
    /// one superpacket.
    pub(super) fn transmit(&mut self, now: Instant, index: usize) {
        let Some(made_until) = self.may_send(now, index) else {
            return;
        };
        // A connection's time never goes back.
        let mut at = now.max(made_until);
        let mut batch: Option<Batch> = None;
        loop {
            let count = batch.as_ref().map_or(0, Batch::len);
            if count == DATAGRAMS_MAX {
                break;
            }
            match self.poll(at, index, DATAGRAMS_MAX - count) {
                Ok(Some(next)) => match &mut batch {
                    Some(batch) if batch.takes(&next) => batch.append(next),
                    _ => {
                        let before = batch.replace(next);
                        before.into_iter().for_each(|it| self.push(now, index, it));
                    }
                },
                Ok(None) => break,
                Err(error) => {
                    self.on_undescribable(now, index, error);
                    break;
                }
            }
            match self.poll_ahead(now, at, index) {
                Some(next) => at = next,
                None => break,
            }
        }
        if let Some(batch) = batch {
            if let Some(connection) = self.at(index) {
                connection.made_until = batch.at;
                if connection.quinn.is_closed() {
                    connection.closes.take(1);
                }
            }
            self.push(now, index, batch);
            self.mark(index);
        }
        self.release(index);
        self.schedule(index);
        self.collect_trace(index);
        self.forget_if_large(index);
    }

    /// When pacing grants a connection more, unless that is too far ahead.
    fn poll_ahead(&mut self, now: Instant, at: Instant, index: usize) -> Option<Instant> {
        if !self.has_enough(index) {
            return None;
        }
        let clock = self.clock;
        let connection = self.at(index)?;
        let lead = connection.lead();
        let next = clock.to_caller(connection.quinn.poll_timeout()?);
        (next > at && next <= now + lead).then_some(next)
    }

    /// Has a connection build datagrams once, at most `datagrams_max`.
    fn poll(
        &mut self,
        at: Instant,
        index: usize,
        datagrams_max: usize,
    ) -> Result<Option<Batch>, DescribeError> {
        let std_at = self.clock.to_std(at);
        let (mut buffer, mut scratch) = (
            std::mem::take(&mut self.buffer),
            std::mem::take(&mut self.scratch),
        );
        buffer.clear();
        let Some(connection) = self.at(index) else {
            return Ok(None);
        };
        let mtu = usize::from(connection.quinn.current_mtu());
        let datagrams_max = (SEND_BYTES_MAX / mtu).min(datagrams_max);
        if connection.recorder.has_opened_handshake() {
            connection.amplification.on_validated();
        }
        connection.recorder.lock().swap_scratch(&mut scratch);
        let transmit = match connection.amplification.datagrams_max(mtu, datagrams_max) {
            0 => None,
            most => match connection.unbound_datagrams(most) {
                Some(most) => unbound(|| connection.quinn.poll_transmit(std_at, most, &mut buffer)),
                None => connection.quinn.poll_transmit(std_at, most, &mut buffer),
            },
        };
        connection.amplification.on_asked();
        let mut recorder = connection.recorder.lock();
        let made = match &transmit {
            Some(transmit) => {
                connection.amplification.on_sent(transmit.size);
                let datagram_bytes = transmit.segment_size.unwrap_or(transmit.size);
                recorder.take(&buffer[..transmit.size], datagram_bytes)
            }
            None => recorder.discard().map(|()| Datagrams::default()),
        };
        recorder.swap_scratch(&mut scratch);
        drop(recorder);
        let batch = made.map(|datagrams| {
            transmit.map(|transmit| Batch {
                sealed: buffer[..datagrams.sealed].to_vec(),
                transmit,
                datagrams,
                at,
            })
        });
        (self.buffer, self.scratch) = (buffer, scratch);
        batch
    }

    /// True if the worker of a connection holds the limit of all connections' bytes.
    fn has_enough(&mut self, index: usize) -> bool {
        let worker = self.at(index).map_or(0, |connection| connection.worker);
        *self.undeparted_of(worker) >= self.limits.all_undeparted_bytes_max
    }

    /// The time up to which a connection has built packets, if it may send. A departure re-marks
    /// one that has too many bytes at the NIC stack; CONNECTION_CLOSE does not wait for it.
    fn may_send(&mut self, now: Instant, index: usize) -> Option<Instant> {
        if let Some(connection) = self.at(index)
            && connection.quinn.is_closed()
        {
            (connection.is_dirty, connection.is_held) = (false, false);
            return (connection.closes.left(now) > 0).then_some(connection.made_until);
        }
        let of_each_max = match self.has_enough(index) {
            true => 1,
            false => self.limits.undeparted_bytes_max,
        };
        let connection = self.at(index)?;
        connection.is_dirty = false;
        connection.is_held = connection.undeparted_bytes >= of_each_max;
        (!connection.is_held).then_some(connection.made_until)
    }

    /// Outputs a batch: handshake datagrams first.
    fn push(&mut self, now: Instant, index: usize, batch: Batch) {
        let Batch {
            transmit,
            datagrams,
            sealed,
            at,
        } = batch;
        let Some(connection) = self.at(index) else {
            return;
        };
        let route = route(&transmit, connection.way(&transmit, &datagrams));
        let datagram_bytes = transmit.segment_size.unwrap_or(transmit.size);
        if !sealed.is_empty() {
            self.outputs.push_back(Output::Datagrams {
                route,
                datagram_bytes,
                bytes: sealed,
            });
        }
        let Some(last) = datagrams.packets.last() else {
            return;
        };
        let last_generation = last.generation;
        let Some(connection) = self.at(index) else {
            return;
        };
        let handle = connection.handle;
        let mut recorder = connection.recorder.lock();
        let keys = recorder.take_keys();
        let gone = recorder.take_known_below(last_generation);
        drop(recorder);
        let mut send = Send {
            connection: handle,
            id: 0,
            route,
            not_before: at,
            packets: datagrams.packets,
            pieces: datagrams.pieces,
            bytes: datagrams.bytes,
        };
        let bytes = send.datagram_bytes();
        send.id = connection.on_send(now, bytes);
        let worker = connection.worker;
        *self.undeparted_of(worker) += bytes;
        for (key, floor) in keys {
            self.outputs.push_back(Output::Key {
                connection: handle,
                key,
                floor,
            });
        }
        self.outputs.push_back(Output::Send(send));
        self.outputs
            .extend(gone.into_iter().map(|generation| Output::KeyGone {
                connection: handle,
                generation,
            }));
    }

    /// A packet that cannot be described must not leave.
    fn on_undescribable(&mut self, now: Instant, index: usize, error: DescribeError) {
        self.undescribable += 1;
        if let Some(connection) = self.at(index) {
            connection.is_undescribable = true;
            let (code, why) = (UNDESCRIBABLE_CODE, Bytes::from(error.to_string()));
            self.end(now, index, code, why, CloseReason::Undescribable);
            self.mark(index);
        }
    }

    /// Datagrams that belong to no connection yet.
    pub(super) fn push_sealed(&mut self, transmit: &Transmit, mut bytes: Vec<u8>) {
        bytes.truncate(transmit.size);
        let path = (preferred::real(transmit.destination), transmit.src_ip);
        self.outputs.push_back(Output::Datagrams {
            route: route(transmit, path),
            datagram_bytes: transmit.segment_size.unwrap_or(transmit.size),
            bytes,
        });
    }
}

impl Connection {
    /// The path of a transmission.
    fn way(&mut self, transmit: &Transmit, datagrams: &Datagrams) -> Path {
        let current = self.quinn.remote_address();
        match &mut self.preferred {
            Some(preferred) => {
                let probe = datagrams.probe();
                preferred.route(transmit.destination, transmit.size, probe, current)
            }
            None => (transmit.destination, transmit.src_ip),
        }
    }
}

/// Datagrams to send together.
struct Batch {
    transmit: Transmit,
    datagrams: Datagrams,
    /// The sealed datagrams, which come first.
    sealed: Vec<u8>,
    /// The time for which the last were built.
    at: Instant,
}

impl Batch {
    fn len(&self) -> usize {
        self.datagrams.packets.len()
    }

    /// True if the next batch takes the same path.
    fn takes(&self, next: &Batch) -> bool {
        let way = |it: &Transmit| (it.destination, it.src_ip, it.ecn);
        next.sealed.is_empty()
            && way(&self.transmit) == way(&next.transmit)
            && self.datagrams.probe().is_none()
            && next.datagrams.probe().is_none()
    }

    fn append(&mut self, next: Batch) {
        self.at = next.at;
        self.datagrams.append(next.datagrams);
    }
}

impl Datagrams {
    /// Appends further datagrams.
    fn append(&mut self, next: Datagrams) {
        let (bytes, pieces) = (self.bytes.len(), self.pieces.len());
        let moved = |range: &Range<usize>, by| range.start + by..range.end + by;
        self.packets
            .extend(next.packets.into_iter().map(|packet| Described {
                prefix: moved(&packet.prefix, bytes),
                header: moved(&packet.header, bytes),
                pieces: moved(&packet.pieces, pieces),
                ..packet
            }));
        self.pieces
            .extend(next.pieces.into_iter().map(|piece| match piece {
                Piece::Inline(range) => Piece::Inline(moved(&range, bytes)),
                file => file,
            }));
        self.bytes.extend(next.bytes);
    }

    /// The probing packet of the batch, if it is one: quinn-proto sends it alone.
    fn probe(&self) -> Option<Probe> {
        match (&self.packets[..], &self.pieces[..]) {
            ([packet], [Piece::Inline(plaintext)]) if self.sealed == 0 => {
                let plaintext = &self.bytes[plaintext.clone()];
                frames::probe(plaintext).filter(|_| packet.prefix.is_empty())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{NOW, connected, deliver};

    /// Packets of two batches are built before the first batch is pushed, and the second may have
    /// another key.
    #[test]
    fn a_key_is_taken_back_that_still_seals_once_the_next_is_given() {
        let (mut endpoint, mut client) = connected();
        deliver(&mut client, &mut endpoint);
        let index = 0;
        let make = |endpoint: &mut Endpoint| {
            endpoint.at(index).expect("a connection").quinn.ping();
            let made = endpoint.poll(NOW, index, DATAGRAMS_MAX);
            made.expect("frames are known").expect("a packet")
        };
        while endpoint.poll_output(NOW).is_some() {}
        let before = make(&mut endpoint);
        let quinn = &mut endpoint.at(index).expect("a connection").quinn;
        quinn.force_key_update();
        let next = make(&mut endpoint);
        for batch in [before, next] {
            endpoint.push(NOW, index, batch);
        }
        let pushed = endpoint.outputs.drain(..).map(|output| match output {
            Output::Key { key, .. } => ("key", key.generation),
            Output::Send(send) => ("send", send.packets[0].generation),
            Output::KeyGone { generation, .. } => ("gone", generation),
            other => panic!("{other:?}"),
        });
        let wanted = [("key", 1), ("send", 0), ("send", 1), ("gone", 0)];
        assert_eq!(pushed.collect::<Vec<_>>(), wanted);
    }
}
