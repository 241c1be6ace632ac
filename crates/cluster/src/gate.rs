//! The stack node's side: to the host stack it is the applications of the other node.

mod member;
mod socket;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use socket_channel::attach::MODE_BUFFERS_ON_DEMAND;
use socket_channel::channel::AppEnd;
use socket_channel::{ChannelId, HandleId, Segment};

use crate::complaints::Complaints;
use crate::gate::member::{Bounds, Member};
use crate::message::{Body, Message};

/// Most messages that wait for the session; beyond that, none are made.
const OUT_MAX: usize = 64;

/// Most waiting messages at which messages of the application node are still accepted: each may
/// require an answer.
const OUT_HELD_MAX: usize = 4 * OUT_MAX;

/// Most applications at a time, including those that are about to attach.
const APPS_MAX: usize = 4096;

/// The interface to the broker of this node. Its answers come from [`Stack::receive`].
pub trait Stack: fmt::Debug {
    /// Attaches an application.
    fn attach(&mut self, app: u32, modes: u32);
    /// Requests handles for an attached application.
    fn more_handles(&mut self, app: u32);
    /// Detaches an application: its connection to the broker is closed.
    fn detach(&mut self, app: u32);
    /// The next answer of the broker, if there is one.
    fn receive(&mut self) -> Option<Brought>;
    /// Most handles of an application, so that others have some.
    fn handles_max(&self) -> usize {
        usize::MAX
    }
}

/// An answer of the broker.
#[derive(Debug)]
pub enum Brought {
    /// An application is attached.
    Attached {
        /// The application.
        app: u32,
        /// Its memory and channel.
        granted: Box<Granted>,
    },
    /// An application is not attached.
    Refused {
        /// The application.
        app: u32,
        /// The cause, an `errno`, never 0.
        errno: u32,
    },
    /// Handles; none if the broker has no more for now.
    Handles {
        /// The application.
        app: u32,
        /// Numbers of the handles, with the descriptors that keep their sockets open; without
        /// descriptors in a simulation.
        handles: Vec<(HandleId, Option<OwnedFd>)>,
    },
    /// The host stack has stopped serving an application.
    Gone {
        /// The application.
        app: u32,
    },
}

impl Brought {
    /// The application concerned.
    pub fn app(&self) -> u32 {
        match *self {
            Brought::Attached { app, .. }
            | Brought::Refused { app, .. }
            | Brought::Handles { app, .. }
            | Brought::Gone { app } => app,
        }
    }
}

/// An application's resources at the host stack.
#[derive(Debug)]
pub struct Granted {
    /// Segment of the application.
    pub segment: Segment,
    /// Channel of the application.
    pub end: AppEnd,
    /// Number of the channel.
    pub channel: ChannelId,
    /// The modes that are on.
    pub modes: u32,
}

/// An application of the other node.
#[derive(Debug)]
enum App {
    /// The broker has not answered.
    Attaching,
    Attached(Box<Member>),
}

/// See the [module documentation](self).
#[derive(Debug)]
pub struct Gate<S> {
    stack: S,
    apps: BTreeMap<u32, App>,
    /// Detached applications whose last commands wait for room.
    leaving: Vec<(u32, Box<Member>)>,
    /// The application that comes first in the next turn.
    first: u32,
    out: VecDeque<Vec<u8>>,
    complaints: Complaints,
    /// The time of the last turn.
    now_us: u64,
}

impl<S: Stack> Gate<S> {
    /// A gate without applications.
    pub fn new(stack: S) -> Gate<S> {
        Gate {
            stack,
            apps: BTreeMap::new(),
            leaving: Vec::new(),
            first: 0,
            out: VecDeque::new(),
            complaints: Complaints::default(),
            now_us: 0,
        }
    }

    /// The interface to the broker.
    pub fn stack(&self) -> &S {
        &self.stack
    }

    /// The interface to the broker, mutable.
    pub fn stack_mut(&mut self) -> &mut S {
        &mut self.stack
    }

    /// Number of attached applications.
    pub fn applications(&self) -> usize {
        let attached = |app: &&App| matches!(app, App::Attached(_));
        self.apps.values().filter(attached).count()
    }

    /// Number of sockets of all applications.
    pub fn sockets(&self) -> usize {
        self.members().map(Member::sockets).sum()
    }

    /// Whether commands of detached applications wait for room.
    pub fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    fn members(&self) -> impl Iterator<Item = &Member> {
        self.apps.values().filter_map(|app| match app {
            App::Attached(member) => Some(&**member),
            App::Attaching => None,
        })
    }

    /// Handles a message of the application node. Drops one that does not decode: its sender has
    /// the key, and is of another release.
    pub fn on_message(&mut self, bytes: &[u8]) {
        let Ok(Message { app, body }) = Message::decode(bytes) else {
            if let Some(unsaid) = self.complaints.due(self.now_us) {
                tracing::warn!(bytes = bytes.len(), unsaid, "a message does not decode");
            }
            return;
        };
        match body {
            Body::Attach { modes } => self.attach(app, modes),
            Body::Detach => self.leave(app, false),
            body => {
                let Some(App::Attached(member)) = self.apps.get_mut(&app) else {
                    // It was detached meanwhile.
                    return;
                };
                if let Err(rule) = member.on_message(&body) {
                    self.detach(app, rule);
                }
            }
        }
    }

    fn attach(&mut self, app: u32, modes: u32) {
        // The broker identifies both by this number.
        let is_leaving = self.leaving.iter().any(|(leaving, _)| *leaving == app);
        let is_full = self.apps.len() >= APPS_MAX;
        if is_full || is_leaving || self.apps.contains_key(&app) {
            let errno = Errno::AGAIN.raw_os_error().unsigned_abs();
            return self.say(app, Body::Attached { errno, modes: 0 });
        }
        self.apps.insert(app, App::Attaching);
        // Both nodes allocate the same FIFOs when a socket is made.
        self.stack.attach(app, modes & !MODE_BUFFERS_ON_DEMAND);
    }

    fn say(&mut self, app: u32, body: Body<'_>) {
        self.out.push_back(Message { app, body }.encode());
    }

    /// Detaches an application that has broken a rule.
    fn detach(&mut self, app: u32, rule: &'static str) {
        if let Some(unsaid) = self.complaints.due(self.now_us) {
            tracing::warn!(
                app,
                rule,
                unsaid,
                "an application of the other node is detached"
            );
        }
        self.leave(app, true);
        self.say(app, Body::Detached);
    }

    /// Ends an application. With `resets`, its unfinished connections are reset.
    fn leave(&mut self, app: u32, resets: bool) {
        match self.apps.remove(&app) {
            None => {}
            Some(App::Attaching) => self.stack.detach(app),
            Some(App::Attached(mut member)) => {
                member.close_all(resets);
                self.leaving.push((app, member));
            }
        }
    }

    /// Ends the session with all applications; their connections are reset.
    pub fn end_session(&mut self) {
        let apps: Vec<u32> = self.apps.keys().copied().collect();
        for app in apps {
            self.leave(app, true);
        }
        self.out.clear();
    }

    /// Whether another message of the application node can be handled.
    pub fn has_room(&self) -> bool {
        self.out.len() < OUT_HELD_MAX
    }

    /// The next message to the application node.
    pub fn next_message(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// Does a round of work; true if there was any. Makes messages only while few wait.
    pub fn turn(&mut self, now_us: u64) -> bool {
        self.now_us = now_us;
        let mut worked = false;
        while let Some(brought) = self.stack.receive() {
            worked = true;
            self.take(brought);
        }
        let leaving = std::mem::take(&mut self.leaving);
        for (app, mut member) in leaving {
            member.forget_events();
            worked |= member.push();
            if member.has_unpushed() {
                self.leaving.push((app, member));
            } else {
                // Its descriptors close after the last commands.
                drop(member);
                self.stack.detach(app);
            }
        }
        let (before, from) = (..self.first, self.first..);
        let ids = self.apps.range(from).chain(self.apps.range(before));
        let ids: Vec<u32> = ids.map(|(app, _)| *app).collect();
        self.first = ids.first().map_or(0, |first| first.wrapping_add(1));
        let mut broken = Vec::new();
        let bounds = Bounds {
            out: OUT_MAX,
            handles: self.stack.handles_max(),
        };
        for app in ids {
            let Some(App::Attached(member)) = self.apps.get_mut(&app) else {
                continue;
            };
            let out = &mut self.out;
            match member.turn(app, out, bounds) {
                Ok(did) => worked |= did,
                Err(rule) => broken.push((app, rule)),
            }
            if member.wants_handles(now_us, bounds.handles) {
                self.stack.more_handles(app);
            }
        }
        for (app, rule) in broken {
            self.detach(app, rule);
        }
        worked
    }

    fn take(&mut self, brought: Brought) {
        match brought {
            Brought::Attached { app, granted } => {
                let modes = granted.modes;
                // The application may have been detached already.
                if let Some(found @ App::Attaching) = self.apps.get_mut(&app) {
                    *found = App::Attached(Box::new(Member::new(*granted)));
                    self.say(app, Body::Attached { errno: 0, modes });
                }
            }
            Brought::Refused { app, errno } => {
                if let Some(App::Attaching) = self.apps.get(&app) {
                    self.apps.remove(&app);
                    self.say(app, Body::Attached { errno, modes: 0 });
                }
            }
            Brought::Handles { app, handles } => {
                if let Some(App::Attached(member)) = self.apps.get_mut(&app) {
                    member.add_handles(self.now_us, handles);
                }
            }
            Brought::Gone { app } => match self.apps.remove(&app) {
                Some(App::Attached(mut member)) => {
                    // If the host stack is alive, it resets the connections.
                    member.close_all(true);
                    member.push();
                    self.stack.detach(app);
                    self.say(app, Body::Detached);
                }
                Some(App::Attaching) => {
                    let errno = Errno::AGAIN.raw_os_error().unsigned_abs();
                    self.say(app, Body::Attached { errno, modes: 0 });
                }
                None => self.leaving.retain(|(leaving, _)| *leaving != app),
            },
        }
    }

    /// Pushes waiting commands as far as there is room, with or without a session.
    pub fn flush(&mut self) {
        for app in self.apps.values_mut() {
            if let App::Attached(member) = app {
                member.push();
            }
        }
    }

    /// Arms the wake-ups. False if there is work.
    pub fn prepare_sleep(&mut self) -> bool {
        let leaving = self.leaving.iter_mut().map(|(_, member)| member);
        let apps = self.apps.values_mut().filter_map(|app| match app {
            App::Attached(member) => Some(member),
            App::Attaching => None,
        });
        let mut all = leaving.chain(apps);
        all.all(|member| member.prepare_sleep())
    }

    /// Disarms the wake-ups.
    pub fn finish_sleep(&mut self) {
        let leaving = self.leaving.iter_mut().map(|(_, member)| member);
        let apps = self.apps.values_mut().filter_map(|app| match app {
            App::Attached(member) => Some(member),
            App::Attaching => None,
        });
        leaving.chain(apps).for_each(|member| member.disarm());
    }
}
