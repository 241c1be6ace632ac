//! Packets of QUIC connections, filled in and sealed ([`contract::quic`]).
//!
//! | File | What it holds |
//! |---|---|
//! | `commands` | QKEY, QKEYGONE, QSEND and QRELEASE are checked and carried out |
//! | `prepare` | PREPARE, a job of its own that ends with READY |
//! | `flow` | what a flow has of QUIC: keys, packet numbers, what it pins |
//! | `keys` | the keys of a flow, by generation |
//! | `retained` | blocks that a flow pins, by ranges of files |
//! | `job` | a QSEND becomes a job |
//! | `output` | a superpacket of sealed datagrams |
//! | `packet` | one packet is sealed, and its header protected |
//! | `depart` | superpackets of datagrams leave |
//! | `receive` | packets of peers are opened, put in order, and handed to the host |
//!
//! A QSEND is planned as a SEND is, in superpackets of whole datagrams, but what these need is
//! listed by ranges of blocks, over many packets if each goes on where the one before has ended.
//! What differs as well is its departure. Its packets are sealed when the first of them can leave,
//! from blocks to packet memory without a copy between them if the cipher can, and what is sealed
//! is offered to the port until it takes it: a number is sealed once at most, whatever the port
//! says.

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
