//! Sessions in TCP mode, and those upgraded to another protocol.

use client_address::proxy_protocol;
use host::app::{Io, StreamId};
use host::splicing::SpliceEvent;

use super::{Phase, RESET, Session, Step};
use crate::answer::Refusal;
use crate::attempt::{Attempt, Opening, Reuse};
use crate::buffer::Buffer;
use crate::client_hello::{self, HELLO_BYTES_MAX, Hello};
use crate::forward::source_key;
use crate::joint::{Joint, Moved};
use crate::note::{Note, Outcome};
use crate::route;
use crate::shared::{Leave, Shared};

/// A session that has no backend yet.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) attempt: Attempt,
    pub(super) note: Note,
}

/// Two joined streams.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(super) attempt: Attempt,
    joint: Joint,
    note: Note,
    status: u16,
    /// The backend's name.
    name: Option<String>,
    /// Time of the join, in microseconds.
    since_us: u64,
}

impl Tunnel {
    pub(super) fn new(
        shared: &Shared,
        attempt: Attempt,
        joint: Joint,
        (note, status): (Note, u16),
    ) -> Self {
        let backend = attempt.backend(shared);
        Tunnel {
            attempt,
            joint,
            note,
            status,
            name: backend.map(|(name, _)| name),
            since_us: 0,
        }
    }

    pub(super) fn since_us(&self) -> u64 {
        self.since_us
    }

    /// Bytes moved in both directions.
    pub(super) fn bytes(&self) -> u64 {
        self.joint.copied_bytes()
    }

    pub(super) fn on_closed(&mut self, io: &mut dyn Io, stream: StreamId) {
        self.joint.on_closed(io, stream);
    }

    /// As [`Joint::memory_bytes`].
    pub(super) fn memory_bytes(&self) -> [usize; 2] {
        self.joint.memory_bytes()
    }

    pub(super) fn backend(&self) -> StreamId {
        self.joint.backend()
    }

    pub(super) fn on_peer_finished(&mut self, stream: StreamId) {
        self.joint.on_peer_finished(stream);
    }
}

/// Status of a session that ended in order, as in nginx's stream module.
const DONE: u16 = 200;

impl Session {
    /// Finds the pool, by the name in a ClientHello if there are rules.
    pub(super) fn read_hello(&mut self, io: &mut dyn Io, shared: &mut Shared) -> Step {
        let listener = &shared.config.listeners[self.listener];
        let mut pool = listener.pool;
        let mut name = None;
        if !listener.rules.is_empty() {
            self.input
                .fill(io, self.client, &mut shared.scratch, HELLO_BYTES_MAX);
            match client_hello::parse(self.input.bytes()) {
                Hello::Partial if !self.has_ended => return (Phase::Hello, false),
                Hello::Tls(Some(found)) => name = Some(route::canonical(&found)),
                Hello::Partial | Hello::Other | Hello::Tls(None) => {}
            }
            pool = route::find(&listener.rules, name.as_deref(), None).or(pool);
        }
        shared.counters.requests += 1;
        self.requests += 1;
        let config = shared.config.clone();
        let pool_name = pool.map(|pool| &*config.pools[pool].name);
        let note = Note::of_host(shared, io.now_us(), name.as_deref(), pool_name);
        let key = source_key(self.peer);
        let pool_number = pool.unwrap_or(usize::MAX);
        let attempt = Attempt::new(self.holder(), pool_number, key, Reuse::None);
        let opened = Opened { attempt, note };
        match pool {
            Some(_) => (Phase::Opening(Box::new(opened)), true),
            None => self.refuse_opening(io, shared, opened, Refusal::NoPool),
        }
    }

    pub(super) fn open(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut opened: Box<Opened>,
    ) -> Step {
        match opened.attempt.advance(io, shared) {
            Ok(Opening::Waits(time)) => {
                self.arm(io, time);
                (Phase::Opening(opened), false)
            }
            Ok(Opening::Still) => (Phase::Opening(opened), false),
            Ok(Opening::Established(link)) => {
                let mut up = Buffer::default();
                let pool = opened.attempt.pool().map(|pool| &shared.config.pools[pool]);
                if let Some(version) = pool.and_then(|pool| pool.send_proxy) {
                    let addresses = Some((self.peer, self.local));
                    proxy_protocol::build(version, addresses, up.tail());
                }
                up.tail().extend_from_slice(self.input.bytes());
                self.input.clear();
                shared.counters.tunnels += 1;
                shared.pools.on_success(link.backend);
                let joint = Joint::new((self.client, up), (link.stream, Buffer::default()));
                let Opened { attempt, note } = *opened;
                let tunnel = Tunnel::new(shared, attempt, joint, (note, DONE));
                self.join(io, shared, tunnel)
            }
            Err(why) => self.refuse_opening(io, shared, *opened, why),
        }
    }

    /// Begins a tunnel between two joined streams.
    pub(super) fn join(&mut self, io: &mut dyn Io, shared: &mut Shared, mut it: Tunnel) -> Step {
        if self.has_ended {
            it.on_peer_finished(self.client);
        }
        it.since_us = io.now_us();
        let timeout = shared.config.tunnel_timeout;
        if shared.config.splice {
            it.joint.may_splice(timeout);
        }
        self.arm_idle(io, timeout, Some(it.backend()));
        (Phase::Tunnel(Box::new(it)), true)
    }

    pub(super) fn tunnel(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut tunnel: Box<Tunnel>,
    ) -> Step {
        let moved = tunnel.joint.advance(io, &mut shared.scratch);
        self.on_moved(io, shared, &mut tunnel, moved);
        if !moved.is_over {
            match tunnel.joint.splice(io) {
                Some(Ok(())) => shared.counters.splices += 1,
                Some(Err(_)) => {
                    shared.counters.splices_refused += 1;
                    // Bytes left unread for the splice are copied.
                    return (Phase::Tunnel(tunnel), true);
                }
                None => {}
            }
            return (Phase::Tunnel(tunnel), false);
        }
        let mut attempt = self.end_tunnel(io, shared, *tunnel, false);
        attempt.leave(io, shared, Leave::Close);
        io.close(self.client);
        (Phase::Over, false)
    }

    /// Counts bytes moved through a tunnel.
    fn on_moved(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        tunnel: &mut Tunnel,
        moved: Moved,
    ) {
        shared.counters.bytes_in += moved.up;
        shared.counters.bytes_out += moved.down;
        if moved.up + moved.down > 0 {
            self.moved_us = io.now_us();
        }
        if moved.down > 0 {
            tunnel.note.on_first_byte(self.moved_us);
        }
    }

    /// Handles an event of a tunnel's splice.
    pub(super) fn on_splice(&mut self, io: &mut dyn Io, shared: &mut Shared, event: &SpliceEvent) {
        let mut tunnel = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Tunnel(tunnel) => tunnel,
            other => {
                self.phase = other;
                return;
            }
        };
        let moved = tunnel.joint.on_splice(event);
        shared.counters.spliced_bytes += moved.up + moved.down;
        self.on_moved(io, shared, &mut tunnel, moved);
        if let SpliceEvent::Returned { .. } = event {
            shared.counters.splices_returned += 1;
            let timeout = shared.config.tunnel_timeout;
            self.moved_us = io.now_us();
            self.arm_idle(io, timeout, Some(tunnel.backend()));
        }
        self.phase = Phase::Tunnel(tunnel);
    }

    /// Ends a tunnel before both of its streams have ended.
    pub(super) fn break_tunnel(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        tunnel: Tunnel,
        how: Leave,
    ) {
        self.end_tunnel(io, shared, tunnel, true)
            .leave(io, shared, how);
    }

    /// Logs a completed tunnel.
    pub(super) fn end_tunnel(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        tunnel: Tunnel,
        is_cut_short: bool,
    ) -> Attempt {
        let Tunnel {
            attempt,
            joint,
            note,
            status,
            name,
            since_us: _,
        } = tunnel;
        note.end(
            shared,
            io.now_us(),
            &Outcome {
                body_bytes: joint.down_bytes(),
                is_cut_short,
                backend: name.as_deref(),
                retries: attempt.retries(),
                ..self.outcome(io, status)
            },
        );
        attempt
    }

    /// Ends the client's connection, since there is no backend.
    pub(super) fn refuse_opening(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut opened: Opened,
        why: Refusal,
    ) -> Step {
        opened.attempt.leave(io, shared, Leave::Abort);
        shared.count_refusal(why);
        self.note_opening(io, shared, opened, why.status().as_u16());
        io.abort(self.client);
        RESET
    }

    pub(super) fn note_opening(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        opened: Opened,
        status: u16,
    ) {
        opened.note.end(
            shared,
            io.now_us(),
            &Outcome {
                is_cut_short: true,
                retries: opened.attempt.retries(),
                ..self.outcome(io, status)
            },
        );
    }
}
