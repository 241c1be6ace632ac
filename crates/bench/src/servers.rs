//! Servers under measurement, each in a namespace with a link of its own.
//!
//! | Module | Contents |
//! |---|---|
//! | `server_set` | files, servers, links |
//! | `nginx`, `lighttpd` | the peers |
//! | `http3_peers` | those over HTTP/3 |
//! | `peer_network` | where peers are: a namespace, and a link like Splitway's |
//! | `link` | veth pairs, and on which core the kernel does their receive work |
//! | `cores` | which cores servers have |

pub(crate) mod cores;
pub(crate) mod http3_peers;
pub(crate) mod lighttpd;
pub(crate) mod link;
pub(crate) mod nginx;
pub(crate) mod peer_network;
pub(crate) mod server_set;
