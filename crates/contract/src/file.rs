//! Files: the metadata that identifies a version, and the permitted changes while a file is open.

/// Metadata of an open file; together they name a file version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileMeta {
    /// Size, in bytes.
    pub size: u64,
    /// Inode number.
    pub inode: u64,
    /// Device number.
    pub device: u64,
    /// Last modification, in nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Last status change, in nanoseconds since the epoch.
    pub ctime_ns: i64,
    /// The content may change while all these fields stay the same: a weak validator (RFC 9110
    /// §8.8.1).
    pub is_weak: bool,
}

/// Result of reads from a file that has grown since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Growth {
    /// They fail, as after any other change: an append cannot be distinguished from a longer
    /// rewrite.
    #[default]
    Forbidden,
    /// They continue, up to the size at the open: the file's writer is known to append only.
    Allowed,
}

impl From<bool> for Growth {
    /// Whether it is allowed.
    fn from(is_allowed: bool) -> Growth {
        if is_allowed {
            Growth::Allowed
        } else {
            Growth::Forbidden
        }
    }
}
