//! Operations of the process that runs the stack.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use client_address::access::Full;
use client_address::{Networks, Prefix};
use netdev::LinkChange;
use netdev::steering::SteeringMap;
use tcp::{Config, CongestionAlgorithm, Instant};

use super::Stack;
use crate::app::{Bind, BindError, BindingId, ConnectError, Owner, StreamId, StreamOptions};
use crate::config::{Changeable, Proxies};
use crate::ground::link::Link;
use crate::link::mac::format_mac;
use crate::quic::{QuicInfo, QuicListenError, QuicListener, QuicTraceWanted, QuicTracer};
use crate::tables::tuple::Tuple;
use crate::tcp::turns::queue_dirty;

impl Stack {
    /// Binds an address of the stack, or all of a family, and a port; 0 lets the stack choose.
    pub fn bind(&mut self, bind: &Bind) -> Result<BindingId, BindError> {
        self.tcp.bind(&mut self.ground, bind)
    }

    /// Accepts connections to a bound address from now on; a repeated call changes options.
    pub fn listen(&mut self, binding: BindingId, options: StreamOptions) -> Result<(), BindError> {
        self.tcp.bindings.listen(binding, options)
    }

    /// Releases a bound address. Connections accepted there continue.
    pub fn release(&mut self, binding: BindingId) {
        self.tcp.bindings.release(binding);
    }

    /// The address of a binding, with the chosen port.
    pub fn bound_address(&self, binding: BindingId) -> Option<SocketAddr> {
        self.tcp.bindings.address(binding)
    }

    /// Accepts no more connections, nor QUIC connections: a new one is answered with RST, as by a
    /// kernel whose listening socket is closed, or refused. Half-open ones are forgotten.
    pub fn stop_listening(&mut self) {
        self.tcp.bindings.stop_listening();
        self.tcp.gate.close();
        self.quic.stop_listening();
    }

    /// Opens a connection to a peer. The stack chooses an address that is unspecified or absent,
    /// and a port of 0. [`AppEvent::Connected`](crate::app::AppEvent::Connected) follows, or
    /// [`AppEvent::Closed`](crate::app::AppEvent::Closed); data written until then is sent when the
    /// connection is established.
    pub fn connect(
        &mut self,
        now_us: u64,
        owner: Owner,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<StreamId, ConnectError> {
        (self.tcp).connect(&mut self.ground, now_us, owner, local, remote)
    }

    /// Makes connections to this port speak TLS from now on. Ports that are not in
    /// [`StackConfig::listen_ports`](crate::StackConfig::listen_ports) are accepted as well.
    pub fn serve_tls(&mut self, port: u16, config: Arc<tls::Config>) {
        self.tcp.serve_tls(&mut self.ground, port, config);
    }

    /// Makes connections to this port speak TLS from now on, for any application.
    pub fn terminate_tls(&mut self, port: u16, config: Arc<tls::Config>) {
        self.tcp.terminate_tls(&self.ground, port, config);
    }

    /// Sets the congestion control for connections accepted on `port` from now on; other ports use
    /// the one in [`StackConfig::tcp`](crate::StackConfig::tcp).
    pub fn set_listener_congestion(&mut self, port: u16, algorithm: CongestionAlgorithm) {
        let algorithms = &mut self.tcp.port_congestion;
        algorithms.retain(|&(other, _)| other != port);
        algorithms.push((port, algorithm));
    }

    /// The congestion control for connections accepted on `port`.
    pub fn listener_congestion(&self, port: u16) -> CongestionAlgorithm {
        self.tcp.listener_congestion(&self.ground, port)
    }

    /// Changes the congestion control of a stream, which keeps its window. False if there is no
    /// such stream.
    pub fn set_congestion(
        &mut self,
        now_us: u64,
        stream: StreamId,
        algorithm: CongestionAlgorithm,
    ) -> bool {
        let now = Instant::from_us(now_us);
        let entry = self.tcp.connections.by_stream_mut(stream);
        let changed = entry.map(|entry| entry.tcp.set_congestion(now, algorithm));
        changed.is_some()
    }

    /// Bounds the rate at which a stream sends, in bytes per second; `None` removes the bound.
    /// False if there is no such stream.
    pub fn set_max_pacing_rate(&mut self, stream: StreamId, rate_max: Option<u64>) -> bool {
        let Some(entry) = self.tcp.connections.by_stream_mut(stream) else {
            return false;
        };
        entry.tcp.set_max_pacing_rate(rate_max);
        queue_dirty(&mut self.tcp.dirty, entry);
        true
    }

    /// The congestion control of a stream.
    pub fn congestion(&self, stream: StreamId) -> Option<CongestionAlgorithm> {
        Some(self.tcp.connections.by_stream(stream)?.tcp.congestion())
    }

    /// Steers by this map: the host's port receives only frames that no other port gets.
    pub fn steer_with(&mut self, map: SteeringMap) {
        self.tcp.steer_with(&mut self.ground, map);
    }

    /// How workers get the SYNs that they answer; `None` if they answer none.
    pub fn syn_path(&self) -> Option<&'static str> {
        self.tcp.syn_path()
    }

    /// The number of half-open connections: the peer has not answered our SYN,ACK.
    pub fn half_open(&self) -> usize {
        self.tcp.gate.half_open()
    }

    /// Applies changed settings. No connection ends because its source exceeds a lowered limit.
    pub fn change(&mut self, to: &Changeable) {
        let change = |config: &mut Config| {
            config.congestion = to.congestion;
            config.ecn = to.ecn;
            config.keepalive = to.keepalive;
            config.pace = to.pace;
        };
        change(&mut self.ground.config.tcp);
        change(&mut self.tcp.config_v4);
        change(&mut self.tcp.config_v6);
        let config = &mut self.ground.config;
        config.fast_open = to.fast_open;
        config.orphans_max = to.orphans_max;
        config.connection_memory_bytes_max = to.connection_memory_bytes_max;
        config.resets_per_second = to.resets_per_second;
        config.echo_replies_per_second = to.echo_replies_per_second;
        config.admission.connections_per_source = to.connections_per_source;
        self.tcp.resets.change(config);
        self.ground.echo.change(config);
        let accepted = self.tcp.connections.iter().filter(|entry| !entry.is_active);
        let remotes = accepted.map(|entry| entry.source());
        let remotes: Vec<_> = remotes.chain(self.quic.sources()).collect();
        let remotes = remotes.into_iter();
        (self.ground.sources).set_limit(to.connections_per_source, remotes);
        self.quic.change_receive(&mut self.ground, to.quic_receive);
    }

    /// Sets the proxies of connections that begin from now on.
    pub fn set_proxies(&mut self, proxies: Proxies) {
        self.ground.proxies = proxies;
    }

    /// Replaces the networks that may connect, or may not; with `allowed`, no others may.
    /// Connections of clients that may not are ended; returns their number.
    pub fn set_access(
        &mut self,
        now_us: u64,
        allowed: Option<Networks<()>>,
        denied: Networks<()>,
    ) -> usize {
        self.ground.access.configure(allowed, denied);
        self.end_denied(now_us)
    }

    /// Denies a network until `until_us`, or for good, and ends its connections; returns their
    /// number.
    ///
    /// # Errors
    /// If there are as many denials as there may be.
    pub fn deny(
        &mut self,
        now_us: u64,
        network: Prefix,
        until_us: Option<u64>,
    ) -> Result<usize, Full> {
        let denials = self.ground.access.denials();
        denials.add(now_us, network, until_us)?;
        Ok(self.end_denied(now_us))
    }

    /// Takes a denial of this network back; false if there is none.
    pub fn take_denial_back(&mut self, now_us: u64, network: Prefix) -> bool {
        self.ground.access.denials().remove(now_us, network)
    }

    /// Ends the connections of clients that may not connect, but for those that this side has
    /// opened.
    fn end_denied(&mut self, now_us: u64) -> usize {
        if self.ground.access.is_open() {
            return 0;
        }
        let Stack { ground, tcp, quic } = self;
        tcp.abort_denied(ground, now_us) + quic.close_denied(ground, now_us)
    }

    /// The link has changed to `link`. Open connections adopt a smaller MTU; a larger one is for
    /// new connections, since the MSS is negotiated once.
    pub fn on_link(&mut self, now_us: u64, link: Link, change: LinkChange) {
        let before = std::mem::replace(&mut self.ground.link, link);
        self.ground.counters.link_changes += 1;
        let mac = format_mac(link.mac);
        let mtu = link.mtu;
        match change {
            LinkChange {
                went_down: true, ..
            } => tracing::warn!(mac, mtu, "the link is down"),
            LinkChange { came_up: true, .. } => tracing::warn!(mac, mtu, "the link is up again"),
            _ => tracing::warn!(mac, mtu, "the link has changed"),
        }
        if link.mtu != before.mtu {
            self.tcp.on_mtu(&mut self.ground, now_us);
        }
        if link.mac != before.mac {
            self.ground.neighbors.set_own_mac(link.mac);
            for handle in self.tcp.connections.handles() {
                if let Some(entry) = self.tcp.connections.get_mut(handle) {
                    entry.prefix = None;
                }
            }
        }
        if link.mac != before.mac || change.came_up {
            self.ground.neighbors.announce(now_us);
        }
    }

    /// The kernel has other addresses or routes on the link: follows it. Connections of addresses
    /// that are gone are aborted, and their peers get RST. QUIC connections end by their timeouts.
    pub fn set_addresses(&mut self, addresses: Vec<(IpAddr, u8)>, gateways: Vec<IpAddr>) {
        self.ground.set_addresses(addresses, gateways);
        let Stack { ground, tcp, .. } = self;
        for handle in tcp.connections.handles() {
            let Some(entry) = tcp.connections.get_mut(handle) else {
                continue;
            };
            let Tuple { local, remote } = entry.tuple;
            match ground.config.is_own(local.ip()) {
                true => entry.route = ground.neighbors.route(remote.ip()),
                // Its RST takes the route that it had.
                false => {
                    entry.tcp.abort();
                    queue_dirty(&mut tcp.dirty, entry);
                }
            }
        }
    }

    /// How many connections a packet filter steers to NIC workers.
    pub fn flows_steered(&self) -> usize {
        self.ground.steering.as_ref().map_or(0, SteeringMap::flows)
    }

    /// Accepts QUIC connections to a UDP port of all addresses from now on.
    ///
    /// # Errors
    /// If the port has QUIC already, the settings leave nothing to negotiate, the preferred address
    /// is not the stack's, or the system provides no random numbers.
    pub fn serve_quic(
        &mut self,
        now_us: u64,
        listener: &QuicListener,
    ) -> Result<(), QuicListenError> {
        self.quic.listen(&mut self.ground, now_us, listener)
    }

    /// Traces existing and new QUIC connections until `tracer` reports its end, unless the trace is
    /// refused at once.
    pub fn trace_quic(
        &mut self,
        now_us: u64,
        wanted: QuicTraceWanted,
        tracer: Box<dyn QuicTracer>,
    ) {
        (self.quic).begin_trace(&mut self.ground, now_us, wanted, tracer);
    }

    /// Lets the tracer of QUIC connections flush; ends the trace if the receiver is gone.
    pub fn flush_quic_trace(&mut self) {
        self.quic.flush_trace();
    }

    /// QUIC connections from a place in their table on, as [`Stack::connections_from`] does for
    /// TCP.
    pub fn quic_connections_from(
        &self,
        place: usize,
    ) -> impl Iterator<Item = (usize, Option<QuicInfo<'_>>)> {
        self.quic.connections_from(&self.ground, place)
    }

    /// QUIC connections.
    pub fn quic_connections(&self) -> impl Iterator<Item = QuicInfo<'_>> {
        self.quic.connections(&self.ground)
    }
}
