//! Detects whether the machine was rebooted since the cache was written.
//!
//! The cache does not sync its content. As long as the kernel runs, written content is readable
//! even if processes die. After a reboot, content may be damaged: a power failure leaves files with
//! their full length but without their content. The cache directory records the boot ID of its last
//! use.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::disk::read_file;

/// Name of the record's file, beside the versions.
pub(crate) const BOOT: &str = "boot";

/// Whether the machine was rebooted since the cache's last use. A directory without a record is
/// unused, or was written by a program without checksums.
pub(crate) fn has_started_since(objects: &Path, boot_id: &str) -> bool {
    match read_file(&objects.join(BOOT)) {
        Ok(known) => known != boot_id.as_bytes() || boot_id.is_empty(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Records the boot ID of the running kernel, on disk before any other write.
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
