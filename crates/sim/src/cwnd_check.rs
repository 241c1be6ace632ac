//! Checks the congestion window: new data is issued only within it.

use host::ConnectionView;
use host::app::StreamId;

use crate::violation::{Check, ensure};

/// State of every connection at the end of the host's last turn.
#[derive(Debug, Default)]
pub(crate) struct WindowCheck {
    seen: Vec<(StreamId, Seen)>,
    /// Buffer of the turn before, for reuse.
    spare: Vec<(StreamId, Seen)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Sequence numbers issued.
    nxt: u64,
    pipe: u64,
    /// A probe exceeded the window, and nothing was delivered or lost since.
    probes: bool,
}

impl WindowCheck {
    /// Checks the connections after a turn of the host. Within a turn, acknowledgments and timers
    /// come first and data is issued last, so the current window is the one that applied.
    pub(crate) fn on_host_turn<'a>(
        &mut self,
        views: impl Iterator<Item = ConnectionView<'a>>,
    ) -> Check {
        self.spare.clear();
        for view in views {
            let before = self.seen.iter().find(|(stream, _)| *stream == view.stream);
            let before = before.map_or(Seen::default(), |(_, seen)| *seen);
            let nxt = view.tcp.acknowledged_bytes() + view.tcp.flight_bytes();
            let issued = nxt.saturating_sub(before.nxt);
            let (pipe, window) = (view.tcp.pipe_bytes(), view.tcp.congestion_window());
            // FIN takes a sequence number and no room, as in Linux's `tcp_cwnd_test`: alone, it may
            // leave although a probe or a reduced window has left no room.
            let is_fin_alone = issued == 1 && view.tcp.has_sent_fin();
            let fits = issued == 0 || is_fin_alone || pipe <= window + 1;
            // A tail loss probe ignores the window, and is one segment, once (RFC 8985 §7.3).
            let probes = before.probes && before.pipe + issued <= pipe;
            let segment = issued <= u64::from(view.tcp.mss()) + 1;
            let is_probe = !probes && segment && view.tcp.has_tail_probe();
            ensure(fits || is_probe, || {
                format!(
                    "new data beyond the congestion window: {issued} issued towards {}, pipe \
                     {pipe}, window {window}",
                    view.remote
                )
            })?;
            let seen = Seen {
                nxt,
                pipe,
                probes: probes || !fits,
            };
            self.spare.push((view.stream, seen));
        }
        std::mem::swap(&mut self.seen, &mut self.spare);
        Ok(())
    }
}
