//! A connection of an application, and the marks in its stream.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use host::app::{BindingId, StreamId};
use socket_channel::SocketId;

use crate::state::file::{Current, FileRange};
use crate::state::splice::Splice;

/// An item with a place between the bytes of a stream.
#[derive(Debug)]
pub(crate) struct Mark {
    /// Its number.
    pub(crate) number: u32,
    /// Position in the tx FIFO that precedes it.
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
    /// Listener that accepted it.
    pub(crate) listener: Option<SocketId>,
    /// Its peer's address, if it counts as the source of an accepted connection.
    pub(crate) source: Option<IpAddr>,
    /// Bytes moved through its FIFOs at the last search for idle ones.
    pub(crate) moved_bytes: [u64; 2],
    /// Address bound before it was opened.
    pub(crate) binding: Option<BindingId>,
    pub(crate) marks: VecDeque<Mark>,
    /// Marks that arrived before their predecessors, from other processes.
    pub(crate) early: Vec<Mark>,
    /// TCP holds back partial segments.
    pub(crate) is_corked: bool,
    /// File being sent.
    pub(crate) current: Option<Current>,
    pub(crate) peer_finished: bool,
    /// The stack has dropped it.
    pub(crate) is_gone: bool,
    /// Received bytes that had no room when it was dropped.
    pub(crate) rest: VecDeque<u8>,
    /// The application has closed it: queued bytes are still sent.
    pub(crate) is_closing: bool,
    /// It will be reset once TCP has sent as much as the windows allow.
    pub(crate) is_resetting: bool,
    /// Acknowledged bytes at the last closing timer.
    pub(crate) acknowledged: u64,
    /// Local and peer address, for GetAddress, while the record lacks them.
    pub(crate) untold: Option<Box<(SocketAddr, SocketAddr)>>,
    /// Splice with another connection, in progress or joined.
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

    /// Returns the file bytes of the waiting marks.
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
