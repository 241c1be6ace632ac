//! Memory of an application for FIFOs, and the number of socket places promised from it.

use socket_channel::Layout;
use socket_channel::fifo_area::FifoArea;

/// FIFOs of a socket: one for received bytes or accepted connections, one for bytes to send.
const FIFOS_PER_SOCKET: usize = 2;

/// Divisor of the memory that may be promised.
const PROMISED: usize = 2;

/// Returns the memory, and the number of sockets that fit, at most `sockets_max`.
pub(crate) fn area_for(layout: &Layout, sockets_max: u32) -> (FifoArea, usize) {
    let mut area = FifoArea::new(layout);
    let all = usize::try_from(area.spare_fifos()).unwrap_or(usize::MAX);
    let places = (all / PROMISED / FIFOS_PER_SOCKET).min(sockets_max as usize);
    area.promise((places * FIFOS_PER_SOCKET) as u64);
    (area, places)
}
