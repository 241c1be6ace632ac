//! The files, and the current version of each.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::scenario::{File, Replacing, Trouble};

/// More files than any scenario has.
const FILES_MAX: usize = 1024;

/// Number of distinct contents that reads of an overwritten file cycle through.
const SCRIBBLES: u32 = 61;

/// The files that the server may serve; clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct FileVersions {
    places: Rc<[Place]>,
    /// Number of times that descriptors were lost with their process.
    descriptors_lost: Rc<Cell<u32>>,
    /// Reads of files that are being overwritten.
    scribbles: Rc<Cell<u32>>,
}

#[derive(Debug)]
struct Place {
    file: File,
    version: Cell<u32>,
    /// Overwritten versions, which even earlier opens can no longer read.
    overwritten: RefCell<Vec<u32>>,
}

/// The moment of a client's request for a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTime {
    number: usize,
    version: u32,
    descriptors_lost: u32,
}

impl FileVersions {
    pub(crate) fn new(files: &[File]) -> FileVersions {
        assert!(
            files.len() <= FILES_MAX,
            "names of contents are of one file"
        );
        let place = |&file| Place {
            file,
            version: Cell::new(0),
            overwritten: RefCell::default(),
        };
        FileVersions {
            places: files.iter().map(place).collect(),
            descriptors_lost: Rc::default(),
            scribbles: Rc::default(),
        }
    }

    /// Returns the content, for [`content`](crate::content), that a read of a version gives now.
    pub(crate) fn read(&self, number: usize, version: u32) -> usize {
        match self.file(number).map(|file| file.trouble) {
            Some(Trouble::Scribbled) => {
                self.scribbles.set(self.scribbles.get() + 1);
                FileVersions::content(number, version + self.scribbles.get() % SCRIBBLES)
            }
            _ => FileVersions::content(number, version),
        }
    }

    /// Returns the number of files.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the file of this number, if there is one.
    pub(crate) fn file(&self, number: usize) -> Option<&File> {
        self.places.get(number).map(|place| &place.file)
    }

    /// Returns the version that an open gets now.
    pub(crate) fn version(&self, number: usize) -> u32 {
        self.places
            .get(number)
            .map_or(0, |place| place.version.get())
    }

    /// Returns the size of a version, in bytes. The first replacement has the size of the original,
    /// so that the size does not distinguish them.
    pub(crate) fn size(&self, number: usize, version: u32) -> u64 {
        let size = self.file(number).map_or(0, |file| file.size);
        match version {
            0 | 1 => size,
            2 => size / 2,
            _ => size + u64::from(version),
        }
    }

    /// Replaces a file by its next version.
    pub(crate) fn replace(&self, number: usize, how: Replacing) {
        if let Some(place) = self.places.get(number) {
            let version = place.version.get();
            place.version.set(version + 1);
            if how == Replacing::Rewritten {
                place.overwritten.borrow_mut().push(version);
            }
        }
    }

    /// Reports whether a reader that has opened this version can still read it.
    pub(crate) fn is_left(&self, number: usize, version: u32) -> bool {
        let place = self.places.get(number);
        place.is_none_or(|place| !place.overwritten.borrow().contains(&version))
    }

    /// Counts a loss of descriptors: a NIC worker has ended.
    pub(crate) fn lose_descriptors(&self) {
        self.descriptors_lost.set(self.descriptors_lost.get() + 1);
    }

    /// Records a client's request for a file now.
    pub(crate) fn ask(&self, number: usize) -> RequestTime {
        RequestTime {
            number,
            version: self.version(number),
            descriptors_lost: self.descriptors_lost.get(),
        }
    }

    /// Reports whether the version at the time of the request, or a later one, may be unreadable
    /// although a response has begun with it: it was overwritten, or was replaced and its
    /// descriptor is lost.
    pub(crate) fn may_be_out_of_reach(&self, asked: RequestTime) -> bool {
        let version = self.version(asked.number);
        let lost = self.descriptors_lost.get() != asked.descriptors_lost;
        let is_left = |version| self.is_left(asked.number, version);
        version != asked.version && (lost || !(asked.version..version).all(is_left))
    }

    /// Returns the content of a version, for [`content`](crate::content).
    pub(crate) fn content(number: usize, version: u32) -> usize {
        version as usize * FILES_MAX + number
    }

    /// Names the file and version of a content, for people.
    pub(crate) fn describe(content: usize) -> String {
        let (number, version) = (content % FILES_MAX, content / FILES_MAX);
        format!("file f{number}, version {version}")
    }
}
