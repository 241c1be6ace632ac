//! Reports of NIC workers on QUIC connections. Like all events of workers, they are not trusted:
//! invalid reports are counted, and harm at most the connection that they name.

use contract::{Event, FileId, FlowId, RejectReason, SendId};

use super::names;
use super::ranges;
use super::trace::QuicTraceEvent;
use crate::app::QuicConnection;
use crate::ground::Ground;
use crate::quic::QuicLayer;

impl QuicLayer {
    /// The place of the QUIC connection of a flow, if this worker sends for it. The error says
    /// whether the flow may have been such a connection.
    pub(super) fn place_of_flow(&self, worker: usize, flow: FlowId) -> Result<usize, bool> {
        if self.listeners.is_empty() || !names::is_connection(flow) {
            return Err(false);
        }
        // The connection may have ended, or moved to another worker, while the event was in the
        // ring.
        let place = self.table.place_of(QuicConnection(flow.0)).ok_or(true)?;
        if self.table.connections[place].nic.worker == worker {
            Ok(place)
        } else {
            Err(true)
        }
    }

    /// Handles an event that only QUIC connections have. False if it is invalid.
    #[cold]
    pub(crate) fn on_worker_event(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        worker: usize,
        event: &Event,
    ) -> bool {
        match *event {
            Event::Ready { prepare, flow } => self.on_ready(now_us, worker, prepare, flow),
            Event::QuicReceived(ref received) => self.on_received(ground, now_us, worker, received),
            _ => false,
        }
    }

    /// A QSEND and all earlier ones have departed. False if the report is invalid. `times`: now,
    /// and when it departed, in microseconds.
    #[cold]
    pub(crate) fn on_departed(
        &mut self,
        ground: &mut Ground,
        times: (u64, u64),
        worker: usize,
        send: SendId,
        flow: FlowId,
    ) -> bool {
        let place = match self.place_of_flow(worker, flow) {
            Ok(place) => place,
            Err(is_known) => return is_known || self.is_unused() || !names::is_connection(flow),
        };
        ground.sends_departed += 1;
        self.depart_until(ground, times, place, send)
    }

    /// Completes a connection's QSENDs up to this one.
    fn depart_until(
        &mut self,
        ground: &mut Ground,
        times: (u64, u64),
        place: usize,
        send: SendId,
    ) -> bool {
        let Some(connection) = self.table.connections.get_mut(place) else {
            return false;
        };
        let number = names::number_of_command(send);
        let last = connection.next_command.wrapping_sub(1);
        if names::place_of_command(send.0) != Some(place) || !names::is_until(number, last) {
            return false;
        }
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        while let Some(issued) = connection.issued.front()
            && names::is_until(issued.number, number)
        {
            if let Some(send) = issued.send {
                endpoint.on_departed(connection.handle, send);
            }
            if let Some(trace) = self.trace.as_deref_mut() {
                let id = names::command(place, issued.number);
                trace.on_departed(times, connection.id, id);
            }
            connection.on_departed(issued.number);
            connection.issued.pop_front();
            connection.nic.sends_outstanding -= 1;
            ground.sends_outstanding -= 1;
        }
        self.mark(place);
        true
    }

    /// READY. False if there was no PREPARE.
    fn on_ready(&mut self, now_us: u64, worker: usize, prepare: SendId, flow: FlowId) -> bool {
        let place = match self.place_of_flow(worker, flow) {
            Ok(place) => place,
            Err(is_known) => return is_known,
        };
        let connection = &mut self.table.connections[place];
        let Some(asked) = connection.take_asked(prepare) else {
            // The flow may have restarted since.
            return names::place_of_command(prepare.0) == Some(place);
        };
        if let Some(stream) = self.table.stream_mut(asked.stream) {
            ranges::set_ready(stream, prepare);
        }
        self.mark(place);
        if let Some(waited_us) = self.traced_wait_us(now_us, prepare) {
            self.trace(now_us, QuicConnection(flow.0), || {
                QuicTraceEvent::RangeReady {
                    prepare: prepare.0,
                    waited_us,
                }
            });
        }
        if let Some(range) = asked.unwanted {
            self.release_later(place, range);
        }
        true
    }

    /// Reading failed for a PREPARE, or for a QSEND, part of which may have departed. The stream of
    /// the file ends. `None` if the flow is not QUIC's.
    pub(crate) fn on_read_failed(
        &mut self,
        ground: &mut Ground,
        worker: usize,
        id: SendId,
        flow: FlowId,
        file: FileId,
    ) -> Option<bool> {
        let place = match self.place_of_flow(worker, flow) {
            Ok(place) => place,
            Err(true) => return Some(true),
            Err(false) => return None,
        };
        let owner = ground.files.by_id(file).map(|file| file.stream);
        let connection = &mut self.table.connections[place];
        let number = names::number_of_command(id);
        // The id may belong to another file by now.
        let held = connection.files.get(&file);
        let is_held = held.is_some_and(|held| names::is_until(held.since, number));
        let asked = connection.take_asked(id);
        let is_issued = connection.issued.iter().any(|it| it.number == number);
        if asked.is_none() && !is_issued {
            // The flow may have restarted since.
            return Some(names::place_of_command(id.0) == Some(place));
        }
        if is_held {
            connection.bad_files.push(file);
        }
        let stream = match &asked {
            Some(asked) => Some(asked.stream),
            None => owner.filter(|_| is_held),
        };
        let own = stream.filter(|stream| {
            let found = self.table.stream(*stream);
            found.is_some_and(|found| found.connection == place)
        });
        if let Some(stream) = own {
            self.fail_stream(ground, stream);
        }
        match asked {
            Some(asked) => {
                if let Some(range) = asked.unwanted {
                    self.release_bytes(ground, place, range.file, range.len);
                }
            }
            // The worker drops the rest of the flow.
            None => self.begin_flow_again(ground, place),
        }
        Some(true)
    }

    /// A worker rejected a command: closes the command's connection. `None` if it was not QUIC's.
    pub(crate) fn on_rejected(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        worker: usize,
        reason: RejectReason,
        id: u64,
    ) -> Option<bool> {
        if self.is_unused() {
            return None;
        }
        let by_flow = self.table.place_of(QuicConnection(id));
        let by_command = || names::place_of_command(id);
        let place = by_flow.or_else(by_command)?;
        let Some(connection) = self.table.connections.get_mut(place) else {
            return Some(true);
        };
        if connection.nic.worker != worker {
            return Some(true);
        }
        // A rejection of a QKEY names its flow.
        connection.lacks_key |= by_flow.is_some();
        ground.counters.quic_rejected += 1;
        tracing::warn!(
            worker,
            ?reason,
            id,
            "the NIC stack rejected a command of QUIC"
        );
        self.fail(now_us, place);
        Some(true)
    }
}
