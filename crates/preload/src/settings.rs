//! The settings that `splitway run` puts into the environment, as the constructor reads them.

use std::sync::OnceLock;

use crate::environment::ExecEnvironment;
use crate::rules::Rules;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) listen: Rules,
    pub(crate) connect: Rules,
    pub(crate) splice: Rules,
    pub(crate) exec_environment: ExecEnvironment,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Sets the settings, once.
pub(crate) fn init(settings: Settings) {
    let _ = SETTINGS.set(settings);
}

/// Returns the settings; `None` before the constructor has run.
pub(crate) fn settings() -> Option<&'static Settings> {
    SETTINGS.get()
}
