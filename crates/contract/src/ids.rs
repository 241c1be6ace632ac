//! Names that cross the split. They are opaque to the NIC stack. The host stack chooses all but
//! [`PassedId`].

/// A connection, or another sequence of SENDs that must stay in order. Never reused for another one
/// within an epoch; after an ACKD with `last`, the same one may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u64);

/// A file named by OPEN and forgotten by CLOS. May be reused after CLOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// A descriptor that was passed to a NIC stack on the host's machine. Chosen by the process that
/// passes it; never reused while that host stack lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PassedId(pub u64);

/// A SEND; the event that reports its departure carries it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SendId(pub u64);
