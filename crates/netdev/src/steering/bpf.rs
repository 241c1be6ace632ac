//! `bpf(2)`: maps, their memory, and programs.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::AtomicU32;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::assembler::Instruction;

/// Commands (`enum bpf_cmd`).
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;

const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_ARRAY: u32 = 2;
const MMAPABLE: u32 = 1 << 10;
/// For sockets.
pub(super) const PROG_TYPE_SOCKET_FILTER: u32 = 1;
/// For interfaces.
pub(super) const PROG_TYPE_SCHED_CLS: u32 = 3;
/// Where frames arrive at an interface, Linux 6.6.
const ATTACH_TCX_INGRESS: u32 = 46;

/// Attributes of `BPF_MAP_CREATE`, as far as they are needed here.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
}

/// Attributes of `BPF_PROG_LOAD`, as far as they are needed here.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
}

/// Attributes of `BPF_MAP_UPDATE_ELEM` and `BPF_MAP_DELETE_ELEM`.
#[repr(C)]
struct MapElement {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Attributes of `BPF_LINK_CREATE`, as far as they are needed here.
#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// Bytes of a key of [`create_set`].
pub(super) const SET_KEY_BYTES: usize = 16;

/// Creates a set of keys.
pub(super) fn create_set(entries_max: u32) -> io::Result<OwnedFd> {
    let attributes = MapCreate {
        map_type: MAP_TYPE_HASH,
        key_bytes: SET_KEY_BYTES as u32,
        value_bytes: size_of::<u32>() as u32,
        entries_max,
        flags: 0,
    };
    // SAFETY: `MapCreate` is a prefix of this command's attributes, the rest is zero, and it holds
    // no pointers.
    unsafe { bpf(MAP_CREATE, &attributes) }
}

/// Puts a key into a set, or takes it out.
pub(super) fn change_set(
    set: BorrowedFd<'_>,
    key: &[u8; SET_KEY_BYTES],
    is_in: bool,
) -> io::Result<()> {
    let value = 1_u32;
    let attributes = MapElement {
        map: set.as_raw_fd() as u32,
        padding: 0,
        key: key.as_ptr() as u64,
        value: if is_in {
            ptr::from_ref(&value) as u64
        } else {
            0
        },
        flags: 0,
    };
    let command = if is_in {
        MAP_UPDATE_ELEM
    } else {
        MAP_DELETE_ELEM
    };
    // SAFETY: `MapElement` has all attributes of both commands. Its pointers are to `key` and
    // `value`, which are as long as keys and values of a set, and the kernel copies both during
    // the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            &raw const attributes,
            size_of::<MapElement>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has a program of [`PROG_TYPE_SCHED_CLS`] look at each frame that arrives at an interface, until
/// the returned descriptor and its duplicates are closed.
pub(super) fn attach_to_ingress(program: &OwnedFd, interface: u32) -> io::Result<OwnedFd> {
    let attributes = LinkCreate {
        program: program.as_raw_fd() as u32,
        interface,
        attach_type: ATTACH_TCX_INGRESS,
        flags: 0,
    };
    // SAFETY: `LinkCreate` is a prefix of this command's attributes, the rest is zero, and it holds
    // no pointers.
    unsafe { bpf(LINK_CREATE, &attributes) }
}

/// Creates an array of `elements` elements, which can be mapped.
pub(super) fn create_array(elements: u32, element_bytes: u32) -> io::Result<OwnedFd> {
    let attributes = MapCreate {
        map_type: MAP_TYPE_ARRAY,
        key_bytes: size_of::<u32>() as u32,
        value_bytes: element_bytes,
        entries_max: elements,
        flags: MMAPABLE,
    };
    // SAFETY: `MapCreate` is a prefix of this command's attributes, the rest is zero, and it holds
    // no pointers.
    unsafe { bpf(MAP_CREATE, &attributes) }
}

/// Loads a program of a type.
pub(super) fn load(prog_type: u32, program: &[Instruction]) -> io::Result<OwnedFd> {
    let attributes = ProgLoad {
        prog_type,
        instructions: program.len() as u32,
        code: program.as_ptr() as u64,
        // The program calls no helper that requires another license.
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
    };
    // SAFETY: `ProgLoad` is a prefix of this command's attributes, the rest is zero, and its
    // pointers are to `program`, with its length, and to a string that ends with zero; the kernel
    // copies both during the call.
    unsafe { bpf(PROG_LOAD, &attributes) }
}

/// Calls `bpf(2)` for a new descriptor.
///
/// # Safety
/// `T` must be a prefix of the command's attributes, and pointers in it must be valid for the
/// command.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: `attributes` is readable for its size; `T` suits the command, by the caller's
    // contract.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the commands of all callers return a new descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The memory of a map.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<AtomicU32>,
    words: usize,
}

// SAFETY: The mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: It gives out only atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `words` words of a map, which must have as many.
    pub(super) fn new(map: BorrowedFd<'_>, words: usize) -> io::Result<Mapping> {
        // SAFETY: A fresh shared mapping at an address of the kernel's choice touches no memory in
        // use.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                words * size_of::<u32>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map,
                0,
            )?
        };
        // The kernel refuses to map more than the map has.
        Ok(Mapping {
            start: NonNull::new(start.cast()).expect("mmap has not failed"),
            words,
        })
    }

    pub(super) fn words(&self) -> &[AtomicU32] {
        // SAFETY: the mapping has `words` words, aligned to a page, and lives as long as `self`;
        // all other users access them atomically as well.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let bytes = self.words * size_of::<u32>();
        // SAFETY: The mapping belongs to `self`, and nothing borrows it any more. The call cannot
        // fail; if it did, there would be nothing to do.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), bytes) };
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// `BPF_PROG_TEST_RUN`.
    const PROG_TEST_RUN: libc::c_long = 10;

    #[repr(C)]
    struct TestRun {
        program: u32,
        result: u32,
        bytes_in: u32,
        bytes_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration_ns: u32,
    }

    /// Returns the result of a program for a frame that has reached the loopback device, whose
    /// hardware address is zero.
    pub(in super::super) fn run(program: &OwnedFd, frame: &[u8]) -> u32 {
        let mut attributes = TestRun {
            program: program.as_raw_fd() as u32,
            result: 0,
            bytes_in: frame.len() as u32,
            bytes_out: 0,
            data_in: frame.as_ptr() as u64,
            data_out: 0,
            repeat: 0,
            duration_ns: 0,
        };
        // SAFETY: `TestRun` is a prefix of this command's attributes; its pointer is that of
        // `frame`, with its length.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                PROG_TEST_RUN,
                &raw mut attributes,
                size_of::<TestRun>(),
            )
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        attributes.result
    }
}
