//! Logs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::text::Text;
use observer::AccessFormat;

use crate::log_level::LogLevel;
use crate::log_place::LogPlace;

/// Log files, their format and level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Logs {
    /// Log level of the processes: `"error"`, `"warn"`, `"info"`, `"debug"` or `"trace"`.
    pub level: Text<LogLevel>,
    /// Access log: a file, or `"-"` for standard output. It gets a line for each finished response.
    pub access: Option<Text<LogPlace>>,
    /// Format of the access log: `"combined"`, as in Apache and nginx; `"combined-cache"`, which
    /// appends the cache status; or `"json"`, with more fields.
    pub access_format: Text<AccessFormat>,
    /// File for messages of the processes, instead of standard error. A reload can change the file,
    /// but not whether there is one.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub error: Option<PathBuf>,
}
