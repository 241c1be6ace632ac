//! Turns of an application: commands in, hints out; and the ends of its processes.

use rustix::io::Errno;
use socket_channel::channel::ReceiveError;
use socket_channel::record::Wanted;
use socket_channel::{ChannelId, Event, Flags, HandleId, SocketId};

use crate::application::{App, Channel, Context};
use crate::budget::{Budget, load_after};
use crate::commands::Outcome;
use crate::counters::Counters;
use crate::endings::Ending;
use crate::grant::Grant;
use crate::state::socket::{Kind, Socket};
use crate::waker::{Waker, Woken};

/// Most commands taken from one process before others get their turn.
const COMMANDS_IN_A_ROW_MAX: u32 = 16;

/// Time within which a process adopts a connection that it has taken out of an accept queue, in
/// microseconds; later, the process must have ended.
const ADOPTION_US_MAX: u64 = 1_000_000;

/// Most sockets that a turn examines because processes have ended.
const SEARCHED_MAX: usize = 256;

/// Result of taking commands from one process.
enum Taken {
    /// Commands were taken, and there may be more.
    Some,
    /// No more commands can be taken; `any` if some were.
    All { any: bool },
    /// The ring is corrupt.
    Corrupt,
}

impl App {
    /// Closes a handle: its last copy is closed, or the application has requested it.
    pub(crate) fn close_handle(&mut self, cx: &mut Context<'_>, handle: HandleId) {
        let Some(closed) = self.handles.remove(&handle) else {
            return;
        };
        self.count_closed(closed.channel);
        if let Some(id) = closed.socket {
            if let Some(socket) = self.socket(id) {
                socket.handle = None;
            }
            self.close(cx, id);
        }
    }

    /// Closes sockets whose last descriptor was already closed, after an address was found in use
    /// or the listeners' limit reached: the command was faster than the hang-up. True if there were
    /// any. Connections have to wait for commands of other processes.
    pub(crate) fn close_hung_up(&mut self, cx: &mut Context<'_>) -> bool {
        let looked = cx.waker.map(Waker::look).unwrap_or_default().into_iter();
        let looked = looked.filter_map(|woken| match woken {
            Woken::HungUp(app, handle) => Some((app, handle)),
            _ => None,
        });
        // Hang-ups found during commands of other applications.
        let found = std::mem::take(&mut cx.arrivals.hung_up).into_iter();
        for (app, handle) in found.chain(looked) {
            if app == self.id {
                self.endings.push(Ending::Handle(handle));
            } else {
                cx.arrivals.hung_up.push((app, handle));
            }
        }
        let hung_up: Vec<HandleId> = self.endings.handles().collect();
        let mut has_closed = false;
        for handle in hung_up {
            let found = self.handles.get(&handle);
            let id = found.and_then(|handle| handle.socket);
            let holds_address = |socket: &mut Socket| {
                matches!(socket.kind, Kind::Unconnected(_) | Kind::Listener(_))
            };
            let socket = id.and_then(|id| self.socket(id));
            if socket.is_some_and(holds_address) {
                self.close_handle(cx, handle);
                has_closed = true;
            }
        }
        has_closed
    }

    /// Executes commands within the budget, then ends that waited for them. True if any work was
    /// done, or is left.
    pub(crate) fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        if self.endings.begin() {
            for channel in &mut self.channels {
                channel.set_mark();
            }
        }
        let Grant {
            messages_per_turn,
            turn_us_max,
            ..
        } = self.grant;
        let mut budget = Budget::new(messages_per_turn, turn_us_max, cx.clock);
        let has_taken = self.take_commands(cx, &mut budget);
        // Ends have a budget of their own: commands may use up theirs in each turn.
        let mut for_ends = Budget::new(messages_per_turn, turn_us_max, cx.clock);
        self.end_caught_up(cx, &mut for_ends);
        let spent_us = budget.spent_us() + for_ends.spent_us();
        cx.spent.add(spent_us);
        self.load_us = load_after(self.load_us, spent_us);
        if budget.is_used_up() {
            self.turns_used_up += 1;
            cx.counters.turns_used_up += 1;
        }
        has_taken || !self.endings.is_empty()
    }

    /// Takes some commands of each process in turn. True if there were any.
    fn take_commands(&mut self, cx: &mut Context<'_>, budget: &mut Budget) -> bool {
        let mut channels = std::mem::take(&mut self.channels);
        let count = channels.len();
        let mut corrupt = Vec::new();
        let mut has_taken = false;
        let mut left = count;
        for channel in &mut channels {
            channel.is_done = false;
        }
        while left > 0 && !budget.is_used_up() {
            for step in 0..count {
                let channel = &mut channels[(self.first + step) % count];
                if channel.is_done || budget.is_used_up() {
                    continue;
                }
                match self.take_some(cx, channel, budget) {
                    Taken::Some => has_taken = true,
                    Taken::All { any } => {
                        has_taken |= any;
                        channel.is_done = true;
                        left -= 1;
                    }
                    Taken::Corrupt => {
                        corrupt.push(channel.id);
                        channel.is_done = true;
                        left -= 1;
                    }
                }
            }
        }
        self.first = self.first.wrapping_add(1);
        // Keeps processes that attached while commands were executed.
        channels.append(&mut self.channels);
        self.channels = channels;
        if !corrupt.is_empty() {
            // No more commands can come from there, and the ring would be polled forever.
            for id in corrupt {
                self.drop_channel(cx, id);
            }
            self.detach(cx);
        }
        has_taken
    }

    /// Takes commands of one process, until others get their turn.
    fn take_some(
        &mut self,
        cx: &mut Context<'_>,
        channel: &mut Channel,
        budget: &mut Budget,
    ) -> Taken {
        for taken in 0..COMMANDS_IN_A_ROW_MAX {
            if budget.is_used_up() {
                return Taken::Some;
            }
            if !channel.may_answer() {
                channel.on_none_left();
                return Taken::All { any: taken > 0 };
            }
            let outcome = match channel.end.receive() {
                Ok(Some(command)) => {
                    budget.take();
                    self.execute(cx, channel.id, &command)
                }
                Ok(None) => {
                    channel.on_none_left();
                    return Taken::All { any: taken > 0 };
                }
                Err(ReceiveError::Malformed) => {
                    budget.take();
                    Outcome::Malformed
                }
                Err(ReceiveError::Corrupt) => {
                    cx.counters.channels_corrupt += 1;
                    return Taken::Corrupt;
                }
            };
            channel.on_taken();
            cx.counters.commands += 1;
            match outcome {
                Outcome::None => {}
                Outcome::Answer(event) => {
                    channel.answer(event);
                    cx.counters.events += 1;
                }
                Outcome::Closed(handle) => self.close_handle(cx, handle),
                Outcome::Malformed => cx.counters.commands_refused += 1,
            }
        }
        Taken::Some
    }

    /// Handles ends whose earlier commands have all been taken.
    fn end_caught_up(&mut self, cx: &mut Context<'_>, budget: &mut Budget) {
        if !self.channels.iter().all(Channel::is_caught_up) {
            return;
        }
        while !budget.is_used_up()
            && let Some(ending) = self.endings.next()
        {
            budget.take();
            match ending {
                Ending::Handle(handle) => self.close_handle(cx, handle),
                Ending::Process(channel) => self.end_channel(cx, channel),
            }
        }
    }

    /// Sends hints of changes, and wakes sleeping processes.
    pub(crate) fn flush(&mut self, counters: &mut Counters) {
        for id in std::mem::take(&mut self.changed) {
            let Some(socket) = self.socket(id) else {
                continue;
            };
            socket.is_changed = false;
            let wanted = socket.record.take_wanted();
            self.hint(id, wanted, counters);
        }
        for (id, wanted) in std::mem::take(&mut self.retired) {
            self.hint(id, wanted, counters);
        }
        for channel in &mut self.channels {
            channel.flush(counters);
        }
    }

    fn hint(&mut self, socket: SocketId, wanted: Wanted, counters: &mut Counters) {
        for channel in &mut self.channels {
            let is_wanted = match wanted {
                Wanted::None => false,
                Wanted::By(by) => by == channel.id,
                Wanted::BySeveral => true,
            };
            if is_wanted {
                channel.hint(&Event::Ready { socket }, counters);
            }
        }
    }

    /// Drops a channel. False if there is none of this number.
    fn drop_channel(&mut self, cx: &mut Context<'_>, id: ChannelId) -> bool {
        let Some(place) = self.channels.iter().position(|channel| channel.id == id) else {
            return false;
        };
        let channel = self.channels.remove(place);
        // A live process can still ring: its copy of the bell stays open.
        if let (Some(waker), Some(bell)) = (cx.waker, channel.end.wake_fd()) {
            waker.remove_bell(bell);
        }
        cx.counters.processes -= 1;
        if channel.is_orphaned
            && let Some(broker) = &mut cx.arrivals.broker
        {
            broker.ended(self.id, id);
        }
        true
    }

    /// Ends a channel whose process has ended, and starts a search of all sockets: the process may
    /// have changed any of them without a command.
    pub(crate) fn end_channel(&mut self, cx: &mut Context<'_>, ended: ChannelId) {
        if self.drop_channel(cx, ended) {
            self.search.begin(self.sockets_ever());
        }
    }

    /// Examines some of the sockets that an ended process may have used. True if others are left.
    pub(crate) fn search(&mut self, cx: &mut Context<'_>, now_us: u64) -> bool {
        if self.search.is_over() {
            return false;
        }
        let until_us = now_us + ADOPTION_US_MAX;
        for _ in 0..SEARCHED_MAX {
            let Some(place) = self.search.next() else {
                break;
            };
            let Some(id) = self.sockets.get(place).map(Socket::id) else {
                continue;
            };
            self.look(cx, id);
            let lacks_marks = self
                .socket(id)
                .is_some_and(|socket| socket.record.lacks_marks());
            if lacks_marks {
                self.unmarked.entry(id).or_insert(until_us);
            }
        }
        if !self.search.is_over() {
            return true;
        }
        // Another process may be about to adopt a connection that it has taken.
        for doubtful_us in self.unadopted.values_mut() {
            doubtful_us.get_or_insert(until_us);
        }
        false
    }

    /// Ends the channels of processes whose ends no broker reports. A live process has an open
    /// handle that was given to it: the one by which it notices the end of the host process.
    pub(crate) fn end_orphaned_channels(&mut self, cx: &mut Context<'_>) {
        let is_over =
            |channel: &&Channel| channel.is_orphaned && !self.handles_of.contains_key(&channel.id);
        let over: Vec<ChannelId> = self
            .channels
            .iter()
            .filter(is_over)
            .map(|channel| channel.id)
            .collect();
        for id in over {
            self.end_channel(cx, id);
        }
    }

    /// Returns when the next taken, unadopted connection is given up.
    pub(crate) fn next_timeout_us(&self) -> Option<u64> {
        let unadopted = self.unadopted.values().flatten();
        unadopted.chain(self.unmarked.values()).min().copied()
    }

    /// Resets connections that an ended process had taken and not adopted.
    pub(crate) fn on_time(&mut self, cx: &mut Context<'_>, now_us: u64) {
        let due = |until: &Option<u64>| until.is_some_and(|until_us| until_us <= now_us);
        let lost = self.unadopted.iter().filter(|(_, until)| due(until));
        let lost: Vec<SocketId> = lost.map(|(id, _)| *id).collect();
        for id in lost {
            self.unadopted.remove(&id);
            self.close(cx, id);
        }
        let unmarked = self
            .unmarked
            .iter()
            .filter(|(_, until_us)| **until_us <= now_us);
        let unmarked: Vec<SocketId> = unmarked.map(|(id, _)| *id).collect();
        for id in unmarked {
            self.unmarked.remove(&id);
            let lacks_marks = |socket: &mut Socket| socket.record.lacks_marks();
            if self.socket(id).is_some_and(lacks_marks) {
                self.abort(cx, id, Errno::CONNRESET, Flags::default());
            }
        }
    }

    /// Detaches the application: its connections are reset, and its processes can see that.
    pub(crate) fn detach(&mut self, cx: &mut Context<'_>) {
        self.is_detached = true;
        let ids: Vec<SocketId> = self.sockets.iter().map(|(_, socket)| socket.id()).collect();
        for id in ids {
            self.abort(cx, id, Errno::CONNRESET, Flags::DETACHED);
            self.remove_if_over(cx, id);
        }
    }

    /// Resets a socket whose record is invalid.
    #[cold]
    pub(crate) fn reset_nonsense(&mut self, cx: &mut Context<'_>, id: SocketId) {
        cx.counters.sockets_nonsense += 1;
        tracing::debug!(
            app = self.id.0,
            ?id,
            "the record of a socket makes no sense"
        );
        self.abort(cx, id, Errno::CONNRESET, Flags::default());
    }
}
