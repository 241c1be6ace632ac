//! Files that applications pass, and NIC processes played by the tests.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use rustix::fs::Mode;

use super::*;
use crate::ipc::messages::{BrokerToNic, KnownApplication, NicToBroker};

/// A NIC process.
struct Nic(OwnedFd);

impl Nic {
    /// Adds a NIC process whose socket has little room.
    fn join(between: &mut Between) -> Nic {
        let (nic, door) = seqpacket::pair().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&door, 1).unwrap();
        between.service.add_nic(door);
        Nic(nic)
    }

    /// Receives the next message, with the inode of a file.
    fn hears(&self) -> Option<(BrokerToNic, Option<u64>)> {
        let heard = fd_passing::receive_many("the broker", &self.0, &mut [0; 128]);
        let (message, descriptors) = heard.unwrap()?;
        let descriptor = descriptors.into_iter().next();
        Some((message, descriptor.map(|it| inode(&File::from(it)))))
    }
}

fn inode(file: &File) -> u64 {
    file.metadata().unwrap().ino()
}

fn pass(client: &OwnedFd, file: &File) {
    let request = Request::PassFile.encode();
    send(client, &request, &[file.as_fd()]).unwrap();
}

/// Passes a file; returns the reply.
fn passed(between: &mut Between, client: &OwnedFd, file: &File) -> Result<u32, Errno> {
    pass(client, file);
    between.settle();
    match reply(client) {
        Some((Reply::Passed { file }, _)) => {
            file.map_err(|errno| Errno::from_raw_os_error(errno.cast_signed()))
        }
        other => panic!("{other:?}"),
    }
}

fn file() -> File {
    tempfile::tempfile().unwrap()
}

#[test]
fn a_nic_process_has_a_file_before_its_application_knows_the_number() {
    let mut between = Between::new(settings());
    let (client, process) = between.attached();
    let nic = Nic::join(&mut between);
    assert_eq!(nic.hears(), Some((BrokerToNic::Complete, None)));
    let sent = file();
    pass(&client, &sent);
    between.settle();
    let (message, inode_there) = nic.hears().unwrap();
    let Some((Reply::Passed { file: Ok(number) }, _)) = reply(&client) else {
        panic!("no number");
    };
    let name = AppId(process.app).passed(number);
    assert_eq!(message, BrokerToNic::File { file: name });
    assert_eq!(inode_there, Some(inode(&sent)));

    let app = process.app;
    between.host_says(HostToBroker::Released { app, file: number });
    between.settle();
    let closed = BrokerToNic::Close { file: name };
    assert_eq!(nic.hears(), Some((closed, None)));
    let late = Nic::join(&mut between);
    assert_eq!(late.hears(), Some((BrokerToNic::Complete, None)));
}

#[test]
fn a_nic_process_that_begins_later_gets_what_is_kept() {
    let mut between = Between::new(settings());
    let (client, process) = between.attached();
    let first = Nic::join(&mut between);
    let files = [file(), file()];
    let numbers = [0, 1].map(|it| passed(&mut between, &client, &files[it]).unwrap());
    // Neither the application nor its descriptors are needed.
    let inodes = files.map(|file| inode(&file));
    drop((client, first));
    let nic = Nic::join(&mut between);
    let mut heard: Vec<_> = std::iter::from_fn(|| {
        between.settle();
        nic.hears()
    })
    .collect();
    assert_eq!(heard.pop(), Some((BrokerToNic::Complete, None)));
    let mut kept = [0, 1].map(|it| {
        let file = AppId(process.app).passed(numbers[it]);
        (BrokerToNic::File { file }, Some(inodes[it]))
    });
    kept.sort_by_key(|(_, inode)| *inode);
    heard.sort_by_key(|(_, inode)| *inode);
    assert_eq!(heard, kept);

    between.host_says(HostToBroker::Detached { app: process.app });
    between.settle();
    let all = BrokerToNic::CloseAll { app: process.app };
    assert_eq!(nic.hears(), Some((all, None)));
    let late = Nic::join(&mut between);
    assert_eq!(late.hears(), Some((BrokerToNic::Complete, None)));
}

#[test]
fn what_cannot_be_passed_is_refused_and_the_process_stays() {
    let mut between = Between::new(settings());
    let (client, process) = between.attached();
    let refused = passed(&mut between, &client, &file());
    assert_eq!(refused, Err(Errno::OPNOTSUPP), "no NIC process");
    let _nic = Nic::join(&mut between);
    let path = tempfile::NamedTempFile::new().unwrap();
    for flags in [OFlags::WRONLY, OFlags::PATH] {
        let file = rustix::fs::open(path.path(), flags, Mode::empty()).unwrap();
        let refused = passed(&mut between, &client, &file.into());
        assert_eq!(refused, Err(Errno::BADF), "{flags:?}");
    }
    // The kernel had no room for the descriptor.
    ask(&client, Request::PassFile);
    between.settle();
    let busy = Errno::BUSY.raw_os_error().cast_unsigned();
    let Some((Reply::Passed { file: Err(errno) }, _)) = reply(&client) else {
        panic!("no answer");
    };
    assert_eq!(errno, busy);
    let numbers: Vec<u32> = (0..LIMITS.files_max)
        .map(|_| passed(&mut between, &client, &file()).unwrap())
        .collect();
    let refused = passed(&mut between, &client, &file());
    assert_eq!(refused, Err(Errno::MFILE));
    let app = process.app;
    let file_number = numbers[0];
    between.host_says(HostToBroker::Released {
        app,
        file: file_number,
    });
    assert!(passed(&mut between, &client, &file()).is_ok());
}

#[test]
fn files_of_an_earlier_broker_count_and_come_back_from_nic_processes() {
    let mut between = Between::uninformed(settings());
    let (app, kept, lost, released) = (7, 1, 2, 3);
    let application = KnownApplication {
        app,
        uid: 0,
        modes: 0,
        next_handle: 0,
        handles: 0,
        key: Key::new([7; Key::BYTES]),
    };
    between.host_says(HostToBroker::Application(application));
    for file in [kept, lost, released] {
        between.host_says(HostToBroker::File { app, file });
    }
    let old = Nic::join(&mut between);
    between.host_says(HostToBroker::Known);
    between.host_says(HostToBroker::Released {
        app,
        file: released,
    });
    between.settle();
    assert_eq!(between.service.files_of(app), 2);
    // A NIC process that starts meanwhile has no file, and waits for the answers of others.
    let new = Nic::join(&mut between);
    let name = |file| AppId(app).passed(file);
    for file in asked(&mut between, &new) {
        let answer = NicToBroker::File { file };
        fd_passing::pass(&new.0, &answer, None).unwrap();
    }
    between.settle();
    assert_eq!(new.hears(), None);
    let there = file();
    let wanted = asked(&mut between, &old);
    assert_eq!(wanted, [kept, lost, released].map(name));
    let inode_there = inode(&there);
    let there = OwnedFd::from(there);
    for (file, descriptor) in [(kept, Some(&there)), (lost, None), (released, Some(&there))] {
        let answer = NicToBroker::File { file: name(file) };
        fd_passing::pass(&old.0, &answer, descriptor).unwrap();
        // An unrequested file is ignored.
        let unasked = NicToBroker::File { file: name(77) };
        fd_passing::pass(&old.0, &unasked, Some(&there)).unwrap();
    }
    between.settle();
    assert_eq!(
        between.service.files_of(app),
        2,
        "the lost one is in use yet"
    );
    let heard = new.hears();
    let passed = BrokerToNic::File { file: name(kept) };
    assert_eq!(heard, Some((passed, Some(inode_there))));
    assert_eq!(new.hears(), Some((BrokerToNic::Complete, None)));
    // The file is kept for NIC processes that start later, which may have the other.
    let late = Nic::join(&mut between);
    assert_eq!(late.hears(), Some((passed, Some(inode_there))));
    assert_eq!(asked(&mut between, &late), [name(lost)]);
    drop(late);
    between.settle();
    between.host_says(HostToBroker::Released { app, file: lost });
    between.host_says(HostToBroker::Detached { app });
    between.settle();
    assert_eq!(between.service.files_of(app), 0);
}

/// Returns the files that a NIC process is asked to return.
fn asked(between: &mut Between, nic: &Nic) -> Vec<u64> {
    let mut asked = Vec::new();
    loop {
        between.settle();
        match nic.hears() {
            Some((BrokerToNic::Return { file }, _)) => asked.push(file),
            Some(_) => {}
            None => return asked,
        }
    }
}

#[test]
fn a_nic_process_that_takes_nothing_delays_files_and_nothing_else() {
    let mut between = Between::new(settings());
    let (client, process) = between.attached();
    let (other, _) = between.attached();
    let nic = Nic::join(&mut between);
    let mut last = Ok(0);
    while last.is_ok() {
        pass(&client, &file());
        between.settle();
        let answered = reply(&client);
        let Some((Reply::Passed { file }, _)) = answered else {
            break;
        };
        last = file;
        between.host_says(HostToBroker::Released {
            app: process.app,
            file: file.unwrap(),
        });
        between.settle();
    }
    assert!(last.is_ok(), "{last:?}");
    ask(&other, more_handles(1));
    between.settle();
    assert!(matches!(reply(&other), Some((Reply::Handles { .. }, _))));
    while nic.hears().is_some() {
        between.settle();
    }
    assert!(matches!(
        reply(&client),
        Some((Reply::Passed { file: Ok(_) }, _))
    ));
}

#[test]
fn descriptors_of_processes_that_have_not_attached_are_not_taken() {
    let mut between = Between::new(settings());
    let client = between.connect();
    let own = file();
    let attach = Request::Attach { modes: 0 }.encode();
    send(&client, &attach, &[own.as_fd()]).unwrap();
    // The kernel has dropped the descriptor; the request stands.
    assert!(between.attaching().0.application.is_some());
}
