//! The host process's end of the socket that leads to the broker: what has attached, with its memory
//! mapped.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use failure::Failure;
use rustix::io::Errno;
use socket_channel::channel::HostEnd;
use socket_channel::{Layout, Segment};

use crate::ipc::fd_passing;
use crate::ipc::messages::{BrokerToHost, HostToBroker, NewProcess};

/// Longest message of the broker, in bytes: with as many ports and addresses as a rule may have.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

const BROKER: &str = "the broker";

/// What has happened.
#[derive(Debug)]
pub enum BrokerEvent {
    /// A process attaches. To be answered with [`HostToBroker::Attached`] or
    /// [`HostToBroker::Refused`].
    Attach {
        /// Who, and what its application may do.
        process: NewProcess,
        /// The memory of its application, if this is the first process.
        segment: Option<Segment>,
        /// Its channel.
        channel: HostEnd,
    },
    /// Handles for an application. A command may name one before this has been received: whoever
    /// meets a handle that it does not know looks here first.
    Handles {
        /// The application.
        app: u32,
        /// Number of the first.
        first: u32,
        /// The host's ends, in the order of their numbers.
        sockets: Vec<OwnedFd>,
    },
    /// A process is gone.
    Gone {
        /// The application.
        app: u32,
        /// The channel of the process.
        channel: u32,
    },
}

/// See the [module documentation](self).
#[derive(Debug)]
pub struct BrokerLink {
    socket: OwnedFd,
    /// What the broker has not taken.
    unsent: VecDeque<HostToBroker>,
}

impl BrokerLink {
    /// Over this socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            unsent: VecDeque::new(),
        }
    }

    /// Readable when something has happened.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What has happened next, if anything has. A process whose memory cannot be mapped is refused
    /// here. Fails when the broker is gone: what has attached stays attached, and another broker
    /// follows.
    pub fn receive(&mut self) -> Result<Option<BrokerEvent>, Failure> {
        self.send_queued();
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        loop {
            let received = fd_passing::receive_many(BROKER, &self.socket, &mut buffer)?;
            let Some((message, descriptors)) = received else {
                return Ok(None);
            };
            let process = match message {
                BrokerToHost::Attach(process) => process,
                BrokerToHost::Handles { app, first } => {
                    return Ok(Some(BrokerEvent::Handles {
                        app,
                        first,
                        sockets: descriptors,
                    }));
                }
                BrokerToHost::Gone { app, channel } => {
                    return Ok(Some(BrokerEvent::Gone { app, channel }));
                }
            };
            match map(&process, descriptors) {
                Ok((segment, channel)) => {
                    return Ok(Some(BrokerEvent::Attach {
                        process,
                        segment,
                        channel,
                    }));
                }
                Err(error) => {
                    let NewProcess { app, channel, .. } = process;
                    tracing::warn!(%error, "application {app} cannot attach");
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
                    self.refuse(app, channel, errno);
                }
            }
        }
    }

    /// A process that attaches is refused.
    pub fn refuse(&mut self, app: u32, channel: u32, errno: Errno) {
        self.send(HostToBroker::Refused {
            app,
            channel,
            errno: errno.raw_os_error().unsigned_abs(),
        });
    }

    /// Tells the broker, as soon as it listens. One that is gone is told nothing.
    pub fn send(&mut self, message: HostToBroker) {
        self.unsent.push_back(message);
        self.send_queued();
    }

    fn send_queued(&mut self) {
        while let Some(message) = self.unsent.front() {
            match fd_passing::pass(&self.socket, message, None) {
                Err(Errno::AGAIN) => return,
                // Its end is found when it is listened to.
                Ok(()) | Err(_) => self.unsent.pop_front(),
            };
        }
    }
}

/// The memory of a process that attaches, and of its application if it is the first.
fn map(
    process: &NewProcess,
    descriptors: Vec<OwnedFd>,
) -> std::io::Result<(Option<Segment>, HostEnd)> {
    let mut descriptors = descriptors.into_iter();
    // The kernel drops descriptors for which there is no room.
    let mut next = || descriptors.next().ok_or(Errno::MFILE);
    let segment = match &process.application {
        Some(application) => {
            let layout = Layout::of(application.limits.of_segment());
            let layout = layout.map_err(|_| Errno::INVAL)?;
            Some(Segment::host_from_file(next()?, layout)?)
        }
        None => None,
    };
    let (memory, host_bell, app_bell) = (next()?, next()?, next()?);
    let channel = HostEnd::from_files(memory, host_bell, app_bell)?;
    Ok((segment, channel))
}
