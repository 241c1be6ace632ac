//! The fake broker: it attaches processes, and gives handles. It dies and comes again as often as a
//! test wants; the host stack beside it goes on.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, recvmsg, sendmsg, socketpair,
};
use socket_channel::attach::{Attached, Reply, Request};
use socket_channel::channel::{self, HostEnd};
use socket_channel::{AppId, ChannelId, HandleId, handle_name};

use super::world::{BELL, BROKER, ChannelOf, HANDLE, HandleOf, World, new_bell};

/// What the fake broker does with a process that comes again, or with a child that joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Welcome {
    Serve,
    /// It refuses with this errno.
    Refuse(Errno),
    /// It dies so many times more before it answers.
    Die(u32),
    /// It never answers.
    Ignore,
}

fn reply(socket: &OwnedFd, reply: &Reply, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let packet = reply.encode();
    // A process that is gone is noticed by its hang-up.
    let _ = sendmsg(
        socket,
        &[IoSlice::new(&packet)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    );
}

impl World {
    /// Waits until a process has connected that is not served: it is not, while the world stands
    /// still.
    pub(crate) fn await_process(&self) {
        let listener = self.listener.as_ref().unwrap();
        let mut polled = [PollFd::new(listener, PollFlags::IN)];
        assert_eq!(poll(&mut polled, None), Ok(1));
    }

    pub(super) fn accept_process(&mut self) {
        let listener = self.listener.as_ref().unwrap();
        let process = accept_with(listener, SocketFlags::CLOEXEC).unwrap();
        self.add_process(process);
    }

    fn add_process(&mut self, process: OwnedFd) -> u32 {
        let number = self.number();
        let data = EventData::new_u64(BROKER | u64::from(number));
        epoll::add(&self.set, &process, data, EventFlags::IN).unwrap();
        self.brokers.insert(number, (process, None));
        number
    }

    /// Answers a process, or notices that it is gone.
    pub(super) fn serve_process(&mut self, number: u32) {
        let Some((process, channel)) = self.brokers.get(&number) else {
            return;
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut packet = [0; 256];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let pieces = &mut [IoSliceMut::new(&mut packet)];
        let received = recvmsg(process, pieces, &mut ancillary, flags);
        let received = received.map_or(0, |received| received.bytes);
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                descriptors.extend(passed);
            }
        }
        if received == 0 {
            if let Some(channel) = channel {
                self.channels.remove(channel);
            }
            self.brokers.remove(&number);
            return;
        }
        self.copies.clear();
        let request = Request::decode(&packet[..received]).unwrap();
        if let Request::Reattach { .. } | Request::Join { .. } = request
            && !self.welcomes(number)
        {
            return;
        }
        match request {
            Request::Attach { modes } => {
                self.modes = modes;
                self.attach(number, modes);
            }
            Request::Join { app, key } => {
                assert_eq!((app, key), (AppId(1), self.key));
                self.joined += 1;
                self.attach(number, self.modes);
            }
            Request::Reattach { app, channel, key } => {
                assert_eq!((app, key), (AppId(1), self.key));
                assert!(self.channels.contains_key(&channel.0), "it is attached");
                self.reattached += 1;
                let (process, of) = self.brokers.get_mut(&number).unwrap();
                *of = Some(channel.0);
                reply(process, &Reply::Reattached, &[]);
            }
            Request::Adopt => {
                let child = self.add_process(descriptors.pop().unwrap());
                self.attach(child, self.modes);
            }
            Request::MoreHandles { count, nonblocking } => {
                self.give_handles(number, count, nonblocking);
            }
            Request::PassFile => self.pass_file(number, descriptors.pop().unwrap()),
        }
    }

    /// The broker dies, and another one takes its place at once.
    pub(crate) fn kill_broker(&mut self) {
        self.brokers.clear();
    }

    /// True if a process of an earlier broker is to be served.
    fn welcomes(&mut self, number: u32) -> bool {
        match self.welcome {
            Welcome::Serve => return true,
            Welcome::Refuse(errno) => {
                let errno = errno.raw_os_error().unsigned_abs();
                reply(&self.brokers[&number].0, &Reply::Refused { errno }, &[]);
                self.brokers.remove(&number);
            }
            Welcome::Die(times) => {
                self.kill_broker();
                self.welcome = match times {
                    1 => Welcome::Serve,
                    times => Welcome::Die(times - 1),
                };
            }
            Welcome::Ignore => self.ignored += 1,
        }
        false
    }

    fn attach(&mut self, process: u32, modes: u32) {
        let number = self.number();
        let file = channel::create_file().unwrap();
        let (app_bell, app_watch) = channel::create_app_bell().unwrap();
        let host_bell = new_bell();
        let dup = |bell: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(bell, 0).unwrap();
        let end = HostEnd::from_files(&file, dup(&host_bell), dup(&app_bell)).unwrap();
        let data = EventData::new_u64(BELL | u64::from(number));
        epoll::add(&self.set, end.wake_fd().unwrap(), data, EventFlags::IN).unwrap();
        let attached = Attached {
            app: AppId(1),
            channel: ChannelId(number),
            limits: self.limits,
            modes,
            key: self.key,
        };
        let descriptors = [
            self.segment_file.as_fd(),
            file.as_fd(),
            host_bell.as_fd(),
            app_watch.as_fd(),
        ];
        let (socket, channel) = self.brokers.get_mut(&process).unwrap();
        *channel = Some(number);
        reply(socket, &Reply::Attached(attached), &descriptors);
        let backlog = Default::default();
        self.channels.insert(number, ChannelOf { end, backlog });
    }

    fn give_handles(&mut self, process: u32, count: u32, nonblocking: bool) {
        let count = count.min(self.handles_left);
        self.handles_left -= count;
        let first = self.numbers + 1;
        let channel = self.brokers[&process].1.unwrap_or_default();
        let mut passed = Vec::new();
        for _ in 0..count {
            let number = self.number();
            let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let mut flags = SocketFlags::CLOEXEC;
            flags.set(SocketFlags::NONBLOCK, nonblocking);
            let pair = socketpair(family, kind, flags, None);
            let (own, theirs) = pair.unwrap();
            rustix::net::shutdown(&own, Shutdown::Read).unwrap();
            let name = handle_name::encode(&self.key, HandleId(number));
            let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            rustix::net::bind(&own, &name).unwrap();
            let data = EventData::new_u64(HANDLE | u64::from(number));
            epoll::add(&self.set, &own, data, EventFlags::empty()).unwrap();
            let handle = HandleOf {
                fd: own,
                socket: None,
                channel,
                is_private: false,
            };
            self.handles.insert(number, handle);
            passed.push(theirs);
        }
        let emfile = rustix::io::Errno::MFILE.raw_os_error() as u32;
        let handles = Reply::Handles {
            first: HandleId(first),
            count,
            errno: if count > 0 { 0 } else { emfile },
        };
        let lent: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
        reply(&self.brokers[&process].0, &handles, &lent);
        if self.is_late_to_close {
            self.copies = passed;
        }
    }

    fn pass_file(&mut self, process: u32, descriptor: OwnedFd) {
        let file = match self.takes_files {
            Ok(()) => {
                let number = self.number();
                self.passed.insert(number, descriptor);
                Ok(number)
            }
            Err(errno) => Err(errno.raw_os_error() as u32),
        };
        reply(&self.brokers[&process].0, &Reply::Passed { file }, &[]);
    }

    /// Closes sockets without connections whose last descriptor is closed already.
    pub(super) fn close_hung_up(&mut self) {
        let mut events = Vec::with_capacity(64);
        let none = Timespec::default();
        let spare = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&self.set, spare, Some(&none)).unwrap();
        for event in events {
            let data = event.data.u64();
            let number = data as u32;
            let is_handle = data & !0xffff_ffff == HANDLE;
            let socket = self.handles.get(&number).and_then(|handle| handle.socket);
            let socket = socket.and_then(|id| self.sockets.get(&id.index));
            if is_handle && socket.is_some_and(|socket| socket.peer.is_none()) {
                self.close_handle(number);
            }
        }
    }

    /// The last copy of a handle is closed.
    pub(super) fn close_handle(&mut self, number: u32) {
        let Some(handle) = self.handles.remove(&number) else {
            return;
        };
        epoll::delete(&self.set, &handle.fd).unwrap();
        if let Some(socket) = handle.socket {
            self.close(socket);
        }
    }
}
