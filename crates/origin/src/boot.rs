//! Whether the machine has been started since the cache was written to.
//!
//! Nothing waits until content has reached the disk. While the kernel runs, what was written can be
//! read, whatever dies above it. After a start of the machine it may be damaged: a power failure
//! leaves files that have their length, and not their content. The cache directory says in which
//! run of the kernel it was last used.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::disk::read_file;

/// Its name, beside the versions.
pub(crate) const BOOT: &str = "boot";

/// Whether the machine has been started since. A directory that does not say so has not been used,
/// or by a program that wrote no checksums.
pub(crate) fn has_started_since(objects: &Path, boot_id: &str) -> bool {
    match read_file(&objects.join(BOOT)) {
        Ok(known) => known != boot_id.as_bytes() || boot_id.is_empty(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Notes in which run of the kernel it is used. This is on the disk before anything else is
/// written.
pub(crate) fn note(objects: &Path, boot_id: &str) -> io::Result<()> {
    let path = objects.join(BOOT);
    if read_file(&path).is_ok_and(|known| known == boot_id.as_bytes()) {
        return Ok(());
    }
    let unfinished = objects.join(".boot");
    let mut file = fs::File::create(&unfinished)?;
    file.write_all(boot_id.as_bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, &path)?;
    fs::File::open(objects)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_run_of_the_kernel_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        assert!(!has_started_since(root.path(), "a"), "it is new");
        note(root.path(), "a").unwrap();
        assert!(!has_started_since(root.path(), "a"));
        assert!(has_started_since(root.path(), "b"));
        note(root.path(), "b").unwrap();
        assert!(!has_started_since(root.path(), "b"));
        // A fetcher that does not know its run has to expect another one.
        note(root.path(), "").unwrap();
        assert!(has_started_since(root.path(), ""));
    }
}
