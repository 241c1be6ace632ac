//! sendfile(2) of files that the program has opened.

use std::fs::File;
use std::io::{IoSlice, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sha2::{Digest, Sha256};
use splitway::client::{Client, SendFlags};

use crate::support::{BLOCKING, FILE, Fake, LOOPED, finish, pair, pattern, receive_all};

mod support;

/// A file without a name, open for reading.
fn file(content: &[u8]) -> File {
    read_only(&written(content))
}

/// One that is open for writing as well.
fn written(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file
}

fn read_only(file: &File) -> File {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

/// Waits until a change of a file would show in its timestamps.
fn settle(file: &File) {
    let changed = file.metadata().unwrap().modified().unwrap();
    while changed.elapsed().unwrap() < Duration::from_millis(40) {
        std::thread::yield_now();
    }
}

/// Sends a range, as often as it takes.
fn send_range(client: &Client, to: &OwnedFd, file: &File, from: u64, len: usize) {
    let mut sent = 0;
    while sent < len {
        let at = from + sent as u64;
        let queued = client.send_open_file(to.as_fd(), file.as_fd(), at, len - sent);
        let queued = queued.unwrap();
        assert!(queued > 0, "it ends before {at}");
        sent += queued;
    }
}

fn count(fake: &Fake, command: &str) -> usize {
    let world = fake.world();
    world.seen.iter().filter(|seen| *seen == command).count()
}

fn is_same(received: &[u8], expected: &[u8]) {
    assert_eq!(received.len(), expected.len());
    assert_eq!(Sha256::digest(received), Sha256::digest(expected));
}

#[test]
fn to_a_peer_on_the_same_stack_a_file_goes_as_bytes() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, LOOPED);
    let content = pattern(5, 300_000);
    let file = file(&content);
    settle(&file);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            send_range(&client, &accepted, &file, 0, content.len());
            finish(&client, &accepted);
        });
        is_same(&receive_all(&client, &opened), &content);
        sender.join().unwrap();
    });
    for passed in ["OpenPassed", "SendFile"] {
        assert_eq!(count(&fake, passed), 0, "{passed}");
    }
}

#[test]
fn an_open_file_is_passed_once_and_never_read_here() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let content = pattern(1, 700_000);
    let mut file = file(&content);
    file.seek(SeekFrom::Start(123)).unwrap();
    settle(&file);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let pieces = &[IoSlice::new(b"head")];
            let sent = client.send(accepted.as_fd(), pieces, SendFlags::default());
            assert_eq!(sent, Ok(4));
            send_range(&client, &accepted, &file, 0, 700_000);
            send_range(&client, &accepted, &file, 699_000, 1000);
            let end = client.send_open_file(accepted.as_fd(), file.as_fd(), 700_000, 5);
            assert_eq!(end, Ok(0));
            finish(&client, &accepted);
        });
        let received = receive_all(&client, &opened);
        is_same(
            &received,
            &[b"head", &content[..], &content[699_000..]].concat(),
        );
    });
    assert_eq!(count(&fake, "OpenPassed"), 1);
    assert!(count(&fake, "SendFile") > 1);
    assert_eq!(file.stream_position().unwrap(), 123, "it is the program's");
}

#[test]
fn another_version_of_a_file_is_passed_again() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let mut writer = written(b"first");
    let file = read_only(&writer);
    settle(&file);
    send_range(&client, &accepted, &file, 0, 5);
    writer.write_all(b" and more").unwrap();
    send_range(&client, &accepted, &file, 0, 14);
    // Too soon after the write for the timestamps to show it.
    writer.write_all_at(b"F", 0).unwrap();
    send_range(&client, &accepted, &file, 0, 5);
    finish(&client, &accepted);
    let received = receive_all(&client, &opened);
    is_same(&received, b"firstfirst and moreFirst");
    assert_eq!(count(&fake, "OpenPassed"), 3);
}

#[test]
fn a_file_that_its_program_may_write_to_is_read_here() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let mut growing = written(b"first");
    settle(&growing);
    send_range(&client, &accepted, &growing, 0, 5);
    growing.write_all(b" and more").unwrap();
    send_range(&client, &accepted, &growing, 5, 9);
    finish(&client, &accepted);
    is_same(&receive_all(&client, &opened), b"first and more");
    assert_eq!(count(&fake, "OpenPassed"), 0);
}

#[test]
fn what_cannot_be_passed_is_read_here() {
    for (takes, opens) in [
        (Err(Errno::OPNOTSUPP), Ok(())),
        (Err(Errno::MFILE), Ok(())),
        (Ok(()), Err(Errno::OPNOTSUPP)),
    ] {
        let fake = Fake::start();
        (fake.world().takes_files, fake.world().opens_passed) = (takes, opens);
        let client = fake.attach();
        let (opened, accepted) = pair(&client, 80);
        let content = pattern(2, 300_001);
        let file = file(&content);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send_range(&client, &accepted, &file, 0, 300_001);
                send_range(&client, &accepted, &file, 300_000, 1);
                let end = client.send_open_file(accepted.as_fd(), file.as_fd(), 300_001, 5);
                assert_eq!(end, Ok(0));
                finish(&client, &accepted);
            });
            let received = receive_all(&client, &opened);
            is_same(&received, &[&content[..], &content[300_000..]].concat());
        });
        assert_eq!(count(&fake, "SendFile"), 0);
        assert!(count(&fake, "OpenPassed") <= 1, "it is not tried each time");
    }
}

#[test]
fn without_waiting_as_much_goes_as_there_is_room_for() {
    for takes in [Ok(()), Err(Errno::OPNOTSUPP)] {
        let fake = Fake::start();
        fake.world().takes_files = takes;
        let client = fake.attach();
        let (opened, accepted) = pair(&client, 80);
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&accepted, flags).unwrap();
        let content = pattern(3, 900_000);
        let file = file(&content);
        let mut sent = 0;
        let last = loop {
            let rest = content.len() - sent;
            let queued = client.send_open_file(accepted.as_fd(), file.as_fd(), sent as u64, rest);
            match queued {
                Ok(queued) => sent += queued,
                Err(errno) => break errno,
            }
        };
        assert_eq!(last, Errno::AGAIN);
        assert!(sent > 0 && sent < content.len(), "{sent}");
        finish(&client, &accepted);
        is_same(&receive_all(&client, &opened), &content[..sent]);
    }
}

#[test]
fn each_mistake_has_an_error_of_its_own() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let readable = file(b"content");
    let send =
        |to: &OwnedFd, file: &dyn AsFd| client.send_open_file(to.as_fd(), file.as_fd(), 0, 7);
    let kernels: OwnedFd = file(b"").into();
    assert_eq!(send(&kernels, &readable), Err(Errno::NOTSOCK));
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(send(&accepted, &pipe), Err(Errno::SPIPE));
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&path, b"content").unwrap();
    fake.world().takes_files = Err(Errno::BADF);
    let write_only = File::options().write(true).open(&path).unwrap();
    assert_eq!(send(&accepted, &write_only), Err(Errno::BADF));
    // A file of the NIC stack goes out as one.
    let own = client.open_file(FILE.as_bytes(), BLOCKING).unwrap();
    assert_eq!(send(&accepted, &own), Ok(7));
    finish(&client, &accepted);
    assert_eq!(send(&accepted, &readable), Err(Errno::PIPE));
    client.close(opened).unwrap();
}

#[test]
fn a_process_keeps_few_files_and_none_is_lost() {
    // It keeps an eighth of these.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(1200);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let before = fake.world().sockets();
    let (mut expected, mut files) = (Vec::new(), Vec::new());
    for number in 0..200 {
        let content = pattern(number, 100);
        let file = file(&content);
        files.push(file);
        expected.extend(content);
    }
    settle(&files[199]);
    for file in &files {
        send_range(&client, &accepted, file, 0, 100);
    }
    finish(&client, &accepted);
    is_same(&receive_all(&client, &opened), &expected);
    let kept = fake.world().sockets() - before;
    assert!(kept <= 151, "{kept} files are open");
}
