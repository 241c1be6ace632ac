//! A quinn-proto endpoint on a kernel UDP socket, with quinn-udp: superpackets out and in, one
//! thread. Client and plain server both use it.

use std::collections::{BTreeSet, VecDeque};
use std::io::{ErrorKind, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint,
    EndpointConfig, Event, ServerConfig, Transmit,
};
use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSockRef, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_send_buffer_size,
    set_socket_send_buffer_size_force,
};
use testbed::{Context, Failure, Result};

/// Bytes of a socket's buffers, each way, for packets that arrive while the thread is busy.
const SOCKET_BYTES: usize = 8 << 20;

/// Largest superpacket, in bytes.
const SUPERPACKET_BYTES_MAX: usize = 65_535;

/// Most payload bytes of an outgoing superpacket: its length, headers included, has 16 bits.
const SEND_BYTES_MAX: usize = SUPERPACKET_BYTES_MAX - 40 - 8;

/// Superpackets that a connection sends in its turn.
const CONNECTION_SENDS_MAX: usize = 8;

/// Superpackets that all connections send between receives: acknowledgments wait only a few
/// milliseconds, however many connections there are, and find room in the socket.
const TURN_SENDS_MAX: usize = 32;

/// Batches received before connections send: more than the peer's acknowledgments of these sends.
const TURN_BATCHES_MAX: usize = 8;

/// An endpoint, its connections and its socket.
pub(super) struct Driver {
    socket: UdpSocket,
    state: UdpSocketState,
    endpoint: Endpoint,
    /// By the endpoint's handle.
    connections: Vec<Option<Driven>>,
    timeouts: BTreeSet<(Instant, usize)>,
    /// Connections that may have packets or events, once each, in turn.
    dirty: VecDeque<usize>,
    /// Connections with packets for which the socket had no room.
    waiting: BTreeSet<usize>,
    received: Vec<u8>,
    made: Vec<u8>,
}

struct Driven {
    quinn: Connection,
    timeout: Option<Instant>,
    is_dirty: bool,
    /// A transmission for which the socket had no room.
    unsent: Option<(Transmit, Vec<u8>)>,
}

/// Handles an event of a connection: its number, itself, the event.
pub(super) type OnEvent<'a> = &'a mut dyn FnMut(usize, &mut Connection, Event) -> Result<()>;

impl Driver {
    /// An endpoint at this address, which accepts connections if it has a configuration for them.
    pub(super) fn new(local: SocketAddr, server: Option<Arc<ServerConfig>>) -> Result<Driver> {
        let opening = || format!("opening a UDP socket at {local}");
        let socket = UdpSocket::bind(local).context(opening)?;
        // Without privileges, the system caps its size.
        if set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES).is_err() {
            set_socket_recv_buffer_size(&socket, SOCKET_BYTES).context(opening)?;
        }
        if set_socket_send_buffer_size_force(&socket, SOCKET_BYTES).is_err() {
            set_socket_send_buffer_size(&socket, SOCKET_BYTES).context(opening)?;
        }
        let state = UdpSocketState::new(UdpSockRef::from(&socket)).context(opening)?;
        let config = Arc::new(EndpointConfig::default());
        Ok(Driver {
            endpoint: Endpoint::new(config, server, !state.may_fragment(), None),
            socket,
            state,
            connections: Vec::new(),
            timeouts: BTreeSet::new(),
            dirty: VecDeque::new(),
            waiting: BTreeSet::new(),
            received: vec![0; BATCH_SIZE * SUPERPACKET_BYTES_MAX],
            made: Vec::new(),
        })
    }

    /// Begins a connection; returns its number.
    pub(super) fn connect(
        &mut self,
        config: ClientConfig,
        to: SocketAddr,
        name: &str,
    ) -> Result<usize> {
        let connected = self.endpoint.connect(Instant::now(), config, to, name);
        let (handle, quinn) = connected.context(|| format!("connecting to {to}"))?;
        Ok(self.insert(handle, quinn))
    }

    fn insert(&mut self, ConnectionHandle(index): ConnectionHandle, quinn: Connection) -> usize {
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(Driven {
            quinn,
            timeout: None,
            is_dirty: false,
            unsent: None,
        });
        self.mark(index);
        index
    }

    fn mark(&mut self, index: usize) {
        if let Some(Some(driven)) = self.connections.get_mut(index)
            && !driven.is_dirty
        {
            driven.is_dirty = true;
            self.dirty.push_back(index);
        }
    }

    /// Waits for work, no longer than `patience`, and does it.
    pub(super) fn turn(&mut self, patience: Duration, on_event: OnEvent<'_>) -> Result<()> {
        self.wait(patience)?;
        self.receive()?;
        let now = Instant::now();
        while let Some((due, index)) = self.timeouts.first().copied()
            && due <= now
        {
            self.timeouts.pop_first();
            if let Some(Some(driven)) = self.connections.get_mut(index) {
                driven.timeout = None;
                driven.quinn.handle_timeout(now);
                self.mark(index);
            }
        }
        let mut room = TURN_SENDS_MAX;
        // Connections that become dirty meanwhile are for the next turn.
        for _ in 0..self.dirty.len() {
            if room == 0 {
                break;
            }
            if let Some(index) = self.dirty.pop_front() {
                self.drive(index, &mut room, on_event)?;
            }
        }
        Ok(())
    }

    fn wait(&mut self, patience: Duration) -> Result<()> {
        let wait = match self.timeouts.first() {
            _ if !self.dirty.is_empty() => Duration::ZERO,
            Some((due, _)) => due.saturating_duration_since(Instant::now()).min(patience),
            None => patience,
        };
        let mut wanted = PollFlags::IN;
        if !self.waiting.is_empty() {
            wanted |= PollFlags::OUT;
        }
        let timeout = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let mut watched = [PollFd::new(&self.socket, wanted)];
        match poll(&mut watched, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno).context(|| "poll".into()),
        }
        if watched[0].revents().contains(PollFlags::OUT) {
            for index in std::mem::take(&mut self.waiting) {
                self.mark(index);
            }
        }
        Ok(())
    }

    /// Receives in batches, up to the size of the receive buffer.
    fn receive(&mut self) -> Result<()> {
        let mut room = self.received.len();
        for _ in 0..TURN_BATCHES_MAX {
            let (count, bytes) = self.receive_batch()?;
            room = room.saturating_sub(bytes);
            if count < BATCH_SIZE || room == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Receives one batch; returns its superpackets and bytes.
    fn receive_batch(&mut self) -> Result<(usize, usize)> {
        let mut received = std::mem::take(&mut self.received);
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let mut pieces = received.chunks_mut(SUPERPACKET_BYTES_MAX);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(pieces.next().unwrap_or_default()));
        let socket = UdpSockRef::from(&self.socket);
        let count = match self.state.recv(socket, &mut slices, &mut metas) {
            Ok(count) => count,
            // An ICMP error for a port without a socket is no failure of ours.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionRefused
                ) =>
            {
                0
            }
            Err(error) => return Err(error).context(|| "receiving datagrams".into()),
        };
        let now = Instant::now();
        let mut bytes = 0;
        for (slice, meta) in slices.iter().zip(&metas).take(count) {
            bytes += meta.len;
            let mut rest = BytesMut::from(&slice[..meta.len]);
            while !rest.is_empty() {
                let datagram = rest.split_to(meta.stride.min(rest.len()));
                self.on_datagram(now, meta, datagram)?;
            }
        }
        self.received = received;
        Ok((count, bytes))
    }

    fn on_datagram(&mut self, now: Instant, meta: &RecvMeta, datagram: BytesMut) -> Result<()> {
        let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
        let mut answer = Vec::new();
        let event = self
            .endpoint
            .handle(now, meta.addr, meta.dst_ip, ecn, datagram, &mut answer);
        match event {
            Some(DatagramEvent::ConnectionEvent(ConnectionHandle(index), event)) => {
                if let Some(Some(driven)) = self.connections.get_mut(index) {
                    driven.quinn.handle_event(event);
                    self.mark(index);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                match self.endpoint.accept(incoming, now, &mut answer, None) {
                    Ok((handle, quinn)) => {
                        self.insert(handle, quinn);
                    }
                    Err(error) => {
                        return Err(Failure::new(format!("a connection: {}", error.cause)));
                    }
                }
            }
            Some(DatagramEvent::Response(transmit)) => {
                send(&self.socket, &self.state, &transmit, &answer)?;
            }
            None => {}
        }
        Ok(())
    }

    /// Handles a connection's events, and sends its packets, at most `room` superpackets.
    fn drive(&mut self, index: usize, room: &mut usize, on_event: OnEvent<'_>) -> Result<()> {
        let Some(Some(driven)) = self.connections.get_mut(index) else {
            return Ok(());
        };
        driven.is_dirty = false;
        while let Some(event) = driven.quinn.poll() {
            on_event(index, &mut driven.quinn, event)?;
        }
        let may_go_on = driven.send(room, &self.socket, &self.state, &mut self.made)?;
        if driven.unsent.is_some() {
            self.waiting.insert(index);
        }
        while let Some(event) = driven.quinn.poll_endpoint_events() {
            let answer = self.endpoint.handle_event(ConnectionHandle(index), event);
            if let Some(answer) = answer {
                driven.quinn.handle_event(answer);
            }
        }
        let timeout = driven.quinn.poll_timeout();
        if driven.timeout != timeout {
            if let Some(before) = std::mem::replace(&mut driven.timeout, timeout) {
                self.timeouts.remove(&(before, index));
            }
            self.timeouts.extend(timeout.map(|at| (at, index)));
        }
        if driven.quinn.is_drained() {
            if let Some(before) = driven.timeout {
                self.timeouts.remove(&(before, index));
            }
            self.connections[index] = None;
        } else if may_go_on {
            self.mark(index);
        }
        Ok(())
    }
}

impl Driven {
    /// Sends until there is nothing to send, the turn is over, or the socket is full. True if the
    /// turn is over.
    fn send(
        &mut self,
        room: &mut usize,
        socket: &UdpSocket,
        state: &UdpSocketState,
        made: &mut Vec<u8>,
    ) -> Result<bool> {
        if let Some((transmit, bytes)) = self.unsent.take()
            && !send(socket, state, &transmit, &bytes)?
        {
            self.unsent = Some((transmit, bytes));
            return Ok(false);
        }
        // The connection takes this as its packets' send time.
        let now = Instant::now();
        for _ in 0..CONNECTION_SENDS_MAX.min(*room) {
            made.clear();
            let mtu = usize::from(self.quinn.current_mtu());
            let datagrams_max = (SEND_BYTES_MAX / mtu).clamp(1, state.max_gso_segments());
            let Some(transmit) = self.quinn.poll_transmit(now, datagrams_max, made) else {
                return Ok(false);
            };
            *room -= 1;
            if !send(socket, state, &transmit, made)? {
                self.unsent = Some((transmit, made.clone()));
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Sends; false if the socket has no room.
fn send(
    socket: &UdpSocket,
    state: &UdpSocketState,
    transmit: &Transmit,
    bytes: &[u8],
) -> Result<bool> {
    let sent = state.send(
        UdpSockRef::from(socket),
        &quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit
                .ecn
                .and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents: &bytes[..transmit.size],
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        },
    );
    match sent {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error).context(|| "sending datagrams".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::suites::quic::{STREAM_WINDOW_BYTES, client};
    use crate::suites::tls::identity::{self, Identity};

    /// A driver, and a UDP socket as its connections' peer.
    fn driver() -> (Driver, UdpSocket) {
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let other = UdpSocket::bind(local).unwrap();
        other.set_nonblocking(true).unwrap();
        (Driver::new(local, None).unwrap(), other)
    }

    fn turn(driver: &mut Driver) {
        driver.turn(Duration::ZERO, &mut |_, _, _| Ok(())).unwrap();
    }

    /// Receives all datagrams of a socket; returns how many.
    fn take_all(socket: &UdpSocket) -> usize {
        let mut datagram = [0; SUPERPACKET_BYTES_MAX];
        std::iter::from_fn(|| socket.recv(&mut datagram).ok()).count()
    }

    #[test]
    fn many_connections_send_in_several_turns() {
        let directory = tempfile::tempdir().unwrap();
        let certificate = Identity::make(directory.path()).unwrap().certificate;
        let config = client::config(&certificate, STREAM_WINDOW_BYTES).unwrap();
        let (mut driver, server) = driver();
        let to = server.local_addr().unwrap();
        for _ in 0..TURN_SENDS_MAX + 1 {
            driver.connect(config.clone(), to, identity::NAME).unwrap();
        }
        turn(&mut driver);
        assert_eq!(take_all(&server), TURN_SENDS_MAX);
        turn(&mut driver);
        assert_eq!(take_all(&server), 1);
    }

    #[test]
    fn more_than_a_batch_is_taken_at_once() {
        let (mut driver, client) = driver();
        let to = driver.socket.local_addr().unwrap();
        for _ in 0..3 * BATCH_SIZE {
            client.send_to(b"not QUIC", to).unwrap();
        }
        turn(&mut driver);
        assert_eq!(take_all(&driver.socket), 0);
    }
}
