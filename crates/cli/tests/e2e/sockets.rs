//! The socket at which other programs attach, and the broker behind it.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal};
use socket_channel::attach::{MODES_ALL, Reply, Request};
use testbed::http::download;
use testbed::namespace::isolated;
use testbed::process::signal;
use testbed::procfs::descriptors;
use testbed::site::Site;
use testbed::splitway::Splitway;
use testbed::wait;

use crate::config::{configuration, serve_configured};
use crate::isolation::{PROGRAM, SOCKET, call_within, status};
use crate::support::{FAMILIES, SOON, process, program, serve_with};

fn place(site: &Site) -> PathBuf {
    site.outside().join("sockets")
}

/// A server at whose socket programs attach.
fn serve(site: &Site) -> Splitway {
    serve_with(site, &["--sockets", place(site).to_str().unwrap()])
}

fn broker(splitway: &Splitway) -> Option<Pid> {
    process(splitway, "splitway-broker")
}

fn socket() -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap()
}

/// Connects, and sends a packet; the answer, whose descriptors are closed, if one comes.
fn ask(path: &Path, packet: &[u8]) -> Option<Reply> {
    let socket = socket();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).ok()?;
    rustix::net::send(&socket, packet, SendFlags::NOSIGNAL).ok()?;
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    poll(&mut fds, Timespec::try_from(SOON).ok().as_ref()).unwrap();
    let mut bytes = [0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let pieces = &mut [std::io::IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let count = recvmsg(&socket, pieces, &mut ancillary, flags).ok()?.bytes;
    (count > 0).then(|| Reply::decode(&bytes[..count]).unwrap())
}

pub(crate) fn attach(path: &Path) -> Option<Reply> {
    ask(path, &Request::Attach { modes: MODES_ALL }.encode())
}

#[test]
fn every_user_may_connect_to_the_socket_which_goes_with_the_server() {
    isolated(|site| {
        let (file, path) = (site.file("file", 100_000).unwrap(), place(&site));
        // As a server that was killed leaves it.
        let dead = socket();
        rustix::net::bind(&dead, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(dead);
        let mut splitway = serve(&site);
        let found = fs::metadata(&path).unwrap();
        assert!(found.file_type().is_socket());
        assert_eq!(found.permissions().mode() & 0o777, 0o666);
        assert!(attach(&path).is_some());
        download(FAMILIES[0], &file).unwrap();
        splitway
            .line(|line| line.contains("programs attach at") && line.contains("broker process"))
            .unwrap();

        let mut second = Command::new(program());
        second.arg("serve").arg(site.root());
        let second = second.arg("--sockets").arg(&path).output().unwrap();
        assert_eq!(second.status.code(), Some(2));
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        let pid = splitway.supervisor().as_raw_nonzero();
        assert!(
            said.contains(&format!("in use by another splitway (process {pid})")),
            "{said}"
        );
        assert!(attach(&path).is_some(), "it is still the first server's");

        assert!(splitway.end_with(Signal::TERM).unwrap().success());
        assert!(!path.exists());
        splitway.line(|line| line.trim() == "broker").unwrap();
    });
}

#[test]
fn the_broker_has_no_rights_and_one_that_tries_is_replaced() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let mut splitway = serve(&site);
        let first = broker(&splitway).unwrap();
        assert_eq!(status(first, "Seccomp").as_deref(), Some("2"));
        assert_eq!(status(first, "NoNewPrivs").as_deref(), Some("1"));
        let none = Some("0000000000000000");
        assert_eq!(status(first, "CapEff").as_deref(), none);
        assert_eq!(status(first, "CapPrm").as_deref(), none);
        // They are installed one after the other.
        let filters = status(first, "Seccomp_filters");
        let mut last = first;
        for call in [SOCKET, PROGRAM] {
            assert_eq!(call_within(last, call), None, "{call:?}");
            let is_confined = |pid: &Pid| status(*pid, "Seccomp_filters") == filters;
            let another = || broker(&splitway).filter(|pid| *pid != last && is_confined(pid));
            last = wait::until(SOON, "another broker", another).unwrap();
        }
        splitway
            .line(|line| line.contains("broker") && line.contains("may not make"))
            .unwrap();
        download(FAMILIES[1], &file).unwrap();
    });
}

#[test]
fn a_broker_that_is_killed_is_followed_by_another_at_the_same_socket() {
    isolated(|site| {
        let (file, path) = (site.file("file", 100_000).unwrap(), place(&site));
        let mut splitway = serve(&site);
        for _ in 0..5 {
            let before = broker(&splitway).unwrap();
            signal(before, Signal::KILL).unwrap();
            let is_another = || broker(&splitway).filter(|&pid| pid != before);
            wait::until(SOON, "another broker", is_another).unwrap();
            // Those who connect meanwhile wait for it.
            wait::until(SOON, "an answer", || attach(&path)).unwrap();
            download(FAMILIES[0], &file).unwrap();
        }
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
    });
}

#[test]
fn a_thousand_programs_leave_no_descriptor_behind() {
    isolated(|site| {
        let path = place(&site);
        let splitway = serve(&site);
        assert!(attach(&path).is_some());
        let (broker, host) = (broker(&splitway).unwrap(), splitway.host());
        let open = || (descriptors(broker).unwrap(), descriptors(host).unwrap());
        let most_before = open();
        for number in 0..1000 {
            // Nonsense between them.
            if number % 3 == 0 {
                assert_eq!(ask(&path, b"nonsense"), None);
            }
            assert!(attach(&path).is_some(), "{number}");
        }
        wait::until(SOON, "as few descriptors as before", || {
            let (broker, host) = open();
            (broker <= most_before.0 && host <= most_before.1).then_some(())
        })
        .unwrap();
    });
}

/// An answer, with its descriptors.
fn answer(socket: &OwnedFd) -> Option<(Reply, Vec<OwnedFd>)> {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut fds, Timespec::try_from(SOON).ok().as_ref()).unwrap();
    let mut bytes = [0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let pieces = &mut [std::io::IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let count = recvmsg(socket, pieces, &mut ancillary, flags).ok()?.bytes;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    Some((Reply::decode(bytes.get(..count)?).ok()?, descriptors))
}

#[test]
fn a_program_gets_handles_and_so_do_its_children() {
    isolated(|site| {
        let path = place(&site);
        let splitway = serve(&site);
        let before = broker(&splitway);
        let parent = socket();
        rustix::net::connect(&parent, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let attach = Request::Attach { modes: MODES_ALL }.encode();
        rustix::net::send(&parent, &attach, SendFlags::NOSIGNAL).unwrap();
        let (first, descriptors) = answer(&parent).unwrap();
        let Reply::Attached(first) = first else {
            panic!("{first:?}");
        };
        assert_eq!(descriptors.len(), 4);
        let (child, theirs) = netsetup::seqpacket::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let passed = [theirs.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&passed)));
        let adopt = Request::Adopt.encode();
        let pieces = [std::io::IoSlice::new(&adopt)];
        sendmsg(&parent, &pieces, &mut ancillary, SendFlags::NOSIGNAL).unwrap();
        drop(theirs);
        let (second, _) = answer(&child).unwrap();
        assert!(
            matches!(second, Reply::Attached(second) if second.app == first.app
                && second.channel != first.channel),
            "{second:?}"
        );
        for (process, number) in [(&parent, 0), (&child, 64), (&parent, 128)] {
            let more = Request::MoreHandles {
                count: 64,
                nonblocking: false,
            }
            .encode();
            rustix::net::send(process, &more, SendFlags::NOSIGNAL).unwrap();
            let (reply, handles) = answer(process).unwrap();
            let is_right = matches!(
                reply,
                Reply::Handles { first, count: 64, errno: 0 } if first.0 == number
            );
            assert!(is_right && handles.len() == 64, "{reply:?}");
        }
        assert_eq!(broker(&splitway), before, "it is still the same");
    });
}

#[test]
fn who_may_attach_is_said_in_the_configuration() {
    isolated(|site| {
        let path = place(&site);
        let serve = |rule: &str| {
            let sockets = format!("[sockets]\npath = {path:?}\n[[sockets.allow]]\n{rule}\n");
            serve_configured(&configuration(&site, &sockets))
        };
        let refused = |errno: Errno| {
            let errno = errno.raw_os_error().unsigned_abs();
            Some(Reply::Refused { errno })
        };
        let splitway = serve("user = '77'");
        assert_eq!(attach(&path), refused(Errno::ACCESS));
        drop(splitway);
        let _splitway = serve("user = 'root'");
        let answer = attach(&path);
        assert!(answer.is_some() && answer != refused(Errno::ACCESS));
    });
}
