//! A NIC stack that is replaced while it has records to send: its last words are waited for.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use contract::channel::{NicChannel, in_memory};
use contract::control::HostSession;
use contract::tls::Tag;
use contract::{Command, Event, FileId, FileMeta};
use host::{NicLoss, NicRefusal, NicSource, Polling, Shard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::restarts::with_sends_waiting;
use crate::rig::{FileServer, Rig};
use fakes::nic::Work;

/// Brings one NIC stack, and is a bell that wakes the shard.
struct Source {
    bell: OwnedFd,
    session: Option<HostSession>,
    has_joined: bool,
}

impl<A> NicSource<A> for Source {
    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn take(&mut self) -> Option<(usize, HostSession)> {
        rustix::io::read(&self.bell, &mut [0; 8]).expect("it has rung");
        Some((0, self.session.take()?))
    }

    fn on_joined(&mut self, _nic: usize) {
        self.has_joined = true;
    }

    fn on_refused(&mut self, _nic: usize, refusal: NicRefusal) {
        panic!("{refusal}");
    }

    fn on_lost(&mut self, _nic: usize, loss: NicLoss) {
        panic!("{loss}: it is replaced");
    }
}

fn ring(bell: &OwnedFd) {
    rustix::io::write(bell, &1u64.to_ne_bytes()).unwrap();
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// Takes what the host says to a new NIC stack, until it has told so many tags, or for ten seconds.
fn tags_told(
    mut nic: NicChannel,
    sizes: &HashMap<FileId, u64>,
    bell: &OwnedFd,
    count: usize,
) -> Vec<Tag> {
    let mut told = Vec::new();
    let until = Instant::now() + Duration::from_secs(10);
    while told.len() < count && Instant::now() < until {
        let answer = match nic.receive().expect("the host writes sane records") {
            Some(Command::Open { file, .. }) => Event::Opened {
                file,
                meta: FileMeta {
                    size: sizes[&file],
                    ..FileMeta::default()
                },
            },
            Some(Command::Records(records)) => {
                told.extend_from_slice(records.tags);
                continue;
            }
            Some(_) => continue,
            None => {
                thread::yield_now();
                continue;
            }
        };
        nic.send(&answer).expect("room for an event");
        nic.flush();
        ring(bell);
    }
    told
}

#[test]
fn the_tags_that_a_nic_stack_tells_when_it_is_asked_to_end_reach_its_successor() {
    successor_gets_tags(false);
}

/// Its relay ends then, and that it has said all is the last that it says.
#[test]
fn so_do_those_of_one_on_another_machine() {
    successor_gets_tags(true);
}

fn successor_gets_tags(is_elsewhere: bool) {
    let mut secured = with_sends_waiting();
    // What it is going to say before it ends.
    let mut last_words = Vec::new();
    while let Some(Work::Send { id, .. }) = secured.rig.nic.work.pop_front() {
        last_words.extend(secured.rig.nic.sealer.as_mut().unwrap().leave(id));
    }
    let tags: Vec<Tag> = last_words
        .iter()
        .flat_map(|event| match event {
            Event::Sealed { tags, .. } => tags.to_vec(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(!tags.is_empty());
    if is_elsewhere {
        secured.rig.stack.set_nic_elsewhere(0);
        last_words.push(Event::Ended);
    }
    let Rig {
        stack, port, nic, ..
    } = secured.rig;
    let (mut old, sizes) = (nic.channel, nic.sizes);
    let (host_old, nic_old) = sockets();
    let (host_new, _nic_new) = sockets();
    let (new, nic_channel) = in_memory();
    let bell = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let mut source = Source {
        bell: bell.try_clone().unwrap(),
        session: Some(HostSession {
            channels: vec![new],
            socket: host_new.into(),
        }),
        has_joined: false,
    };
    let mut shard = Shard::new(
        stack,
        (0, host_old),
        port,
        FileServer::default(),
        Polling::new(0, 0),
    );
    let told = thread::scope(|scope| {
        let nic_stacks = scope.spawn(|| {
            let mut fds = [PollFd::new(&nic_old, PollFlags::RDHUP)];
            poll(&mut fds, None).unwrap();
            for event in &last_words {
                old.send(event).expect("room for an event");
            }
            old.flush();
            drop(nic_old);
            let told = tags_told(nic_channel, &sizes, &bell, tags.len());
            ring(&stop);
            told
        });
        shard.run(&mut source, stop.as_fd()).unwrap();
        nic_stacks.join().unwrap()
    });
    assert!(source.has_joined);
    assert_eq!(told, tags);
    assert_eq!(shard.stack().counters().tls_records_unproven, 0);
}
