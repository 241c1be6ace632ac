//! Options of sockets and their connections.

use host::OffloadPolicy;
use host::app::Io;
use rustix::io::Errno;
use socket_channel::{SocketId, SocketOption};

use crate::application::{App, Context};
use crate::state::options::congestion_code;
use crate::state::socket::Kind;

impl App {
    /// Sets an option.
    pub(crate) fn set_option(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        option: SocketOption,
        value: u64,
    ) -> Result<(), Errno> {
        if value != 0 && offload_of(cx.io, option).is_some_and(|it| !it.is_permitted()) {
            return Err(Errno::PERM);
        }
        if is_of_address(option) {
            return self.share_address(cx, id, option, value != 0);
        }
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        let is_connected = matches!(&socket.kind, Kind::Stream(stream) if !stream.is_gone);
        if option == SocketOption::FastOpenQueue && is_connected {
            return Err(Errno::INVAL);
        }
        socket.options.set(option, value)?;
        if socket.tells_options {
            socket.tell_options();
        }
        let options = socket.options;
        match option {
            SocketOption::NotSentLowWaterBytes => self.bound_notsent(cx, id),
            SocketOption::Cork => self.follow_cork(cx, id, true),
            _ => {}
        }
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        let is_over = socket.is_over();
        match &mut socket.kind {
            Kind::Listener(listener) if !is_over => {
                // A stack that no longer accepts rejects the options.
                let _ = cx.io.listen(listener.binding, options.to_stream_options());
            }
            Kind::Stream(stream) if !stream.is_gone => {
                if let Some(change) = options.change_of(option) {
                    cx.io.set_option(stream.id, change);
                }
            }
            Kind::Unconnected(_) | Kind::Listener(_) | Kind::Stream(_) | Kind::File(_) => {}
        }
        Ok(())
    }

    /// Sets `SO_REUSEADDR` or `SO_REUSEPORT` of a bound socket.
    fn share_address(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        option: SocketOption,
        shares: bool,
    ) -> Result<(), Errno> {
        let uid = self.uid;
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        let binding = match &socket.kind {
            Kind::Unconnected(unconnected) => unconnected.binding,
            Kind::Listener(listener) => Some(listener.binding),
            Kind::Stream(stream) => stream.binding,
            Kind::File(_) => None,
        };
        match (option, binding) {
            (SocketOption::ReuseAddress, Some(binding)) => cx.io.reuse_address(binding, shares),
            (SocketOption::ReusePort, Some(binding)) => {
                cx.io.reuse_port(binding, shares.then_some(uid));
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the value of an option; a connection's own value if it has one.
    pub(crate) fn option(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        option: SocketOption,
    ) -> Result<u64, Errno> {
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        let options = socket.options;
        let info = socket.stream().filter(|stream| !stream.is_gone);
        let info = info.and_then(|stream| cx.io.info(stream.id));
        match (option, info) {
            (SocketOption::MaxSegmentBytes, Some(info)) => Ok(info.mss),
            (SocketOption::Congestion, Some(info)) => Ok(congestion_code(info.congestion)),
            _ => match offload_of(cx.io, option) {
                Some(offload) => Ok(offload.applies(options.wanted_offload(option)).into()),
                None => options.get(option),
            },
        }
    }
}

/// Reports whether an option concerns the binding of an address, not a connection.
fn is_of_address(option: SocketOption) -> bool {
    matches!(option, SocketOption::ReuseAddress | SocketOption::ReusePort)
}

/// Returns the configured policy of an option that NIC stacks implement; `None` for others.
fn offload_of(io: &dyn Io, option: SocketOption) -> Option<OffloadPolicy> {
    match option {
        SocketOption::SetupOffload => Some(io.offloads().setup),
        SocketOption::TeardownOffload => Some(io.offloads().teardown),
        _ => None,
    }
}
