//! The files, and which version of each is in its place.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::scenario::{File, Replacing, Trouble};

/// More files than any scenario has.
const FILES_MAX: usize = 1024;

/// So many reads of a file that is being overwritten differ from each other.
const SCRIBBLES: u32 = 61;

/// What the server may serve; clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct FileVersions {
    places: Rc<[Place]>,
    /// How often descriptors have died with their process.
    descriptors_lost: Rc<Cell<u32>>,
    /// Reads of files that are being overwritten.
    scribbles: Rc<Cell<u32>>,
}

#[derive(Debug)]
struct Place {
    file: File,
    version: Cell<u32>,
    /// Versions of which nothing is left, even for those who have opened them.
    overwritten: RefCell<Vec<u32>>,
}

/// A moment at which a client has asked for a file.
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

    /// What is read now from a version of a file, for [`content`](crate::content).
    pub(crate) fn read(&self, number: usize, version: u32) -> usize {
        match self.file(number).map(|file| file.trouble) {
            Some(Trouble::Scribbled) => {
                self.scribbles.set(self.scribbles.get() + 1);
                FileVersions::content(number, version + self.scribbles.get() % SCRIBBLES)
            }
            _ => FileVersions::content(number, version),
        }
    }

    /// Files.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// A file, if there is one of this number.
    pub(crate) fn file(&self, number: usize) -> Option<&File> {
        self.places.get(number).map(|place| &place.file)
    }

    /// The version that is opened now.
    pub(crate) fn version(&self, number: usize) -> u32 {
        self.places
            .get(number)
            .map_or(0, |place| place.version.get())
    }

    /// Bytes in a version. The first replacement is as long as what it replaces: its length gives
    /// it not away.
    pub(crate) fn size(&self, number: usize, version: u32) -> u64 {
        let size = self.file(number).map_or(0, |file| file.size);
        match version {
            0 | 1 => size,
            2 => size / 2,
            _ => size + u64::from(version),
        }
    }

    /// Another version takes a file's place.
    pub(crate) fn replace(&self, number: usize, how: Replacing) {
        if let Some(place) = self.places.get(number) {
            let version = place.version.get();
            place.version.set(version + 1);
            if how == Replacing::Rewritten {
                place.overwritten.borrow_mut().push(version);
            }
        }
    }

    /// A reader that has opened this version can still read it.
    pub(crate) fn is_left(&self, number: usize, version: u32) -> bool {
        let place = self.places.get(number);
        place.is_none_or(|place| !place.overwritten.borrow().contains(&version))
    }

    /// A NIC worker has gone, and its descriptors with it.
    pub(crate) fn lose_descriptors(&self) {
        self.descriptors_lost.set(self.descriptors_lost.get() + 1);
    }

    /// A client asks for a file now.
    pub(crate) fn ask(&self, number: usize) -> RequestTime {
        RequestTime {
            number,
            version: self.version(number),
            descriptors_lost: self.descriptors_lost.get(),
        }
    }

    /// The version that was there when it was asked for, or a later one, may be out of reach
    /// although a response has begun with it: it was overwritten, or was replaced and its
    /// descriptor is lost.
    pub(crate) fn may_be_out_of_reach(&self, asked: RequestTime) -> bool {
        let version = self.version(asked.number);
        let lost = self.descriptors_lost.get() != asked.descriptors_lost;
        let is_left = |version| self.is_left(asked.number, version);
        version != asked.version && (lost || !(asked.version..version).all(is_left))
    }

    /// What is in a version, for [`content`](crate::content).
    pub(crate) fn content(number: usize, version: u32) -> usize {
        version as usize * FILES_MAX + number
    }

    /// Whose content that is, for people.
    pub(crate) fn describe(content: usize) -> String {
        let (number, version) = (content % FILES_MAX, content / FILES_MAX);
        format!("file f{number}, version {version}")
    }
}
