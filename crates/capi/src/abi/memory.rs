//! Pointers of C as slices, addresses, and values of options.

use std::io::{IoSlice, IoSliceMut};
use std::mem::size_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::slice;
use std::time::Duration;

use rustix::io::{Errno, Result};

use super::probe::{check_bytes, check_items, check_range, check_value};
use crate::{Family, Info};

/// Most buffers of a message: `IOV_MAX` of Linux.
const PIECES_MAX: usize = 1024;

/// Most bytes of a call: `MAX_RW_COUNT` of Linux.
pub(crate) const CALL_BYTES_MAX: usize = 0x7fff_f000;

/// Returns `len` bytes of C as a slice; EFAULT for an address that no program can have, unless
/// `len` is 0.
///
/// # Safety
/// The pointer is null, or `len` bytes there may be read as long as the slice is in use.
pub(crate) unsafe fn bytes<'a>(at: *const libc::c_void, len: usize) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    check_range(at.addr(), len.min(CALL_BYTES_MAX))?;
    // SAFETY: the bytes are readable, by the caller's contract; `len` is below the maximum of a
    // slice.
    Ok(unsafe { slice::from_raw_parts(at.cast(), len.min(CALL_BYTES_MAX)) })
}

/// Returns the bytes of a structure; EFAULT unless they are mapped.
///
/// # Safety
/// `len` bytes, if they are mapped, may be read as long as the slice is in use.
pub(crate) unsafe fn structure<'a>(at: *const libc::c_void, len: usize) -> Result<&'a [u8]> {
    if len > 0 {
        check_bytes(at, len)?;
    }
    // SAFETY: the bytes are readable while the slice is in use, by the caller's contract.
    unsafe { bytes(at, len) }
}

/// Like [`bytes`], for bytes to be written.
///
/// # Safety
/// The pointer is null, or `len` bytes there are the slice's alone as long as it is in use.
pub(crate) unsafe fn bytes_mut<'a>(at: *mut libc::c_void, len: usize) -> Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check_range(at.addr(), len.min(CALL_BYTES_MAX))?;
    // SAFETY: the bytes are the slice's alone, by the caller's contract; `len` is below the maximum
    // of a slice.
    Ok(unsafe { slice::from_raw_parts_mut(at.cast(), len.min(CALL_BYTES_MAX)) })
}

/// Returns an array of C as a slice; EFAULT unless it is mapped.
///
/// # Safety
/// The pointer is null, or `count` items there are the slice's alone as long as it is in use.
pub(crate) unsafe fn items<'a, T>(at: *mut T, count: usize) -> Result<&'a mut [T]> {
    if count == 0 {
        return Ok(&mut []);
    }
    check_items(at, count)?;
    // SAFETY: the items are the slice's alone while it is in use, by the caller's contract.
    Ok(unsafe { slice::from_raw_parts_mut(at, count) })
}

/// Writes a value of C; EFAULT unless the memory is mapped.
///
/// # Safety
/// The pointer is null, or a value may be written there.
pub(crate) unsafe fn put<T>(at: *mut T, value: T) -> Result<()> {
    check_value(at)?;
    // SAFETY: a value may be written at `at`, by the caller's contract.
    unsafe { at.write_unaligned(value) };
    Ok(())
}

/// EINVAL for a length whose sign bit is set (`import_iovec` of Linux).
fn check_length(vector: &libc::iovec) -> Result<()> {
    isize::try_from(vector.iov_len).map_err(|_| Errno::INVAL)?;
    Ok(())
}

/// Returns the buffers of a message to send; `too_many` if there are more than [`PIECES_MAX`].
///
/// # Safety
/// The pointer is null or has `count` buffers, which may be read as long as the slices are in use.
pub(crate) unsafe fn pieces<'a>(
    at: *const libc::iovec,
    count: usize,
    too_many: Errno,
) -> Result<Vec<IoSlice<'a>>> {
    if count > PIECES_MAX {
        return Err(too_many);
    }
    // SAFETY: `at` is null or has `count` buffers, by the caller's contract; the slice is only
    // read.
    let vectors = unsafe { items(at.cast_mut(), count)? };
    let mut pieces = Vec::with_capacity(count);
    for vector in vectors {
        check_length(vector)?;
        // SAFETY: each buffer is readable for its length, by the caller's contract.
        let bytes = unsafe { bytes(vector.iov_base, vector.iov_len)? };
        pieces.push(IoSlice::new(bytes));
    }
    Ok(pieces)
}

/// Returns the buffers of a message to receive; `too_many` as in [`pieces`].
///
/// # Safety
/// The pointer is null or has `count` buffers, which are the slices' alone while they are in use.
pub(crate) unsafe fn pieces_mut<'a>(
    at: *const libc::iovec,
    count: usize,
    too_many: Errno,
) -> Result<Vec<IoSliceMut<'a>>> {
    if count > PIECES_MAX {
        return Err(too_many);
    }
    // SAFETY: `at` is null or has `count` buffers, by the caller's contract; the slice is only
    // read.
    let vectors = unsafe { items(at.cast_mut(), count)? };
    let mut pieces = Vec::with_capacity(count);
    for vector in vectors {
        check_length(vector)?;
        // SAFETY: each buffer is the slice's alone for its length, by the caller's contract.
        let bytes = unsafe { bytes_mut(vector.iov_base, vector.iov_len)? };
        pieces.push(IoSliceMut::new(bytes));
    }
    Ok(pieces)
}

/// Returns the bytes of an address that C has passed. EINVAL if it is longer than any address.
///
/// # Safety
/// The pointer is null, or `len` bytes there may be read as long as the slice is in use.
pub(crate) unsafe fn raw_address<'a>(
    at: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<&'a [u8]> {
    if len as usize > size_of::<libc::sockaddr_storage>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: `len` bytes at `at` are readable, by the caller's contract.
    unsafe { structure(at.cast(), len as usize) }
}

/// Returns the address that C has passed to a socket of a family. EINVAL if it is too short,
/// EAFNOSUPPORT if its family differs.
pub fn address(bytes: &[u8], family: Family) -> Result<SocketAddr> {
    // RFC 2553 added the scope; the kernel still accepts addresses without it.
    const V6_BYTES_MIN: usize = 24;
    let (least, wanted) = match family {
        Family::V4 => (size_of::<libc::sockaddr_in>(), libc::AF_INET),
        Family::V6 => (V6_BYTES_MIN, libc::AF_INET6),
    };
    if bytes.len() < least {
        return Err(Errno::INVAL);
    }
    let (found, rest) = bytes.split_first_chunk().ok_or(Errno::INVAL)?;
    let (port, rest) = rest.split_first_chunk().ok_or(Errno::INVAL)?;
    let port = u16::from_be_bytes(*port);
    if i32::from(u16::from_ne_bytes(*found)) != wanted {
        return Err(Errno::AFNOSUPPORT);
    }
    match family {
        Family::V4 => {
            let ip: [u8; 4] = *rest.first_chunk().ok_or(Errno::INVAL)?;
            Ok((Ipv4Addr::from(ip), port).into())
        }
        Family::V6 => {
            let (flow, rest) = rest.split_first_chunk().ok_or(Errno::INVAL)?;
            let (ip, rest) = rest.split_first_chunk::<16>().ok_or(Errno::INVAL)?;
            let scope = rest.first_chunk().map_or(0, |it| u32::from_ne_bytes(*it));
            let flow = u32::from_ne_bytes(*flow);
            Ok(SocketAddrV6::new(Ipv6Addr::from(*ip), port, flow, scope).into())
        }
    }
}

/// Returns the IPv4 or IPv6 address that C has passed, if it is one.
///
/// # Safety
/// `at` is null or has `len` bytes.
pub unsafe fn address_of(at: *const libc::sockaddr, len: libc::socklen_t) -> Option<SocketAddr> {
    // SAFETY: `at` is null or has `len` bytes, by the caller's contract.
    let bytes = unsafe { raw_address(at, len) }.ok()?;
    let families = [Family::V4, Family::V6].into_iter();
    families
        .filter_map(|family| address(bytes, family).ok())
        .next()
}

/// Returns the address that C has passed to bind(2). As in Linux, an IPv4 socket also accepts the
/// unspecified address with `AF_UNSPEC`.
pub(crate) fn address_to_bind(bytes: &[u8], family: Family) -> Result<SocketAddr> {
    match address(bytes, family) {
        Err(Errno::AFNOSUPPORT) if family == Family::V4 && is_unspecified(bytes) == Ok(true) => {
            let mut bytes = bytes.to_vec();
            bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            let address = address(&bytes, family)?;
            Some(address)
                .filter(|address| address.ip().is_unspecified())
                .ok_or(Errno::AFNOSUPPORT)
        }
        other => other,
    }
}

/// Reports whether an address has `AF_UNSPEC`, with any length.
pub(crate) fn is_unspecified(bytes: &[u8]) -> Result<bool> {
    let family: &[u8; 2] = bytes.first_chunk().ok_or(Errno::INVAL)?;
    Ok(i32::from(u16::from_ne_bytes(*family)) == libc::AF_UNSPEC)
}

/// Returns an address in its C representation.
pub fn address_bytes(address: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of::<libc::sockaddr_in6>());
    let family = match address {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    bytes.extend((family as u16).to_ne_bytes());
    bytes.extend(address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => {
            bytes.extend(address.ip().octets());
            bytes.resize(size_of::<libc::sockaddr_in>(), 0);
        }
        SocketAddr::V6(address) => {
            bytes.extend(address.flowinfo().to_ne_bytes());
            bytes.extend(address.ip().octets());
            bytes.extend(address.scope_id().to_ne_bytes());
        }
    }
    bytes
}

/// Writes an address, cut off at the room that `len` names, and its whole length into `len`.
///
/// # Safety
/// Each pointer is null or valid, and `at` has as much room as `len` names.
pub(crate) unsafe fn put_address(
    at: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
    address: SocketAddr,
) -> Result<()> {
    // SAFETY: the pointers are null or valid and `at` has the room that `len` names, by the
    // caller's contract.
    unsafe { put_bytes(at.cast(), len, &address_bytes(address), true) }
}

/// Writes bytes, cut off at the room that `len` names. Sets `len` to their whole length if
/// `tell_whole`, else to the length written.
///
/// # Safety
/// Each pointer is null or valid, and `at` has as much room as `len` names.
pub(crate) unsafe fn put_bytes(
    at: *mut libc::c_void,
    len: *mut libc::socklen_t,
    bytes: &[u8],
    tell_whole: bool,
) -> Result<()> {
    check_value(len)?;
    // SAFETY: `len` is not null, and valid by the caller's contract.
    let room = unsafe { len.read_unaligned() };
    if room > libc::socklen_t::MAX / 2 {
        return Err(Errno::INVAL);
    }
    let written = bytes.len().min(room as usize);
    if written > 0 {
        check_bytes(at, written)?;
    }
    let told = if tell_whole { bytes.len() } else { written };
    if written > 0 {
        // SAFETY: `at` has room for `written` bytes, by the caller's contract.
        unsafe {
            at.cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), written);
        }
    }
    // SAFETY: `len` is not null, and valid by the caller's contract.
    unsafe { len.write_unaligned(told as libc::socklen_t) };
    Ok(())
}

/// Reads a `struct timeval`; `None` is no limit. EDOM if the microseconds are out of range.
pub(crate) fn timeout(bytes: &[u8]) -> Result<Option<Duration>> {
    let (seconds, rest) = bytes.split_first_chunk().ok_or(Errno::INVAL)?;
    let us = rest.first_chunk().ok_or(Errno::INVAL)?;
    let (seconds, us) = (i64::from_ne_bytes(*seconds), i64::from_ne_bytes(*us));
    if !(0..1_000_000).contains(&us) {
        return Err(Errno::DOM);
    }
    // A negative time counts as 0, as in `sock_set_timeout`.
    let seconds = u64::try_from(seconds).unwrap_or(0);
    let timeout = Duration::from_secs(seconds) + Duration::from_micros(us as u64);
    Ok((!timeout.is_zero()).then_some(timeout))
}

/// Returns a timeout as a `struct timeval`.
pub(crate) fn timeout_bytes(timeout: Option<Duration>) -> Vec<u8> {
    let timeout = timeout.unwrap_or_default();
    let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
    let us = i64::from(timeout.subsec_micros());
    [seconds.to_ne_bytes(), us.to_ne_bytes()].concat()
}

/// Returns Linux's `struct tcp_info` up to `tcpi_rcv_wnd`; fields unknown to the host stack are
/// zero.
pub(crate) fn info_bytes(info: &Info) -> Vec<u8> {
    let mut bytes = vec![
        info.state,
        info.ca_state,
        info.retransmits,
        info.probes,
        info.backoff,
        info.options,
        info.snd_wscale & 15 | info.rcv_wscale << 4,
        0,
    ];
    let mut words = |words: &[u32]| {
        for word in words {
            bytes.extend(word.to_ne_bytes());
        }
    };
    words(&[info.rto.get(), info.ato.get()]);
    words(&[info.snd_mss.get(), info.rcv_mss.get()]);
    words(&[info.unacked.get(), info.sacked.get(), info.lost.get()]);
    // Retransmitted, then `tcpi_fackets`.
    words(&[info.retrans.get(), 0]);
    // Data sent, ACK sent, data received, ACK received.
    words(&[info.last_data_sent_ms.get(), 0]);
    words(&[info.last_data_recv_ms.get(), 0]);
    words(&[info.pmtu.get(), info.rcv_ssthresh.get()]);
    words(&[info.rtt.get(), info.rttvar.get(), info.snd_ssthresh.get()]);
    // Then `tcpi_reordering`.
    words(&[info.snd_cwnd.get(), info.advmss.get(), 0]);
    words(&[info.rcv_rtt.get(), info.rcv_space.get()]);
    words(&[info.total_retrans.get()]);
    let mut longs = |longs: &[u64]| {
        for long in longs {
            bytes.extend(long.to_ne_bytes());
        }
    };
    longs(&[info.pacing_rate.get(), u64::MAX]);
    longs(&[info.bytes_acked.get(), info.bytes_received.get()]);
    let segments = [
        info.segs_out,
        info.segs_in,
        info.notsent_bytes,
        info.min_rtt,
    ];
    for word in segments {
        bytes.extend(word.get().to_ne_bytes());
    }
    // `tcpi_data_segs_in` and `_out`.
    bytes.extend([0; 8]);
    bytes.extend(info.delivery_rate.get().to_ne_bytes());
    // `tcpi_busy_time`, `_rwnd_limited`, `_sndbuf_limited`, `_delivered`, `_delivered_ce`.
    bytes.extend([0; 32]);
    bytes.extend(info.bytes_sent.get().to_ne_bytes());
    bytes.extend(info.bytes_retrans.get().to_ne_bytes());
    // `tcpi_dsack_dups`, `_reord_seen`, `_rcv_ooopack`.
    bytes.extend([0; 12]);
    bytes.extend(info.snd_wnd.get().to_ne_bytes());
    bytes.extend(info.rcv_wnd.get().to_ne_bytes());
    bytes
}
