//! What people are shown of each application.

use fakes::content::content;
use socket_channel::Command;
use sockets::ApplicationView;

use crate::program::{Program, text};
use crate::world::World;

fn view(world: &World, program: &Program) -> ApplicationView {
    let mut views = world.sockets().applications();
    views.find(|view| view.app == program.app).unwrap()
}

#[test]
fn each_application_is_shown_with_what_it_holds_and_what_it_has_moved() {
    const FILE_BYTES: u64 = 60_000;
    let mut world = World::new();
    world.clients.echoes = false;
    let mut first = Program::new(&mut world, 1);
    let mut second = Program::new(&mut world, 2);
    let none = view(&world, &first);
    assert_eq!((none.pid, none.uid, none.processes), (1001, 1000, 1));
    assert_eq!((none.sockets, none.connections, none.fifo_bytes), (0, 0, 0));
    assert_eq!(none.offloaded_share(), None);

    // The first sends a header and a file; the second takes what its client sends.
    let (listener, _) = first.listener(&mut world, 8000);
    let (file, _) = {
        let handle = first.handle();
        let opened = first.call(&mut world, |request| Command::OpenFile {
            request,
            handle,
            path: b"60000",
        });
        (opened.unwrap().0.unwrap(), handle)
    };
    let stream = world.connect(8000);
    let (socket, _) = first.accept(&mut world, listener);
    let header = text(20_000, 1);
    first.write_all(&mut world, socket, &header);
    let record = first.record(socket);
    assert_eq!(record.queue_file(FILE_BYTES), FILE_BYTES);
    let (mark, at) = record.mark();
    first.send(&Command::SendFile {
        socket,
        file,
        offset: 0,
        len: FILE_BYTES,
        mark,
        at,
    });
    let body: Vec<u8> = (0..FILE_BYTES).map(|at| content(FILE_BYTES, at)).collect();
    let whole = [header, body].concat();
    world.run_until(|world| world.heard(stream).received.len() == whole.len());
    assert!(world.heard(stream).received == whole, "every byte");

    let (listener, _) = second.listener(&mut world, 8001);
    let stream = world.connect(8001);
    let (peer, _) = second.accept(&mut world, listener);
    world.client_sends(stream, &text(3_000, 2), true);
    assert_eq!(second.read_to_end(&mut world, peer).len(), 3_000);

    let view_of_first = view(&world, &first);
    let ApplicationView {
        sockets,
        listeners,
        connections,
        files,
        ..
    } = view_of_first;
    assert_eq!((sockets, listeners, connections, files), (3, 1, 1, 1));
    assert!(view_of_first.fifo_bytes > 0);
    let moved = |view: &ApplicationView| (view.sent_bytes, view.file_bytes, view.received_bytes);
    assert_eq!(moved(&view_of_first), (20_000, FILE_BYTES, 0));
    assert_eq!(view_of_first.offloaded_share(), Some(0.75));
    assert_eq!(moved(&view(&world, &second)), (0, 0, 3_000));
    let later = world.sockets().applications_from(second.app);
    assert_eq!(later.map(|view| view.app).collect::<Vec<_>>(), [second.app]);

    // One that is detached is there until its process has ended.
    let pid = view_of_first.pid;
    assert_eq!(world.sockets().application_of(pid), Some(first.app));
    assert!(world.detach(first.app));
    world.run_until(|world| view(world, &first).is_detached);
    assert_eq!(world.sockets().application_of(pid), None);
    assert_eq!(moved(&view(&world, &first)), (20_000, FILE_BYTES, 0));
    first.exit(&mut world);
    second.exit(&mut world);
    world.assert_nothing_left();
}
