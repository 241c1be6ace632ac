//! Checks that the memory behind a pointer of C is mapped: EFAULT if it is not.
//!
//! For structures, the kernel is asked about the first and the last page. Structures mostly lie on
//! a few pages, above all of a stack, and each thread remembers the pages that it has asked about.
//! A later unmapping goes unnoticed, and so does memory that may not be written. For buffers to be
//! sent or received, only the range of addresses is checked: asking about each buffer would cost
//! more than copying its bytes.

use std::cell::Cell;
use std::mem::size_of;

use rustix::io::{Errno, Result};

use crate::client::few_calls::has_few_calls;
use crate::sys::{system_call, word};

const PAGE_BYTES: usize = 4096;

/// Highest address of a program on any machine; those above are the kernel's.
const ADDRESS_MAX: usize = (1 << 56) - 1;

/// Pages that a thread remembers.
const PAGES: usize = 8;

thread_local! {
    /// Mapped pages, each at the index of its number modulo [`PAGES`]; the first page is never
    /// mapped.
    static THERE: [Cell<usize>; PAGES] = const { [const { Cell::new(0) }; PAGES] };
}

/// EFAULT if no program can have memory in the range.
pub(crate) fn check_range(at: usize, len: usize) -> Result<()> {
    let end = at.checked_add(len).ok_or(Errno::FAULT)?;
    if at < PAGE_BYTES || end > ADDRESS_MAX {
        return Err(Errno::FAULT);
    }
    Ok(())
}

/// EFAULT unless `len` bytes are mapped, judged by the first page and the last.
pub(crate) fn check_bytes<T>(at: *const T, len: usize) -> Result<()> {
    let at = at.addr();
    check_range(at, len)?;
    check_page(at)?;
    check_page(at + len.saturating_sub(1))
}

/// EFAULT unless a value of the type is mapped.
pub fn check_value<T>(at: *const T) -> Result<()> {
    check_bytes(at, size_of::<T>())
}

/// EFAULT unless an array is mapped.
pub fn check_items<T>(at: *const T, count: usize) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    check_bytes(at, count.saturating_mul(size_of::<T>()))
}

/// EFAULT unless an optional value is null or mapped.
pub fn check_given<T>(at: *const T) -> Result<()> {
    if at.is_null() {
        return Ok(());
    }
    check_value(at)
}

fn check_page(at: usize) -> Result<()> {
    let page = at / PAGE_BYTES;
    let is_known = THERE.with(|there| there[page % PAGES].get() == page);
    if is_known { Ok(()) } else { ask(at) }
}

/// Makes the kernel read a signal set at an address without using it. The filter of a process that
/// confines itself may kill it for that call: its pointers are not checked.
#[cold]
fn ask(at: usize) -> Result<()> {
    if has_few_calls() {
        return Ok(());
    }
    const SIGNALS_BYTES: usize = 8;
    const DO_NOTHING: libc::c_long = -1;
    let place = std::ptr::with_exposed_provenance::<u64>(at & !(SIGNALS_BYTES - 1));
    let arguments = [
        DO_NOTHING,
        word(place),
        0,
        SIGNALS_BYTES as libc::c_long,
        0,
        0,
    ];
    // SAFETY: the kernel reads `place`, or returns EFAULT.
    match unsafe { system_call(libc::SYS_rt_sigprocmask, arguments) } {
        Err(Errno::FAULT) => Err(Errno::FAULT),
        // The kernel has read the set, and rejects the operation.
        Err(Errno::INVAL) => {
            let page = at / PAGE_BYTES;
            THERE.with(|there| there[page % PAGES].set(page));
            Ok(())
        }
        // The program's filter forbids the call.
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;

    #[test]
    fn memory_that_is_not_there_is_found() {
        let value = 5u64;
        assert_eq!(check_value(&raw const value), Ok(()));
        for at in [0, 1, 4095, usize::MAX, usize::MAX - 7, 1 << 56] {
            let at = std::ptr::without_provenance::<u64>(at);
            assert_eq!(check_value(at), Err(Errno::FAULT), "{at:?}");
        }
        assert_eq!(check_given(std::ptr::null::<u64>()), Ok(()));
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused address, and the pages are not accessed.
        let pages = unsafe {
            let flags = MapFlags::PRIVATE;
            let pages = mmap_anonymous(std::ptr::null_mut(), 2 * PAGE_BYTES, access, flags);
            let pages = pages.unwrap().cast::<u8>();
            munmap(pages.add(PAGE_BYTES).cast(), PAGE_BYTES).unwrap();
            pages
        };
        assert_eq!(check_bytes(pages, PAGE_BYTES), Ok(()));
        assert_eq!(check_bytes(pages, PAGE_BYTES + 1), Err(Errno::FAULT));
        // SAFETY: this test has mapped the page.
        unsafe { munmap(pages.cast(), PAGE_BYTES).unwrap() };
    }
}
