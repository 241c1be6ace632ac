//! Messages between the two nodes, and their encoding.
//!
//! Each message is a record of the session, little-endian, at most [`MESSAGE_BYTES_MAX`] bytes. It
//! begins with its kind, one byte, and the number of the application on its node, four bytes.
//!
//! | Kind | From | What follows |
//! |---|---|---|
//! | 1 Attach | application node | modes |
//! | 2 Detach | application node | nothing: the application is over |
//! | 3 Command | application node | a command of [`socket_channel::message`] that has an answer |
//! | 4 Data | both | socket, 1 if more follows soon, bytes of its stream |
//! | 5 SendFile | application node | socket, file, offset, bytes, 1 if it ends a `MSG_MORE` |
//! | 6 Finish | application node | socket: its stream ends here |
//! | 7 Close | application node | socket, bytes received of its stream, 1 if it is reset |
//! | 8 Credit | both | socket, total of bytes or of connections that it accepts |
//! | 129 Attached | stack node | an `errno`, 0 if there is none, and modes |
//! | 130 Event | stack node | an event of [`socket_channel::message`] that answers |
//! | 131 New | stack node | socket, [`State`] |
//! | 132 State | stack node | socket, [`State`] |
//! | 133 Accepted | stack node | listener, connection |
//! | 134 Taken | stack node | messages of the application that left the count |
//! | 135 Detached | stack node | nothing: the application is no longer served |
//!
//! Decoding accepts exactly what encoding produces, but for commands and events, which have
//! decoders of their own.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use socket_channel::record::OPTION_WORDS;
use socket_channel::{FileMeta, Flags, SocketId};

/// The EtherType of sessions between nodes: the second of those for experiments (IEEE 802, §9.2.3),
/// so that NIC stacks of other machines may be on the same link.
pub const ETHER_TYPE: u16 = 0x88b6;

/// Label for deriving the session key, so that the key of a NIC stack opens no such session.
pub const KEY_LABEL: &str = "sockets";

/// Longest message, in bytes: the session's limit.
pub const MESSAGE_BYTES_MAX: usize = 8192;

/// Most bytes of a stream in a message.
pub const DATA_BYTES_MAX: usize = 8000;

/// Initial credit of each side of a stream, in bytes: the smallest FIFO holds it.
pub const FIRST_CREDIT_BYTES: u64 = 4096;

/// Most messages of an application that the stack node holds until its ring has room: Command,
/// SendFile, Finish and Close.
pub const UNTAKEN_MAX: u32 = 512;

/// The error for bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message of the other node does not decode")
    }
}

impl std::error::Error for Malformed {}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The application's number, assigned by the broker of the application node.
    pub app: u32,
    /// The content.
    pub body: Body<'a>,
}

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// An application attaches.
    Attach {
        /// Its modes: a sum of the `MODE_` numbers of [`socket_channel::attach`].
        modes: u32,
    },
    /// An application has ended.
    Detach,
    /// A command that has an answer. Its handle is ignored.
    Command(&'a [u8]),
    /// Bytes of a stream, within the receiver's credit.
    Data {
        /// The connection.
        socket: SocketId,
        /// More follows soon: `MSG_MORE`. Always false from the stack node.
        has_more: bool,
        /// From 1 to [`DATA_BYTES_MAX`].
        bytes: &'a [u8],
    },
    /// A range of a file on the stack node is the next part of a stream.
    SendFile {
        /// The connection.
        socket: SocketId,
        /// The file.
        file: SocketId,
        /// Start of the range in the file, in bytes.
        offset: u64,
        /// Length of the range, in bytes.
        len: u64,
        /// The range completes the data announced by a `MSG_MORE` before it.
        ends_more: bool,
    },
    /// A stream ends after its bytes so far.
    Finish {
        /// The connection.
        socket: SocketId,
    },
    /// No program has the socket any more, and all its stream has been sent.
    Close {
        /// The socket.
        socket: SocketId,
        /// Bytes of its stream that arrived at the application node.
        got: u64,
        /// Its connection is reset.
        resets: bool,
    },
    /// The receiver of a stream, or of a listener's connections, accepts more.
    Credit {
        /// The connection, or the listener.
        socket: SocketId,
        /// Total since the socket was made, in bytes or connections.
        until: u64,
    },
    /// The answer to Attach.
    Attached {
        /// Cause of a failure, an `errno`; 0 for success.
        errno: u32,
        /// The modes that are on.
        modes: u32,
    },
    /// An Answer or an Info.
    Event(&'a [u8]),
    /// A new socket, before any other message names it.
    New {
        /// Name of the socket.
        socket: SocketId,
        /// State of the socket.
        state: State,
    },
    /// A socket has changed. All bytes from before the change have been sent.
    State {
        /// Name of the socket.
        socket: SocketId,
        /// State of the socket.
        state: State,
    },
    /// A connection waits to be accepted.
    Accepted {
        /// The listener.
        listener: SocketId,
        /// The connection.
        socket: SocketId,
    },
    /// Further messages have left the stack node's count, as they are in its ring.
    Taken {
        /// The number of these messages since the last report.
        count: u32,
    },
    /// The host stack serves an application no longer.
    Detached,
}

/// State of a socket, as the host stack wrote it into the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The flags.
    pub flags: Flags,
    /// Number of errors so far.
    pub errors: u32,
    /// The last error, an `errno`.
    pub errno: u32,
    /// Size of the rx FIFO or of the accept queue, in bytes; 0 if there is none.
    pub rx_bytes: u32,
    /// Size of the tx FIFO, in bytes.
    pub tx_bytes: u32,
    /// Usable part of the tx FIFO, in bytes; 0: all.
    pub tx_limit: u32,
    /// Total of file bytes that may have been queued.
    pub file_limit: u64,
    /// Total of bytes that the peer has acknowledged.
    pub acked: u64,
    /// Values of options, as in a record.
    pub options: [u64; OPTION_WORDS],
    /// Local address.
    pub local: Option<SocketAddr>,
    /// Address of the peer.
    pub peer: Option<SocketAddr>,
    /// Metadata of an open file.
    pub meta: Option<FileMeta>,
}

const ATTACH: u8 = 1;
const DETACH: u8 = 2;
const COMMAND: u8 = 3;
const DATA: u8 = 4;
const SEND_FILE: u8 = 5;
const FINISH: u8 = 6;
const CLOSE: u8 = 7;
const CREDIT: u8 = 8;
const ATTACHED: u8 = 129;
const EVENT: u8 = 130;
const NEW: u8 = 131;
const STATE: u8 = 132;
const ACCEPTED: u8 = 133;
const TAKEN: u8 = 134;
const DETACHED: u8 = 135;

impl Message<'_> {
    /// Encodes the message.
    ///
    /// # Panics
    /// If it is longer than [`MESSAGE_BYTES_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.body.kind()];
        bytes.extend(self.app.to_le_bytes());
        self.body.encode(&mut bytes);
        assert!(bytes.len() <= MESSAGE_BYTES_MAX, "a message is too long");
        bytes
    }

    /// Decodes a message.
    pub fn decode(bytes: &[u8]) -> Result<Message<'_>, Malformed> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(Malformed);
        }
        let mut reader = Reader(bytes);
        let kind = reader.u8()?;
        let app = reader.u32()?;
        let body = Body::decode(kind, &mut reader)?;
        if reader.0.is_empty() {
            Ok(Message { app, body })
        } else {
            Err(Malformed)
        }
    }
}

impl Body<'_> {
    fn kind(&self) -> u8 {
        match self {
            Body::Attach { .. } => ATTACH,
            Body::Detach => DETACH,
            Body::Command(_) => COMMAND,
            Body::Data { .. } => DATA,
            Body::SendFile { .. } => SEND_FILE,
            Body::Finish { .. } => FINISH,
            Body::Close { .. } => CLOSE,
            Body::Credit { .. } => CREDIT,
            Body::Attached { .. } => ATTACHED,
            Body::Event(_) => EVENT,
            Body::New { .. } => NEW,
            Body::State { .. } => STATE,
            Body::Accepted { .. } => ACCEPTED,
            Body::Taken { .. } => TAKEN,
            Body::Detached => DETACHED,
        }
    }

    fn encode(&self, to: &mut Vec<u8>) {
        let mut words = |words: &[u64]| to.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        match *self {
            Body::Attach { modes } => to.extend(modes.to_le_bytes()),
            Body::Detach | Body::Detached => {}
            Body::Command(bytes) | Body::Event(bytes) => to.extend(bytes),
            Body::Data {
                socket,
                has_more,
                bytes,
            } => {
                words(&[socket.to_raw()]);
                to.push(has_more.into());
                to.extend(bytes);
            }
            Body::SendFile {
                socket,
                file,
                offset,
                len,
                ends_more,
            } => {
                words(&[socket.to_raw(), file.to_raw(), offset, len]);
                to.push(ends_more.into());
            }
            Body::Finish { socket } => words(&[socket.to_raw()]),
            Body::Close {
                socket,
                got,
                resets,
            } => {
                words(&[socket.to_raw(), got]);
                to.push(resets.into());
            }
            Body::Credit { socket, until } => words(&[socket.to_raw(), until]),
            Body::Attached { errno, modes } => {
                to.extend(errno.to_le_bytes());
                to.extend(modes.to_le_bytes());
            }
            Body::New { socket, state } | Body::State { socket, state } => {
                words(&[socket.to_raw()]);
                state.encode(to);
            }
            Body::Accepted { listener, socket } => {
                words(&[listener.to_raw(), socket.to_raw()]);
            }
            Body::Taken { count } => to.extend(count.to_le_bytes()),
        }
    }

    fn decode<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<Body<'a>, Malformed> {
        Ok(match kind {
            ATTACH => Body::Attach {
                modes: reader.u32()?,
            },
            DETACH => Body::Detach,
            COMMAND => Body::Command(reader.rest()),
            DATA => {
                let (socket, has_more) = (reader.socket()?, reader.bool()?);
                let bytes = reader.rest();
                if !(1..=DATA_BYTES_MAX).contains(&bytes.len()) {
                    return Err(Malformed);
                }
                Body::Data {
                    socket,
                    has_more,
                    bytes,
                }
            }
            SEND_FILE => Body::SendFile {
                socket: reader.socket()?,
                file: reader.socket()?,
                offset: reader.u64()?,
                len: reader.u64()?,
                ends_more: reader.bool()?,
            },
            FINISH => Body::Finish {
                socket: reader.socket()?,
            },
            CLOSE => Body::Close {
                socket: reader.socket()?,
                got: reader.u64()?,
                resets: reader.bool()?,
            },
            CREDIT => Body::Credit {
                socket: reader.socket()?,
                until: reader.u64()?,
            },
            ATTACHED => Body::Attached {
                errno: reader.u32()?,
                modes: reader.u32()?,
            },
            EVENT => Body::Event(reader.rest()),
            NEW => Body::New {
                socket: reader.socket()?,
                state: State::decode(reader)?,
            },
            STATE => Body::State {
                socket: reader.socket()?,
                state: State::decode(reader)?,
            },
            ACCEPTED => Body::Accepted {
                listener: reader.socket()?,
                socket: reader.socket()?,
            },
            TAKEN => Body::Taken {
                count: reader.u32()?,
            },
            DETACHED => Body::Detached,
            _ => return Err(Malformed),
        })
    }
}

impl State {
    fn encode(&self, to: &mut Vec<u8>) {
        for small in [
            self.flags.0,
            self.errors,
            self.errno,
            self.rx_bytes,
            self.tx_bytes,
            self.tx_limit,
        ] {
            to.extend(small.to_le_bytes());
        }
        for word in [self.file_limit, self.acked]
            .into_iter()
            .chain(self.options)
        {
            to.extend(word.to_le_bytes());
        }
        encode_address(self.local, to);
        encode_address(self.peer, to);
        let Some(meta) = self.meta else {
            return to.push(0);
        };
        to.push(1);
        for word in [
            meta.size,
            meta.mtime_ns as u64,
            meta.ctime_ns as u64,
            meta.inode,
            meta.device,
        ] {
            to.extend(word.to_le_bytes());
        }
        to.push(meta.is_weak.into());
    }

    fn decode(reader: &mut Reader<'_>) -> Result<State, Malformed> {
        Ok(State {
            flags: Flags(reader.u32()?),
            errors: reader.u32()?,
            errno: reader.u32()?,
            rx_bytes: reader.u32()?,
            tx_bytes: reader.u32()?,
            tx_limit: reader.u32()?,
            file_limit: reader.u64()?,
            acked: reader.u64()?,
            options: reader.words()?,
            local: reader.address()?,
            peer: reader.address()?,
            meta: reader.meta()?,
        })
    }
}

/// Encodes family, port, scope and 16 bytes; the family alone if there is no address.
fn encode_address(address: Option<SocketAddr>, to: &mut Vec<u8>) {
    let Some(address) = address else {
        return to.push(0);
    };
    let mut bytes = [0; 16];
    let (family, scope) = match address {
        SocketAddr::V4(address) => {
            bytes[..4].copy_from_slice(&address.ip().octets());
            (4, 0)
        }
        SocketAddr::V6(address) => {
            bytes = address.ip().octets();
            (6, address.scope_id())
        }
    };
    to.push(family);
    to.extend(address.port().to_le_bytes());
    to.extend(scope.to_le_bytes());
    to.extend(bytes);
}

/// The undecoded rest of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*array)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn words<const N: usize>(&mut self) -> Result<[u64; N], Malformed> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.u64()?;
        }
        Ok(words)
    }

    fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn socket(&mut self) -> Result<SocketId, Malformed> {
        SocketId::from_raw(self.u64()?).ok_or(Malformed)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn address(&mut self) -> Result<Option<SocketAddr>, Malformed> {
        let family = self.u8()?;
        if family == 0 {
            return Ok(None);
        }
        let port = u16::from_le_bytes(self.array()?);
        let scope = self.u32()?;
        let bytes: [u8; 16] = self.array()?;
        let [a, b, c, d, rest @ ..] = bytes;
        match family {
            4 if scope == 0 && rest == [0; 12] => {
                let ip = IpAddr::from(Ipv4Addr::new(a, b, c, d));
                Ok(Some((ip, port).into()))
            }
            6 => {
                let address = SocketAddrV6::new(Ipv6Addr::from(bytes), port, 0, scope);
                Ok(Some(address.into()))
            }
            _ => Err(Malformed),
        }
    }

    fn meta(&mut self) -> Result<Option<FileMeta>, Malformed> {
        if !self.bool()? {
            return Ok(None);
        }
        Ok(Some(FileMeta {
            size: self.u64()?,
            mtime_ns: self.u64()? as i64,
            ctime_ns: self.u64()? as i64,
            inode: self.u64()?,
            device: self.u64()?,
            is_weak: self.bool()?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKET: SocketId = SocketId {
        index: 7,
        generation: 3,
    };

    fn state() -> State {
        State {
            flags: Flags::STREAM | Flags::CONNECTED,
            errors: 1,
            errno: 104,
            rx_bytes: 65_536,
            tx_bytes: 4096,
            tx_limit: 512,
            file_limit: 1 << 40,
            acked: u64::MAX,
            options: [1, 2, 3, u64::MAX],
            local: Some("10.77.0.2:80".parse().unwrap()),
            peer: Some("[fd77::1%3]:65535".parse().unwrap()),
            meta: Some(FileMeta {
                size: 1,
                mtime_ns: -2,
                ctime_ns: 3,
                inode: 4,
                device: 5,
                is_weak: true,
            }),
        }
    }

    fn all() -> Vec<Body<'static>> {
        let (socket, file) = (SOCKET, SOCKET.next_generation());
        vec![
            Body::Attach { modes: 30 },
            Body::Detach,
            Body::Command(b"command"),
            Body::Data {
                socket,
                has_more: true,
                bytes: &[9; DATA_BYTES_MAX],
            },
            Body::SendFile {
                socket,
                file,
                offset: 1 << 33,
                len: u64::MAX,
                ends_more: true,
            },
            Body::Finish { socket },
            Body::Close {
                socket,
                got: 1 << 40,
                resets: true,
            },
            Body::Credit { socket, until: 99 },
            Body::Attached {
                errno: 13,
                modes: 30,
            },
            Body::Event(b"event"),
            Body::New {
                socket,
                state: State::default(),
            },
            Body::State {
                socket,
                state: state(),
            },
            Body::Accepted {
                listener: socket,
                socket: file,
            },
            Body::Taken { count: 12 },
            Body::Detached,
        ]
    }

    #[test]
    fn messages_survive_and_none_decodes_cut_short_or_with_more() {
        for body in all() {
            let message = Message { app: 5, body };
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Ok(message));
            let is_open_ended =
                matches!(body, Body::Command(_) | Body::Event(_) | Body::Data { .. });
            if is_open_ended {
                continue;
            }
            for len in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..len]), Err(Malformed), "{body:?}");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(Message::decode(&longer), Err(Malformed), "{body:?}");
        }
    }

    #[test]
    fn what_encoding_never_makes_does_not_decode() {
        let close = Message {
            app: 5,
            body: Body::Close {
                socket: SOCKET,
                got: 0,
                resets: true,
            },
        };
        let mut bytes = close.encode();
        *bytes.last_mut().unwrap() = 2;
        assert_eq!(Message::decode(&bytes), Err(Malformed));
        // Generation 0 names no socket.
        let mut bytes = close.encode();
        bytes[9..13].fill(0);
        assert_eq!(Message::decode(&bytes), Err(Malformed));
        for kind in [0, 9, 128, 136, 255] {
            assert_eq!(Message::decode(&[kind, 0, 0, 0, 0]), Err(Malformed));
        }
        let mut long = vec![COMMAND; MESSAGE_BYTES_MAX + 1];
        assert_eq!(Message::decode(&long), Err(Malformed));
        long.pop();
        assert!(Message::decode(&long).is_ok());
        let empty = [&[DATA][..], &[0; 4], &SOCKET.to_raw().to_le_bytes(), &[0]].concat();
        assert_eq!(Message::decode(&empty), Err(Malformed));
    }
}
