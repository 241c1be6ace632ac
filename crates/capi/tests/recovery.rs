//! Descriptors of split sockets that come to a process in other ways than `fork`.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SocketAddrUnix, SocketFlags, SocketType, bind, recvmsg, sendmsg,
    socketpair,
};
use splitway::Family;
use splitway::client::{Client, DescriptorFlags, Options, ReceiveFlags, SendFlags};

use crate::support::{Fake, pair};

mod support;

fn pass(through: &UnixDatagram, fd: &OwnedFd) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let passed = [fd.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&passed)));
    let flags = rustix::net::SendFlags::empty();
    sendmsg(through, &[IoSlice::new(b"x")], &mut ancillary, flags).unwrap();
}

fn take(from: &UnixDatagram) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let pieces = &mut [IoSliceMut::new(&mut byte)];
    recvmsg(from, pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let mut passed = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut passed) => passed.next(),
        _ => None,
    });
    passed.next().unwrap()
}

fn send(client: &Client, fd: &OwnedFd, bytes: &[u8]) {
    let pieces = &[IoSlice::new(bytes)];
    let sent = client.send(fd.as_fd(), pieces, SendFlags::default());
    assert_eq!(sent, Ok(bytes.len()));
}

fn receive(client: &Client, fd: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    let pieces = &mut [IoSliceMut::new(&mut bytes)];
    let received = client.receive(fd.as_fd(), pieces, ReceiveFlags::default());
    bytes.truncate(received.unwrap());
    bytes
}

/// Another process of the application of `client`: one that has its key.
fn joined(fake: &Fake, client: &Client) -> Client {
    let options = Options {
        application: Some(client.application_key()),
        ..fake.options()
    };
    let other = Client::attach(&options).unwrap();
    assert_eq!(fake.world().joined, 1);
    other
}

#[test]
fn a_descriptor_that_is_passed_is_the_same_socket() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let other = joined(&fake, &client);
    let (own, theirs) = UnixDatagram::pair().unwrap();
    pass(&own, &accepted);
    client.close(accepted).unwrap();
    let passed = take(&theirs);
    assert!(!other.is_split(passed.as_fd()));
    assert_eq!(other.recover(passed.as_fd()), Ok(true));
    assert!(other.is_split(passed.as_fd()));
    send(&client, &opened, b"there");
    assert_eq!(receive(&other, &passed), b"there");
    send(&other, &passed, b"and back");
    assert_eq!(receive(&client, &opened), b"and back");
    // Its last descriptor is the other's.
    other.close(passed).unwrap();
    assert_eq!(receive(&client, &opened), b"");
}

#[test]
fn what_is_no_handle_of_the_application_is_left_alone() {
    let fake = Fake::start();
    let client = fake.attach();
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (host, named) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    // The name of a handle, but for the tag.
    let name = format!("splitway/1/{:016x}", std::process::id());
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    bind(&host, &name).unwrap();
    let (unnamed, _other) = UnixDatagram::pair().unwrap();
    for fd in [named.as_fd(), host.as_fd(), unnamed.as_fd()] {
        assert_eq!(client.recover(fd), Ok(false));
        assert!(!client.is_split(fd));
    }
    // One of another host stack.
    let elsewhere = Fake::start();
    let stranger = elsewhere.attach();
    let socket = stranger.socket(Family::V4, DescriptorFlags::default());
    let socket = socket.unwrap();
    assert_eq!(client.recover(socket.as_fd()), Ok(false));
}

#[test]
fn a_number_that_leads_elsewhere_is_no_socket_any_more() {
    let fake = Fake::start();
    let client = fake.attach();
    let socket = client.socket(Family::V4, DescriptorFlags::default());
    let socket = socket.unwrap();
    let (unnamed, _other) = UnixDatagram::pair().unwrap();
    // A call that the library does not see.
    let mut socket = socket;
    rustix::io::dup2(&unnamed, &mut socket).unwrap();
    assert!(client.is_split(socket.as_fd()));
    assert_eq!(client.recover(socket.as_fd()), Ok(false));
    assert!(!client.is_split(socket.as_fd()));
}

#[test]
fn an_application_that_is_over_is_not_joined() {
    let fake = Fake::start();
    let client = fake.attach();
    let options = Options {
        application: Some(client.application_key()),
        ..fake.options()
    };
    fake.world().welcome = support::Welcome::Refuse(Errno::SHUTDOWN);
    let own = Client::attach(&options).unwrap();
    assert!(own.socket(Family::V4, DescriptorFlags::default()).is_ok());
    assert_eq!(fake.world().joined, 0);
}
