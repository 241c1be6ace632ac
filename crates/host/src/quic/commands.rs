//! Commands for the NIC worker of a connection: QKEY, QKEYGONE, QSEND, QRELEASE, QCID, QRXKEY and
//! QRXKEYGONE, in the order in which the endpoint issued them.

use std::sync::Arc;

use contract::limits::HEADER_BYTES_MAX;
use contract::{Command, FileId};
use quic::{FileRange, Framing, Segment};
use wire::datagram::DatagramHeader;

use super::names;
use super::outputs;
use super::outputs::HeldDatagrams;
use super::table::{Connection, Issued, Pending};
use crate::ground::Ground;
use crate::ground::workers::{Deferred, WorkerLink};
use crate::link::neighbor::Resolution;
use crate::quic::QuicLayer;

/// The result of sending a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The command is finished.
    Done,
    /// The ring is full.
    Full,
    /// The next hop is being resolved.
    NoNeighbor,
}

/// The next hop of datagrams.
enum Way {
    /// Known, with the length of the headers in bytes.
    Known(usize),
    /// Being resolved.
    Pending,
    /// None: datagrams are dropped, as links do.
    Nowhere,
}

/// True if a transmission reads one of these files.
fn reads(send: &quic::Send, files: &[FileId]) -> bool {
    let mut segments = send.packets().flat_map(|packet| packet.segments());
    segments.any(|segment| match segment {
        Segment::File { file, .. } => files.contains(&file),
        Segment::Inline(_) => false,
    })
}

impl QuicLayer {
    /// Sends queued commands to the worker, as far as there is room. True if none is left.
    pub(super) fn send_commands(&mut self, ground: &mut Ground, now_us: u64, place: usize) -> bool {
        loop {
            let Some(connection) = self.table.connections.get_mut(place) else {
                return false;
            };
            // The answer of an OPEN, a departure or a new NIC stack resumes it.
            let is_held = connection.nic.holds > 0;
            if is_held || !ground.workers[connection.nic.worker].is_there() {
                return false;
            }
            let Some(command) = connection.commands.pop_front() else {
                return true;
            };
            let lacks_key = connection.lacks_key;
            let outcome = match command {
                Pending::Send { send, .. } if lacks_key => self.send_prefixes(ground, place, &send),
                Pending::Key { .. } | Pending::ReceiveKey if lacks_key => Outcome::Done,
                Pending::Send { send, done } => self.send_qsends(ground, now_us, place, send, done),
                Pending::ReceiveKey => self.send_receive_key(ground, place),
                Pending::ReceiveKeyGone => self.take_receive_key_back(ground, place),
                other => self.send_small(ground, place, other),
            };
            match outcome {
                Outcome::Done => {}
                Outcome::Full => {
                    self.wait_for_room(place);
                    return false;
                }
                Outcome::NoNeighbor => {
                    self.wait_for_neighbor(place);
                    return false;
                }
            }
        }
    }

    pub(super) fn connection_and_nic<'a>(
        &'a mut self,
        ground: &'a mut Ground,
        place: usize,
    ) -> Option<(&'a mut Connection, &'a mut WorkerLink)> {
        let connection = self.table.connections.get_mut(place)?;
        let nic = &mut ground.workers[connection.nic.worker];
        Some((connection, nic))
    }

    /// Requeues a command that could not be sent.
    pub(super) fn put_back(&mut self, place: usize, command: Pending) {
        if let Some(connection) = self.connection(place) {
            connection.commands.push_front(command);
        }
    }

    fn send_small(&mut self, ground: &mut Ground, place: usize, command: Pending) -> Outcome {
        let Some((connection, nic)) = self.connection_and_nic(ground, place) else {
            return Outcome::Done;
        };
        if !nic.has_room() {
            self.put_back(place, command);
            return Outcome::Full;
        }
        let flow = names::flow(connection.id);
        let sent = match &command {
            Pending::Key { key, floor } => {
                connection.nic.is_open = true;
                connection.keys.push(Arc::clone(key));
                nic.channel
                    .send(&Command::QuicKey(key.command(flow, *floor)))
            }
            Pending::KeyGone { generation } if connection.nic.is_open => {
                let generation = *generation;
                connection.keys.retain(|key| key.generation != generation);
                nic.channel.send(&Command::QuicKeyGone { flow, generation })
            }
            Pending::Release(range) => {
                let FileRange { file, offset, len } = *range;
                let is_known = connection.nic.is_open
                    && connection.files.contains_key(&file)
                    && !connection.bad_files.contains(&file);
                let sent = if is_known && len > 0 {
                    nic.channel.send(&Command::QuicRelease {
                        flow,
                        file,
                        offset,
                        len,
                    })
                } else {
                    Ok(())
                };
                self.release_bytes(ground, place, file, len);
                sent
            }
            Pending::ConnectionId(id) if connection.wants_nic_receive => nic
                .channel
                .send(&Command::QuicConnectionId { flow, id: *id }),
            Pending::KeyGone { .. }
            | Pending::Send { .. }
            | Pending::ReceiveKey
            | Pending::ConnectionId(_)
            | Pending::ReceiveKeyGone => Ok(()),
        };
        debug_assert!(sent.is_ok(), "there was room");
        if let Pending::Key { .. } = command {
            ground.counters.quic_keys += 1;
            self.receive_again(place);
        }
        Outcome::Done
    }

    /// Without a key for a transmission, sends its sealed part: handshake packets.
    fn send_prefixes(&mut self, ground: &mut Ground, place: usize, send: &quic::Send) -> Outcome {
        let Some(connection) = self.table.connections.get(place) else {
            return Outcome::Done;
        };
        let listener = connection.listener;
        let endpoint = &mut self.listeners[listener].endpoint;
        endpoint.on_departed(connection.handle, send.id);
        for prefix in send.packets().map(|packet| packet.prefix()) {
            if !prefix.is_empty() {
                let held = HeldDatagrams::one(listener, send.route, prefix);
                ground.counters.packets_dropped += self.hold(held);
            }
        }
        Outcome::Done
    }

    /// Sends the QSENDs of a transmission, except the first `done`.
    fn send_qsends(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        place: usize,
        send: quic::Send,
        done: usize,
    ) -> Outcome {
        let mut buffer = [0; HEADER_BYTES_MAX];
        let way = self.qsend_header(ground, now_us, place, &send, &mut buffer);
        let Some(connection) = self.table.connections.get_mut(place) else {
            return Outcome::Done;
        };
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        let is_elsewhere = connection.is_elsewhere();
        let header = match way {
            Way::Known(len) => &buffer[..len],
            Way::Pending => {
                connection.commands.push_front(Pending::Send { send, done });
                return Outcome::NoNeighbor;
            }
            // Dropped: loss detection recovers.
            Way::Nowhere => {
                endpoint.on_departed(connection.handle, send.id);
                ground.counters.packets_dropped += send.packets().len() as u64;
                return Outcome::Done;
            }
        };
        let commands = send.commands(Framing {
            flow: names::flow(connection.id),
            id: names::command(place, connection.next_command),
            issued_us: now_us,
            not_before_us: send.not_before.as_us(),
            header,
        });
        let (count, mut done) = (commands.len(), done);
        let nic = &mut ground.workers[connection.nic.worker];
        for mut command in commands.into_iter().skip(done) {
            if !nic.has_room() {
                connection.commands.push_front(Pending::Send { send, done });
                return Outcome::Full;
            }
            // Command ids wrap within those of the connection.
            command.id = names::command(place, connection.next_command);
            let behind = command.packets.last().map_or(0, |last| last.number + 1);
            connection.next_number = connection.next_number.max(behind);
            if let Some(trace) = self.trace.as_deref_mut() {
                trace.on_qsend(now_us, connection, &command, &ground.nic_stacks);
            }
            let sent = nic.channel.send(&Command::QuicSend(command));
            debug_assert!(sent.is_ok(), "there was room");
            done += 1;
            connection.issued.push_back(Issued {
                number: connection.next_command,
                send: (done == count).then_some(send.id),
            });
            connection.next_command = connection.next_command.wrapping_add(1);
            ground.counters.quic_sends += 1;
            connection.nic.sends_outstanding += 1;
            ground.sends_outstanding += 1;
        }
        connection.sent_bytes += send.datagram_bytes();
        let is_due = !connection.wants_nic_receive
            && ground.config.quic_receive.is_at_nic(connection.sent_bytes);
        ground.counters.quic_packets += send.packets().len() as u64;
        ground.counters.virtual_bytes += send.file_bytes();
        if ground.config.departs_at_issue {
            endpoint.on_departed(connection.handle, send.id);
        }
        if is_elsewhere {
            self.follow_path(ground, place);
        }
        if is_due {
            self.apply_receive_policy(ground, place);
        }
        Outcome::Done
    }

    /// Writes the headers in front of a transmission's datagrams.
    fn qsend_header(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        place: usize,
        send: &quic::Send,
        buffer: &mut [u8],
    ) -> Way {
        let Some(connection) = self.table.connections.get_mut(place) else {
            return Way::Nowhere;
        };
        if !connection.bad_files.is_empty() && reads(send, &connection.bad_files) {
            return Way::Nowhere;
        }
        // A path probe may have another address than the connection's.
        let endpoint = &self.listeners[connection.listener].endpoint;
        if let Some((remote, local_ip)) = endpoint.addresses(connection.handle) {
            connection.remote = remote;
            if let Some(local_ip) = local_ip {
                connection.local.set_ip(local_ip);
            }
        }
        let (remote, mut local) = (send.route.remote, connection.local);
        if let Some(local_ip) = send.route.local_ip {
            local.set_ip(local_ip);
        }
        if connection.route_to != remote.ip() {
            connection.route_to = remote.ip();
            connection.route = ground.neighbors.route(connection.route_to);
        }
        let mac = match ground
            .neighbors
            .resolve_route(now_us, &mut connection.route)
        {
            Resolution::Known(mac) => mac,
            Resolution::Pending => return Way::Pending,
            Resolution::Unreachable | Resolution::Own => return Way::Nowhere,
        };
        let header = DatagramHeader {
            source_mac: ground.link.mac,
            destination_mac: mac,
            source: local,
            destination: remote,
            ecn: outputs::ecn(&send.route),
        };
        header.write(buffer).map_or(Way::Nowhere, Way::Known)
    }

    pub(super) fn wait_for_room(&mut self, place: usize) {
        let Some(connection) = self.table.connections.get_mut(place) else {
            return;
        };
        if std::mem::replace(&mut connection.waits, true) {
            return;
        }
        let worker = connection.nic.worker;
        if self.waiting_room.len() <= worker {
            self.waiting_room.resize_with(worker + 1, Default::default);
        }
        self.waiting_room[worker].push_back(place);
    }

    fn wait_for_neighbor(&mut self, place: usize) {
        if let Some(connection) = self.table.connections.get_mut(place)
            && !std::mem::replace(&mut connection.waits, true)
        {
            self.waiting_neighbor.push(place);
        }
    }

    /// Queues QRELEASE of a range, behind earlier commands.
    pub(super) fn release_later(&mut self, place: usize, range: FileRange) {
        if let Some(connection) = self.connection(place) {
            connection.commands.push_back(Pending::Release(range));
        }
    }

    /// Fewer bytes of a file may have to be sent or retransmitted.
    pub(super) fn release_bytes(
        &mut self,
        ground: &mut Ground,
        place: usize,
        file: FileId,
        bytes: u64,
    ) {
        let Some(connection) = self.connection(place) else {
            return;
        };
        let Some(held) = connection.files.get_mut(&file) else {
            return;
        };
        held.bytes = held.bytes.saturating_sub(bytes);
        if held.bytes > 0 {
            return;
        }
        connection.files.remove(&file);
        connection.bad_files.retain(|bad| *bad != file);
        if let Some(close) = ground.files.extent_released(file) {
            ground.send_close(close);
        }
    }

    /// Removes the flow at the worker.
    pub(super) fn end_flow(&mut self, ground: &mut Ground, place: usize) {
        self.stop_receiving(ground, place);
        let Some((connection, nic)) = self.connection_and_nic(ground, place) else {
            return;
        };
        let outstanding = std::mem::take(&mut connection.nic.sends_outstanding);
        connection.issued.clear();
        connection.keys.clear();
        if std::mem::replace(&mut connection.nic.is_open, false) && nic.is_there() {
            nic.send_or_defer(Deferred::Acked {
                flow: names::flow(connection.id),
                stream_offset: 0,
                last: true,
            });
            ground.counters.ackds += 1;
        }
        ground.sends_outstanding -= outstanding;
    }

    /// The worker has lost a connection's flow, or is to remove it: the endpoint issues the key
    /// again, with a floor above all numbers issued. Commands not yet sent go to the next worker.
    pub(super) fn begin_flow_again(&mut self, ground: &mut Ground, place: usize) {
        let Some(connection) = self.connection(place) else {
            return;
        };
        // It no longer waits for room in this worker's ring.
        connection.waits = false;
        if connection.nic.is_open || !connection.issued.is_empty() {
            self.end_flow(ground, place);
            self.forget_flow(ground, place);
        }
    }

    /// The same for a worker that is gone and needs no commands.
    pub(super) fn lose_flow(&mut self, ground: &mut Ground, place: usize) {
        let Some(connection) = self.connection(place) else {
            return;
        };
        connection.waits = false;
        if std::mem::replace(&mut connection.nic.is_open, false) || !connection.issued.is_empty() {
            self.end_flow(ground, place);
            self.forget_flow(ground, place);
        }
    }

    /// The worker has no flow of a connection: the endpoint begins again with its key.
    pub(super) fn forget_flow(&mut self, ground: &mut Ground, place: usize) {
        let Some(connection) = self.table.connections.get_mut(place) else {
            return;
        };
        // Their packet numbers are below the floor; loss detection recovers what they carried.
        let mut released = Vec::new();
        for command in connection.commands.drain(..) {
            if let Pending::Release(range) = command {
                released.push(range);
            }
        }
        let asked = std::mem::take(&mut connection.prepares);
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        endpoint.on_nic_gone(connection.handle);
        for asked in asked {
            released.extend(asked.unwanted);
            if let Some(stream) = self.table.stream_mut(asked.stream) {
                super::ranges::forget_prepare(stream, asked.id);
            }
        }
        self.mark(place);
        for range in released {
            self.release_bytes(ground, place, range.file, range.len);
        }
    }
}
