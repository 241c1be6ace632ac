//! TCP from the outside: packet traces named by state and event, and pairs of connections over a
//! bad network.

mod script;

mod acknowledgments;
mod bbr;
mod buffers;
mod close;
mod congestion;
mod cork;
mod departures;
mod ecn;
mod fast_open;
mod half_open;
mod handshake;
mod hostile;
mod info;
mod intruder;
mod join;
mod keepalive;
mod long_streams;
mod memory;
mod mixed;
mod nagle;
mod network;
mod pacing;
mod pairs;
mod path;
mod path_model;
mod pmtu;
mod ranges;
mod receive;
mod recovery;
mod remainder;
mod resets;
mod retransmission;
mod sack;
mod scenario;
mod time_wait;
mod timestamps;
mod undeparted;
mod windows;
