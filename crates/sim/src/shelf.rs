//! The files, and which version of each is in its place.

use std::cell::Cell;
use std::rc::Rc;

use crate::scenario::File;

/// More files than any scenario has.
const FILES_MAX: usize = 64;

/// What the server may serve; clones are the same one. Whoever has opened a version keeps it, as when a file is
/// renamed over another one.
#[derive(Clone, Debug)]
pub(crate) struct Shelf(Rc<[Place]>);

#[derive(Debug)]
struct Place {
    file: File,
    version: Cell<u32>,
}

impl Shelf {
    pub(crate) fn new(files: &[File]) -> Shelf {
        assert!(
            files.len() <= FILES_MAX,
            "names of contents are of one file"
        );
        let place = |&file| Place {
            file,
            version: Cell::new(0),
        };
        Shelf(files.iter().map(place).collect())
    }

    /// Files.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A file, if there is one of this number.
    pub(crate) fn file(&self, number: usize) -> Option<&File> {
        self.0.get(number).map(|place| &place.file)
    }

    /// The version that is opened now.
    pub(crate) fn version(&self, number: usize) -> u32 {
        self.0.get(number).map_or(0, |place| place.version.get())
    }

    /// Bytes in a version. The first replacement is as long as what it replaces: its length gives it not away.
    pub(crate) fn size(&self, number: usize, version: u32) -> u64 {
        let size = self.file(number).map_or(0, |file| file.size);
        match version {
            0 | 1 => size,
            2 => size / 2,
            _ => size + u64::from(version),
        }
    }

    /// Another version takes a file's place.
    pub(crate) fn replace(&self, number: usize) {
        if let Some(place) = self.0.get(number) {
            place.version.set(place.version.get() + 1);
        }
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
