//! Files of the stack node, named by path: their bytes never cross the session.

use fakes::content::content;
use rustix::io::Errno;
use socket_channel::{Command, Flags, SocketId};

use crate::nodes::{Faults, Nodes};
use crate::program::Program;

fn open_file(
    nodes: &mut Nodes,
    program: &mut Program,
    path: &'static [u8],
) -> (SocketId, socket_channel::HandleId) {
    let handle = program.handle();
    let opened = program.call(nodes, |request| Command::OpenFile {
        request,
        handle,
        path,
    });
    (opened.unwrap().unwrap(), handle)
}

#[test]
fn ranges_of_files_go_between_bytes_and_are_not_carried() {
    for seed in 1..=3 {
        let faults = Faults {
            loss: 30,
            repeat: 30,
            hold: 30,
        };
        let mut nodes = Nodes::with_faults(seed, faults);
        nodes.world.clients.echoes = false;
        let mut program = nodes.program();
        let (listener, _) = program.listener(&mut nodes, 8000, 16).unwrap();
        let stream = nodes.world.connect(8000);
        let (socket, connection) = program.accept(&mut nodes, listener);
        let (file, file_handle) = open_file(&mut nodes, &mut program, b"/400000");
        nodes.run_until(|_| program.flags(file).has(Flags::FILE_OPEN));
        let meta = program.record(file).file_meta().unwrap().unwrap();
        assert_eq!(meta.size, 400_000);

        assert_eq!(program.write(socket, b"head"), 4);
        let mut queued = 0;
        nodes.run_until(|_| {
            program.hear();
            let record = program.record(socket);
            let len = record.queue_file(meta.size - queued);
            if len > 0 {
                let (mark, at) = record.mark();
                program.send(&Command::SendFile {
                    socket,
                    file,
                    offset: queued,
                    len,
                    mark,
                    at,
                });
                queued += len;
            }
            queued == meta.size
        });
        assert_eq!(program.write(socket, b"tail"), 4);
        // The ranges still go.
        program.close(file_handle);
        program.close(connection);
        nodes.run_until(|nodes| nodes.world.heard(stream).has_finished);
        let file = (0..meta.size).map(|offset| content(meta.size, offset));
        let file: Vec<u8> = file.collect();
        let expected = [b"head", &file[..], b"tail"].concat();
        assert!(
            nodes.world.heard(stream).received == expected,
            "seed {seed}"
        );
        nodes.kill(program);
        nodes.assert_nothing_left();
    }
}

#[test]
fn a_file_that_is_not_there_says_so_and_one_that_was_passed_is_refused() {
    let mut nodes = Nodes::new(1);
    nodes.world.nic.lacks.insert("404".to_owned());
    let mut program = nodes.program();
    let (file, _) = open_file(&mut nodes, &mut program, b"404");
    nodes.run_until(|_| program.flags(file).has(Flags::FAILED));
    let missing = Errno::NOENT.raw_os_error() as u32;
    assert_eq!(program.record(file).take_error(), missing);
    let handle = program.handle();
    let passed = program.call(&mut nodes, |request| Command::OpenPassed {
        request,
        handle,
        file: 1,
    });
    assert_eq!(passed.err(), Some(Errno::OPNOTSUPP.raw_os_error() as u32));
    nodes.kill(program);
    nodes.assert_nothing_left();
}
