//! Programs that have attached, seen from outside, and detached from there.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg,
};
use serde_json::Value;
use socket_channel::attach::{
    ATTACHED_DESCRIPTORS, Attached, MODE_NAMES, MODES_ALL, Reply, Request,
};
use testbed::namespace::isolated;
use testbed::process::run;
use testbed::wait;

use crate::metrics::{ADMIN, awaited, watched};
use crate::support::{SOON, program, serve_with};

/// This process, attached, perhaps once more.
pub(crate) struct Program {
    pub(crate) attached: Attached,
    /// What the segment and the channel are made of.
    pub(crate) descriptors: [OwnedFd; ATTACHED_DESCRIPTORS],
    /// The socket that leads to the broker.
    pub(crate) broker: OwnedFd,
}

impl Program {
    /// An application of its own.
    pub(crate) fn attach(path: &Path) -> Program {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let broker = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&broker, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let packet = Request::Attach { modes: MODES_ALL }.encode();
        rustix::net::send(&broker, &packet, SendFlags::NOSIGNAL).unwrap();
        Program::receive(broker)
    }

    /// Another process of its application.
    pub(crate) fn another(&self) -> Program {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (own, theirs) =
            rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let passed = [theirs.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&passed)));
        let packet = Request::Adopt.encode();
        let packet = [IoSlice::new(&packet)];
        let flags = SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.broker, &packet, &mut ancillary, flags).unwrap();
        Program::receive(own)
    }

    fn receive(broker: OwnedFd) -> Program {
        let mut bytes = [0; 256];
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ATTACHED_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let pieces = &mut [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&broker, pieces, &mut ancillary, flags).unwrap();
        let passed = ancillary.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(passed) => passed.collect(),
            _ => Vec::new(),
        });
        let descriptors: Vec<OwnedFd> = passed.collect();
        match Reply::decode(&bytes[..received.bytes]) {
            Ok(Reply::Attached(attached)) => Program {
                attached,
                descriptors: descriptors.try_into().unwrap(),
                broker,
            },
            other => panic!("{other:?}"),
        }
    }
}

/// What `splitway stat` says of programs.
pub(crate) fn applications() -> Vec<Value> {
    let mut stat = Command::new(program());
    let text = run(stat.args(["stat", "--json", "--summary"])).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    document["applications"].as_array().unwrap().clone()
}

/// `splitway ctl detach` of this process: its exit code, and what it says.
fn detach() -> (Option<i32>, String) {
    let pid = std::process::id().to_string();
    let mut ctl = Command::new(program());
    let output = ctl.args(["ctl", "detach", &pid]).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.code(), said)
}

#[test]
fn a_program_is_shown_from_outside_and_detached_by_its_process() {
    isolated(|site| {
        let path = site.outside().join("sockets");
        let _splitway = watched(&site, &["--sockets", path.to_str().unwrap()]);
        assert!(applications().is_empty());
        let (code, said) = detach();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("is attached"), "{said}");

        let program = Program::attach(&path);
        let (pid, number) = (std::process::id(), program.attached.app.0);
        let shown = applications();
        assert_eq!(shown.len(), 1, "{shown:?}");
        let row = &shown[0];
        let name = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(
            (&row["pid"], &row["application"]),
            (&pid.into(), &number.into())
        );
        assert_eq!(row["name"], name.trim_end());
        assert_eq!((&row["processes"], &row["sockets"]), (&1.into(), &0.into()));
        assert_eq!(row["offloaded_share"], Value::Null);
        assert_eq!(row["is_detached"], false);
        let modes = MODE_NAMES.map(|(name, _)| name);
        assert_eq!(row["modes"], Value::from(modes.to_vec()));
        let text = run(Command::new(crate::support::program()).arg("stat")).unwrap();
        let row = text.lines().find(|line| line.starts_with(name.trim_end()));
        assert!(
            row.is_some_and(|row| row.contains(&pid.to_string())),
            "{text}"
        );
        let attached = "splitway_sockets_processes_attached_total";
        let of_broker = "splitway_broker_attached_total";
        let samples = awaited(&[(attached, 1.0), (of_broker, 1.0)]);
        assert_eq!(
            (samples[attached], samples[of_broker]),
            (1.0, 1.0),
            "{ADMIN}"
        );

        let (code, said) = detach();
        assert_eq!(code, Some(0), "{said}");
        wait::until(SOON, "it is detached", || {
            (applications()[0]["is_detached"] == true).then_some(())
        })
        .unwrap();
        drop(program);
        wait::until(SOON, "nothing is left", || {
            applications().is_empty().then_some(())
        })
        .unwrap();
        Program::attach(&path);
    });
}

#[test]
fn a_server_to_which_no_program_attaches_says_so() {
    isolated(|site| {
        let _splitway = serve_with(&site, &[]);
        let (code, said) = detach();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("without --sockets"), "{said}");
        assert!(applications().is_empty());
    });
}
