//! A log file with a thread of its own: a slow or full disk delays no other thread.
//!
//! Lines that cannot be written wait in memory, up to a bound; further lines are lost and counted.
//! No line is torn: a partly written line is completed before any other write.

use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Most bytes in the queue.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// Wait after a failure before the next attempt.
const RETRY: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 500 });

/// Counters of a log.
#[derive(Debug, Default)]
pub struct LogCounters {
    /// Lines written.
    pub written: AtomicU64,
    /// Lines lost.
    pub lost: AtomicU64,
    /// Failed writes.
    pub failures: AtomicU64,
}

/// The producer's end of a log. Dropping it waits until its lines are written, unless writing
/// fails.
#[derive(Debug)]
pub struct LogFile {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    news: Condvar,
    counters: Arc<LogCounters>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Whole lines.
    lines: Vec<u8>,
    /// The file to change to, with the callback after that.
    next: Option<Next>,
    is_end: bool,
}

struct Next {
    file: File,
    on_changed: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Next {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.file.fmt(f)
    }
}

impl LogFile {
    /// Writes to `file`, which error messages call `name`.
    pub fn new(name: String, file: File) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            news: Condvar::new(),
            counters: Arc::default(),
        });
        let writer = Writer {
            name,
            file,
            shared: Arc::clone(&shared),
            unwritten: Vec::new(),
            begun_bytes: 0,
            is_failing: false,
        };
        let thread = thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || writer.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Counters of this log.
    pub fn counters(&self) -> Arc<LogCounters> {
        Arc::clone(&self.shared.counters)
    }

    /// Queues whole lines, all or none, without blocking.
    pub fn push(&self, lines: &[u8]) {
        let mut queue = self.shared.lock();
        if queue.lines.len() + lines.len() > WAITING_BYTES_MAX {
            drop(queue);
            return self.shared.counters.lose(lines);
        }
        queue.lines.extend_from_slice(lines);
        self.shared.news.notify_one();
    }

    /// Directs further lines to another file. Calls `on_changed` when earlier ones are in the old
    /// file, unless writing them fails.
    pub fn change(&self, file: File, on_changed: impl FnOnce() + Send + 'static) {
        let on_changed = Box::new(on_changed);
        self.shared.lock().next = Some(Next { file, on_changed });
        self.shared.news.notify_one();
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        self.shared.lock().is_end = true;
        self.shared.news.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogCounters {
    fn lose(&self, lines: &[u8]) {
        self.lost.fetch_add(count(lines), Ordering::Relaxed);
    }
}

fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// Waits for at most [`RETRY`] until the file is writable, and returns whether it is.
fn has_room(file: &File) -> bool {
    let wait = Timespec::try_from(RETRY).ok();
    let mut fds = [PollFd::new(file, PollFlags::OUT)];
    matches!(
        rustix::io::retry_on_intr(|| poll(&mut fds, wait.as_ref())),
        Ok(1..)
    )
}

/// State of the writing thread.
struct Writer {
    name: String,
    file: File,
    shared: Arc<Shared>,
    /// Lines taken from the queue, from the partly written one on.
    unwritten: Vec<u8>,
    /// Bytes of the first line already in the file.
    begun_bytes: usize,
    is_failing: bool,
}

impl Writer {
    fn run(mut self) {
        loop {
            let (next, is_end) = self.take();
            self.write();
            if let Some(Next { file, on_changed }) = next {
                self.change_to(file);
                on_changed();
            }
            if is_end {
                self.shared.counters.lose(&self.unwritten);
                return;
            }
        }
    }

    /// Waits for lines, a new file or the end, and takes them.
    fn take(&mut self) -> (Option<Next>, bool) {
        let mut queue = self.shared.lock();
        loop {
            // While writing fails, lines stay in the bounded queue.
            let may_write = !queue.lines.is_empty() && !self.is_failing;
            if may_write || queue.next.is_some() || queue.is_end {
                break;
            }
            if self.is_failing {
                let (guard, timeout) = self
                    .shared
                    .news
                    .wait_timeout(queue, RETRY)
                    .unwrap_or_else(PoisonError::into_inner);
                queue = guard;
                if timeout.timed_out() {
                    break;
                }
            } else {
                let waited = self.shared.news.wait(queue);
                queue = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
        if self.unwritten.is_empty() {
            mem::swap(&mut self.unwritten, &mut queue.lines);
        } else if queue.next.is_some() || queue.is_end {
            self.unwritten.append(&mut queue.lines);
        }
        (queue.next.take(), queue.is_end)
    }

    /// Writes the lines, as far as the file takes them.
    fn write(&mut self) {
        let mut written = self.begun_bytes;
        let mut failure = None;
        while written < self.unwritten.len() && failure.is_none() {
            match self.file.write(&self.unwritten[written..]) {
                Ok(0) => failure = Some(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The pipe was full, and its reader made room.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && has_room(&self.file) => {
                }
                Err(error) => failure = Some(error),
            }
        }
        let whole = self.unwritten[..written]
            .iter()
            .rposition(|&byte| byte == b'\n');
        let whole = whole.map_or(0, |end| end + 1);
        let lines = count(&self.unwritten[..whole]);
        let counters = &self.shared.counters;
        counters.written.fetch_add(lines, Ordering::Relaxed);
        self.unwritten.drain(..whole);
        self.begun_bytes = written - whole;
        match failure {
            Some(error) => {
                counters.failures.fetch_add(1, Ordering::Relaxed);
                if !mem::replace(&mut self.is_failing, true) {
                    tracing::error!(
                        "{}: {error}; lines are kept until it can be written again, so many as \
                         there is room for",
                        self.name
                    );
                }
            }
            None if mem::take(&mut self.is_failing) => {
                let lost = counters.lost.load(Ordering::Relaxed);
                tracing::warn!("{}: written again; {lost} lines are lost so far", self.name);
            }
            None => {}
        }
    }

    /// Writes unwritten lines to the new file, except a line begun in the old one, which is lost.
    fn change_to(&mut self, file: File) {
        self.file = file;
        if self.begun_bytes > 0 {
            let end = self.unwritten.iter().position(|&byte| byte == b'\n');
            let torn: Vec<u8> = self
                .unwritten
                .drain(..end.map_or(0, |end| end + 1))
                .collect();
            self.shared.counters.lose(&torn);
            self.begun_bytes = 0;
        }
        self.write();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::sync::mpsc::channel;

    use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

    use super::*;

    fn lines(numbers: std::ops::Range<u32>) -> Vec<u8> {
        numbers
            .map(|number| format!("line {number}\n"))
            .collect::<String>()
            .into()
    }

    /// A pipe that takes no more, which a writer sees like a full disk, and its other end.
    fn full() -> (File, File) {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        fcntl_setpipe_size(&writer, 4096).unwrap();
        let as_file = |fd: OwnedFd| File::from(fd);
        (as_file(reader), as_file(writer))
    }

    fn drain(reader: &mut File) -> Vec<u8> {
        let mut bytes = Vec::new();
        let error = reader.read_to_end(&mut bytes).err();
        assert!(error.is_none_or(|error| error.kind() == io::ErrorKind::WouldBlock));
        bytes
    }

    #[test]
    fn a_file_that_was_renamed_is_left_without_a_line_lost() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        let open = |name: &str| {
            File::options()
                .append(true)
                .create(true)
                .open(place(name))
                .unwrap()
        };
        let log = LogFile::new("log".to_owned(), open("log")).unwrap();
        for number in 0..100 {
            log.push(&lines(number * 10..number * 10 + 10));
            if number == 50 {
                std::fs::rename(place("log"), place("log.1")).unwrap();
                let (changed, has_changed) = channel();
                log.change(open("log"), move || changed.send(()).unwrap());
                has_changed.recv().unwrap();
                assert_eq!(std::fs::read(place("log.1")).unwrap(), lines(0..510));
            }
        }
        let counters = log.counters();
        drop(log);
        assert_eq!(std::fs::read(place("log.1")).unwrap(), lines(0..510));
        assert_eq!(std::fs::read(place("log")).unwrap(), lines(510..1000));
        assert_eq!(counters.written.load(Ordering::Relaxed), 1000);
        assert_eq!(counters.lost.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_cannot_be_written_waits_is_not_torn_and_beyond_a_bound_is_counted() {
        let (mut reader, writer) = full();
        let log = LogFile::new("log".to_owned(), writer).unwrap();
        let counters = log.counters();
        // More than the pipe takes, and more than the queue holds.
        let many = lines(0..100_000);
        log.push(&many);
        while counters.failures.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        let mut pushed = 0;
        while counters.lost.load(Ordering::Relaxed) == 0 {
            log.push(&many);
            pushed += 1;
        }
        assert!(pushed > 1 && pushed < 10, "{pushed}");
        // The pipe has room again.
        fcntl_setpipe_size(&reader, 1 << 20).unwrap();
        let mut read = Vec::new();
        let kept = 100_000 * pushed;
        while counters.written.load(Ordering::Relaxed) < kept {
            read.extend(drain(&mut reader));
        }
        read.extend(drain(&mut reader));
        assert!(read == many.repeat(pushed as usize));
        assert_eq!(counters.lost.load(Ordering::Relaxed), 100_000);
    }

    #[test]
    fn a_line_that_the_old_file_has_half_of_is_not_continued_in_the_new_one() {
        let (mut reader, writer) = full();
        let log = LogFile::new("log".to_owned(), writer).unwrap();
        let counters = log.counters();
        let long = [vec![b'x'; 5_000], vec![b'\n']].concat();
        log.push(&long);
        log.push(&lines(0..3));
        while counters.failures.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        let (mut next_reader, next) = full();
        log.change(next, || {});
        drop(log);
        assert_eq!(drain(&mut reader), &long[..4096]);
        assert_eq!(drain(&mut next_reader), lines(0..3));
        assert_eq!(counters.lost.load(Ordering::Relaxed), 1);
        assert_eq!(counters.written.load(Ordering::Relaxed), 3);
    }
}
