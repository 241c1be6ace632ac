//! Commands of an application.

use rustix::io::Errno;
use socket_channel::{ChannelId, Command, Event, Flags, HandleId, How, Side, SocketId};

use crate::application::{App, Context};
use crate::state::stream::{Mark, What};
use crate::{errno, splice};

/// Result of a command.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// No answer is sent.
    None,
    /// The answer to send.
    Answer(Event),
    /// The handle is to be closed.
    Closed(HandleId),
    /// The command was malformed.
    Malformed,
}

impl App {
    /// Executes a command of a process.
    pub(crate) fn execute(
        &mut self,
        cx: &mut Context<'_>,
        by: ChannelId,
        command: &Command<'_>,
    ) -> Outcome {
        match *command {
            Command::Open {
                request,
                handle,
                family,
            } => {
                let made = self
                    .unless_detached()
                    .and_then(|()| self.open(cx, handle, family));
                answer_with_socket(cx, request, made)
            }
            Command::Bind {
                request,
                socket,
                address,
                flags,
            } => {
                let bound = self.bind(cx, socket, address, flags);
                answer(cx, request, bound)
            }
            Command::Listen {
                request,
                socket,
                backlog,
            } => {
                let listens = self.listen(cx, socket, backlog);
                answer(cx, request, listens)
            }
            Command::Connect {
                request,
                socket,
                address,
            } => {
                let begun = self.connect(cx, socket, address);
                answer(cx, request, begun)
            }
            Command::Disconnect { request, socket } => {
                let done = self.disconnect(cx, socket);
                answer(cx, request, done)
            }
            Command::OpenFile { request, .. } | Command::OpenPassed { request, .. } => {
                let opened = self
                    .unless_detached()
                    .and_then(|()| self.execute_open(cx, command));
                answer_with_socket(cx, request, opened)
            }
            Command::SetOption { .. } | Command::GetOption { .. } | Command::GetInfo { .. } => {
                self.execute_about_options(cx, command)
            }
            Command::Look { .. }
            | Command::Receive { .. }
            | Command::Room { .. }
            | Command::AcceptNext { .. }
            | Command::GetAddress { .. } => self.execute_for_held(cx, command),
            Command::LookUp { .. } | Command::Reuse { .. } | Command::Share { .. } => {
                self.execute_about_handle(cx, by, command)
            }
            Command::Splice { .. } | Command::Unsplice { .. } => {
                self.execute_about_splice(cx, command)
            }
            Command::Accept { .. }
            | Command::Kick { .. }
            | Command::Shutdown { .. }
            | Command::SendFile { .. }
            | Command::Close { .. } => self.execute_unanswered(cx, command),
        }
    }

    fn execute_about_splice(&mut self, cx: &mut Context<'_>, command: &Command<'_>) -> Outcome {
        let (request, begun) = match *command {
            Command::Splice {
                request,
                first,
                second,
                idle_ms,
                life_ms,
            } => {
                let limits = splice::limits(idle_ms, life_ms);
                (request, self.splice(cx, [first, second], limits))
            }
            Command::Unsplice { request, socket } => (request, self.unsplice(cx, socket)),
            _ => return Outcome::Malformed,
        };
        answer(cx, request, begun)
    }

    fn execute_about_options(&mut self, cx: &mut Context<'_>, command: &Command<'_>) -> Outcome {
        match *command {
            Command::SetOption {
                request,
                socket,
                option,
                value,
            } => {
                let set = self.set_option(cx, socket, option, value);
                answer(cx, request, set)
            }
            Command::GetOption {
                request,
                socket,
                option,
            } => match self.option(cx, socket, option) {
                Ok(value) => Outcome::Answer(Event::Answer {
                    request,
                    errno: 0,
                    socket: None,
                    value,
                }),
                Err(errno) => answer(cx, request, Err(errno)),
            },
            Command::GetInfo { request, socket } => match self.info(cx.io, socket) {
                Ok(info) => Outcome::Answer(Event::Info { request, info }),
                Err(errno) => answer(cx, request, Err(errno)),
            },
            _ => Outcome::Malformed,
        }
    }

    /// Opens a file.
    fn execute_open(
        &mut self,
        cx: &mut Context<'_>,
        command: &Command<'_>,
    ) -> Result<SocketId, Errno> {
        match *command {
            Command::OpenFile { handle, path, .. } => self.open_file(cx, handle, path),
            Command::OpenPassed { handle, file, .. } => self.open_passed(cx, handle, file),
            _ => Err(Errno::INVAL),
        }
    }

    /// Executes a command about held connections or bytes.
    fn execute_for_held(&mut self, cx: &mut Context<'_>, command: &Command<'_>) -> Outcome {
        match *command {
            Command::Look { request, socket } => {
                self.look(cx, socket);
                answer(cx, request, self.is_there(socket))
            }
            Command::Receive {
                request,
                socket,
                bytes,
            } => {
                self.receive(cx, socket, bytes);
                answer(cx, request, self.is_there(socket))
            }
            Command::Room {
                request,
                socket,
                bytes,
            } => {
                let made = self.make_room(cx, socket, bytes);
                answer(cx, request, made)
            }
            Command::AcceptNext {
                request,
                socket,
                handle,
            } => {
                let accepted = self
                    .unless_detached()
                    .and_then(|()| self.accept_next(cx, socket, handle));
                answer_with_socket(cx, request, accepted)
            }
            Command::GetAddress {
                request,
                socket,
                side,
            } => {
                let told = self.tell_address(socket, side);
                answer(cx, request, told)
            }
            _ => Outcome::Malformed,
        }
    }

    fn is_there(&mut self, id: SocketId) -> Result<(), Errno> {
        self.socket(id).map(drop).ok_or(Errno::BADF)
    }

    /// Writes an address of a connection into its record.
    fn tell_address(&mut self, id: SocketId, side: Side) -> Result<(), Errno> {
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        let untold = socket.stream().ok_or(Errno::INVAL)?.untold.as_deref();
        if let Some(&(local, peer)) = untold {
            match side {
                Side::Local => socket.record.set_local(local),
                Side::Peer => socket.record.set_peer(peer),
            }
        }
        Ok(())
    }

    /// Executes a command without an answer.
    fn execute_unanswered(&mut self, cx: &mut Context<'_>, command: &Command<'_>) -> Outcome {
        match *command {
            Command::Kick { socket } => self.look(cx, socket),
            Command::Accept { socket, handle } => {
                if self.adopt(cx, socket, handle).is_err() {
                    cx.counters.commands_refused += 1;
                }
            }
            Command::Shutdown {
                socket,
                how,
                mark: number,
                at,
            } => {
                // Stopping to read is the library's business: received bytes are still acknowledged
                // (tcp(7)).
                if how != How::Read {
                    let what = What::Finish;
                    self.add_mark(cx, socket, Mark { number, at, what });
                }
            }
            Command::SendFile {
                socket,
                file,
                offset,
                len,
                mark: number,
                at,
            } => match self.file_range(socket, file, offset, len) {
                Some(range) => {
                    let what = What::File(range);
                    self.add_mark(cx, socket, Mark { number, at, what });
                }
                // Later bytes would take the place of the file's.
                None => self.reset_nonsense(cx, socket),
            },
            Command::Close { handle } => return Outcome::Closed(handle),
            _ => return Outcome::Malformed,
        }
        Outcome::None
    }

    /// Executes a command of a process about one of the application's handles.
    fn execute_about_handle(
        &mut self,
        cx: &mut Context<'_>,
        by: ChannelId,
        command: &Command<'_>,
    ) -> Outcome {
        match *command {
            Command::LookUp { request, handle } => {
                let found = self.look_up(cx, by, handle);
                answer_with_socket(cx, request, found)
            }
            Command::Reuse { handle } => {
                if self.reuse(cx, by, handle).is_err() {
                    cx.counters.commands_refused += 1;
                }
                Outcome::None
            }
            Command::Share {
                request,
                socket,
                handle,
            } => {
                let shared = self.share_handle(socket, handle);
                answer(cx, request, shared)
            }
            _ => Outcome::Malformed,
        }
    }

    /// Returns the socket of a handle. EAGAIN: the command that gives it one may still be in the
    /// ring of another process. EBADF also for a private handle of another process.
    fn look_up(
        &mut self,
        cx: &mut Context<'_>,
        by: ChannelId,
        handle: HandleId,
    ) -> Result<SocketId, Errno> {
        let handle = self.handle(cx, handle).ok_or(Errno::BADF)?;
        if handle.is_private && handle.channel != by {
            return Err(Errno::BADF);
        }
        let (id, is_own) = (handle.socket.ok_or(Errno::AGAIN)?, handle.channel == by);
        if let Some(socket) = self.socket(id).filter(|_| !is_own) {
            socket.record.note(Flags::LOOKED_UP);
        }
        Ok(id)
    }

    /// Closes the socket of a handle that its process keeps for another one.
    fn reuse(
        &mut self,
        cx: &mut Context<'_>,
        by: ChannelId,
        handle: HandleId,
    ) -> Result<(), Errno> {
        let found = self.handles.get_mut(&handle).ok_or(Errno::BADF)?;
        if found.channel != by {
            return Err(Errno::PERM);
        }
        let id = found.socket.take().ok_or(Errno::INVAL)?;
        found.is_private = true;
        if let Some(socket) = self.socket(id) {
            socket.handle = None;
        }
        self.close(cx, id);
        cx.counters.handles_reused += 1;
        Ok(())
    }

    /// Lets other processes look up a handle, if it still belongs to this socket.
    fn share_handle(&mut self, socket: SocketId, handle: HandleId) -> Result<(), Errno> {
        let found = self.handles.get_mut(&handle).ok_or(Errno::BADF)?;
        if found.socket != Some(socket) {
            return Err(Errno::BADF);
        }
        found.is_private = false;
        Ok(())
    }

    fn unless_detached(&self) -> Result<(), Errno> {
        if self.is_detached {
            Err(Errno::SHUTDOWN)
        } else {
            Ok(())
        }
    }

    /// Gives a handle to a connection that a process has taken out of an accept queue.
    fn adopt(&mut self, cx: &mut Context<'_>, id: SocketId, handle: HandleId) -> Result<(), Errno> {
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        let listener = socket.stream().and_then(|stream| stream.listener);
        // Finds in the queue that the connection was taken.
        self.look(cx, listener.ok_or(Errno::INVAL)?);
        if !self.is_free(cx, handle) || self.unadopted.remove(&id).is_none() {
            return Err(Errno::INVAL);
        }
        self.take_handle(handle, id);
        let Some(socket) = self.socket(id) else {
            return Ok(());
        };
        socket.handle = Some(handle);
        let stream = socket.stream_mut();
        if stream.is_some_and(|it| std::mem::take(&mut it.waits_for_handle)) {
            self.pump(cx, id);
        }
        Ok(())
    }
}

fn answer(cx: &mut Context<'_>, request: u32, result: Result<(), Errno>) -> Outcome {
    answer_with(cx, request, result.map(|()| None))
}

fn answer_with_socket(
    cx: &mut Context<'_>,
    request: u32,
    result: Result<SocketId, Errno>,
) -> Outcome {
    answer_with(cx, request, result.map(Some))
}

fn answer_with(
    cx: &mut Context<'_>,
    request: u32,
    result: Result<Option<SocketId>, Errno>,
) -> Outcome {
    // Request 0 wants no answer.
    let is_wanted = request != 0;
    let (errno, socket) = match result {
        Ok(socket) => (0, socket),
        Err(errno) => {
            cx.counters.commands_refused += 1;
            (errno::number(errno), None)
        }
    };
    let answer = Event::Answer {
        request,
        errno,
        socket,
        value: 0,
    };
    if is_wanted {
        Outcome::Answer(answer)
    } else {
        Outcome::None
    }
}
