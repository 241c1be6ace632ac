//! State of one application.

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

/// Shared resources that a turn of an application uses.
pub(crate) struct Context<'a> {
    pub(crate) io: &'a mut dyn Io,
    pub(crate) places: &'a mut Places,
    pub(crate) counters: &'a mut Counters,
    pub(crate) arrivals: &'a mut Arrivals,
    pub(crate) waker: Option<&'a Waker>,
    pub(crate) clock: Clock,
    pub(crate) spent: &'a mut Spent,
}

/// Channel of one process.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) id: ChannelId,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) end: HostEnd,
    /// Its broker is gone, and its process has not reattached to a broker that would report its
    /// end.
    pub(crate) is_orphaned: bool,
    /// Position in the ring up to which commands must be taken before waiting ends are handled.
    mark: Option<u64>,
    /// No further command is taken in this turn.
    pub(crate) is_done: bool,
    outbox: Outbox,
}

/// Number of answers waiting for room at which no more commands are taken.
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

    /// Reports whether a command may be taken: its answer has room in the ring or, while ends wait
    /// for earlier commands, in the outbox.
    pub(crate) fn may_answer(&mut self) -> bool {
        self.outbox.has_room(&mut self.end)
            || self.mark.is_some() && self.outbox.unsent() < UNSENT_MAX
    }

    /// Makes ends wait for the commands that the process has sent until now.
    pub(crate) fn set_mark(&mut self) {
        let end = self.end.published();
        self.mark = (!self.end.has_read_to(end)).then_some(end);
    }

    /// Clears the mark once a command up to it was taken.
    pub(crate) fn on_taken(&mut self) {
        if self.mark.is_some_and(|end| self.end.has_read_to(end)) {
            self.mark = None;
        }
    }

    /// Clears the mark: no further command can be taken now.
    pub(crate) fn on_none_left(&mut self) {
        self.mark = None;
    }

    /// Reports whether no end waits for commands of this process.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.mark.is_none()
    }

    /// Sends an answer as soon as there is room.
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

    /// Sends waiting answers, and wakes the process if it sleeps.
    pub(crate) fn flush(&mut self, counters: &mut Counters) {
        if self.outbox.flush(&mut self.end) {
            counters.events += 1;
        }
    }
}

/// The host's end of an application's descriptor.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Hangs up when the last copy of the application's end is closed; watched as long as this is
    /// open. `None` in a simulation.
    _fd: Option<OwnedFd>,
    /// Process to which it was given.
    pub(crate) channel: ChannelId,
    pub(crate) socket: Option<SocketId>,
    /// Its process has reused it: another process's copy of the descriptor may be of a socket
    /// before this one.
    pub(crate) is_private: bool,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) id: AppId,
    pub(crate) uid: u32,
    pub(crate) grant: Grant,
    pub(crate) identity: Identity,
    segment: Segment,
    /// Maximum number of sockets at a time; each is promised FIFOs.
    pub(crate) places: usize,
    pub(crate) area: FifoArea,
    pub(crate) sockets: Slab<Socket>,
    /// Last generation of each place.
    generations: Vec<u32>,
    pub(crate) handles: HashMap<HandleId, Handle>,
    /// Number of handles given to each process; absent if none.
    pub(crate) handles_of: HashMap<ChannelId, usize>,
    pub(crate) next_handle: HandleId,
    /// Closed handles that were not reported to a broker.
    pub(crate) unreported_handles: u32,
    pub(crate) channels: Vec<Channel>,
    /// Channel whose commands come first in the next turn.
    pub(crate) first: usize,
    pub(crate) listeners: Vec<SocketId>,
    /// Free places at the last announcement of all listeners' room.
    pub(crate) announced_places: usize,
    /// The log has reported that all its sockets are in use.
    pub(crate) is_out_of_places_logged: bool,
    /// The log has reported a source with its share.
    pub(crate) is_source_logged: bool,
    /// Accepted connections, by source.
    pub(crate) sources: Sources,
    /// Place of the next socket whose FIFOs may be taken back.
    pub(crate) hand: usize,
    pub(crate) files: u32,
    /// The log has reported that it has bound its maximum of addresses.
    pub(crate) is_full_logged: bool,
    pub(crate) passed: Passed,
    /// Sockets that are connected or connecting.
    pub(crate) connections: usize,
    /// Connections that listeners hold until AcceptNext.
    pub(crate) held_connections: usize,
    pub(crate) traffic: Traffic,
    /// Sockets whose hints are still to be sent.
    pub(crate) changed: Vec<SocketId>,
    /// Removed sockets, and the processes that wait for a hint.
    pub(crate) retired: Vec<(SocketId, Wanted)>,
    /// Connections taken out of an accept queue that no process has given a handle; with the time,
    /// in microseconds, until which adoption is still possible once a process has ended.
    pub(crate) unadopted: HashMap<SocketId, Option<u64>>,
    /// Streams with a counted mark that has not arrived; with the time, in microseconds, until
    /// which a process may still send it.
    pub(crate) unmarked: HashMap<SocketId, u64>,
    /// Search for effects of ended processes that no command announced.
    pub(crate) search: Search,
    pub(crate) endings: Endings,
    /// Microseconds that its commands took in recent turns, decaying.
    pub(crate) load_us: u64,
    /// Turns in which it has used up its share.
    pub(crate) turns_used_up: u64,
    /// Buffer between TCP and a FIFO.
    pub(crate) step: Vec<u8>,
    /// It is no longer served.
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

    /// Returns its identity at the stack.
    pub(crate) fn owner(&self) -> Owner {
        Owner(self.id.0)
    }

    /// Reports whether nothing is left of the application.
    pub(crate) fn is_over(&self) -> bool {
        let is_closed =
            self.channels.is_empty() && self.handles.is_empty() && self.sockets.is_empty();
        // Remaining connections may have to retransmit from its files.
        is_closed && self.passed.is_empty()
    }

    /// Returns the bytes of its segment that FIFOs occupy.
    pub(crate) fn fifo_bytes(&self) -> u64 {
        self.area.bytes() - self.area.free_bytes()
    }

    pub(crate) fn add_handle(&mut self, handle: HandleId, channel: ChannelId, fd: Option<OwnedFd>) {
        let handle_of = Handle {
            _fd: fd,
            channel,
            socket: None,
            is_private: false,
        };
        *self.handles_of.entry(channel).or_default() += 1;
        if let Some(replaced) = self.handles.insert(handle, handle_of) {
            self.count_closed(replaced.channel);
        }
        // The broker's numbering wraps to 0.
        self.next_handle = HandleId(handle.0.checked_add(1).unwrap_or(0));
    }

    /// Counts a closed handle of a process.
    pub(crate) fn count_closed(&mut self, channel: ChannelId) {
        self.unreported_handles += 1;
        if let Entry::Occupied(mut handles) = self.handles_of.entry(channel) {
            *handles.get_mut() -= 1;
            if *handles.get() == 0 {
                handles.remove();
            }
        }
    }

    /// Adds handles, and watches them for hang-ups.
    pub(crate) fn add_handles(&mut self, waker: Option<&Waker>, new: NewHandles) {
        let channel = new.channel;
        for (fd, number) in new.descriptors.into_iter().zip(new.first.0..) {
            let handle = HandleId(number);
            let watched = waker.map(|waker| waker.add_handle(fd.as_fd(), self.id, handle));
            if let Some(Err(error)) = watched {
                // The descriptor closes, so the application's end hangs up.
                tracing::warn!(%error, "a descriptor of an application is not watched");
                self.unreported_handles += 1;
                continue;
            }
            self.add_handle(handle, channel, Some(fd));
        }
    }

    /// Returns the number of its processes' descriptors that are known to be open.
    pub(crate) fn handles(&self) -> usize {
        self.handles.len()
    }

    /// Returns the channel of this number.
    pub(crate) fn channel(&mut self, id: ChannelId) -> Option<&mut Channel> {
        self.channels.iter_mut().find(|channel| channel.id == id)
    }

    /// Reports whether a handle exists and has no socket.
    pub(crate) fn is_free(&mut self, cx: &mut Context<'_>, handle: HandleId) -> bool {
        let found = self.handle(cx, handle);
        found.is_some_and(|found| found.socket.is_none())
    }

    /// Returns a handle, including one that the broker has just made and not yet announced.
    pub(crate) fn handle(&mut self, cx: &mut Context<'_>, handle: HandleId) -> Option<&Handle> {
        if !self.handles.contains_key(&handle) {
            for new in cx.arrivals.take_handles(self.id) {
                self.add_handles(cx.waker, new);
            }
        }
        self.handles.get(&handle)
    }

    /// Binds a socket's lifetime to a handle.
    pub(crate) fn take_handle(&mut self, handle: HandleId, socket: SocketId) {
        if let Some(found) = self.handles.get_mut(&handle) {
            found.socket = Some(socket);
        }
    }

    pub(crate) fn socket(&mut self, id: SocketId) -> Option<&mut Socket> {
        let found = self.sockets.get_mut(id.index as usize)?;
        (found.id() == id).then_some(found)
    }

    /// Returns a socket's stream, if the socket is a connection.
    pub(crate) fn stream(&mut self, id: SocketId) -> Option<&mut Stream> {
        self.socket(id)?.stream_mut()
    }

    /// Returns the number of places that have ever been used.
    pub(crate) fn sockets_ever(&self) -> usize {
        self.generations.len()
    }

    /// Reports whether a mode, one of the `MODE_` numbers of [`socket_channel::attach`], is on.
    pub(crate) fn has_mode(&self, mode: u32) -> bool {
        self.identity.modes & mode != 0
    }

    /// Returns the number of sockets that may still be made.
    pub(crate) fn places_left(&self) -> usize {
        let has = self.sockets.len() + self.held_connections;
        self.places.saturating_sub(has)
    }

    /// Makes a socket without FIFOs; `None` if all places are taken.
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

    /// Removes a socket; its ID becomes invalid.
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

    /// Removes a socket from the listeners.
    pub(crate) fn forget_listener(&mut self, id: SocketId) {
        self.listeners.retain(|listener| *listener != id);
    }

    /// Marks a socket as changed: hints go out at the end of the turn.
    pub(crate) fn touch(&mut self, id: SocketId) {
        if let Some(socket) = self.socket(id)
            && !std::mem::replace(&mut socket.is_changed, true)
        {
            self.changed.push(id);
        }
    }
}
