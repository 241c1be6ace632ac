//! Packets of QUIC connections, filled in and sealed ([`contract::quic`]).
//!
//! | File | Contents |
//! |---|---|
//! | `commands` | checks and executes QKEY, QKEYGONE, QSEND and QRELEASE |
//! | `prepare` | PREPARE, a separate job that ends with READY |
//! | `flow` | QUIC state of a flow: keys, packet numbers, pinned blocks |
//! | `keys` | the keys of a flow, by generation |
//! | `retained` | the blocks that a flow pins, by ranges of files |
//! | `job` | turns a QSEND into a job |
//! | `output` | a superpacket of sealed datagrams |
//! | `packet` | seals one packet and protects its header |
//! | `close` | the last packet of a flow when the host process has died |
//! | `depart` | departure of superpackets of datagrams |
//! | `receive` | opens packets of peers, orders them, and hands them to the host |
//!
//! A QSEND is planned like a SEND, in superpackets of whole datagrams, but its needs are listed as
//! ranges of blocks, which span many packets if each continues the one before. Its departure also
//! differs. The worker seals the packets when the first can leave, from blocks to packet memory
//! without an intermediate copy if the cipher can. It offers the sealed bytes to the port until the
//! port takes them: each number is sealed at most once, regardless of the port's results.

mod close;
mod commands;
mod depart;
mod flow;
mod job;
mod keys;
mod output;
mod packet;
mod prepare;
mod receive;
mod retained;

pub(crate) use flow::QuicFlow;
pub(crate) use output::Datagrams;
pub(crate) use receive::Receiving;
