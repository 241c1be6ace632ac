//! Files that a process has sent lately, by their fstat(2) data.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::Stat;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::timing::Instant;

/// Bounds of the number of files that a process keeps: an eighth of its limit of descriptors.
const FILES_MIN: usize = 64;
const FILES_MAX: usize = 512;

/// Time after which a file that is not sent is closed.
const KEPT: Duration = Duration::from_secs(30);

/// Interval of the search for files that are not sent.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Time for which a file that could not be passed is read here, before passing is tried again.
const READ_HERE: Duration = Duration::from_secs(10);

/// Time after a change, in nanoseconds, within which a further change may leave the timestamps as
/// they are: the kernel stamps files by a clock that advances with the scheduler's tick, at least
/// every 10 ms. The rule of NIC stacks is the same (a test of the tree compares both).
const SETTLED_AFTER_NS: i64 = 20_000_000;

/// The same on file systems with a resolution of one or two seconds.
const SETTLED_AFTER_NS_COARSE: i64 = 2_000_000_000;

/// Metadata that distinguishes versions of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Version {
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl Version {
    pub(super) fn of(stat: &Stat) -> Version {
        Version {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// Reports whether any change from now on would alter the version.
    pub(super) fn is_settled(&self) -> bool {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let ns = |seconds: i64, ns: u64| {
            let whole = seconds.saturating_mul(1_000_000_000);
            whole.saturating_add(ns as i64)
        };
        let last = self.modified.max(self.changed);
        let after_ns = if last.1 == 0 {
            SETTLED_AFTER_NS_COARSE
        } else {
            SETTLED_AFTER_NS
        };
        let now_ns = ns(now.tv_sec, now.tv_nsec as u64);
        now_ns.saturating_sub(ns(last.0, last.1)) > after_ns
    }
}

/// The way in which a file is sent.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// As a file of the NIC stack.
    Passed(Arc<OwnedFd>),
    /// As bytes.
    ReadHere,
}

#[derive(Debug)]
pub(super) struct Known {
    pub(super) version: Version,
    pub(super) way: Way,
    pub(super) used: Instant,
}

impl Known {
    /// Reports whether the file is to be forgotten, unless a call is sending it.
    fn is_over(&self, now: Instant) -> bool {
        let lasts = match self.way {
            Way::Passed(_) => KEPT,
            Way::ReadHere => READ_HERE,
        };
        now.saturating_duration_since(self.used) > lasts
    }

    fn is_in_use(&self) -> bool {
        matches!(&self.way, Way::Passed(file) if Arc::strong_count(file) > 1)
    }
}

/// Files of one process that were sent lately.
#[derive(Debug, Default)]
pub(crate) struct SentFiles {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    files: HashMap<Version, Known>,
    swept: Option<Instant>,
}

impl Kept {
    fn remove(&mut self, is_it: impl Fn(&Known) -> bool) -> Vec<Known> {
        let removed = self.files.extract_if(|_, known| is_it(known));
        removed.map(|(_, known)| known).collect()
    }
}

impl SentFiles {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the way to send a file, and the files to close.
    pub(super) fn find(&self, version: Version, now: Instant) -> (Option<Way>, Vec<Known>) {
        let mut kept = self.lock();
        let mut over = Vec::new();
        let way = kept.files.get_mut(&version).map(|known| {
            // The time of reading here starts at the first use.
            if matches!(known.way, Way::Passed(_)) {
                known.used = now;
            }
            (known.way.clone(), known.is_over(now))
        });
        if let Some((_, true)) = way {
            over.extend(kept.files.remove(&version));
        }
        let swept = *kept.swept.get_or_insert(now);
        if now.saturating_duration_since(swept) >= SWEEP_EVERY {
            kept.swept = Some(now);
            over.extend(kept.remove(|known| known.is_over(now) && !known.is_in_use()));
        }
        (way.map(|(way, _)| way), over)
    }

    /// Notes the way to send a file; returns the files that make room for it.
    pub(super) fn insert(&self, known: Known) -> Vec<Known> {
        self.insert_within(files_max(), known)
    }

    /// Forgets the half that has been idle longest: the application has reached its limit of files.
    pub(super) fn shed(&self) -> Vec<Known> {
        let mut kept = self.lock();
        let idle = kept.files.values().filter(|it| !it.is_in_use());
        let mut idle: Vec<Instant> = idle.map(|it| it.used).collect();
        idle.sort_unstable();
        let Some(&median) = idle.get(idle.len() / 2) else {
            return Vec::new();
        };
        kept.remove(|it| it.used <= median && !it.is_in_use())
    }

    /// Inserts a file. A file that a call is sending is closed by that call.
    fn insert_within(&self, files_max: usize, known: Known) -> Vec<Known> {
        let mut kept = self.lock();
        let mut gone = Vec::new();
        if kept.files.len() >= files_max && !kept.files.contains_key(&known.version) {
            let idle = kept.files.values().filter(|it| !it.is_in_use());
            let oldest = idle.min_by_key(|it| it.used).map(|it| it.version);
            gone.extend(oldest.and_then(|version| kept.files.remove(&version)));
        }
        gone.extend(kept.files.insert(known.version, known));
        gone
    }
}

/// Returns the present maximum of files that this process keeps.
fn files_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let part = usize::try_from(descriptors / 8).unwrap_or(FILES_MAX);
    part.clamp(FILES_MIN, FILES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(inode: u64, used: Instant) -> Known {
        let null = std::fs::File::open("/dev/null").unwrap();
        Known {
            version: version(inode),
            way: Way::Passed(Arc::new(null.into())),
            used,
        }
    }

    fn version(inode: u64) -> Version {
        Version {
            device: 1,
            inode,
            size: 5,
            modified: (6, 7),
            changed: (8, 9),
        }
    }

    fn inodes(files: &[Known]) -> Vec<u64> {
        let mut inodes: Vec<u64> = files.iter().map(|known| known.version.inode).collect();
        inodes.sort_unstable();
        inodes
    }

    #[test]
    fn files_that_are_not_sent_make_room() {
        let files = SentFiles::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let insert = |known| files.insert_within(FILES_MIN, known);
        for inode in 0..FILES_MIN as u64 {
            assert!(insert(known(inode, at(inode))).is_empty());
        }
        let (Some(in_use), over) = files.find(version(0), at(100)) else {
            panic!("it is known");
        };
        assert!(over.is_empty());
        assert_eq!(inodes(&insert(known(1000, at(101)))), [1]);
        let (other, _) = files.find(version(1), at(102));
        assert!(other.is_none());

        // After a while all files expire, except those that a call is sending.
        let (found, over) = files.find(version(1000), at(101) + KEPT);
        assert!(found.is_some());
        assert_eq!(over.len(), FILES_MIN - 1 - 1, "all but those two");
        drop(in_use);
        let (_, over) = files.find(version(1000), at(101) + KEPT);
        assert!(over.is_empty(), "not so soon again");
        let (_, over) = files.find(version(1000), at(101) + KEPT + SWEEP_EVERY);
        assert_eq!(inodes(&over), [0]);
    }

    #[test]
    fn half_of_the_idle_files_make_room_for_all_of_the_application() {
        let files = SentFiles::default();
        let start = Instant::now();
        for inode in 0..5 {
            files.insert(known(inode, start + Duration::from_millis(inode)));
        }
        let (in_use, _) = files.find(version(0), start);
        assert_eq!(inodes(&files.shed()), [1, 2, 3]);
        drop(in_use);
        assert_eq!(inodes(&files.shed()), [0, 4]);
        assert!(files.shed().is_empty());
    }

    #[test]
    fn a_file_that_was_read_here_is_tried_again() {
        let files = SentFiles::default();
        let start = Instant::now();
        files.insert(Known {
            way: Way::ReadHere,
            ..known(1, start)
        });
        let half = start + READ_HERE / 2;
        assert!(files.find(version(1), half).0.is_some());
        let later = start + READ_HERE + Duration::from_millis(1);
        assert!(files.find(version(1), later).0.is_some(), "once more");
        assert!(files.find(version(1), later).0.is_none());
    }
}
