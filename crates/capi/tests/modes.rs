//! What crosses the channel in each mode. That calls do the same in all of them is for the other
//! tests, which are run in each.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;

use splitway::client::{Client, Modes, OptionValue, ReceiveFlags, SendFlags};

use crate::support::{BLOCKING, Fake, connected, listener};

mod support;

/// Serves a connection whose first request is there already: the commands that this takes.
fn commands_of_a_request(modes: Modes) -> Vec<String> {
    let fake = Fake::start();
    let client = fake.attach_with(modes);
    let listener = listener(&client, 80, BLOCKING);
    let opened = connected(&client, 80);
    send(&client, &opened, b"request");
    let own = client.local_address(opened.as_fd()).unwrap();
    let begun = seen_to_a_look(&fake, 0).len();

    let (accepted, peer) = client.accept(listener.as_fd(), BLOCKING).unwrap();
    assert_eq!(peer, own);
    assert_eq!(client.peer_address(accepted.as_fd()), Ok(own));
    let to = client.peer_address(opened.as_fd());
    assert_eq!(client.local_address(accepted.as_fd()), to);
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    let off = client.option(accepted.as_fd(), level, name).unwrap();
    assert_eq!(off, OptionValue::Number(0));
    client
        .set_option(accepted.as_fd(), level, name, &off)
        .unwrap();
    let mut bytes = [0; 100];
    let mut received = 0;
    while received < 7 {
        let pieces = &mut [IoSliceMut::new(&mut bytes[received..])];
        let flags = ReceiveFlags::default();
        received += client.receive(accepted.as_fd(), pieces, flags).unwrap();
    }
    assert_eq!(&bytes[..7], b"request");
    send(&client, &accepted, b"answer");

    seen_to_a_look(&fake, begun)
}

/// The commands from one on, once they end in a look at what was written. Not all modes wait for
/// that.
fn seen_to_a_look(fake: &Fake, begun: usize) -> Vec<String> {
    loop {
        let seen = fake.world().seen[begun..].to_vec();
        let is_look = |name: &String| name == "Kick" || name == "Look";
        if seen.last().is_some_and(is_look) {
            return seen;
        }
        std::thread::yield_now();
    }
}

fn send(client: &Client, fd: impl AsFd, bytes: &[u8]) {
    let pieces = &[IoSlice::new(bytes)];
    let sent = client.send(fd.as_fd(), pieces, SendFlags::default());
    assert_eq!(sent, Ok(bytes.len()));
}

#[test]
fn each_mode_saves_what_it_says() {
    let without = |mode: Modes| Modes::from_bits(Modes::default().bits() & !mode.bits());
    let rows: [(Modes, &[&str]); 5] = [
        (Modes::default(), &["Accept", "Kick"]),
        (without(Modes::ASYNC_SEND), &["Accept", "Look"]),
        (
            without(Modes::EAGER_RECEIVE),
            &["Accept", "Receive", "Kick"],
        ),
        (without(Modes::EAGER_ACCEPT), &["AcceptNext", "Kick"]),
        (
            without(Modes::SETUP_WITH_ACCEPT),
            &[
                "Accept",
                "GetAddress",
                "GetAddress",
                "GetOption",
                "SetOption",
                "Kick",
            ],
        ),
    ];
    for (modes, commands) in rows {
        assert_eq!(commands_of_a_request(modes), commands, "with {modes}");
    }
}

#[test]
fn with_split_tcp_nothing_is_left_to_be_done() {
    let fake = Fake::start();
    let client = fake.attach_with(Modes::default().with(Modes::SPLIT_TCP));
    let (opened, accepted) = support::pair(&client, 80);
    let begun = fake.world().seen.len();
    send(&client, &opened, b"request");
    assert_eq!(client.unread_bytes(accepted.as_fd()), Ok(7));
    support::finish(&client, &opened);
    // It was carried out before the call returned.
    assert_eq!(fake.world().seen[begun..], ["Look", "Shutdown", "Look"]);
}
