//! Split sockets from other processes: left open across `exec`, received in `SCM_RIGHTS` messages,
//! or fetched by pidfd_getfd(2).

use std::fs;

use capi::abi::{last_error, sw_recover};
use libc::{c_int, msghdr};
use rustix::io::Errno;

use crate::attached::complain;
use crate::pending;
use crate::streams;

/// Descriptors to check if there is no `/proc`.
const LOOKED_AT: c_int = 1024;

/// Recovers the split sockets that were left open across `exec`.
pub(crate) fn recover() {
    match fs::read_dir("/proc/self/fd") {
        Ok(entries) => {
            let names = entries.flatten().map(|entry| entry.file_name());
            let numbers = names.filter_map(|name| name.to_str()?.parse().ok());
            // Collected first, so that the directory's own descriptor is closed again.
            let numbers: Vec<c_int> = numbers.collect();
            numbers.into_iter().for_each(recover_one);
        }
        Err(_) => (0..LOOKED_AT).for_each(recover_one),
    }
}

/// Recovers the descriptors of a received message.
///
/// # Safety
/// The kernel has written the message.
pub(crate) unsafe fn recover_passed(message: &msghdr) {
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        return;
    }
    // SAFETY: the kernel has written the control messages, so they are complete, and the
    // descriptors are contiguous behind the header.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                let numbers = libc::CMSG_DATA(head).cast::<c_int>();
                let bytes = (*head).cmsg_len - libc::CMSG_LEN(0) as usize;
                for place in 0..bytes / size_of::<c_int>() {
                    let fd = numbers.add(place).read_unaligned();
                    recover_received(fd);
                }
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
}

/// Recovers a descriptor that was just received from another process.
pub(crate) fn recover_received(fd: c_int) {
    pending::remove(fd);
    recover_one(fd);
}

fn recover_one(fd: c_int) {
    if sw_recover(fd) >= 0 {
        streams::note_split(fd);
        return;
    }
    let errno = last_error();
    // EBADF: no split socket, or its connection is over.
    if errno != Errno::BADF {
        complain(&format!(
            "descriptor {fd} was a split socket, and is none here: {errno}"
        ));
    }
}
