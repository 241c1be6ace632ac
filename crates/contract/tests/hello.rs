//! Two stacks meet over a socket pair.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use contract::control::{HelloError, NicSession, has_host_died, host_hello, nic_hello, peek_hello};
use contract::limits::{VERSION, WORKERS_MAX};
use contract::{Command, Event, FileId};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap()
}

/// A peer that says what it likes.
fn say(socket: &OwnedFd, bytes: &[u8], descriptors: &[OwnedFd]) {
    let mut space = [MaybeUninit::uninit(); 1024];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    }
    sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::empty(),
    )
    .unwrap();
}

/// What the other side has said.
fn hear(socket: impl AsFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); 1024];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; 100];
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )
    .unwrap();
    bytes.truncate(received.bytes);
    let descriptors = ancillary
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(passed) => passed.collect::<Vec<_>>(),
            _ => Vec::new(),
        })
        .collect();
    (bytes, descriptors)
}

fn hello(version: u16, workers: u32) -> Vec<u8> {
    let mut bytes = b"splitway".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(workers.to_le_bytes());
    bytes
}

/// A genuine host's answer to one worker.
fn answer() -> (Vec<u8>, Vec<OwnedFd>) {
    let (host_end, nic_end) = pair();
    say(&nic_end, &hello(VERSION, 1), &[]);
    host_hello(host_end, 42).unwrap();
    hear(&nic_end)
}

/// What a host makes of a hello.
fn host_hears(bytes: &[u8]) -> HelloError {
    let (host_end, nic_end) = pair();
    say(&nic_end, bytes, &[]);
    host_hello(host_end, 42).unwrap_err()
}

/// What a NIC stack with one worker makes of an answer.
fn nic_hears(bytes: &[u8], descriptors: &[OwnedFd]) -> Result<NicSession, HelloError> {
    let (host_end, nic_end) = pair();
    say(&host_end, bytes, descriptors);
    nic_hello(nic_end, 1)
}

#[test]
fn each_worker_gets_a_channel_of_its_own() {
    let (host_end, nic_end) = pair();
    let nic = thread::spawn(move || nic_hello(nic_end, 3).unwrap());
    let mut host = host_hello(host_end, 77).unwrap();
    let mut nic = nic.join().unwrap();

    assert_eq!(nic.epoch, 77);
    assert_eq!(host.channels.len(), 3);
    assert_eq!(nic.channels.len(), 3);
    for (worker, channel) in host.channels.iter_mut().enumerate() {
        let file = FileId(worker as u32);
        channel.send(&Command::Close { file }).unwrap();
        channel.flush();
    }
    for (worker, channel) in nic.channels.iter_mut().enumerate() {
        let file = FileId(worker as u32);
        assert_eq!(channel.receive(), Ok(Some(Command::Close { file })));
        assert_eq!(channel.receive(), Ok(None));
        channel.send(&Event::OpenFailed { file, errno: 2 }).unwrap();
        channel.flush();
    }
    for (worker, channel) in host.channels.iter_mut().enumerate() {
        let file = FileId(worker as u32);
        assert_eq!(
            channel.receive(),
            Ok(Some(Event::OpenFailed { file, errno: 2 }))
        );
        assert_eq!(channel.receive(), Ok(None));
    }
}

#[test]
fn the_most_workers_get_their_channels() {
    let (host_end, nic_end) = pair();
    let nic = thread::spawn(move || nic_hello(nic_end, WORKERS_MAX).unwrap());
    assert_eq!(host_hello(host_end, 1).unwrap().channels.len(), WORKERS_MAX);
    assert_eq!(nic.join().unwrap().channels.len(), WORKERS_MAX);
}

/// proc_pid_smaps(5): `lo` is locked, `dd` is not dumped.
#[test]
fn a_session_ends_when_the_peer_is_gone() {
    let (host_end, nic_end) = pair();
    let nic = thread::spawn(move || nic_hello(nic_end, 1).unwrap());
    let host = host_hello(host_end, 1).unwrap();
    drop(nic.join().unwrap());
    assert_eq!(hear(&host.socket).0, b"");
}

#[test]
fn another_version_reaches_both_sides() {
    let (host_end, nic_end) = pair();
    say(&nic_end, &hello(VERSION + 1, 1), &[]);
    let error = host_hello(host_end, 42).unwrap_err();
    assert!(matches!(error, HelloError::Version { peer } if peer == VERSION + 1));
    assert!(error.to_string().contains("run the same release"));

    // What the NIC stack gets is enough to say the same.
    let (bytes, descriptors) = hear(&nic_end);
    assert_eq!(bytes, hello(VERSION, 0)[..12]);
    assert!(descriptors.is_empty());
    let mut other = bytes;
    other[8..10].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let error = nic_hears(&other, &[]).unwrap_err();
    assert!(matches!(error, HelloError::Version { peer } if peer == VERSION + 1));
}

#[test]
fn what_is_no_hello_is_malformed() {
    let good = hello(VERSION, 1);
    let mut bad_magic = good.clone();
    bad_magic[0] = b'S';
    let mut not_zero = good.clone();
    not_zero[10] = 1;
    let mut too_long = good.clone();
    too_long.extend([0; 8]);
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &bad_magic,
        &not_zero,
        &too_long,
        &[0; 99],
    ] {
        assert!(matches!(host_hears(bytes), HelloError::Malformed));
    }
    for len in 1..good.len() {
        assert!(matches!(host_hears(&good[..len]), HelloError::Malformed));
    }
}

#[test]
fn the_number_of_workers_is_bounded() {
    for workers in [0, WORKERS_MAX as u32 + 1, u32::MAX] {
        let error = host_hears(&hello(VERSION, workers));
        assert!(matches!(error, HelloError::Workers { .. }), "{error}");
    }
    let (_host_end, nic_end) = pair();
    let error = nic_hello(nic_end, 0).unwrap_err();
    assert!(matches!(error, HelloError::Workers { workers: 0 }));
}

#[test]
fn a_closed_socket_is_named_as_such() {
    let (host_end, nic_end) = pair();
    drop(nic_end);
    let error = host_hello(host_end, 1).unwrap_err();
    assert!(matches!(error, HelloError::Closed));

    let (host_end, nic_end) = pair();
    drop(host_end);
    let error = nic_hello(nic_end, 1).unwrap_err();
    assert!(matches!(error, HelloError::Closed));
}

#[test]
fn a_genuine_answer_can_be_replayed() {
    let (bytes, descriptors) = answer();
    let session = nic_hears(&bytes, &descriptors).unwrap();
    assert_eq!(session.epoch, 42);
}

#[test]
fn an_answer_with_a_wrong_number_of_anything_is_malformed() {
    let (bytes, mut descriptors) = answer();
    for len in 1..bytes.len() {
        let error = nic_hears(&bytes[..len], &descriptors).unwrap_err();
        assert!(matches!(error, HelloError::Malformed), "{len} bytes");
    }
    let mut two_workers = bytes.clone();
    two_workers[12] = 2;
    let error = nic_hears(&two_workers, &descriptors).unwrap_err();
    assert!(matches!(error, HelloError::Malformed));

    for _ in 0..3 {
        descriptors.pop();
        let error = nic_hears(&bytes, &descriptors).unwrap_err();
        assert!(matches!(error, HelloError::Malformed));
    }
}

#[test]
fn memory_that_could_shrink_is_refused() {
    const ALL: SealFlags = SealFlags::SHRINK
        .union(SealFlags::GROW)
        .union(SealFlags::SEAL);
    let (bytes, mut descriptors) = answer();
    let size = rustix::fs::fstat(&descriptors[0]).unwrap().st_size as u64;
    for (seals, size, why) in [
        (ALL, size - 8, "another size"),
        (ALL, size + 8, "another size"),
        (ALL - SealFlags::SHRINK, size, "not sealed"),
        (ALL - SealFlags::GROW, size, "not sealed"),
        (ALL - SealFlags::SEAL, size, "not sealed"),
        (SealFlags::empty(), size, "not sealed"),
    ] {
        let file = rustix::fs::memfd_create(c"test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, size).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        descriptors[0] = file;
        let error = nic_hears(&bytes, &descriptors).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        assert!(
            matches!(error, HelloError::Io { error, .. } if error.kind() == ErrorKind::InvalidData)
        );
    }
}

#[test]
fn a_file_that_is_no_memory_is_refused() {
    let (bytes, mut descriptors) = answer();
    descriptors[0] = std::fs::File::open("/dev/zero").unwrap().into();
    let error = nic_hears(&bytes, &descriptors).unwrap_err();
    assert!(error.to_string().contains("not a memory file"), "{error}");
}

#[test]
fn a_hello_can_be_looked_at_and_is_still_there() {
    let (host_end, nic_end) = pair();
    assert!(matches!(peek_hello(&host_end), Ok(None)), "no hello yet");
    say(&nic_end, &hello(VERSION, 3), &[]);
    for _ in 0..2 {
        assert!(matches!(peek_hello(&host_end), Ok(Some(3))));
    }
    assert_eq!(host_hello(host_end, 42).unwrap().channels.len(), 3);
}

#[test]
fn a_hello_of_another_version_is_refused_at_sight_and_told_ours() {
    let (host_end, nic_end) = pair();
    say(&nic_end, &hello(VERSION + 1, 1), &[]);
    let error = peek_hello(&host_end).unwrap_err();
    assert!(matches!(error, HelloError::Version { peer } if peer == VERSION + 1));
    let (told, descriptors) = hear(&nic_end);
    assert_eq!(told[8..10], VERSION.to_le_bytes());
    assert!(descriptors.is_empty());
}

#[test]
fn what_is_no_hello_is_none_at_sight() {
    for bytes in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0; 16], b"s"] {
        let (host_end, nic_end) = pair();
        say(&nic_end, bytes, &[]);
        assert!(matches!(peek_hello(&host_end), Err(HelloError::Malformed)));
    }
    let (host_end, nic_end) = pair();
    say(&nic_end, &hello(VERSION, WORKERS_MAX as u32 + 1), &[]);
    assert!(matches!(
        peek_hello(&host_end),
        Err(HelloError::Workers { .. })
    ));
    drop(nic_end);
    let (host_end, nic_end) = pair();
    drop(nic_end);
    assert!(matches!(peek_hello(&host_end), Err(HelloError::Closed)));
}

#[test]
fn a_host_process_that_leaves_says_so_and_one_that_dies_does_not() {
    let met = || {
        let (host_end, nic_end) = pair();
        let nic = thread::spawn(move || nic_hello(nic_end, 1).unwrap());
        let host = host_hello(host_end, 1).unwrap();
        (host.socket, nic.join().unwrap().socket)
    };
    let (host, nic) = met();
    assert!(!has_host_died(&nic), "it is there");
    drop(host);
    assert!(!has_host_died(&nic), "it has left");
    assert!(!has_host_died(&nic), "each worker may ask");

    let (host, nic) = met();
    host.take_leave();
    assert!(!has_host_died(&nic));
    drop(host.without_farewell());
    assert!(!has_host_died(&nic), "it had taken leave");

    let (host, nic) = met();
    drop(host.without_farewell());
    assert!(has_host_died(&nic));
    assert!(has_host_died(&nic), "each worker may ask");

    let (host, nic) = met();
    let panics = thread::spawn(move || {
        let _socket = host;
        panic!("as a host process may");
    });
    assert!(panics.join().is_err());
    assert!(has_host_died(&nic));
}
