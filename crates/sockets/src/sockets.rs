//! All applications in other processes, as one application of the shard.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::BorrowedFd;

use host::app::{AppEvent, Application, FileHandle, FileMeta, Io, StreamId};
use host::{Episode, monotonic_us};
use rustix::io::Errno;
use socket_channel::attach::HANDLES_MAX;
use socket_channel::{AppId, ChannelId, HandleId};

use crate::application::{App, Channel, Context};
use crate::broker::{Arrivals, Arrived, Attachment, Broker, Known, NewHandles};
use crate::budget::{Clock, Spent, load_after};
use crate::counters::Counters;
use crate::endings::Ending;
use crate::place::Places;
use crate::view::ApplicationView;
use crate::waker::{EVENTS_MAX, Waker, Woken};

/// Longest rest of the shard without a wakeup, in microseconds, while processes are attached and
/// the NIC stack is idle.
const MODERATION_US_MAX: u64 = 50;

/// Most polls of the waker in a wakeup: a shard that never sleeps gets few wakeups, and an ending
/// process hangs up all of its handles at once.
const LOOKS_MAX: usize = 32;

/// Applications in other processes, as one application of the shard.
#[derive(Debug)]
pub struct Sockets {
    apps: BTreeMap<AppId, App>,
    places: Places,
    /// `None` in a simulation, which has no descriptors.
    waker: Option<Waker>,
    counters: Counters,
    arrivals: Arrivals,
    /// The waker watches for room for messages to the broker.
    is_watched_for_room: bool,
    /// Applications to be detached.
    detaching: Vec<AppId>,
    /// Clock that measures turns. `None` in a simulation, whose turns take no time.
    clock: Clock,
    /// Time spent in this turn.
    spent: Spent,
    /// The last turn was used up.
    was_full: bool,
    full: Episode,
}

impl Sockets {
    /// Starts without applications; they will have descriptors: bells and handles.
    ///
    /// # Errors
    /// If the kernel provides no epoll set.
    pub fn new() -> io::Result<Sockets> {
        Ok(Sockets {
            waker: Some(Waker::new()?),
            clock: Some(monotonic_us),
            ..Sockets::without_descriptors()
        })
    }

    /// Starts without applications and descriptors: for tests and simulation.
    pub fn without_descriptors() -> Sockets {
        Sockets {
            apps: BTreeMap::new(),
            places: Places::default(),
            waker: None,
            counters: Counters::default(),
            arrivals: Arrivals::default(),
            is_watched_for_room: false,
            detaching: Vec::new(),
            clock: None,
            spent: Spent::default(),
            was_full: false,
            full: Episode::default(),
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of attached processes.
    pub fn processes(&self) -> u64 {
        self.counters.processes
    }

    /// Returns a view of each application, for people.
    pub fn applications(&self) -> impl Iterator<Item = ApplicationView> {
        self.applications_from(AppId(0))
    }

    /// Returns the views of applications with numbers from `first` on, in order.
    pub fn applications_from(&self, first: AppId) -> impl Iterator<Item = ApplicationView> {
        self.apps
            .range(first..)
            .map(|(_, app)| ApplicationView::of(app))
    }

    /// Sets the broker that brings applications from now on; attached processes stay.
    ///
    /// # Errors
    /// If the kernel does not watch its descriptor.
    pub fn set_broker(&mut self, broker: Box<dyn Broker>) -> io::Result<()> {
        if let Some(waker) = &self.waker {
            waker.add_broker(broker.wake_fd())?;
        }
        // Handles and ends reported by the previous broker still count. Processes that were
        // attaching to it get no answer, and start again.
        self.arrivals.hear();
        for arrived in std::mem::take(&mut self.arrivals.queue) {
            match arrived {
                Arrived::Process(_) | Arrived::Again { .. } => {}
                Arrived::Handles(new) => self.take_handles(new),
                Arrived::Gone { .. } => self.arrivals.queue.push_back(arrived),
            }
        }
        self.arrivals.broker = Some(broker);
        self.is_watched_for_room = false;
        self.inform();
        Ok(())
    }

    /// Reports the attached applications and processes to a new broker.
    fn inform(&mut self) {
        let Some(broker) = &mut self.arrivals.broker else {
            return;
        };
        for app in self.apps.values_mut() {
            app.unreported_handles = 0;
            broker.inform(Known::Application {
                app: app.id,
                uid: app.uid,
                next_handle: app.next_handle,
                handles: u32::try_from(app.handles()).unwrap_or(u32::MAX),
                identity: app.identity.clone(),
            });
            for channel in &mut app.channels {
                channel.is_orphaned = true;
                broker.inform(Known::Process {
                    app: app.id,
                    channel: channel.id,
                    pid: channel.pid,
                    uid: channel.uid,
                });
            }
            for file in app.passed.numbers() {
                broker.inform(Known::File { app: app.id, file });
            }
        }
        broker.inform(Known::All);
        self.watch_for_room();
    }

    /// Watches for room at the broker while messages wait.
    fn watch_for_room(&mut self) {
        if let (Some(waker), Some(broker)) = (&self.waker, &self.arrivals.broker)
            && broker.is_behind() != self.is_watched_for_room
        {
            self.is_watched_for_room = broker.is_behind();
            waker.watch_broker(broker.wake_fd(), self.is_watched_for_room);
        }
    }

    /// Attaches a process. A known application keeps its segment and its grant.
    ///
    /// # Errors
    /// If it is the first process of its application and brings no segment, or the kernel does not
    /// watch the channel's bell.
    pub fn attach(&mut self, attachment: Attachment) -> io::Result<()> {
        let Attachment {
            app,
            channel,
            pid,
            uid,
            first,
            end,
        } = attachment;
        let is_known = self.apps.get(&app).is_some_and(|app| !app.is_detached);
        if !is_known && (first.is_none() || self.apps.contains_key(&app)) {
            return Err(Errno::SHUTDOWN.into());
        }
        if let (Some(waker), Some(bell)) = (&self.waker, end.wake_fd()) {
            waker.add_bell(bell)?;
        }
        if let (false, Some(first)) = (is_known, first) {
            self.apps.insert(app, App::new(app, uid, first));
        }
        if let Some(found) = self.apps.get_mut(&app) {
            found.channels.push(Channel::new(channel, pid, uid, end));
            self.counters.processes += 1;
            self.counters.processes_attached += 1;
        }
        Ok(())
    }

    /// Handles the broker's messages.
    fn take_arrivals(&mut self) {
        while let Some(arrived) = self.arrivals.queue.pop_front() {
            match arrived {
                Arrived::Process(attachment) => {
                    let (app, channel) = (attachment.app, attachment.channel);
                    let attached = self.attach(*attachment);
                    self.answer(app, channel, attached);
                }
                Arrived::Again { app, channel } => {
                    let attached = self.attach_again(app, channel);
                    self.answer(app, channel, attached);
                }
                Arrived::Handles(new) => self.take_handles(new),
                Arrived::Gone { app, channel } => {
                    if let Some(app) = self.apps.get_mut(&app) {
                        app.endings.push(Ending::Process(channel));
                    }
                }
            }
        }
    }

    /// Reattaches a process of an earlier broker to this one, which then reports the process's end.
    fn attach_again(&mut self, app: AppId, channel: ChannelId) -> io::Result<()> {
        let app = self.apps.get_mut(&app);
        let channel = app.and_then(|app| app.channel(channel));
        let channel = channel.ok_or(Errno::SHUTDOWN)?;
        channel.is_orphaned = false;
        self.counters.processes_reattached += 1;
        Ok(())
    }

    /// Answers a process that attaches.
    fn answer(&mut self, app: AppId, channel: ChannelId, attached: io::Result<()>) {
        let Some(broker) = &mut self.arrivals.broker else {
            return;
        };
        match attached {
            Ok(()) => broker.attached(app, channel),
            Err(error) => {
                tracing::warn!(%error, app = app.0, "a process cannot attach");
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                broker.refused(app, channel, errno);
            }
        }
    }

    fn take_handles(&mut self, new: NewHandles) {
        if let Some(app) = self.apps.get_mut(&new.app) {
            app.add_handles(self.waker.as_ref(), new);
        }
    }

    /// Adds handles without descriptors, given to the application's first process and numbered from
    /// `first` on: for tests and simulation.
    pub fn add_handles_without_descriptors(&mut self, app: AppId, first: HandleId, count: u32) {
        if let Some(found) = self.apps.get_mut(&app) {
            let channel = found.channels.first().map_or(ChannelId(0), |it| it.id);
            for number in first.0..first.0 + count {
                found.add_handle(HandleId(number), channel, None);
            }
        }
    }

    /// Runs `act` on an application, if it exists, and removes the application if nothing is left
    /// of it.
    fn with<T>(
        &mut self,
        io: &mut dyn Io,
        app: AppId,
        act: impl FnOnce(&mut App, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let found = self.apps.get_mut(&app)?;
        let before = self.counters;
        let mut cx = Context {
            io,
            places: &mut self.places,
            counters: &mut self.counters,
            arrivals: &mut self.arrivals,
            waker: self.waker.as_ref(),
            clock: self.clock,
            spent: &mut self.spent,
        };
        let result = act(found, &mut cx);
        found.release_passed(&mut cx);
        found.announce_room(&mut cx);
        found.traffic.add(&before, &self.counters);
        if found.unreported_handles >= HANDLES_MAX
            && let Some(broker) = &mut self.arrivals.broker
        {
            broker.handles_closed(app, std::mem::take(&mut found.unreported_handles));
        }
        if found.is_over() {
            self.apps.remove(&app);
            if let Some(broker) = &mut self.arrivals.broker {
                broker.detached(app);
            }
        }
        Some(result)
    }

    /// Ends a process. If it has sent more commands than a turn takes, its end waits for them.
    pub fn end_process(&mut self, io: &mut dyn Io, app: AppId, channel: ChannelId) {
        self.with(io, app, |app, cx| {
            app.endings.push(Ending::Process(channel));
            app.turn(cx);
        });
    }

    /// Closes a handle whose last copy is closed. If the application has sent more commands than a
    /// turn takes, the end waits for them.
    pub fn close_handle(&mut self, io: &mut dyn Io, app: AppId, handle: HandleId) {
        self.with(io, app, |app, cx| {
            app.endings.push(Ending::Handle(handle));
            app.turn(cx);
        });
    }

    /// Detaches an application at the next turn: its connections are reset, and its processes can
    /// see that. False if there is no such application.
    pub fn detach(&mut self, app: AppId) -> bool {
        let is_known = self.apps.contains_key(&app);
        if is_known {
            self.detaching.push(app);
        }
        is_known
    }

    /// Returns the served application that has a process of this ID.
    pub fn application_of(&self, pid: u32) -> Option<AppId> {
        let mut apps = self.apps.values();
        let has = |app: &App| app.channels.iter().any(|channel| channel.pid == pid);
        apps.find(|app| !app.is_detached && has(app))
            .map(|app| app.id)
    }

    /// Handles the waker's events.
    fn take_woken(&mut self, io: &mut dyn Io) {
        let mut ended = BTreeSet::new();
        for _ in 0..LOOKS_MAX {
            let all = self.waker.as_ref().map(Waker::look).unwrap_or_default();
            let may_be_more = all.len() == EVENTS_MAX;
            for woken in all {
                match woken {
                    Woken::Broker => self.arrivals.hear(),
                    Woken::HungUp(app, handle) => {
                        self.hang_up(app, handle);
                        ended.insert(app);
                    }
                    // Every turn polls the channels.
                    Woken::Bell => {}
                }
            }
            if !may_be_more {
                break;
            }
        }
        for app in ended {
            if self.spent.is_used_up() {
                // The next turn handles them.
                break;
            }
            self.with(io, app, |app, cx| app.turn(cx));
        }
    }

    /// Queues the end of a descriptor whose last copy is closed.
    fn hang_up(&mut self, app: AppId, handle: HandleId) {
        if let Some(app) = self.apps.get_mut(&app) {
            app.endings.push(Ending::Handle(handle));
        }
    }

    /// Returns the applications in the order of their turns: after a used-up turn, those with the
    /// least load come first.
    fn order(&self) -> Vec<AppId> {
        let mut order: Vec<(u64, AppId)> = self
            .apps
            .iter()
            .map(|(id, app)| (app.load_us, *id))
            .collect();
        if self.was_full {
            order.sort_unstable();
        }
        order.into_iter().map(|(_, id)| id).collect()
    }

    /// Counts and logs a turn that was used up while applications waited.
    #[cold]
    fn note_full(&mut self, now_us: u64) {
        self.counters.turns_full += 1;
        if !self.full.begins(now_us) {
            return;
        }
        let busiest = self.apps.values().max_by_key(|app| app.load_us);
        let (app, pid) = busiest.map_or((0, 0), |app| {
            (
                app.id.0,
                app.channels.first().map_or(0, |channel| channel.pid),
            )
        });
        tracing::warn!(
            app,
            pid,
            "the commands of applications take all of a turn, and some wait for the next; the \
             busiest application is named"
        );
    }
}

impl Application for Sockets {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        if let AppEvent::Accepted { .. } = event {
            let listener = io.listener(stream);
            let place = listener.and_then(|it| self.places.bindings.get(&it));
            let Some(&(app, id)) = place else {
                // The listener was closed while the connection was being opened.
                return io.abort(stream);
            };
            self.with(io, app, |app, cx| app.on_accepted(cx, id, stream));
            return;
        }
        let Some(&(app, id)) = self.places.streams.get(&stream) else {
            return;
        };
        self.with(io, app, |app, cx| match event {
            event if app.on_event_of_held(cx, id, stream, &event) => {}
            AppEvent::Accepted { .. }
            | AppEvent::Listed { .. }
            | AppEvent::PeerReset { .. }
            | AppEvent::PeerStopped { .. } => {}
            AppEvent::Splice(event) => app.on_splice(cx, id, event),
            AppEvent::Connected => app.on_connected(cx, id),
            AppEvent::Readable => app.pump(cx, id),
            AppEvent::PeerFinished => app.on_peer_finished(cx, id),
            AppEvent::Writable => app.on_writable(cx, id),
            AppEvent::Drained => app.on_drained(cx, id),
            AppEvent::Opened { file, meta } => app.on_file_opened(cx, id, file, &meta),
            AppEvent::OpenFailed { errno, .. } => app.on_file_failed(cx, id, errno),
            AppEvent::Timer => app.on_closing_timer(cx, id),
            AppEvent::Closed {
                reason,
                acknowledged,
                ..
            } => app.on_closed(cx, id, reason, acknowledged),
        });
    }

    fn on_looked_up(&mut self, io: &mut dyn Io, file: FileHandle, found: Result<FileMeta, u16>) {
        if let Some((app, id)) = self.places.lookups.remove(&file) {
            self.with(io, app, |app, cx| app.on_looked_up(cx, id, found));
        }
    }

    fn on_turn(&mut self, io: &mut dyn Io, now_us: u64) -> bool {
        self.spent = Spent::default();
        self.take_arrivals();
        for (app, handle) in std::mem::take(&mut self.arrivals.hung_up) {
            self.hang_up(app, handle);
        }
        for passed in io.take_released_passed() {
            self.with(io, AppId::of_passed(passed.0), |app, cx| {
                app.on_passed_unused(cx, passed)
            });
        }
        for app in std::mem::take(&mut self.detaching) {
            self.with(io, app, |app, cx| app.detach(cx));
        }
        let mut busy = false;
        let order = self.order();
        self.was_full = false;
        for id in order {
            if self.spent.is_used_up() {
                if !std::mem::replace(&mut self.was_full, true) {
                    busy = true;
                    self.note_full(now_us);
                }
                if let Some(app) = self.apps.get_mut(&id) {
                    app.load_us = load_after(app.load_us, 0);
                }
                continue;
            }
            let turned = self.with(io, id, |app, cx| {
                app.on_time(cx, now_us);
                app.end_orphaned_channels(cx);
                let had_commands = app.turn(cx);
                let has_more = app.search(cx, now_us);
                app.flush(cx.counters);
                had_commands || has_more
            });
            busy |= turned == Some(true);
        }
        if std::mem::take(&mut self.places.is_looping) {
            // Collects hang-ups before the next turn connects: a listener that was closed before
            // must not accept.
            self.take_woken(io);
        }
        self.watch_for_room();
        busy || !self.arrivals.hung_up.is_empty()
    }

    fn next_timeout_us(&self) -> Option<u64> {
        self.apps.values().filter_map(App::next_timeout_us).min()
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.waker.iter().map(Waker::fd).collect()
    }

    fn on_wake(&mut self, io: &mut dyn Io, _now_us: u64) {
        self.take_woken(io);
    }

    fn ring_set(&self) -> Option<BorrowedFd<'_>> {
        self.waker.as_ref().map(Waker::bells)
    }

    fn prepare_sleep(&mut self) -> bool {
        let mut channels = self.apps.values_mut().flat_map(|app| &mut app.channels);
        // A channel with commands stops the check; the next turn polls all channels.
        channels.all(|channel| channel.end.prepare_sleep())
    }

    fn finish_sleep(&mut self) {
        for channel in self.apps.values_mut().flat_map(|app| &mut app.channels) {
            channel.end.disarm();
        }
    }

    fn hurry_set(&self) -> Option<BorrowedFd<'_>> {
        let waker = self.waker.as_ref().filter(|_| !self.apps.is_empty());
        waker.map(Waker::bells)
    }

    fn moderation_us_max(&self) -> u64 {
        if self.apps.is_empty() {
            // No process waits.
            u64::MAX
        } else {
            MODERATION_US_MAX
        }
    }
}
