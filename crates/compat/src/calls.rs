//! Calls of the program, and their results.
//!
//! An argument that is a pointer leads to memory that other threads of the program may change.
//! Bytes that decide are read once: an address that is to be split is never left to the kernel,
//! even if it changes. Any other address is read again by the kernel, and may have changed by then:
//! the program gets the result that it would have without the supervisor, on a socket of the
//! kernel's. Rules choose the stack of a socket, and protect nothing.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Instant;

use capi::abi::{address, address_bytes, option_value_of};
use capi::client::DescriptorFlags;
use capi::{Family, How};
use preload::kernels::{bound, stream_family, tcp_socket, unspecified};
use preload::rules::Rules;
use rustix::io::{Errno, Result};
use rustix::net::sockopt::socket_error;
use rustix::net::{Protocol, Shutdown, ipproto, shutdown};
use rustix::process::{Signal, kill_process};

use crate::filter::ARCHITECTURE;
#[cfg(target_arch = "x86_64")]
use crate::filter::X32;
use crate::options;
use crate::pair::Pair;
use crate::socket::{Connecting, Socket, State, Waiter};
use crate::supervisor::{OWN_FLAGS, Supervisor};
use crate::sys::{self, Notification};
use crate::tracee::Tracee;

/// Bytes of the longest address (`struct sockaddr_storage`).
const ADDRESS_BYTES_MAX: u64 = 128;

/// Bytes of the longest value of an option.
const OPTION_BYTES_MAX: u64 = 256;

/// Decision on a call.
enum Answer {
    /// It returns a number.
    Value(i64),
    /// The kernel makes it.
    Kernel,
    /// It was answered, or waits.
    Done,
}

/// A call, and the thread that makes it.
#[derive(Clone, Copy)]
struct Caller<'a> {
    notification: &'a Notification,
    thread: Tracee,
}

impl Caller<'_> {
    /// Returns an argument that is an `int`.
    fn number(&self, place: usize) -> i32 {
        self.notification.arguments[place] as i32
    }
}

/// Reports a problem to the user.
fn complain(what: &str) {
    eprintln!("splitway: {what}");
}

/// Protocols of sockets that become split. Go's listeners are of MPTCP.
const PROTOCOLS: [Protocol; 2] = [ipproto::TCP, ipproto::MPTCP];

/// Takes the error of a socket, which is reported once. The program's end has the error as well; if
/// it is gone there, a call that reads has reported it.
fn take_error(caller: Caller<'_>, socket: &mut Socket) -> Option<Errno> {
    let error = socket.error.take()?;
    let programs = caller.thread.duplicate(caller.number(0)).ok();
    let is_left = programs.is_none_or(|it| socket_error(it).is_ok_and(|error| error.is_err()));
    is_left.then_some(error)
}

impl Supervisor {
    /// Answers a call, now or later.
    pub(crate) fn handle(&mut self, notification: &Notification) {
        let Some(thread) = notification.thread else {
            return self.answer(notification, Err(Errno::PERM));
        };
        let caller = Caller {
            notification,
            thread: Tracee(thread),
        };
        let is_foreign = notification.architecture != ARCHITECTURE;
        #[cfg(target_arch = "x86_64")]
        let is_foreign = is_foreign || notification.call >= X32.into();
        if is_foreign {
            return self.refuse(caller);
        }
        let mut decided = self.decide(caller);
        // A socket that the program has closed may still have the address.
        if matches!(decided, Err(Errno::ADDRINUSE)) && self.end_closed() {
            decided = self.decide(caller);
        }
        match decided {
            Ok(Answer::Value(value)) => self.answer(notification, Ok(value)),
            Ok(Answer::Kernel) => {
                let _ = self.notifier.leave_to_kernel(notification);
            }
            Ok(Answer::Done) => {}
            Err(errno) => self.answer(notification, Err(errno)),
        }
    }

    /// Ends a program whose calls have other numbers: its sockets would be the kernel's.
    fn refuse(&self, caller: Caller<'_>) {
        let program = caller.thread.executable();
        if let Ok(process) = caller.thread.process()
            && self.notifier.is_waiting(caller.notification)
        {
            complain(&format!(
                "{program} is a program of 32 bits, which --compat does not know: it is ended"
            ));
            let _ = kill_process(process, Signal::KILL);
        }
        self.answer(caller.notification, Err(Errno::NOSYS));
    }

    fn decide(&mut self, caller: Caller<'_>) -> Result<Answer> {
        let fd: RawFd = caller.number(0);
        let call = caller.notification.call;
        let makes_address = [libc::SYS_bind, libc::SYS_listen, libc::SYS_connect].contains(&call);
        let inode = match caller.thread.socket(fd) {
            Ok(Some(inode)) => inode,
            // The kernel reports the error.
            Ok(None) => return Ok(Answer::Kernel),
            Err(errno) if makes_address => return Err(self.cannot_look(caller, errno)),
            Err(_) => return Ok(Answer::Kernel),
        };
        if !self.notifier.is_waiting(caller.notification) {
            return Ok(Answer::Done);
        }
        if call == libc::SYS_connect {
            // No call connects to a listener that was closed before.
            self.end_closed_listeners();
        }
        let key = self.key_of(inode);
        match (call, key) {
            (libc::SYS_bind, None) => self.bind_new(caller, fd),
            (libc::SYS_listen, None) => self.listen_new(caller, fd),
            (libc::SYS_connect, None) => self.connect_new(caller, fd),
            (_, None) => Ok(Answer::Kernel),
            (_, Some(key)) => {
                let done = self.with(key, |it, socket| match call {
                    libc::SYS_bind => it.bind(caller, socket),
                    libc::SYS_listen => it.listen(caller, socket),
                    libc::SYS_connect => it.connect(caller, fd, socket),
                    libc::SYS_accept => it.accept(caller, fd, 0, socket),
                    libc::SYS_accept4 => it.accept(caller, fd, caller.number(3), socket),
                    libc::SYS_getsockname => it.local_name(caller, socket),
                    libc::SYS_getpeername => it.peer_name(caller, socket),
                    libc::SYS_setsockopt => it.set_option(caller, socket),
                    libc::SYS_getsockopt => it.get_option(caller, socket),
                    libc::SYS_shutdown => it.shutdown(caller, socket),
                    _ => Ok(Answer::Kernel),
                });
                done.unwrap_or(Ok(Answer::Kernel))
            }
        }
    }

    /// Reports, once, a program that cannot be inspected. Its call fails rather than be left to the
    /// kernel.
    fn cannot_look(&mut self, caller: Caller<'_>, errno: Errno) -> Errno {
        if !std::mem::replace(&mut self.has_complained, true) {
            let program = caller.thread.executable();
            complain(&format!(
                "{program} does not let its sockets be looked at ({errno}): its calls fail"
            ));
        }
        Errno::PERM
    }

    /// Returns the bytes of the address that a call names; `None` if they are too many, which the
    /// kernel reports.
    fn named(&self, caller: Caller<'_>) -> Result<Option<Vec<u8>>> {
        let len = u64::from(caller.notification.arguments[2] as u32);
        if len > ADDRESS_BYTES_MAX {
            return Ok(None);
        }
        let memory = caller.thread.memory()?;
        let bytes = memory.read(caller.notification.arguments[1], len as usize)?;
        Ok(Some(bytes))
    }

    /// Writes an address to the memory that a call names: an argument is the place, the next the
    /// place of the length.
    pub(crate) fn write_address(
        &self,
        notification: &Notification,
        argument: usize,
        named: SocketAddr,
        may_be_null: bool,
    ) -> Result<()> {
        let [at, len] = [argument, argument + 1].map(|place| notification.arguments[place]);
        if may_be_null && at == 0 {
            return Ok(());
        }
        self.write(notification, (at, len), &address_bytes(named), true)
    }

    /// Writes bytes as far as there is room, and their number: with `tell_whole` of all bytes, else
    /// of the written ones.
    fn write(
        &self,
        notification: &Notification,
        (at, len): (u64, u64),
        bytes: &[u8],
        tell_whole: bool,
    ) -> Result<()> {
        let thread = notification.thread.ok_or(Errno::SRCH)?;
        let memory = Tracee(thread).memory()?;
        if !self.notifier.is_waiting(notification) {
            return Err(Errno::SRCH);
        }
        let room = memory.read_len(len)?;
        let room = i32::try_from(room).map_err(|_| Errno::INVAL)?;
        let written = bytes.len().min(room.unsigned_abs() as usize);
        memory.write(at, &bytes[..written])?;
        let told = if tell_whole { bytes.len() } else { written };
        memory.write(len, &(told as u32).to_ne_bytes())
    }

    /// Returns the address of either family in `bytes`; `None` if there is none.
    fn address_of(bytes: &[u8]) -> Option<SocketAddr> {
        let mut families = [Family::V4, Family::V6].into_iter();
        families.find_map(|family| address(bytes, family).ok())
    }

    /// Puts a split socket in the place of a kernel socket, with the same number and flags, and the
    /// options that were set. `prepare` gives it its address before the program has it.
    fn convert(
        &mut self,
        caller: Caller<'_>,
        (fd, kernels, family): (RawFd, OwnedFd, Family),
        what: &str,
        prepare: impl FnOnce(&Supervisor, BorrowedFd<'_>) -> Result<()>,
    ) -> Result<u64> {
        let flags = caller.thread.flags(fd)?;
        let split = self.client.socket(family, OWN_FLAGS).inspect_err(|errno| {
            complain(&format!("cannot {what} on the split stack: {errno}"));
        })?;
        let prepared = || {
            options::copy_to_split(&self.client, (kernels.as_fd(), family), split.as_fd())?;
            prepare(self, split.as_fd())?;
            self.replace_by_pair(caller, (fd, flags), split.as_fd())
        };
        let pair = match prepared() {
            Ok(pair) => pair,
            Err(errno) => {
                let _ = self.client.close(split);
                return Err(errno);
            }
        };
        self.register(Socket {
            key: 0,
            inode: pair.inode,
            family,
            split: Some(split),
            own: Some(pair.own),
            holder: (caller.thread, fd),
            error: None,
            remains: None,
            last_local: None,
            state: State::Bound {
                filling: pair.filling,
            },
        })
    }

    /// Puts the end of a new pair in the place of a descriptor of the program's, with its flags and
    /// the timeouts of its split socket.
    fn replace_by_pair(
        &self,
        caller: Caller<'_>,
        (fd, flags): (RawFd, DescriptorFlags),
        split: BorrowedFd<'_>,
    ) -> Result<Pair> {
        let pair = Pair::full(flags.nonblocking)?;
        let (programs, close_on_exec) = (pair.programs.as_fd(), flags.close_on_exec);
        options::copy_timeouts(&self.client, split, programs)?;
        self.notifier
            .replace(caller.notification, programs, fd, close_on_exec)?;
        Ok(pair)
    }

    /// Returns a duplicate of a TCP socket of the kernel's, and its family; `None` if it is no such
    /// socket.
    fn kernels(&mut self, caller: Caller<'_>, fd: RawFd) -> Result<Option<(OwnedFd, Family)>> {
        let kernels = caller.thread.duplicate(fd);
        let kernels = kernels.map_err(|errno| self.cannot_look(caller, errno))?;
        let family = stream_family(kernels.as_fd(), &PROTOCOLS);
        Ok(family.map(|family| (kernels, family)))
    }

    /// Returns the address that a call names, a kernel socket that is to become split, and its
    /// family; `None` if no rule holds the address, or the socket is no TCP socket.
    fn splittable(
        &mut self,
        caller: Caller<'_>,
        fd: RawFd,
        rules: impl Fn(&Supervisor) -> &Rules,
    ) -> Result<Option<(SocketAddr, OwnedFd, Family)>> {
        let bytes = self.named(caller)?;
        let address = bytes.and_then(|bytes| Self::address_of(&bytes));
        let Some(address) = address.filter(|address| rules(self).hold(*address)) else {
            return Ok(None);
        };
        let kernels = self.kernels(caller, fd)?;
        Ok(kernels.map(|(kernels, family)| (address, kernels, family)))
    }

    fn bind_new(&mut self, caller: Caller<'_>, fd: RawFd) -> Result<Answer> {
        let Some((address, kernels, family)) = self.splittable(caller, fd, |it| &it.listen)? else {
            return Ok(Answer::Kernel);
        };
        if bound(kernels.as_fd()).is_some() {
            return Err(Errno::INVAL);
        }
        let what = format!("bind to {address}");
        self.convert(caller, (fd, kernels, family), &what, |it, split| {
            it.client.bind(split, address)
        })?;
        Ok(Answer::Value(0))
    }

    /// Makes a listener of a socket without an address: it gets one of the split stack if rules
    /// hold `0.0.0.0`.
    fn listen_new(&mut self, caller: Caller<'_>, fd: RawFd) -> Result<Answer> {
        let Some((kernels, family)) = self.kernels(caller, fd)? else {
            return Ok(Answer::Kernel);
        };
        let is_split = self.listen.hold(unspecified(family));
        if !is_split || bound(kernels.as_fd()).is_some() {
            return Ok(Answer::Kernel);
        }
        let socket = (fd, kernels, family);
        let key = self.convert(caller, socket, "listen", |_, _| Ok(()))?;
        self.with(key, |it, socket| it.listen(caller, socket))
            .unwrap_or(Err(Errno::BADF))
    }

    fn connect_new(&mut self, caller: Caller<'_>, fd: RawFd) -> Result<Answer> {
        let Some((address, kernels, family)) = self.splittable(caller, fd, |it| &it.connect)?
        else {
            return Ok(Answer::Kernel);
        };
        // The kernel reports an existing connection.
        if rustix::net::getpeername(&kernels).is_ok() {
            return Ok(Answer::Kernel);
        }
        let from = bound(kernels.as_fd());
        let what = format!("connect to {address}");
        let key = self.convert(caller, (fd, kernels, family), &what, |it, split| {
            from.map_or(Ok(()), |from| it.client.bind(split, from))
        })?;
        self.with(key, |it, socket| {
            it.begin_to_connect(caller, fd, socket, address)
        })
        .unwrap_or(Err(Errno::BADF))
    }

    fn bind(&mut self, caller: Caller<'_>, socket: &mut Socket) -> Result<Answer> {
        let bytes = self.named(caller)?.ok_or(Errno::INVAL)?;
        let address = address(&bytes, socket.family)?;
        self.client.bind(socket.split()?, address)?;
        Ok(Answer::Value(0))
    }

    fn listen(&mut self, caller: Caller<'_>, socket: &mut Socket) -> Result<Answer> {
        self.client.listen(socket.split()?, caller.number(1))?;
        self.begin_to_listen(socket);
        Ok(Answer::Value(0))
    }

    fn connect(&mut self, caller: Caller<'_>, fd: RawFd, socket: &mut Socket) -> Result<Answer> {
        let bytes = self.named(caller)?.ok_or(Errno::INVAL)?;
        match &mut socket.state {
            State::Connected(stream) if stream.is_news => {
                stream.is_news = false;
                return Ok(Answer::Value(0));
            }
            State::Connected(_) | State::Listening(_) => return Err(Errno::ISCONN),
            State::Ended { .. } => return Err(Errno::CONNABORTED),
            State::Connecting(_) => return self.go_on_connecting(caller, fd, socket),
            State::Bound { .. } | State::Failed => {}
        }
        // Reports the result of an attempt that did not block, once (`inet_stream_connect` of
        // Linux).
        if matches!(socket.state, State::Failed)
            && let Some(errno) = take_error(caller, socket)
        {
            return Err(errno);
        }
        let address = address(&bytes, socket.family)?;
        if !self.connect.hold(address) && self.give_back(caller, fd, socket)? {
            return Ok(Answer::Kernel);
        }
        if matches!(socket.state, State::Failed) {
            let flags = caller.thread.flags(fd)?;
            let pair = self.replace_by_pair(caller, (fd, flags), socket.split()?)?;
            socket.holder = (caller.thread, fd);
            let filling = pair.filling;
            self.renew(socket, pair)?;
            socket.error = None;
            socket.state = State::Bound { filling };
        }
        self.begin_to_connect(caller, fd, socket, address)
    }

    /// Handles `connect` while a connection is being opened. A call that a signal has interrupted
    /// is made again, and waits on.
    fn go_on_connecting(
        &mut self,
        caller: Caller<'_>,
        fd: RawFd,
        socket: &mut Socket,
    ) -> Result<Answer> {
        if caller.thread.flags(fd)?.nonblocking {
            return Err(Errno::ALREADY);
        }
        let waiter = self.waiter(caller, socket, libc::SO_SNDTIMEO)?;
        match &mut socket.state {
            State::Connecting(connecting) if connecting.waiter.is_none() => {
                connecting.waiter = Some(waiter);
                Ok(Answer::Done)
            }
            _ => Err(Errno::ALREADY),
        }
    }

    /// Replaces a bound socket, which connects to an address that no rule holds, by a kernel socket
    /// with the same local address. False if the kernel does not have that address.
    fn give_back(&mut self, caller: Caller<'_>, fd: RawFd, socket: &mut Socket) -> Result<bool> {
        let flags = caller.thread.flags(fd)?;
        let local = self.client.local_address(socket.split()?)?;
        let kernels = tcp_socket(socket.family)?;
        rustix::net::sockopt::set_socket_reuseaddr(&kernels, true)?;
        match rustix::net::bind(&kernels, &local) {
            Err(Errno::ADDRNOTAVAIL) => return Ok(false),
            bound => bound?,
        }
        options::copy_from_split(&self.client, socket.split()?, kernels.as_fd());
        if flags.nonblocking {
            let mode = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK;
            rustix::fs::fcntl_setfl(&kernels, mode)?;
        }
        let (new, close_on_exec) = (kernels.as_fd(), flags.close_on_exec);
        self.notifier
            .replace(caller.notification, new, fd, close_on_exec)?;
        self.end(socket);
        Ok(true)
    }

    fn begin_to_connect(
        &mut self,
        caller: Caller<'_>,
        fd: RawFd,
        socket: &mut Socket,
        address: SocketAddr,
    ) -> Result<Answer> {
        let State::Bound { filling } = socket.state else {
            return Err(Errno::INVAL);
        };
        match self.client.connect(socket.split()?, address) {
            Err(Errno::INPROGRESS) | Ok(()) => {}
            Err(errno) => return Err(errno),
        }
        let is_nonblocking = caller.thread.flags(fd)?.nonblocking;
        let waiter = if is_nonblocking {
            None
        } else {
            Some(self.waiter(caller, socket, libc::SO_SNDTIMEO)?)
        };
        let is_answered = waiter.is_none();
        socket.state = State::Connecting(Connecting {
            filling,
            address,
            waiter,
        });
        if is_answered {
            return Err(Errno::INPROGRESS);
        }
        // The connection may be open already.
        self.connecting_changed(socket);
        Ok(Answer::Done)
    }

    /// Returns the waiter of a call, with the timeout that `option` sets.
    fn waiter(&self, caller: Caller<'_>, socket: &Socket, option: i32) -> Result<Waiter> {
        let timeout = options::timeout(&self.client, socket.split()?, option);
        Ok(Waiter {
            notification: *caller.notification,
            deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            flags: 0,
        })
    }

    fn accept(
        &mut self,
        caller: Caller<'_>,
        fd: RawFd,
        flags: i32,
        socket: &mut Socket,
    ) -> Result<Answer> {
        if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
            return Err(Errno::INVAL);
        }
        let has_listened = matches!(socket.state, State::Ended { has_listened: true });
        if let (true, Some(errno)) = (has_listened, socket.error) {
            return Err(errno);
        }
        if !matches!(socket.state, State::Listening(_)) {
            return Err(Errno::INVAL);
        }
        let mut waiter = self.waiter(caller, socket, libc::SO_RCVTIMEO)?;
        waiter.flags = flags;
        socket.holder = (caller.thread, fd);
        match self.take_connection(socket)? {
            Some(connection) => {
                self.give(socket, &waiter, connection);
                self.tell_of_connections(socket, Some((caller.thread, fd)));
                Ok(Answer::Done)
            }
            None => {
                self.tell_of_connections(socket, Some((caller.thread, fd)));
                if caller.thread.flags(fd)?.nonblocking {
                    return Err(Errno::AGAIN);
                }
                let State::Listening(listener) = &mut socket.state else {
                    return Err(Errno::CONNRESET);
                };
                listener.waiters.push_back(waiter);
                Ok(Answer::Done)
            }
        }
    }

    fn local_name(&mut self, caller: Caller<'_>, socket: &mut Socket) -> Result<Answer> {
        let local = match &socket.split {
            Some(split) => self.client.local_address(split.as_fd())?,
            None => socket.last_local.unwrap_or(unspecified(socket.family)),
        };
        self.write_address(caller.notification, 1, local, false)?;
        Ok(Answer::Value(0))
    }

    fn peer_name(&mut self, caller: Caller<'_>, socket: &mut Socket) -> Result<Answer> {
        if !matches!(socket.state, State::Connected(_)) {
            return Err(Errno::NOTCONN);
        }
        let peer = self.client.peer_address(socket.split()?)?;
        self.write_address(caller.notification, 1, peer, false)?;
        Ok(Answer::Value(0))
    }

    fn set_option(&mut self, caller: Caller<'_>, socket: &mut Socket) -> Result<Answer> {
        let (level, name) = (caller.number(1), caller.number(2));
        let len = u64::try_from(caller.number(4)).map_err(|_| Errno::INVAL)?;
        if options::is_of_pair(level, name) {
            return Ok(Answer::Kernel);
        }
        let memory = caller.thread.memory()?;
        let len = len.min(OPTION_BYTES_MAX) as usize;
        let bytes = memory.read(caller.notification.arguments[3], len)?;
        let Some(split) = &socket.split else {
            sys::set_option_bytes(socket.remains()?, level, name, &bytes)?;
            return Ok(Answer::Value(0));
        };
        let is_of_other = level == libc::IPPROTO_IPV6 && socket.family == Family::V4;
        if is_of_other {
            return Err(Errno::NOPROTOOPT);
        }
        if options::is_missing(level, name) {
            return Err(Errno::NOPROTOOPT);
        }
        let value = option_value_of(level, name, &bytes)?;
        self.client.set_option(split.as_fd(), level, name, &value)?;
        // The kernel reads and writes, so it needs the timeout. If the value has changed by now,
        // only the program is affected.
        if options::is_timeout(level, name) {
            return Ok(Answer::Kernel);
        }
        Ok(Answer::Value(0))
    }

    fn get_option(&mut self, caller: Caller<'_>, socket: &mut Socket) -> Result<Answer> {
        let (level, name) = (caller.number(1), caller.number(2));
        let number = |number: i32| number.to_ne_bytes().to_vec();
        if options::is_of_pair(level, name) {
            return Ok(Answer::Kernel);
        }
        if options::is_missing(level, name) {
            return Err(Errno::NOPROTOOPT);
        }
        let is_error = (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR);
        let error = if is_error {
            take_error(caller, socket)
        } else {
            None
        };
        let bytes = match (&socket.split, error) {
            (_, Some(errno)) => number(errno.raw_os_error()),
            (Some(split), _) => options::bytes_of_split(&self.client, split.as_fd(), level, name)?,
            (None, _) => sys::option_bytes(socket.remains()?, level, name)?,
        };
        let [at, len] = [3, 4].map(|place| caller.notification.arguments[place]);
        self.write(caller.notification, (at, len), &bytes, false)?;
        Ok(Answer::Value(0))
    }

    fn shutdown(&mut self, caller: Caller<'_>, socket: &mut Socket) -> Result<Answer> {
        let how = match caller.number(1) {
            libc::SHUT_RD => How::Read,
            libc::SHUT_WR => How::Write,
            libc::SHUT_RDWR => How::Both,
            _ => return Err(Errno::INVAL),
        };
        match socket.state {
            // The relay sees it at the other end.
            State::Connected(_) => return Ok(Answer::Kernel),
            State::Bound { .. } | State::Failed | State::Ended { .. } => {
                return Err(Errno::NOTCONN);
            }
            State::Listening(_) | State::Connecting(_) => {}
        }
        self.client.shutdown(socket.split()?, how)?;
        match socket.state {
            State::Connecting(_) => self.fail(socket, Errno::CONNRESET),
            State::Listening(ref mut listener) if how != How::Write => {
                let waiters = std::mem::take(&mut listener.waiters);
                let returned = std::mem::take(&mut listener.returned);
                let filling = listener.filling;
                for waiter in waiters {
                    self.answer(&waiter.notification, Err(Errno::INVAL));
                }
                for (split, _) in returned {
                    let _ = self.client.close(split);
                }
                // Threads that wait for the listener wake, and find that it no longer listens.
                if let Some(own) = &socket.own {
                    let _ = shutdown(own, Shutdown::Write);
                }
                socket.state = State::Bound { filling };
            }
            _ => {}
        }
        Ok(Answer::Value(0))
    }
}
