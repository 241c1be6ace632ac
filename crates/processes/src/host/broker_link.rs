//! The host process's end of the socket that leads to the broker: it maps the memory of processes
//! that attach.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use failure::Failure;
use rustix::io::Errno;
use socket_channel::channel::HostEnd;
use socket_channel::{AppId, ChannelId, HandleId, Layout, Segment};
use sockets::{Arrived, Attachment, Broker, BrokerGone, Grant, Rules};

use crate::ipc::fd_passing;
use crate::ipc::messages::{BrokerToHost, HostToBroker, NewApplication, NewProcess};

/// Longest message of the broker, in bytes: with as many ports and addresses as a rule may have.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

const BROKER: &str = "the broker";

/// See the [module documentation](self).
#[derive(Debug)]
pub struct BrokerLink {
    socket: OwnedFd,
    /// Messages that the socket has not taken.
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

    fn hear(&mut self) -> Result<Option<Arrived>, Failure> {
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
                    return Ok(Some(Arrived::Handles {
                        app: AppId(app),
                        first: HandleId(first),
                        descriptors,
                    }));
                }
                BrokerToHost::Gone { app, channel } => {
                    let (app, channel) = (AppId(app), ChannelId(channel));
                    return Ok(Some(Arrived::Gone { app, channel }));
                }
            };
            let (app, channel) = (AppId(process.app), ChannelId(process.channel));
            match map(process, descriptors) {
                Ok(attachment) => return Ok(Some(Arrived::Process(Box::new(attachment)))),
                Err(error) => {
                    tracing::warn!(%error, app = app.0, "a process cannot attach");
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
                    self.refused(app, channel, errno);
                }
            }
        }
    }

    /// Sends a message as soon as the socket takes it.
    fn send(&mut self, message: HostToBroker) {
        self.unsent.push_back(message);
        self.send_queued();
    }

    fn send_queued(&mut self) {
        while let Some(message) = self.unsent.front() {
            match fd_passing::pass(&self.socket, message, None) {
                Err(Errno::AGAIN) => return,
                // The end of the broker is found by the next receive.
                Ok(()) | Err(_) => self.unsent.pop_front(),
            };
        }
    }
}

impl Broker for BrokerLink {
    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Refuses a process whose memory cannot be mapped.
    fn receive(&mut self) -> Result<Option<Arrived>, BrokerGone> {
        self.hear().map_err(|failure| {
            tracing::debug!("{failure}");
            BrokerGone
        })
    }

    fn attached(&mut self, app: AppId, channel: ChannelId) {
        let (app, channel) = (app.0, channel.0);
        self.send(HostToBroker::Attached { app, channel });
    }

    fn refused(&mut self, app: AppId, channel: ChannelId, errno: Errno) {
        self.send(HostToBroker::Refused {
            app: app.0,
            channel: channel.0,
            errno: errno.raw_os_error().unsigned_abs(),
        });
    }

    fn detached(&mut self, app: AppId) {
        self.send(HostToBroker::Detached { app: app.0 });
    }

    fn file_released(&mut self, app: AppId, file: u32) {
        self.send(HostToBroker::Released { app: app.0, file });
    }
}

/// A process that attaches, with the memory that its descriptors bring, and that of its application
/// if it is the first.
fn map(process: NewProcess, descriptors: Vec<OwnedFd>) -> std::io::Result<Attachment> {
    let mut descriptors = descriptors.into_iter();
    // The kernel drops descriptors for which there is no room.
    let mut next = || descriptors.next().ok_or(Errno::MFILE);
    let first = match process.application {
        Some(application) => {
            let layout = Layout::of(application.limits.of_segment());
            let layout = layout.map_err(|_| Errno::INVAL)?;
            let segment = Segment::host_from_file(next()?, layout)?;
            Some((grant(&application), segment))
        }
        None => None,
    };
    let (memory, host_bell, app_bell) = (next()?, next()?, next()?);
    Ok(Attachment {
        app: AppId(process.app),
        channel: ChannelId(process.channel),
        pid: process.pid.map_or(0, i32::unsigned_abs),
        uid: process.uid,
        first,
        end: HostEnd::from_files(memory, host_bell, app_bell)?,
    })
}

/// The bounds and rights of an application.
fn grant(application: &NewApplication) -> Grant {
    let NewApplication { limits, rights } = application;
    let addresses = rights.addresses.iter().map(|range| range.0.prefix());
    Grant {
        sockets_max: limits.sockets_max,
        listeners_max: limits.listeners_max,
        files_max: limits.files_max,
        messages_per_turn: limits.messages_per_turn,
        rules: Rules {
            ports: rights
                .listen
                .iter()
                .map(|ports| ports.0.first()..=ports.0.last())
                .collect(),
            addresses: (!rights.addresses.is_empty()).then(|| addresses.collect()),
            may_connect: rights.connect,
        },
    }
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
            let Some(Arrived::Process(come)) = event else {
                panic!("{event:?}");
            };
            assert_eq!((come.app, come.channel), (AppId(5), ChannelId(6)));
            assert_eq!((come.uid, come.pid), (7, 0));
            assert_eq!(come.first.is_some(), is_first);
            if let Some((grant, _)) = come.first {
                assert_eq!((grant.sockets_max, grant.rules.addresses), (4, None));
            }
            assert!(come.end.wake_fd().is_some());
        }
        let (app, first) = (5, 64);
        let handles = made(64 << 10);
        pass(&broker, &BrokerToHost::Handles { app, first }, &handles);
        let event = link.receive().unwrap();
        let is_right = matches!(
            &event,
            Some(Arrived::Handles {
                app: AppId(5),
                first: HandleId(64),
                descriptors,
            }) if descriptors.len() == 4
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
            matches!(
                event,
                Some(Arrived::Gone {
                    app: AppId(3),
                    channel: ChannelId(4)
                })
            ),
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
