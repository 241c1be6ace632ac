//! Whole sessions: real files, real readers, real sleeping, workers in threads.

mod support;

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::UNIX_EPOCH;

use contract::channel::HostChannel;
use contract::control::{HostSession, host_hello, nic_hello};
use contract::limits::LOAD_PERIOD_US;
use contract::{Command, Event, FileId, FlowId, Growth, Segment, Segments, Send, SendId};
use fakes::recording_port::{Recording, RecordingPort};
use nic::{Config, Counters, ReaderKind, RootDir, RunError, WorkerResources};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use support::{MSS, content, header, range, small_config};
use tempfile::TempDir;
use wire::tcp::Flags;

/// Long enough for the slowest machine; nothing waits for it to pass.
const PATIENCE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// The host's side of a session.
struct Host {
    session: HostSession,
}

impl Host {
    fn tell(&mut self, worker: usize, command: &Command<'_>) {
        let channel = &mut self.session.channels[worker];
        while channel.send(command).is_err() {
            wait(channel);
        }
        channel.flush();
    }

    fn send(
        &mut self,
        worker: usize,
        flow: u64,
        offset: u64,
        segments: impl Into<Segments<'static>>,
    ) {
        let header = header(flow, offset, Flags::ACK, 1);
        let send = Send {
            id: SendId(flow << 32 | offset),
            flow: FlowId(flow),
            stream_offset: offset,
            acked_offset: 0,
            issued_us: 0,
            not_before_us: 0,
            tsval_fraction_us: 0,
            follow_bytes: 0,
            mss: MSS,
            header: &header,
            segments: segments.into(),
        };
        self.tell(worker, &Command::Send(send));
    }

    fn open(&mut self, worker: usize, file: u32, path: &str) -> u64 {
        let open = Command::Open {
            file: FileId(file),
            growth: Growth::Forbidden,
            path: path.as_bytes(),
        };
        self.tell(worker, &open);
        match self.next(worker) {
            Event::Opened { meta, .. } => meta.size,
            other => panic!("{other:?}"),
        }
    }

    /// The next event of a worker, sleeping until it comes. How busy it is does not count.
    fn next(&mut self, worker: usize) -> Event {
        loop {
            match self.next_of_all(worker) {
                Event::Load { .. } => {}
                event => return event,
            }
        }
    }

    fn next_of_all(&mut self, worker: usize) -> Event {
        let channel = &mut self.session.channels[worker];
        loop {
            if let Some(event) = channel.receive().expect("the ring is sound") {
                return event;
            }
            wait(channel);
        }
    }
}

fn wait(channel: &mut HostChannel) {
    if channel.prepare_sleep() {
        let fd = channel.wake_fd().expect("a descriptor to wait for");
        let ready = poll(
            &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
            Some(&PATIENCE),
        );
        assert_eq!(ready, Ok(1), "the NIC stack does not answer");
        channel.finish_sleep();
    }
}

/// Runs a session while `act` is the host; returns what `run` did.
fn session(
    root: &Path,
    config: &Config,
    wires: &[Recording],
    act: impl FnOnce(Host, &OwnedFd),
) -> Result<Counters, RunError> {
    let (host_end, nic_end) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    thread::scope(|scope| {
        let nic = scope.spawn(|| {
            let root = RootDir::open(root).expect("the root");
            let session = nic_hello(nic_end, wires.len()).expect("a hello");
            let ports = wires
                .iter()
                .map(|wire| RecordingPort::new(wire, 65_535))
                .map(|port| WorkerResources::reserve(config, port))
                .collect::<Result<_, _>>()?;
            nic::run(config, root, session, ports, stop.as_fd(), || Ok(()), None)
        });
        let session = host_hello(host_end, 1).expect("a hello");
        act(Host { session }, &stop);
        nic.join().expect("no panic")
    })
}

fn each_reader(test: impl Fn(&Config)) {
    for reader in [ReaderKind::Threads, ReaderKind::Uring, ReaderKind::Auto] {
        for direct in [true, false] {
            test(&Config {
                reader,
                direct,
                ..small_config()
            });
        }
    }
}

/// Sends a whole file in SENDs of `step` bytes, and waits for their departure.
fn serve(host: &mut Host, worker: usize, file: u32, flow: u64, size: u64, step: u64) {
    let mut offset = 0;
    let mut sends = 0;
    while offset < size {
        let len = step.min(size - offset);
        host.send(worker, flow, offset, [range(file, offset, len as u32)]);
        offset += len;
        sends += 1;
    }
    for _ in 0..sends {
        assert!(matches!(host.next(worker), Event::Departed { .. }));
    }
}

#[test]
fn files_of_all_sizes_arrive_whole() {
    let root = TempDir::new().unwrap();
    let sizes = [1, 1447, 1448, 1449, 4095, 4096, 4097, 500_000, 3_000_000];
    for size in sizes {
        fs::write(root.path().join(size.to_string()), content(size)).unwrap();
    }
    each_reader(|config| {
        let wire = Recording::default();
        let result = session(
            root.path(),
            config,
            std::slice::from_ref(&wire),
            |mut host, _| {
                for (flow, size) in (1..).zip(sizes) {
                    let opened = host.open(0, flow, &size.to_string());
                    assert_eq!(opened, size as u64);
                    serve(&mut host, 0, flow, flow.into(), opened, 77_777);
                }
            },
        );
        let streams = wire.streams();
        for (flow, size) in (1..).zip(sizes) {
            assert_eq!(streams[&flow], content(size), "{size}, {config:?}");
        }
        let counters = result.expect("the host has gone, which is no error");
        assert_eq!(counters.file_sent_bytes, sizes.iter().sum::<usize>() as u64);
    });
}

#[test]
fn many_flows_share_a_worker_and_workers_share_nothing() {
    let root = TempDir::new().unwrap();
    let file = content(400_000);
    fs::write(root.path().join("f"), &file).unwrap();
    let wires = [
        Recording::default(),
        Recording::default(),
        Recording::default(),
    ];
    let result = session(root.path(), &small_config(), &wires, |mut host, _| {
        for worker in 0..3 {
            host.open(worker, 1, "f");
            for flow in 0..50 {
                for part in 0..4 {
                    let offset = part * 100_000;
                    host.send(worker, flow, offset, [range(1, offset, 100_000)]);
                }
            }
        }
        for worker in 0..3 {
            let mut last = [None; 50];
            for _ in 0..200 {
                let Event::Departed { send, flow, .. } = host.next(worker) else {
                    panic!("nothing else was asked for");
                };
                let before = last[flow.0 as usize].replace(send);
                assert!(before < Some(send), "in order within a flow");
            }
        }
    });
    for wire in &wires {
        let streams = wire.streams();
        assert_eq!(streams.len(), 50);
        assert!(streams.values().all(|stream| *stream == file));
    }
    assert_eq!(result.unwrap().sends, 600);
}

#[test]
fn a_worker_says_that_it_is_busy_and_once_that_it_is_not_and_another_says_nothing() {
    let root = TempDir::new().unwrap();
    fs::write(root.path().join("f"), content(400_000)).unwrap();
    let wires = [Recording::default(), Recording::default()];
    let result = session(root.path(), &small_config(), &wires, |mut host, _| {
        host.open(0, 1, "f");
        let mut flow = 0;
        loop {
            flow += 1;
            host.send(0, flow, 0, [range(1, 0, 400_000)]);
            match host.next_of_all(0) {
                Event::Departed { .. } => {}
                Event::Load {
                    busy_us,
                    elapsed_us,
                } => {
                    assert!(0 < busy_us && busy_us <= elapsed_us);
                    assert!(u64::from(elapsed_us) >= LOAD_PERIOD_US);
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        loop {
            match host.next_of_all(0) {
                Event::Departed { .. } | Event::Load { busy_us: 1.., .. } => {}
                Event::Load { busy_us: 0, .. } => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(host.session.channels[1].receive(), Ok(None));
    });
    assert!(result.unwrap().sends > 0);
}

#[test]
fn a_sparse_file_beyond_four_gigabytes_can_be_sent_from_anywhere() {
    use std::os::unix::fs::FileExt;
    let root = TempDir::new().unwrap();
    let size = (4u64 << 30) + 12_345;
    let tail = content(10_000);
    let file = fs::File::create(root.path().join("sparse")).unwrap();
    file.write_all_at(&tail, size - 10_000).unwrap();
    each_reader(|config| {
        let wire = Recording::default();
        session(
            root.path(),
            config,
            std::slice::from_ref(&wire),
            |mut host, _| {
                assert_eq!(host.open(0, 1, "sparse"), size);
                host.send(
                    0,
                    1,
                    0,
                    [range(1, 0, 100_000), range(1, size - 10_000, 10_000)],
                );
                assert!(matches!(host.next(0), Event::Departed { .. }));
            },
        )
        .unwrap();
        let stream = &wire.streams()[&1];
        assert!(stream[..100_000].iter().all(|byte| *byte == 0));
        assert_eq!(stream[100_000..], tail);
    });
}

#[test]
fn a_file_overwritten_after_its_open_is_sent_as_it_was_or_not_at_all() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("f");
    each_reader(|config| {
        fs::write(&path, content(200_000)).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        // The next change shows however coarse the timestamps are.
        file.set_modified(UNIX_EPOCH).unwrap();
        let wire = Recording::default();
        session(
            root.path(),
            config,
            std::slice::from_ref(&wire),
            |mut host, _| {
                host.open(0, 1, "f");
                host.send(0, 1, 0, [range(1, 0, 60_000)]);
                assert!(matches!(host.next(0), Event::Departed { .. }));
                file.write_all_at(&[7; 200_000], 0).unwrap();
                // The first block was read before the change, the second is wanted after it.
                host.send(0, 1, 60_000, [range(1, 60_000, 60_000)]);
                let failed = Event::ReadFailed {
                    send: SendId(1 << 32 | 60_000),
                    flow: FlowId(1),
                    file: FileId(1),
                    offset: 65_536,
                    errno: 116, // ESTALE
                };
                assert_eq!(host.next(0), failed);
            },
        )
        .unwrap();
        assert_eq!(wire.streams()[&1], content(200_000)[..60_000]);
    });
}

#[test]
fn an_idle_session_sleeps_and_wakes_for_each_command() {
    let root = TempDir::new().unwrap();
    let wire = Recording::default();
    let result = session(root.path(), &small_config(), &[wire], |mut host, _| {
        for number in 0..100 {
            host.send(0, 1, number, [Segment::Inline(b"x")]);
            assert!(matches!(host.next(0), Event::Departed { .. }));
        }
    });
    assert_eq!(result.unwrap().sends, 100);
}

#[test]
fn a_session_ends_on_request_even_while_busy() {
    let root = TempDir::new().unwrap();
    let wires = [Recording::default(), Recording::default()];
    let result = session(root.path(), &small_config(), &wires, |mut host, stop| {
        rustix::io::write(stop, &1u64.to_ne_bytes()).unwrap();
        // The host goes on until the NIC stack has hung up.
        for offset in 0.. {
            let header = header(1, offset, Flags::ACK, 1);
            let send = Send {
                id: SendId(offset),
                flow: FlowId(1),
                stream_offset: offset,
                acked_offset: 0,
                issued_us: 0,
                not_before_us: 0,
                tsval_fraction_us: 0,
                follow_bytes: 0,
                mss: MSS,
                header: &header,
                segments: [Segment::Inline(b"x")].into(),
            };
            let channel = &mut host.session.channels[0];
            let _ = channel.send(&Command::Send(send));
            channel.flush();
            while let Ok(Some(_)) = channel.receive() {}
            let mut hangup = [PollFd::new(&host.session.socket, PollFlags::RDHUP)];
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            if poll(&mut hangup, Some(&now)) == Ok(1) {
                break;
            }
        }
    });
    result.unwrap();
}

#[test]
fn workers_and_ports_must_be_as_many() {
    let root = TempDir::new().unwrap();
    let (host_end, nic_end) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let host = thread::spawn(move || host_hello(host_end, 1).map(drop));
    let session = nic_hello(nic_end, 2).unwrap();
    host.join().unwrap().unwrap();
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let port = RecordingPort::new(&Recording::default(), 65_535);
    let ports = vec![WorkerResources::reserve(&small_config(), port).unwrap()];
    let root = RootDir::open(root.path()).unwrap();
    let ready = || Ok(());
    let result = nic::run(
        &small_config(),
        root,
        session,
        ports,
        stop.as_fd(),
        ready,
        None,
    );
    assert!(matches!(
        result,
        Err(RunError::PortCount {
            ports: 1,
            workers: 2
        })
    ));
}

#[test]
fn a_root_that_is_none_is_named() {
    let root = TempDir::new().unwrap();
    fs::write(root.path().join("file"), b"x").unwrap();
    let file = RootDir::open(&root.path().join("file"))
        .unwrap_err()
        .to_string();
    assert!(file.contains("file is not a directory"), "{file}");
    let missing = RootDir::open(&root.path().join("none"))
        .unwrap_err()
        .to_string();
    assert!(missing.contains("none: No such file"), "{missing}");
}

#[test]
fn a_worker_that_sleeps_wakes_up_for_a_paced_send_and_not_too_early() {
    let root = TempDir::new().unwrap();
    let wires = [Recording::default()];
    let result = session(root.path(), &small_config(), &wires, |mut host, _| {
        // Farther away than a worker ever polls: it sleeps, and nothing but time wakes it.
        for (id, delay_us) in [(1, 20_000), (2, 0), (3, 150), (4, 3_000)] {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let issued_us = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
            let not_before_us = issued_us + delay_us;
            let send = Send {
                id: SendId(id),
                flow: FlowId(1),
                stream_offset: id,
                acked_offset: 0,
                issued_us,
                not_before_us,
                tsval_fraction_us: 0,
                follow_bytes: 0,
                mss: MSS,
                header: &header(1, id, Flags::ACK, 1),
                segments: [Segment::Inline(b"x")].into(),
            };
            host.tell(0, &Command::Send(send));
            match host.next(0) {
                Event::Departed {
                    send, departed_us, ..
                } => {
                    assert_eq!(send, SendId(id));
                    assert!(
                        departed_us >= not_before_us,
                        "{departed_us} {not_before_us}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    });
    assert_eq!(result.unwrap().paced, 3);
}

/// RST of a flow that has sent a file of so many bytes.
fn reset_of(packets: &[fakes::recording_port::Packet], file_bytes: usize) -> usize {
    let resets = packets.iter().filter(|it| it.flags().contains(Flags::RST));
    let behind = resets.filter(|it| it.stream_offset() == file_bytes);
    behind.count()
}

#[test]
fn connections_of_a_host_process_that_dies_are_reset_and_those_of_one_that_leaves_are_not() {
    let root = TempDir::new().unwrap();
    fs::write(root.path().join("a"), content(20_000)).unwrap();
    for dies in [true, false] {
        let wires = [Recording::default(), Recording::default()];
        let counters = session(root.path(), &small_config(), &wires, |mut host, _| {
            for worker in [0, 1] {
                host.open(worker, 1, "a");
                host.send(worker, 5, 0, [range(1, 0, 20_000)]);
                assert!(matches!(host.next(worker), Event::Departed { .. }));
            }
            if dies {
                drop(host.session.socket.without_farewell());
            }
        });
        let wanted = usize::from(dies);
        assert_eq!(counters.unwrap().orphans_reset, 2 * wanted as u64);
        for wire in &wires {
            assert_eq!(
                reset_of(&wire.packets(), 20_000),
                3 * wanted,
                "once, and two times more"
            );
        }
    }
}
