//! Options of `splitway serve` and `splitway nic`, which override the configuration file.
//!
//! | Module | Purpose |
//! |---|---|
//! | `serve`, `proxy`, `nic` | the commands |
//! | `cache`, `firewall`, `http`, `log`, `origin`, `tcp`, `tls` | groups of their options |
//! | `cluster` | `sockets-node` and `sockets-gate` |
//! | `named` | values of options that have names |
//! | `overlay` | options over the configuration file |

pub(crate) mod cache;
pub(crate) mod cluster;
pub(crate) mod firewall;
pub(crate) mod http;
pub(crate) mod log;
pub(crate) mod named;
pub(crate) mod nic;
pub(crate) mod origin;
pub(crate) mod overlay;
pub(crate) mod proxy;
pub(crate) mod serve;
pub(crate) mod tcp;
pub(crate) mod tls;
