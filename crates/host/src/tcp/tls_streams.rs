//! Connections that speak TLS: which do, their events for applications, and their failures.

use std::sync::Arc;

use tcp::ConnectionEvent;
use tls::Event;

use crate::app::{AppEvent, Application};
use crate::ground::Ground;
use crate::tables::connections::{ConnectionHandle, Entry};
use crate::tcp::TcpLayer;
use crate::tls_layer::{TlsEvent, TlsLayer};

impl TcpLayer {
    /// Makes connections to this port speak TLS from now on. Ports that are not in
    /// [`StackConfig::listen_ports`](crate::StackConfig::listen_ports) are accepted as well.
    pub(crate) fn serve_tls(&mut self, ground: &mut Ground, port: u16, config: Arc<tls::Config>) {
        self.serve_port(ground, port);
        self.terminate_tls(ground, port, config);
    }

    /// Makes connections to this port speak TLS from now on, for any application.
    pub(crate) fn terminate_tls(&mut self, ground: &Ground, port: u16, config: Arc<tls::Config>) {
        config.set_unix_time(ground.unix_time);
        self.tls_listeners.retain(|&(other, _)| other != port);
        self.tls_listeners.push((port, config));
    }

    /// True if connections to this port speak TLS, or spoke it before they ended.
    pub(crate) fn is_for_tls(&self, port: u16) -> bool {
        self.tls_listeners.iter().any(|&(other, _)| other == port)
    }

    /// The TLS layer of a connection to this port, if it has one.
    ///
    /// # Errors
    /// If the system gives no random numbers.
    pub(crate) fn tls_layer(
        &self,
        now_us: u64,
        port: u16,
    ) -> Result<Option<Box<TlsLayer>>, tls::Error> {
        let mut listeners = self.tls_listeners.iter();
        let Some((_, config)) = listeners.find(|&&(other, _)| other == port) else {
            return Ok(None);
        };
        let layer = TlsLayer::new(Arc::clone(config), now_us)?;
        Ok(Some(Box::new(layer)))
    }

    /// True if serving the connection may include a step of its TLS handshake.
    #[inline]
    pub(crate) fn in_tls_handshake(&self, handle: ConnectionHandle) -> bool {
        let entry = || self.connections.get(handle);
        !self.tls_listeners.is_empty() && entry().is_some_and(Entry::in_tls_handshake)
    }

    /// True if the connection waits for its header of the PROXY protocol.
    #[inline]
    pub(crate) fn awaits_header(&self, handle: ConnectionHandle) -> bool {
        let entry = self.connections.get(handle);
        entry.is_some_and(Entry::awaits_header)
    }

    /// The next event of TLS, or else of TCP. Each event of TCP goes through TLS before the next
    /// one.
    pub(crate) fn next_tls_event<A: Application>(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        handle: ConnectionHandle,
        app: &mut A,
    ) -> Option<AppEvent> {
        loop {
            let entry = self.connections.get_mut(handle)?;
            let tls = entry.tls.as_mut()?;
            match tls.connection.poll_event() {
                Some(Event::Connected(agreed)) => {
                    entry.told = true;
                    if !std::mem::replace(&mut entry.heard, true) {
                        self.gate.on_heard(entry.unheard.take());
                    }
                    ground.counters.connections_accepted += 1;
                    ground.counters.tls_handshakes += 1;
                    ground.counters.tls_handshakes_resumed += u64::from(agreed.is_resumed);
                    return Some(AppEvent::Accepted {
                        peer: entry.tuple.remote,
                        proxied: entry.proxied.clone(),
                        tls: Some(Box::new(agreed)),
                    });
                }
                Some(Event::PeerFinished { .. }) => {
                    tls.on_peer_finished();
                    continue;
                }
                Some(Event::Failed(error)) => {
                    tracing::debug!(peer = %entry.tuple.remote, %error, "TLS has failed");
                    // Port scans and health checks connect and close.
                    let is_error = error != tls::Error::ClosedInHandshake;
                    ground.counters.tls_failed += u64::from(is_error);
                    if let tls::Error::PlainHttp { is_head } = error {
                        let response = app.on_plain_http(ground.unix_time, is_head);
                        if !response.is_empty() {
                            tls.connection.answer_plain_http(response);
                        }
                    }
                    tls.on_failed(&mut entry.tcp, now_us, &error);
                    continue;
                }
                None => {}
            }
            match tls.take_event() {
                Some(TlsEvent::Readable) => return Some(AppEvent::Readable),
                Some(TlsEvent::PeerFinished) => return Some(AppEvent::PeerFinished),
                Some(TlsEvent::Writable) => return Some(AppEvent::Writable),
                None => {}
            }
            match entry.tcp.poll_event()? {
                ConnectionEvent::Readable => tls.take_in(&mut entry.tcp, now_us),
                ConnectionEvent::PeerFinished => tls.on_fin(&mut entry.tcp, now_us),
                ConnectionEvent::Drained if tls.is_drained() => {
                    return Some(AppEvent::Drained);
                }
                ConnectionEvent::Closed { reason } => {
                    return self.on_closed(ground, now_us, handle, reason);
                }
                ConnectionEvent::Connected
                | ConnectionEvent::Writable
                | ConnectionEvent::Drained
                // Files are released with the records that contain them.
                | ConnectionEvent::Released { .. } => {}
            }
        }
    }
}
