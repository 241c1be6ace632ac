//! Files: what tells their versions apart, and what may become of them while they are open.

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
    /// The content may change and leave all of this as it is: a weak validator (RFC 9110 §8.8.1).
    pub is_weak: bool,
}

/// What becomes of reads from a file that has grown since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Growth {
    /// They fail, as after any other change: nothing tells an append from a rewrite that is longer.
    #[default]
    Forbidden,
    /// They go on, up to the size at the open: the file's writer is known to append and to rewrite
    /// nothing.
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
