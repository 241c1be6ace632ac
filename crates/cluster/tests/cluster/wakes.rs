//! What wakes a node, with real descriptors; and what another node makes up.

use std::os::unix::net::UnixStream;

use cluster::message::{Body, Message, State};
use cluster::{Node, Reply};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket_channel::channel::{AppEnd, HostEnd, create_app_bell, create_bell, create_file};
use socket_channel::{
    AppId, AppRecord, ChannelId, Flags, HandleId, Layout, Limits, Segment, SocketId,
};
use sockets::{Attachment, First, Grant, Identity, NewHandles};

use crate::nodes::{KEY, MODES};

const APP: AppId = AppId(1);
const CHANNEL: ChannelId = ChannelId(2);

/// A node with one program, which the stack node has not answered.
fn attaching() -> (Node, AppEnd, Segment) {
    let mut node = Node::new().unwrap();
    node.begin_session();
    let file = create_file().unwrap();
    let host_bell = create_bell().unwrap();
    let (app_bell, watch) = create_app_bell().unwrap();
    let host_of = host_bell.try_clone().unwrap();
    let host = HostEnd::from_files(&file, host_of, app_bell).unwrap();
    let end = AppEnd::from_files(&file, watch, host_bell).unwrap();
    let limits = Limits {
        sockets_max: 4,
        segment_bytes: 64 << 10,
    };
    let segment = Segment::in_memory(Layout::of(limits).unwrap());
    node.attach(Attachment {
        app: APP,
        channel: CHANNEL,
        pid: 0,
        uid: 1000,
        first: Some(First {
            grant: Grant::default(),
            segment: segment.clone(),
            identity: Identity {
                key: KEY,
                modes: MODES,
                segment_file: None,
            },
        }),
        end: host,
    });
    (node, end, segment)
}

fn is_woken(node: &Node) -> bool {
    let fd = node.wake_fd().unwrap();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn a_descriptor_that_was_closed_wakes_a_node_once() {
    let (mut node, _end, _) = attaching();
    let (own, theirs) = UnixStream::pair().unwrap();
    node.add_handles(NewHandles {
        app: APP,
        channel: CHANNEL,
        first: HandleId(0),
        descriptors: vec![own.into()],
    });
    assert!(!is_woken(&node));
    drop(theirs);
    assert!(is_woken(&node));
    node.look();
    // Its turn comes when the program is attached.
    node.turn(1, &mut Vec::new);
    assert!(!is_woken(&node));
}

#[test]
fn the_bell_of_a_program_that_is_refused_wakes_no_node() {
    let (mut node, mut end, _) = attaching();
    end.hurry();
    assert!(is_woken(&node));
    node.look();
    assert!(!is_woken(&node));
    node.end_session();
    let refused = Reply::Refused {
        app: APP,
        channel: CHANNEL,
        errno: Errno::AGAIN,
    };
    assert_eq!(node.take_replies(), [refused]);
    end.hurry();
    assert!(!is_woken(&node));
}

/// It has the key, and makes up sizes of FIFOs, bytes and sockets.
#[test]
fn a_stack_node_that_makes_no_sense_ends_no_node() {
    let (mut node, _end, segment) = attaching();
    let mut say = |body: Body<'_>| {
        let app = APP.0;
        node.on_message(&Message { app, body }.encode());
    };
    say(Body::Attached {
        errno: 0,
        modes: MODES,
    });
    let socket = SocketId {
        index: 1,
        generation: 1,
    };
    let flags = Flags::STREAM | Flags::CONNECTED;
    let sized = |bytes| State {
        flags,
        rx_bytes: bytes,
        tx_bytes: bytes,
        ..State::default()
    };
    let state = sized(4096);
    say(Body::New { socket, state });
    say(Body::Data {
        socket,
        has_more: false,
        bytes: b"some",
    });
    for bytes in [0, 8192, u32::MAX, 0, 1] {
        let state = sized(bytes);
        say(Body::State { socket, state });
    }
    let record = AppRecord::of(&segment, socket).unwrap();
    assert!(record.flags().unwrap().has(Flags::FAILED));
    for generation in 1..1000 {
        let socket = SocketId {
            index: 1 << 20,
            generation,
        };
        let state = sized(u32::MAX);
        say(Body::New { socket, state });
    }
    assert_eq!(node.sockets(), 1);
    node.turn(1, &mut Vec::new);
}
