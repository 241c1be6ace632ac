//! What `splitway run` tells the library, in variables of the environment, and what a new program
//! image needs of them.

use std::ffi::{CStr, CString};

/// The rules of [`crate::rules`] about addresses that programs bind.
pub const LISTEN: &str = "SPLITWAY_LISTEN";

/// The rules about addresses that programs connect to.
pub const CONNECT: &str = "SPLITWAY_CONNECT";

/// The number of a descriptor that the library writes a byte into, and closes, when it is loaded.
pub const LOADED: &str = "SPLITWAY_LOADED";

/// Libraries that the loader loads first (ld.so(8)).
pub const PRELOAD: &str = "LD_PRELOAD";

/// Where the broker listens, and which modes are asked for: those of `libsplitway`.
pub const OF_LIBRARY: [&str; 2] = ["SPLITWAY_SOCKET", "SPLITWAY_MODES"];

/// Where the broker listens unless something else is said.
pub const DEFAULT_SOCKET: &str = capi::client::DEFAULT_PATH;

/// Variables that a new program image gets even if its environment is cleared.
const OF_EXEC: [&str; 4] = [LISTEN, CONNECT, OF_LIBRARY[0], OF_LIBRARY[1]];

/// What a new program image has to have in its environment.
#[derive(Debug)]
pub(crate) struct ExecEnvironment {
    /// Path of this library.
    library: String,
    variables: Vec<CString>,
}

impl ExecEnvironment {
    /// What the environment of this process says.
    pub(crate) fn read() -> ExecEnvironment {
        let preload = std::env::var(PRELOAD).unwrap_or_default();
        let mut libraries = preload.split([':', ' ']);
        let library = libraries.find(|path| path.contains(LIBRARY));
        let variables = OF_EXEC.iter().filter_map(|name| {
            let value = std::env::var(name).ok()?;
            CString::new(format!("{name}={value}")).ok()
        });
        ExecEnvironment {
            library: library.unwrap_or_default().to_owned(),
            variables: variables.collect(),
        }
    }

    /// An environment with what is missing in this one, or `None` if nothing is.
    pub(crate) fn complete(&self, environment: &[&CStr]) -> Option<Vec<CString>> {
        if self.library.is_empty() {
            return None;
        }
        let of = |name: &str| {
            let mut all = environment.iter().map(|variable| variable.to_bytes());
            all.position(|variable| {
                let rest = variable.strip_prefix(name.as_bytes());
                rest.is_some_and(|rest| rest.starts_with(b"="))
            })
        };
        let preload = of(PRELOAD);
        let has_library = preload.is_some_and(|place| {
            let value = environment[place].to_bytes();
            let mut pieces = value.windows(self.library.len());
            pieces.any(|piece| piece == self.library.as_bytes())
        });
        let name_of = |variable: &CString| {
            let text = variable.to_string_lossy();
            text.split('=').next().unwrap_or_default().to_owned()
        };
        let missing = self.variables.iter();
        let missing = missing.filter(|variable| of(&name_of(variable)).is_none());
        let missing: Vec<CString> = missing.cloned().collect();
        if has_library && missing.is_empty() {
            return None;
        }
        let mut whole: Vec<CString> = environment.iter().map(|&it| it.to_owned()).collect();
        if !has_library {
            let before = preload.map(|place| whole.remove(place));
            let before = before.as_deref().map(CStr::to_bytes);
            let others = before.and_then(|it| it.strip_prefix(b"LD_PRELOAD="));
            let mut value = format!("{PRELOAD}={}", self.library).into_bytes();
            if let Some(others) = others.filter(|others| !others.is_empty()) {
                value.push(b':');
                value.extend(others);
            }
            whole.extend(CString::new(value));
        }
        whole.extend(missing);
        Some(whole)
    }
}

/// What the path of the library has in it.
const LIBRARY: &str = "libsplitway-preload";

#[cfg(test)]
mod tests {
    use super::*;

    fn exec_environment() -> ExecEnvironment {
        ExecEnvironment {
            library: "/lib/libsplitway-preload.so".to_owned(),
            variables: vec![c"SPLITWAY_LISTEN=any".to_owned()],
        }
    }

    fn completed(environment: &[&CStr]) -> Option<Vec<String>> {
        let completed = exec_environment().complete(environment)?;
        Some(
            completed
                .iter()
                .map(|it| it.to_string_lossy().into_owned())
                .collect(),
        )
    }

    #[test]
    fn an_environment_that_was_cleared_gets_what_it_lacks() {
        let completed = completed(&[c"PATH=/bin"]).unwrap();
        let wanted = [
            "PATH=/bin",
            "LD_PRELOAD=/lib/libsplitway-preload.so",
            "SPLITWAY_LISTEN=any",
        ];
        assert_eq!(completed, wanted);
    }

    #[test]
    fn other_libraries_stay_and_what_the_program_says_counts() {
        let completed = completed(&[c"LD_PRELOAD=/lib/other.so", c"SPLITWAY_LISTEN=80"]).unwrap();
        let wanted = [
            "SPLITWAY_LISTEN=80",
            "LD_PRELOAD=/lib/libsplitway-preload.so:/lib/other.so",
        ];
        assert_eq!(completed, wanted);
    }

    #[test]
    fn a_whole_environment_stays_as_it_is() {
        let whole = [
            c"LD_PRELOAD=/lib/libsplitway-preload.so",
            c"SPLITWAY_LISTEN=any",
        ];
        assert_eq!(completed(&whole), None);
    }
}
