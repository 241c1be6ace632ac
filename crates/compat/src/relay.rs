//! Bytes between the two sockets that a connection is made of.
//!
//! No bytes are kept here: as many are taken out of one socket as the other has room for; the
//! others stay in their socket. So the bytes under way are bounded by the buffers of the pair, by
//! the FIFOs of the split socket and by TCP's windows, in both directions.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use capi::How;
use capi::client::{Client, OptionValue, ReceiveFlags, SendFlags};
use rustix::io::{Errno, Result};
use rustix::net::{RecvFlags, Shutdown, recv, send, shutdown};

use crate::pair::{AT_ONCE, has_hung_up};
use crate::socket::Stream;

/// Rounds in both directions until it is another connection's turn.
const ROUNDS: usize = 8;

const DONT_WAIT: ReceiveFlags = ReceiveFlags {
    dont_wait: true,
    peek: false,
    wait_all: false,
    discard: false,
};

/// Next step of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It waits for an event.
    Wait,
    /// There is more to move.
    Turn,
    /// It is over: both sockets are to be closed.
    End,
}

/// The two sockets, and the client of the split one.
pub(crate) struct Ends<'a> {
    pub(crate) client: &'a Client,
    pub(crate) split: BorrowedFd<'a>,
    pub(crate) own: BorrowedFd<'a>,
}

impl Ends<'_> {
    /// Moves bytes in both directions, as far as there is room.
    pub(crate) fn pump(&self, stream: &mut Stream, scratch: &mut [u8]) -> Next {
        for _ in 0..ROUNDS {
            let received = self.receive(stream, scratch);
            let sent = self.send(stream, scratch);
            let has_moved = received || sent;
            if has_moved {
                stream.moved = Instant::now();
            }
            // Bytes from before a failure are read first, as by tcp(7).
            let has_failed = stream.failure.is_some() && stream.is_received;
            if has_failed || stream.is_gone && stream.is_sent {
                return Next::End;
            }
            if !has_moved {
                return Next::Wait;
            }
        }
        Next::Turn
    }

    /// Moves bytes from the peer to the program; true on progress.
    fn receive(&self, stream: &mut Stream, scratch: &mut [u8]) -> bool {
        // Bytes that the program has not read are left: then closing resets the connection.
        let is_over = stream.is_received || stream.is_gone && stream.failure.is_none();
        if is_over {
            return false;
        }
        let peek = ReceiveFlags {
            peek: true,
            ..DONT_WAIT
        };
        match self.client_receive(scratch, peek) {
            Ok(0) => {
                stream.is_received = true;
                let _ = shutdown(self.own, Shutdown::Write);
                true
            }
            Ok(waiting) => {
                let taken = if stream.is_unread || stream.is_gone {
                    waiting
                } else {
                    match send(self.own, &scratch[..waiting], AT_ONCE) {
                        Ok(taken) => taken,
                        Err(Errno::AGAIN | Errno::INTR) => return false,
                        // Closed: bytes that the program has not read are left.
                        Err(_) if has_hung_up(self.own) => {
                            stream.is_gone = true;
                            return true;
                        }
                        // Shut down for reading: that must not hold up the peer.
                        Err(_) => {
                            stream.is_unread = true;
                            waiting
                        }
                    }
                };
                let discard = ReceiveFlags {
                    discard: true,
                    ..DONT_WAIT
                };
                if let Err(errno) = self.client_receive(&mut scratch[..taken], discard) {
                    stream.failure.get_or_insert(errno);
                }
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => false,
            Err(errno) => {
                stream.failure.get_or_insert(errno);
                stream.is_received = true;
                true
            }
        }
    }

    fn client_receive(&self, into: &mut [u8], flags: ReceiveFlags) -> Result<usize> {
        let into = &mut [IoSliceMut::new(into)];
        self.client.receive(self.split, into, flags)
    }

    /// Moves bytes from the program to the peer; true on progress.
    fn send(&self, stream: &mut Stream, scratch: &mut [u8]) -> bool {
        if stream.is_sent {
            return false;
        }
        match self.send_some(stream, scratch) {
            Ok(has_moved) => has_moved,
            Err(errno) => {
                stream.failure.get_or_insert(errno);
                stream.is_sent = true;
                true
            }
        }
    }

    fn send_some(&self, stream: &mut Stream, scratch: &mut [u8]) -> Result<bool> {
        // Only the relay sends on the split socket, so the room does not shrink.
        let room = self.client.send_room_bytes(self.split)?.min(scratch.len());
        if room == 0 {
            return Ok(false);
        }
        match recv(self.own, &mut scratch[..room], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => {
                stream.is_sent = true;
                // Closed: that may be a reset of the connection, which no FIN may precede.
                stream.is_gone |= has_hung_up(self.own);
                if !stream.is_gone {
                    self.client.shutdown(self.split, How::Write)?;
                }
                Ok(true)
            }
            Ok((_, len)) => {
                let flags = SendFlags {
                    dont_wait: true,
                    more: false,
                };
                let pieces = &[IoSlice::new(&scratch[..len])];
                let sent = self.client.send(self.split, pieces, flags)?;
                if sent == len {
                    Ok(true)
                } else {
                    Err(Errno::IO)
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            // The program has closed its end with bytes unread.
            Err(Errno::CONNRESET) => {
                stream.is_sent = true;
                stream.is_gone = true;
                stream.is_reset = true;
                Ok(true)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Has the connection reset when the split socket is closed.
    pub(crate) fn prepare_reset(&self) {
        let linger = OptionValue::Linger {
            on: true,
            seconds: 0,
        };
        let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
        let _ = self.client.set_option(self.split, level, name, &linger);
    }

    /// True if the peer has acknowledged all bytes sent.
    pub(crate) fn is_acknowledged(&self) -> bool {
        let left = self.client.unacknowledged_bytes(self.split.as_fd());
        left.is_ok_and(|bytes| bytes == 0)
    }
}
