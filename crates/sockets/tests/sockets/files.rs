//! Files of the NIC stack in the streams of programs (IO-TCP, Table 3).

use fakes::content::content;
use host::app::CloseReason;
use socket_channel::{Command, Flags, HandleId, SocketId, SocketOption};

use crate::program::{Program, silent_connection, text};
use crate::world::World;

pub(crate) fn bytes_of(file: u64, from: u64, len: u64) -> Vec<u8> {
    (from..from + len)
        .map(|offset| content(file, offset))
        .collect()
}

fn open_file(world: &mut World, program: &mut Program, path: &'static str) -> (SocketId, HandleId) {
    let handle = program.handle();
    let opened = program.call(world, |request| Command::OpenFile {
        request,
        handle,
        path: path.as_bytes(),
    });
    (opened.unwrap().0.unwrap(), handle)
}

/// `offload_write`, as often as it takes.
pub(crate) fn write_file(
    world: &mut World,
    program: &mut Program,
    socket: SocketId,
    file: SocketId,
    mut offset: u64,
    mut len: u64,
) {
    world.run_until(|_| {
        program.hear();
        let record = program.record(socket);
        let queued = record.queue_file(len);
        if queued > 0 {
            let (mark, at) = record.mark();
            program.send(&Command::SendFile {
                socket,
                file,
                offset,
                len: queued,
                mark,
                at,
            });
        }
        offset += queued;
        len -= queued;
        len == 0
    });
}

#[test]
fn ranges_of_files_and_bytes_keep_their_order() {
    for loss in [0, 15] {
        let mut world = World::new();
        world.loss = loss;
        world.clients.echoes = false;
        let mut program = Program::new(&mut world, 1);
        let (listener, _) = program.listener(&mut world, 8000);
        let (big, _) = open_file(&mut world, &mut program, "/3000000");
        let (small, small_handle) = open_file(&mut world, &mut program, "777");
        world.run_until(|_| program.flags(big).has(Flags::FILE_OPEN));
        let meta = program.record(big).file_meta().unwrap().unwrap();
        assert_eq!(meta.size, 3_000_000);
        let stream = world.connect(8000);
        let (socket, _) = program.accept(&mut world, listener);
        let mut expected = Vec::new();
        for round in 0..3 {
            let header = text(500, round);
            program.write_all(&mut world, socket, &header);
            expected.extend(header);
            write_file(&mut world, &mut program, socket, small, 7, 700);
            expected.extend(bytes_of(777, 7, 700));
            let from = u64::from(round) * 1_000;
            write_file(&mut world, &mut program, socket, big, from, 2_500_000);
            expected.extend(bytes_of(3_000_000, from, 2_500_000));
        }
        // What is queued of a closed file still goes.
        write_file(&mut world, &mut program, socket, small, 0, 777);
        expected.extend(bytes_of(777, 0, 777));
        program.close(small_handle);
        program.write_all(&mut world, socket, b"the end");
        expected.extend(b"the end");
        program.shutdown(socket);
        world.run_until(|world| world.heard(stream).has_finished);
        assert!(world.heard(stream).received == expected, "every byte");
        let counters = *world.sockets().counters();
        assert!(counters.sent_bytes < 2_000, "{}", counters.sent_bytes);
        program.exit(&mut world);
        world.assert_nothing_left();
    }
}

#[test]
fn a_cork_is_taken_off_behind_the_ranges_in_front_of_it() {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    let files = ["777", "778"].map(|name| open_file(&mut world, &mut program, name).0);
    for file in files {
        world.run_until(|_| program.flags(file).has(Flags::FILE_OPEN));
    }
    let stream = world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    // Twice by `TCP_CORK`, and twice by `MSG_MORE`.
    for round in 0..4 {
        let has_more = round >= 2;
        let file = files[round / 2];
        let cork = |value| Command::SetOption {
            request: 0,
            socket,
            option: SocketOption::Cork,
            value,
        };
        let before = world.heard(stream).received.len();
        if has_more {
            assert_eq!(program.write_with_more(socket, b"head"), 4);
        } else {
            program.send(&cork(1));
            assert_eq!(program.write(socket, b"head"), 4);
        }
        let (mark, at) = {
            let record = program.record(socket);
            assert_eq!(record.queue_file(700), 700);
            let mark = record.mark();
            record.end_more_with_mark();
            mark
        };
        program.send(&Command::SendFile {
            socket,
            file,
            offset: 7,
            len: 700,
            mark,
            at,
        });
        if !has_more {
            // The NIC stack has not opened the file yet when this is taken.
            program.send(&cork(0));
        }
        let at_us = world.now_us;
        world.run_until(|world| world.heard(stream).received.len() > before);
        let received = world.heard(stream).received.len() - before;
        assert_eq!(received, 704, "round {round}: one packet");
        assert!(world.now_us - at_us < 100_000, "long before a cork lets go");
    }
    program.exit(&mut world);
}

#[test]
fn a_range_may_be_queued_before_the_file_is_known() {
    let (mut world, mut program, listener, stream) = silent_connection();
    let (socket, _) = program.accept(&mut world, listener);
    let (file, handle) = (
        SocketId {
            index: 0,
            generation: 0,
        },
        program.handle(),
    );
    assert_eq!(file.generation, 0, "no socket has this name");
    let (opened, _) = {
        let request = u32::MAX;
        program.send(&Command::OpenFile {
            request,
            handle,
            path: b"50000",
        });
        let mut seen = None;
        world.run_until(|world| {
            seen = world.sockets().applications().next().map(|view| view.files);
            seen == Some(1)
        });
        // Two sockets came before: the listener and the connection.
        (
            SocketId {
                index: 2,
                generation: 1,
            },
            (),
        )
    };
    write_file(&mut world, &mut program, socket, opened, 0, 50_000);
    program.close(handle);
    program.shutdown(socket);
    world.run_until(|world| world.heard(stream).has_finished);
    assert!(world.heard(stream).received == bytes_of(50_000, 0, 50_000));
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_file_that_is_not_there_fails_its_socket_and_streams_that_were_promised_it() {
    let mut world = World::new();
    world.clients.echoes = false;
    world.nic.lacks.insert("404".to_owned());
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    let (file, _) = open_file(&mut world, &mut program, "404");
    world.run_until(|_| program.flags(file).has(Flags::FAILED));
    assert_eq!(program.record(file).take_error(), 2, "ENOENT");
    let stream = world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    write_file(&mut world, &mut program, socket, file, 0, 10);
    world.run_until(|world| world.heard(stream).closed.is_some());
    assert_eq!(world.heard(stream).closed, Some(CloseReason::Reset));
    world.run_until(|_| program.flags(socket).has(Flags::FAILED | Flags::CLOSED));
    assert_eq!(program.record(socket).take_error(), 2);

    // Beyond the end of a file there is nothing to send.
    let (file, _) = open_file(&mut world, &mut program, "1000");
    let stream = world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    write_file(&mut world, &mut program, socket, file, 500, 501);
    world.run_until(|world| world.heard(stream).closed.is_some());
    assert_eq!(world.heard(stream).closed, Some(CloseReason::Reset));
    assert_eq!(program.record(socket).take_error(), 5, "EIO");
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn file_bytes_are_bounded_by_the_window_of_the_client() {
    let mut world = World::new();
    world.clients.echoes = false;
    world.clients.is_stalled = true;
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    let (file, _) = open_file(&mut world, &mut program, "100000000");
    let stream = world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    let mut offset = 0;
    for _ in 0..100_000 {
        program.hear();
        let record = program.record(socket);
        let len = record.queue_file(100_000_000 - offset);
        if len > 0 {
            let (mark, at) = record.mark();
            program.send(&Command::SendFile {
                socket,
                file,
                offset,
                len,
                mark,
                at,
            });
        }
        offset += len;
        world.step();
    }
    assert!(offset >= 256 << 10, "{offset}");
    assert!(
        offset < 8 << 20,
        "{offset} bytes queued for a client that takes none"
    );
    world.client_aborts(stream);
    world.run_until(|_| program.flags(socket).has(Flags::CLOSED));
    assert_eq!(program.record(socket).take_error(), 104, "ECONNRESET");
    program.exit(&mut world);
    world.assert_nothing_left();
}

/// A server keeps its files open for longer than its connections.
#[test]
fn a_file_is_held_by_connections_that_are_there_alone() {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    let (file, file_handle) = open_file(&mut world, &mut program, "20000");
    for _ in 0..3 {
        let stream = world.connect(8000);
        let (socket, handle) = program.accept(&mut world, listener);
        write_file(&mut world, &mut program, socket, file, 0, 20_000);
        program.close(handle);
        world.run_until(|world| world.heard(stream).received.len() == 20_000);
    }
    // What it finds of its holders is checked as it goes.
    program.close(file_handle);
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn what_waits_for_more_leaves_when_no_more_may_come() {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    let stream = world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    let lowat = Command::SetOption {
        request: 0,
        socket,
        option: SocketOption::NotSentLowWaterBytes,
        value: 1000,
    };
    program.send(&lowat);
    world.step();
    // Two full segments, and a part of one that a cork holds back.
    let bytes = vec![7; 4000];
    assert_eq!(program.write_with_more(socket, &bytes), 4000);
    world.step();
    // TCP has more than enough: it takes these when the others have left.
    assert_eq!(program.write_with_more(socket, &bytes), 4000);
    let at_us = world.now_us;
    world.run_until(|world| world.heard(stream).received.len() >= 4000);
    assert!(world.now_us - at_us < 100_000, "long before a cork lets go");
}
