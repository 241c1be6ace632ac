//! What is in a directory: LIST, as often as it takes, of each NIC stack that has some of it.
//!
//! A listing in hand is a file of the table whose OPEN is a LIST, so that whatever becomes of a NIC
//! stack, it is asked again, or another one is. A part that goes on where another has ended is
//! different: only the NIC stack that has begun knows the place. Should it be gone for good, the
//! application begins again.

use contract::listing::Part;
use contract::{FileId, Growth};
use rustix::io::Errno;

use super::Stack;
use crate::app::{AppEvent, FileHandle, ListPart, ListPlace, StreamId};
use crate::nics::nic_stacks::NicSet;
use crate::tables::files::{File, Lookup, Name, State};

/// The error of a listing that cannot go on where it was.
const BEGIN_AGAIN: u16 = Errno::STALE.raw_os_error() as u16;

impl Stack {
    /// Has a directory listed for a stream whose worker this is, or goes on with that.
    pub(crate) fn list_directory(
        &mut self,
        now_us: u64,
        stream: StreamId,
        worker: usize,
        path: &[u8],
        from: Option<ListPlace>,
    ) -> Option<(FileId, FileHandle)> {
        let own = self.nic_stacks.of(worker);
        let place = from.unwrap_or(ListPlace {
            nic: own,
            from: 0,
            version: None,
            told: NicSet::default(),
        });
        let worker = if place.nic == own {
            worker
        } else {
            let workers = self.nic_stacks.workers_in_use(place.nic);
            self.connections.least_busy(workers)?
        };
        let from = place.from;
        let opened =
            self.admit_file(now_us, stream, worker, Name::Path(Growth::Forbidden), path)?;
        let is_there = self.nic_stacks.is_there(place.nic);
        if let Some(file) = self.files.by_id_mut(opened.0) {
            file.listing = Some(Box::new(place));
            file.asked = place.told;
            if is_there {
                file.asked.insert(place.nic)
            } else {
                file.state = State::Waiting
            }
        }
        if is_there {
            self.send_open(worker, opened.0, path, Lookup::List(from))
        } else {
            self.ask(opened.0)
        }
        Some(opened)
    }

    /// LIST has succeeded; false if it was not awaited.
    pub(super) fn on_listed(&mut self, worker: usize, file: FileId, part: &Part) -> bool {
        let nic = self.nic_stacks.of(worker);
        let Some((listed, awaiting)) = self.files.listed(worker, file) else {
            return false;
        };
        let mut told = listed.asked;
        let next = match part.next {
            0 => self.list_elsewhere(told),
            from => {
                told.remove(nic);
                Some(ListPlace {
                    nic,
                    from,
                    version: Some(part.directory),
                    told,
                })
            }
        };
        let before = listed.version;
        let part = ListPart {
            has_changed: before.is_some_and(|before| before != part.directory),
            entries: part.entries.clone(),
            next,
        };
        if let Some((stream, file)) = awaiting {
            self.tell_listed(stream, file, part);
        }
        true
    }

    /// Where a listing goes on of which these NIC stacks have told all.
    fn list_elsewhere(&self, told: NicSet) -> Option<ListPlace> {
        let nic = if self.config.roots_are_replicas {
            None
        } else {
            self.nic_stacks.another(told)
        };
        nic.map(|nic| ListPlace {
            nic,
            from: 0,
            version: None,
            told,
        })
    }

    /// A listing that NIC stack `nic` has begun waits for it, to go on; or fails.
    pub(super) fn wait_to_go_on(&mut self, file: FileId, nic: usize, answer: Option<u16>) {
        match answer {
            // To begin again would ask for more of what there is too little of.
            Some(errno) if is_overload(errno) => self.tell_open_failed(file, errno),
            None if self.nic_stacks.is_awaited(nic) => {}
            _ => self.tell_open_failed(file, BEGIN_AGAIN),
        }
    }

    /// What a NIC stack may have cannot be had from any other one, and without it the listing would
    /// not be whole.
    pub(super) fn fails_listing(&self, file: &File) -> bool {
        let begins = file.lookup() == Lookup::List(0);
        begins && !self.config.roots_are_replicas && file.errno.is_some_and(may_have_some)
    }

    /// A directory that is not there was listed elsewhere already: then there is no more of it, and
    /// no failure. False if that is not so.
    pub(super) fn ends_listing(&mut self, file: FileId) -> bool {
        let found = self.files.by_id(file);
        let found = found.filter(|found| !self.fails_listing(found));
        let listing = found.and_then(|found| found.listing.as_ref());
        if !listing.is_some_and(|place| place.from == 0 && !place.told.is_empty()) {
            return false;
        }
        if let Some((stream, file)) = self.files.open_failed(file) {
            self.tell_listed(stream, file, ListPart::default());
        }
        true
    }

    fn tell_listed(&mut self, stream: StreamId, file: FileHandle, part: ListPart) {
        let part = Box::new(part);
        let event = AppEvent::Listed { file, part };
        self.app_events.push_back((stream, event));
        if let Some(handle) = self.connections.handle_of(stream) {
            self.tell_next(handle);
        }
    }
}

/// A NIC stack that says this of a directory has not said that there is none.
pub(super) fn may_have_some(errno: u16) -> bool {
    !matches!(
        Errno::from_raw_os_error(errno.into()),
        Errno::NOENT | Errno::NOTDIR
    )
}

/// A NIC stack that says this has too much to do.
fn is_overload(errno: u16) -> bool {
    matches!(
        Errno::from_raw_os_error(errno.into()),
        Errno::BUSY | Errno::MFILE | Errno::NFILE | Errno::NOMEM
    )
}
