//! Disconnected sockets (connect(2) to `AF_UNSPEC`, `tcp_disconnect` of Linux).

use rustix::io::Errno;
use socket_channel::{Flags, SocketId};

use crate::application::{App, Context};
use crate::errno;
use crate::state::socket::{Kind, Unconnected};

impl App {
    /// Disconnects a socket, which may then be bound, connect, or listen. A connection that is open
    /// or being opened is reset, which becomes the socket's pending error; connections waiting at a
    /// listener are reset too. A port stays bound if the application has named it, an address in
    /// any case.
    pub(crate) fn disconnect(&mut self, cx: &mut Context<'_>, id: SocketId) -> Result<(), Errno> {
        if self.is_detached {
            return Err(Errno::CONNRESET);
        }
        self.leave_splice(cx, id, Some(Errno::CONNABORTED));
        // Connections that a process has taken from a listener before are its own.
        self.look(cx, id);
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        let (mut was_open, mut current) = (false, None);
        let mut binding = match &mut socket.kind {
            Kind::File(_) => return Err(Errno::NOTSOCK),
            Kind::Unconnected(_) | Kind::Listener(_)
                if socket.record.flags().has(Flags::CLOSED) =>
            {
                return Err(Errno::CONNRESET);
            }
            Kind::Unconnected(_) => return Ok(()),
            Kind::Stream(stream) => {
                was_open = !stream.is_gone;
                current = stream.current.take();
                let source = stream.source.take();
                let (stream, binding) = (stream.id, stream.binding.take());
                if was_open {
                    cx.io.abort(stream);
                    cx.places.streams.remove(&stream);
                }
                self.connections -= 1;
                self.sources.free(source);
                binding
            }
            Kind::Listener(listener) => {
                let binding = listener.binding;
                self.reset_waiting(cx, id);
                cx.io.unlisten(binding);
                cx.places.bindings.remove(&binding);
                self.forget_listener(id);
                Some(binding)
            }
        };
        self.note_closed(id, current);
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        if !socket.own.is_port_named
            && let Some(binding) = binding.take()
        {
            cx.io.release(binding);
        }
        let flags = if binding.is_some() {
            Flags::STREAM | Flags::BOUND
        } else {
            Flags::STREAM
        };
        socket.kind = Kind::Unconnected(Unconnected { binding });
        let blocks = socket.record.disconnect(flags);
        if let Some(left) = socket.own.left() {
            socket.record.set_local(left);
        }
        if was_open {
            let errno = errno::number(Errno::CONNRESET);
            socket.record.fail(errno, Flags::default());
        }
        self.release_fifos(blocks);
        self.unadopted.remove(&id);
        self.unmarked.remove(&id);
        self.touch(id);
        Ok(())
    }
}
