//! The epoll sets of a process, and the split sockets in them.
//!
//! A set is an epoll set of the kernel's, which holds the kernel descriptors and the process's
//! bell, and a list of split members here. A member that may be ready is a *candidate*: it was
//! added or changed, a hint came for its socket, or it was ready the last time and level-triggered.
//! Only candidates are looked at. A candidate that is not ready has its record hint the next change
//! before it is left out, so nothing is missed.

use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use socket_channel::SocketId;

use super::application_file::Listed;
use super::numbers::Numbers;
use super::set_copies::{Copied, CopiedAtFork, SplitMember, kernel_members, patiently};
use super::timing::Instant;
use super::watchers::Watch;

/// Their addresses are the data of the bell and of the canary: no program has those.
static BELL: u8 = 0;
static CANARY: u8 = 1;

pub(crate) fn bell_data() -> u64 {
    std::ptr::from_ref(&BELL).addr() as u64
}

pub(crate) fn canary_data() -> u64 {
    std::ptr::from_ref(&CANARY).addr() as u64
}

/// What a member is asked for, and what it has reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest {
    /// Bits of `epoll_ctl`.
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// `EDGE` of the record at the last report; `None` before the first.
    pub(crate) edge: Option<u64>,
    /// Reported, with `EPOLLONESHOT`: silent until it is changed.
    pub(crate) is_spent: bool,
}

/// What a member stands for.
#[derive(Debug)]
pub(crate) enum Source {
    /// A split socket.
    Socket(SocketId),
    /// Another set: it is readable when one of its split members is ready.
    Set(Weak<Set>),
}

impl Source {
    fn is(&self, other: &Source) -> bool {
        match (self, other) {
            (Source::Socket(socket), Source::Socket(other)) => socket == other,
            (Source::Set(set), Source::Set(other)) => Weak::ptr_eq(set, other),
            (Source::Socket(_), Source::Set(_)) | (Source::Set(_), Source::Socket(_)) => false,
        }
    }

    /// Nothing leads to it any more.
    fn is_gone(&self) -> bool {
        matches!(self, Source::Set(set) if set.strong_count() == 0)
    }
}

/// A split member of a set.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) source: Source,
    interest: Mutex<Interest>,
    is_queued: AtomicBool,
    is_removed: AtomicBool,
    candidates: Weak<Candidates>,
    own: Weak<Member>,
}

#[derive(Debug, Default)]
pub(crate) struct Candidates {
    queue: Mutex<VecDeque<Arc<Member>>>,
    /// Threads that sleep in the set. Changed under the lock of the link.
    pub(crate) sleepers: AtomicUsize,
    /// It was added to another set, in which threads sleep for it.
    is_nested: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Candidates {
    pub(crate) fn len(&self) -> usize {
        lock(&self.queue).len()
    }

    /// The next, which may queue again from now on.
    pub(crate) fn pop(&self) -> Option<Arc<Member>> {
        let member = lock(&self.queue).pop_front()?;
        member.is_queued.store(false, Ordering::SeqCst);
        Some(member)
    }

    /// It was added to another set.
    pub(crate) fn nest(&self) {
        self.is_nested.store(true, Ordering::Relaxed);
    }

    fn has_sleeper(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) > 0 || self.is_nested.load(Ordering::Relaxed)
    }
}

impl Member {
    pub(crate) fn new(source: Source, interest: Interest, set: &Set) -> Arc<Member> {
        Arc::new_cyclic(|own| Member {
            source,
            interest: Mutex::new(interest),
            is_queued: AtomicBool::new(false),
            is_removed: AtomicBool::new(false),
            candidates: Arc::downgrade(&set.candidates),
            own: Weak::clone(own),
        })
    }

    /// Queues it to be looked at, unless it is.
    pub(crate) fn queue(&self) {
        if self.is_queued.swap(true, Ordering::SeqCst) {
            return;
        }
        if let (Some(candidates), Some(own)) = (self.candidates.upgrade(), self.own.upgrade()) {
            lock(&candidates.queue).push_back(own);
        }
    }

    pub(crate) fn interest(&self) -> MutexGuard<'_, Interest> {
        lock(&self.interest)
    }

    pub(crate) fn remove(&self) {
        self.is_removed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::SeqCst)
    }
}

impl Watch for Member {
    fn notify(&self) -> bool {
        self.queue();
        let candidates = self.candidates.upgrade();
        candidates.is_some_and(|candidates| candidates.has_sleeper())
    }
}

/// When the kernel was asked for its descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) at: Instant,
    /// Calls since then that did not ask.
    pub(crate) skipped: u32,
}

/// The split half of an epoll set.
#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) candidates: Arc<Candidates>,
    pub(crate) members: Mutex<HashMap<RawFd, Arc<Member>>>,
    /// Members whose descriptor the program has closed, by its number, while what they stand for
    /// has others: they report on (epoll(7), "Will closing a file descriptor …").
    left: Mutex<Vec<(RawFd, Arc<Member>)>>,
    scan: Mutex<()>,
    /// Descriptors of the kernel's that were added and not removed.
    pub(crate) kernel_members: AtomicUsize,
    pub(crate) asked: Mutex<Asked>,
    /// Whether the kernel's set has the bell: it gets it with its first split member.
    pub(crate) has_bell: Mutex<bool>,
    /// While no thread has waited in it.
    listed: Mutex<Option<Listed>>,
    was_waited_in: AtomicBool,
}

impl Set {
    pub(crate) fn new() -> Set {
        Set {
            candidates: Arc::default(),
            members: Mutex::default(),
            left: Mutex::default(),
            scan: Mutex::default(),
            kernel_members: AtomicUsize::new(0),
            asked: Mutex::new(Asked {
                at: Instant::now(),
                skipped: 0,
            }),
            has_bell: Mutex::new(false),
            listed: Mutex::default(),
            was_waited_in: AtomicBool::new(false),
        }
    }

    /// A thread waits in it by the library.
    pub(crate) fn note_wait(&self) {
        if !self.was_waited_in.load(Ordering::Relaxed) {
            self.was_waited_in.store(true, Ordering::SeqCst);
            lock(&self.listed).take();
        }
    }

    /// It has a split member, by this number.
    fn list(&self, number: RawFd) {
        let mut listed = lock(&self.listed);
        if !self.was_waited_in.load(Ordering::SeqCst) {
            *listed = Listed::new(number, bell_data());
        }
    }

    pub(crate) fn members(&self) -> MutexGuard<'_, HashMap<RawFd, Arc<Member>>> {
        lock(&self.members)
    }

    /// A descriptor that was closed may lead to the same again: then its member is one as before.
    pub(crate) fn find_again(
        &self,
        members: &mut HashMap<RawFd, Arc<Member>>,
        fd: RawFd,
        source: &Source,
    ) {
        let mut left = lock(&self.left);
        let found = left
            .iter()
            .position(|(of, member)| *of == fd && member.source.is(source));
        if let Some(place) = found {
            members.insert(fd, left.swap_remove(place).1);
        }
    }

    /// Takes out all members, of a set that is closed.
    pub(crate) fn empty(&self) -> Vec<Arc<Member>> {
        let left = std::mem::take(&mut *lock(&self.left)).into_iter();
        let members = std::mem::take(&mut *self.members());
        members
            .into_values()
            .chain(left.map(|(_, it)| it))
            .collect()
    }

    /// One thread at a time looks at candidates: those that it has taken out and will put back are
    /// missing meanwhile. Of sets within each other, the outer one is taken first.
    pub(crate) fn scan(&self) -> MutexGuard<'_, ()> {
        lock(&self.scan)
    }

    /// Gives the kernel's set the bell by `add`, once.
    pub(crate) fn ensure_bell<E>(
        &self,
        number: RawFd,
        add: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut has_bell = lock(&self.has_bell);
        if !*has_bell {
            add()?;
            *has_bell = true;
            self.list(number);
        }
        Ok(())
    }

    fn copied_members(&self) -> Vec<SplitMember> {
        let members = patiently(&self.members);
        let members = members.iter().flat_map(|it| it.iter());
        let copied = members.filter_map(|(fd, member)| {
            let socket = match member.source {
                Source::Socket(id) => Some(id),
                Source::Set(_) => None,
            };
            let interest = patiently(&member.interest)?;
            Some(SplitMember {
                fd: *fd,
                socket,
                events: interest.events,
                data: interest.data,
                is_spent: interest.is_spent,
            })
        });
        copied.collect()
    }

    pub(crate) fn asked(&self) -> MutexGuard<'_, Asked> {
        lock(&self.asked)
    }
}

/// Numbers that sets may have, in whatever process: most descriptors have none of these, and are
/// found to be no sets without a lock, which a signal handler may find taken.
static NUMBERS: Numbers = Numbers::new();

/// The sets of a process by their descriptors.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    by_number: Mutex<HashMap<RawFd, Arc<Set>>>,
    /// Held while a set of the kernel's becomes one that holds split sockets.
    extending: Mutex<()>,
}

impl Sets {
    /// Whether a number may be that of a set, in this process or in one before it.
    pub(crate) fn may_have(fd: RawFd) -> bool {
        NUMBERS.has(fd)
    }

    /// The lock under which a set of the kernel's becomes one that holds split sockets: without it,
    /// two threads that add the first ones make two sets.
    pub(crate) fn extending(&self) -> MutexGuard<'_, ()> {
        lock(&self.extending)
    }

    /// All numbers that may be those of sets.
    pub(crate) fn numbers_of_any() -> Vec<RawFd> {
        NUMBERS.all()
    }

    /// In a child that has no sets yet: the number is no set any more.
    pub(crate) fn forget_number(fd: RawFd) {
        NUMBERS.remove(fd);
    }

    /// What tells these from the sets of other processes, in memory that all of them have.
    pub(crate) fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(crate) fn get(&self, fd: RawFd) -> Option<Arc<Set>> {
        if !NUMBERS.has(fd) {
            return None;
        }
        lock(&self.by_number).get(&fd).cloned()
    }

    pub(crate) fn insert(&self, fd: RawFd, set: Arc<Set>) {
        NUMBERS.insert(fd);
        lock(&self.by_number).insert(fd, set);
    }

    pub(crate) fn numbers(&self) -> Vec<RawFd> {
        lock(&self.by_number).keys().copied().collect()
    }

    /// Removes a descriptor of a set; the set is returned if that was its last.
    pub(crate) fn remove(&self, fd: RawFd) -> Option<Arc<Set>> {
        let mut sets = lock(&self.by_number);
        let set = sets.remove(&fd)?;
        NUMBERS.remove(fd);
        let is_last = !sets.values().any(|other| Arc::ptr_eq(other, &set));
        is_last.then_some(set)
    }

    /// What a descriptor is in the sets, by one number of each.
    pub(crate) fn entries(&self, fd: RawFd) -> Vec<(RawFd, Interest)> {
        let mut seen: Vec<Arc<Member>> = Vec::new();
        let sets = lock(&self.by_number);
        let entries = sets.iter().filter_map(|(epoll, set)| {
            let member = set.members().get(&fd).cloned()?;
            if seen.iter().any(|other| Arc::ptr_eq(other, &member)) {
                return None;
            }
            seen.push(Arc::clone(&member));
            let interest = *member.interest();
            Some((*epoll, interest))
        });
        entries.collect()
    }

    /// Takes a descriptor that is closed out of all sets; returns what it was there. Where what it
    /// leads to has another descriptor, its members stay.
    pub(crate) fn forget(&self, fd: RawFd, has_other: bool) -> Vec<Arc<Member>> {
        let mut members = Vec::new();
        for set in self.all() {
            let Some(member) = set.members().remove(&fd) else {
                continue;
            };
            if has_other {
                let mut left = lock(&set.left);
                left.retain(|(_, other)| !other.source.is_gone());
                left.push((fd, member));
            } else {
                members.push(member);
            }
        }
        members.iter().for_each(|member| member.remove());
        members
    }

    /// Takes a socket without descriptors out of all sets; returns what of it had stayed there.
    pub(crate) fn forget_left(&self, socket: SocketId) -> Vec<Arc<Member>> {
        let mut members = Vec::new();
        for set in self.all() {
            let mut left = lock(&set.left);
            let of_socket = left.extract_if(.., |(_, it)| it.source.is(&Source::Socket(socket)));
            members.extend(of_socket.map(|(_, member)| member));
        }
        members.iter().for_each(|member| member.remove());
        members
    }

    /// Whether a set has another number than this one of its.
    pub(crate) fn has_other(&self, fd: RawFd) -> bool {
        if !NUMBERS.has(fd) {
            return false;
        }
        let sets = lock(&self.by_number);
        let Some(set) = sets.get(&fd) else {
            return false;
        };
        let mut others = sets.iter().filter(|(number, _)| **number != fd);
        others.any(|(_, other)| Arc::ptr_eq(other, set))
    }

    fn all(&self) -> Vec<Arc<Set>> {
        lock(&self.by_number).values().cloned().collect()
    }
}

impl CopiedAtFork for Sets {
    fn copied(&self) -> Vec<Copied> {
        let mut sets: Vec<(Arc<Set>, Vec<RawFd>)> = Vec::new();
        for (number, set) in patiently(&self.by_number).iter().flat_map(|it| it.iter()) {
            match sets.iter_mut().find(|(it, _)| Arc::ptr_eq(it, set)) {
                Some((_, numbers)) => numbers.push(*number),
                None => sets.push((Arc::clone(set), vec![*number])),
            }
        }
        let copied = sets.into_iter().filter_map(|(set, numbers)| {
            let kernels = kernel_members(*numbers.first()?, [bell_data(), canary_data()]);
            // One whose members are not known stays the kernel's, with them.
            let is_all_split = set.kernel_members.load(Ordering::Relaxed) == 0;
            let kernels = kernels.or_else(|| is_all_split.then(Vec::new))?;
            Some(Copied {
                of: self.identity(),
                kernels,
                numbers,
                split: set.copied_members(),
            })
        });
        copied.collect()
    }
}
