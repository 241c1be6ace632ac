//! A reader on io_uring: one system call starts a batch of reads.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::{fmt, io};

use contract::{Growth, PassedId};
use io_uring::register::Restriction;
use io_uring::{IoUring, Submitter, opcode, types};
use rustix::io::Errno;

use super::pool::{Opener, PoolReader};
use super::transfer::Transfer;
use super::{Completion, FileToken, Read, Reader};
use crate::buffer::{HUGE_PAGE_BYTES, Region};

/// Reads under way at once; more wait for one to complete. A disk is busy with far fewer.
const DEPTH: u32 = 128;

/// How long the end of a session waits for reads under way, in seconds.
const DROP_SECONDS_MAX: u64 = 2;

/// Constants of `linux/io_uring.h`: making place for registered memory, and filling it.
const IORING_REGISTER_BUFFERS2: u8 = 15;
const IORING_REGISTER_BUFFERS_UPDATE: u8 = 16;

/// Threads for each mount: for paths that the kernel does not have in memory, for directories, and
/// for reads that may wait.
const MOUNT_THREADS: usize = 16;

/// Reads with io_uring. Opens a file at once if the kernel knows its path, else in a thread.
pub(crate) struct UringReader {
    ring: IoUring,
    files: PoolReader,
    /// Transfers under way in the kernel, by the number in the submission.
    under_way: Vec<Option<Transfer>>,
    /// Free places of `under_way`.
    vacant: Vec<u32>,
    /// Transfers that wait for a place.
    waiting: VecDeque<Transfer>,
    completions: VecDeque<Completion>,
    registered: Option<Registered>,
}

/// Memory that the kernel keeps mapped, which saves looking up its pages for each read: a region in
/// pieces of [`HUGE_PAGE_BYTES`], each registered when it is first read into, since registered
/// memory is allocated at once.
#[derive(Debug)]
struct Registered {
    region: Region,
    /// Whether each piece is registered.
    pieces: Vec<bool>,
}

/// Most pieces that the kernel accepts.
const PIECES_MAX: usize = 1 << 14;

impl UringReader {
    /// Fails where the kernel has no io_uring or forbids it (`ENOSYS`, `EPERM`).
    pub(crate) fn new(opener: Opener) -> io::Result<UringReader> {
        // With these flags, completions interrupt nothing; they are collected with the next system
        // call (Linux 5.19).
        let ring = IoUring::builder()
            .setup_r_disabled()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .build(DEPTH)
            .or_else(|error| match error.raw_os_error() {
                Some(code) if code == Errno::INVAL.raw_os_error() => {
                    IoUring::builder().setup_r_disabled().build(DEPTH)
                }
                _ => Err(error),
            })?;
        // A system call filter does not see operations requested through a ring.
        let mut allowed = [
            Restriction::sqe_op(opcode::Read::CODE),
            Restriction::sqe_op(opcode::ReadFixed::CODE),
            Restriction::register_op(IORING_REGISTER_BUFFERS2),
            Restriction::register_op(IORING_REGISTER_BUFFERS_UPDATE),
        ];
        ring.submitter().register_restrictions(&mut allowed)?;
        ring.submitter().register_enable_rings()?;
        UringReader::with(ring, opener)
    }

    fn with(ring: IoUring, opener: Opener) -> io::Result<UringReader> {
        Ok(UringReader {
            ring,
            files: PoolReader::new(opener, MOUNT_THREADS)?,
            under_way: (0..DEPTH).map(|_| None).collect(),
            vacant: (0..DEPTH).rev().collect(),
            waiting: VecDeque::new(),
            completions: VecDeque::new(),
            registered: None,
        })
    }

    fn in_flight(&self) -> usize {
        DEPTH as usize - self.vacant.len()
    }

    /// Gives the kernel a transfer's next piece, or lets the transfer wait for a place.
    fn start(&mut self, transfer: Transfer) {
        match self.vacant.pop() {
            Some(place) => {
                self.under_way[place as usize] = Some(transfer);
                self.push(place);
            }
            None => self.waiting.push_back(transfer),
        }
    }

    fn push(&mut self, place: u32) {
        let Some(transfer) = &mut self.under_way[place as usize] else {
            return;
        };
        let asked = transfer.asked();
        let file = types::Fd(transfer.file.as_fd().as_raw_fd());
        let into = transfer.buffer[asked.at..asked.at + asked.len].as_mut_ptr();
        let registered = self.registered.as_mut();
        let piece = registered.and_then(|known| known.piece(&self.ring.submitter(), into));
        let entry = match piece {
            Some(piece) => opcode::ReadFixed::new(file, into, asked.len as u32, piece)
                .offset(asked.offset)
                .build(),
            None => opcode::Read::new(file, into, asked.len as u32)
                .offset(asked.offset)
                .build(),
        };
        let entry = entry.user_data(u64::from(place));
        // SAFETY: The kernel writes to `into` and uses the descriptor until the completion with
        // this `user_data` is reaped. Both belong to the transfer in `under_way[place]`, whose
        // buffer keeps its memory where it is and whose file is kept open by an `Arc`. The transfer
        // is neither taken out nor touched before that completion (`reap`); `drop` waits for it, or
        // leaks the transfer.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // The submission queue has as many places as `under_way`, and a place has one entry at a
        // time.
        debug_assert!(pushed.is_ok(), "one submission entry for each transfer");
    }

    /// Submits the queue, and lets the kernel post completions. Entries that the kernel does not
    /// take stay in the queue, whose length is the only record of untaken entries.
    fn enter(&mut self) {
        if let Err(error) = self.ring.submit() {
            // Short of memory, or interrupted.
            tracing::debug!(%error, "io_uring_enter");
        }
    }

    /// Collects the kernel's completions.
    fn reap(&mut self) {
        if self.ring.submission().taskrun() {
            // Any system call suffices: the kernel posts completions on its way back.
            self.enter();
        }
        loop {
            let Some(entry) = self.ring.completion().next() else {
                break;
            };
            let place = entry.user_data() as u32;
            let Some(mut transfer) = self
                .under_way
                .get_mut(place as usize)
                .and_then(Option::take)
            else {
                continue;
            };
            let answer = usize::try_from(entry.result())
                .map_err(|_| Errno::from_raw_os_error(-entry.result()));
            if transfer.advance(answer) {
                self.vacant.push(place);
                self.completions.push_back(transfer.finish());
            } else {
                self.under_way[place as usize] = Some(transfer);
                self.push(place);
            }
        }
        while !self.vacant.is_empty()
            && let Some(transfer) = self.waiting.pop_front()
        {
            self.start(transfer);
        }
    }
}

impl Registered {
    /// Makes place for the pieces of a region. The kernel may refuse (Linux 5.19 is needed).
    fn new(submitter: &Submitter<'_>, region: &Region) -> Option<Registered> {
        let pieces = region.bytes().div_ceil(HUGE_PAGE_BYTES).min(PIECES_MAX);
        match submitter.register_buffers_sparse(pieces as u32) {
            Ok(()) => Some(Registered {
                region: region.clone(),
                pieces: vec![false; pieces],
            }),
            Err(error) => {
                tracing::debug!(%error, "no memory is registered with io_uring");
                None
            }
        }
    }

    /// Returns the registered piece that a buffer lies in. Buffers of the region do not cross
    /// pieces.
    fn piece(&mut self, submitter: &Submitter<'_>, into: *mut u8) -> Option<u16> {
        let offset = into.addr().checked_sub(self.region.base().addr())?;
        let number = offset / HUGE_PAGE_BYTES;
        let is_within = offset < self.region.bytes();
        let piece = self.pieces.get_mut(number).filter(|_| is_within)?;
        if !*piece {
            let start = number * HUGE_PAGE_BYTES;
            let vector = libc::iovec {
                iov_base: self.region.base().wrapping_add(start).cast(),
                iov_len: HUGE_PAGE_BYTES.min(self.region.bytes() - start),
            };
            // SAFETY: The vector lies within the region, which stays mapped as long as `self`.
            // Registering does not write to it; reads do, and only those of a transfer that owns
            // the buffer at its address (`push`).
            match unsafe { submitter.register_buffers_update(number as u32, &[vector], None) } {
                Ok(()) => *piece = true,
                Err(error) => {
                    tracing::debug!(
                        %error,
                        "memory is not registered with io_uring: CAP_IPC_LOCK or a higher `ulimit \
                         -l` allows it"
                    );
                    self.pieces.clear();
                    return None;
                }
            }
        }
        u16::try_from(number).ok()
    }
}

impl Reader for UringReader {
    fn prepare(&mut self, region: &Region) {
        self.registered = Registered::new(&self.ring.submitter(), region);
        self.files.prepare(region);
    }

    fn open(&mut self, file: FileToken, path: &[u8], growth: Growth) {
        self.files.open(file, path, growth);
    }

    fn open_passed(&mut self, file: FileToken, passed: PassedId) {
        self.files.open_passed(file, passed);
    }

    fn list(&mut self, file: FileToken, path: &[u8], from: u64) {
        self.files.list(file, path, from);
    }

    fn close(&mut self, file: FileToken) {
        self.files.close(file);
    }

    fn read(&mut self, read: Read) {
        match self.files.file(read.file) {
            // Reads from other file systems block in the submitting system call.
            Some(file) if file.system.is_local() => {
                let transfer = Transfer::new(read, Arc::clone(file));
                self.start(transfer);
            }
            _ => self.files.read(read),
        }
    }

    fn submit(&mut self) {
        if self.has_unsubmitted() {
            self.enter();
        }
    }

    fn has_unsubmitted(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    fn next(&mut self) -> Option<Completion> {
        if self.completions.is_empty() && self.in_flight() > 0 {
            self.reap();
        }
        let completion = self.completions.pop_front().or_else(|| self.files.next());
        if completion.is_none() {
            // Submits the rest of short reads, reads that had to wait for a place, and reads that
            // the kernel has refused so far.
            self.submit();
        }
        completion
    }

    fn wake_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        let [opened, _] = self.files.wake_fds();
        // SAFETY: The descriptor is the ring's, which lives as long as `self`.
        let ring = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
        [Some(ring), opened]
    }
}

impl Drop for UringReader {
    /// Waits for the reads under way, because the kernel writes to their buffers; but not for ever,
    /// because a server that is gone may never answer.
    fn drop(&mut self) {
        self.waiting.clear();
        let patience = types::Timespec::new().sec(DROP_SECONDS_MAX);
        let patience = types::SubmitArgs::new().timespec(&patience);
        while self.in_flight() > 0 {
            match self.ring.submitter().submit_with_args(1, &patience) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // The kernel may write to these buffers later: their memory is never reused.
                    self.under_way.drain(..).for_each(std::mem::forget);
                    return;
                }
            }
            for entry in self.ring.completion() {
                let place = entry.user_data() as u32;
                if let Some(under_way) = self.under_way.get_mut(place as usize)
                    && under_way.take().is_some()
                {
                    self.vacant.push(place);
                }
            }
        }
    }
}

impl fmt::Debug for UringReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringReader")
            .field("in_flight", &self.in_flight())
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::super::ReadToken;
    use super::super::tests::next;
    use super::*;
    use crate::buffer::Buffer;
    use crate::root::RootDir;

    /// A ring that is not enabled yet; `None` only where the kernel has none, or forbids it.
    fn bare_ring() -> Option<IoUring> {
        match IoUring::builder().setup_r_disabled().build(DEPTH) {
            Ok(ring) => Some(ring),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                eprintln!("io_uring is not tested here: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn the_ring_takes_reads_only() {
        let root = TempDir::new().unwrap();
        let opener = Opener {
            root: Arc::new(RootDir::open(root.path()).expect("the root")),
            passed: None,
            direct: false,
        };
        if bare_ring().is_none() {
            return;
        }
        let mut reader = UringReader::new(opener).expect("a ring that takes restrictions");
        let entry = opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).build();
        // SAFETY: The entry refers to no memory.
        unsafe { reader.ring.submission().push(&entry) }.unwrap();
        reader.ring.submit_and_wait(1).unwrap();
        let answer = reader.ring.completion().next().expect("a completion");
        assert_eq!(answer.result(), -Errno::ACCESS.raw_os_error());
        assert!(reader.ring.submitter().register_eventfd(0).is_err());
    }

    #[test]
    fn reads_that_the_kernel_refuses_are_submitted_again() {
        // The kernel refuses everything (EBADFD) until the ring is enabled.
        let Some(ring) = bare_ring() else {
            return;
        };
        let root = TempDir::new().unwrap();
        fs::write(root.path().join("f"), b"content").unwrap();
        let opener = Opener {
            root: Arc::new(RootDir::open(root.path()).expect("the root")),
            passed: None,
            direct: false,
        };
        let mut reader = UringReader::with(ring, opener).expect("a reader");
        reader.open(FileToken(1), b"f", Growth::Forbidden);
        assert!(matches!(next(&mut reader), Completion::Opened { .. }));
        for token in 0..DEPTH + 1 {
            reader.read(Read {
                token: ReadToken(token),
                file: FileToken(1),
                offset: 0,
                len: 7,
                buffer: Buffer::alone(),
            });
        }
        for _ in 0..3 {
            reader.submit();
            assert!(reader.next().is_none());
            assert!(reader.has_unsubmitted());
        }

        reader.ring.submitter().register_enable_rings().unwrap();
        assert!(reader.next().is_none());
        assert!(!reader.has_unsubmitted());
        for _ in 0..DEPTH + 1 {
            match next(&mut reader) {
                Completion::Read { buffer, valid, .. } => assert_eq!(buffer[..valid], *b"content"),
                other => panic!("{other:?}"),
            }
        }
    }
}
