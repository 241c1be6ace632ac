//! Messages of the broker: attaching processes, their handles, and their ends.

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
    /// Its application, from 1; other processes of the application may be attached already.
    pub app: AppId,
    /// Its channel.
    pub channel: ChannelId,
    /// Its process ID, for people; 0 if unknown.
    pub pid: u32,
    /// Its user, who may share ports with other applications of the same user.
    pub uid: u32,
    /// Present for the first process of an application.
    pub first: Option<First>,
    /// The host's end of the channel.
    pub end: HostEnd,
}

/// Resources that the first process of an application brings.
#[derive(Debug)]
pub struct First {
    /// Rights and limits of the application.
    pub grant: Grant,
    /// Its segment.
    pub segment: Segment,
    /// Its identity for brokers.
    pub identity: Identity,
}

/// Data that a broker needs to serve an application attached by another broker.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Secret by which processes prove that they belong to the application.
    pub key: Key,
    /// Active modes: a sum of the `MODE_` numbers of [`socket_channel::attach`].
    pub modes: u32,
    /// File of its segment. `None` in a simulation, which has no descriptors.
    pub segment_file: Option<Arc<OwnedFd>>,
}

/// An item attached by an earlier broker.
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
        /// Number of its open handles.
        handles: u32,
        /// Its identity for brokers.
        identity: Identity,
    },
    /// A process of the application reported before it.
    Process {
        /// Its application.
        app: AppId,
        /// Its channel.
        channel: ChannelId,
        /// Its process ID when it attached; 0 if unknown.
        pid: u32,
        /// Its user when it attached.
        uid: u32,
    },
    /// A file whose descriptor an application has passed, and from which bytes may still be sent.
    File {
        /// Its application.
        app: AppId,
        /// Number of its descriptor.
        file: u32,
    },
    /// End of the list.
    All,
}

/// A message from the broker.
#[derive(Debug)]
pub enum Arrived {
    /// A process attaches. Answered by [`Broker::attached`] or [`Broker::refused`].
    Process(Box<Attachment>),
    /// A process attached by an earlier broker has reattached. Answered in the same way.
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

/// The broker is gone. Attached processes stay attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerGone;

/// Connection to the broker process.
pub trait Broker: fmt::Debug {
    /// Returns a descriptor that is readable when a message has arrived. It never changes.
    fn wake_fd(&self) -> BorrowedFd<'_>;
    /// Receives the next message, if any.
    ///
    /// # Errors
    /// If no further message can arrive.
    fn receive(&mut self) -> Result<Option<Arrived>, BrokerGone>;
    /// Reports whether messages to the broker wait for room: [`Broker::receive`] sends them once
    /// [`Broker::wake_fd`] is writable.
    fn is_behind(&self) -> bool;
    /// Reports an item attached by earlier brokers, up to [`Known::All`]. No message arrives
    /// before.
    fn inform(&mut self, known: Known);
    /// Reports that the channel is served.
    fn attached(&mut self, app: AppId, channel: ChannelId);
    /// Reports that the channel is not served; nor is the application if this was its first
    /// process.
    fn refused(&mut self, app: AppId, channel: ChannelId, errno: Errno);
    /// Reports that a process of [`Known::Process`] has ended.
    fn ended(&mut self, app: AppId, channel: ChannelId);
    /// Reports the number of an application's handles closed since the last report.
    fn handles_closed(&mut self, app: AppId, count: u32);
    /// Reports that nothing is left of an application.
    fn detached(&mut self, app: AppId);
    /// Reports that no more bytes will be sent from the descriptor with this number that an
    /// application has passed.
    fn file_released(&mut self, app: AppId, file: u32);
}

/// Host's ends of new handles.
#[derive(Debug)]
pub struct NewHandles {
    /// The application.
    pub app: AppId,
    /// Channel of the process that gets the other ends.
    pub channel: ChannelId,
    /// Number of the first handle; the others follow consecutively.
    pub first: HandleId,
    /// The host's ends.
    pub descriptors: Vec<OwnedFd>,
}

/// Messages that wait for processing.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    pub(crate) broker: Option<Box<dyn Broker>>,
    pub(crate) queue: VecDeque<Arrived>,
    /// Handles that hung up, for the next turn.
    pub(crate) hung_up: Vec<(AppId, HandleId)>,
}

impl Arrivals {
    /// Receives all messages of the broker.
    pub(crate) fn hear(&mut self) {
        while let Some(broker) = &mut self.broker {
            match broker.receive() {
                Ok(Some(arrived)) => self.queue.push_back(arrived),
                Ok(None) => return,
                Err(BrokerGone) => self.broker = None,
            }
        }
    }

    /// Lets the broker, if there is one, close a passed descriptor.
    pub(crate) fn release_file(&mut self, app: AppId, file: u32) {
        if let Some(broker) = &mut self.broker {
            broker.file_released(app, file);
        }
    }

    /// Takes an application's announced handles ahead of other messages: a command has named one
    /// before its announcement was handled.
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
