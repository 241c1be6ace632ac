//! Files that applications have passed, and the sockets on which NIC processes take them (*doors*).
//!
//! A file is kept until the host stack has released it: a NIC process that starts later gets it as
//! well, though the application has closed its own descriptor long ago.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use socket_channel::AppId;

use crate::closer::Closer;
use crate::ipc::fd_passing;
use crate::ipc::messages::BrokerToNic;

/// A NIC process.
#[derive(Debug)]
struct Door {
    socket: OwnedFd,
    /// What it has not taken.
    unsent: VecDeque<BrokerToNic>,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Doors {
    doors: Vec<Door>,
    kept: BTreeMap<u64, OwnedFd>,
    closer: Closer,
}

impl Doors {
    pub(crate) fn new(closer: Closer) -> Self {
        Self {
            doors: Vec::new(),
            kept: BTreeMap::new(),
            closer,
        }
    }

    /// True if no NIC process takes files.
    pub(crate) fn is_empty(&self) -> bool {
        self.doors.is_empty()
    }

    /// True if all NIC processes have taken what there is for them.
    pub(crate) fn are_ready(&self) -> bool {
        self.doors.iter().all(|door| door.unsent.is_empty())
    }

    /// A NIC process takes files: all that are kept, and from now on each that is passed.
    pub(crate) fn add(&mut self, socket: OwnedFd) {
        let files = self.kept.keys().map(|&file| BrokerToNic::File { file });
        let unsent = files.chain([BrokerToNic::Complete]).collect();
        self.doors.push(Door { socket, unsent });
        self.send_unsent();
    }

    /// True if an application has a file of this number.
    pub(crate) fn keeps(&self, app: u32, file: u32) -> bool {
        self.kept.contains_key(&AppId(app).passed(file))
    }

    /// How many files of an application are kept.
    pub(crate) fn kept_of(&self, app: u32) -> usize {
        self.kept.range(AppId(app).all_passed()).count()
    }

    /// Passes a file on, and keeps it.
    pub(crate) fn pass(&mut self, app: u32, file: u32, descriptor: OwnedFd) {
        let file = AppId(app).passed(file);
        if let Some(before) = self.kept.insert(file, descriptor) {
            self.closer.close(before);
        }
        self.send(BrokerToNic::File { file });
    }

    /// Nothing is sent any more of this file.
    pub(crate) fn release(&mut self, app: u32, file: u32) {
        let file = AppId(app).passed(file);
        if let Some(descriptor) = self.kept.remove(&file) {
            self.closer.close(descriptor);
        }
        // A broker before this one may have passed it.
        self.send(BrokerToNic::Close { file });
    }

    /// Nothing is sent any more of all files of an application.
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
        self.send(BrokerToNic::CloseAll { app });
    }

    fn send(&mut self, message: BrokerToNic) {
        for door in &mut self.doors {
            door.unsent.push_back(message);
        }
        self.send_unsent();
    }

    /// Sends what has been waiting, as far as NIC processes take it.
    pub(crate) fn send_unsent(&mut self) {
        let kept = &self.kept;
        self.doors.retain_mut(|door| door.send_unsent(kept));
    }

    /// What to watch: a NIC process may take more.
    pub(crate) fn watch(&self) -> impl Iterator<Item = PollFd<'_>> {
        let behind = self.doors.iter().filter(|door| !door.unsent.is_empty());
        behind.map(|door| PollFd::new(&door.socket, PollFlags::OUT))
    }
}

impl Door {
    /// False if the NIC process is gone.
    fn send_unsent(&mut self, kept: &BTreeMap<u64, OwnedFd>) -> bool {
        while let Some(message) = self.unsent.front() {
            let descriptor = match message {
                BrokerToNic::File { file } => match kept.get(file) {
                    Some(descriptor) => Some(descriptor),
                    // It was released before it was sent.
                    None => {
                        self.unsent.pop_front();
                        continue;
                    }
                },
                BrokerToNic::Close { .. }
                | BrokerToNic::CloseAll { .. }
                | BrokerToNic::Complete => None,
            };
            match fd_passing::pass(&self.socket, message, descriptor) {
                Ok(()) => self.unsent.pop_front(),
                Err(Errno::AGAIN) => return true,
                Err(errno) => {
                    tracing::debug!(%errno, "a NIC process takes no more files");
                    return false;
                }
            };
        }
        true
    }
}
