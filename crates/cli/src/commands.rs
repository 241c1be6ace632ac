//! The commands, one each; each owns its arguments and its help, but for `serve`, `proxy` and
//! `nic` ([`args`](crate::args)).
//!
//! | Module | Purpose |
//! |---|---|
//! | `serve`, `check` | serves files; checks a configuration without serving |
//! | `proxy` | forwards to backends |
//! | `run` | a program, unmodified, on the split stack |
//! | `ctl`, `stat`, `capture`, `qlog` | ask a running server |
//! | `keygen` | a key for two machines, a secret of QUIC |
//! | `demo`, `link` | shows the whole, emulates a link |
//! | `companion` | the programs of `sim` and `bench` |
//! | `generate` | manual pages and completions for packages |

pub(crate) mod capture;
pub(crate) mod check;
pub(crate) mod companion;
pub(crate) mod ctl;
pub(crate) mod demo;
pub(crate) mod generate;
pub(crate) mod keygen;
pub(crate) mod link;
pub(crate) mod proxy;
pub(crate) mod qlog;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod stat;
