//! Streams of the C library (stdio(3)) on split sockets. Streams of fdopen(3) would read and write
//! by system calls within the C library; those made here call functions of this library instead. So
//! do the standard streams once a split socket gets their descriptor. `read`, `write` and `close`
//! of the C library are called by name here, and resolve to those of this library.

use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use capi::abi::set_errno;
use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use rustix::io::Errno;

use crate::attached::is_split;
use crate::library::next;

/// `cookie_io_functions_t` of fopencookie(3).
#[repr(C)]
struct CookieFunctions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, with: CookieFunctions) -> *mut FILE;
    fn __flbf(stream: *mut FILE) -> c_int;
    fn __fbufsize(stream: *mut FILE) -> size_t;

    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// `_IOLBF` and `_IONBF` of setvbuf(3).
const LINE_BUFFERED: c_int = 1;
const UNBUFFERED: c_int = 2;

type FdOpen = unsafe extern "C" fn(c_int, *const c_char) -> *mut FILE;
type FileNo = unsafe extern "C" fn(*mut FILE) -> c_int;

/// Functions of the C library.
#[derive(Debug)]
struct Library {
    fdopen: Option<FdOpen>,
    fileno: Option<FileNo>,
}

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Finds the functions; not after a fork, where a lock of the loader may be held forever.
pub(crate) fn find() {
    library();
}

fn library() -> &'static Library {
    LIBRARY.get_or_init(|| {
        // SAFETY: the C library's functions have the types given here.
        unsafe {
            Library {
                fdopen: transmute::<*mut c_void, Option<FdOpen>>(next(c"fdopen")),
                fileno: transmute::<*mut c_void, Option<FileNo>>(next(c"fileno")),
            }
        }
    })
}

/// A stream of a split socket. The list of streams only grows, and closed streams' places are
/// reused: so a child of a fork meets no locked mutex.
#[derive(Debug)]
struct Stream {
    file: AtomicPtr<FILE>,
    fd: AtomicI32,
    next: AtomicPtr<Stream>,
}

static STREAMS: AtomicPtr<Stream> = AtomicPtr::new(ptr::null_mut());

fn streams() -> impl Iterator<Item = &'static Stream> {
    // SAFETY: list items are never freed.
    let get = |at: *mut Stream| unsafe { at.as_ref() };
    let first = get(STREAMS.load(Ordering::Acquire));
    std::iter::successors(first, move |stream| {
        get(stream.next.load(Ordering::Acquire))
    })
}

/// Takes a place for a stream, and reserves it until the stream is made.
fn take_place(fd: c_int) -> &'static Stream {
    let reserved = ptr::without_provenance_mut(1);
    let free = streams().find(|stream| {
        let file = &stream.file;
        let (taken, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        file.compare_exchange(ptr::null_mut(), reserved, taken, failed)
            .is_ok()
    });
    let stream = free.unwrap_or_else(|| {
        let stream: &'static Stream = Box::leak(Box::new(Stream {
            file: AtomicPtr::new(reserved),
            fd: AtomicI32::new(fd),
            next: AtomicPtr::new(ptr::null_mut()),
        }));
        let _ = STREAMS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |first| {
            stream.next.store(first, Ordering::Release);
            Some(ptr::from_ref(stream).cast_mut())
        });
        stream
    });
    stream.fd.store(fd, Ordering::Release);
    stream
}

/// fdopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: `mode` is a string, by the contract of fdopen(3).
    unsafe {
        if !is_split(fd) {
            return library().fdopen.map_or_else(
                || {
                    set_errno(Errno::NOSYS);
                    ptr::null_mut()
                },
                |fdopen| fdopen(fd, mode),
            );
        }
        open(fd, mode)
    }
}

/// Makes a stream.
unsafe fn open(fd: c_int, mode: *const c_char) -> *mut FILE {
    let stream = take_place(fd);
    let cookie = ptr::from_ref(stream).cast_mut().cast::<c_void>();
    let functions = CookieFunctions {
        read,
        write,
        seek,
        close,
    };
    // SAFETY: `mode` is a string, by the caller's contract; the functions accept this cookie.
    let file = unsafe { fopencookie(cookie, mode, functions) };
    stream.file.store(file, Ordering::Release);
    file
}

/// Standard streams that use this library: they do so until the program ends, since this library
/// handles files as well.
static REPLACED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// Redirects the standard stream of a descriptor to this library if the descriptor now is a split
/// socket. Output that is still buffered is lost.
pub(crate) fn note_split(fd: c_int) {
    let of = |place: usize| REPLACED.get(place);
    let Some(replaced) = usize::try_from(fd).ok().and_then(of) else {
        return;
    };
    if !is_split(fd) || replaced.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: these are variables of the C library, to which programs may assign too.
    unsafe {
        let (variable, mode) = match fd {
            0 => (&raw mut stdin, c"r"),
            1 => (&raw mut stdout, c"w"),
            _ => (&raw mut stderr, c"w"),
        };
        let before = *variable;
        if before.is_null() || splitway_preload_fileno(before) != fd {
            return;
        }
        let new = open(fd, mode.as_ptr());
        if new.is_null() {
            return;
        }
        if fd == 2 || __fbufsize(before) == 1 {
            libc::setvbuf(new, ptr::null_mut(), UNBUFFERED, 0);
        } else if __flbf(before) != 0 {
            libc::setvbuf(new, ptr::null_mut(), LINE_BUFFERED, 0);
        }
        replaced.store(true, Ordering::Relaxed);
        *variable = new;
    }
}

/// fileno(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_fileno(file: *mut FILE) -> c_int {
    if let Some(stream) = streams().find(|stream| stream.file.load(Ordering::Acquire) == file) {
        return stream.fd.load(Ordering::Acquire);
    }
    let Some(fileno) = library().fileno else {
        set_errno(Errno::NOSYS);
        return -1;
    };
    // SAFETY: `file` is an open stream, by the contract of fileno(3).
    unsafe { fileno(file) }
}

/// `fileno` for a caller that holds the stream's lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splitway_preload_fileno_unlocked(file: *mut FILE) -> c_int {
    // SAFETY: `file` is an open stream, by the caller's contract. In the C library both names are
    // one function.
    unsafe { splitway_preload_fileno(file) }
}

/// Returns the stream of a cookie.
unsafe fn stream(cookie: *mut c_void) -> &'static Stream {
    // SAFETY: the cookie is the pointer that `fopencookie` was given; streams are never freed.
    unsafe { &*cookie.cast::<Stream>() }
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: `to` has `len` writable bytes, by the contract of fopencookie(3).
    unsafe { libc::read(stream(cookie).fd.load(Ordering::Acquire), to.cast(), len) }
}

/// Writes all bytes, as streams require; fewer if a write fails.
unsafe extern "C-unwind" fn write(
    cookie: *mut c_void,
    from: *const c_char,
    len: size_t,
) -> ssize_t {
    let mut done = 0;
    // SAFETY: `from` has `len` readable bytes, by the contract of fopencookie(3), and `done` is at
    // most `len`.
    unsafe {
        let fd = stream(cookie).fd.load(Ordering::Acquire);
        while done < len {
            match libc::write(fd, from.add(done).cast(), len - done) {
                written @ 1.. => done += written as size_t,
                _ => break,
            }
        }
    }
    done as ssize_t
}

unsafe extern "C-unwind" fn seek(_: *mut c_void, _: *mut off64_t, _: c_int) -> c_int {
    set_errno(Errno::SPIPE);
    -1
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: the cookie is that of an open stream, by the contract of fopencookie(3).
    let stream = unsafe { stream(cookie) };
    let fd = stream.fd.load(Ordering::Acquire);
    stream.file.store(ptr::null_mut(), Ordering::Release);
    // SAFETY: close takes a number, which is the stream's.
    unsafe { libc::close(fd) }
}
