//! What the broker brings: processes that attach, handles for them, and their ends.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use socket_channel::attach::Key;
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
    /// For the first process of an application.
    pub first: Option<First>,
    /// The host's end of the channel.
    pub end: HostEnd,
}

/// What the first process of an application brings.
#[derive(Debug)]
pub struct First {
    /// What the application may do and use.
    pub grant: Grant,
    /// Its segment.
    pub segment: Segment,
    /// How brokers know it.
    pub identity: Identity,
}

/// What a broker needs to serve an application that another broker attached.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The secret by which its processes prove that they belong to it.
    pub key: Key,
    /// The modes that are on: a sum of the `MODE_` numbers of [`socket_channel::attach`].
    pub modes: u32,
    /// The file of its segment. `None` in a simulation, which has no descriptors.
    pub segment_file: Option<Arc<OwnedFd>>,
}

/// What an earlier broker attached.
#[derive(Debug)]
pub enum Known {
    /// An application.
    Application {
        /// Its number.
        app: AppId,
        /// The user of its first process.
        uid: u32,
        /// Number of its next handle.
        next_handle: HandleId,
        /// Its handles that are open.
        handles: u32,
        /// How brokers know it.
        identity: Identity,
    },
    /// A process of the application before it.
    Process {
        /// Its application.
        app: AppId,
        /// Its channel.
        channel: ChannelId,
        /// Its process ID when it attached; 0 if it is not known.
        pid: u32,
        /// Its user when it attached.
        uid: u32,
    },
    /// A file of which an application has passed a descriptor, and which may be sent yet.
    File {
        /// Its application.
        app: AppId,
        /// The number of its descriptor.
        file: u32,
    },
    /// There is nothing more.
    All,
}

/// What has arrived.
#[derive(Debug)]
pub enum Arrived {
    /// A process attaches. Answered by [`Broker::attached`] or [`Broker::refused`].
    Process(Box<Attachment>),
    /// A process that an earlier broker attached has come to this one. Answered in the same way.
    Again {
        /// Its application.
        app: AppId,
        /// Its channel.
        channel: ChannelId,
    },
    /// Handles of an application.
    Handles(NewHandles),
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
    /// True while messages to the broker wait for room: [`Broker::receive`] sends them once
    /// [`Broker::wake_fd`] is writable.
    fn is_behind(&self) -> bool;
    /// What earlier brokers have attached, up to [`Known::All`]. Nothing arrives before.
    fn inform(&mut self, known: Known);
    /// The channel is served.
    fn attached(&mut self, app: AppId, channel: ChannelId);
    /// The channel is not served, and neither is an application whose first it was.
    fn refused(&mut self, app: AppId, channel: ChannelId, errno: Errno);
    /// A process of [`Known::Process`] has ended.
    fn ended(&mut self, app: AppId, channel: ChannelId);
    /// So many handles of an application have been closed since the last such message.
    fn handles_closed(&mut self, app: AppId, count: u32);
    /// Nothing is left of an application.
    fn detached(&mut self, app: AppId);
    /// Nothing will be sent any more of the file of which an application has passed a descriptor
    /// with this number.
    fn file_released(&mut self, app: AppId, file: u32);
}

/// The host's ends of handles.
#[derive(Debug)]
pub struct NewHandles {
    /// The application.
    pub app: AppId,
    /// The channel of the process that gets the other ends.
    pub channel: ChannelId,
    /// Number of the first; they follow each other.
    pub first: HandleId,
    /// The host's ends.
    pub descriptors: Vec<OwnedFd>,
}

/// What has arrived and waits to be dealt with.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    pub(crate) broker: Option<Box<dyn Broker>>,
    pub(crate) queue: VecDeque<Arrived>,
    /// Handles that hung up, which the next turn hears of.
    pub(crate) hung_up: Vec<(AppId, HandleId)>,
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
    pub(crate) fn take_handles(&mut self, of: AppId) -> Vec<NewHandles> {
        self.hear();
        let mut taken = Vec::new();
        let queue = std::mem::take(&mut self.queue);
        for arrived in queue {
            match arrived {
                Arrived::Handles(new) if new.app == of => taken.push(new),
                other => self.queue.push_back(other),
            }
        }
        taken
    }
}
