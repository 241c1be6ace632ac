//! Reports of the NIC workers, by what they are about: files, or flows of a transport.

use contract::{Event, FileId, FileMeta, RejectReason};
use rustix::io::Errno;

use super::{Ground, Layers};
use crate::tables::connections::handle_of_send;

impl Ground {
    /// Handles an event that is neither a departure nor a frame. False if it is invalid.
    #[inline(never)]
    pub(crate) fn on_rare_event(
        &mut self,
        layers: &mut Layers<'_>,
        now_us: u64,
        worker: usize,
        event: &Event,
    ) -> bool {
        match *event {
            Event::Departed { .. } | Event::Frame { .. } => unreachable!("they are dealt with"),
            Event::Opened { file, meta } => {
                self.on_repeated_open(layers, worker, file, Some(meta))
                    || self.on_opened(layers, worker, file, meta)
            }
            Event::OpenFailed { file, errno } => {
                self.on_repeated_open(layers, worker, file, None)
                    || self.on_open_failed(layers, now_us, worker, file, errno)
            }
            Event::Listed { file, ref part } => self.on_listed(layers, worker, file, part),
            Event::ReadFailed {
                send,
                flow,
                file,
                offset,
                errno,
            } => {
                self.warn_of_failed_read(file, offset, errno);
                let is_of_quic = layers.quic.on_read_failed(self, worker, send, flow, file);
                is_of_quic.unwrap_or_else(|| layers.tcp.on_read_failed(self, worker, flow))
            }
            Event::Sealed {
                flow,
                epoch,
                number,
                ref tags,
            } => layers
                .tcp
                .on_sealed(self, worker, flow, epoch, number, tags),
            Event::SealMismatch {
                flow,
                epoch,
                number,
                ..
            } => layers
                .tcp
                .on_seal_mismatch(self, worker, flow, epoch, number),
            Event::Rejected { reason, id } => self.on_rejected(layers, now_us, worker, reason, id),
            Event::PartRefused { flow, reason } => layers
                .tcp
                .on_part_refused(self, now_us, worker, flow, reason),
            Event::FlowsTaken { ref flows } => self.on_flows_taken(layers, worker, flows),
            Event::PartEnded { ref ends } => layers.tcp.on_part_ended(self, now_us, worker, ends),
            Event::SetupReady { epoch, steering } => {
                layers.tcp.on_setup_ready(self, worker, epoch, steering)
            }
            Event::SpliceRefused { .. }
            | Event::SpliceMssReduced { .. }
            | Event::SpliceProgress { .. }
            | Event::SpliceEnded { .. }
            | Event::Unspliced { .. } => layers.tcp.on_splice_event(self, now_us, worker, event),
            Event::Ready { .. } | Event::QuicReceived(_) => {
                layers.quic.on_worker_event(self, now_us, worker, event)
            }
            Event::Ended => {
                self.workers[worker].heard.on_last();
                true
            }
            Event::Load {
                busy_us,
                elapsed_us,
            } => {
                self.on_load(now_us, worker, busy_us, elapsed_us);
                true
            }
        }
    }

    /// Handles the answer to an OPEN after the first one for a file. False if it is to the first.
    fn on_repeated_open(
        &mut self,
        layers: &mut Layers<'_>,
        worker: usize,
        file: FileId,
        meta: Option<FileMeta>,
    ) -> bool {
        self.on_reopened(layers, worker, file, meta)
            || self.on_twin_opened(layers, worker, file, meta.as_ref())
    }

    fn warn_of_failed_read(&mut self, file: FileId, offset: u64, errno: u16) {
        self.counters.reads_failed += 1;
        let found = self.files.by_id(file);
        let path = found.map_or_else(Default::default, |it| String::from_utf8_lossy(&it.path));
        tracing::warn!(path = %path, offset, errno, "reading failed: the response is aborted");
    }

    /// A NIC stack did not execute a command: everything that depends on it fails.
    fn on_rejected(
        &mut self,
        layers: &mut Layers<'_>,
        now_us: u64,
        worker: usize,
        reason: RejectReason,
        id: u64,
    ) -> bool {
        if let Some(valid) = layers.quic.on_rejected(self, now_us, worker, reason, id) {
            return valid;
        }
        if let Some(valid) = layers.tcp.on_records_rejected(self, worker, reason, id) {
            return valid;
        }
        tracing::warn!(worker, ?reason, id, "the NIC stack rejected a command");
        if let Some(handle) = handle_of_send(id) {
            // Its connection may be gone, and another one in its place.
            let entry = layers.tcp.connections.get(handle);
            let asked = entry.is_some_and(|entry| entry.nic.sends_outstanding > 0);
            return asked && layers.tcp.fail(self, worker, handle);
        }
        // Not a SEND: if it was an OPEN, the OPEN has failed.
        let errno = match reason {
            RejectReason::TooManyFiles => Errno::MFILE,
            _ => Errno::INVAL,
        };
        let errno = errno.raw_os_error() as u16;
        u32::try_from(id).map(FileId).is_ok_and(|file| {
            self.on_repeated_open(layers, worker, file, None)
                || self.on_open_failed(layers, now_us, worker, file, errno)
        })
    }
}
