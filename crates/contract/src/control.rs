//! The hello: how a host stack and a NIC stack meet over a Unix socket (`SOCK_SEQPACKET`).
//!
//! The NIC stack speaks first: version and number of workers. The host stack answers with version
//! and epoch, and passes for every worker a sealed memory file and two event descriptors. The
//! socket then stays open; each side detects the other's end by the end of the socket. A host stack
//! may then meet another NIC stack, over another socket: with every hello a new epoch begins, in
//! memory of its own, so that the previous epoch cannot reach it.
//!
//! A host stack that leaves, because it ends in order or uses another NIC stack, sends a *farewell*
//! before it closes the socket ([`HostSocket`]): eight bytes, `farewell`. A socket that closes
//! without one belonged to a host process that has died ([`has_host_died`]). Then the NIC stack
//! resets its connections.
//!
//! Both packets begin alike, so that stacks of any two versions can exchange their versions:
//!
//! | Offset | Bytes | Hello of the NIC stack | Answer of the host stack |
//! |---|---|---|---|
//! | 0 | 8 | `splitway` | `splitway` |
//! | 8 | 2 | version | version |
//! | 10 | 2 | zero | zero |
//! | 12 | 4 | workers | workers, as in the hello |
//! | 16 | 8 | | epoch |
//!
//! The answer's descriptors are, for each worker in order: memory file, event descriptor that wakes
//! the NIC stack, event descriptor that wakes the host stack. The answer to a hello of another
//! version has none.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};
use shm::end::{self, Bells};
use shm::memory::{Mapping, create_file};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::channel::{CHANNEL_WORDS, HostChannel, NicChannel};
use crate::limits::{HELLO_SECONDS_MAX, VERSION, WORKERS_MAX};

const MAGIC: [u8; 8] = *b"splitway";

/// The last packet of a host stack that leaves.
const FAREWELL: [u8; 8] = *b"farewell";

/// Memory file and two event descriptors.
const DESCRIPTORS_PER_WORKER: usize = 3;

/// The beginning of both packets, in any version.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Greeting {
    magic: [u8; 8],
    version: U16,
    zero: [u8; 2],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Hello {
    greeting: Greeting,
    workers: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Answer {
    greeting: Greeting,
    workers: U32,
    epoch: U64,
}

const _: () = assert!(size_of::<Greeting>() == 12, "greetings never change");
const _: () = assert!(
    size_of::<Hello>() == 16,
    "records never change within a version"
);
const _: () = assert!(
    size_of::<Answer>() == 24,
    "records never change within a version"
);

const GREETING: Greeting = Greeting {
    magic: MAGIC,
    version: U16::new(VERSION),
    zero: [0; 2],
};

/// Errors of the hello.
#[derive(Debug)]
pub enum HelloError {
    /// A system call failed.
    Io {
        /// The failed operation.
        doing: &'static str,
        /// Why it failed.
        error: std::io::Error,
    },
    /// The peer speaks another version.
    Version {
        /// The peer's.
        peer: u16,
    },
    /// The peer sent something that is not a hello.
    Malformed,
    /// The peer closed the socket.
    Closed,
    /// The peer sent nothing for [`crate::limits::HELLO_SECONDS_MAX`].
    Silent,
    /// More workers than [`crate::limits::WORKERS_MAX`], or none.
    Workers {
        /// How many.
        workers: usize,
    },
}

/// Result of the hello for the host stack.
#[derive(Debug)]
pub struct HostSession {
    /// One channel per worker, in the workers' order.
    pub channels: Vec<HostChannel>,
    /// Hangs up when the NIC stack is gone.
    pub socket: HostSocket,
}

/// The host stack's end of the socket. When dropped, it sends the farewell and closes; not if the
/// thread panics, since no connection has been ended then.
#[derive(Debug)]
pub struct HostSocket(Option<OwnedFd>);

impl HostSocket {
    /// Sends the farewell: the NIC stack leaves connections alone when it ends.
    pub fn take_leave(&self) {
        if let Some(socket) = &self.0 {
            send_farewell(socket);
        }
    }

    /// The socket, which closes without a farewell when dropped, as if the process had died.
    pub fn without_farewell(mut self) -> Option<OwnedFd> {
        self.0.take()
    }
}

impl From<OwnedFd> for HostSocket {
    fn from(socket: OwnedFd) -> HostSocket {
        HostSocket(Some(socket))
    }
}

impl AsFd for HostSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let socket = self.0.as_ref();
        socket.expect("only `without_farewell` takes it").as_fd()
    }
}

impl Drop for HostSocket {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.take_leave();
        }
    }
}

/// Sends the farewell of a host stack over its end of the socket, before that is closed.
pub fn send_farewell(socket: impl AsFd) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    // A NIC stack that is gone needs no farewell.
    let _ = retry_on_intr(|| net::send(&socket, &FAREWELL, flags));
}

/// True if the host process at the other end has died: the socket is closed, and there was no
/// farewell. Takes nothing from the socket, so that each worker can ask.
pub fn has_host_died(socket: impl AsFd) -> bool {
    let mut bytes = [0; FAREWELL.len()];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let received = retry_on_intr(|| recv(&socket, &mut bytes[..], flags));
    matches!(received, Ok((_, 0)))
}

/// Result of the hello for the NIC stack.
#[derive(Debug)]
pub struct NicSession {
    /// One channel per worker, in the workers' order.
    pub channels: Vec<NicChannel>,
    /// The host's epoch.
    pub epoch: u64,
    /// Hangs up when the host stack is gone.
    pub socket: OwnedFd,
}

/// Looks whether a NIC stack has spoken, without taking its hello from the socket: `None` if it has
/// not yet, else its number of workers. A supervisor that hands the socket on to a host stack then
/// knows that this one will not have to wait, and that both speak the same version; a NIC stack of
/// another version receives ours.
pub fn peek_hello(socket: impl AsFd) -> Result<Option<usize>, HelloError> {
    const DOING: &str = "look at the NIC stack's hello";
    let mut bytes = [0; size_of::<Answer>() + 1];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let length = match retry_on_intr(|| recv(&socket, &mut bytes[..], flags)) {
        Ok((_, 0)) => return Err(HelloError::Closed),
        Ok((_, length)) => length,
        Err(Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(io(DOING)(errno)),
    };
    let hello = parse::<Hello>(bytes.get(..length).unwrap_or_default())
        .inspect_err(|error| tell_version(&socket, error))?;
    checked_workers(hello.workers.get() as usize).map(Some)
}

/// Sends our version to a peer of another version, which then knows why it is refused. The peer may
/// be gone already.
fn tell_version(socket: impl AsFd, error: &HelloError) {
    if let HelloError::Version { .. } = error {
        let _ = send(socket, GREETING.as_bytes(), &[]);
    }
}

/// The host's part. Waits until the NIC stack has spoken, at most [`HELLO_SECONDS_MAX`].
pub fn host_hello(socket: OwnedFd, epoch: u64) -> Result<HostSession, HelloError> {
    let (bytes, _) = receive(&socket, HELLO_SECONDS_MAX, "receive the NIC stack's hello")?;
    let hello = parse::<Hello>(&bytes).inspect_err(|error| tell_version(&socket, error))?;
    let workers = checked_workers(hello.workers.get() as usize)?;

    let mut channels = Vec::with_capacity(workers);
    let mut descriptors = Vec::with_capacity(workers * DESCRIPTORS_PER_WORKER);
    for _ in 0..workers {
        let file = create_file(c"splitway-channel", CHANNEL_WORDS)
            .map_err(io("create a channel's memory"))?;
        let mapping =
            Mapping::secret(&file, CHANNEL_WORDS).map_err(io("map a channel's memory"))?;
        let wakes_nic = new_bell()?;
        let wakes_host = new_bell()?;
        let bells = Bells {
            own: shared(&wakes_host)?,
            peer: shared(&wakes_nic)?,
        };
        channels.push(HostChannel::mapped(mapping, bells));
        descriptors.extend([file, wakes_nic, wakes_host]);
    }
    let answer = Answer {
        greeting: GREETING,
        workers: hello.workers,
        epoch: epoch.into(),
    };
    send(&socket, answer.as_bytes(), &descriptors).map_err(io("answer the NIC stack's hello"))?;
    let socket = socket.into();
    Ok(HostSession { channels, socket })
}

/// The NIC stack's part. Waits until the host has answered, at most [`HELLO_SECONDS_MAX`].
pub fn nic_hello(socket: OwnedFd, workers: usize) -> Result<NicSession, HelloError> {
    let workers = checked_workers(workers)?;
    let hello = Hello {
        greeting: GREETING,
        workers: (workers as u32).into(),
    };
    send(&socket, hello.as_bytes(), &[]).map_err(io("send the hello to the host stack"))?;

    let (bytes, descriptors) = receive(
        &socket,
        HELLO_SECONDS_MAX,
        "receive the host stack's answer",
    )?;
    let answer = parse::<Answer>(&bytes)?;
    if answer.workers != hello.workers || descriptors.len() != workers * DESCRIPTORS_PER_WORKER {
        return Err(HelloError::Malformed);
    }
    let mut channels = Vec::with_capacity(workers);
    let mut descriptors = descriptors.into_iter();
    while let (Some(file), Some(wakes_nic), Some(wakes_host)) =
        (descriptors.next(), descriptors.next(), descriptors.next())
    {
        let mapping = Mapping::secret(&file, CHANNEL_WORDS)
            .map_err(io("map the memory that the host stack passed"))?;
        let bells = Bells::never_blocking(wakes_nic, wakes_host)
            .map_err(io("prepare an event descriptor"))?;
        channels.push(NicChannel::mapped(mapping, bells));
    }
    Ok(NicSession {
        channels,
        epoch: answer.epoch.get(),
        socket,
    })
}

fn checked_workers(workers: usize) -> Result<usize, HelloError> {
    match workers {
        1..=WORKERS_MAX => Ok(workers),
        _ => Err(HelloError::Workers { workers }),
    }
}

fn new_bell() -> Result<OwnedFd, HelloError> {
    end::new_bell().map_err(io("create an event descriptor"))
}

fn shared(descriptor: &OwnedFd) -> Result<OwnedFd, HelloError> {
    descriptor
        .try_clone()
        .map_err(io("duplicate an event descriptor"))
}

fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[OwnedFd]) -> rustix::io::Result<()> {
    const SPACE: usize = rustix::cmsg_space!(ScmRights(WORKERS_MAX * DESCRIPTORS_PER_WORKER));
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    if !descriptors.is_empty() {
        let pushed = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        assert!(pushed, "there is space for WORKERS_MAX workers");
    }
    retry_on_intr(|| {
        sendmsg(
            &socket,
            &[IoSlice::new(bytes)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )
    })?;
    Ok(())
}

/// The next packet with its descriptors.
fn receive(
    socket: &OwnedFd,
    seconds_max: u64,
    doing: &'static str,
) -> Result<(Vec<u8>, Vec<OwnedFd>), HelloError> {
    // Not SO_RCVTIMEO, which has no effect on a socket that does not block.
    let timeout = Timespec {
        tv_sec: seconds_max as i64,
        tv_nsec: 0,
    };
    let readable =
        retry_on_intr(|| poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)))
            .map_err(io(doing))?;
    if readable == 0 {
        return Err(HelloError::Silent);
    }

    const SPACE: usize = rustix::cmsg_space!(ScmRights(WORKERS_MAX * DESCRIPTORS_PER_WORKER));
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    // One byte more than the longest packet: a packet of a longer kind is noticed.
    let mut bytes = vec![0; size_of::<Answer>() + 1];
    let received = retry_on_intr(|| {
        recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
    })
    .map_err(io(doing))?;
    if received.bytes == 0 {
        return Err(HelloError::Closed);
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(HelloError::Malformed);
    }
    bytes.truncate(received.bytes);
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    Ok((bytes, descriptors))
}

/// Checks the greeting before anything else: what follows it is this version's.
fn parse<T: FromBytes + Immutable + KnownLayout + Unaligned>(
    bytes: &[u8],
) -> Result<&T, HelloError> {
    let (greeting, _) = Greeting::ref_from_prefix(bytes).map_err(|_| HelloError::Malformed)?;
    if greeting.magic != MAGIC {
        return Err(HelloError::Malformed);
    }
    if greeting.version != VERSION {
        return Err(HelloError::Version {
            peer: greeting.version.get(),
        });
    }
    if greeting.zero != [0; 2] {
        return Err(HelloError::Malformed);
    }
    T::ref_from_bytes(bytes).map_err(|_| HelloError::Malformed)
}

fn io<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> HelloError {
    move |error| {
        let error = error.into();
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => HelloError::Closed,
            _ => HelloError::Io { doing, error },
        }
    }
}

impl fmt::Display for HelloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HelloError::Io { doing, error } => write!(f, "cannot {doing}: {error}"),
            HelloError::Version { peer } => write!(
                f,
                "the other stack speaks version {peer} of the contract, this one version \
                 {VERSION}: run the same release of splitway on both sides"
            ),
            HelloError::Malformed => f.write_str(
                "the other side of the socket does not speak like a splitway stack: \
                 check that the socket is the one that `splitway` created",
            ),
            HelloError::Closed => f.write_str(
                "the other stack has closed the socket before the hello was over: \
                 its own messages say why",
            ),
            HelloError::Silent => write!(
                f,
                "the other stack has said nothing for {HELLO_SECONDS_MAX} s: \
                 check that it runs, or start it again"
            ),
            HelloError::Workers { workers } => write!(
                f,
                "a NIC stack has 1 to {WORKERS_MAX} workers, not {workers}: choose another number"
            ),
        }
    }
}

impl std::error::Error for HelloError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            HelloError::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn a_silent_peer_is_an_error_not_a_hang() {
        let (own, _peer) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let error = receive(&own, 0, "listen").unwrap_err();
        assert!(matches!(error, HelloError::Silent));
    }
}
