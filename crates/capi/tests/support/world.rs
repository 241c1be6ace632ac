//! What the fake host stack has, and its turns.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::rand::{GetRandomFlags, getrandom};
use socket_channel::attach::{Key, MODES_DEFAULT};
use socket_channel::channel::HostEnd;
use socket_channel::fifo_area::FifoArea;
use socket_channel::host_record::More;
use socket_channel::message::Info;
use socket_channel::{
    Command, Event, Family, FileMeta, Flags, HostRecord, How, Layout, Limits, Segment, SocketId,
    SocketOption, Wanted,
};

use super::broker::Welcome;

/// A port where no peer answers.
pub(crate) const NO_ANSWER: u16 = 9;

/// A key that no other host stack of this machine has.
fn new_key() -> Key {
    let mut bytes = [0; Key::BYTES];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty());
    assert_eq!(filled, Ok(Key::BYTES));
    Key::new(bytes)
}

/// A connection to this port has its peer on the same stack.
pub(crate) const LOOPED: u16 = 10;

/// The one file that there is, and one whose opening takes until [`World::open_slow_files`].
pub(crate) const FILE: &str = "/film.mp4";
pub(crate) const FILE_SLOW: &str = "/slow.mp4";

/// File bytes that may be queued and not sent.
const CREDIT_BYTES: u64 = 256 << 10;

const FIFO_BYTES: usize = 64 << 10;

/// Kinds of what the set watches; the number of the thing is below.
pub(super) const LISTENER: u64 = 1 << 32;
pub(super) const STOP: u64 = 2 << 32;
pub(super) const BROKER: u64 = 3 << 32;
pub(super) const BELL: u64 = 4 << 32;
pub(super) const HANDLE: u64 = 5 << 32;

pub(super) struct ChannelOf {
    pub(super) end: HostEnd,
    pub(super) backlog: VecDeque<Event>,
}

pub(super) struct HandleOf {
    pub(super) fd: OwnedFd,
    pub(super) socket: Option<SocketId>,
    /// The process that it was given to, by its channel.
    pub(super) channel: u32,
    /// That process has used it for another socket before.
    pub(super) is_private: bool,
}

/// A range of a file on its way.
pub(super) struct Range {
    pub(super) at: u64,
    pub(super) file: SocketId,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) content: Option<Arc<Vec<u8>>>,
}

pub(super) struct Socket {
    pub(super) record: HostRecord,
    pub(super) family: Family,
    pub(super) local: Option<SocketAddr>,
    /// The other end of the connection.
    pub(super) peer: Option<u32>,
    pub(super) ranges: VecDeque<Range>,
    pub(super) finish_at: Option<u64>,
    pub(super) sent_bytes: u64,
    /// Its last descriptor is closed.
    pub(super) is_orphan: bool,
    /// What has arrived and was not asked for: bytes, and connections of a listener.
    pub(super) held: VecDeque<u8>,
    pub(super) held_connections: VecDeque<SocketId>,
    /// Its own and its peer's address, unless the record tells them.
    pub(super) untold: Option<(SocketAddr, SocketAddr)>,
    pub(super) options: HashMap<SocketOption, u64>,
    pub(super) content: Option<Arc<Vec<u8>>>,
}

/// The broker and the host stack, for one application.
pub(crate) struct World {
    pub(crate) listener: Option<OwnedFd>,
    pub(super) set: OwnedFd,
    /// The two sockets that were joined last, each with its peer.
    pub(super) spliced: Option<[(u32, u32); 2]>,
    pub(super) segment: Segment,
    pub(super) segment_file: OwnedFd,
    pub(super) limits: Limits,
    /// The secret of the application.
    pub(super) key: Key,
    pub(super) area: FifoArea,
    pub(super) brokers: HashMap<u32, (OwnedFd, Option<u32>)>,
    pub(super) channels: HashMap<u32, ChannelOf>,
    pub(super) handles: HashMap<u32, HandleOf>,
    pub(super) sockets: HashMap<u32, Socket>,
    pub(super) numbers: u32,
    /// Modes of the application.
    pub(super) modes: u32,
    generation: u32,
    free: Vec<u32>,
    ports: u16,
    content: Arc<Vec<u8>>,
    /// Commands that came, by name: for tests of what crosses the channel.
    pub(crate) seen: Vec<String>,
    /// Handles that the broker still gives.
    pub(crate) handles_left: u32,
    /// The broker closes its copies of a batch of handles no sooner than it has to: when it deals
    /// with the next request.
    pub(crate) is_late_to_close: bool,
    pub(super) copies: Vec<OwnedFd>,
    /// Why files cannot be passed.
    pub(crate) takes_files: Result<(), Errno>,
    /// Why files that were passed cannot be opened.
    pub(crate) opens_passed: Result<(), Errno>,
    pub(super) passed: HashMap<u32, OwnedFd>,
    pub(crate) welcome: Welcome,
    /// Processes that have come again, and children that have joined.
    pub(crate) reattached: u32,
    pub(crate) joined: u32,
    /// Such processes that wait for an answer which never comes.
    pub(crate) ignored: u32,
    /// Half of the memory is in use.
    pub(crate) is_short: bool,
    /// Bytes to which FIFOs grow that are written to; 0: they do not.
    pub(crate) tx_max_bytes: usize,
    /// Peers take bytes and acknowledge none, until [`World::acknowledge`].
    pub(crate) holds_acks: bool,
}

impl World {
    pub(super) fn new(
        path: &Path,
        sockets_max: u32,
        segment_bytes: u64,
        stop: BorrowedFd<'_>,
    ) -> World {
        let limits = Limits {
            sockets_max,
            segment_bytes,
        };
        let layout = Layout::of(limits).unwrap();
        let segment_file = Segment::create_file(layout).unwrap();
        let segment = Segment::host_from_file(&segment_file, layout).unwrap();
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let listener = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::listen(&listener, 64).unwrap();
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let watch = |fd: BorrowedFd<'_>, data| {
            epoll::add(&set, fd, EventData::new_u64(data), EventFlags::IN).unwrap();
        };
        watch(listener.as_fd(), LISTENER);
        watch(stop, STOP);
        World {
            listener: Some(listener),
            area: FifoArea::new(segment.layout()),
            set,
            spliced: None,
            segment,
            segment_file,
            limits,
            key: new_key(),
            brokers: HashMap::new(),
            channels: HashMap::new(),
            handles: HashMap::new(),
            sockets: HashMap::new(),
            numbers: 0,
            modes: MODES_DEFAULT,
            generation: 0,
            free: (0..sockets_max).rev().collect(),
            ports: 40_000,
            content: Arc::new(super::pattern(99, 1_000_000)),
            seen: Vec::new(),
            handles_left: 1 << 20,
            is_late_to_close: false,
            copies: Vec::new(),
            takes_files: Ok(()),
            opens_passed: Ok(()),
            passed: HashMap::new(),
            welcome: Welcome::Serve,
            reattached: 0,
            joined: 0,
            ignored: 0,
            is_short: false,
            tx_max_bytes: 0,
            holds_acks: false,
        }
    }

    pub(super) fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    /// The memory that the application shares, for those who write nonsense into it.
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Sockets on whose bytes this is to follow.
    pub(crate) fn sockets_with(&self, more: More) -> usize {
        let sockets = self.sockets.values();
        sockets.filter(|it| it.record.more() == more).count()
    }

    /// Sockets that there are.
    pub(crate) fn sockets(&self) -> usize {
        self.sockets.len()
    }

    /// The content of [`FILE`].
    pub(crate) fn content(&self) -> Arc<Vec<u8>> {
        Arc::clone(&self.content)
    }

    /// The socket at a local port that has a peer.
    pub(crate) fn connection_at(&self, port: u16) -> u32 {
        let found = self.sockets.iter().find(|(_, socket)| {
            socket.peer.is_some() && socket.local.is_some_and(|local| local.port() == port)
        });
        *found.expect("there is a connection at the port").0
    }

    /// A connection fails, as by a reset or a timeout.
    pub(crate) fn fail(&mut self, index: u32, errno: Errno) {
        let errno = errno.raw_os_error() as u32;
        self.hand_over(index, u64::MAX);
        let socket = self.sockets.get_mut(&index).unwrap();
        socket.record.set_held(0);
        socket.record.fail(errno, Flags::FAILED | Flags::CLOSED);
        self.hint(index);
        self.flush();
    }

    /// Opens all files that wait for it.
    pub(crate) fn open_slow_files(&mut self) {
        let files: Vec<u32> = self
            .sockets
            .iter()
            .filter(|(_, socket)| socket.record.flags() == Flags::FILE)
            .map(|(index, _)| *index)
            .collect();
        for index in files {
            self.open(index);
        }
        for index in self.sockets.keys().copied().collect::<Vec<_>>() {
            self.carry(index);
        }
        self.flush();
    }

    /// Has all channels look at everything.
    pub(crate) fn scan_all(&mut self) {
        for channel in self.channels.values_mut() {
            channel.backlog.push_back(Event::ScanAll);
        }
        self.flush();
    }

    /// An event that no host stack sends.
    pub(crate) fn send_to_all(&mut self, event: &Event) {
        for channel in self.channels.values_mut() {
            channel.backlog.push_back(*event);
        }
        self.flush();
    }

    pub(super) fn drop_descriptors(&mut self) {
        self.listener = None;
        self.brokers.clear();
        self.channels.clear();
        self.handles.clear();
        self.copies.clear();
    }

    pub(super) fn allocate(&mut self, flags: Flags, family: Family, fifos: bool) -> Option<u32> {
        let index = self.free.pop()?;
        self.generation += 1;
        let id = SocketId {
            index,
            generation: self.generation,
        };
        let [rx, tx] = if fifos {
            self.fifos(FIFO_BYTES)
        } else {
            [None; 2]
        };
        let record = HostRecord::new(&self.segment, id, flags, rx, tx);
        let socket = Socket {
            record,
            family,
            local: None,
            peer: None,
            ranges: VecDeque::new(),
            finish_at: None,
            sent_bytes: 0,
            is_orphan: false,
            held: VecDeque::new(),
            held_connections: VecDeque::new(),
            untold: None,
            options: HashMap::new(),
            content: None,
        };
        self.sockets.insert(index, socket);
        Some(index)
    }

    pub(super) fn retire(&mut self, index: u32) {
        let socket = self.sockets.remove(&index).unwrap();
        let blocks = socket.record.blocks();
        let _ = socket.record.retire();
        for block in blocks.into_iter().flatten() {
            self.area.release(block);
        }
        self.free.push(index);
    }

    /// The peer of a socket acknowledges so many bytes.
    pub(crate) fn acknowledge(&mut self, index: u32, bytes: u64) {
        let socket = self.sockets.get_mut(&index).unwrap();
        assert!(bytes <= socket.sent_bytes, "it has not been sent");
        socket.record.set_acked(bytes);
        self.hint(index);
        self.flush();
    }

    pub(super) fn port(&mut self) -> u16 {
        self.ports += 1;
        self.ports
    }

    /// Hints the change of a socket to those who asked.
    pub(super) fn hint(&mut self, index: u32) {
        let Some(socket) = self.sockets.get_mut(&index) else {
            return;
        };
        let event = Event::Ready {
            socket: socket.record.id(),
        };
        match socket.record.take_wanted() {
            Wanted::None => {}
            Wanted::By(channel) => self.send(channel.0, event),
            Wanted::BySeveral => {
                for channel in self.channels.keys().copied().collect::<Vec<_>>() {
                    self.send(channel, event);
                }
            }
        }
    }

    pub(super) fn send(&mut self, channel: u32, event: Event) {
        if let Some(channel) = self.channels.get_mut(&channel) {
            channel.backlog.push_back(event);
        }
    }

    pub(super) fn flush(&mut self) {
        for channel in self.channels.values_mut() {
            while let Some(event) = channel.backlog.front() {
                if channel.end.send(event).is_err() {
                    break;
                }
                channel.backlog.pop_front();
            }
            channel.end.flush();
        }
    }

    /// Takes the commands of all channels; true if there were any.
    fn turn(&mut self) -> bool {
        let mut any = false;
        for number in self.channels.keys().copied().collect::<Vec<_>>() {
            for _ in 0..256 {
                let Some(channel) = self.channels.get_mut(&number) else {
                    break;
                };
                let Ok(Some(command)) = channel.end.receive() else {
                    break;
                };
                any = true;
                let mut bytes = Vec::new();
                command.encode(&mut bytes);
                let command = Command::decode(&bytes).unwrap();
                let name = format!("{command:?}");
                let name = name.split(' ').next().unwrap_or_default().to_owned();
                self.seen.push(name);
                self.obey(number, command);
            }
        }
        self.flush();
        any
    }

    fn prepare_sleep(&mut self) -> bool {
        let channels = self.channels.values_mut();
        let ready: Vec<bool> = channels.map(|it| it.end.prepare_sleep()).collect();
        ready.into_iter().all(|ready| ready)
    }

    pub(super) fn open(&mut self, index: u32) {
        self.open_with(index, Arc::clone(&self.content));
    }

    pub(super) fn open_with(&mut self, index: u32, content: Arc<Vec<u8>>) {
        let Some(socket) = self.sockets.get_mut(&index) else {
            return;
        };
        socket.record.set_file_meta(FileMeta {
            size: content.len() as u64,
            mtime_ns: 1_700_000_000_123_456_789,
            ctime_ns: 1_700_000_001_000_000_000,
            inode: 42,
            device: 7,
            is_weak: false,
        });
        socket.content = Some(content);
        socket.record.set(Flags::FILE_OPEN);
        self.hint(index);
    }

    pub(super) fn answer(&mut self, channel: u32, request: u32, done: Result<Done, Errno>) {
        if request == 0 {
            return;
        }
        let done = done.map_err(|errno| errno.raw_os_error() as u32);
        let (errno, Done { socket, value }) = match done {
            Ok(done) => (0, done),
            Err(errno) => (errno, Done::default()),
        };
        let event = Event::Answer {
            request,
            errno,
            socket,
            value,
        };
        self.send(channel, event);
    }

    pub(super) fn info(&self, index: u32) -> Option<Info> {
        let socket = self.sockets.get(&index)?;
        Some(Info {
            state: u8::from(socket.record.flags().has(Flags::CONNECTED)),
            rtt: 1234.into(),
            snd_cwnd: 10.into(),
            bytes_acked: socket.sent_bytes.into(),
            rcv_wnd: 77.into(),
            ..Info::default()
        })
    }

    pub(super) fn credit(&mut self, index: u32) {
        let socket = self.sockets.get_mut(&index).unwrap();
        socket.record.add_file_credit(CREDIT_BYTES);
    }
}

/// What an Answer brings.
#[derive(Clone, Copy, Default)]
pub(super) struct Done {
    pub(super) socket: Option<SocketId>,
    pub(super) value: u64,
}

/// Serves until it is stopped.
pub(super) fn serve(world: &Mutex<World>) {
    let mut events = Vec::with_capacity(64);
    loop {
        let (set, may_sleep) = {
            let mut world = world.lock().unwrap();
            while world.turn() {}
            let may_sleep = world.prepare_sleep();
            (rustix::io::dup(&world.set).unwrap(), may_sleep)
        };
        let none = Timespec::default();
        let timeout = if may_sleep { None } else { Some(&none) };
        events.clear();
        let spare = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&set, spare, timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => panic!("{errno}"),
        }
        let mut world = world.lock().unwrap();
        for channel in world.channels.values_mut() {
            channel.end.finish_sleep();
        }
        // A descriptor is closed behind the last command about it.
        while world.turn() {}
        for event in &events {
            let data = event.data;
            let (kind, number) = (data.u64() & !0xffff_ffff, data.u64() as u32);
            match kind {
                LISTENER => world.accept_process(),
                STOP => return,
                BROKER => world.serve_process(number),
                BELL => {}
                HANDLE => world.close_handle(number),
                _ => unreachable!(),
            }
        }
        world.flush();
    }
}

pub(super) fn new_bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

pub(super) fn shuts_write(how: How) -> bool {
    how != How::Read
}
