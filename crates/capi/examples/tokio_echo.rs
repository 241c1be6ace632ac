//! An echo server on the split stack, with a task for each connection.
//!
//! ```text
//! cargo build --release -p splitway-capi --example tokio_echo
//! SPLITWAY_SOCKET=/run/splitway/sockets.sock target/release/examples/tokio_echo 7
//! ```
//!
//! All sockets are members of one epoll set of the library. A thread waits for the set, and wakes
//! the tasks.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use splitway::client::{
    Client, DescriptorFlags, EpollChange, EpollEvent, Options, ReceiveFlags, SendFlags,
};
use splitway::{Family, How};
use tokio::sync::Notify;

const FLAGS: DescriptorFlags = DescriptorFlags {
    nonblocking: true,
    close_on_exec: true,
};

/// The set, and the tasks that wait for its members.
struct Reactor {
    client: Client,
    set: OwnedFd,
    tasks: Mutex<HashMap<RawFd, Arc<Notify>>>,
}

/// A socket whose calls wait in their task.
struct Socket {
    reactor: Arc<Reactor>,
    fd: Option<OwnedFd>,
    changed: Arc<Notify>,
}

impl Reactor {
    fn new() -> Result<Arc<Reactor>, Box<dyn std::error::Error>> {
        let client = Client::attach(&Options::from_environment()?)?;
        let set = client.epoll_create(true)?;
        Ok(Arc::new(Reactor {
            client,
            set,
            tasks: Mutex::default(),
        }))
    }

    /// Wakes tasks, for as long as the program runs.
    fn run(&self) -> rustix::io::Result<()> {
        let mut events = [EpollEvent { events: 0, data: 0 }; 64];
        loop {
            let found = self
                .client
                .epoll_wait(self.set.as_fd(), &mut events, None)?;
            let tasks = self.tasks.lock().expect("no task panics with it");
            for event in &events[..found] {
                if let Some(task) = tasks.get(&(event.data as RawFd)) {
                    task.notify_one();
                }
            }
        }
    }

    fn watch(self: &Arc<Self>, fd: OwnedFd) -> rustix::io::Result<Socket> {
        let changed = Arc::new(Notify::new());
        let number = fd.as_raw_fd();
        let mut tasks = self.tasks.lock().expect("no task panics with it");
        tasks.insert(number, Arc::clone(&changed));
        drop(tasks);
        let event = EpollEvent {
            events: (EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET).bits(),
            data: number as u64,
        };
        self.client
            .epoll_change(self.set.as_fd(), fd.as_fd(), EpollChange::Add(event))?;
        Ok(Socket {
            reactor: Arc::clone(self),
            fd: Some(fd),
            changed,
        })
    }
}

impl Socket {
    /// Repeats a call as often as it would block.
    async fn until_ready<T>(
        &self,
        call: impl Fn(&Client, &OwnedFd) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        let fd = self.fd.as_ref().expect("it is open until it is dropped");
        loop {
            match call(&self.reactor.client, fd) {
                Err(Errno::AGAIN) => self.changed.notified().await,
                other => return other,
            }
        }
    }

    async fn echo(self) -> rustix::io::Result<()> {
        loop {
            let (bytes, count) = self
                .until_ready(|client, fd| {
                    let mut bytes = vec![0; 16 << 10];
                    let into = &mut [IoSliceMut::new(&mut bytes)];
                    let count = client.receive(fd.as_fd(), into, ReceiveFlags::default())?;
                    Ok((bytes, count))
                })
                .await?;
            if count == 0 {
                return self
                    .until_ready(|client, fd| client.shutdown(fd.as_fd(), How::Write))
                    .await;
            }
            let mut rest = &bytes[..count];
            while !rest.is_empty() {
                let sent = self
                    .until_ready(|client, fd| {
                        client.send(fd.as_fd(), &[IoSlice::new(rest)], SendFlags::default())
                    })
                    .await?;
                rest = &rest[sent..];
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            let mut tasks = self.reactor.tasks.lock().expect("no task panics with it");
            tasks.remove(&fd.as_raw_fd());
            // What it lingers for does not matter here.
            let _ = self.reactor.client.close(fd);
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args().nth(1).unwrap_or("7".to_owned()).parse()?;
    let reactor = Reactor::new()?;
    let waker = Arc::clone(&reactor);
    std::thread::spawn(move || {
        // Without it no task would go on.
        let ended = waker.run();
        eprintln!("tokio_echo: waiting for sockets: {ended:?}");
        std::process::exit(1);
    });
    let listener = reactor.client.socket(Family::V4, FLAGS)?;
    let address = SocketAddr::from(([0, 0, 0, 0], port));
    reactor.client.bind(listener.as_fd(), address)?;
    reactor.client.listen(listener.as_fd(), 1024)?;
    let listener = reactor.watch(listener)?;
    loop {
        let accepted = listener
            .until_ready(|client, fd| client.accept(fd.as_fd(), FLAGS))
            .await;
        let (fd, _) = accepted?;
        tokio::spawn(reactor.watch(fd)?.echo());
    }
}
