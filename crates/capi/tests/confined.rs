//! What sockets do in a process that has prepared itself for a filter of system calls.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use splitway::Family;
use splitway::client::{Client, Confinement, DescriptorFlags};

use crate::support::{BLOCKING, Fake, NONBLOCKING, listener, v4};

mod support;

/// A socket that is known to block, or not to, and a duplicate of it.
fn known(client: &Client, flags: DescriptorFlags) -> [OwnedFd; 2] {
    let socket = client.socket(Family::V4, flags).unwrap();
    let duplicate = socket.try_clone().unwrap();
    let duplicate = client.note_duplicate(socket.as_fd(), duplicate).unwrap();
    client.prepare_for(Confinement::Calls).unwrap();
    [socket, duplicate]
}

#[test]
fn a_change_of_flags_by_a_duplicate_is_one_of_the_socket() {
    let fake = Fake::start();
    let client = fake.attach();
    let _listener = listener(&client, 80, BLOCKING);
    let connected = |before, after| {
        let [socket, duplicate] = known(&client, before);
        fcntl_setfl(&duplicate, after).unwrap();
        client.forget_flags(duplicate.as_raw_fd());
        client.connect(socket.as_fd(), v4(80))
    };
    let to_nonblocking = connected(BLOCKING, OFlags::NONBLOCK);
    assert_eq!(to_nonblocking, Err(Errno::INPROGRESS));
    assert_eq!(connected(NONBLOCKING, OFlags::empty()), Ok(()));
}
