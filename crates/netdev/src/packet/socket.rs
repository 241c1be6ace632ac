//! Packet sockets (`packet(7)`): the options and addresses that `rustix` has no safe form of.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use libc::{c_int, c_uint, c_void, socklen_t};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// `linux/if_packet.h`, Linux 4.20.
pub(super) const PACKET_IGNORE_OUTGOING: c_int = 23;

/// Opens a packet socket that receives nothing until it is bound to a protocol.
pub(super) fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(
        AddressFamily::PACKET,
        SocketType::RAW,
        flags,
        None,
    )?)
}

/// Binds a socket to an interface, and to an EtherType; 0 receives nothing.
pub(super) fn bind(socket: &OwnedFd, index: u32, ether_type: u16) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ether_type.to_be(),
        sll_ifindex: index as c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: `address` is a valid socket address of the length given, and outlives the call.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as socklen_t,
        )
    };
    check(result)
}

/// Sets an option of packet sockets whose value is an integer.
pub(super) fn set_integer(socket: &OwnedFd, option: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: every value of an integer is fine.
    unsafe { set_option(socket, libc::SOL_PACKET, option, &value) }
}

/// Lets the interface accept frames for a multicast address while the socket lives.
pub(super) fn join_multicast(socket: &OwnedFd, index: u32, mac: [u8; 6]) -> io::Result<()> {
    let mut request = libc::packet_mreq {
        mr_ifindex: index as c_int,
        mr_type: libc::PACKET_MR_MULTICAST as u16,
        mr_alen: mac.len() as u16,
        mr_address: [0; 8],
    };
    request.mr_address[..mac.len()].copy_from_slice(&mac);
    // SAFETY: this option takes a `packet_mreq`, which holds no pointers.
    unsafe {
        set_option(
            socket,
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            &request,
        )
    }
}

/// Lets the interface accept every frame while the socket lives.
pub(super) fn be_promiscuous(socket: &OwnedFd, index: u32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index as c_int,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    // SAFETY: this option takes a `packet_mreq`, which holds no pointers.
    unsafe {
        set_option(
            socket,
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            &request,
        )
    }
}

/// Has the kernel stamp each arriving frame, for [`receive_stamped`].
pub(super) fn stamp_arrivals(socket: &OwnedFd) -> io::Result<()> {
    let on: c_int = 1;
    // SAFETY: this option takes an integer.
    unsafe { set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &on) }
}

/// Room for a control message with a time, aligned for its header.
#[repr(C, align(8))]
struct StampBuffer([u8; 64]);

/// Receives the next frame, without waiting for one. Returns its length, and its time of arrival in
/// nanoseconds of the realtime clock. Bytes beyond the length of `buffer` are cut off.
pub(super) fn receive_stamped(
    socket: &OwnedFd,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<u64>)> {
    let mut control = StampBuffer([0; 64]);
    let mut slice = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: of null pointers and zeros, it is a valid message without parts.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut slice;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    // SAFETY: the message points to one slice, which points to `buffer`, and to `control`; both are
    // writable for the lengths given and outlive the call.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let len = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled in the message; its control part lies in `control`.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: null, or a header within `control`, which is aligned for it.
    let header = unsafe { first.as_ref() };
    let stamp = header.filter(|header| {
        (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS)
    });
    let stamp_ns = stamp.map(|_| {
        // SAFETY: behind a header of this type stands a `timespec`, within `control`.
        let time = unsafe {
            libc::CMSG_DATA(first)
                .cast::<libc::timespec>()
                .read_unaligned()
        };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    });
    Ok((len, stamp_ns))
}

/// Attaches a classic BPF program: only frames that it accepts are received.
pub(super) fn attach_filter(
    socket: &impl AsRawFd,
    program: &mut [libc::sock_filter],
) -> io::Result<()> {
    let len = u16::try_from(program.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "too many addresses"))?;
    let program = libc::sock_fprog {
        len,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: this option takes a `sock_fprog`; its pointer and length are those of `program`,
    // which the kernel copies during the call.
    unsafe { set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program) }
}

/// Attaches a program of eBPF: only frames that it accepts are received.
pub(super) fn attach_program(socket: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    let program: c_int = program.as_raw_fd();
    // SAFETY: this option takes a descriptor.
    unsafe { set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program) }
}

/// Has an Internet socket of the kernel receive nothing: it only holds its port.
pub fn receive_nothing(socket: BorrowedFd<'_>) -> io::Result<()> {
    let nothing = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    };
    attach_filter(&socket, &mut [nothing])
}

/// Has an IPv6 raw socket take packets with their header.
pub(super) fn include_ipv6_header(socket: &OwnedFd) -> io::Result<()> {
    let on: c_int = 1;
    // SAFETY: this option takes an integer.
    unsafe { set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_HDRINCL, &on) }
}

/// Locks the filter for as long as the socket lives.
pub(super) fn lock_filter(socket: &OwnedFd) -> io::Result<()> {
    let on: c_int = 1;
    // SAFETY: this option takes an integer.
    unsafe { set_option(socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &on) }
}

/// Marks the packets sent on the socket.
pub(super) fn set_mark(socket: &OwnedFd, mark: u32) -> io::Result<()> {
    // SAFETY: this option takes an integer of 32 bits.
    unsafe { set_option(socket, libc::SOL_SOCKET, libc::SO_MARK, &mark) }
}

/// Asks for a reception ring of `slots` slots of `slot_bytes` in blocks of `block_bytes`.
pub(super) fn request_ring(
    socket: &OwnedFd,
    block_bytes: usize,
    slot_bytes: usize,
    slots: usize,
) -> io::Result<()> {
    let request = libc::tpacket_req {
        tp_block_size: block_bytes as c_uint,
        tp_block_nr: (slots * slot_bytes / block_bytes) as c_uint,
        tp_frame_size: slot_bytes as c_uint,
        tp_frame_nr: slots as c_uint,
    };
    // SAFETY: with versions 1 and 2 this option takes a `tpacket_req`, which holds no pointers.
    unsafe { set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request) }
}

/// Returns the number of frames dropped since the last call because the ring was full.
pub(super) fn drops(socket: &OwnedFd) -> io::Result<u64> {
    let mut statistics = libc::tpacket_stats {
        tp_packets: 0,
        tp_drops: 0,
    };
    let mut len = mem::size_of_val(&statistics) as socklen_t;
    // SAFETY: with versions 1 and 2 this option gives a `tpacket_stats`; `len` is its length, and
    // both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut statistics).cast::<c_void>(),
            &raw mut len,
        )
    };
    check(result)?;
    Ok(statistics.tp_drops.into())
}

/// Sets a socket option.
///
/// # Safety
/// `T` must be the type that the option takes, and pointers in `value` must be valid for the
/// option.
unsafe fn set_option<T>(
    socket: &impl AsRawFd,
    level: c_int,
    option: c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: `value` is readable for its size; `T` suits the option, by the caller's contract.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const *value).cast::<c_void>(),
            size_of::<T>() as socklen_t,
        )
    };
    check(result)
}

fn check(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
