//! The application node's side: to programs it is the host stack.

mod application;
mod commands;
mod ends;
mod shared_ports;
mod socket;
mod stream;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use socket_channel::attach::{MODE_BUFFERS_ON_DEMAND, MODES_DEFAULT};
use socket_channel::{AppId, ChannelId, HandleId};
use sockets::{Attachment, Clock, NewHandles, Waker, Woken, monotonic_us};

use crate::complaints::Complaints;
use crate::message::{Body, Message};
use crate::node::application::{App, Channel, Phase};
use crate::node::shared_ports::SharedPort;

/// Most messages that wait for the session; beyond that, none are made.
const OUT_MAX: usize = 64;

/// The rule that the stack node has broken.
type Rule = &'static str;

/// A reply to the broker of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A process is served.
    Attached {
        /// Its application.
        app: AppId,
        /// Its channel.
        channel: ChannelId,
    },
    /// A process is not served; neither is its application, if this was its first process.
    Refused {
        /// Its application.
        app: AppId,
        /// Its channel.
        channel: ChannelId,
        /// The cause.
        errno: Errno,
    },
    /// An application has ended on this node.
    Detached {
        /// The application.
        app: AppId,
    },
}

/// Resources of the node that an application's turn uses.
pub(crate) struct Context<'a> {
    pub(crate) now_us: u64,
    pub(crate) clock: Clock,
    pub(crate) out: &'a mut VecDeque<Vec<u8>>,
    pub(crate) waker: Option<&'a Waker>,
    /// Requests handles from the broker that have arrived meanwhile.
    pub(crate) handles: &'a mut dyn FnMut() -> Vec<NewHandles>,
    /// Ports that sockets of this node share.
    pub(crate) shared: &'a mut Vec<SharedPort>,
    /// Hang-ups found during a turn.
    pub(crate) woken: &'a mut Vec<Woken>,
}

impl Context<'_> {
    pub(crate) fn say(&mut self, app: AppId, body: Body<'_>) {
        self.out.push_back(Message { app: app.0, body }.encode());
    }

    pub(crate) fn has_room(&self) -> bool {
        self.out.len() < OUT_MAX
    }
}

/// See the [module documentation](self).
#[derive(Debug)]
pub struct Node {
    apps: BTreeMap<AppId, App>,
    /// `None` in a simulation, which has no descriptors.
    waker: Option<Waker>,
    woken: Vec<Woken>,
    has_session: bool,
    /// The application that comes first in the next turn.
    first: u32,
    out: VecDeque<Vec<u8>>,
    replies: Vec<Reply>,
    complaints: Complaints,
    /// The time of the last turn.
    now_us: u64,
    clock: Clock,
}

impl Node {
    /// A node without programs, for programs with descriptors: bells and handles.
    ///
    /// # Errors
    /// If the kernel provides no descriptor to wait on.
    pub fn new() -> io::Result<Node> {
        let waker = Waker::new()?;
        waker.watch_bells()?;
        Ok(Node {
            waker: Some(waker),
            clock: Some(monotonic_us),
            ..Node::without_descriptors()
        })
    }

    /// A node without programs and descriptors, for tests and simulation.
    pub fn without_descriptors() -> Node {
        Node {
            apps: BTreeMap::new(),
            waker: None,
            woken: Vec::new(),
            has_session: false,
            first: 0,
            out: VecDeque::new(),
            replies: Vec::new(),
            complaints: Complaints::default(),
            now_us: 0,
            clock: None,
        }
    }

    /// Sets the clock that bounds the turns of applications.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Node {
        Node { clock, ..self }
    }

    /// Readable when a bell has rung, or a descriptor was closed. `None` in a simulation.
    pub fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.waker.as_ref().map(Waker::fd)
    }

    /// Wakes the node for messages of the broker as well.
    ///
    /// # Errors
    /// If the kernel refuses to watch it.
    pub fn watch(&self, broker: impl AsFd) -> io::Result<()> {
        match &self.waker {
            Some(waker) => waker.add_broker(broker.as_fd()),
            None => Ok(()),
        }
    }

    /// Turns the wake-up for room in the broker's socket on or off.
    pub fn watch_for_room(&self, broker: impl AsFd, for_room: bool) {
        if let Some(waker) = &self.waker {
            waker.watch_broker(broker.as_fd(), for_room);
        }
    }

    /// Number of applications.
    pub fn applications(&self) -> usize {
        self.apps.len()
    }

    /// Number of sockets of all applications.
    pub fn sockets(&self) -> usize {
        self.apps.values().map(App::sockets).sum()
    }

    /// Notes that a session with the stack node has begun.
    pub fn begin_session(&mut self) {
        self.has_session = true;
        self.out.clear();
    }

    /// Ends the session: all sockets fail with ECONNRESET, and processes that wait to be attached
    /// may try again.
    pub fn end_session(&mut self) {
        self.has_session = false;
        self.out.clear();
        let mut refused = Vec::new();
        for app in self.apps.values_mut() {
            if app.phase == Phase::Attaching {
                refused.push(app.id);
            } else {
                app.detach();
                app.flush();
            }
        }
        for app in refused {
            self.refuse(app, Errno::AGAIN);
        }
    }

    /// Attaches a process. The result is a [`Reply`].
    pub fn attach(&mut self, attachment: Attachment) {
        let Attachment {
            app,
            channel,
            uid,
            first,
            end,
            ..
        } = attachment;
        let refused = |errno| Reply::Refused {
            app,
            channel,
            errno,
        };
        let found = self.apps.get(&app);
        let is_known = found.is_some_and(|app| app.phase != Phase::Detached);
        if !is_known && (first.is_none() || found.is_some()) {
            return self.replies.push(refused(Errno::SHUTDOWN));
        }
        let modes = first.as_ref().map(|first| first.identity.modes);
        // FIFOs are allocated with the connection here: libraries support both.
        let is_usual = |modes: u32| modes | MODE_BUFFERS_ON_DEMAND == MODES_DEFAULT;
        if modes.is_some_and(|modes| !is_usual(modes)) {
            // The other modes request from the host stack a service that this node performs in
            // advance.
            return self.replies.push(refused(Errno::OPNOTSUPP));
        }
        if !self.has_session {
            return self.replies.push(refused(Errno::AGAIN));
        }
        if let (Some(waker), Some(bell)) = (&self.waker, end.wake_fd())
            && let Err(error) = waker.add_bell(bell)
        {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            return self.replies.push(refused(errno));
        }
        if let (false, Some(first)) = (is_known, first) {
            let modes = first.identity.modes;
            self.apps.insert(app, App::new(app, uid, first));
            let body = Body::Attach { modes };
            self.out.push_back(Message { app: app.0, body }.encode());
        }
        if let Some(found) = self.apps.get_mut(&app) {
            found.channels.push(Channel::new(channel, end));
            if found.phase == Phase::Attached {
                self.replies.push(Reply::Attached { app, channel });
            }
        }
    }

    /// Adds the host's ends of a program's descriptors.
    pub fn add_handles(&mut self, new: NewHandles) {
        if let Some(app) = self.apps.get_mut(&new.app) {
            app.add_handles(self.waker.as_ref(), new);
        }
    }

    /// Adds handles without descriptors, for tests and simulation.
    pub fn add_handles_without_descriptors(&mut self, app: AppId, first: HandleId, count: u32) {
        if let Some(app) = self.apps.get_mut(&app) {
            let channel = app.channels.first().map_or(ChannelId(0), |it| it.id);
            let numbers = first.0..first.0 + count;
            numbers.for_each(|number| app.add_handle(HandleId(number), channel, None));
        }
    }

    /// Notes the end of a process.
    pub fn end_process(&mut self, app: AppId, channel: ChannelId) {
        if let Some(app) = self.apps.get_mut(&app) {
            app.ended.insert(channel);
        }
    }

    /// Notes the close of a descriptor's last copy.
    pub fn hang_up(&mut self, app: AppId, handle: HandleId) {
        if let Some(app) = self.apps.get_mut(&app) {
            app.hang_up(handle);
        }
    }

    /// Returns the pending replies to the broker.
    pub fn take_replies(&mut self) -> Vec<Reply> {
        std::mem::take(&mut self.replies)
    }

    /// The next message to the stack node.
    pub fn next_message(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// Handles a message of the stack node. Drops one that does not decode: its sender has the key,
    /// and is of another release.
    pub fn on_message(&mut self, bytes: &[u8]) {
        let Ok(Message { app, body }) = Message::decode(bytes) else {
            if let Some(unsaid) = self.complaints.due(self.now_us) {
                tracing::warn!(bytes = bytes.len(), unsaid, "a message does not decode");
            }
            return;
        };
        let id = AppId(app);
        let Some(app) = self.apps.get_mut(&id) else {
            return;
        };
        match body {
            Body::Attached { errno: 0, .. } if app.phase == Phase::Attaching => {
                app.phase = Phase::Attached;
                let channels = app.channels.iter().map(|channel| channel.id);
                let attached = channels.map(|channel| Reply::Attached { app: id, channel });
                self.replies.extend(attached);
            }
            Body::Attached { errno, .. } if app.phase == Phase::Attaching => {
                let errno = i32::try_from(errno).unwrap_or(0);
                let is_errno = (1..4096).contains(&errno);
                let errno = if is_errno {
                    Errno::from_raw_os_error(errno)
                } else {
                    Errno::IO
                };
                self.refuse(id, errno);
            }
            body => {
                if let Err(rule) = app.on_message(body)
                    && let Some(unsaid) = self.complaints.due(self.now_us)
                {
                    tracing::warn!(app = id.0, rule, unsaid, "the stack node makes no sense");
                }
            }
        }
    }

    fn refuse(&mut self, id: AppId, errno: Errno) {
        let Some(app) = self.apps.remove(&id) else {
            return;
        };
        for channel in &app.channels {
            if let (Some(waker), Some(bell)) = (&self.waker, channel.end.wake_fd()) {
                // The process has a copy of the bell.
                waker.remove_bell(bell);
            }
            self.replies.push(Reply::Refused {
                app: id,
                channel: channel.id,
                errno,
            });
        }
    }

    /// Collects closed descriptors.
    pub fn look(&mut self) {
        let found = self.waker.as_ref().map(Waker::look).unwrap_or_default();
        self.woken.extend(found);
        for woken in std::mem::take(&mut self.woken) {
            if let Woken::HungUp(app, handle) = woken {
                self.hang_up(app, handle);
            }
        }
    }

    /// Does a round of work; true if there was any. Makes messages only while few wait. `handles`
    /// requests the handles from the broker that have just arrived.
    pub fn turn(&mut self, now_us: u64, handles: &mut dyn FnMut() -> Vec<NewHandles>) -> bool {
        self.now_us = now_us;
        let mut worked = false;
        let mut shared: Vec<SharedPort> = self.apps.values().flat_map(App::shared).collect();
        let (before, from) = (..AppId(self.first), AppId(self.first)..);
        let ids = self.apps.range(from).chain(self.apps.range(before));
        let ids: Vec<AppId> = ids.map(|(id, _)| *id).collect();
        self.first = ids.first().map_or(0, |first| first.0.wrapping_add(1));
        for id in ids {
            let Some(app) = self.apps.get_mut(&id) else {
                continue;
            };
            let mut cx = Context {
                now_us,
                clock: self.clock,
                out: &mut self.out,
                waker: self.waker.as_ref(),
                handles,
                shared: &mut shared,
                woken: &mut self.woken,
            };
            worked |= app.turn(&mut cx);
            app.flush();
            if !app.is_over() {
                continue;
            }
            if app.phase == Phase::Attached || app.phase == Phase::Attaching {
                cx.say(id, Body::Detach);
            }
            self.apps.remove(&id);
            self.replies.push(Reply::Detached { app: id });
            worked = true;
        }
        // Hang-ups found during a command are handled in the next round.
        worked || !self.woken.is_empty()
    }

    /// Sends hints about changes, and wakes sleeping processes.
    pub fn flush(&mut self) {
        self.apps.values_mut().for_each(App::flush);
    }

    /// Arms the wake-ups. False if there is work.
    pub fn prepare_sleep(&mut self) -> bool {
        let mut channels = self.apps.values_mut().flat_map(|app| &mut app.channels);
        channels.all(|channel| channel.end.prepare_sleep())
    }

    /// Disarms the wake-ups.
    pub fn finish_sleep(&mut self) {
        for channel in self.apps.values_mut().flat_map(|app| &mut app.channels) {
            channel.end.disarm();
        }
    }
}
