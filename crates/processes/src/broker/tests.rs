//! Applications and a host process played by the tests, over real sockets. The tests control the
//! time.

mod passed;
mod successor;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use netsetup::listener::Listener;
use netsetup::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, recvmsg, sendmsg,
};
use socket_channel::attach::{Attached, HANDLES_MAX, Key, MODES_ALL, Reply, Request};
use socket_channel::channel::{AppEnd, HostEnd};
use socket_channel::{AppId, ChannelId, Command, Layout, Segment, SocketId};

use super::applications::ApplicationLimits;
use super::rules::Rule;
use super::service::{ATTACH_WAIT, STRANGERS_PER_USER_MAX, Service};
use super::{BrokerSettings, service};
use crate::closer::Closer;
use crate::ipc::fd_passing;
use crate::ipc::messages::{BrokerToHost, HostToBroker, NewProcess, SocketLimits};

const LIMITS: SocketLimits = SocketLimits {
    sockets_max: 16,
    segment_bytes: 64 << 10,
    listeners_max: 2,
    bindings_max: 5,
    files_max: 3,
    messages_per_turn: 4,
    source_share_percent: 80,
    turn_us_max: 200,
};

/// Descriptors that applications may hold.
const DESCRIPTORS: u32 = 20_000;

fn settings() -> BrokerSettings {
    BrokerSettings {
        first_number: u32::MAX - 1,
        applications: ApplicationLimits {
            applications_max: 8,
            applications_per_user_max: 4,
            processes_max: 3,
        },
        limits: LIMITS,
        rules: Vec::new(),
    }
}

/// A broker between an application and the host process, without a predecessor unless the host
/// process reports one.
struct Between {
    service: Service,
    listener: Listener,
    host: OwnedFd,
    now: Instant,
    _directory: tempfile::TempDir,
}

impl Between {
    fn new(settings: BrokerSettings) -> Self {
        let between = Self::uninformed(settings);
        between.host_says(HostToBroker::Known);
        between
    }

    /// Starts a broker to which the host process has sent nothing yet.
    fn uninformed(settings: BrokerSettings) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sockets");
        let listener = Listener::bind_for_all("sockets", &path, "--sockets").unwrap();
        let socket = listener.as_fd().try_clone_to_owned().unwrap();
        let (host, to_host) = seqpacket::pair().unwrap();
        Self {
            service: service(
                settings,
                DESCRIPTORS,
                socket,
                to_host,
                Closer::start().unwrap(),
            )
            .unwrap(),
            listener,
            host,
            now: Instant::now(),
            _directory: directory,
        }
    }

    fn connect(&self) -> OwnedFd {
        let address = SocketAddrUnix::new(self.listener.path()).unwrap();
        seqpacket::connect(&address).unwrap()
    }

    /// Runs all pending work of the broker, and advances the time a little.
    fn settle(&mut self) {
        for _ in 0..8 {
            self.service.turn(self.now).unwrap();
        }
        self.now += Duration::from_millis(10);
    }

    fn host_hears(&self) -> Option<(BrokerToHost, Vec<OwnedFd>)> {
        fd_passing::receive_many("the broker", &self.host, &mut [0; 16 << 10]).unwrap()
    }

    fn host_says(&self, message: HostToBroker) {
        fd_passing::pass(&self.host, &message, None).unwrap();
    }

    /// Returns the host process's message about a process that asks to attach.
    fn attaching(&mut self) -> (NewProcess, Vec<OwnedFd>) {
        self.settle();
        match self.host_hears() {
            Some((BrokerToHost::Attach(process), descriptors)) => (process, descriptors),
            other => panic!("{other:?}"),
        }
    }

    /// Accepts a process for the host process; returns the reply at its socket.
    fn agree(&mut self, process: &NewProcess, socket: &OwnedFd) -> (Attached, Vec<OwnedFd>) {
        let (app, channel) = (process.app, process.channel);
        self.host_says(HostToBroker::Attached { app, channel });
        self.settle();
        match reply(socket) {
            Some((Reply::Attached(attached), descriptors)) => (attached, descriptors),
            other => panic!("{other:?}"),
        }
    }

    /// Attaches a process.
    fn attached(&mut self) -> (OwnedFd, NewProcess) {
        let client = self.connect();
        ask(&client, Request::Attach { modes: MODES_ALL });
        let (process, _) = self.attaching();
        self.agree(&process, &client);
        (client, process)
    }

    /// Returns the errno with which a process is refused; its connection must be closed then.
    fn refused(&mut self, client: &OwnedFd) -> Errno {
        self.settle();
        let Some((Reply::Refused { errno }, _)) = reply(client) else {
            panic!("it is not refused");
        };
        assert!(is_cut_off(client));
        Errno::from_raw_os_error(errno.cast_signed())
    }
}

/// Sends a packet with descriptors.
fn send(socket: &OwnedFd, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(packet)], &mut ancillary, flags)?;
    Ok(())
}

fn ask(socket: &OwnedFd, request: Request) {
    send(socket, &request.encode(), &[]).unwrap();
}

/// A packet, and its descriptors.
type Packet = (Vec<u8>, Vec<OwnedFd>);

/// Receives a packet of the broker, if any; `Err` after the last.
fn packet(socket: &OwnedFd) -> Result<Option<Packet>, Errno> {
    let mut bytes = [0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDLES_MAX as usize))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let pieces = &mut [IoSliceMut::new(&mut bytes)];
    let count = match recvmsg(socket, pieces, &mut ancillary, flags) {
        Ok(received) if received.bytes == 0 => return Err(Errno::PIPE),
        Ok(received) => received.bytes,
        Err(Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    Ok(Some((bytes[..count].to_vec(), descriptors)))
}

fn more_handles(count: u32) -> Request {
    Request::MoreHandles {
        count,
        nonblocking: false,
    }
}

fn reply(socket: &OwnedFd) -> Option<(Reply, Vec<OwnedFd>)> {
    let (bytes, descriptors) = packet(socket).unwrap()?;
    let reply = Reply::decode(&bytes).unwrap();
    assert_eq!(reply.descriptors(), descriptors.len());
    Some((reply, descriptors))
}

fn is_cut_off(socket: &OwnedFd) -> bool {
    packet(socket).is_err()
}

fn is_hung_up(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    fds[0].revents().contains(PollFlags::HUP)
}

#[test]
fn a_process_that_attaches_shares_memory_with_the_host_process() {
    let mut between = Between::new(settings());
    let client = between.connect();
    ask(&client, Request::Attach { modes: 1 << 20 | 5 });
    let (process, host_ends) = between.attaching();
    assert_eq!(process.pid, Some(std::process::id().cast_signed()));
    assert_eq!(process.uid, rustix::process::geteuid().as_raw());
    assert_eq!((process.modes, host_ends.len()), (5, 4));
    let application = process.application.clone().unwrap();
    assert_eq!(application.limits, LIMITS);
    assert!(application.rights.may_listen(8000));
    assert_ne!(application.key, Key::new([0; Key::BYTES]));
    assert!(reply(&client).is_none(), "the host process has not agreed");

    let (attached, own_ends) = between.agree(&process, &client);
    assert_eq!(
        (attached.app.0, attached.channel.0),
        (process.app, process.channel)
    );
    assert_eq!((attached.limits, attached.modes), (LIMITS.of_segment(), 5));
    assert_eq!(attached.key, application.key);
    let other = between.attached().1.application.unwrap();
    assert_ne!(other.key, attached.key);
    let layout = Layout::of(attached.limits).unwrap();
    let mut host_ends = host_ends.into_iter();
    let mut own_ends = own_ends.into_iter();
    let host_segment = Segment::host_from_file(host_ends.next().unwrap(), layout).unwrap();
    let own_segment = Segment::app_from_file(own_ends.next().unwrap(), layout).unwrap();
    let word = &own_segment.words()[5000];
    word.store(7, std::sync::atomic::Ordering::Relaxed);
    let word = &host_segment.words()[5000];
    assert_eq!(word.load(std::sync::atomic::Ordering::Relaxed), 7);
    let mut next = || (host_ends.next().unwrap(), own_ends.next().unwrap());
    let (memory, host_bells, own_bells) = (next(), next(), next());
    let mut host = HostEnd::from_files(memory.0, host_bells.0, own_bells.0).unwrap();
    let mut own = AppEnd::from_files(memory.1, own_bells.1, host_bells.1).unwrap();
    assert!(host.prepare_sleep());
    let socket = SocketId {
        index: 1,
        generation: 2,
    };
    own.send(&Command::Kick { socket }).unwrap();
    own.flush();
    let wake = host.wake_fd().unwrap();
    let mut fds = [PollFd::from_borrowed_fd(wake, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(1));
    assert_eq!(host.receive(), Ok(Some(Command::Kick { socket })));
}

#[test]
fn a_process_of_another_version_learns_that_it_is_one() {
    let mut between = Between::new(settings());
    let client = between.connect();
    let mut packet = Request::Attach { modes: 0 }.encode();
    packet[8] += 1;
    send(&client, &packet, &[]).unwrap();
    assert_eq!(between.refused(&client), Errno::PROTONOSUPPORT);
    assert!(between.host_hears().is_none());
}

#[test]
fn a_user_whom_no_rule_is_about_is_refused() {
    let uid = rustix::process::geteuid().as_raw();
    let rule = |uid| Rule {
        uid: Some(uid),
        gid: None,
        listen: Some(vec![config::Text("80".parse().unwrap())]),
        addresses: Vec::new(),
        connect: false,
    };
    for (rules, is_let_in) in [(vec![rule(uid + 1)], false), (vec![rule(uid)], true)] {
        let mut between = Between::new(BrokerSettings {
            rules,
            ..settings()
        });
        let client = between.connect();
        ask(&client, Request::Attach { modes: 0 });
        if is_let_in {
            let rights = between.attaching().0.application.unwrap().rights;
            assert!(rights.may_listen(80) && !rights.may_listen(8080) && !rights.connect);
        } else {
            assert_eq!(between.refused(&client), Errno::ACCESS);
            assert!(between.host_hears().is_none());
        }
    }
}

#[test]
fn what_the_host_process_refuses_is_refused_and_forgotten() {
    let mut between = Between::new(settings());
    for _ in 0..20 {
        let client = between.connect();
        ask(&client, Request::Attach { modes: 0 });
        let (process, _) = between.attaching();
        between.host_says(HostToBroker::Refused {
            app: process.app,
            channel: process.channel,
            errno: Errno::NOSYS.raw_os_error().cast_unsigned(),
        });
        assert_eq!(between.refused(&client), Errno::NOSYS);
        assert_eq!(
            (between.service.applications(), between.service.clients()),
            (0, 0)
        );
    }
    assert!(between.host_hears().is_none(), "it knows");
}

#[test]
fn handles_are_numbered_and_live_as_long_as_the_applications_end() {
    let mut between = Between::new(settings());
    let (client, process) = between.attached();
    for (count, first) in [(HANDLES_MAX, 0), (1, 64), (2, 65)] {
        ask(&client, more_handles(count));
        between.settle();
        let (message, host_ends) = between.host_hears().unwrap();
        let app = process.app;
        let channel = process.channel;
        let expected = BrokerToHost::Handles {
            app,
            channel,
            first,
        };
        assert_eq!(message, expected);
        let (
            Reply::Handles {
                first: told,
                count: given,
                errno: 0,
            },
            own_ends,
        ) = reply(&client).unwrap()
        else {
            panic!("no handles");
        };
        assert_eq!(
            (told.0, given, host_ends.len()),
            (first, count, count as usize)
        );
        // Nothing can be written.
        let written = rustix::net::send(&own_ends[0], b"x", SendFlags::NOSIGNAL);
        assert_eq!(written, Err(Errno::PIPE));
        let copies: Vec<_> = own_ends
            .iter()
            .map(|end| end.try_clone().unwrap())
            .collect();
        for (number, copy) in copies.into_iter().enumerate() {
            assert!(!is_hung_up(&host_ends[number]));
            drop(copy);
        }
        for (end, host) in own_ends.into_iter().zip(&host_ends) {
            assert!(!is_hung_up(host));
            drop(end);
            assert!(is_hung_up(host));
        }
    }
}

#[test]
fn an_application_gets_handles_again_for_those_that_were_closed() {
    let mut between = Between::new(settings());
    let (client, process) = between.attached();
    let mut given = 0;
    let why = loop {
        ask(&client, more_handles(HANDLES_MAX));
        between.settle();
        let Some((Reply::Handles { count, errno, .. }, _)) = reply(&client) else {
            panic!("no handles");
        };
        given += count;
        if count < HANDLES_MAX {
            break Errno::from_raw_os_error(errno.cast_signed());
        }
    };
    assert_eq!(why, Errno::MFILE);
    assert!(given >= LIMITS.sockets_max + 3 * HANDLES_MAX, "{given}");
    assert_eq!(
        between.service.counters().handles_refused,
        u64::from(HANDLES_MAX - given % HANDLES_MAX)
    );
    let (app, count) = (process.app, 2 * HANDLES_MAX);
    between.host_says(HostToBroker::HandlesClosed { app, count });
    ask(&client, more_handles(HANDLES_MAX));
    between.settle();
    let Some((Reply::Handles { count, errno, .. }, _)) = reply(&client) else {
        panic!("no handles");
    };
    assert_eq!((count, errno), (HANDLES_MAX, 0));
    between.host_says(HostToBroker::Detached { app });
    between.settle();
    assert_eq!(between.service.counters().descriptors_held, 0);
}

#[test]
fn handles_block_unless_the_application_wants_others() {
    let mut between = Between::new(settings());
    let (client, _process) = between.attached();
    for nonblocking in [true, false] {
        let count = 2;
        ask(&client, Request::MoreHandles { count, nonblocking });
        between.settle();
        let (_, own_ends) = reply(&client).unwrap();
        assert_eq!(own_ends.len(), 2);
        for end in own_ends {
            let flags = rustix::fs::fcntl_getfl(&end).unwrap();
            assert_eq!(flags.contains(OFlags::NONBLOCK), nonblocking);
            let flags = rustix::io::fcntl_getfd(&end).unwrap();
            assert!(flags.contains(FdFlags::CLOEXEC));
        }
    }
}

#[test]
fn a_child_is_adopted_with_a_channel_of_its_own() {
    let mut between = Between::new(settings());
    let (client, first) = between.attached();
    let mut children = Vec::new();
    for _ in 0..2 {
        let (child, theirs) = seqpacket::pair().unwrap();
        send(&client, &Request::Adopt.encode(), &[theirs.as_fd()]).unwrap();
        drop(theirs);
        let (process, host_ends) = between.attaching();
        assert_eq!(
            (process.app, process.application.is_none()),
            (first.app, true)
        );
        assert_eq!(host_ends.len(), 3);
        let (attached, own_ends) = between.agree(&process, &child);
        assert_eq!((attached.app.0, own_ends.len()), (first.app, 4));
        children.push((child, process.channel));
    }
    assert!(children[0].1 != children[1].1 && children[0].1 != first.channel);
    // The limit is reached.
    let (child, theirs) = seqpacket::pair().unwrap();
    send(&client, &Request::Adopt.encode(), &[theirs.as_fd()]).unwrap();
    drop(theirs);
    assert_eq!(between.refused(&child), Errno::USERS);
    // The child outlives its parent, and may have children.
    drop(client);
    between.settle();
    let gone = |channel| BrokerToHost::Gone {
        app: first.app,
        channel,
    };
    assert_eq!(between.host_hears().unwrap().0, gone(first.channel));
    let (grandchild, theirs) = seqpacket::pair().unwrap();
    send(&children[1].0, &Request::Adopt.encode(), &[theirs.as_fd()]).unwrap();
    let (process, _) = between.attaching();
    between.agree(&process, &grandchild);
}

#[test]
fn what_is_passed_for_a_socket_and_is_none_does_no_harm() {
    let mut between = Between::new(settings());
    let (client, process) = between.attached();
    let file = std::fs::File::open("/dev/null").unwrap();
    let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let listener = between.listener.as_fd().try_clone_to_owned().unwrap();
    for passed in [file.as_fd(), stream.as_fd()] {
        send(&client, &Request::Adopt.encode(), &[passed]).unwrap();
        between.settle();
        assert!(between.host_hears().is_none());
    }
    // An unconnected socket of the right kind is detected when it is answered.
    send(&client, &Request::Adopt.encode(), &[listener.as_fd()]).unwrap();
    let (adopted, _) = between.attaching();
    between.host_says(HostToBroker::Attached {
        app: adopted.app,
        channel: adopted.channel,
    });
    between.settle();
    let gone = between.host_hears().unwrap().0;
    assert!(matches!(gone, BrokerToHost::Gone { channel, .. } if channel == adopted.channel));
    ask(&client, more_handles(1));
    between.settle();
    assert!(matches!(
        reply(&client),
        Some((Reply::Handles { count: 1, .. }, _))
    ));
    assert_eq!(process.app, adopted.app);
}

#[test]
fn an_application_counts_until_the_host_process_has_nothing_of_it() {
    let mut between = Between::new(settings());
    let attached: Vec<_> = (0..4).map(|_| between.attached()).collect();
    let refuse = |between: &mut Between| {
        let client = between.connect();
        ask(&client, Request::Attach { modes: 0 });
        assert_eq!(between.refused(&client), Errno::USERS);
    };
    refuse(&mut between);
    let mut attached = attached.into_iter();
    let (client, process) = attached.next().unwrap();
    drop(client);
    between.settle();
    assert_eq!(between.service.clients(), 3);
    refuse(&mut between);
    let app = process.app;
    between.host_says(HostToBroker::Detached { app });
    between.settle();
    while between.host_hears().is_some() {}
    let (_client, process) = between.attached();
    assert_ne!(process.app, app);
}

#[test]
fn an_application_that_the_host_process_detaches_is_cut_off() {
    let mut between = Between::new(settings());
    let (client, process) = between.attached();
    let (other, _) = between.attached();
    between.host_says(HostToBroker::Detached { app: process.app });
    between.settle();
    assert!(is_cut_off(&client) && !is_cut_off(&other));
    assert!(between.host_hears().is_none(), "it knows");
    assert_eq!(between.service.applications(), 1);
}

#[test]
fn a_thousand_processes_leave_nothing_behind() {
    let mut between = Between::new(settings());
    let mut before = None;
    for _ in 0..1000 {
        let (client, process) = between.attached();
        assert_ne!(before.replace(process.app), Some(process.app));
        drop(client);
        between.settle();
        let gone = BrokerToHost::Gone {
            app: process.app,
            channel: process.channel,
        };
        assert_eq!(between.host_hears().unwrap().0, gone);
        between.host_says(HostToBroker::Detached { app: process.app });
        between.settle();
        assert_eq!(
            (between.service.applications(), between.service.clients()),
            (0, 0)
        );
    }
    assert_eq!(between.service.deadline(), None);
}

#[test]
fn a_process_that_is_silent_is_cut_off_and_one_that_has_attached_is_not() {
    let mut between = Between::new(settings());
    let silent = between.connect();
    let (attached, _) = between.attached();
    between.now += ATTACH_WAIT - Duration::from_millis(100);
    between.settle();
    assert!(!is_cut_off(&silent));
    assert!(between.service.deadline().is_some());
    between.now += Duration::from_millis(100);
    between.settle();
    assert!(is_cut_off(&silent) && !is_cut_off(&attached));
    assert_eq!(between.service.deadline(), None);
}

#[test]
fn of_a_user_only_some_may_be_silent() {
    let mut between = Between::new(settings());
    let silent: Vec<_> = (0..STRANGERS_PER_USER_MAX)
        .map(|_| between.connect())
        .collect();
    for _ in 0..4 {
        between.settle();
    }
    let late = between.connect();
    assert_eq!(between.refused(&late), Errno::AGAIN);
    drop(silent);
    between.settle();
    between.attached();
}

#[test]
fn a_process_that_does_not_read_its_answers_is_not_given_more_and_others_are() {
    let mut between = Between::new(settings());
    let (flood, flooding) = between.attached();
    let (other, _) = between.attached();
    let request = more_handles(HANDLES_MAX).encode();
    let mut asked = 0;
    while send(&flood, &request, &[]).is_ok() {
        asked += 1;
    }
    assert!(asked > 100, "{asked}");
    for _ in 0..20 {
        between.settle();
    }
    let mut given = 0;
    while let Some((message, ends)) = between.host_hears() {
        assert!(matches!(message, BrokerToHost::Handles { app, .. } if app == flooding.app));
        given += ends.len();
    }
    assert!(given <= 4 * HANDLES_MAX as usize, "{given} wait to be read");
    ask(&other, more_handles(1));
    between.settle();
    assert!(matches!(
        reply(&other),
        Some((Reply::Handles { count: 1, .. }, _))
    ));
    // All requested handles arrive as it reads.
    let mut answered = 0;
    while answered < asked {
        answered += usize::from(reply(&flood).is_some());
        between.settle();
        while between.host_hears().is_some() {}
    }
}

#[test]
fn a_user_whose_processes_attach_too_often_waits() {
    let mut between = Between::new(settings());
    let before = between.now;
    let mut refused = 0;
    // Without time passing, only a burst is available.
    let waiting = loop {
        let client = between.connect();
        ask(&client, Request::Attach { modes: 0 });
        for _ in 0..4 {
            between.service.turn(before).unwrap();
        }
        let Some((BrokerToHost::Attach(process), _)) = between.host_hears() else {
            assert!(reply(&client).is_none() && between.service.deadline().is_some());
            break client;
        };
        between.host_says(HostToBroker::Refused {
            app: process.app,
            channel: process.channel,
            errno: 1,
        });
        refused += 1;
    };
    assert_eq!(refused, 256);
    between.now += Duration::from_millis(10);
    let (process, _) = between.attaching();
    between.agree(&process, &waiting);
}

#[test]
fn nothing_is_lost_while_the_host_process_does_not_listen() {
    let mut between = Between::new(settings());
    rustix::net::sockopt::set_socket_send_buffer_size(between.service.host(), 1).unwrap();
    let (client, process) = between.attached();
    let (other, others) = between.attached();
    for _ in 0..20 {
        ask(&client, more_handles(1));
    }
    let mut own = 0;
    for _ in 0..20 {
        between.settle();
        own += usize::from(reply(&client).is_some());
    }
    assert!(own < 20, "the host process has heard of {own}");
    drop(other);
    between.settle();
    let (mut heard, mut gone) = (0, 0);
    while own < 20 || gone == 0 {
        match between.host_hears() {
            Some((BrokerToHost::Handles { app, first, .. }, ends)) => {
                assert_eq!((app, first, ends.len()), (process.app, heard, 1));
                heard += 1;
            }
            Some((BrokerToHost::Gone { app, .. }, _)) => {
                assert_eq!(app, others.app);
                gone += 1;
            }
            Some((BrokerToHost::Attach(_) | BrokerToHost::Reattach { .. }, _)) => {
                panic!("none attaches")
            }
            None => {}
        }
        between.settle();
        own += usize::from(reply(&client).is_some());
    }
    assert_eq!(gone, 1);
}

#[test]
fn what_is_asked_for_at_the_wrong_time_cuts_off() {
    let mut between = Between::new(settings());
    for request in [more_handles(1), Request::Attach { modes: 0 }] {
        let client = if let Request::Attach { .. } = request {
            between.attached().0
        } else {
            between.connect()
        };
        ask(&client, request);
        between.settle();
        assert!(is_cut_off(&client));
        while between.host_hears().is_some() {}
    }
    // A descriptor where none belongs.
    let (client, _) = between.attached();
    let packet = more_handles(1).encode();
    send(&client, &packet, &[client.as_fd()]).unwrap();
    between.settle();
    assert!(is_cut_off(&client));
}

/// Xorshift, from a seed that is printed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn nonsense_does_no_harm() {
    let seed = std::env::var("SPLITWAY_TEST_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("SPLITWAY_TEST_SEED={seed}");
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut between = Between::new(settings());
    let (good, _) = between.attached();
    for _ in 0..500 {
        let client = between.connect();
        for _ in 0..random.next() % 4 {
            let (app, channel) = (AppId(random.next() as u32 % 4), ChannelId(1));
            let key = Key::new([random.next() as u8 % 2; Key::BYTES]);
            let mut packet = match random.next() % 5 {
                0 => Request::Attach { modes: 0 }.encode(),
                1 => Request::Adopt.encode(),
                2 => Request::Reattach { app, channel, key }.encode(),
                3 => Request::Join { app, key }.encode(),
                _ => more_handles(64).encode(),
            };
            for _ in 0..random.next() % 3 {
                let at = random.next() as usize % packet.len();
                packet[at] = random.next() as u8;
            }
            packet.resize(random.next() as usize % 80 + 1, 0);
            let passed = [client.as_fd(), good.as_fd(), between.host.as_fd()];
            let passed = &passed[..random.next() as usize % 4];
            let _ = send(&client, &packet, passed);
        }
        between.settle();
        while let Some((message, _)) = between.host_hears() {
            if let BrokerToHost::Attach(NewProcess { app, channel, .. }) = message {
                between.host_says(HostToBroker::Refused {
                    app,
                    channel,
                    errno: random.next() as u32,
                });
            }
        }
    }
    between.settle();
    assert_eq!(between.service.clients(), 1);
    ask(&good, more_handles(1));
    between.settle();
    assert!(matches!(
        reply(&good),
        Some((Reply::Handles { count: 1, .. }, _))
    ));
}

#[test]
fn it_serves_until_the_host_process_is_gone() {
    let Between {
        mut service,
        host,
        listener,
        _directory,
        ..
    } = Between::new(settings());
    let (control, _supervisor) = seqpacket::pair().unwrap();
    let (stop, _stopping) = seqpacket::pair().unwrap();
    let serving = std::thread::spawn(move || {
        super::serve(&mut service, &control, stop.as_fd()).map(|()| service.counters())
    });
    let client = seqpacket::connect(&SocketAddrUnix::new(listener.path()).unwrap());
    let client = client.unwrap();
    ask(&client, Request::Attach { modes: 0 });
    let readable = |socket: &OwnedFd| {
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        poll(&mut fds, None).unwrap();
    };
    readable(&host);
    let buffer = &mut [0; 16 << 10];
    let heard = fd_passing::receive_many("the broker", &host, buffer).unwrap();
    let Some((BrokerToHost::Attach(process), _)) = heard else {
        panic!("{heard:?}");
    };
    let answer = HostToBroker::Attached {
        app: process.app,
        channel: process.channel,
    };
    fd_passing::pass(&host, &answer, None).unwrap();
    readable(&client);
    assert!(matches!(reply(&client), Some((Reply::Attached(_), _))));
    drop(host);
    let counters = serving.join().unwrap().unwrap();
    assert_eq!((counters.attached, counters.refused), (1, 0));
    assert!(is_cut_off(&client));
}
