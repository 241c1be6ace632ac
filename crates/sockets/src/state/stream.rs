//! A connection of an application, and what has its place in its stream.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use host::app::{BindingId, StreamId};
use socket_channel::SocketId;

use crate::state::file::{Current, FileRange};
use crate::state::splice::Splice;

/// What has its place between the bytes of a stream.
#[derive(Debug)]
pub(crate) struct Mark {
    /// Its number.
    pub(crate) number: u32,
    /// Position in the tx FIFO behind which it comes.
    pub(crate) at: u64,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    File(FileRange),
    Finish,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    /// The listener that it has come from.
    pub(crate) listener: Option<SocketId>,
    /// Its peer's address, if that counts as the source of an accepted connection.
    pub(crate) source: Option<IpAddr>,
    /// Bytes that had come to its FIFOs when they were last looked at, to take back idle ones.
    pub(crate) moved_bytes: [u64; 2],
    /// The address that was bound before it was opened.
    pub(crate) binding: Option<BindingId>,
    pub(crate) marks: VecDeque<Mark>,
    /// Marks of other processes than the one whose turn it is.
    pub(crate) early: Vec<Mark>,
    /// TCP holds back segments that are not full.
    pub(crate) is_corked: bool,
    /// The file that it sends.
    pub(crate) current: Option<Current>,
    pub(crate) peer_finished: bool,
    /// The stack has forgotten it.
    pub(crate) is_gone: bool,
    /// What was received and found no room before that.
    pub(crate) rest: VecDeque<u8>,
    /// The application has closed it: what is queued still goes.
    pub(crate) is_closing: bool,
    /// It is reset when what the windows let go is under way.
    pub(crate) is_resetting: bool,
    /// Bytes that were acknowledged when it was last looked at, while it is being closed.
    pub(crate) acknowledged: u64,
    /// Its own and its peer's address, for those who ask: the record does not tell them.
    pub(crate) untold: Option<Box<(SocketAddr, SocketAddr)>>,
    /// Another connection with which it is joined, or about to be.
    pub(crate) splice: Option<Splice>,
    /// Its first bytes wait until a process has given it a handle.
    pub(crate) waits_for_handle: bool,
}

impl Stream {
    pub(crate) fn new(
        id: StreamId,
        listener: Option<SocketId>,
        binding: Option<BindingId>,
    ) -> Stream {
        Stream {
            id,
            listener,
            source: None,
            moved_bytes: [0; 2],
            binding,
            marks: VecDeque::new(),
            early: Vec::new(),
            is_corked: false,
            current: None,
            peer_finished: false,
            is_gone: false,
            rest: VecDeque::new(),
            is_closing: false,
            is_resetting: false,
            acknowledged: 0,
            untold: None,
            splice: None,
            waits_for_handle: false,
        }
    }

    /// File bytes that wait for their turn.
    pub(crate) fn waiting_file_bytes(&self) -> u64 {
        let ranges = self.marks.iter().map(|mark| match &mark.what {
            What::File(range) => range.len,
            What::Finish => 0,
        });
        ranges.sum()
    }

    pub(crate) fn is_finishing(&self) -> bool {
        let last = self.marks.back();
        last.is_some_and(|mark| matches!(mark.what, What::Finish))
    }
}
