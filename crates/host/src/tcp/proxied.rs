//! Connections that trusted proxies pass on, by a header of the PROXY protocol.
//!
//! The header comes before everything else, also before TLS, so the stack reads it. Until it is
//! there, the connection counts as silent, its bytes stay in TCP's buffer, and its application does
//! not know it. Then TLS begins, or the application accepts the connection with the client's
//! address, which from then on is its source.

use std::time::Duration;

use client_address::proxy_protocol::{self, HEADER_BYTES_MAX};
use tcp::ConnectionEvent;

use super::TcpLayer;
use crate::app::Proxied;
use crate::ground::Ground;
use crate::tables::connections::{ConnectionHandle, Entry, ProxyHeader};
use crate::tables::sources::Source;
use crate::tables::tuple::Tuple;

/// How long the header of a connection is awaited, if it begins with one.
pub(crate) fn header_timeout(ground: &Ground, tuple: &Tuple) -> Option<Duration> {
    let Tuple { local, remote } = tuple;
    (ground.proxies).header_timeout(local.port(), remote.ip())
}

impl TcpLayer {
    /// Begins to wait for the header of a new connection.
    pub(crate) fn expect_header(
        &mut self,
        now_us: u64,
        handle: ConnectionHandle,
        timeout: Duration,
    ) {
        if let Some(entry) = self.connections.get_mut(handle) {
            entry.header = ProxyHeader::Awaited;
            entry.is_deferred = true;
            entry.app_deadline_us = Some(now_us.saturating_add(timeout.as_micros() as u64));
        }
    }

    /// Reads the header of a connection that waits for one, once the header is complete. To be
    /// called before the connection's events are taken: `Readable` is still to come, for the bytes
    /// behind the header.
    #[cold]
    pub(crate) fn read_header(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        handle: ConnectionHandle,
    ) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        let mut bytes = [0; HEADER_BYTES_MAX];
        let count = entry.tcp.peek(&mut bytes);
        match proxy_protocol::parse(&bytes[..count]) {
            Ok(None) => {}
            Ok(Some(header)) => {
                entry.tcp.read(&mut bytes[..header.bytes]);
                let named = header.addresses;
                let named = named.map(|(client, local)| Proxied { client, local });
                self.on_header(ground, now_us, handle, named);
            }
            Err(_) => self.miss_header(ground, now_us, handle),
        }
    }

    /// The header has named the client, unless the connection is the proxy's own.
    fn on_header(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        handle: ConnectionHandle,
        named: Option<Proxied>,
    ) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        let before = entry.source();
        entry.header = ProxyHeader::Done;
        entry.proxied = named.map(Box::new);
        let after = entry.source();
        if ground.refuses_client(now_us, after) {
            refuse(entry);
            entry.tcp.abort();
            return self.mark_dirty(handle);
        }
        if Source::from(before) != Source::from(after) {
            if ground.sources.is_exhausted(after) {
                refuse(entry);
                entry.tcp.abort();
                self.gate.on_source_exhausted(ground, now_us, after);
                return self.mark_dirty(handle);
            }
            ground.sources.remove(before);
            ground.sources.add(after);
        }
        let port = entry.tuple.local.port();
        let tls = self.tls_layer(now_us, port);
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        match tls {
            // The application accepts it with the next event.
            Ok(None) => {}
            Ok(tls) => {
                entry.tls = tls;
                entry.is_deferred = false;
                entry.app_deadline_us = None;
            }
            Err(error) => {
                tracing::error!(%error, "no TLS for a new connection: it is reset");
                refuse(entry);
                entry.tcp.abort();
            }
        }
    }

    /// Takes the events of a connection that waits for its header, or is refused.
    #[cold]
    pub(crate) fn await_header(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        handle: ConnectionHandle,
    ) {
        while let Some(entry) = self.connections.get_mut(handle)
            && let Some(event) = entry.tcp.poll_event()
        {
            match event {
                ConnectionEvent::PeerFinished if entry.awaits_header() => {
                    self.miss_header(ground, now_us, handle);
                }
                ConnectionEvent::Closed { reason } => {
                    self.on_closed(ground, now_us, handle, reason);
                }
                ConnectionEvent::Connected
                | ConnectionEvent::Readable
                | ConnectionEvent::PeerFinished
                | ConnectionEvent::Writable
                | ConnectionEvent::Drained
                | ConnectionEvent::Released { .. } => {}
            }
        }
    }

    /// There is no header, or it has not come in time: the connection is reset. One that ends
    /// without a byte is a health check.
    pub(crate) fn miss_header(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        handle: ConnectionHandle,
    ) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        refuse(entry);
        let is_over = entry.tcp.state() == tcp::State::CloseWait;
        if is_over && entry.tcp.unread_bytes() == 0 {
            entry.tcp.close();
            return self.mark_dirty(handle);
        }
        ground.counters.proxy_headers_invalid += 1;
        let peer = entry.tuple.remote;
        entry.tcp.abort();
        if self.gate.bad_header.begins(now_us) {
            tracing::warn!(
                %peer,
                port = entry.tuple.local.port(),
                "a connection of a trusted proxy does not begin with a header of the PROXY \
                 protocol: it is reset; later ones are only counted"
            );
        }
        self.mark_dirty(handle);
    }
}

/// The connection stays unknown to its application.
fn refuse(entry: &mut Entry) {
    entry.header = ProxyHeader::Refused;
    entry.is_deferred = false;
    entry.app_deadline_us = None;
}
