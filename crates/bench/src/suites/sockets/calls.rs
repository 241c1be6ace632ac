//! Calls of the measured server: the kernel's, or those of `libsplitway`. Both have the same names
//! and semantics, so that only the sockets differ.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use capi::Family;
use capi::client::{
    Client, DescriptorFlags, EpollChange, EpollEvent, OptionValue, Options, Polled, ReceiveFlags,
    SendFlags as SplitFlags,
};
use rustix::event::{PollFlags, epoll};
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, acceptfrom_with, bind, listen,
    recv, send, socket_with, sockopt,
};

/// Length of the queue of connections to accept.
const BACKLOG: i32 = 4096;

/// Most events returned at once.
const EVENTS_MAX: usize = 256;

/// Time limit to open a file.
const OPEN_WAIT: Duration = Duration::from_secs(10);

/// `IPPROTO_TCP` and `TCP_NODELAY`.
const NODELAY: (i32, i32) = (6, 1);

/// An event on a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    /// Value given to `watch`.
    pub(super) data: u64,
    /// The peer has ended its half, or the connection has failed.
    pub(super) is_ending: bool,
}

impl Ready {
    fn of(data: u64, events: u32) -> Ready {
        let ending = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        Ready {
            data,
            is_ending: events & ending.bits() != 0,
        }
    }
}

/// An open file and its size, in bytes.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: OwnedFd,
    pub(super) bytes: u64,
}

/// Nonblocking sockets, watched edge-triggered.
pub(super) trait Calls {
    fn listen(&self, at: SocketAddr) -> Result<OwnedFd>;
    fn accept(&self, listener: &OwnedFd) -> Result<OwnedFd>;
    fn receive(&self, fd: &OwnedFd, bytes: &mut [u8]) -> Result<usize>;
    /// Sends bytes; with `more`, others follow at once.
    fn send(&self, fd: &OwnedFd, bytes: &[u8], more: bool) -> Result<usize>;
    fn close(&self, fd: OwnedFd) -> Result<()>;
    /// Creates an epoll set.
    fn set(&self) -> Result<OwnedFd>;
    fn watch(&self, set: &OwnedFd, fd: &OwnedFd, data: u64) -> Result<()>;
    /// Waits for events.
    fn wait(&self, set: &OwnedFd, found: &mut Vec<Ready>) -> Result<()>;
    /// Opens a file by its path below the root, as in a request.
    fn open(&self, path: &str) -> Result<Opened>;
    /// Sends a range of a file; returns the number of bytes sent.
    fn send_file(&self, fd: &OwnedFd, file: &OwnedFd, offset: u64, len: usize) -> Result<usize>;
}

/// Returns the events of a watched descriptor.
fn edges() -> epoll::EventFlags {
    use epoll::EventFlags;
    EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET
}

/// The kernel's calls.
#[derive(Debug)]
pub(super) struct Kernel {
    root: PathBuf,
}

impl Kernel {
    pub(super) fn new(root: &Path) -> Kernel {
        Kernel {
            root: root.to_owned(),
        }
    }
}

impl Calls for Kernel {
    fn listen(&self, at: SocketAddr) -> Result<OwnedFd> {
        let family = if at.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        sockopt::set_tcp_nodelay(&fd, true)?;
        bind(&fd, &at)?;
        listen(&fd, BACKLOG)?;
        Ok(fd)
    }

    fn accept(&self, listener: &OwnedFd) -> Result<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        Ok(acceptfrom_with(listener, flags)?.0)
    }

    fn receive(&self, fd: &OwnedFd, bytes: &mut [u8]) -> Result<usize> {
        Ok(recv(fd, bytes, RecvFlags::empty())?.0)
    }

    fn send(&self, fd: &OwnedFd, bytes: &[u8], more: bool) -> Result<usize> {
        let flags = if more {
            SendFlags::NOSIGNAL | SendFlags::MORE
        } else {
            SendFlags::NOSIGNAL
        };
        send(fd, bytes, flags)
    }

    fn close(&self, fd: OwnedFd) -> Result<()> {
        drop(fd);
        Ok(())
    }

    fn set(&self) -> Result<OwnedFd> {
        epoll::create(epoll::CreateFlags::CLOEXEC)
    }

    fn watch(&self, set: &OwnedFd, fd: &OwnedFd, data: u64) -> Result<()> {
        epoll::add(set, fd, epoll::EventData::new_u64(data), edges())
    }

    fn wait(&self, set: &OwnedFd, found: &mut Vec<Ready>) -> Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        epoll::wait(set, rustix::buffer::spare_capacity(&mut events), None)?;
        found.extend(events.iter().map(|event| {
            let (data, flags) = (event.data, event.flags);
            Ready::of(data.u64(), flags.bits())
        }));
        Ok(())
    }

    fn open(&self, path: &str) -> Result<Opened> {
        let path = self.root.join(path.trim_start_matches('/'));
        let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        Ok(Opened {
            file: file.into(),
            bytes,
        })
    }

    fn send_file(&self, fd: &OwnedFd, file: &OwnedFd, offset: u64, len: usize) -> Result<usize> {
        rustix::fs::sendfile(fd, file, Some(&mut offset.clone()), len)
    }
}

/// The calls of `libsplitway`.
pub(super) struct Split {
    client: Client,
}

impl Split {
    pub(super) fn attach(options: &Options) -> testbed::Result<Split> {
        let client = Client::attach(options);
        let client =
            client.map_err(|error| testbed::Failure::new(format!("attaching: {error}")))?;
        Ok(Split { client })
    }
}

const NONBLOCKING: DescriptorFlags = DescriptorFlags {
    nonblocking: true,
    close_on_exec: true,
};

impl Calls for Split {
    fn listen(&self, at: SocketAddr) -> Result<OwnedFd> {
        let family = if at.is_ipv4() { Family::V4 } else { Family::V6 };
        let fd = self.client.socket(family, NONBLOCKING)?;
        let (level, name) = NODELAY;
        let on = OptionValue::Number(1);
        self.client.set_option(fd.as_fd(), level, name, &on)?;
        self.client.bind(fd.as_fd(), at)?;
        self.client.listen(fd.as_fd(), BACKLOG)?;
        Ok(fd)
    }

    fn accept(&self, listener: &OwnedFd) -> Result<OwnedFd> {
        Ok(self.client.accept(listener.as_fd(), NONBLOCKING)?.0)
    }

    fn receive(&self, fd: &OwnedFd, bytes: &mut [u8]) -> Result<usize> {
        let pieces = &mut [IoSliceMut::new(bytes)];
        self.client
            .receive(fd.as_fd(), pieces, ReceiveFlags::default())
    }

    fn send(&self, fd: &OwnedFd, bytes: &[u8], more: bool) -> Result<usize> {
        let flags = SplitFlags {
            more,
            ..SplitFlags::default()
        };
        self.client.send(fd.as_fd(), &[IoSlice::new(bytes)], flags)
    }

    fn close(&self, fd: OwnedFd) -> Result<()> {
        self.client.close(fd)
    }

    fn set(&self) -> Result<OwnedFd> {
        self.client.epoll_create(true)
    }

    fn watch(&self, set: &OwnedFd, fd: &OwnedFd, data: u64) -> Result<()> {
        let event = EpollEvent {
            events: edges().bits(),
            data,
        };
        let change = EpollChange::Add(event);
        self.client.epoll_change(set.as_fd(), fd.as_fd(), change)
    }

    fn wait(&self, set: &OwnedFd, found: &mut Vec<Ready>) -> Result<()> {
        let mut events = [EpollEvent::default(); EVENTS_MAX];
        let count = self.client.epoll_wait(set.as_fd(), &mut events, None)?;
        let events = events[..count].iter();
        found.extend(events.map(|event| Ready::of(event.data, event.events)));
        Ok(())
    }

    fn open(&self, path: &str) -> Result<Opened> {
        let file = self.client.open_file(path.as_bytes(), NONBLOCKING)?;
        loop {
            match self.client.file_meta(file.as_fd()) {
                Ok(meta) => {
                    return Ok(Opened {
                        file,
                        bytes: meta.size,
                    });
                }
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
            let mut opened = [Polled {
                fd: Some(file.as_fd()),
                events: PollFlags::IN.bits(),
                found: 0,
            }];
            if self.client.poll(&mut opened, Some(OPEN_WAIT))? == 0 {
                return Err(Errno::TIMEDOUT);
            }
        }
    }

    fn send_file(&self, fd: &OwnedFd, file: &OwnedFd, offset: u64, len: usize) -> Result<usize> {
        self.client.send_file(fd.as_fd(), file.as_fd(), offset, len)
    }
}
