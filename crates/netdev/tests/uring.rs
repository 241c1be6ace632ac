//! Datagrams that leave by io_uring.

#![cfg(feature = "uring")]

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::Duration;

use netdev::uring::SendRing;

/// More than the ring has places, in as many system calls as it takes.
#[test]
fn each_datagram_arrives_as_it_was_sent() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    let mut ring = SendRing::new().unwrap();
    for count in [0, 1, 63, 64, 65, 130] {
        let datagrams: Vec<Vec<u8>> = (0..count)
            .map(|number| vec![number as u8; 1 + 7 * number])
            .collect();
        let sent = datagrams.iter().map(Vec::as_slice);
        ring.send(sender.as_fd(), sent).unwrap();
        let mut buffer = [0; 2000];
        let received = (0..count).map(|_| {
            let len = receiver.recv(&mut buffer).unwrap();
            buffer[..len].to_vec()
        });
        assert_eq!(received.collect::<Vec<_>>(), datagrams);
    }
}

#[test]
fn what_cannot_be_sent_says_why() {
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut ring = SendRing::new().unwrap();
    let datagrams = || [&b"not connected"[..]].into_iter();
    let error = ring.send(sender.as_fd(), datagrams()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EDESTADDRREQ));
    sender.connect("127.0.0.1:9").unwrap();
    let large = vec![0; 70_000];
    let all = [&b"small"[..], &large, b"small"];
    let error = ring.send(sender.as_fd(), all.into_iter()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    // Nothing is left in the ring.
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    ring.send(sender.as_fd(), datagrams()).unwrap();
    let mut buffer = [0; 100];
    assert_eq!(receiver.recv(&mut buffer).unwrap(), 13);
}
