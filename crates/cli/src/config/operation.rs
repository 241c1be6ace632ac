//! How the server is run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// How the server is run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Operation {
    /// Where `splitway ctl` reaches this server. Without it, under `/run/splitway` or `$XDG_RUNTIME_DIR/splitway`.
    pub(crate) control_socket: Option<PathBuf>,
}
