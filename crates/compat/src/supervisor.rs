//! The supervisor: a thread that answers calls of the program, and moves its bytes.
//!
//! It works sequentially, so no two calls meet on a socket half made. All its events come from one
//! epoll set of the library's: of calls, split sockets, and its ends of the pairs.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use capi::client::{Client, DescriptorFlags, EpollChange, EpollEvent, Polled};
use preload::rules::Rules;
use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, Result};
use rustix::process::getpid;

use crate::options;
use crate::pair::{Pair, empty, has_hung_up, prepare_reset, put_token, take_tokens};
use crate::relay::{Ends, Next};
use crate::socket::{Connecting, Listener, Socket, State, Stream, Waiter};
use crate::sys::{Notification, Notifier, RESTART};
use crate::tracee::{Pending, Tracee};

/// Flags of the supervisor's descriptors.
pub(crate) const OWN_FLAGS: DescriptorFlags = DescriptorFlags {
    nonblocking: true,
    close_on_exec: true,
};

/// Data of events that are of no socket; other events have the socket's key, and a bit for the
/// split one.
const OF_CALLS: u64 = 2;
const OF_END: u64 = 6;
const SPLIT: u64 = 1;
const KEY_AT: u32 = 2;
const FIRST_KEY: u64 = 16;

/// Events taken in a turn, and calls answered in one.
const EVENTS: usize = 256;
const CALLS_PER_TURN: usize = 64;

/// Bytes moved at a time.
const SCRATCH_BYTES: usize = 128 << 10;

/// Interval of checks on waiting calls: a signal does not wake their threads.
const TICK: Duration = Duration::from_millis(25);

/// How long a connection that the program has closed may stand still. The limit is the same for
/// programs with the library.
const LINGER: Duration = Duration::from_secs(60);

/// The same limit once the program and all its descendants have ended.
const LINGER_AT_END: Duration = Duration::from_secs(10);

/// Most ended sockets that are kept to answer calls, as the program may still have them.
const ENDED_MAX: usize = 1024;

/// Most tokens in a pair, which signal waiting connections.
const TOKENS_MAX: usize = 16;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) client: Client,
    pub(crate) notifier: Notifier,
    pub(crate) listen: Rules,
    pub(crate) connect: Rules,
    set: OwnedFd,
    /// Becomes readable when the program and all its descendants have ended.
    end: OwnedFd,
    ends_at: Option<Instant>,
    sockets: HashMap<u64, Socket>,
    by_inode: HashMap<u64, u64>,
    next_key: u64,
    /// Connections with more to move.
    busy: BTreeSet<u64>,
    /// Sockets with waiting calls.
    waiting: BTreeSet<u64>,
    waiters_looked_after: Instant,
    /// Connections that the program has closed, and that are not over.
    leaving: BTreeSet<u64>,
    ended: VecDeque<u64>,
    scratch: Vec<u8>,
    /// The program was reported as one that cannot be inspected.
    pub(crate) has_complained: bool,
}

impl Supervisor {
    pub(crate) fn new(
        client: Client,
        notifier: Notifier,
        (listen, connect): (Rules, Rules),
        end: OwnedFd,
    ) -> Result<Supervisor> {
        let set = client.epoll_create(true)?;
        for (fd, data) in [(notifier.as_fd(), OF_CALLS), (end.as_fd(), OF_END)] {
            let events = EventFlags::IN.bits();
            let event = EpollEvent { events, data };
            client.epoll_change(set.as_fd(), fd, EpollChange::Add(event))?;
        }
        Ok(Supervisor {
            client,
            notifier,
            listen,
            connect,
            set,
            end,
            ends_at: None,
            sockets: HashMap::new(),
            by_inode: HashMap::new(),
            next_key: FIRST_KEY,
            busy: BTreeSet::new(),
            waiting: BTreeSet::new(),
            waiters_looked_after: Instant::now(),
            leaving: BTreeSet::new(),
            ended: VecDeque::new(),
            scratch: vec![0; SCRATCH_BYTES],
            has_complained: false,
        })
    }

    /// Runs until the program has ended, and its bytes are sent.
    pub(crate) fn run(mut self) {
        let mut events = vec![EpollEvent::default(); EVENTS];
        while !self.is_over() {
            let found = self
                .client
                .epoll_wait(self.set.as_fd(), &mut events, self.timeout());
            match found {
                Ok(found) => {
                    for event in &events[..found] {
                        self.dispatch(*event);
                    }
                }
                Err(Errno::INTR) => {}
                // Calls are answered even if no socket is split any more.
                Err(_) => self.wait_for_calls(),
            }
            for key in std::mem::take(&mut self.busy) {
                self.with(key, Supervisor::pump);
            }
            self.look_after_waiters();
            self.look_after_leaving();
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.busy.is_empty() {
            Some(Duration::ZERO)
        } else if !self.waiting.is_empty() {
            Some(TICK)
        } else if !self.leaving.is_empty() || self.ends_at.is_some() {
            Some(Duration::from_secs(1))
        } else {
            None
        }
    }

    fn is_over(&self) -> bool {
        let is_connected = |socket: &Socket| matches!(socket.state, State::Connected(_));
        self.ends_at.is_some() && !self.sockets.values().any(is_connected)
    }

    fn wait_for_calls(&mut self) {
        let keys: Vec<u64> = self.sockets.keys().copied().collect();
        for key in keys {
            self.with(key, |it, socket| it.fail(socket, Errno::CONNRESET));
        }
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: TICK.subsec_nanos().into(),
        };
        let mut fds = [
            PollFd::new(&self.notifier, PollFlags::IN),
            PollFd::new(&self.end, PollFlags::IN),
        ];
        let _ = poll(&mut fds, Some(&timeout));
        let [calls, end] = fds.map(|fd| !fd.revents().is_empty());
        if calls {
            self.answer_calls();
        }
        if end {
            self.ends_at.get_or_insert_with(Instant::now);
        }
    }

    fn dispatch(&mut self, event: EpollEvent) {
        match event.data {
            OF_CALLS => self.answer_calls(),
            OF_END => {
                self.ends_at.get_or_insert_with(Instant::now);
                let (set, end) = (self.set.as_fd(), self.end.as_fd());
                let _ = self.client.epoll_change(set, end, EpollChange::Delete);
            }
            data => {
                let has_hung_up = event.events & EventFlags::HUP.bits() != 0;
                if data & SPLIT != 0 {
                    self.with(data >> KEY_AT, Supervisor::split_changed);
                } else if has_hung_up {
                    self.with(data >> KEY_AT, Supervisor::program_hung_up);
                } else {
                    self.with(data >> KEY_AT, Supervisor::pump);
                }
            }
        }
    }

    /// Answers waiting calls, at most one turn's number before sockets have their turn.
    fn answer_calls(&mut self) {
        for _ in 0..CALLS_PER_TURN {
            let mut fds = [PollFd::new(&self.notifier, PollFlags::IN)];
            let polled = poll(&mut fds, Some(&Timespec::default()));
            if polled != Ok(1) || !fds[0].revents().contains(PollFlags::IN) {
                return;
            }
            match self.notifier.receive() {
                Ok(Some(notification)) => self.handle(&notification),
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    /// Works on a socket, which may end meanwhile.
    pub(crate) fn with<T>(
        &mut self,
        key: u64,
        work: impl FnOnce(&mut Supervisor, &mut Socket) -> T,
    ) -> Option<T> {
        let mut socket = self.sockets.remove(&key)?;
        let done = work(self, &mut socket);
        if socket.has_waiters() {
            self.waiting.insert(key);
        } else {
            self.waiting.remove(&key);
        }
        self.sockets.insert(key, socket);
        Some(done)
    }

    /// Returns the key of the socket behind an inode.
    pub(crate) fn key_of(&self, inode: u64) -> Option<u64> {
        self.by_inode.get(&inode).copied()
    }

    /// Takes over a split socket and an end of a pair, and watches both from now on.
    pub(crate) fn register(&mut self, mut socket: Socket) -> Result<u64> {
        let key = self.next_key;
        self.next_key += 1;
        socket.key = key;
        self.watch(socket.own.as_ref().map(AsFd::as_fd), key << KEY_AT)?;
        self.watch(
            socket.split.as_ref().map(AsFd::as_fd),
            key << KEY_AT | SPLIT,
        )?;
        self.by_inode.insert(socket.inode, key);
        self.busy.insert(key);
        self.sockets.insert(key, socket);
        Ok(key)
    }

    /// Gives a socket another pair.
    pub(crate) fn renew(&mut self, socket: &mut Socket, pair: Pair) -> Result<()> {
        self.watch(Some(pair.own.as_fd()), socket.key << KEY_AT)?;
        self.by_inode.remove(&socket.inode);
        self.by_inode.insert(pair.inode, socket.key);
        self.ended.retain(|key| *key != socket.key);
        socket.inode = pair.inode;
        socket.own = Some(pair.own);
        Ok(())
    }

    fn watch(&self, fd: Option<BorrowedFd<'_>>, data: u64) -> Result<()> {
        let Some(fd) = fd else { return Ok(()) };
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let event = EpollEvent {
            events: events.bits(),
            data,
        };
        self.client
            .epoll_change(self.set.as_fd(), fd, EpollChange::Add(event))
    }

    /// Handles a socket that the program has closed with all its duplicates.
    fn program_hung_up(&mut self, socket: &mut Socket) {
        if let State::Connected(stream) = &mut socket.state {
            stream.is_gone = true;
            self.leaving.insert(socket.key);
            self.pump(socket);
        } else {
            self.end(socket);
        }
    }

    /// Ends the sockets that the program has closed, even if their events still wait: their
    /// addresses are free. False if there are none.
    pub(crate) fn end_closed(&mut self) -> bool {
        self.end_closed_among(|state| !matches!(state, State::Connected(_)))
    }

    /// As [`Supervisor::end_closed`], for listeners alone.
    pub(crate) fn end_closed_listeners(&mut self) {
        self.end_closed_among(|state| matches!(state, State::Listening(_)));
    }

    fn end_closed_among(&mut self, are: impl Fn(&State) -> bool) -> bool {
        let is_closed = |socket: &&Socket| {
            let own = socket.own.as_ref().filter(|_| are(&socket.state));
            own.is_some_and(|own| has_hung_up(own.as_fd()))
        };
        let closed = self.sockets.values().filter(is_closed);
        let closed: Vec<u64> = closed.map(|socket| socket.key).collect();
        for key in &closed {
            self.with(*key, Supervisor::program_hung_up);
        }
        !closed.is_empty()
    }

    /// Handles an event of a split socket.
    fn split_changed(&mut self, socket: &mut Socket) {
        match &socket.state {
            State::Listening(_) => self.connection_came(socket),
            State::Connecting(_) => self.connecting_changed(socket),
            State::Connected(_) => self.pump(socket),
            State::Bound { .. } | State::Failed | State::Ended { .. } => {}
        }
    }

    fn pump(&mut self, socket: &mut Socket) {
        let (Some(split), Some(own)) = (&socket.split, &socket.own) else {
            return;
        };
        let State::Connected(stream) = &mut socket.state else {
            return;
        };
        let ends = Ends {
            client: &self.client,
            split: split.as_fd(),
            own: own.as_fd(),
        };
        match ends.pump(stream, &mut self.scratch) {
            Next::Wait => {}
            Next::Turn => {
                self.busy.insert(socket.key);
            }
            Next::End => match stream.failure {
                Some(errno) if !stream.is_gone => self.fail(socket, errno),
                _ => {
                    // The bytes sent must arrive: the reset for unread bytes would overtake them.
                    if stream.is_reset && ends.is_acknowledged() {
                        ends.prepare_reset();
                    }
                    self.end(socket);
                }
            },
        }
        if socket.own.is_some() && matches!(&socket.state, State::Connected(it) if it.is_gone) {
            self.leaving.insert(socket.key);
        }
    }

    /// Ends a socket with an error that the program sees.
    pub(crate) fn fail(&mut self, socket: &mut Socket, errno: Errno) {
        if let Some(own) = &socket.own {
            let (thread, place) = socket.holder;
            prepare_reset(own.as_fd(), || thread.find_end(place, socket.inode));
        }
        socket.error = Some(errno);
        self.end(socket);
    }

    /// Closes the descriptors of a socket. Calls on it are still answered.
    pub(crate) fn end(&mut self, socket: &mut Socket) {
        let has_listened = matches!(socket.state, State::Listening(_));
        for waiter in socket.take_waiters() {
            let errno = socket.error.unwrap_or(Errno::INVAL);
            self.answer(&waiter.notification, Err(errno));
        }
        let state = std::mem::replace(&mut socket.state, State::Ended { has_listened });
        if let State::Listening(listener) = state {
            for (split, _) in listener.returned {
                let _ = self.client.close(split);
            }
        }
        if let Some(split) = socket.split.take() {
            socket.last_local = self.client.local_address(split.as_fd()).ok();
            let _ = self.client.close(split);
        }
        self.leaving.remove(&socket.key);
        self.busy.remove(&socket.key);
        socket.own = None;
        self.note_ended(socket.key);
    }

    /// Records the end of a socket, or its failure to connect; the oldest beyond the limit is
    /// forgotten.
    pub(crate) fn note_ended(&mut self, key: u64) {
        if self.ended.contains(&key) {
            return;
        }
        self.ended.push_back(key);
        if self.ended.len() > ENDED_MAX
            && let Some(oldest) = self.ended.pop_front()
            && let Some(socket) = self.sockets.remove(&oldest)
        {
            self.by_inode.remove(&socket.inode);
            if let Some(split) = socket.split {
                let _ = self.client.close(split);
            }
        }
    }

    /// Answers a call. An error means that its thread is gone, and is ignored.
    pub(crate) fn answer(&self, notification: &Notification, done: Result<i64>) {
        let _ = match done {
            Ok(value) => self.notifier.answer(notification, value, 0),
            Err(errno) => self.notifier.answer(notification, 0, errno.raw_os_error()),
        };
    }

    /// Ends waiting calls at their deadlines, and for signals. The kernel wakes their threads only
    /// for deadly signals, so that no other call is ever made twice.
    fn look_after_waiters(&mut self) {
        if self.waiting.is_empty() || self.waiters_looked_after.elapsed() < TICK {
            return;
        }
        self.waiters_looked_after = Instant::now();
        let keys: Vec<u64> = self.waiting.iter().copied().collect();
        for key in keys {
            self.with(key, |it, socket| {
                let timed_out = match &socket.state {
                    // As accept(2), and as connect(2) of a socket with SO_SNDTIMEO.
                    State::Listening(_) => Errno::AGAIN,
                    _ => Errno::INPROGRESS,
                };
                match &mut socket.state {
                    State::Listening(listener) => {
                        let waiters = std::mem::take(&mut listener.waiters).into_iter();
                        listener.waiters =
                            waiters.filter(|call| it.goes_on(call, timed_out)).collect();
                    }
                    State::Connecting(connecting) => {
                        let waiter = connecting.waiter.take();
                        connecting.waiter = waiter.filter(|call| it.goes_on(call, timed_out));
                    }
                    _ => {}
                }
            });
        }
    }

    /// True if a call goes on waiting; otherwise it is answered.
    fn goes_on(&self, waiter: &Waiter, timed_out: Errno) -> bool {
        let notification = &waiter.notification;
        let pending = notification
            .thread
            .and_then(|thread| Tracee(thread).pending());
        if !self.notifier.is_waiting(notification) {
            return false;
        }
        match pending {
            // As kernel calls end when a signal interrupts them: the signal's handler decides
            // whether the call is made again.
            Some(Pending::Surely) => {
                let _ = self.notifier.answer(notification, 0, RESTART);
                false
            }
            Some(Pending::Perhaps) => {
                self.answer(notification, Err(Errno::INTR));
                false
            }
            None => {
                let is_late = waiter.deadline.is_some_and(|it| it <= Instant::now());
                if is_late {
                    self.answer(notification, Err(timed_out));
                }
                !is_late
            }
        }
    }

    /// Gives up connections that the program has closed and whose peers take no bytes.
    fn look_after_leaving(&mut self) {
        let linger = if self.ends_at.is_some() {
            LINGER_AT_END
        } else {
            LINGER
        };
        let keys: Vec<u64> = match self.ends_at {
            Some(at) if at.elapsed() >= LINGER_AT_END => self.sockets.keys().copied().collect(),
            _ => self.leaving.iter().copied().collect(),
        };
        for key in keys {
            self.with(key, |it, socket| {
                let State::Connected(stream) = &socket.state else {
                    return;
                };
                if stream.moved.elapsed() < linger {
                    return;
                }
                if let (Some(split), Some(own)) = (&socket.split, &socket.own) {
                    let ends = Ends {
                        client: &it.client,
                        split: split.as_fd(),
                        own: own.as_fd(),
                    };
                    ends.prepare_reset();
                }
                it.end(socket);
            });
        }
    }

    /// Handles an event of a listener: a connection waits, or the listener has ended.
    fn connection_came(&mut self, socket: &mut Socket) {
        loop {
            let State::Listening(listener) = &mut socket.state else {
                return;
            };
            let Some(waiter) = listener.waiters.pop_front() else {
                break;
            };
            match self.take_connection(socket) {
                Ok(Some(connection)) => self.give(socket, &waiter, connection),
                Ok(None) => {
                    if let State::Listening(listener) = &mut socket.state {
                        listener.waiters.push_front(waiter);
                    }
                    break;
                }
                Err(errno) => {
                    self.answer(&waiter.notification, Err(errno));
                    // A lack of descriptors may pass.
                    if [Errno::CONNRESET, Errno::INVAL].contains(&errno) {
                        self.fail(socket, errno);
                        return;
                    }
                }
            }
        }
        self.tell_of_connections(socket, None);
    }

    /// Takes the next connection of a listener.
    pub(crate) fn take_connection(
        &mut self,
        socket: &mut Socket,
    ) -> Result<Option<(OwnedFd, SocketAddr)>> {
        let split = socket.split.as_ref().ok_or(Errno::INVAL)?;
        let State::Listening(listener) = &mut socket.state else {
            return Err(Errno::INVAL);
        };
        if let Some(connection) = listener.returned.pop_front() {
            return Ok(Some(connection));
        }
        match self.client.accept(split.as_fd(), OWN_FLAGS) {
            Ok(connection) => Ok(Some(connection)),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Gives a connection to the call that waits for it. If the call cannot take it, the next call
    /// gets it.
    pub(crate) fn give(
        &mut self,
        socket: &mut Socket,
        waiter: &Waiter,
        (split, peer): (OwnedFd, SocketAddr),
    ) {
        let given = self.try_to_give(socket, waiter, peer);
        match given {
            Ok((pair, place)) => {
                let thread = waiter.notification.thread;
                let connection = Socket {
                    key: 0,
                    inode: pair.inode,
                    family: socket.family,
                    split: Some(split),
                    own: Some(pair.own),
                    holder: (Tracee(thread.unwrap_or(getpid())), place),
                    error: None,
                    remains: None,
                    last_local: None,
                    state: State::Connected(Stream::new(false)),
                };
                let _ = self.register(connection);
            }
            Err(errno) => {
                if let State::Listening(listener) = &mut socket.state {
                    listener.returned.push_front((split, peer));
                }
                self.answer(&waiter.notification, Err(errno));
            }
        }
    }

    fn try_to_give(
        &self,
        socket: &Socket,
        waiter: &Waiter,
        peer: SocketAddr,
    ) -> Result<(Pair, RawFd)> {
        let notification = &waiter.notification;
        let pair = Pair::new(waiter.flags & libc::SOCK_NONBLOCK != 0)?;
        // The connection has inherited the listener's timeouts.
        if let Some(listener) = &socket.split {
            options::copy_timeouts(&self.client, listener.as_fd(), pair.programs.as_fd())?;
        }
        self.write_address(notification, 1, peer, true)?;
        let close_on_exec = waiter.flags & libc::SOCK_CLOEXEC != 0;
        let programs = pair.programs.as_fd();
        let place = self
            .notifier
            .answer_with(notification, programs, close_on_exec)?;
        Ok((pair, place))
    }

    /// Makes a listener readable as long as connections wait. `caller` is a thread that has the
    /// listener, and the descriptor's number.
    pub(crate) fn tell_of_connections(
        &mut self,
        socket: &mut Socket,
        caller: Option<(Tracee, RawFd)>,
    ) {
        let (Some(split), Some(own)) = (&socket.split, &socket.own) else {
            return;
        };
        let State::Listening(listener) = &mut socket.state else {
            return;
        };
        let mut polled = [Polled {
            fd: Some(split.as_fd()),
            events: PollFlags::IN.bits(),
            found: 0,
        }];
        let _ = self.client.poll(&mut polled, Some(Duration::ZERO));
        let found = PollFlags::from_bits_retain(polled[0].found);
        if found.intersects(PollFlags::ERR | PollFlags::HUP) {
            self.fail(socket, Errno::CONNRESET);
            return;
        }
        let waits = found.contains(PollFlags::IN) || !listener.returned.is_empty();
        // Without a caller a connection has just come, which is an edge of its own.
        let is_news = caller.is_none() || listener.tokens == 0;
        if waits {
            if is_news && listener.tokens < TOKENS_MAX && put_token(own.as_fd()) {
                listener.tokens += 1;
            }
        } else if listener.tokens > 0 {
            let (thread, place) = socket.holder;
            let end = match caller {
                Some((thread, place)) => thread.duplicate(place).ok(),
                None => thread.find_end(place, socket.inode),
            };
            if let Some(end) = end {
                take_tokens(end.as_fd(), listener.tokens);
                listener.tokens = 0;
            }
        }
    }

    /// Handles a connecting socket that may be connected, or have failed.
    pub(crate) fn connecting_changed(&mut self, socket: &mut Socket) {
        let (Some(split), Some(own)) = (&socket.split, &socket.own) else {
            return;
        };
        let State::Connecting(connecting) = &mut socket.state else {
            return;
        };
        let Connecting {
            filling,
            address,
            waiter,
        } = connecting;
        match self.client.connect(split.as_fd(), *address) {
            Err(Errno::ALREADY | Errno::INPROGRESS | Errno::INTR) => {}
            Ok(()) => {
                let waiter = waiter.take();
                let emptied = empty(own.as_fd(), *filling, &mut self.scratch);
                socket.state = State::Connected(Stream::new(waiter.is_none()));
                if let Some(waiter) = waiter {
                    self.answer(&waiter.notification, Ok(0));
                }
                match emptied {
                    Ok(()) => self.pump(socket),
                    Err(_) => self.program_hung_up(socket),
                }
            }
            Err(errno) => {
                match waiter.take() {
                    Some(waiter) => self.answer(&waiter.notification, Err(errno)),
                    None => socket.error = Some(errno),
                }
                // The end becomes writable, and has an error as a byte is left in it. The program
                // may connect by it once more.
                let _ = empty(own.as_fd(), filling.saturating_sub(1), &mut self.scratch);
                socket.own = None;
                socket.state = State::Failed;
                self.note_ended(socket.key);
            }
        }
    }

    /// Makes a socket that has an address a listener.
    pub(crate) fn begin_to_listen(&mut self, socket: &mut Socket) {
        if let State::Bound { filling } = socket.state {
            socket.state = State::Listening(Listener {
                filling,
                ..Listener::default()
            });
        }
    }
}
