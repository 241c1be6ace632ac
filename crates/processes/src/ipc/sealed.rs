//! Sealed memory files, in which the supervisor passes data to a process that can open no file.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use zeroize::Zeroizing;

/// Largest size, in bytes: more than a hundred certificates of the greatest length.
const BYTES_MAX: u64 = 256 << 20;

/// Creates a memory file that holds `pieces` and never changes again, to be read once from its
/// beginning. The kernel frees it when both ends have closed it.
pub fn write(pieces: &[&[u8]]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file: File = memfd_create("splitway-settings", flags)?.into();
    for piece in pieces {
        file.write_all(piece)?;
    }
    file.rewind()?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Reads the contents, which are erased from memory when dropped. Performs no system call that
/// opens a file.
pub fn read(file: impl AsFd) -> rustix::io::Result<Zeroizing<Vec<u8>>> {
    let bytes = rustix::fs::fstat(file.as_fd())?.st_size;
    let bytes = u64::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes <= BYTES_MAX);
    let mut contents = Zeroizing::new(vec![0; bytes.ok_or(Errno::FBIG)? as usize]);
    let mut at = 0;
    while at < contents.len() {
        match rustix::io::retry_on_intr(|| rustix::io::read(file.as_fd(), &mut contents[at..]))? {
            0 => break,
            count => at += count,
        }
    }
    contents.truncate(at);
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_file_is_read_once_and_cannot_be_written() {
        let file = write(&[b"one ", b"two"]).unwrap();
        assert_eq!(rustix::io::write(&file, b"x"), Err(Errno::PERM));
        assert_eq!(*read(&file).unwrap(), b"one two");
        assert!(read(&file).unwrap().is_empty());
    }
}
