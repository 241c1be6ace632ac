//! Connections that this side opens (RFC 9293 §3.10.1, active OPEN).

use std::net::{IpAddr, SocketAddr};

use tcp::Instant;

use super::TcpLayer;
use super::admission::Gate;
use super::loopback;
use crate::app::{ConnectError, Owner, StreamId};
use crate::ground::Ground;
use crate::tables::connections::Connections;
use crate::tables::time_wait::TimeWaits;
use crate::tables::tuple::Tuple;

impl TcpLayer {
    /// Opens a connection to a peer. The stack chooses an address that is unspecified or absent,
    /// and a port of 0. [`AppEvent::Connected`](crate::app::AppEvent::Connected) follows, or
    /// [`AppEvent::Closed`](crate::app::AppEvent::Closed); data written until then is sent when the
    /// connection is established.
    pub(crate) fn connect(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        owner: Owner,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<StreamId, ConnectError> {
        let remote = loopback::peer(local, remote);
        let ip = self.source_address(ground, local.map(|local| local.ip()), remote.ip())?;
        if self.connections.len() >= ground.config.connections_max
            && !self.evict_idle(ground, now_us)
        {
            return Err(ConnectError::TooManyConnections);
        }
        let now = Instant::from_us(now_us);
        let tuple = |local| Tuple { local, remote };
        let local = match local.map_or(0, |local| local.port()) {
            0 => {
                let is_named = local.is_some_and(|local| !local.ip().is_unspecified());
                self.free_place(ground, now, ip, remote, is_named)?
            }
            port => {
                let tuple = tuple(SocketAddr::new(ip, port));
                if self.bindings.is_taken(owner, tuple.local) {
                    return Err(ConnectError::PortInUse);
                }
                let is_free = is_free(&self.connections, &self.gate, &self.time_waits, now, &tuple);
                let is_elsewhere =
                    self.teardown.parted.contains(&tuple) || self.splicing.splices.contains(&tuple);
                if !is_free || is_elsewhere {
                    return Err(ConnectError::PortInUse);
                }
                tuple.local
            }
        };
        let tuple = tuple(local);
        let isn = self.isn.isn(local, remote, now);
        let isn = match self.time_waits.take(&tuple) {
            Some(old) => old.isn_beyond(isn),
            None => isn,
        };
        let ts_offset = self.isn.ts_offset(local, remote);
        let config = self.tcp_config(ground, &tuple, None);
        let connection =
            tcp::Connection::connect(&config, local.port(), remote.port(), isn, ts_offset, now);
        let handle = self.insert(ground, connection, tuple);
        ground.counters.connections_opened += 1;
        self.mark_dirty(handle);
        let entry = self.connections.get_mut(handle);
        let entry = entry.expect("it was just added");
        (entry.is_active, entry.told) = (true, true);
        entry.owner = owner;
        Ok(entry.stream)
    }

    /// The own address for reaching a peer: one in the peer's network, or else any of its family;
    /// for an own address, itself.
    fn source_address(
        &self,
        ground: &Ground,
        wanted: Option<IpAddr>,
        remote: IpAddr,
    ) -> Result<IpAddr, ConnectError> {
        let same_family = |ip: IpAddr| ip.is_ipv4() == remote.is_ipv4();
        if let Some(ip) = wanted.filter(|ip| !ip.is_unspecified()) {
            if !same_family(ip) || !ground.config.is_own(ip) {
                return Err(ConnectError::NoAddress);
            }
            // RFC 1122 §3.2.1.3: this address must not appear outside a host.
            if ip.is_loopback() && !self.loops(ground, remote) {
                return Err(ConnectError::LoopbackOnly);
            }
            return Ok(ip);
        }
        if wanted.is_some_and(|ip| !same_family(ip)) {
            return Err(ConnectError::NoAddress);
        }
        if self.loops(ground, remote) {
            return Ok(loopback::source_for(remote));
        }
        ground
            .neighbors
            .source_for(remote)
            .ok_or(ConnectError::NoAddress)
    }

    /// A free port of the own address `ip`; of another one in its network if there is none and the
    /// address is not named by the application.
    fn free_place(
        &mut self,
        ground: &mut Ground,
        now: Instant,
        ip: IpAddr,
        remote: SocketAddr,
        is_named: bool,
    ) -> Result<SocketAddr, ConnectError> {
        let others = match is_named || self.loops(ground, remote.ip()) {
            true => Vec::new(),
            false => ground.neighbors.in_network_of(ip),
        };
        for ip in [ip].into_iter().chain(others) {
            if let Some(port) = self.free_port(now, ip, remote) {
                return Ok(SocketAddr::new(ip, port));
            }
        }
        ground.counters.ports_exhausted += 1;
        if self.ephemeral_ports.is_news(now.as_us()) {
            tracing::warn!(
                %remote,
                "no local port is left for a connection to this peer: they are in use, or in \
                 TIME-WAIT for a minute; further addresses of the stack in the same network have \
                 further ports; later connections are only counted"
            );
        }
        Err(ConnectError::NoPort)
    }

    fn free_port(&mut self, now: Instant, ip: IpAddr, remote: SocketAddr) -> Option<u16> {
        let TcpLayer {
            ephemeral_ports,
            bindings,
            connections,
            gate,
            time_waits,
            teardown,
            splicing,
            ..
        } = self;
        ephemeral_ports.choose(ip, remote, |port| {
            let local = SocketAddr::new(ip, port);
            let tuple = Tuple { local, remote };
            // A program connects a port to itself only by binding it.
            local != remote
                && !bindings.has_port(port)
                && is_free(connections, gate, time_waits, now, &tuple)
                && !teardown.parted.contains(&tuple)
                && !splicing.splices.contains(&tuple)
        })
    }
}

/// True if no connection has this four-tuple, is being opened with it, or is ending.
fn is_free(
    connections: &Connections,
    gate: &Gate,
    time_waits: &TimeWaits,
    now: Instant,
    tuple: &Tuple,
) -> bool {
    connections.find(tuple).is_none()
        && !gate.is_half_open(tuple)
        && time_waits.may_be_reused(now, tuple)
}
