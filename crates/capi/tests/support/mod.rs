//! A broker and a host stack in the test's process: they attach applications over a real socket,
//! and connect the sockets of an application with each other inside its segment.
#![allow(dead_code, reason = "each test uses its part")]

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use splitway::client::{Client, DescriptorFlags, Modes, Options, ReceiveFlags};
use splitway::{Family, How};
use tempfile::TempDir;

use self::world::World;

mod broker;
pub(crate) mod children;
mod loopback;
mod world;

#[allow(unused_imports, reason = "each test uses its part")]
pub(crate) use self::broker::Welcome;
#[allow(unused_imports, reason = "each test uses its part")]
pub(crate) use self::world::{FILE, FILE_SLOW, LOOPED, NO_ANSWER};

/// Names the modes that applications are attached with.
const MODES_VARIABLE: &str = "SPLITWAY_TEST_MODES";

/// Each mode off, all of them, and Split-TCP with and without the others.
const MODES: [&str; 8] = [
    "eager-receive,eager-accept,setup-with-accept,buffers-on-demand",
    "async-send,eager-accept,setup-with-accept,buffers-on-demand",
    "async-send,eager-receive,setup-with-accept,buffers-on-demand",
    "async-send,eager-receive,eager-accept,buffers-on-demand",
    "async-send,eager-receive,eager-accept,setup-with-accept",
    "",
    "split-tcp",
    "split-tcp,async-send,eager-receive,eager-accept,setup-with-accept,buffers-on-demand",
];

/// Runs the other tests of this program in each mode; `own` is the name of the test that does.
pub(crate) fn rerun_in_each_mode(own: &str) {
    for modes in MODES {
        let program = std::env::current_exe().unwrap();
        let ran = Command::new(program)
            .args(["--skip", own])
            .env(MODES_VARIABLE, modes)
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success(), "with modes {modes:?}: {output}");
        assert!(!output.contains(" 0 passed"), "{output}");
    }
}

/// The broker and the host stack; they end when this is dropped.
pub(crate) struct Fake {
    directory: TempDir,
    world: Arc<Mutex<World>>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    pub(crate) fn start() -> Fake {
        Fake::start_with(4096, 64 << 20)
    }

    /// With so many sockets at most, and a segment of so many bytes.
    pub(crate) fn start_with(sockets_max: u32, segment_bytes: u64) -> Fake {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sockets.sock");
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let stop = Arc::new(stop);
        let world = World::new(&path, sockets_max, segment_bytes, stop.as_fd());
        let world = Arc::new(Mutex::new(world));
        let served = Arc::clone(&world);
        let thread = std::thread::spawn(move || {
            let done = catch_unwind(AssertUnwindSafe(|| world::serve(&served)));
            if let Err(panic) = done {
                // Clients hear of it, instead of waiting.
                let mut world = served.lock().unwrap_or_else(PoisonError::into_inner);
                world.drop_descriptors();
                drop(world);
                resume_unwind(panic);
            }
        });
        Fake {
            directory,
            world,
            stop,
            thread: Some(thread),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("sockets.sock")
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            path: self.path(),
            modes: match std::env::var(MODES_VARIABLE) {
                Ok(modes) => Modes::parse(&modes).unwrap(),
                Err(_) => Modes::default(),
            },
            application: None,
        }
    }

    /// Attaches with these modes, whatever the tests are run in.
    pub(crate) fn attach_with(&self, modes: Modes) -> Client {
        let options = Options {
            modes,
            ..self.options()
        };
        Client::attach(&options).unwrap()
    }

    pub(crate) fn attach(&self) -> Client {
        Client::attach(&self.options()).unwrap()
    }

    /// What the host stack has; it stands still meanwhile.
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// The host stack dies: all that it has of applications is closed.
    pub(crate) fn stop(&mut self) {
        rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).unwrap();
        if let Some(thread) = self.thread.take() {
            let served = thread.join();
            // The first failure is the one to read.
            assert!(served.is_ok() || std::thread::panicking());
        }
        if let Ok(mut world) = self.world.lock() {
            world.drop_descriptors();
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
    }
}

pub(crate) const BLOCKING: DescriptorFlags = DescriptorFlags {
    nonblocking: false,
    close_on_exec: true,
};

pub(crate) const NONBLOCKING: DescriptorFlags = DescriptorFlags {
    nonblocking: true,
    close_on_exec: true,
};

pub(crate) fn v4(port: u16) -> SocketAddr {
    ([10, 0, 0, 1], port).into()
}

/// A listener on a port.
pub(crate) fn listener(client: &Client, port: u16, flags: DescriptorFlags) -> OwnedFd {
    let fd = client.socket(Family::V4, flags).unwrap();
    client.bind(fd.as_fd(), v4(port)).unwrap();
    client.listen(fd.as_fd(), 1024).unwrap();
    fd
}

/// A connection to a port that is listened on, opened here.
pub(crate) fn connected(client: &Client, port: u16) -> OwnedFd {
    let fd = client.socket(Family::V4, BLOCKING).unwrap();
    client.connect(fd.as_fd(), v4(port)).unwrap();
    fd
}

/// Both ends of a connection: the one that was opened, and the one that was accepted.
pub(crate) fn pair(client: &Client, port: u16) -> (OwnedFd, OwnedFd) {
    let listener = listener(client, port, BLOCKING);
    let opened = connected(client, port);
    let (accepted, _) = client.accept(listener.as_fd(), BLOCKING).unwrap();
    client.close(listener).unwrap();
    (opened, accepted)
}

/// Waits until the host stack has carried out all commands and moved all bytes given to it before.
pub(crate) fn settle(client: &Client) {
    let fd = client.socket(Family::V4, BLOCKING).unwrap();
    client.close(fd).unwrap();
}

/// All bytes up to the end of the stream.
pub(crate) fn receive_all(client: &Client, fd: &OwnedFd) -> Vec<u8> {
    let mut all = Vec::new();
    let mut bytes = vec![0; 50_000];
    loop {
        let pieces = &mut [IoSliceMut::new(&mut bytes)];
        let flags = ReceiveFlags::default();
        match client.receive(fd.as_fd(), pieces, flags).unwrap() {
            0 => return all,
            len => all.extend(&bytes[..len]),
        }
    }
}

pub(crate) fn finish(client: &Client, fd: &OwnedFd) {
    client.shutdown(fd.as_fd(), How::Write).unwrap();
}

/// Bytes that differ at each position and for each seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend(state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
