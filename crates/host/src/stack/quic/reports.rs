//! What NIC workers report of QUIC connections. As all that they say, it is not trusted: what makes
//! no sense is counted, and at most the connection that it names suffers from it.

use contract::{Event, FileId, FlowId, RejectReason, SendId};

use super::trace::QuicTraceEvent;
use super::{names, ranges};
use crate::app::QuicConnection;
use crate::stack::Stack;

impl Stack {
    /// The place of a connection of QUIC that a flow names, and this worker sends for. An error if
    /// it is none, and whether it may have been one.
    pub(super) fn place_of_flow(&self, worker: usize, flow: FlowId) -> Result<usize, bool> {
        let quic = self.quic.as_deref().ok_or(false)?;
        names::place_of_connection(flow.0).ok_or(false)?;
        // It may have ended while the event was on its way, or have gone to another worker.
        let place = quic.table.place_of(QuicConnection(flow.0)).ok_or(true)?;
        if quic.table.connections[place].worker == worker {
            Ok(place)
        } else {
            Err(true)
        }
    }

    /// An event that only connections of QUIC have. False if it makes no sense.
    #[cold]
    pub(in crate::stack) fn on_quic(&mut self, now_us: u64, worker: usize, event: &Event) -> bool {
        match *event {
            Event::Ready { prepare, flow } => self.on_quic_ready(now_us, worker, prepare, flow),
            Event::QuicReceived(ref received) => self.on_quic_received(now_us, worker, received),
            _ => false,
        }
    }

    /// A QSEND has departed; with it, those before it. False if that makes no sense. `times`: what
    /// it is now, and when it departed, in microseconds.
    #[cold]
    pub(in crate::stack) fn on_quic_departed(
        &mut self,
        times: (u64, u64),
        worker: usize,
        send: SendId,
        flow: FlowId,
    ) -> bool {
        let place = match self.place_of_flow(worker, flow) {
            Ok(place) => place,
            Err(is_known) => return is_known || names::place_of_connection(flow.0).is_none(),
        };
        self.sends_departed += 1;
        self.depart_until(times, place, send)
    }

    /// QSENDs of a connection up to this one are not waited for any more.
    fn depart_until(&mut self, times: (u64, u64), place: usize, send: SendId) -> bool {
        let Some(quic) = self.quic.as_deref_mut() else {
            return false;
        };
        let Some(connection) = quic.table.connections.get_mut(place) else {
            return false;
        };
        let number = names::number_of_command(send);
        let last = connection.next_command.wrapping_sub(1);
        if names::place_of_command(send.0) != Some(place) || !names::is_until(number, last) {
            return false;
        }
        let endpoint = &mut quic.listeners[connection.listener].endpoint;
        while let Some(issued) = connection.issued.front()
            && names::is_until(issued.number, number)
        {
            if let Some(send) = issued.send {
                endpoint.on_departed(connection.handle, send);
            }
            if let Some(trace) = quic.trace.as_deref_mut() {
                let id = names::command(place, issued.number);
                trace.on_departed(times, connection.id, id);
            }
            connection.on_departed(issued.number);
            connection.issued.pop_front();
            self.sends_outstanding -= 1;
        }
        quic.mark(place);
        true
    }

    /// READY. False if nothing was asked.
    fn on_quic_ready(&mut self, now_us: u64, worker: usize, prepare: SendId, flow: FlowId) -> bool {
        let place = match self.place_of_flow(worker, flow) {
            Ok(place) => place,
            Err(is_known) => return is_known,
        };
        let Some(quic) = self.quic.as_deref_mut() else {
            return false;
        };
        let connection = &mut quic.table.connections[place];
        let Some(asked) = connection.take_asked(prepare) else {
            // The flow may have begun again since.
            return names::place_of_command(prepare.0) == Some(place);
        };
        if let Some(stream) = quic.table.stream_mut(asked.stream) {
            ranges::set_ready(stream, prepare);
        }
        quic.mark(place);
        if let Some(waited_us) = quic.traced_wait_us(now_us, prepare) {
            quic.trace(now_us, QuicConnection(flow.0), || {
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

    /// Reading has failed: of a PREPARE, or of a QSEND, of which part may have departed. The stream
    /// that the file is of ends. `None` if the flow is none of QUIC.
    pub(in crate::stack) fn on_quic_read_failed(
        &mut self,
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
        let owner = self.files.by_id(file).map(|file| file.stream);
        let quic = self.quic.as_deref_mut()?;
        let connection = &mut quic.table.connections[place];
        let number = names::number_of_command(id);
        // The id may be another file's by now.
        let held = connection.files.get(&file);
        let is_held = held.is_some_and(|held| names::is_until(held.since, number));
        let asked = connection.take_asked(id);
        let is_issued = connection.issued.iter().any(|it| it.number == number);
        if asked.is_none() && !is_issued {
            // The flow may have begun again since.
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
            let found = quic.table.stream(*stream);
            found.is_some_and(|found| found.connection == place)
        });
        if let Some(stream) = own {
            self.fail_quic_stream(stream);
        }
        match asked {
            Some(asked) => {
                if let Some(range) = asked.unwanted {
                    self.release_bytes(place, range.file, range.len);
                }
            }
            // The worker drops what else it has of the flow.
            None => self.begin_flow_again(place),
        }
        Some(true)
    }

    /// A command was not carried out: the connection that it was for is closed. `None` if it was
    /// for none of QUIC.
    pub(in crate::stack) fn on_quic_rejected(
        &mut self,
        now_us: u64,
        worker: usize,
        reason: RejectReason,
        id: u64,
    ) -> Option<bool> {
        let quic = self.quic.as_deref()?;
        let by_flow = quic.table.place_of(QuicConnection(id));
        let by_command = || names::place_of_command(id);
        let place = by_flow.or_else(by_command)?;
        let quic = self.quic.as_deref_mut()?;
        let Some(connection) = quic.table.connections.get_mut(place) else {
            return Some(true);
        };
        if connection.worker != worker {
            return Some(true);
        }
        // A QKEY is named by its flow.
        connection.lacks_key |= by_flow.is_some();
        self.counters.quic_rejected += 1;
        tracing::warn!(
            worker,
            ?reason,
            id,
            "the NIC stack rejected a command of QUIC"
        );
        self.fail_quic(now_us, place);
        Some(true)
    }
}
