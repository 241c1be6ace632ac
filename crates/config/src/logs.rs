//! Logs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::text::Text;
use observer::AccessFormat;

use crate::log_level::LogLevel;
use crate::log_place::LogPlace;

/// Logs, and which lines they have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Logs {
    /// How much the processes have to say: `"error"`, `"warn"`, `"info"`, `"debug"` or `"trace"`.
    pub level: Text<LogLevel>,
    /// File with a line for each response that is over, or `"-"` for standard output.
    pub access: Option<Text<LogPlace>>,
    /// What its lines are like: `"combined"`, as Apache's and nginx's; `"combined-cache"`, with
    /// what the cache had to do with it behind that; or `"json"`, with more.
    pub access_format: Text<AccessFormat>,
    /// File for what the processes have to say, which otherwise goes to standard error. A reload
    /// changes which file, and not whether there is one.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub error: Option<PathBuf>,
}
