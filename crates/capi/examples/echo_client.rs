//! Has an echo server send back what it is sent, over connections of the split stack, and compares
//! every byte. The server may be a program of the same stack.
//!
//! ```text
//! cargo build --release -p splitway-capi --example echo_client
//! export SPLITWAY_SOCKET=/run/splitway/sockets.sock
//! target/release/examples/echo_client 127.0.0.1:7 1000 5000
//! ```
//!
//! Four threads have so many connections one after the other, and send so many bytes on each.

use std::error::Error;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use splitway::client::{Client, DescriptorFlags, Options, ReceiveFlags, SendFlags};
use splitway::{Family, How};

const THREADS: usize = 4;

/// What a connection sends.
fn text(connection: usize, bytes: usize) -> Vec<u8> {
    let byte = |at: usize| {
        ((at + connection) as u32)
            .wrapping_mul(2_654_435_761)
            .to_be_bytes()[0]
    };
    (0..bytes).map(byte).collect()
}

fn send(client: &Client, fd: BorrowedFd<'_>, text: &[u8]) -> rustix::io::Result<()> {
    let mut sent = 0;
    while sent < text.len() {
        let rest = &[IoSlice::new(&text[sent..])];
        sent += client.send(fd, rest, SendFlags::default())?;
    }
    client.shutdown(fd, How::Write)
}

fn receive(client: &Client, fd: BorrowedFd<'_>) -> rustix::io::Result<Vec<u8>> {
    let (mut received, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let room = &mut [IoSliceMut::new(&mut buffer)];
        let count = client.receive(fd, room, ReceiveFlags::default())?;
        if count == 0 {
            return Ok(received);
        }
        received.extend_from_slice(&buffer[..count]);
    }
}

fn exchange(client: &Client, server: SocketAddr, text: &[u8]) -> Result<(), Box<dyn Error>> {
    let family = match server {
        SocketAddr::V4(_) => Family::V4,
        SocketAddr::V6(_) => Family::V6,
    };
    let socket = client.socket(family, DescriptorFlags::default())?;
    client.connect(socket.as_fd(), server)?;
    let received = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(client, socket.as_fd(), text));
        let received = receive(client, socket.as_fd())?;
        sender.join().map_err(|_| Errno::IO)??;
        Ok::<_, Errno>(received)
    })?;
    client.close(socket)?;
    if received != text {
        let (got, sent) = (received.len(), text.len());
        return Err(format!("{got} bytes came back that are not the {sent} sent").into());
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, connections, bytes] = &arguments[..] else {
        return Err("usage: echo_client ADDRESS:PORT CONNECTIONS BYTES".into());
    };
    let (server, connections) = (server.parse()?, connections.parse::<usize>()?);
    let bytes = bytes.parse()?;
    let client = Client::attach(&Options::from_environment()?)?;
    let failures: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let client = &client;
                scope.spawn(move || {
                    (thread..connections)
                        .step_by(THREADS)
                        .try_for_each(|connection| {
                            let done = exchange(client, server, &text(connection, bytes));
                            done.map_err(|error| format!("connection {connection}: {error}"))
                        })
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        let ended = joined.map(|end| end.unwrap_or_else(|_| Err("a thread has failed".into())));
        ended.filter_map(Result::err).collect()
    });
    if failures.is_empty() {
        println!("{connections} connections, {bytes} bytes each: every byte came back");
        return Ok(());
    }
    Err(failures.join("\n").into())
}
