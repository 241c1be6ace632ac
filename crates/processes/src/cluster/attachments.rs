//! The way to the broker: applications of the other node attach as programs of this one do.

use std::collections::{HashMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use ::cluster::{Brought, Granted, Stack};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};
use socket_channel::attach::{
    ATTACHED_DESCRIPTORS, Attached, HANDLES_MAX, PACKET_BYTES_MAX, Reply, Request,
};
use socket_channel::channel::AppEnd;
use socket_channel::{HandleId, Layout, Segment};

/// Events that one look takes.
const EVENTS_MAX: usize = 64;

/// In the place of an application's number: a bell has rung.
const RUNG: u64 = u64::MAX;

/// What the number of an application whose handles have hung up has besides.
const HUNG_UP: u64 = 1 << 32;

/// A connection to the broker.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    is_attached: bool,
    /// A handle that no socket gets, by which the end of the host process is noticed.
    canary: Option<OwnedFd>,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Attachments {
    path: PathBuf,
    ready: OwnedFd,
    connections: HashMap<u32, Connection>,
    brought: VecDeque<Brought>,
}

fn number(errno: Errno) -> u32 {
    errno.raw_os_error().unsigned_abs()
}

impl Attachments {
    /// To the broker at this path.
    pub(crate) fn new(path: PathBuf) -> Result<Attachments, Errno> {
        Ok(Attachments {
            path,
            ready: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: HashMap::new(),
            brought: VecDeque::new(),
        })
    }

    /// Readable when the broker has answered, or a bell has rung.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn begin(&mut self, app: u32, modes: u32) -> Result<(), Errno> {
        let address = SocketAddrUnix::new(&self.path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = socket_with(family, kind, flags, None)?;
        connect(&socket, &address)?;
        send(&socket, &Request::Attach { modes })?;
        let data = epoll::EventData::new_u64(app.into());
        epoll::add(&self.ready, &socket, data, epoll::EventFlags::IN)?;
        let connection = Connection {
            socket,
            is_attached: false,
            canary: None,
        };
        self.connections.insert(app, connection);
        Ok(())
    }

    /// Takes in what has come.
    fn look(&mut self) {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; EVENTS_MAX];
        let count = epoll::wait(&self.ready, &mut events[..], Some(&Timespec::default()));
        for event in &events[..count.unwrap_or(0)] {
            let data = event.data.u64();
            if data == RUNG {
                continue;
            }
            let app = data as u32;
            if data & HUNG_UP != 0 {
                self.lose(app);
            } else {
                self.hear(app);
            }
        }
    }

    /// The broker or the host process has ended.
    fn lose(&mut self, app: u32) {
        if self.connections.remove(&app).is_some() {
            self.brought.push_back(Brought::Gone { app });
        }
    }

    fn hear(&mut self, app: u32) {
        let Some(connection) = self.connections.get_mut(&app) else {
            return;
        };
        let (reply, descriptors) = match receive(&connection.socket) {
            Ok(Some(received)) => received,
            Ok(None) => return,
            Err(_) => return self.lose(app),
        };
        let brought = match reply {
            Reply::Attached(attached) if !connection.is_attached => {
                connection.is_attached = true;
                match map(&attached, descriptors) {
                    Ok(granted) => {
                        if let Some(bell) = granted.end.wake_fd() {
                            let data = epoll::EventData::new_u64(RUNG);
                            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                            // The keep-alive of the session looks as well.
                            let _ = epoll::add(&self.ready, bell, data, flags);
                        }
                        let granted = Box::new(granted);
                        Brought::Attached { app, granted }
                    }
                    Err(error) => {
                        tracing::warn!(%error, app, "an application cannot attach");
                        self.connections.remove(&app);
                        let errno = number(Errno::IO);
                        Brought::Refused { app, errno }
                    }
                }
            }
            Reply::Refused { errno } => {
                self.connections.remove(&app);
                Brought::Refused { app, errno }
            }
            Reply::Handles { first, .. } => {
                let mut numbered = (first.0..).map(HandleId).zip(descriptors);
                if connection.canary.is_none()
                    && let Some((_, canary)) = numbered.next()
                {
                    let data = epoll::EventData::new_u64(HUNG_UP | u64::from(app));
                    let flags = epoll::EventFlags::empty();
                    let _ = epoll::add(&self.ready, &canary, data, flags);
                    connection.canary = Some(canary);
                }
                let handles = numbered.map(|(id, fd)| (id, Some(fd))).collect();
                Brought::Handles { app, handles }
            }
            Reply::Attached(_) | Reply::Reattached | Reply::Passed { .. } => return self.lose(app),
        };
        self.brought.push_back(brought);
    }
}

impl Stack for Attachments {
    fn attach(&mut self, app: u32, modes: u32) {
        if let Err(errno) = self.begin(app, modes) {
            let errno = number(errno);
            self.brought.push_back(Brought::Refused { app, errno });
        }
    }

    fn more_handles(&mut self, app: u32) {
        let asked = self.connections.get(&app).map(|connection| {
            let count = HANDLES_MAX;
            send(&connection.socket, &Request::MoreHandles { count })
        });
        if let Some(Err(_)) = asked {
            self.lose(app);
        }
    }

    fn detach(&mut self, app: u32) {
        self.connections.remove(&app);
    }

    fn receive(&mut self) -> Option<Brought> {
        if self.brought.is_empty() {
            self.look();
        }
        self.brought.pop_front()
    }
}

/// What the broker has granted.
fn map(attached: &Attached, descriptors: Vec<OwnedFd>) -> std::io::Result<Granted> {
    let descriptors = <[OwnedFd; ATTACHED_DESCRIPTORS]>::try_from(descriptors);
    let [segment, channel, host_bell, app_bell] =
        descriptors.map_err(|_| std::io::Error::from(Errno::MFILE))?;
    let layout = Layout::of(attached.limits).map_err(std::io::Error::other)?;
    Ok(Granted {
        segment: Segment::app_from_file(segment, layout)?,
        end: AppEnd::from_files(channel, app_bell, host_bell)?,
        channel: attached.channel,
        modes: attached.modes,
    })
}

fn send(socket: &OwnedFd, request: &Request) -> Result<(), Errno> {
    let packet = request.encode();
    let packet = [IoSlice::new(&packet)];
    let mut none = SendAncillaryBuffer::default();
    sendmsg(socket, &packet, &mut none, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The broker's next answer, if there is one, with its descriptors.
fn receive(socket: &OwnedFd) -> Result<Option<(Reply, Vec<OwnedFd>)>, Errno> {
    const SPACE: usize = rustix::cmsg_space!(ScmRights(HANDLES_MAX as usize));
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut packet = [0; PACKET_BYTES_MAX + 1];
    let received = {
        let pieces = &mut [IoSliceMut::new(&mut packet)];
        recvmsg(socket, pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    };
    let received = match received {
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        received => received?,
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    if received.bytes == 0 {
        return Err(Errno::CONNRESET);
    }
    let reply = Reply::decode(&packet[..received.bytes]).map_err(|_| Errno::PROTO)?;
    if descriptors.len() != reply.descriptors() {
        return Err(Errno::MFILE);
    }
    Ok(Some((reply, descriptors)))
}
