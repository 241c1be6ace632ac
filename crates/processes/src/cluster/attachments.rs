//! Attaching to the broker: applications of the other node attach like programs of this node.

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

/// Most events handled at once.
const EVENTS_MAX: usize = 64;

/// Inverse of the largest share of the descriptors that one application has as handles.
const PART_OF_DESCRIPTORS: u64 = 4;

/// Event data of a bell, instead of an application's number.
const RUNG: u64 = u64::MAX;

/// Flag in the event data for handles that have hung up, beside the application's number.
const HUNG_UP: u64 = 1 << 32;

/// A connection to the broker.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    is_attached: bool,
    /// A handle without a socket, whose hang-up reveals the end of the host process.
    canary: Option<OwnedFd>,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Attachments {
    path: PathBuf,
    /// Most handles of an application.
    handles_max: usize,
    ready: OwnedFd,
    connections: HashMap<u32, Connection>,
    brought: VecDeque<Brought>,
}

fn number(errno: Errno) -> u32 {
    errno.raw_os_error().unsigned_abs()
}

impl Attachments {
    /// Attaches at the broker at this path, in a process with a limit of `descriptors_max`
    /// descriptors.
    pub(crate) fn new(path: PathBuf, descriptors_max: u64) -> Result<Attachments, Errno> {
        let handles_max = descriptors_max / PART_OF_DESCRIPTORS;
        Ok(Attachments {
            path,
            handles_max: usize::try_from(handles_max).unwrap_or(usize::MAX),
            ready: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: HashMap::new(),
            brought: VecDeque::new(),
        })
    }

    /// Returns a descriptor that is readable when the broker has answered, or a bell has rung.
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

    /// Handles pending events.
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

    /// Drops an application: the broker or the host process has ended.
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
                            // Without the watch, the keep-alive of the session finds messages.
                            let _ = epoll::add(&self.ready, bell, data, flags);
                        }
                        let granted = Box::new(granted);
                        Brought::Attached { app, granted }
                    }
                    Err(error) => {
                        tracing::debug!(%error, app, "an application cannot attach");
                        self.connections.remove(&app);
                        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                        let errno = number(errno);
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
            let request = Request::MoreHandles {
                count: HANDLES_MAX,
                nonblocking: false,
            };
            send(&connection.socket, &request)
        });
        if let Some(Err(_)) = asked {
            self.lose(app);
        }
    }

    fn detach(&mut self, app: u32) {
        self.connections.remove(&app);
        // Another application may get the number next.
        self.brought.retain(|brought| brought.app() != app);
    }

    fn handles_max(&self) -> usize {
        self.handles_max
    }

    fn receive(&mut self) -> Option<Brought> {
        if self.brought.is_empty() {
            self.look();
        }
        self.brought.pop_front()
    }
}

/// Maps the memory that the broker has granted.
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

/// Receives the broker's next answer, if there is one, with its descriptors.
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
    // The kernel drops descriptors that would exceed the limit, the last first.
    if descriptors.len() > reply.descriptors() {
        return Err(Errno::PROTO);
    }
    Ok(Some((reply, descriptors)))
}

#[cfg(test)]
mod tests {
    use rustix::net::{SendAncillaryMessage, accept, bind, listen};
    use socket_channel::attach::Key;
    use socket_channel::{AppId, ChannelId, Limits, channel};

    use super::*;

    /// A broker played by the test.
    struct Broker {
        _folder: tempfile::TempDir,
        attachments: Attachments,
        socket: OwnedFd,
    }

    impl Broker {
        /// Starts with a request to attach application 5.
        fn new() -> Broker {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("sockets");
            let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let flags = SocketFlags::CLOEXEC;
            let listener = socket_with(family, kind, flags, None).unwrap();
            bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            listen(&listener, 1).unwrap();
            let mut attachments = Attachments::new(path, 8000).unwrap();
            attachments.attach(5, 30);
            let socket = accept(&listener).unwrap();
            let broker = Broker {
                _folder: folder,
                attachments,
                socket,
            };
            assert_eq!(broker.asked(), Request::Attach { modes: 30 });
            broker
        }

        fn asked(&self) -> Request {
            let mut packet = [0; PACKET_BYTES_MAX];
            let len = rustix::io::read(&self.socket, &mut packet).unwrap();
            Request::decode(&packet[..len]).unwrap()
        }

        fn reply(&self, reply: &Reply, descriptors: &[OwnedFd]) {
            const SPACE: usize = rustix::cmsg_space!(ScmRights(HANDLES_MAX as usize));
            let mut space = [MaybeUninit::uninit(); SPACE];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            if !descriptors.is_empty() {
                assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
            }
            let packet = reply.encode();
            let flags = SendFlags::NOSIGNAL;
            sendmsg(
                &self.socket,
                &[IoSlice::new(&packet)],
                &mut ancillary,
                flags,
            )
            .unwrap();
        }

        fn attached() -> (Reply, Vec<OwnedFd>) {
            let limits = Limits {
                sockets_max: 4,
                segment_bytes: 64 << 10,
            };
            let descriptors = vec![
                Segment::create_file(Layout::of(limits).unwrap()).unwrap(),
                channel::create_file().unwrap(),
                channel::create_bell().unwrap(),
                channel::create_app_bell().unwrap().1,
            ];
            let reply = Reply::Attached(Attached {
                app: AppId(77),
                channel: ChannelId(78),
                limits,
                modes: 30,
                key: Key::new([7; Key::BYTES]),
            });
            (reply, descriptors)
        }

        /// Accepts the application.
        fn attach(&mut self) {
            let (reply, descriptors) = Broker::attached();
            self.reply(&reply, &descriptors);
            let brought = self.attachments.receive();
            let Some(Brought::Attached { app: 5, granted }) = brought else {
                panic!("{brought:?}");
            };
            assert_eq!((granted.channel, granted.modes), (ChannelId(78), 30));
        }
    }

    /// Returns pairs of sockets: handles, and their other ends.
    fn handles(count: usize) -> (Vec<OwnedFd>, Vec<OwnedFd>) {
        let pair = || netsetup::seqpacket::pair().unwrap();
        std::iter::repeat_with(pair).take(count).unzip()
    }

    #[test]
    fn an_application_is_attached_gets_handles_and_hears_of_the_end() {
        let mut broker = Broker::new();
        assert!(broker.attachments.receive().is_none());
        broker.attach();
        broker.attachments.more_handles(5);
        let expected = Request::MoreHandles {
            count: HANDLES_MAX,
            nonblocking: false,
        };
        assert_eq!(broker.asked(), expected);
        let (ours, theirs) = handles(3);
        let (first, count, errno) = (HandleId(64), 3, 0);
        broker.reply(
            &Reply::Handles {
                first,
                count,
                errno,
            },
            &theirs,
        );
        let brought = broker.attachments.receive();
        let Some(Brought::Handles { app: 5, handles }) = brought else {
            panic!("{brought:?}");
        };
        let numbers: Vec<HandleId> = handles.iter().map(|(id, _)| *id).collect();
        // The first is the canary.
        assert_eq!(numbers, [HandleId(65), HandleId(66)]);
        drop((theirs, ours));
        let brought = broker.attachments.receive();
        assert!(
            matches!(brought, Some(Brought::Gone { app: 5 })),
            "{brought:?}"
        );
    }

    /// The kernel drops descriptors that would exceed a process's limit.
    #[test]
    fn handles_that_find_no_room_end_no_application() {
        let mut broker = Broker::new();
        broker.attach();
        let (_ours, theirs) = handles(2);
        let (first, count, errno) = (HandleId(0), HANDLES_MAX, 0);
        let reply = Reply::Handles {
            first,
            count,
            errno,
        };
        for (sent, came) in [(&theirs[..], 1), (&[], 0)] {
            broker.reply(&reply, sent);
            let brought = broker.attachments.receive();
            let Some(Brought::Handles { app: 5, handles }) = brought else {
                panic!("{brought:?}");
            };
            assert_eq!(handles.len(), came);
        }
        assert_eq!(broker.attachments.handles_max(), 2000);
    }

    #[test]
    fn an_application_whose_memory_finds_no_room_is_refused_with_the_reason() {
        let mut broker = Broker::new();
        let (reply, descriptors) = Broker::attached();
        broker.reply(&reply, &descriptors[..2]);
        let brought = broker.attachments.receive();
        let errno = number(Errno::MFILE);
        let is_right =
            matches!(brought, Some(Brought::Refused { app: 5, errno: why }) if why == errno);
        assert!(is_right, "{brought:?}");
    }

    #[test]
    fn what_the_broker_refuses_is_refused_and_one_that_is_not_there_too() {
        let mut broker = Broker::new();
        let errno = number(Errno::ACCESS);
        broker.reply(&Reply::Refused { errno }, &[]);
        let brought = broker.attachments.receive();
        let is_right =
            matches!(brought, Some(Brought::Refused { app: 5, errno: why }) if why == errno);
        assert!(is_right, "{brought:?}");

        let mut nowhere = Attachments::new("/nowhere/at/all".into(), 8000).unwrap();
        nowhere.attach(6, 30);
        let brought = nowhere.receive();
        let errno = number(Errno::NOENT);
        let is_right =
            matches!(brought, Some(Brought::Refused { app: 6, errno: why }) if why == errno);
        assert!(is_right, "{brought:?}");
    }

    /// Another application may get its number next.
    #[test]
    fn nothing_comes_for_an_application_that_was_detached() {
        let mut broker = Broker::new();
        let (reply, descriptors) = Broker::attached();
        broker.reply(&reply, &descriptors);
        broker.attachments.look();
        broker.attachments.detach(5);
        assert!(broker.attachments.receive().is_none());
    }
}
