//! The broker's service: processes attach, and get handles.
//!
//! It serves once the host process has named everything attached by earlier brokers: their
//! processes connect again, with the key of their application.
//!
//! It never waits for a client. It takes one packet of each at a time, within the rate of the
//! user's token buckets, and none while the host process takes no messages.

mod reattach;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use netsetup::seqpacket;
use observer::counter_names::BrokerCounters;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketAddrUnix, SocketFlags, accept_with, bind, shutdown};
use rustix::rand::{GetRandomFlags, getrandom};
use socket_channel::attach::{Attached, BadPacket, Key, MODES_ALL, Reply, Request};
use socket_channel::{AppId, ChannelId, HandleId, Layout, Segment, channel, handle_name};

use crate::broker::absent::Absent;
use crate::broker::applications::{Applications, TooMany};
use crate::broker::connection::{Connection, Received};
use crate::broker::doors::Doors;
use crate::broker::host_link::{HostGone, HostLink};
use crate::broker::rules::{Rule, rights_of};
use crate::broker::token_bucket::{Rate, TokenBucket};
use crate::closer::Closer;
use crate::ipc::messages::{
    BrokerToHost, HostToBroker, KnownApplication, NewApplication, NewProcess, SocketLimits,
};

/// Longest time from connecting to attaching.
pub(crate) const ATTACH_WAIT: Duration = Duration::from_secs(5);

/// Most processes that have connected and not attached: of a user, and in total. Beyond the total,
/// the oldest is dropped.
pub(crate) const STRANGERS_PER_USER_MAX: u32 = 32;
const STRANGERS_MAX: usize = 1024;

/// Most connections accepted in a turn.
const ACCEPTS_PER_TURN: usize = 16;

/// Most clients served in a turn.
const EVENTS_PER_TURN: usize = 64;

/// Most messages of the host process received in a turn.
const MESSAGES_PER_TURN: usize = 256;

/// Pause of the listener when the process has no descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Rate of log lines about clients.
const LOG: Rate = Rate {
    burst: 10,
    period: Duration::from_secs(1),
};

/// Token of the listener; clients have larger ones.
const LISTENER: u64 = 0;

/// A process that has connected.
#[derive(Debug)]
struct Client {
    connection: Connection,
    state: State,
    /// Its request, which waits for a token, or for room in its socket.
    held: Option<(Request, Option<OwnedFd>)>,
    /// Watched events of its socket.
    watched: Option<EventFlags>,
    timer: Option<Instant>,
}

#[derive(Debug)]
enum State {
    /// It has not attached.
    Stranger,
    /// The host process has not answered.
    Waiting {
        of: Member,
        /// `None` for a process that has its channel.
        ends: Option<ChannelEnds>,
    },
    Attached(Member),
}

/// A process of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    app: u32,
    channel: u32,
    is_first: bool,
}

impl State {
    fn member(&self) -> Option<Member> {
        match self {
            State::Stranger => None,
            State::Waiting { of, .. } => Some(*of),
            State::Attached(member) => Some(*member),
        }
    }
}

/// The descriptors of both ends of a channel.
#[derive(Debug)]
struct ChannelEnds {
    memory: OwnedFd,
    host_bell: OwnedFd,
    app_bell: OwnedFd,
    /// The application's end of its bell.
    app_watch: OwnedFd,
}

impl ChannelEnds {
    fn make() -> std::io::Result<Self> {
        let (app_bell, app_watch) = channel::create_app_bell()?;
        Ok(Self {
            memory: channel::create_file()?,
            host_bell: channel::create_bell()?,
            app_bell,
            app_watch,
        })
    }

    fn of_host(&self) -> [BorrowedFd<'_>; 3] {
        [&self.memory, &self.host_bell, &self.app_bell].map(AsFd::as_fd)
    }

    fn of_application(&self) -> [BorrowedFd<'_>; 3] {
        [&self.memory, &self.host_bell, &self.app_watch].map(AsFd::as_fd)
    }
}

/// Terms granted to applications.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) rules: Vec<Rule>,
    pub(crate) limits: SocketLimits,
    pub(crate) layout: Layout,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Service {
    terms: Terms,
    listener: OwnedFd,
    host: HostLink,
    /// The epoll set of the listener and the clients.
    ready: OwnedFd,
    /// Whether the host process takes no messages.
    is_host_behind: bool,
    /// Whether the host process has named everything attached by earlier brokers.
    is_informed: bool,
    applications: Applications,
    /// Processes attached by earlier brokers that have not connected again.
    absent: Absent,
    clients: HashMap<u64, Client>,
    next_client: u64,
    /// Clients that have not attached, oldest first.
    strangers: BTreeSet<u64>,
    /// Client of each channel.
    channels: HashMap<u32, u64>,
    timers: BTreeSet<(Instant, u64)>,
    log: TokenBucket,
    unlogged: u64,
    counters: BrokerCounters,
    /// Sockets over which NIC processes take files.
    doors: Doors,
    /// Clients whose files wait until NIC processes take them.
    awaiting_nics: Vec<u64>,
    closer: Closer,
}

impl Service {
    pub(crate) fn new(
        terms: Terms,
        applications: Applications,
        listener: OwnedFd,
        host: OwnedFd,
        closer: Closer,
        now: Instant,
    ) -> rustix::io::Result<Self> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &ready,
            &listener,
            EventData::new_u64(LISTENER),
            EventFlags::IN,
        )?;
        Ok(Self {
            terms,
            listener,
            host: HostLink::new(host),
            ready,
            is_host_behind: false,
            is_informed: false,
            applications,
            absent: Absent::default(),
            clients: HashMap::new(),
            next_client: LISTENER + 1,
            strangers: BTreeSet::new(),
            channels: HashMap::new(),
            timers: BTreeSet::new(),
            log: TokenBucket::full(LOG, now),
            unlogged: 0,
            counters: BrokerCounters::default(),
            doors: Doors::new(closer.clone()),
            awaiting_nics: Vec::new(),
            closer,
        })
    }

    /// Returns the descriptors to watch until the next turn.
    pub(crate) fn watch(&self) -> Vec<PollFd<'_>> {
        let (host, clients) = if self.is_host_behind {
            (PollFlags::IN | PollFlags::OUT, PollFlags::empty())
        } else if self.is_informed {
            (PollFlags::IN, PollFlags::IN)
        } else {
            (PollFlags::IN, PollFlags::empty())
        };
        let fds = [
            PollFd::new(&self.host, host),
            PollFd::new(&self.ready, clients),
        ];
        fds.into_iter().chain(self.doors.watch()).collect()
    }

    /// Returns when the next turn is due at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.filter(|_| !self.is_host_behind)
    }

    pub(crate) fn counters(&self) -> BrokerCounters {
        let (descriptors, files) = self.applications.held();
        BrokerCounters {
            descriptors_held: descriptors.into(),
            files_held: files.into(),
            ..self.counters
        }
    }

    /// Serves all that is ready, without blocking.
    pub(crate) fn turn(&mut self, now: Instant) -> Result<(), HostGone> {
        for _ in 0..MESSAGES_PER_TURN {
            let Some((message, descriptor)) = self.host.receive()? else {
                break;
            };
            self.on_host(message, descriptor, now);
        }
        if let Some(line) = self.applications.news() {
            self.complain(format_args!("{line}"), now);
        }
        if !self.is_informed {
            return Ok(());
        }
        self.on_timers(now)?;
        self.serve_awaiting(now)?;
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        // A failed call yields no events.
        let _ = epoll::wait(&self.ready, buffer, Some(&Timespec::default()));
        for event in events {
            // The rest stays ready for the next turn.
            if !self.is_host_ready()? {
                break;
            }
            match event.data.u64() {
                LISTENER => self.accept(now),
                token => self.on_ready(token, event.flags, now)?,
            }
        }
        self.is_host_ready()?;
        Ok(())
    }

    fn is_host_ready(&mut self) -> Result<bool, HostGone> {
        let is_ready = self.host.is_ready()?;
        self.is_host_behind = !is_ready;
        Ok(is_ready)
    }

    fn on_timers(&mut self, now: Instant) -> Result<(), HostGone> {
        while let Some((at, token)) = self.timers.first().copied()
            && at <= now
            && self.is_host_ready()?
        {
            self.timers.pop_first();
            if token == LISTENER {
                let data = EventData::new_u64(LISTENER);
                let _ = epoll::add(&self.ready, &self.listener, data, EventFlags::IN);
                continue;
            }
            let Some(client) = self.clients.get_mut(&token) else {
                continue;
            };
            if client.timer.take_if(|timer| *timer == at).is_none() {
                continue;
            }
            if let Some((request, descriptor)) = client.held.take() {
                self.serve(token, request, descriptor, now)?;
            } else if matches!(client.state, State::Stranger) {
                self.cut_off(token, &"has not attached in time", now);
            }
        }
        Ok(())
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_PER_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&self.listener, flags) {
                Ok(socket) => self.admit(socket, now),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    self.complain(format_args!("no process can connect: {errno}"), now);
                    let _ = epoll::delete(&self.ready, &self.listener);
                    self.timers.insert((now + ACCEPT_PAUSE, LISTENER));
                    return;
                }
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, now: Instant) {
        let Ok(connection) = Connection::new(socket) else {
            return;
        };
        let uid = connection.peer.uid.as_raw();
        let user = self.applications.user(uid, now);
        if user.strangers >= STRANGERS_PER_USER_MAX {
            self.counters.refused += 1;
            let _ = connection.send(&refusal(Errno::AGAIN), &[]);
            return;
        }
        user.strangers += 1;
        if self.strangers.len() >= STRANGERS_MAX
            && let Some(first) = self.strangers.first().copied()
        {
            self.cut_off(first, &"makes room for others", now);
        }
        let token = self.add(connection, State::Stranger);
        self.strangers.insert(token);
        self.set_timer(token, now + ATTACH_WAIT);
        self.set_watch(token, Some(EventFlags::IN));
    }

    fn add(&mut self, connection: Connection, state: State) -> u64 {
        let token = self.next_client;
        self.next_client += 1;
        let client = Client {
            connection,
            state,
            held: None,
            watched: None,
            timer: None,
        };
        self.clients.insert(token, client);
        token
    }

    fn set_timer(&mut self, token: u64, at: Instant) {
        if let Some(client) = self.clients.get_mut(&token) {
            if let Some(before) = client.timer.replace(at) {
                self.timers.remove(&(before, token));
            }
            self.timers.insert((at, token));
        }
    }

    /// Watches a socket for these events, or not at all. Removes a client whose socket cannot be
    /// watched.
    fn set_watch(&mut self, token: u64, flags: Option<EventFlags>) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        let (socket, data) = (&client.connection, EventData::new_u64(token));
        let changed = match (client.watched, flags) {
            (None, None) => Ok(()),
            (None, Some(flags)) => epoll::add(&self.ready, socket, data, flags),
            (Some(_), Some(flags)) => epoll::modify(&self.ready, socket, data, flags),
            (Some(_), None) => epoll::delete(&self.ready, socket),
        };
        match changed {
            Ok(()) => client.watched = flags,
            Err(_) => self.remove(token),
        }
    }

    fn on_ready(&mut self, token: u64, flags: EventFlags, now: Instant) -> Result<(), HostGone> {
        let Some(client) = self.clients.get_mut(&token) else {
            return Ok(());
        };
        if client.held.is_some() && flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            self.remove(token);
            return Ok(());
        }
        if let Some((request, descriptor)) = client.held.take() {
            self.set_watch(token, Some(EventFlags::IN));
            return self.serve(token, request, descriptor, now);
        }
        let is_attached = matches!(client.state, State::Attached(_));
        let takes_descriptors = is_attached && !self.closer.is_behind();
        match client.connection.receive(takes_descriptors) {
            Received::Nothing => {}
            Received::Gone => self.remove(token),
            Received::Request(request, descriptor) => {
                return self.serve(token, request, descriptor, now);
            }
            Received::Bad(bad, descriptors) => {
                for descriptor in descriptors {
                    self.closer.close(descriptor);
                }
                if let BadPacket::Version { .. } = bad {
                    let _ = client.connection.send(&refusal(Errno::PROTONOSUPPORT), &[]);
                }
                self.cut_off(token, &bad, now);
            }
        }
        Ok(())
    }

    /// Carries out a request, or holds it until its user has a token and its socket room.
    fn serve(
        &mut self,
        token: u64,
        request: Request,
        descriptor: Option<OwnedFd>,
        now: Instant,
    ) -> Result<(), HostGone> {
        let Some(client) = self.clients.get_mut(&token) else {
            return Ok(());
        };
        let uid = client.connection.peer.uid.as_raw();
        let user = self.applications.user(uid, now);
        let may = match request {
            Request::MoreHandles { .. } if !client.connection.is_writable() => {
                client.held = Some((request, descriptor));
                self.set_watch(token, Some(EventFlags::OUT));
                return Ok(());
            }
            Request::MoreHandles { .. } => user.handles.take(now),
            Request::PassFile if !self.doors.are_ready() => {
                client.held = Some((request, descriptor));
                self.awaiting_nics.push(token);
                self.set_watch(token, None);
                return Ok(());
            }
            Request::PassFile => user.files.take(now),
            Request::Attach { .. }
            | Request::Adopt
            | Request::Reattach { .. }
            | Request::Join { .. } => user.attach.take(now),
        };
        if let Err(at) = may {
            client.held = Some((request, descriptor));
            self.set_watch(token, None);
            self.set_timer(token, at);
            return Ok(());
        }
        self.set_watch(token, Some(EventFlags::IN));
        let Some(client) = self.clients.get(&token) else {
            return Ok(());
        };
        match (&client.state, request, descriptor) {
            (State::Stranger, Request::Attach { modes }, None) => self.attach(token, modes, now),
            (State::Stranger, Request::Reattach { app, channel, key }, None) => {
                self.reattach(token, app.0, channel.0, key, now)
            }
            (State::Stranger, Request::Join { app, key }, None) => {
                self.join(token, app.0, key, now)
            }
            (State::Attached(member), Request::Adopt, Some(socket)) => {
                self.adopt(member.app, socket, now)
            }
            (&State::Attached(member), Request::MoreHandles { count, nonblocking }, None) => {
                self.give_handles(token, member, count, nonblocking)
            }
            (State::Attached(member), Request::PassFile, descriptor) => {
                self.pass_file(token, member.app, descriptor);
                Ok(())
            }
            (_, _, descriptor) => {
                if let Some(descriptor) = descriptor {
                    self.closer.close(descriptor);
                }
                self.cut_off(token, &"asks for what it may not now", now);
                Ok(())
            }
        }
    }

    /// Passes a file of an application to the NIC processes.
    fn pass_file(&mut self, token: u64, app: u32, descriptor: Option<OwnedFd>) {
        let files_max = self.terms.limits.files_max as usize;
        let file = match descriptor {
            // The thread that closes descriptors is behind, or there is no room for another one.
            None => Err(Errno::BUSY),
            Some(descriptor) => {
                let checked = if self.doors.is_empty() {
                    Err(Errno::OPNOTSUPP)
                } else if self.doors.kept_of(app) >= files_max {
                    Err(Errno::MFILE)
                } else if !self.applications.may_pass_file(app) {
                    Err(Errno::NFILE)
                } else {
                    check_file(&descriptor)
                };
                match checked {
                    Ok(()) => Ok(self.keep_file(app, descriptor)),
                    Err(errno) => {
                        self.closer.close(descriptor);
                        Err(errno)
                    }
                }
            }
        };
        let file = file.map_err(|errno| errno.raw_os_error().unsigned_abs());
        let reply = Reply::Passed { file };
        let client = self.clients.get(&token);
        if client.is_some_and(|client| client.connection.send(&reply, &[]).is_err()) {
            self.remove(token);
        }
    }

    /// Keeps a file, and passes it to the NIC processes; returns its number.
    fn keep_file(&mut self, app: u32, descriptor: OwnedFd) -> u32 {
        let doors = &self.doors;
        let is_kept = |number| doors.keeps(app, number);
        let file = self.applications.next_number(is_kept);
        self.doors.pass(app, file, descriptor);
        self.applications.on_file_passed(app);
        self.counters.files += 1;
        file
    }

    /// Returns the number of an application's files that may still be sent.
    #[cfg(test)]
    pub(crate) fn files_of(&self, app: u32) -> usize {
        self.doors.kept_of(app)
    }

    /// Adds a NIC process that takes files.
    pub(crate) fn add_nic(&mut self, door: OwnedFd) {
        self.doors.add(door);
    }

    /// Serves clients whose files have waited for NIC processes.
    fn serve_awaiting(&mut self, now: Instant) -> Result<(), HostGone> {
        self.doors.receive();
        self.doors.send_unsent();
        if !self.doors.are_ready() {
            return Ok(());
        }
        for token in std::mem::take(&mut self.awaiting_nics) {
            let client = self.clients.get_mut(&token);
            if let Some((request, descriptor)) = client.and_then(|client| client.held.take()) {
                self.serve(token, request, descriptor, now)?;
            }
        }
        Ok(())
    }

    /// Begins an application for a process.
    fn attach(&mut self, token: u64, modes: u32, now: Instant) -> Result<(), HostGone> {
        let Some(peer) = self.clients.get(&token).map(|it| it.connection.peer) else {
            return Ok(());
        };
        let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
        let Some(rights) = rights_of(&self.terms.rules, uid, gid) else {
            let why = "no rule in [[sockets.allow]] is about its user and group";
            self.complain(format_args!("user {uid}, group {gid}: {why}"), now);
            self.refuse(token, Errno::ACCESS);
            return Ok(());
        };
        if let Err(TooMany) = self.applications.check_room(uid, now) {
            self.complain(format_args!("user {uid}: too many applications"), now);
            self.refuse(token, Errno::USERS);
            return Ok(());
        }
        let segment = match Segment::create_file(self.terms.layout) {
            Ok(segment) => segment,
            Err(error) => {
                self.complain(format_args!("making a segment: {error}"), now);
                self.refuse(token, errno_of(&error));
                return Ok(());
            }
        };
        let key = match new_key() {
            Ok(key) => key,
            Err(errno) => {
                self.complain(format_args!("making a key: {errno}"), now);
                self.refuse(token, errno);
                return Ok(());
            }
        };
        let known = KnownApplication {
            app: self.applications.next_number(|_| false),
            uid,
            modes: modes & MODES_ALL,
            next_handle: 0,
            handles: 0,
            key,
        };
        self.applications.add(&known, Some(segment), now);
        if let Err(TooMany) = self.applications.add_process(known.app) {
            self.applications.remove(known.app);
            self.refuse(token, Errno::USERS);
            return Ok(());
        }
        let application = NewApplication {
            limits: self.terms.limits,
            rights,
            key,
        };
        self.open_channel(token, known.app, Some(application))
    }

    /// Adds a process to an application.
    fn adopt(&mut self, app: u32, socket: OwnedFd, now: Instant) -> Result<(), HostGone> {
        let connection = match Connection::new(socket) {
            Ok(connection) => connection,
            Err((errno, descriptor)) => {
                self.closer.close(descriptor);
                self.complain(
                    format_args!("a socket that is none was passed: {errno}"),
                    now,
                );
                return Ok(());
            }
        };
        if let Err(TooMany) = self.applications.add_process(app) {
            self.counters.refused += 1;
            let _ = connection.send(&refusal(Errno::USERS), &[]);
            return Ok(());
        }
        let token = self.add(connection, State::Stranger);
        self.open_channel(token, app, None)
    }

    /// Creates the channel of a process, and passes the host's end.
    fn open_channel(
        &mut self,
        token: u64,
        app: u32,
        application: Option<NewApplication>,
    ) -> Result<(), HostGone> {
        self.leave_strangers(token);
        let is_first = application.is_some();
        let (channels, absent) = (&self.channels, &self.absent);
        let number = |it| channels.contains_key(&it) || absent.has(it);
        let channel = self.applications.next_number(number);
        let (Some(client), Some(known)) =
            (self.clients.get_mut(&token), self.applications.get(app))
        else {
            return Ok(());
        };
        let member = Member {
            app,
            channel,
            is_first,
        };
        let process = NewProcess {
            app,
            channel,
            pid: client.connection.peer.pid,
            uid: client.connection.peer.uid.as_raw(),
            modes: known.modes,
            application,
        };
        let made = ChannelEnds::make().map_err(|error| errno_of(&error));
        let sent = match made {
            Ok(ends) => {
                let segment = known.segment.as_ref().filter(|_| is_first);
                let segment = segment.map(AsFd::as_fd);
                let all: Vec<_> = segment.into_iter().chain(ends.of_host()).collect();
                let sent = self.host.send(&BrokerToHost::Attach(process), &all)?;
                sent.map(|()| ends)
            }
            Err(errno) => Err(errno),
        };
        match sent {
            Ok(ends) => {
                client.state = State::Waiting {
                    of: member,
                    ends: Some(ends),
                };
                self.channels.insert(channel, token);
                self.set_watch(token, None);
            }
            Err(errno) => {
                self.leave_application(member);
                self.refuse(token, errno);
            }
        }
        Ok(())
    }

    /// Creates handles, and passes the host's ends first: the application may use a handle as soon
    /// as it has its end.
    fn give_handles(
        &mut self,
        token: u64,
        of: Member,
        count: u32,
        nonblocking: bool,
    ) -> Result<(), HostGone> {
        let Member { app, channel, .. } = of;
        let mut ends = (Vec::new(), Vec::new());
        let sockets_max = self.terms.limits.sockets_max;
        let (room, no_room) = self.applications.handle_room(app, count, sockets_max);
        let mut why = (room < count).then_some(no_room);
        self.counters.handles_refused += u64::from(count - room);
        while ends.0.len() < room as usize {
            match handle(nonblocking) {
                Ok((host, own)) => {
                    ends.0.push(host);
                    ends.1.push(own);
                }
                Err(errno) => {
                    why = Some(errno);
                    break;
                }
            }
        }
        let made = ends.0.len() as u32;
        let Some(first) = self.applications.take_handles(app, made) else {
            return Ok(());
        };
        if let Some(known) = self.applications.get(app) {
            for (number, host) in (first..).zip(&ends.0) {
                set_name(host, &known.key, HandleId(number));
            }
        }
        if made > 0 {
            let host: Vec<_> = ends.0.iter().map(AsFd::as_fd).collect();
            let message = BrokerToHost::Handles {
                app,
                channel,
                first,
            };
            let sent = self.host.send(&message, &host)?;
            if let Err(errno) = sent {
                why = Some(errno);
                ends.1.clear();
            }
        }
        let own: Vec<_> = ends.1.iter().map(AsFd::as_fd).collect();
        let reply = Reply::Handles {
            first: HandleId(first),
            count: own.len() as u32,
            errno: why.map_or(0, |errno| errno.raw_os_error().unsigned_abs()),
        };
        self.counters.handles += own.len() as u64;
        let client = self.clients.get(&token);
        if client.is_some_and(|client| client.connection.send(&reply, &own).is_err()) {
            self.remove(token);
        }
        Ok(())
    }

    fn on_host(&mut self, message: HostToBroker, descriptor: Option<OwnedFd>, now: Instant) {
        match message {
            HostToBroker::Application(known) => self.applications.add(&known, descriptor, now),
            HostToBroker::Process(known) => {
                self.applications.add_known_process(known.app);
                self.absent.add(&known);
            }
            HostToBroker::File { app, file } => {
                self.applications.on_file_passed(app);
                self.doors.expect(app, file);
            }
            HostToBroker::Known => {
                self.is_informed = true;
                self.doors.ask_for_expected();
            }
            HostToBroker::Ended { app, channel } => {
                if self.absent.get(app, channel).is_some() {
                    self.absent.remove(channel);
                    self.applications.remove_process(app);
                }
            }
            HostToBroker::Attached { app, channel } => self.on_attached(app, channel),
            HostToBroker::Refused {
                app,
                channel,
                errno,
            } => self.on_refused(app, channel, errno, now),
            HostToBroker::Detached { app } => {
                self.applications.remove(app);
                self.doors.release_all(app);
                self.absent.remove_all_of(app);
                let of_app =
                    |client: &Client| client.state.member().is_some_and(|it| it.app == app);
                let clients = self.clients.iter();
                let left: Vec<u64> = clients
                    .filter_map(|(token, client)| of_app(client).then_some(*token))
                    .collect();
                for token in left {
                    self.forget(token);
                }
            }
            HostToBroker::HandlesClosed { app, count } => {
                self.applications.on_handles_closed(app, count);
            }
            HostToBroker::Released { app, file } => {
                if self.doors.keeps(app, file) {
                    self.applications.on_file_released(app);
                }
                self.doors.release(app, file);
            }
        }
    }

    /// Returns the process that waits for the host process to serve this channel.
    fn waiting(&self, app: u32, channel: u32) -> Option<(u64, Member)> {
        let token = *self.channels.get(&channel)?;
        match self.clients.get(&token)?.state {
            State::Waiting { of, .. } if of.app == app => Some((token, of)),
            _ => None,
        }
    }

    fn on_attached(&mut self, app: u32, channel: u32) {
        let Some((token, member)) = self.waiting(app, channel) else {
            return;
        };
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        let state = std::mem::replace(&mut client.state, State::Attached(member));
        let mut counter = &mut self.counters.attached;
        let sent = match state {
            State::Waiting { ends: None, .. } => {
                counter = &mut self.counters.reattached;
                client.connection.send(&Reply::Reattached, &[]).is_ok()
            }
            State::Waiting {
                ends: Some(ends), ..
            } => {
                let segment = self.applications.get(app);
                let segment = segment.and_then(|it| Some((it.segment.as_ref()?, it)));
                segment.is_some_and(|(segment, known)| {
                    let [memory, host_bell, app_bell] = ends.of_application();
                    let reply = Reply::Attached(Attached {
                        app: AppId(app),
                        channel: ChannelId(channel),
                        limits: self.terms.limits.of_segment(),
                        modes: known.modes,
                        key: known.key,
                    });
                    let all = [segment.as_fd(), memory, host_bell, app_bell];
                    client.connection.send(&reply, &all).is_ok()
                })
            }
            State::Stranger | State::Attached(_) => false,
        };
        if sent {
            *counter += 1;
            self.set_watch(token, Some(EventFlags::IN));
        } else {
            self.remove(token);
        }
    }

    fn on_refused(&mut self, app: u32, channel: u32, errno: u32, now: Instant) {
        let Some((token, member)) = self.waiting(app, channel) else {
            return;
        };
        let errno = Errno::from_raw_os_error(errno.clamp(1, 4095).cast_signed());
        self.complain(format_args!("the host process refuses one: {errno}"), now);
        if let Some(client) = self.clients.get_mut(&token) {
            client.state = State::Stranger;
        }
        self.channels.remove(&channel);
        self.leave_application(member);
        self.refuse(token, errno);
    }

    /// Removes a process from its application without a message to the host process, which has
    /// refused the process or was never asked.
    fn leave_application(&mut self, member: Member) {
        self.applications.remove_process(member.app);
        if member.is_first {
            self.applications.remove(member.app);
        }
    }

    fn refuse(&mut self, token: u64, errno: Errno) {
        self.counters.refused += 1;
        if let Some(client) = self.clients.get(&token) {
            let _ = client.connection.send(&refusal(errno), &[]);
        }
        self.remove(token);
    }

    fn leave_strangers(&mut self, token: u64) {
        if !self.strangers.remove(&token) {
            return;
        }
        if let Some(client) = self.clients.get_mut(&token) {
            if let Some(at) = client.timer.take() {
                self.timers.remove(&(at, token));
            }
            let uid = client.connection.peer.uid.as_raw();
            self.applications.stranger_left(uid);
        }
    }

    /// Handles the end of a process.
    fn remove(&mut self, token: u64) {
        if let Some(member) = self.forget(token) {
            self.applications.remove_process(member.app);
            self.host.send_gone(member.app, member.channel);
        }
    }

    /// Closes the socket of a client; returns the application's process that it was, if any.
    fn forget(&mut self, token: u64) -> Option<Member> {
        self.leave_strangers(token);
        let client = self.clients.remove(&token)?;
        if let Some((_, Some(descriptor))) = client.held {
            self.closer.close(descriptor);
        }
        if client.watched.is_some() {
            // Closing is not enough: the application may hold a copy of the same open file.
            let _ = epoll::delete(&self.ready, &client.connection);
        }
        if let Some(at) = client.timer {
            self.timers.remove(&(at, token));
        }
        let member = client.state.member()?;
        self.channels.remove(&member.channel);
        Some(member)
    }

    /// Closes the connection of a process that violates the protocol.
    fn cut_off(&mut self, token: u64, why: &dyn fmt::Display, now: Instant) {
        if let Some(client) = self.clients.get(&token) {
            let (uid, pid) = (client.connection.peer.uid, client.connection.peer.pid);
            let pid = pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
            let uid = uid.as_raw();
            self.complain(
                format_args!("process {pid} of user {uid} is cut off: {why}"),
                now,
            );
        }
        self.counters.cut_off += 1;
        self.remove(token);
    }

    /// Logs a line, within the rate.
    fn complain(&mut self, line: fmt::Arguments<'_>, now: Instant) {
        if self.log.take(now).is_err() {
            self.unlogged += 1;
            return;
        }
        match std::mem::take(&mut self.unlogged) {
            0 => tracing::warn!("sockets: {line}"),
            more => tracing::warn!("sockets: {line} ({more} more lines were left out)"),
        }
    }

    #[cfg(test)]
    pub(crate) fn applications(&self) -> usize {
        self.applications.len()
    }

    #[cfg(test)]
    pub(crate) fn host(&self) -> &HostLink {
        &self.host
    }

    #[cfg(test)]
    pub(crate) fn clients(&self) -> usize {
        self.clients.len()
    }
}

fn refusal(errno: Errno) -> Reply {
    Reply::Refused {
        errno: errno.raw_os_error().unsigned_abs(),
    }
}

/// Generates the secret of a new application.
fn new_key() -> rustix::io::Result<Key> {
    let mut bytes = [0; Key::BYTES];
    let count = rustix::io::retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))?;
    // The kernel returns up to 256 bytes at once.
    if count == bytes.len() {
        Ok(Key::new(bytes))
    } else {
        Err(Errno::IO)
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::NOMEM)
}

/// Creates a handle: the host's end and the application's. A write to the latter fails with EPIPE,
/// as on a socket that is not connected.
fn handle(nonblocking: bool) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (host, own) = if nonblocking {
        seqpacket::non_blocking_pair()?
    } else {
        seqpacket::pair()?
    };
    shutdown(&host, Shutdown::Read)?;
    Ok((host, own))
}

/// Names the host's end of a handle, for processes that get its descriptor from others. Without a
/// name, a handle still works for its own process.
fn set_name(host: &OwnedFd, key: &Key, handle: HandleId) {
    let name = handle_name::encode(key, handle);
    let named =
        SocketAddrUnix::new_abstract_name(name.as_bytes()).and_then(|address| bind(host, &address));
    if let Err(errno) = named {
        tracing::debug!("sockets: handle {} has no name: {errno}", handle.0);
    }
}

/// Returns EBADF unless a descriptor was opened for reading. The NIC process checks the kind of
/// file.
fn check_file(descriptor: &OwnedFd) -> rustix::io::Result<()> {
    let flags = fcntl_getfl(descriptor)?;
    let is_readable = [OFlags::RDONLY, OFlags::RDWR].contains(&(flags & OFlags::RWMODE));
    if is_readable && !flags.contains(OFlags::PATH) {
        Ok(())
    } else {
        Err(Errno::BADF)
    }
}
