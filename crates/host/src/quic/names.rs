//! Names of QUIC connections and their streams: numbers in TCP's name spaces that no TCP connection
//! has. The NIC stack knows a connection as a flow, and its QSENDs and PREPAREs by ids that lead
//! back to it.

use contract::{FlowId, SendId};

use crate::app::{QuicConnection, StreamId};
use crate::tables::connections::{ConnectionHandle, handle_of_send, send_id};

/// Bit set in every place of QUIC. Tables of TCP never grow that large.
const QUIC: u64 = 1 << 31;

/// Bit set in the place of a stream.
const STREAM: u64 = 1 << 30;

/// Places of each table.
pub(super) const PLACES_MAX: usize = 1 << 30;

fn name(generation: u32, place: u64) -> u64 {
    u64::from(generation) << 32 | place
}

/// A connection at this place of its table.
pub(super) fn connection(generation: u32, place: usize) -> QuicConnection {
    QuicConnection(name(generation, QUIC | place as u64))
}

/// A stream at this place of its table.
pub(super) fn stream(generation: u32, place: usize) -> StreamId {
    StreamId(name(generation, QUIC | STREAM | place as u64))
}

/// True if this is the name of a stream of QUIC.
#[inline]
pub(crate) fn is_stream(stream: StreamId) -> bool {
    stream.0 & (QUIC | STREAM) == QUIC | STREAM
}

/// The place of a stream.
pub(super) fn place_of_stream(stream: StreamId) -> Option<usize> {
    is_stream(stream).then_some(stream.0 as usize & (PLACES_MAX - 1))
}

/// The place of a connection.
pub(super) fn place_of_connection(connection: u64) -> Option<usize> {
    let is_connection = connection & (QUIC | STREAM) == QUIC;
    is_connection.then_some(connection as usize & (PLACES_MAX - 1))
}

/// True if a flow is a connection of QUIC.
pub(crate) fn is_connection(flow: FlowId) -> bool {
    place_of_connection(flow.0).is_some()
}

/// The flow under which the NIC stack knows a connection.
pub(super) fn flow(connection: QuicConnection) -> FlowId {
    FlowId(connection.0)
}

/// The id of a QSEND or PREPARE of a connection.
pub(super) fn command(place: usize, number: u32) -> SendId {
    let handle = ConnectionHandle::at(QUIC as usize | place);
    send_id(handle, number.into())
}

/// The place of the connection whose QSEND or PREPARE an id names.
pub(super) fn place_of_command(id: u64) -> Option<usize> {
    let place = handle_of_send(id)?.place() as u64;
    place_of_connection(place)
}

/// The number of a QSEND or PREPARE among its connection's, modulo 2³².
pub(super) fn number_of_command(id: SendId) -> u32 {
    id.0 as u32
}

/// True if `number` is `last` or earlier; numbers wrap.
pub(super) fn is_until(number: u32, last: u32) -> bool {
    last.wrapping_sub(number) < 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_and_are_no_others() {
        for (generation, place) in [(0, 0), (7, 3), (u32::MAX, PLACES_MAX - 2)] {
            let stream = stream(generation, place);
            assert!(is_stream(stream));
            assert_eq!(place_of_stream(stream), Some(place));
            assert_eq!(place_of_connection(stream.0), None);
            let connection = connection(generation, place);
            assert_eq!(place_of_connection(connection.0), Some(place));
            assert!(!is_stream(StreamId(connection.0)));
            let id = command(place, 0xffff_fff0);
            assert_eq!(place_of_command(id.0), Some(place));
            assert_eq!(number_of_command(id), 0xffff_fff0);
        }
        let tcp = send_id(ConnectionHandle::at(17), 5);
        assert_eq!(place_of_command(tcp.0), None);
        assert_eq!(place_of_connection(17), None);
        assert!(!is_stream(StreamId(5 << 32 | 17)));
    }

    #[test]
    fn numbers_wrap() {
        assert!(is_until(5, 5) && is_until(4, 5) && !is_until(6, 5));
        assert!(is_until(u32::MAX, 3) && !is_until(3, u32::MAX));
    }
}
