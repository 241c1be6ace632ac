//! What the broker brings: processes that attach, handles for them, and their ends.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use socket_channel::channel::HostEnd;
use socket_channel::{AppId, ChannelId, HandleId, Segment};

use crate::grant::Grant;

/// A process that attaches.
#[derive(Debug)]
pub struct Attachment {
    /// Its application, from 1; another process of it may be attached already.
    pub app: AppId,
    /// Its channel.
    pub channel: ChannelId,
    /// Its process ID, for people; 0 if it is not known.
    pub pid: u32,
    /// Its user, who may share ports with applications of its own.
    pub uid: u32,
    /// For the first process of an application: what that may do and use, and its segment.
    pub first: Option<(Grant, Segment)>,
    /// The host's end of the channel.
    pub end: HostEnd,
}

/// What has arrived.
#[derive(Debug)]
pub enum Arrived {
    /// A process attaches. Answered by [`Broker::attached`] or [`Broker::refused`].
    Process(Box<Attachment>),
    /// Handles of an application: the host's ends, numbered from `first` on.
    Handles {
        /// The application.
        app: AppId,
        /// Number of the first.
        first: HandleId,
        /// The host's ends.
        descriptors: Vec<OwnedFd>,
    },
    /// A process has ended.
    Gone {
        /// Its application.
        app: AppId,
        /// Its channel.
        channel: ChannelId,
    },
}

/// The broker is gone. What has attached stays attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerGone;

/// The way to the broker process.
pub trait Broker: fmt::Debug {
    /// Readable when something has arrived. It does not change.
    fn wake_fd(&self) -> BorrowedFd<'_>;
    /// What has arrived next, if anything has.
    ///
    /// # Errors
    /// When nothing will arrive any more.
    fn receive(&mut self) -> Result<Option<Arrived>, BrokerGone>;
    /// The channel is served.
    fn attached(&mut self, app: AppId, channel: ChannelId);
    /// The channel is not served, and neither is an application whose first it was.
    fn refused(&mut self, app: AppId, channel: ChannelId, errno: Errno);
    /// Nothing is left of an application.
    fn detached(&mut self, app: AppId);
    /// Nothing will be sent any more of the file of which an application has passed a descriptor
    /// with this number.
    fn file_released(&mut self, app: AppId, file: u32);
}

/// What has arrived and waits to be dealt with.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    pub(crate) broker: Option<Box<dyn Broker>>,
    pub(crate) queue: VecDeque<Arrived>,
}

impl Arrivals {
    /// Takes in what has arrived.
    pub(crate) fn hear(&mut self) {
        while let Some(broker) = &mut self.broker {
            match broker.receive() {
                Ok(Some(arrived)) => self.queue.push_back(arrived),
                Ok(None) => return,
                Err(BrokerGone) => self.broker = None,
            }
        }
    }

    /// Tells the broker, if there is one, that it may close a descriptor.
    pub(crate) fn release_file(&mut self, app: AppId, file: u32) {
        if let Some(broker) = &mut self.broker {
            broker.file_released(app, file);
        }
    }

    /// Handles of an application that are there, though it has named one already: the command was
    /// faster than the broker's word.
    pub(crate) fn take_handles(&mut self, of: AppId) -> Vec<(HandleId, Vec<OwnedFd>)> {
        self.hear();
        let mut taken = Vec::new();
        let queue = std::mem::take(&mut self.queue);
        for arrived in queue {
            match arrived {
                Arrived::Handles {
                    app,
                    first,
                    descriptors,
                } if app == of => taken.push((first, descriptors)),
                other => self.queue.push_back(other),
            }
        }
        taken
    }
}
