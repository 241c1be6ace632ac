//! Two stacks meet over a socket pair.

use std::os::fd::OwnedFd;
use std::thread;

use contract::control::{host_hello, nic_hello};
use contract::{Command, Event, FileId};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap()
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
