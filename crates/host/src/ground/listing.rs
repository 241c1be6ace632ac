//! Listings: LIST, as often as it takes, at each NIC stack that has part of the directory.
//!
//! A listing in progress is a file of the table whose OPEN is a LIST, so that if a NIC stack is
//! lost, the host asks it again, or another one. A part that continues an earlier one is different:
//! only the NIC stack that began knows the place. If that is gone for good, the application starts
//! over.

use contract::listing::Part;
use contract::{FileId, Growth};
use rustix::io::Errno;

use crate::app::{AppEvent, FileHandle, ListPart, ListPlace, StreamId};
use crate::ground::Ground;
use crate::ground::Layers;
use crate::nics::nic_stacks::NicSet;
use crate::tables::files::{File, Lookup, Name, State};

/// The error of a listing that cannot continue where it was.
const BEGIN_AGAIN: u16 = Errno::STALE.raw_os_error() as u16;

impl Ground {
    /// Lists a directory for a stream of this worker, or continues a listing.
    pub(crate) fn list_directory(
        &mut self,
        layers: &mut Layers<'_>,
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
            self.least_busy(workers)?
        };
        let from = place.from;
        let opened = self.admit_file(
            layers,
            now_us,
            stream,
            worker,
            Name::Path(Growth::Forbidden),
            path,
        )?;
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
            self.ask(layers, opened.0)
        }
        Some(opened)
    }

    /// LIST has succeeded; false if it was not awaited.
    pub(crate) fn on_listed(
        &mut self,
        layers: &mut Layers<'_>,
        worker: usize,
        file: FileId,
        part: &Part,
    ) -> bool {
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
            self.tell_listed(layers, stream, file, part);
        }
        true
    }

    /// Where a listing continues after these NIC stacks have sent all.
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

    /// Lets a listing that NIC stack `nic` has begun wait for it to continue, or fail.
    pub(crate) fn wait_to_go_on(
        &mut self,
        layers: &mut Layers<'_>,
        file: FileId,
        nic: usize,
        answer: Option<u16>,
    ) {
        match answer {
            // Starting over would use more of the short resource.
            Some(errno) if is_overload(errno) => self.tell_open_failed(layers, file, errno),
            None if self.nic_stacks.is_awaited(nic) => {}
            _ => self.tell_open_failed(layers, file, BEGIN_AGAIN),
        }
    }

    /// True if the listing would be incomplete without this NIC stack: no other one can have its
    /// entries.
    pub(crate) fn fails_listing(&self, file: &File) -> bool {
        let begins = file.lookup() == Lookup::List(0);
        begins && !self.config.roots_are_replicas && file.errno.is_some_and(may_have_some)
    }
}

impl Ground {
    /// Ends a listing that other NIC stacks have answered before this one reported that it has no
    /// such directory. False if that does not apply.
    pub(crate) fn ends_listing(&mut self, layers: &mut Layers<'_>, file: FileId) -> bool {
        let found = self.files.by_id(file);
        let found = found.filter(|found| !self.fails_listing(found));
        let listing = found.and_then(|found| found.listing.as_ref());
        if !listing.is_some_and(|place| place.from == 0 && !place.told.is_empty()) {
            return false;
        }
        if let Some((stream, file)) = self.files.open_failed(file) {
            self.tell_listed(layers, stream, file, ListPart::default());
        }
        true
    }

    fn tell_listed(
        &mut self,
        layers: &mut Layers<'_>,
        stream: StreamId,
        file: FileHandle,
        part: ListPart,
    ) {
        let part = Box::new(part);
        let event = AppEvent::Listed { file, part };
        self.app_events.push_back((stream, event));
        if let Some(handle) = layers.tcp.connections.handle_of(stream) {
            layers.tcp.tell_next(self, handle);
        }
    }
}

/// True if the error of a NIC stack does not mean that it lacks the directory.
pub(crate) fn may_have_some(errno: u16) -> bool {
    !matches!(
        Errno::from_raw_os_error(errno.into()),
        Errno::NOENT | Errno::NOTDIR
    )
}

/// True if the error means that a NIC stack is overloaded.
fn is_overload(errno: u16) -> bool {
    matches!(
        Errno::from_raw_os_error(errno.into()),
        Errno::BUSY | Errno::MFILE | Errno::NFILE | Errno::NOMEM
    )
}
