//! The application that all processes of a program belong to: its key, in a memory file that they
//! inherit from the process that starts the program.
//!
//! The first process that attaches writes the key into the file, and each later one joins that
//! application, including those that started before. So a split socket may be passed to every
//! process of the program at any time. A record lock (fcntl(2)) covers each attachment; a process
//! that ends meanwhile releases it.
//!
//! The file also lists epoll sets with split members in which no thread has waited through the
//! library. A process that waits in such a set by direct system calls gets no events; the list lets
//! the process that has started the program detect this.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use rustix::fs::{FlockOperation, fcntl_lock, fstat};
use rustix::io::retry_on_intr;
use shm::memory::{Mapping, create_file};
use socket_channel::AppId;
use socket_channel::attach::Key;

use super::application_key::ApplicationKey;
use super::own;
use crate::sys;

/// Words of the key: a flag that it is set, the number of the application, and the key's two
/// halves.
const KEY_WORDS: usize = 4;

/// Most listed sets; further ones are left out. Each has two words: the process ID in the high half
/// with the set's number plus 1 in the low half, or 0; and the data of the bell in the set.
const SETS_MAX: usize = 64;

const WORDS: usize = KEY_WORDS + 2 * SETS_MAX;

/// Reads the file's list of sets, for the process that starts the program.
#[derive(Debug)]
pub struct ProgramSets(Mapping);

/// An epoll set with split members in which no thread has waited through the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnwaitedSet {
    /// Process ID.
    pub process: u32,
    /// Descriptor of the set in that process.
    pub number: u32,
    /// Data of the library's own member, which another set with this number does not have.
    pub bell_data: u64,
}

impl ProgramSets {
    /// Returns the sets listed now.
    pub fn unwaited(&self) -> Vec<UnwaitedSet> {
        let slots = self.0.words()[KEY_WORDS..].as_chunks::<2>().0.iter();
        let sets = slots.filter_map(|[set, bell_data]| {
            let set = set.load(Ordering::Acquire);
            Some(UnwaitedSet {
                process: (set >> 32) as u32,
                number: (set as u32).checked_sub(1)?,
                bell_data: bell_data.load(Ordering::Acquire),
            })
        });
        sets.collect()
    }
}

/// The place of a set in the list, until a thread waits in the set, or it is closed.
#[derive(Debug)]
pub(crate) struct Listed {
    place: usize,
    set: u64,
}

impl Listed {
    /// Lists a set of this process; `None` if there is no file or no free place.
    pub(crate) fn new(number: RawFd, bell_data: u64) -> Option<Listed> {
        let words = OWN.get()?.words.words();
        let set = u64::from(std::process::id()) << 32 | u64::from(number.unsigned_abs() + 1);
        let place = (0..SETS_MAX).find(|place| {
            let word = &words[KEY_WORDS + 2 * place];
            let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            word.compare_exchange(0, RESERVED, done, failed).is_ok()
        })?;
        words[KEY_WORDS + 2 * place + 1].store(bell_data, Ordering::Release);
        words[KEY_WORDS + 2 * place].store(set, Ordering::Release);
        Some(Listed { place, set })
    }
}

/// Marks a place that is being filled; not a set.
const RESERVED: u64 = 1 << 63;

impl Drop for Listed {
    fn drop(&mut self) {
        // In a child, the place belongs to the parent's set.
        let is_own = (self.set >> 32) as u32 == std::process::id();
        if let Some(file) = OWN.get().filter(|_| is_own) {
            file.words.words()[KEY_WORDS + 2 * self.place].store(0, Ordering::Release);
        }
    }
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct ApplicationFile {
    words: Mapping,
    number: RawFd,
    /// Device and inode: a program that makes direct system calls may have closed the number.
    identity: (u64, u64),
}

static OWN: OnceLock<ApplicationFile> = OnceLock::new();

/// Creates a file without a key for the processes of one program, and a reader of its list of sets.
///
/// # Errors
/// There is no memory, or no free descriptor.
pub fn create() -> io::Result<(ProgramSets, OwnedFd)> {
    let file = create_file(c"splitway-application", WORDS)?;
    Ok((ProgramSets(Mapping::new(&file, WORDS)?), file))
}

/// Makes this process and its children belong to the application of a file. The file stays open for
/// the next program image, even if the program closes the number.
///
/// # Errors
/// The file is of another kind.
pub fn use_file(file: BorrowedFd<'_>) -> io::Result<()> {
    let words = Mapping::new(file, WORDS)?;
    let identity = identity_of(file)?;
    let number = file.as_raw_fd();
    let new = ApplicationFile {
        words,
        number,
        identity,
    };
    if OWN.set(new).is_ok() {
        own::keep_in_children(file);
    }
    Ok(())
}

/// Reports whether a process of this program has attached, so that this process may join its
/// application.
pub fn is_known() -> bool {
    OWN.get().is_some_and(|file| file.key().is_some())
}

/// Returns the file of this process, if it has one.
pub(crate) fn of_process() -> Option<&'static ApplicationFile> {
    OWN.get()
}

/// Keeps other processes of the program from attaching until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(Option<BorrowedFd<'static>>);

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(number) = self.0 {
            let _ = fcntl_lock(number, FlockOperation::Unlock);
        }
    }
}

impl ApplicationFile {
    /// Waits until no other process attaches. Has no effect if the program has closed the file.
    pub(crate) fn lock(&self) -> Lock {
        let exclusive = FlockOperation::LockExclusive;
        let number = sys::borrow(self.number).ok();
        Lock(number.filter(|number| {
            let is_it = identity_of(*number).is_ok_and(|found| found == self.identity);
            is_it && retry_on_intr(|| fcntl_lock(number, exclusive)).is_ok()
        }))
    }

    /// Returns the key of the program's application, if it is set.
    pub(crate) fn key(&self) -> Option<ApplicationKey> {
        let word = |place: usize| self.words.words()[place].load(Ordering::Acquire);
        if word(0) == 0 {
            return None;
        }
        let [high, low] = [word(2), word(3)].map(u128::from);
        Some(ApplicationKey {
            app: AppId(u32::try_from(word(1)).ok()?),
            key: Key::new((high << 64 | low).to_be_bytes()),
        })
    }

    /// Sets the key of the application for other processes to join. The caller has the lock.
    pub(crate) fn set_key(&self, key: &ApplicationKey) {
        let bytes = u128::from_be_bytes(key.key.bytes());
        let words = [key.app.0.into(), (bytes >> 64) as u64, bytes as u64];
        for (word, value) in self.words.words()[1..].iter().zip(words) {
            word.store(value, Ordering::Release);
        }
        self.words.words()[0].store(1, Ordering::Release);
    }
}

fn identity_of(file: BorrowedFd<'_>) -> rustix::io::Result<(u64, u64)> {
    let found = fstat(file)?;
    Ok((found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn opened(file: &OwnedFd) -> ApplicationFile {
        ApplicationFile {
            words: Mapping::new(file, WORDS).unwrap(),
            number: file.as_raw_fd(),
            identity: identity_of(file.as_fd()).unwrap(),
        }
    }

    #[test]
    fn a_key_is_found_by_all_that_have_the_file() {
        let (_, file) = create().unwrap();
        let [one, other] = [opened(&file), opened(&file)];
        assert_eq!(other.key(), None);
        for app in [1, u32::MAX] {
            let key = ApplicationKey {
                app: AppId(app),
                key: Key::new(*b"\x000123456789abcde"),
            };
            one.set_key(&key);
            assert_eq!(other.key(), Some(key));
        }
    }

    #[test]
    fn a_file_that_has_its_number_now_is_not_locked() {
        let (_, file) = create().unwrap();
        let mut opened = opened(&file);
        assert!(opened.lock().0.is_some());
        opened.number = -1;
        assert!(opened.lock().0.is_none());
        let (_, other) = create().unwrap();
        opened.number = other.as_raw_fd();
        assert!(opened.lock().0.is_none());
    }

    #[test]
    fn sets_are_listed_until_they_are_waited_in() {
        let (sets, file) = create().unwrap();
        use_file(file.as_fd()).unwrap();
        assert_eq!(sets.unwaited(), []);
        let listed: Vec<Option<Listed>> = (0..=SETS_MAX)
            .map(|number| Listed::new(number as RawFd, 7))
            .collect();
        assert!(listed[SETS_MAX].is_none(), "there is no room");
        let found = sets.unwaited();
        let expected = UnwaitedSet {
            process: std::process::id(),
            number: 0,
            bell_data: 7,
        };
        assert_eq!((found.len(), found[0]), (SETS_MAX, expected));
        drop(listed);
        assert_eq!(sets.unwaited(), []);
    }
}
