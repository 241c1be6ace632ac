//! The host process's end of the socket that leads to the broker: what attaches, with its memory
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
    Attach(Box<Attaching>),
    /// Handles for an application. A command may name one before this has been received: a
    /// handle that is not known is looked for here first.
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

/// A process that attaches.
#[derive(Debug)]
pub struct Attaching {
    /// Who, and what its application may do.
    pub process: NewProcess,
    /// The memory of its application, if this is the first process.
    pub segment: Option<Segment>,
    /// Its channel.
    pub channel: HostEnd,
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
                    let attaching = Attaching {
                        process,
                        segment,
                        channel,
                    };
                    return Ok(Some(BrokerEvent::Attach(Box::new(attaching))));
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

    /// Tells the broker, as soon as it listens.
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

#[cfg(test)]
mod tests {
    use netsetup::seqpacket;
    use socket_channel::channel;

    use super::*;
    use crate::ipc::messages::{NewApplication, SocketLimits, SocketRights};

    fn process(app: u32, is_first: bool) -> NewProcess {
        let application = NewApplication {
            limits: SocketLimits {
                sockets_max: 4,
                segment_bytes: 64 << 10,
                listeners_max: 1,
                files_max: 1,
                messages_per_turn: 1,
            },
            rights: SocketRights {
                listen: Vec::new(),
                addresses: Vec::new(),
                connect: true,
            },
        };
        NewProcess {
            app,
            channel: app + 1,
            pid: None,
            uid: 7,
            modes: 0,
            application: is_first.then_some(application),
        }
    }

    /// A segment, and a channel's memory and bells.
    fn made(segment_bytes: u64) -> Vec<OwnedFd> {
        let limits = socket_channel::Limits {
            sockets_max: 4,
            segment_bytes,
        };
        vec![
            Segment::create_file(Layout::of(limits).unwrap()).unwrap(),
            channel::create_file().unwrap(),
            channel::create_bell().unwrap(),
            channel::create_bell().unwrap(),
        ]
    }

    fn pass(broker: &OwnedFd, message: &BrokerToHost, descriptors: &[OwnedFd]) {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        fd_passing::pass_many(broker, message, &descriptors).unwrap();
    }

    #[test]
    fn what_attaches_comes_with_its_memory_mapped() {
        let (broker, socket) = seqpacket::pair().unwrap();
        let mut link = BrokerLink::new(socket);
        assert!(link.receive().unwrap().is_none());
        for is_first in [true, false] {
            let made = made(64 << 10);
            let made = if is_first { &made[..] } else { &made[1..] };
            pass(&broker, &BrokerToHost::Attach(process(5, is_first)), made);
            let event = link.receive().unwrap();
            let Some(BrokerEvent::Attach(attaching)) = event else {
                panic!("{event:?}");
            };
            assert_eq!(attaching.process, process(5, is_first));
            assert_eq!(attaching.segment.is_some(), is_first);
            assert!(attaching.channel.wake_fd().is_some());
        }
        let (app, first) = (5, 64);
        let handles = made(64 << 10);
        pass(&broker, &BrokerToHost::Handles { app, first }, &handles);
        let event = link.receive().unwrap();
        let is_right = matches!(
            &event,
            Some(BrokerEvent::Handles { app: 5, first: 64, sockets }) if sockets.len() == 4
        );
        assert!(is_right, "{event:?}");
        drop(broker);
        assert!(link.receive().is_err());
    }

    #[test]
    fn what_cannot_be_mapped_is_refused_and_what_follows_is_not() {
        let (broker, socket) = seqpacket::pair().unwrap();
        let mut link = BrokerLink::new(socket);
        let too_long = made(128 << 10);
        let right = made(64 << 10);
        pass(&broker, &BrokerToHost::Attach(process(1, true)), &too_long);
        // As when the host process has no room for more descriptors.
        pass(
            &broker,
            &BrokerToHost::Attach(process(2, true)),
            &right[..2],
        );
        let (app, channel) = (3, 4);
        pass(&broker, &BrokerToHost::Gone { app, channel }, &[]);
        let event = link.receive().unwrap();
        assert!(
            matches!(event, Some(BrokerEvent::Gone { app: 3, channel: 4 })),
            "{event:?}"
        );
        for (app, errno) in [(1, Errno::INVAL), (2, Errno::MFILE)] {
            let heard = fd_passing::receive::<HostToBroker>(&broker, &mut [0; 128]).unwrap();
            let refused = HostToBroker::Refused {
                app,
                channel: app + 1,
                errno: errno.raw_os_error().unsigned_abs(),
            };
            assert_eq!(heard.unwrap().0, refused);
        }
    }
}
