//! Measuring: rounds, their cost, their results, and the files that hold these.
//!
//! | Module | Contents |
//! |---|---|
//! | `rounds`, `plan` | how often, and for how long; how long it takes in all |
//! | `run` | one run: load on a server, and its cost |
//! | `perf` | system calls, and where time goes |
//! | `results`, `publish`, `index` | samples, tables, plots, JSON; their files; the common page |
//! | `spread`, `table` | medians with their spread; columns that several tables have |

pub(crate) mod index;
pub(crate) mod perf;
pub(crate) mod plan;
pub(crate) mod publish;
pub(crate) mod results;
pub(crate) mod rounds;
pub(crate) mod run;
pub(crate) mod spread;
pub(crate) mod table;
