//! Commands of programs.

use rustix::io::Errno;
use socket_channel::channel::ReceiveError;
use socket_channel::message::BindFlags;
use socket_channel::{ChannelId, Command, Event, Flags, HandleId, How, SocketId, SocketOption};
use sockets::Budget;

use crate::message::Body;
use crate::node::Context;
use crate::node::application::{App, Phase, Request, Use};
use crate::node::shared_ports::{SharedPort, Sharing};
use crate::node::socket::{Mark, What};

/// Most commands that wait for an answer.
const REQUESTS_MAX: usize = 1024;

/// The immediate result of a command.
enum Outcome {
    /// No answer is due, or it comes from the stack node.
    None,
    /// The command fails.
    Failed { request: u32, errno: Errno },
    /// This socket is the answer.
    Found { request: u32, socket: SocketId },
}

impl App {
    /// Takes commands, up to a turn's limits of number and time. Returns whether there were any,
    /// and whether none are left.
    pub(crate) fn take_commands(&mut self, cx: &mut Context<'_>) -> (bool, bool) {
        let (messages, us) = (self.grant.messages_per_turn, self.grant.turn_us_max);
        let mut budget = Budget::new(messages, us, cx.clock);
        let count = self.channels.len();
        let (mut has_taken, mut is_all) = (false, true);
        let mut corrupt = Vec::new();
        for step in 0..count {
            let place = (self.first + step) % count;
            loop {
                let may_take = !budget.is_used_up() && self.may_take(cx);
                let channel = &mut self.channels[place];
                // No process reads the answers of one that has ended, nor makes room for them.
                let has_ended = self.ended.contains(&channel.id);
                if !may_take || !(has_ended || channel.may_answer()) {
                    is_all = false;
                    break;
                }
                let mut command = Vec::new();
                match channel.end.receive() {
                    Ok(Some(received)) => received.encode(&mut command),
                    Ok(None) => break,
                    Err(ReceiveError::Malformed) => {
                        budget.take();
                        continue;
                    }
                    Err(ReceiveError::Corrupt) => {
                        corrupt.push(channel.id);
                        break;
                    }
                }
                budget.take();
                has_taken = true;
                let id = channel.id;
                self.on_command(cx, id, &command);
            }
        }
        self.first = self.first.wrapping_add(1);
        if !corrupt.is_empty() {
            // This channel delivers no further commands, and would be polled for ever.
            self.ended.extend(corrupt);
            if self.phase == Phase::Attached {
                cx.say(self.id, Body::Detach);
                self.detach();
            }
        }
        (has_taken, is_all)
    }

    /// Whether the stack node accepts a command, and an answer can be awaited.
    fn may_take(&mut self, cx: &mut Context<'_>) -> bool {
        if self.phase == Phase::Detached {
            return true;
        }
        // Ends of sockets precede commands that may need the freed resources.
        self.say_closes(cx);
        let has_place = self.requests.len() < REQUESTS_MAX && self.closes.is_empty();
        has_place && cx.has_room() && self.may_ask()
    }

    fn on_command(&mut self, cx: &mut Context<'_>, channel: ChannelId, command: &[u8]) {
        let Ok(command) = Command::decode(command) else {
            return;
        };
        let (request, errno, socket) = match self.execute(cx, channel, &command) {
            Outcome::None => return,
            Outcome::Failed { request, errno } => {
                (request, errno.raw_os_error().unsigned_abs(), None)
            }
            Outcome::Found { request, socket } => (request, 0, Some(socket)),
        };
        if request != 0
            && let Some(channel) = self.channel(channel)
        {
            channel.answer(Event::Answer {
                request,
                errno,
                socket,
                value: 0,
            });
        }
    }

    /// The socket of a handle. EAGAIN: the command that assigns one may still be in the ring of
    /// another process. EBADF also for a private handle of another process.
    fn look_up(&mut self, by: ChannelId, handle: HandleId) -> Result<SocketId, Errno> {
        let found = self.handles.get(&handle).ok_or(Errno::BADF)?;
        let is_own = found.channel == by;
        let id = match found.use_of {
            _ if found.is_private && !is_own => return Err(Errno::BADF),
            Use::Socket(id) => id,
            Use::Nothing | Use::Awaited => return Err(Errno::AGAIN),
        };
        if let Some(socket) = self.socket(id).filter(|_| !is_own) {
            socket.record.note(Flags::LOOKED_UP);
        }
        Ok(id)
    }

    /// Closes the socket of a handle that its process keeps for another one.
    fn reuse(&mut self, cx: &mut Context<'_>, by: ChannelId, handle: HandleId) {
        let found = self.handles.get_mut(&handle);
        let Some(found) = found.filter(|found| found.channel == by) else {
            return;
        };
        if let Use::Socket(id) = found.use_of {
            found.use_of = Use::Nothing;
            found.is_private = true;
            if let Some(socket) = self.socket(id) {
                socket.handle = None;
            }
            self.close(cx, id);
        }
    }

    /// Lets other processes look up a handle, if it still belongs to this socket.
    fn share_handle(&mut self, socket: SocketId, handle: HandleId) -> Result<(), Errno> {
        let found = self.handles.get_mut(&handle);
        let found = found.filter(|found| matches!(found.use_of, Use::Socket(id) if id == socket));
        found.ok_or(Errno::BADF)?.is_private = false;
        Ok(())
    }

    /// Executes a command of a process about one of the application's handles.
    fn execute_about_handle(
        &mut self,
        cx: &mut Context<'_>,
        by: ChannelId,
        command: &Command<'_>,
    ) -> Outcome {
        let (request, found) = match *command {
            Command::LookUp { request, handle } => (request, self.look_up(by, handle)),
            Command::Share {
                request,
                socket,
                handle,
            } => (request, self.share_handle(socket, handle).map(|()| socket)),
            Command::Reuse { handle } => {
                self.reuse(cx, by, handle);
                return Outcome::None;
            }
            _ => return Outcome::None,
        };
        match found {
            Ok(socket) => Outcome::Found { request, socket },
            Err(errno) => Outcome::Failed { request, errno },
        }
    }

    fn execute(
        &mut self,
        cx: &mut Context<'_>,
        channel: ChannelId,
        command: &Command<'_>,
    ) -> Outcome {
        match *command {
            Command::Open {
                request, handle, ..
            }
            | Command::OpenFile {
                request, handle, ..
            } => self.make(cx, channel, command, request, handle),
            // The library reads files behind `OpenPassed` itself, so that their bytes cross the
            // link once. This node refuses the modes of the others, or they would need both nodes.
            Command::OpenPassed { request, .. }
            | Command::Disconnect { request, .. }
            | Command::Look { request, .. }
            | Command::Receive { request, .. }
            | Command::Room { request, .. }
            | Command::AcceptNext { request, .. }
            | Command::GetAddress { request, .. }
            | Command::Splice { request, .. }
            | Command::Unsplice { request, .. } => Outcome::Failed {
                request,
                errno: Errno::OPNOTSUPP,
            },
            Command::LookUp { .. } | Command::Reuse { .. } | Command::Share { .. } => {
                self.execute_about_handle(cx, channel, command)
            }
            Command::Bind {
                request,
                socket,
                address,
                flags,
            } => {
                let rules = &self.grant.rules;
                if !rules.allows_port(address.port()) || !rules.allows_address(address.ip()) {
                    let errno = Errno::ACCESS;
                    return Outcome::Failed { request, errno };
                }
                self.close_hung_up(cx);
                if !flags.has(BindFlags::REUSE_PORT) {
                    return self.ask(cx, channel, command, request, socket);
                }
                let port = SharedPort {
                    uid: self.uid,
                    address,
                    v6_only: flags.has(BindFlags::V6_ONLY),
                };
                self.share(cx, channel, command, request, socket, port)
            }
            Command::Listen {
                request,
                socket,
                backlog,
            } => {
                self.close_hung_up(cx);
                if let Some(found) = self.live(socket) {
                    found.backlog = u64::from(backlog.max(1));
                }
                self.ask(cx, channel, command, request, socket)
            }
            Command::Connect { request, .. } if !self.grant.rules.may_connect => {
                let errno = Errno::ACCESS;
                Outcome::Failed { request, errno }
            }
            Command::Connect {
                request, socket, ..
            } => self.ask(cx, channel, command, request, socket),
            Command::SetOption { .. } | Command::GetOption { .. } | Command::GetInfo { .. } => {
                self.execute_about_options(cx, channel, command)
            }
            _ => {
                self.execute_unanswered(cx, command);
                Outcome::None
            }
        }
    }

    /// Binds a socket to a port that other sockets of its user share.
    fn share(
        &mut self,
        cx: &mut Context<'_>,
        channel: ChannelId,
        command: &Command<'_>,
        request: u32,
        socket: SocketId,
        port: SharedPort,
    ) -> Outcome {
        if request == 0 {
            // Without an answer, it would be unknown whether the socket is bound.
            return Outcome::None;
        }
        if cx.shared.iter().any(|other| other.conflicts(&port)) {
            let errno = Errno::ADDRINUSE;
            return Outcome::Failed { request, errno };
        }
        match self.try_to_ask(cx, channel, command, request, socket) {
            Ok(request) => {
                cx.shared.push(port);
                let sharing = Sharing {
                    socket,
                    request,
                    port,
                };
                self.sharing.push(sharing);
                Outcome::None
            }
            Err(errno) => Outcome::Failed { request, errno },
        }
    }

    fn execute_about_options(
        &mut self,
        cx: &mut Context<'_>,
        channel: ChannelId,
        command: &Command<'_>,
    ) -> Outcome {
        let (request, socket) = match *command {
            Command::SetOption {
                request,
                socket,
                option,
                value,
            } => {
                // Bytes written before the cork is removed leave first.
                if option == SocketOption::Cork && value == 0 {
                    self.send_ahead(cx, socket);
                }
                (request, socket)
            }
            Command::GetOption {
                request, socket, ..
            }
            | Command::GetInfo { request, socket } => (request, socket),
            _ => return Outcome::None,
        };
        self.ask(cx, channel, command, request, socket)
    }

    /// Sends a program's written bytes, as far as there is credit.
    fn send_ahead(&mut self, cx: &mut Context<'_>, id: SocketId) {
        if let Some(socket) = self.live(id) {
            if socket.record.look().is_err() {
                return self.reset_nonsense(id);
            }
            while cx.has_room() && self.send_bytes(cx, id) {}
        }
    }

    /// Executes a command without an answer.
    fn execute_unanswered(&mut self, cx: &mut Context<'_>, command: &Command<'_>) {
        match *command {
            Command::Kick { socket } => self.enqueue(socket),
            Command::Accept { socket, handle } => self.adopt(cx, socket, handle),
            // Stopping to read is local to the program.
            Command::Shutdown { how: How::Read, .. } => {}
            Command::Shutdown {
                socket,
                mark: number,
                at,
                ..
            } => {
                let what = What::Finish;
                self.add_mark(socket, Mark { number, at, what });
            }
            Command::SendFile {
                socket,
                file,
                offset,
                len,
                mark: number,
                at,
            } => {
                let what = What::File { file, offset, len };
                self.add_mark(socket, Mark { number, at, what });
            }
            Command::Close { handle } => self.close_handle(cx, handle),
            _ => {}
        }
    }

    /// Has the stack node make a socket for a handle.
    fn make(
        &mut self,
        cx: &mut Context<'_>,
        channel: ChannelId,
        command: &Command<'_>,
        request: u32,
        handle: HandleId,
    ) -> Outcome {
        let failed = |errno| Outcome::Failed { request, errno };
        if self.phase != Phase::Attached {
            return failed(Errno::SHUTDOWN);
        }
        if request == 0 {
            return Outcome::None;
        }
        if !self.take_handle(cx, handle, Use::Awaited) {
            return failed(Errno::BADF);
        }
        self.forward(cx, channel, command, request, Some(handle));
        Outcome::None
    }

    /// Forwards a command about a socket to the stack node.
    fn ask(
        &mut self,
        cx: &mut Context<'_>,
        channel: ChannelId,
        command: &Command<'_>,
        request: u32,
        socket: SocketId,
    ) -> Outcome {
        match self.try_to_ask(cx, channel, command, request, socket) {
            Ok(_) => Outcome::None,
            Err(errno) => Outcome::Failed { request, errno },
        }
    }

    /// Forwards a command, and returns the number of the stack node's answer.
    fn try_to_ask(
        &mut self,
        cx: &mut Context<'_>,
        channel: ChannelId,
        command: &Command<'_>,
        number: u32,
        socket: SocketId,
    ) -> Result<u32, Errno> {
        if self.phase != Phase::Attached || self.live(socket).is_none() {
            let is_there = self.socket(socket).is_some();
            return Err(if is_there {
                Errno::CONNRESET
            } else {
                Errno::BADF
            });
        }
        // Ends of sockets found meanwhile come first.
        self.say_closes(cx);
        Ok(self.forward(cx, channel, command, number, None))
    }

    fn forward(
        &mut self,
        cx: &mut Context<'_>,
        channel: ChannelId,
        command: &Command<'_>,
        number: u32,
        makes_for: Option<HandleId>,
    ) -> u32 {
        let request = if number == 0 {
            0
        } else {
            let request = self.free_request();
            let about = Request {
                channel,
                number,
                makes_for,
            };
            self.requests.insert(request, about);
            request
        };
        let mut bytes = Vec::new();
        renumbered(command, request).encode(&mut bytes);
        self.untaken += 1;
        cx.say(self.id, Body::Command(&bytes));
        request
    }

    fn free_request(&mut self) -> u32 {
        loop {
            let request = self.next_request;
            self.next_request = self.next_request.wrapping_add(1).max(1);
            if !self.requests.contains_key(&request) {
                return request;
            }
        }
    }

    /// Assigns an unused handle. False if there is no such handle.
    fn take_handle(&mut self, cx: &mut Context<'_>, handle: HandleId, use_of: Use) -> bool {
        if !self.handles.contains_key(&handle) {
            // The command overtook the broker's message.
            for new in (cx.handles)() {
                if new.app == self.id {
                    self.add_handles(cx.waker, new);
                }
            }
        }
        let found = self.handles.get_mut(&handle);
        let found = found.filter(|found| found.use_of == Use::Nothing);
        found.map(|found| found.use_of = use_of).is_some()
    }

    /// Assigns a handle to a connection that a process took out of an accept queue.
    fn adopt(&mut self, cx: &mut Context<'_>, id: SocketId, handle: HandleId) {
        let listener = self.socket(id).and_then(|socket| socket.listener);
        // The queue shows that the connection was taken.
        if let Some(listener) = listener
            && let Some(queue) = self.live(listener)
        {
            if queue.record.look().is_err() {
                return self.reset_nonsense(listener);
            }
            self.serve_listener(cx, listener);
        }
        if !self.unadopted.contains_key(&id) || !self.take_handle(cx, handle, Use::Socket(id)) {
            return;
        }
        self.unadopted.remove(&id);
        if let Some(socket) = self.socket(id) {
            socket.handle = Some(handle);
        }
    }
}

/// Renumbers a command. A process's handle has no meaning on the other node.
fn renumbered<'a>(command: &Command<'a>, number: u32) -> Command<'a> {
    let mut command = *command;
    match &mut command {
        Command::Open {
            request, handle, ..
        }
        | Command::OpenFile {
            request, handle, ..
        } => {
            *request = number;
            *handle = HandleId(0);
        }
        Command::Bind { request, .. }
        | Command::Listen { request, .. }
        | Command::Connect { request, .. }
        | Command::SetOption { request, .. }
        | Command::GetOption { request, .. }
        | Command::GetInfo { request, .. } => *request = number,
        _ => {}
    }
    command
}
