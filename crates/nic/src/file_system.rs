//! Properties of a file system: whether it may make its reader wait, and whether its timestamps
//! distinguish versions of a file.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use rustix::fs::fstatfs;
use rustix::io::Errno;

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileSystem {
    /// On a disk of this machine. The kernel has the attributes, and reads without making its
    /// caller wait.
    Disk,
    /// In memory. As [`FileSystem::Disk`], but writes through a mapping leave no trace in the
    /// timestamps.
    Memory,
    /// Any other, such as a server's on the network, or a process's (FUSE): it may wait arbitrarily
    /// long, and the kernel's copy of the attributes may be old.
    Other,
}

/// Magic numbers of `linux/magic.h`, and of file systems that are not listed there.
const DISKS: [u32; 14] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
    0x2fc1_2fc1, // ZFS
    0x3153_464a, // JFS
    0xe0f5_e1e2, // EROFS
    0x7371_7368, // SquashFS
    0x9660,      // ISO 9660
    0x1501_3346, // UDF
    0x4d44,      // FAT
    0x2011_bab0, // exFAT
    0x7366_746e, // NTFS
];

/// tmpfs and ramfs.
const MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

impl FileSystem {
    /// Returns the file system of a file. May wait for it.
    pub(crate) fn of(file: BorrowedFd<'_>) -> Result<FileSystem, Errno> {
        let magic = fstatfs(file)?.f_type as u32;
        Ok(match magic {
            _ if DISKS.contains(&magic) => FileSystem::Disk,
            _ if MEMORY.contains(&magic) => FileSystem::Memory,
            _ => FileSystem::Other,
        })
    }

    /// True if the kernel has its attributes, and reads from it do not make the worker wait.
    pub(crate) fn is_local(self) -> bool {
        self != FileSystem::Other
    }
}

/// A mounted file system: the id of its mount, and its device, which shows a reuse of the id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Mount {
    /// An id that is never reused (Linux 6.8), or else one that may be.
    pub(crate) id: u64,
    pub(crate) device: u64,
}

/// Known mounts.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    known: Mutex<HashMap<Mount, FileSystem>>,
}

/// Most mounts remembered; beyond, all are forgotten and looked up again.
const MOUNTS_MAX: usize = 4096;

impl Mounts {
    pub(crate) fn get(&self, mount: Mount) -> Option<FileSystem> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&mount).copied()
    }

    pub(crate) fn insert(&self, mount: Mount, system: FileSystem) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOUNTS_MAX {
            known.clear();
        }
        known.insert(mount, system);
    }
}
