//! Copies of epoll sets, taken at a fork for the child.
//!
//! A handler before the fork records the sets, and the registry stays locked until the fork is
//! over: the child finds it complete. A set is not copied if its lock stays taken: a thread that
//! forks in a signal handler may have interrupted itself. A child that was made without handlers
//! inherits no set, and leaves its parent's registry alone, which another thread may have locked.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use once_cell::race::OnceBox;

use super::timing::Instant;
use socket_channel::SocketId;

/// Longest wait of a fork for a lock.
const PATIENCE: Duration = Duration::from_millis(100);

/// The sets of a process, which can be copied.
pub(super) trait CopiedAtFork: fmt::Debug + Send + Sync {
    fn copied(&self) -> Vec<Copied>;
}

/// A set, as it was at a fork.
#[derive(Clone, Debug)]
pub(super) struct Copied {
    /// Identity of the sets (`Sets::identity`) that this one belonged to.
    pub(super) of: usize,
    pub(super) numbers: Vec<RawFd>,
    pub(super) split: Vec<SplitMember>,
    pub(super) kernels: Vec<KernelMember>,
}

/// A member recorded by the library; `None` is a set.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitMember {
    pub(super) fd: RawFd,
    pub(super) socket: Option<SocketId>,
    pub(super) events: u32,
    pub(super) data: u64,
    pub(super) is_spent: bool,
}

/// A member of the kernel's set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelMember {
    pub(super) fd: RawFd,
    pub(super) events: u32,
    pub(super) data: u64,
    pub(super) inode: u64,
}

#[derive(Debug)]
struct Registry {
    /// Sets of this process and of its ancestors, with the generation of each.
    live: Vec<(u32, Weak<dyn CopiedAtFork>)>,
    /// Copies of the parent's sets, until this process attaches.
    inherited: Vec<Copied>,
    /// Copies for a child that is being created.
    passed: Vec<Copied>,
}

/// A registry, and those of children that were made without handlers.
#[derive(Debug)]
struct Owned {
    /// Generation of the process that uses it; 0 before the first.
    owner: AtomicU32,
    registry: Mutex<Registry>,
    next: OnceBox<Owned>,
}

impl Owned {
    const fn new(owner: u32) -> Owned {
        Owned {
            owner: AtomicU32::new(owner),
            registry: Mutex::new(Registry {
                live: Vec::new(),
                inherited: Vec::new(),
                passed: Vec::new(),
            }),
            next: OnceBox::new(),
        }
    }

    /// Returns the registry of a process, given by its generation.
    fn of(own: u32) -> &'static Owned {
        let mut owned = &REGISTRY;
        let _ = owned
            .owner
            .compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
        while owned.owner.load(Ordering::Acquire) != own {
            owned = owned.next.get_or_init(|| Box::new(Owned::new(own)));
        }
        owned
    }
}

static REGISTRY: Owned = Owned::new(0);

thread_local! {
    /// The registry, while this thread forks.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
    static IS_USING: Cell<bool> = const { Cell::new(false) };
}

/// The registry, locked by this thread.
struct Held {
    // It is dropped first.
    registry: MutexGuard<'static, Registry>,
    owned: &'static Owned,
    _using: Using,
}

/// Marks that this thread uses the registry.
struct Using;

impl Drop for Using {
    fn drop(&mut self) {
        let _ = IS_USING.try_with(|is_using| is_using.set(false));
    }
}

/// Returns the registry of a process. `None` in a signal handler that has interrupted a user of the
/// registry in the same thread. Other threads hold it no longer than a fork takes.
fn registry(own: u32) -> Option<Held> {
    if IS_USING.try_with(|is_using| is_using.replace(true)) != Ok(false) {
        return None;
    }
    let _using = Using;
    let owned = Owned::of(own);
    let registry = owned.registry.lock();
    Some(Held {
        registry: registry.unwrap_or_else(PoisonError::into_inner),
        owned,
        _using,
    })
}

/// Returns a lock, unless it stays taken for [`PATIENCE`].
pub(super) fn patiently<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let mut until = None;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
        let now = Instant::now();
        if now >= *until.get_or_insert(now + PATIENCE) {
            return None;
        }
        std::thread::yield_now();
    }
}

/// Registers the sets of this process.
pub(super) fn register(generation: u32, sets: Weak<dyn CopiedAtFork>) {
    if let Some(mut held) = registry(generation) {
        let live = &mut held.registry.live;
        live.retain(|(_, sets)| sets.strong_count() > 0);
        live.push((generation, sets));
    }
}

/// Records the sets of a process, given by its generation, that is about to fork.
pub(super) fn before_fork(generation: u32) {
    let Some(mut held) = registry(generation) else {
        return;
    };
    let live = held
        .registry
        .live
        .iter()
        .filter(|(of, _)| *of == generation);
    let live: Vec<Arc<dyn CopiedAtFork>> = live.filter_map(|(_, sets)| sets.upgrade()).collect();
    // The child may also take copies that this process has inherited and not taken yet.
    let mut passed = held.registry.inherited.clone();
    for sets in &live {
        passed.extend(sets.copied());
    }
    held.registry.passed = passed;
    let _ = HELD.try_with(|it| it.replace(Some(held)));
}

/// Ends a fork, in the parent, or in the child, which has a generation of its own.
pub(super) fn after_fork(child: Option<u32>) {
    if let Some(mut held) = HELD.try_with(RefCell::take).ok().flatten() {
        let passed = std::mem::take(&mut held.registry.passed);
        if let Some(generation) = child {
            held.registry.inherited = passed;
            held.owned.owner.store(generation, Ordering::Release);
        }
    }
}

/// Takes the copies of an ancestor's sets that a process has, given by its generation; it has them
/// once.
pub(super) fn take(generation: u32, of: usize) -> Vec<Copied> {
    registry(generation).map_or_else(Vec::new, |mut held| {
        let copies = held.registry.inherited.extract_if(.., |it| it.of == of);
        copies.collect()
    })
}

/// Returns the members of a kernel's set, without those of the library (proc_pid_fdinfo(5)); `None`
/// if the kernel does not list them, as without `/proc`.
pub(super) fn kernel_members(set: RawFd, of_library: [u64; 2]) -> Option<Vec<KernelMember>> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{set}")).ok()?;
    let members = text.lines().filter_map(kernel_member);
    let members = members.filter(|it| !of_library.contains(&it.data));
    Some(members.collect())
}

fn kernel_member(line: &str) -> Option<KernelMember> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let value = |name: &str| {
        let place = words.iter().position(|word| word.starts_with(name))?;
        match words[place].strip_prefix(name)? {
            "" => words.get(place + 1).copied(),
            value => Some(value),
        }
    };
    Some(KernelMember {
        fd: value("tfd:")?.parse().ok()?,
        events: u32::from_str_radix(value("events:")?, 16).ok()?,
        data: u64::from_str_radix(value("data:")?, 16).ok()?,
        inode: u64::from_str_radix(value("ino:")?, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::event::epoll::{self, EventData, EventFlags};

    use super::*;

    #[test]
    fn the_kernel_tells_what_is_in_a_set() {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let (data, of_library) = (0xfedc_ba98_7654_3210, [1, 2]);
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&set, &read, EventData::new_u64(data), flags).unwrap();
        epoll::add(&set, &write, EventData::new_u64(2), flags).unwrap();
        let member = KernelMember {
            fd: read.as_raw_fd(),
            events: flags.bits() | EventFlags::ERR.bits() | EventFlags::HUP.bits(),
            data,
            inode: rustix::fs::fstat(&read).unwrap().st_ino,
        };
        assert_eq!(
            kernel_members(set.as_raw_fd(), of_library).unwrap(),
            [member]
        );
        assert_eq!(kernel_members(read.as_raw_fd(), of_library).unwrap(), []);
        assert_eq!(kernel_members(-1, of_library), None);
    }
}
