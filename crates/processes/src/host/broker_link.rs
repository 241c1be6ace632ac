//! The host process's end of the socket to the broker: it maps the memory of processes that attach.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use failure::Failure;
use rustix::io::Errno;
use socket_channel::channel::HostEnd;
use socket_channel::{AppId, ChannelId, HandleId, Layout, Segment};
use sockets::{
    Arrived, Attachment, Broker, BrokerGone, First, Grant, Identity, Known, NewHandles, Rules,
};

use crate::ipc::fd_passing;
use crate::ipc::messages::{
    BrokerToHost, HostToBroker, KnownApplication, KnownProcess, NewApplication, NewProcess,
};

/// Longest message of the broker, in bytes: with as many ports and addresses as a rule may have.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

const BROKER: &str = "the broker";

/// See the [module documentation](self).
#[derive(Debug)]
pub struct BrokerLink {
    socket: OwnedFd,
    /// Messages that the socket has not taken, with their descriptors.
    unsent: VecDeque<(HostToBroker, Option<Arc<OwnedFd>>)>,
}

impl BrokerLink {
    /// Makes a link over this socket.
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
                BrokerToHost::Reattach { app, channel } => {
                    let (app, channel) = (AppId(app), ChannelId(channel));
                    return Ok(Some(Arrived::Again { app, channel }));
                }
                BrokerToHost::Handles {
                    app,
                    channel,
                    first,
                } => {
                    return Ok(Some(Arrived::Handles(NewHandles {
                        app: AppId(app),
                        channel: ChannelId(channel),
                        first: HandleId(first),
                        descriptors,
                    })));
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
        self.send_with(message, None);
    }

    fn send_with(&mut self, message: HostToBroker, descriptor: Option<Arc<OwnedFd>>) {
        self.unsent.push_back((message, descriptor));
        self.send_queued();
    }

    fn send_queued(&mut self) {
        while let Some((message, descriptor)) = self.unsent.front_mut() {
            match fd_passing::pass(&self.socket, message, descriptor.as_deref()) {
                Err(Errno::AGAIN) => return,
                // Without its segment, an application goes on, but further processes cannot join
                // it.
                Err(_) if descriptor.take().is_some() => {}
                // The end of the broker is found by the next receive.
                Ok(()) | Err(_) => {
                    self.unsent.pop_front();
                }
            }
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

    fn is_behind(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn inform(&mut self, known: Known) {
        match known {
            Known::Application {
                app,
                uid,
                next_handle,
                handles,
                identity,
            } => {
                let application = KnownApplication {
                    app: app.0,
                    uid,
                    modes: identity.modes,
                    next_handle: next_handle.0,
                    handles,
                    key: identity.key,
                };
                let message = HostToBroker::Application(application);
                self.send_with(message, identity.segment_file);
            }
            Known::Process {
                app,
                channel,
                pid,
                uid,
            } => self.send(HostToBroker::Process(KnownProcess {
                app: app.0,
                channel: channel.0,
                pid,
                uid,
            })),
            Known::File { app, file } => self.send(HostToBroker::File { app: app.0, file }),
            Known::All => self.send(HostToBroker::Known),
        }
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

    fn ended(&mut self, app: AppId, channel: ChannelId) {
        self.send(HostToBroker::Ended {
            app: app.0,
            channel: channel.0,
        });
    }

    fn handles_closed(&mut self, app: AppId, count: u32) {
        self.send(HostToBroker::HandlesClosed { app: app.0, count });
    }

    fn detached(&mut self, app: AppId) {
        self.send(HostToBroker::Detached { app: app.0 });
    }

    fn file_released(&mut self, app: AppId, file: u32) {
        self.send(HostToBroker::Released { app: app.0, file });
    }
}

/// Maps the memory of a process that attaches, from its descriptors, and that of its application if
/// it is the first.
fn map(process: NewProcess, descriptors: Vec<OwnedFd>) -> std::io::Result<Attachment> {
    let mut descriptors = descriptors.into_iter();
    // The kernel drops descriptors that would exceed the limit.
    let mut next = || descriptors.next().ok_or(Errno::MFILE);
    let first = match process.application {
        Some(application) => {
            let layout = Layout::of(application.limits.of_segment());
            let layout = layout.map_err(|_| Errno::INVAL)?;
            let file = next()?;
            Some(First {
                segment: Segment::host_from_file(&file, layout)?,
                grant: grant(&application),
                identity: Identity {
                    key: application.key,
                    modes: process.modes,
                    segment_file: Some(Arc::new(file)),
                },
            })
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

/// Returns the limits and rights of an application.
fn grant(application: &NewApplication) -> Grant {
    let NewApplication { limits, rights, .. } = application;
    let addresses = rights.addresses.iter().map(|range| range.0.prefix());
    Grant {
        sockets_max: limits.sockets_max,
        listeners_max: limits.listeners_max,
        bindings_max: limits.bindings_max,
        files_max: limits.files_max,
        source_share_percent: limits.source_share_percent,
        messages_per_turn: limits.messages_per_turn,
        turn_us_max: limits.turn_us_max,
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
    use rustix::net::sockopt::set_socket_send_buffer_size;
    use socket_channel::attach::Key;
    use socket_channel::channel;

    use super::*;
    use crate::ipc::messages::{NewApplication, SocketLimits, SocketRights};

    const KEY: Key = Key::new(*b"0123456789abcdef");

    fn process(app: u32, is_first: bool) -> NewProcess {
        let application = NewApplication {
            limits: SocketLimits {
                sockets_max: 4,
                segment_bytes: 64 << 10,
                listeners_max: 1,
                bindings_max: 2,
                files_max: 1,
                source_share_percent: 80,
                messages_per_turn: 1,
                turn_us_max: 200,
            },
            rights: SocketRights {
                listen: Vec::new(),
                addresses: Vec::new(),
                connect: true,
            },
            key: KEY,
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

    /// Creates a segment, and a channel's memory and bells.
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
            if let Some(first) = come.first {
                let Grant {
                    sockets_max, rules, ..
                } = first.grant;
                assert_eq!((sockets_max, rules.addresses), (4, None));
                assert_eq!((first.identity.key, first.identity.modes), (KEY, 0));
                assert!(first.identity.segment_file.is_some());
            }
            assert!(come.end.wake_fd().is_some());
        }
        let (app, channel, first) = (5, 6, 64);
        let handles = made(64 << 10);
        let message = BrokerToHost::Handles {
            app,
            channel,
            first,
        };
        pass(&broker, &message, &handles);
        let event = link.receive().unwrap();
        let is_right = matches!(
            &event,
            Some(Arrived::Handles(NewHandles {
                app: AppId(5),
                channel: ChannelId(6),
                first: HandleId(64),
                descriptors,
            })) if descriptors.len() == 4
        );
        assert!(is_right, "{event:?}");
        pass(&broker, &BrokerToHost::Reattach { app, channel }, &[]);
        let event = link.receive().unwrap();
        let is_right = matches!(
            event,
            Some(Arrived::Again {
                app: AppId(5),
                channel: ChannelId(6)
            })
        );
        assert!(is_right, "{event:?}");
        drop(broker);
        assert!(link.receive().is_err());
    }

    #[test]
    fn a_broker_that_is_slow_learns_all_that_there_is_with_segments_and_in_order() {
        let (broker, socket) = seqpacket::pair().unwrap();
        set_socket_send_buffer_size(&socket, 1).unwrap();
        let mut link = BrokerLink::new(socket);
        let segment = Arc::new(made(64 << 10).swap_remove(0));
        for app in 1..=100 {
            link.inform(Known::Application {
                app: AppId(app),
                uid: 7,
                next_handle: HandleId(app * 10),
                handles: app * 5,
                identity: Identity {
                    key: KEY,
                    modes: 30,
                    segment_file: Some(Arc::clone(&segment)),
                },
            });
            link.inform(Known::Process {
                app: AppId(app),
                channel: ChannelId(app + 1),
                pid: u32::from(u16::MAX),
                uid: u32::MAX,
            });
        }
        link.inform(Known::All);
        link.ended(AppId(1), ChannelId(2));
        assert!(link.is_behind());
        let mut heard = Vec::new();
        loop {
            let buffer = &mut [0; 512];
            match fd_passing::receive::<HostToBroker>(&broker, buffer).unwrap() {
                Some(message) => heard.push(message),
                None if !link.is_behind() => break,
                None => assert!(link.receive().unwrap().is_none()),
            }
        }
        assert_eq!(heard.len(), 202);
        let (app, channel) = (1, 2);
        assert_eq!(heard.pop().unwrap().0, HostToBroker::Ended { app, channel });
        assert_eq!(heard.pop().unwrap().0, HostToBroker::Known);
        for (app, pair) in (1..).zip(heard.chunks(2)) {
            let application = KnownApplication {
                app,
                uid: 7,
                modes: 30,
                next_handle: app * 10,
                handles: app * 5,
                key: KEY,
            };
            assert_eq!(pair[0].0, HostToBroker::Application(application));
            assert!(pair[0].1.is_some());
            let process = KnownProcess {
                app,
                channel: app + 1,
                pid: u32::from(u16::MAX),
                uid: u32::MAX,
            };
            assert_eq!(pair[1].0, HostToBroker::Process(process));
        }
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
