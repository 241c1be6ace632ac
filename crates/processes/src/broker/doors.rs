//! Files that applications have passed, and the sockets on which NIC processes take them (*doors*).
//!
//! A file is kept until the host stack has released it: a NIC process that starts later gets it as
//! well, even if the application has closed its own descriptor long ago.
//!
//! A broker's descriptors end with it. The host process reports to its successor which files may
//! still be sent, and the successor asks the NIC processes for them. Until they have answered,
//! these files count towards their applications' limits, and NIC processes that start wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use socket_channel::AppId;

use crate::closer::Closer;
use crate::ipc::fd_passing;
use crate::ipc::messages::{BrokerToNic, NicToBroker};

/// Longest message of a NIC process, in bytes.
const MESSAGE_BYTES_MAX: usize = 128;

/// Most messages of a NIC process received at a time.
const MESSAGES_MAX: usize = 64;

/// A NIC process.
#[derive(Debug)]
struct Door {
    socket: OwnedFd,
    /// Messages that its socket has not taken.
    unsent: VecDeque<BrokerToNic>,
    /// Files that it was asked for, and has not answered.
    asked: BTreeSet<u64>,
    /// Whether to send [`BrokerToNic::Complete`] once no NIC process has to answer.
    awaits_complete: bool,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Doors {
    doors: Vec<Door>,
    kept: BTreeMap<u64, OwnedFd>,
    /// Files that an earlier broker kept, and that are not released.
    expected: BTreeSet<u64>,
    /// Whether all expected files are known.
    is_informed: bool,
    closer: Closer,
}

impl Doors {
    pub(crate) fn new(closer: Closer) -> Self {
        Self {
            doors: Vec::new(),
            kept: BTreeMap::new(),
            expected: BTreeSet::new(),
            is_informed: false,
            closer,
        }
    }

    /// Returns whether no NIC process takes files.
    pub(crate) fn is_empty(&self) -> bool {
        self.doors.is_empty()
    }

    /// Returns whether the NIC processes' sockets have taken all messages.
    pub(crate) fn are_ready(&self) -> bool {
        self.doors.iter().all(|door| door.unsent.is_empty())
    }

    /// Adds a NIC process: it gets all kept files, and each that is passed from now on.
    pub(crate) fn add(&mut self, socket: OwnedFd) {
        let files = self.kept.keys().map(|&file| BrokerToNic::File { file });
        let mut door = Door {
            socket,
            unsent: files.collect(),
            asked: BTreeSet::new(),
            awaits_complete: true,
        };
        if self.is_informed {
            door.ask_for(&self.expected);
        }
        self.doors.push(door);
        self.send_unsent();
    }

    /// Records that an earlier broker kept this file.
    pub(crate) fn expect(&mut self, app: u32, file: u32) {
        self.expected.insert(AppId(app).passed(file));
    }

    /// Asks NIC processes for files of earlier brokers, all of which are expected by now.
    pub(crate) fn ask_for_expected(&mut self) {
        self.is_informed = true;
        for door in &mut self.doors {
            door.ask_for(&self.expected);
        }
        self.send_unsent();
    }

    /// Receives the NIC processes' answers.
    pub(crate) fn receive(&mut self) {
        for place in (0..self.doors.len()).rev() {
            // A flood of messages leaves time for the other NIC processes.
            for _ in 0..MESSAGES_MAX {
                let door = self.doors.get(place);
                let Some(door) = door.filter(|door| !door.asked.is_empty()) else {
                    break;
                };
                let buffer = &mut [0; MESSAGE_BYTES_MAX];
                match fd_passing::receive_many("a NIC process", &door.socket, buffer) {
                    Ok(Some((message, descriptors))) => {
                        let NicToBroker::File { file } = message;
                        self.take(place, file, descriptors);
                    }
                    Ok(None) => break,
                    Err(failure) => {
                        tracing::debug!("{failure}");
                        self.doors.swap_remove(place);
                        break;
                    }
                }
            }
        }
    }

    fn take(&mut self, place: usize, file: u64, descriptors: Vec<OwnedFd>) {
        if let Some(door) = self.doors.get_mut(place) {
            door.asked.remove(&file);
        }
        for descriptor in descriptors {
            if !self.expected.remove(&file) {
                self.closer.close(descriptor);
                continue;
            }
            self.kept.insert(file, descriptor);
            // NIC processes that started meanwhile have not got it.
            for door in self.doors.iter_mut().filter(|door| door.awaits_complete) {
                door.unsent.push_back(BrokerToNic::File { file });
            }
        }
    }

    /// Returns whether an application has a file of this number.
    pub(crate) fn keeps(&self, app: u32, file: u32) -> bool {
        let file = AppId(app).passed(file);
        self.kept.contains_key(&file) || self.expected.contains(&file)
    }

    /// Returns the number of an application's files, kept or expected.
    pub(crate) fn kept_of(&self, app: u32) -> usize {
        let all = AppId(app).all_passed();
        self.kept.range(all.clone()).count() + self.expected.range(all).count()
    }

    /// Passes a file to the NIC processes, and keeps it.
    pub(crate) fn pass(&mut self, app: u32, file: u32, descriptor: OwnedFd) {
        let file = AppId(app).passed(file);
        if let Some(before) = self.kept.insert(file, descriptor) {
            self.closer.close(before);
        }
        self.send(BrokerToNic::File { file });
    }

    /// Releases a file, which is sent no more.
    pub(crate) fn release(&mut self, app: u32, file: u32) {
        let file = AppId(app).passed(file);
        self.expected.remove(&file);
        if let Some(descriptor) = self.kept.remove(&file) {
            self.closer.close(descriptor);
        }
        // An earlier broker may have passed it.
        self.send(BrokerToNic::Close { file });
    }

    /// Releases all files of an application.
    pub(crate) fn release_all(&mut self, app: u32) {
        let files: Vec<u64> = self
            .kept
            .range(AppId(app).all_passed())
            .map(|(&it, _)| it)
            .collect();
        for file in files {
            if let Some(descriptor) = self.kept.remove(&file) {
                self.closer.close(descriptor);
            }
        }
        let is_other = |file: &u64| !AppId(app).all_passed().contains(file);
        self.expected.retain(is_other);
        self.send(BrokerToNic::CloseAll { app });
    }

    fn send(&mut self, message: BrokerToNic) {
        for door in &mut self.doors {
            door.unsent.push_back(message);
        }
        self.send_unsent();
    }

    /// Sends queued messages as far as the sockets take them.
    pub(crate) fn send_unsent(&mut self) {
        // Before that, the files to ask for are unknown.
        if self.is_informed && self.doors.iter().all(|door| door.asked.is_empty()) {
            for door in self.doors.iter_mut().filter(|door| door.awaits_complete) {
                door.unsent.push_back(BrokerToNic::Complete);
                door.awaits_complete = false;
            }
        }
        let kept = &self.kept;
        self.doors.retain_mut(|door| door.send_unsent(kept));
    }

    /// Returns the sockets to watch: for room, or for answers.
    pub(crate) fn watch(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.doors.iter().filter_map(|door| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::OUT, !door.unsent.is_empty());
            flags.set(PollFlags::IN, !door.asked.is_empty());
            (!flags.is_empty()).then(|| PollFd::new(&door.socket, flags))
        })
    }
}

impl Door {
    fn ask_for(&mut self, files: &BTreeSet<u64>) {
        self.asked.clone_from(files);
        let asked = files.iter().map(|&file| BrokerToNic::Return { file });
        self.unsent.extend(asked);
    }

    /// Returns false if the NIC process is gone.
    fn send_unsent(&mut self, kept: &BTreeMap<u64, OwnedFd>) -> bool {
        while let Some(message) = self.unsent.front() {
            let descriptor = match message {
                BrokerToNic::File { file } => match kept.get(file) {
                    Some(descriptor) => Some(descriptor),
                    // The file was released before it was sent.
                    None => {
                        self.unsent.pop_front();
                        continue;
                    }
                },
                BrokerToNic::Close { .. }
                | BrokerToNic::CloseAll { .. }
                | BrokerToNic::Return { .. }
                | BrokerToNic::Complete => None,
            };
            match fd_passing::pass(&self.socket, message, descriptor) {
                Ok(()) => self.unsent.pop_front(),
                Err(Errno::AGAIN) => return true,
                Err(errno) => {
                    tracing::debug!(%errno, "a NIC process accepts no more files");
                    return false;
                }
            };
        }
        true
    }
}
