//! Names that cross the split. All are chosen by the host stack and are opaque to the NIC stack.

/// A connection, or whatever else wants its SENDs kept in order. Never another one's within an
/// epoch; after an ACKD with `last`, the same one may come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u64);

/// A file named by OPEN and forgotten by CLOS. May be reused after CLOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// A SEND; the event that reports its departure carries it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SendId(pub u64);
