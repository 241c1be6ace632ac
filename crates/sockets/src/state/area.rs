//! The memory of an application for FIFOs, and the places for sockets that it has been promised to.

use socket_channel::Layout;
use socket_channel::fifo_area::FifoArea;

/// FIFOs of a socket: for what is received, or accepted, and for what is sent.
const FIFOS_PER_SOCKET: usize = 2;

/// At most such a part of the memory is promised.
const PROMISED: usize = 2;

/// The memory, and how many sockets an application may have, given how many it might.
pub(crate) fn area_for(layout: &Layout, sockets_max: u32) -> (FifoArea, usize) {
    let mut area = FifoArea::new(layout);
    let all = usize::try_from(area.spare_fifos()).unwrap_or(usize::MAX);
    let places = (all / PROMISED / FIFOS_PER_SOCKET).min(sockets_max as usize);
    area.promise((places * FIFOS_PER_SOCKET) as u64);
    (area, places)
}
