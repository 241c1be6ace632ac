//! Messages and packets as bytes: what is encoded decodes to the same, all else is refused.
#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use proptest::prelude::*;
use socket_channel::attach::{Attached, BadPacket, HANDLES_MAX, Key, Reply, Request, VERSION};
use socket_channel::message::{
    BindFlags, COMMAND_BYTES_MAX, EVENT_BYTES_MAX, Info, Malformed, PATH_BYTES_MAX,
};
use socket_channel::{
    AppId, ChannelId, Command, Event, Family, HandleId, How, Limits, Side, SocketId, SocketOption,
};
use zerocopy::FromBytes;

fn socket() -> impl Strategy<Value = SocketId> + Clone {
    (any::<u32>(), 1..=u32::MAX).prop_map(|(index, generation)| SocketId { index, generation })
}

fn address() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>(), any::<u32>()).prop_map(|(ip, port, scope)| match ip {
        IpAddr::V4(_) => (ip, port).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
    })
}

fn one_of<T: Copy + Debug>(all: &'static [T]) -> impl Strategy<Value = T> + Clone {
    prop::sample::select(all)
}

fn handle() -> impl Strategy<Value = HandleId> {
    any::<u32>().prop_map(HandleId)
}

fn flags() -> impl Strategy<Value = BindFlags> {
    let all = [
        BindFlags::REUSE_ADDR,
        BindFlags::REUSE_PORT,
        BindFlags::V6_ONLY,
    ];
    any::<[bool; 3]>().prop_map(move |set| {
        let set = all.into_iter().zip(set).filter(|(_, is_set)| *is_set);
        set.fold(BindFlags::NONE, |flags, (flag, _)| flags.with(flag))
    })
}

fn asked() -> impl Strategy<Value = Command<'static>> {
    let request = any::<u32>();
    let option = (request, socket(), one_of(SocketOption::ALL), any::<u64>());
    prop_oneof![
        (request, handle(), one_of(Family::ALL)).prop_map(|(request, handle, family)| {
            Command::Open {
                request,
                handle,
                family,
            }
        }),
        (request, socket(), address(), flags()).prop_map(|(request, socket, address, flags)| {
            Command::Bind {
                request,
                socket,
                address,
                flags,
            }
        }),
        (request, socket(), any::<u32>()).prop_map(|(request, socket, backlog)| {
            Command::Listen {
                request,
                socket,
                backlog,
            }
        }),
        (request, socket(), address()).prop_map(|(request, socket, address)| {
            Command::Connect {
                request,
                socket,
                address,
            }
        }),
        option.clone().prop_map(|(request, socket, option, value)| {
            Command::SetOption {
                request,
                socket,
                option,
                value,
            }
        }),
        option.prop_map(|(request, socket, option, _)| {
            Command::GetOption {
                request,
                socket,
                option,
            }
        }),
        (request, socket()).prop_map(|(request, socket)| Command::GetInfo { request, socket }),
        (request, socket()).prop_map(|(request, socket)| Command::Disconnect { request, socket }),
        (request, handle()).prop_map(|(request, handle)| {
            Command::OpenFile {
                request,
                handle,
                path: b"",
            }
        }),
        (request, handle(), any::<u32>()).prop_map(|(request, handle, file)| {
            Command::OpenPassed {
                request,
                handle,
                file,
            }
        }),
    ]
}

/// Commands for what is held.
fn held() -> impl Strategy<Value = Command<'static>> {
    prop_oneof![
        (any::<u32>(), socket()).prop_map(|(request, socket)| Command::Look { request, socket }),
        (any::<u32>(), socket(), any::<u64>()).prop_map(|(request, socket, bytes)| {
            Command::Receive {
                request,
                socket,
                bytes,
            }
        }),
        (any::<u32>(), socket(), any::<u64>()).prop_map(|(request, socket, bytes)| {
            Command::Room {
                request,
                socket,
                bytes,
            }
        }),
        (any::<u32>(), socket(), handle()).prop_map(|(request, socket, handle)| {
            Command::AcceptNext {
                request,
                socket,
                handle,
            }
        }),
        (any::<u32>(), socket(), handle()).prop_map(|(request, socket, handle)| {
            Command::Share {
                request,
                socket,
                handle,
            }
        }),
        (any::<u32>(), handle()).prop_map(|(request, handle)| Command::LookUp { request, handle }),
        (any::<[u32; 3]>(), socket(), socket()).prop_map(
            |([request, idle_ms, life_ms], first, second)| Command::Splice {
                request,
                first,
                second,
                idle_ms,
                life_ms,
            }
        ),
        (any::<u32>(), socket())
            .prop_map(|(request, socket)| Command::Unsplice { request, socket }),
        (any::<u32>(), socket(), one_of(Side::ALL)).prop_map(|(request, socket, side)| {
            Command::GetAddress {
                request,
                socket,
                side,
            }
        }),
    ]
}

fn unasked() -> impl Strategy<Value = Command<'static>> {
    let file = (socket(), socket(), any::<u32>(), any::<[u64; 3]>());
    prop_oneof![
        (socket(), handle()).prop_map(|(socket, handle)| Command::Accept { socket, handle }),
        socket().prop_map(|socket| Command::Kick { socket }),
        (socket(), one_of(How::ALL), any::<u32>(), any::<u64>()).prop_map(
            |(socket, how, mark, at)| Command::Shutdown {
                socket,
                how,
                mark,
                at,
            }
        ),
        handle().prop_map(|handle| Command::Close { handle }),
        handle().prop_map(|handle| Command::Reuse { handle }),
        file.prop_map(|(socket, file, mark, [offset, len, at])| {
            Command::SendFile {
                socket,
                file,
                offset,
                len,
                mark,
                at,
            }
        }),
    ]
}

/// A command that keeps its path beside it.
fn command() -> impl Strategy<Value = (Command<'static>, Vec<u8>)> {
    let path = prop::collection::vec(any::<u8>(), 0..40);
    (prop_oneof![asked(), held(), unasked()], path)
}

/// The command with its path, if it has one.
fn with_path<'a>(command: Command<'static>, path: &'a [u8]) -> Command<'a> {
    match command {
        Command::OpenFile {
            request, handle, ..
        } => Command::OpenFile {
            request,
            handle,
            path,
        },
        other => other,
    }
}

fn encoded(encode: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut message = Vec::new();
    encode(&mut message);
    message
}

fn event() -> impl Strategy<Value = Event> {
    let info = any::<[u8; size_of::<Info>()]>();
    let info = info.prop_map(|bytes| Info::read_from_bytes(&bytes).unwrap());
    prop_oneof![
        (
            any::<u32>(),
            any::<u32>(),
            prop::option::of(socket()),
            any::<u64>()
        )
            .prop_map(|(request, errno, socket, value)| Event::Answer {
                request,
                errno,
                socket,
                value
            }),
        socket().prop_map(|socket| Event::Ready { socket }),
        Just(Event::ScanAll),
        (any::<u32>(), info).prop_map(|(request, info)| Event::Info { request, info }),
    ]
}

proptest! {
    #[test]
    fn a_command_decodes_to_itself((command, path) in command()) {
        let command = with_path(command, &path);
        let message = encoded(|message| command.encode(message));
        prop_assert!(message.len() <= COMMAND_BYTES_MAX);
        let has_path = matches!(command, Command::OpenFile { .. });
        prop_assert!(has_path || message.len() <= 64);
        prop_assert_eq!(Command::decode(&message), Ok(command));
        let cut = &message[..message.len() - 1];
        prop_assert_eq!(Command::decode(cut), Err(Malformed));
        let longer = [&message[..], &[0]].concat();
        prop_assert_eq!(Command::decode(&longer), Err(Malformed));
        prop_assert_eq!(Event::decode(&message), Err(Malformed));
    }

    #[test]
    fn an_event_decodes_to_itself(event in event()) {
        let message = encoded(|message| event.encode(message));
        prop_assert!(message.len() <= EVENT_BYTES_MAX);
        prop_assert_eq!(Event::decode(&message), Ok(event));
        prop_assert_eq!(Event::decode(&message[..message.len() - 1]), Err(Malformed));
        prop_assert_eq!(Command::decode(&message), Err(Malformed));
    }

    /// What decodes encodes to the same bytes, also if some are changed.
    #[test]
    fn any_bytes_are_a_message_or_malformed(
        (command, path) in command(),
        patches in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        noise in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut message = encoded(|message| with_path(command, &path).encode(message));
        for (place, byte) in patches {
            let place = place.index(message.len());
            message[place] = byte;
        }
        for message in [message, noise] {
            if let Ok(command) = Command::decode(&message) {
                prop_assert_eq!(&encoded(|bytes| command.encode(bytes)), &message);
            }
            if let Ok(event) = Event::decode(&message) {
                prop_assert_eq!(&encoded(|bytes| event.encode(bytes)), &message);
            }
            if let Ok(request) = Request::decode(&message) {
                prop_assert_eq!(&request.encode(), &message);
            }
            if let Ok(reply) = Reply::decode(&message) {
                prop_assert_eq!(&reply.encode(), &message);
            }
        }
    }
}

#[test]
fn unknown_kinds_and_reserved_bytes_are_malformed() {
    let socket = SocketId {
        index: 3,
        generation: 9,
    };
    let kick = encoded(|message| Command::Kick { socket }.encode(message));
    assert_eq!(kick, [6, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0]);
    for (place, byte) in [(0, 0), (0, 20), (0, 255), (1, 1), (2, 1), (4, 1)] {
        let mut message = kick.clone();
        message[place] = byte;
        assert_eq!(Command::decode(&message), Err(Malformed), "byte {place}");
    }
    let no_socket = [&kick[..12], &[0; 4]].concat();
    assert_eq!(Command::decode(&no_socket), Err(Malformed));
    assert_eq!(Command::decode(b""), Err(Malformed));
}

#[test]
fn the_longest_path_fits_and_no_longer_one_decodes() {
    let path = vec![b'x'; PATH_BYTES_MAX];
    let command = Command::OpenFile {
        request: 1,
        handle: HandleId(2),
        path: &path,
    };
    let mut message = encoded(|message| command.encode(message));
    assert_eq!(message.len(), COMMAND_BYTES_MAX);
    assert_eq!(Command::decode(&message), Ok(command));
    message.push(b'x');
    message[12..16].copy_from_slice(&4096u32.to_le_bytes());
    assert_eq!(Command::decode(&message), Err(Malformed));
}

const KEY: [u8; Key::BYTES] = *b"0123456789abcdef";

fn requests() -> [Request; 6] {
    [
        Request::Attach { modes: 15 },
        Request::Adopt,
        Request::MoreHandles {
            count: HANDLES_MAX,
            nonblocking: false,
        },
        Request::MoreHandles {
            count: 1,
            nonblocking: true,
        },
        Request::Reattach {
            app: AppId(7),
            channel: ChannelId(8),
            key: Key::new(KEY),
        },
        Request::Join {
            app: AppId(7),
            key: Key::new(KEY),
        },
    ]
}

fn replies() -> [Reply; 4] {
    [
        Reply::Attached(Attached {
            app: AppId(7),
            channel: ChannelId(8),
            limits: Limits {
                sockets_max: 9,
                segment_bytes: 1 << 33,
            },
            modes: 10,
            key: Key::new(KEY),
        }),
        Reply::Refused { errno: 13 },
        Reply::Handles {
            first: HandleId(100),
            count: 64,
            errno: 24,
        },
        Reply::Reattached,
    ]
}

#[test]
fn packets_decode_to_themselves_and_say_what_goes_along() {
    for request in requests() {
        let packet = request.encode();
        assert_eq!(Request::decode(&packet), Ok(request));
        assert_eq!(Reply::decode(&packet), Err(BadPacket::Malformed));
    }
    for reply in replies() {
        let packet = reply.encode();
        assert!(packet.len() <= socket_channel::attach::PACKET_BYTES_MAX);
        assert_eq!(Reply::decode(&packet), Ok(reply));
        assert_eq!(Request::decode(&packet), Err(BadPacket::Malformed));
        let longer = [&packet[..], &[0]].concat();
        assert_eq!(Reply::decode(&longer), Err(BadPacket::Malformed));
    }
    let descriptors = requests().map(|request| request.descriptors());
    assert_eq!(descriptors, [0, 1, 0, 0, 0, 0]);
    assert_eq!(replies().map(|reply| reply.descriptors()), [4, 0, 64, 0]);
}

#[test]
fn a_key_is_compared_as_a_whole_and_not_printed() {
    for at in 0..Key::BYTES {
        let mut other = KEY;
        other[at] ^= 1 << (at % 8);
        assert_ne!(Key::new(other), Key::new(KEY));
    }
    assert_eq!(Key::new(KEY), Key::new(KEY));
    let printed = format!("{:?} {:?}", replies()[0], requests()[4]);
    assert!(
        printed.contains("key: Key") && !printed.contains("48"),
        "{printed}"
    );
}

#[test]
fn a_child_that_joins_has_no_channel_yet() {
    let packet = requests()[5].encode();
    for at in [12, 20] {
        let mut packet = packet.clone();
        packet[at] = 1;
        assert_eq!(Request::decode(&packet), Err(BadPacket::Malformed), "{at}");
    }
}

#[test]
fn another_version_is_named_and_too_many_handles_are_refused() {
    let mut packet = requests()[0].encode();
    packet[8..10].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let error = Request::decode(&packet).unwrap_err();
    assert_eq!(
        error,
        BadPacket::Version {
            theirs: VERSION + 1
        }
    );
    let said = format!(
        "the other side speaks version {}, not {VERSION}",
        VERSION + 1
    );
    assert_eq!(error.to_string(), said);
    packet[0] = b'S';
    assert_eq!(Request::decode(&packet), Err(BadPacket::Malformed));
    for count in [0, HANDLES_MAX + 1, u32::MAX >> 1] {
        let packet = Request::MoreHandles {
            count,
            nonblocking: false,
        }
        .encode();
        assert_eq!(
            Request::decode(&packet),
            Err(BadPacket::Malformed),
            "{count}"
        );
    }
    let packet = Reply::Handles {
        first: HandleId(0),
        count: 65,
        errno: 0,
    }
    .encode();
    assert_eq!(Reply::decode(&packet), Err(BadPacket::Malformed));
    let packet = Reply::Refused { errno: 0 }.encode();
    assert_eq!(Reply::decode(&packet), Err(BadPacket::Malformed));
}
