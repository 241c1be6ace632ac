//! One application: what it holds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, OwnedFd};

use host::app::{Io, Owner};
use slab::Slab;
use socket_channel::channel::HostEnd;
use socket_channel::fifo_area::FifoArea;
use socket_channel::outbox::Outbox;
use socket_channel::record::Wanted;
use socket_channel::{AppId, ChannelId, Event, Flags, HandleId, HostRecord, Segment, SocketId};

use crate::broker::{Arrivals, First, Identity, NewHandles};
use crate::budget::{Clock, Spent};
use crate::counters::{Counters, Traffic};
use crate::endings::Endings;
use crate::grant::Grant;
use crate::place::Places;
use crate::state::area;
use crate::state::passed::Passed;
use crate::state::search::Search;
use crate::state::socket::{Kind, Socket};
use crate::state::sources::Sources;
use crate::state::stream::Stream;
use crate::waker::Waker;

/// What a turn of an application may use besides itself.
pub(crate) struct Context<'a> {
    pub(crate) io: &'a mut dyn Io,
    pub(crate) places: &'a mut Places,
    pub(crate) counters: &'a mut Counters,
    pub(crate) arrivals: &'a mut Arrivals,
    pub(crate) waker: Option<&'a Waker>,
    pub(crate) clock: Clock,
    pub(crate) spent: &'a mut Spent,
}

/// The channel of one process.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) id: ChannelId,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) end: HostEnd,
    /// The broker that has brought it is gone, and its process has not come to another one, which
    /// would report its end.
    pub(crate) is_orphaned: bool,
    /// Ends wait until the commands before this have been taken.
    mark: Option<u64>,
    /// Nothing more is to be taken in this turn.
    pub(crate) is_done: bool,
    outbox: Outbox,
}

/// Answers that may wait for room; with as many, no more commands are taken.
const UNSENT_MAX: usize = 4096;

impl Channel {
    pub(crate) fn new(id: ChannelId, pid: u32, uid: u32, end: HostEnd) -> Channel {
        Channel {
            id,
            pid,
            uid,
            end,
            is_orphaned: false,
            mark: None,
            is_done: false,
            outbox: Outbox::default(),
        }
    }

    /// True if a command may be taken: its answer finds room, if only to wait for room in the ring
    /// while ends wait for the commands before them.
    pub(crate) fn may_answer(&mut self) -> bool {
        self.outbox.has_room(&mut self.end)
            || self.mark.is_some() && self.outbox.unsent() < UNSENT_MAX
    }

    /// Ends wait for the commands that the process has sent until now.
    pub(crate) fn set_mark(&mut self) {
        let end = self.end.published();
        self.mark = (!self.end.has_read_to(end)).then_some(end);
    }

    /// A command was taken.
    pub(crate) fn on_taken(&mut self) {
        if self.mark.is_some_and(|end| self.end.has_read_to(end)) {
            self.mark = None;
        }
    }

    /// No further command can be taken now: no end waits for any.
    pub(crate) fn on_none_left(&mut self) {
        self.mark = None;
    }

    /// True if no end waits for commands of this process.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.mark.is_none()
    }

    /// Answers, as soon as there is room.
    pub(crate) fn answer(&mut self, event: Event) {
        self.outbox.answer(&mut self.end, event);
    }

    pub(crate) fn hint(&mut self, event: &Event, counters: &mut Counters) {
        if self.outbox.hint(&mut self.end, event) {
            counters.events += 1;
        } else {
            counters.hints_lost += 1;
        }
    }

    /// Sends what has been waiting, and wakes the process if it sleeps.
    pub(crate) fn flush(&mut self, counters: &mut Counters) {
        if self.outbox.flush(&mut self.end) {
            counters.events += 1;
        }
    }
}

/// A descriptor of the application, seen from its other end.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Hangs up when the last copy is closed, and is watched until this is. `None` in a simulation.
    _fd: Option<OwnedFd>,
    /// The process that it was given to.
    pub(crate) channel: ChannelId,
    pub(crate) socket: Option<SocketId>,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) id: AppId,
    pub(crate) uid: u32,
    pub(crate) grant: Grant,
    pub(crate) identity: Identity,
    segment: Segment,
    /// Maximum sockets at a time; FIFOs are promised for each.
    pub(crate) places: usize,
    pub(crate) area: FifoArea,
    pub(crate) sockets: Slab<Socket>,
    /// The last generation of each place.
    generations: Vec<u32>,
    pub(crate) handles: HashMap<HandleId, Handle>,
    /// How many of them were given to each process, if any.
    pub(crate) handles_of: HashMap<ChannelId, usize>,
    pub(crate) next_handle: HandleId,
    /// Handles closed that no broker knows of.
    pub(crate) unreported_handles: u32,
    pub(crate) channels: Vec<Channel>,
    /// The channel whose commands come first in the next turn.
    pub(crate) first: usize,
    pub(crate) listeners: Vec<SocketId>,
    /// Places that were left when the stack last heard of the room of all listeners.
    pub(crate) announced_places: usize,
    /// A log line has reported that all its sockets are in use.
    pub(crate) is_out_of_places_logged: bool,
    /// A log line has reported a source with its share.
    pub(crate) is_source_logged: bool,
    /// Accepted connections, by source.
    pub(crate) sources: Sources,
    /// The place of the next socket whose FIFOs may be taken back.
    pub(crate) hand: usize,
    pub(crate) files: u32,
    /// The log says already that it has bound as many addresses as it may.
    pub(crate) is_full_logged: bool,
    pub(crate) passed: Passed,
    /// Sockets that are connections, or are being connected.
    pub(crate) connections: usize,
    /// Connections that listeners hold until they are asked for.
    pub(crate) held_connections: usize,
    pub(crate) traffic: Traffic,
    /// Sockets whose hints are still to be sent.
    pub(crate) changed: Vec<SocketId>,
    /// Sockets that are gone, and who waits for them.
    pub(crate) retired: Vec<(SocketId, Wanted)>,
    /// Connections that were taken out of an accept queue, and to which no process has given a
    /// handle; and until when, in microseconds, one that has ended may have been about to.
    pub(crate) unadopted: HashMap<SocketId, Option<u64>>,
    /// Streams of which a mark was counted that has not come, and until when, in microseconds, a
    /// process may be about to send it.
    pub(crate) unmarked: HashMap<SocketId, u64>,
    /// Of what processes that have ended did without a word.
    pub(crate) search: Search,
    pub(crate) endings: Endings,
    /// Microseconds that its commands have taken of the last turns, the latest counting most.
    pub(crate) load_us: u64,
    /// Turns of which it has used up its share.
    pub(crate) turns_used_up: u64,
    /// Where bytes are on their way from TCP to a FIFO.
    pub(crate) step: Vec<u8>,
    /// It is served no more.
    pub(crate) is_detached: bool,
}

impl App {
    pub(crate) fn new(id: AppId, uid: u32, first: First) -> App {
        let First {
            grant,
            segment,
            identity,
        } = first;
        let sockets_max = grant.sockets_max.min(segment.layout().sockets_max());
        let (area, places) = area::area_for(segment.layout(), sockets_max);
        App {
            id,
            uid,
            places,
            area,
            segment,
            grant,
            identity,
            sockets: Slab::new(),
            generations: Vec::new(),
            handles: HashMap::new(),
            handles_of: HashMap::new(),
            next_handle: HandleId(0),
            unreported_handles: 0,
            channels: Vec::new(),
            first: 0,
            listeners: Vec::new(),
            announced_places: usize::MAX,
            is_out_of_places_logged: false,
            is_source_logged: false,
            sources: Sources::default(),
            hand: 0,
            files: 0,
            is_full_logged: false,
            passed: Passed::new(id),
            connections: 0,
            held_connections: 0,
            traffic: Traffic::default(),
            changed: Vec::new(),
            retired: Vec::new(),
            unadopted: HashMap::new(),
            unmarked: HashMap::new(),
            search: Search::default(),
            endings: Endings::default(),
            load_us: 0,
            turns_used_up: 0,
            step: Vec::new(),
            is_detached: false,
        }
    }

    /// What the stack knows it by.
    pub(crate) fn owner(&self) -> Owner {
        Owner(self.id.0)
    }

    /// True if nothing of it is left.
    pub(crate) fn is_over(&self) -> bool {
        let is_closed =
            self.channels.is_empty() && self.handles.is_empty() && self.sockets.is_empty();
        // Connections that it has left may have to send of its files again.
        is_closed && self.passed.is_empty()
    }

    /// Memory of its segment that FIFOs have, in bytes.
    pub(crate) fn fifo_bytes(&self) -> u64 {
        self.area.bytes() - self.area.free_bytes()
    }

    pub(crate) fn add_handle(&mut self, handle: HandleId, channel: ChannelId, fd: Option<OwnedFd>) {
        let handle_of = Handle {
            _fd: fd,
            channel,
            socket: None,
        };
        *self.handles_of.entry(channel).or_default() += 1;
        if let Some(replaced) = self.handles.insert(handle, handle_of) {
            self.count_closed(replaced.channel);
        }
        // As the broker numbers them: from 0 again when there are no more.
        self.next_handle = HandleId(handle.0.checked_add(1).unwrap_or(0));
    }

    /// A handle that was given to this process is closed.
    pub(crate) fn count_closed(&mut self, channel: ChannelId) {
        self.unreported_handles += 1;
        if let Entry::Occupied(mut handles) = self.handles_of.entry(channel) {
            *handles.get_mut() -= 1;
            if *handles.get() == 0 {
                handles.remove();
            }
        }
    }

    /// Adds handles, and has their hang-ups noticed.
    pub(crate) fn add_handles(&mut self, waker: Option<&Waker>, new: NewHandles) {
        let channel = new.channel;
        for (fd, number) in new.descriptors.into_iter().zip(new.first.0..) {
            let handle = HandleId(number);
            let watched = waker.map(|waker| waker.add_handle(fd.as_fd(), self.id, handle));
            if let Some(Err(error)) = watched {
                // The descriptor closes, so that the application sees its own hang up.
                tracing::warn!(%error, "a descriptor of an application is not watched");
                self.unreported_handles += 1;
                continue;
            }
            self.add_handle(handle, channel, Some(fd));
        }
    }

    /// Descriptors of its processes that are open, as far as is known.
    pub(crate) fn handles(&self) -> usize {
        self.handles.len()
    }

    /// The channel of this number.
    pub(crate) fn channel(&mut self, id: ChannelId) -> Option<&mut Channel> {
        self.channels.iter_mut().find(|channel| channel.id == id)
    }

    /// True for a handle that no socket has.
    pub(crate) fn is_free(&mut self, cx: &mut Context<'_>, handle: HandleId) -> bool {
        let found = self.handle(cx, handle);
        found.is_some_and(|found| found.socket.is_none())
    }

    /// A handle, including one that the broker has just made and not yet announced.
    pub(crate) fn handle(&mut self, cx: &mut Context<'_>, handle: HandleId) -> Option<&Handle> {
        if !self.handles.contains_key(&handle) {
            for new in cx.arrivals.take_handles(self.id) {
                self.add_handles(cx.waker, new);
            }
        }
        self.handles.get(&handle)
    }

    /// Binds a socket's life to a handle.
    pub(crate) fn take_handle(&mut self, handle: HandleId, socket: SocketId) {
        if let Some(found) = self.handles.get_mut(&handle) {
            found.socket = Some(socket);
        }
    }

    pub(crate) fn socket(&mut self, id: SocketId) -> Option<&mut Socket> {
        let found = self.sockets.get_mut(id.index as usize)?;
        (found.id() == id).then_some(found)
    }

    /// A socket's stream, if it is one that has any.
    pub(crate) fn stream(&mut self, id: SocketId) -> Option<&mut Stream> {
        self.socket(id)?.stream_mut()
    }

    /// Places that sockets have, or have had.
    pub(crate) fn sockets_ever(&self) -> usize {
        self.generations.len()
    }

    /// True if it is served in a mode, one of the `MODE_` numbers of [`socket_channel::attach`].
    pub(crate) fn has_mode(&self, mode: u32) -> bool {
        self.identity.modes & mode != 0
    }

    /// Sockets that may still be made.
    pub(crate) fn places_left(&self) -> usize {
        let has = self.sockets.len() + self.held_connections;
        self.places.saturating_sub(has)
    }

    /// Makes a socket, without FIFOs; `None` if there are as many as there may be.
    pub(crate) fn insert(
        &mut self,
        flags: Flags,
        handle: Option<HandleId>,
        kind: Kind,
        counters: &mut Counters,
    ) -> Option<SocketId> {
        if self.places_left() == 0 {
            return None;
        }
        if matches!(kind, Kind::Stream(_)) {
            self.connections += 1;
        }
        let place = self.sockets.vacant_entry();
        let index = place.key();
        if self.generations.len() <= index {
            self.generations.resize(index + 1, 0);
        }
        let id = SocketId {
            index: index as u32,
            generation: self.generations[index],
        };
        let id = id.next_generation();
        self.generations[index] = id.generation;
        let record = HostRecord::new(&self.segment, id, flags, None, None);
        place.insert(Socket::new(record, handle, kind));
        if let Some(handle) = handle {
            self.take_handle(handle, id);
        }
        counters.sockets += 1;
        Some(id)
    }

    /// Forgets a socket: its name means nothing any more.
    pub(crate) fn remove(&mut self, id: SocketId, counters: &mut Counters) {
        if self.socket(id).is_none() {
            return;
        }
        let mut socket = self.sockets.remove(id.index as usize);
        match &mut socket.kind {
            Kind::Listener(_) => self.forget_listener(id),
            Kind::File(_) => self.files -= 1,
            Kind::Stream(stream) => {
                self.connections -= 1;
                self.sources.free(stream.source);
                self.note_closed(id, stream.current.take());
            }
            Kind::Unconnected(_) => {}
        }
        self.unadopted.remove(&id);
        let retired = socket.record.retire();
        self.release_fifos(retired.blocks);
        self.retired.push((id, retired.wanted));
        counters.sockets -= 1;
        if self.sockets.is_empty() {
            self.sockets.shrink_to_fit();
        }
    }

    /// A socket listens no more.
    pub(crate) fn forget_listener(&mut self, id: SocketId) {
        self.listeners.retain(|listener| *listener != id);
    }

    /// A record has changed: hints go out at the end of the turn.
    pub(crate) fn touch(&mut self, id: SocketId) {
        if let Some(socket) = self.socket(id)
            && !std::mem::replace(&mut socket.is_changed, true)
        {
            self.changed.push(id);
        }
    }
}
