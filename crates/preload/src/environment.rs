//! Environment variables by which `splitway run` configures the library, and those that a new
//! program image needs.

use std::ffi::{CStr, CString};

use capi::client::ApplicationKey;

/// Rules of [`crate::rules`] for addresses that programs bind.
pub const LISTEN: &str = "SPLITWAY_LISTEN";

/// Rules for addresses that programs connect to.
pub const CONNECT: &str = "SPLITWAY_CONNECT";

/// Rules for addresses of connections that a NIC stack joins, where the program copies between two
/// by splice(2).
pub const SPLICE: &str = "SPLITWAY_SPLICE";

/// Number of a descriptor to which the library writes a byte when it is loaded, and which it
/// closes.
pub const LOADED: &str = "SPLITWAY_LOADED";

/// Number of the descriptor of a memory file in which all images of the program count.
pub const TALLY: &str = "SPLITWAY_TALLY";

/// Counters in that file.
pub use capi::client::tally::{Counted, Tally};

/// Number of the descriptor of a memory file with the application that all processes of the program
/// share.
pub const APPLICATION_FILE: &str = "SPLITWAY_APPLICATION_FILE";

/// Creation of such a file, and the entries that processes make there.
pub use capi::client::application_file::{
    ProgramSets, UnwaitedSet, create as create_application_file,
};

/// Numbers of the system calls that wait for an epoll set.
pub const WAITS_IN_SETS: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
];

/// Libraries that the loader loads first (ld.so(8)).
pub const PRELOAD: &str = "LD_PRELOAD";

/// Path of the broker's socket, and requested modes: variables of `libsplitway`.
pub const OF_LIBRARY: [&str; 2] = ["SPLITWAY_SOCKET", "SPLITWAY_MODES"];

/// Application that a new program image joins, to keep the sockets that it inherits.
pub use capi::client::APPLICATION_VARIABLE as APPLICATION;

/// Default path of the broker's socket.
pub const DEFAULT_SOCKET: &str = capi::client::DEFAULT_PATH;

/// Variables that a new program image gets even if its environment is cleared.
const OF_EXEC: [&str; 7] = [
    LISTEN,
    CONNECT,
    SPLICE,
    TALLY,
    APPLICATION_FILE,
    OF_LIBRARY[0],
    OF_LIBRARY[1],
];

/// Variables that the environment of a new program image must have.
#[derive(Debug)]
pub(crate) struct ExecEnvironment {
    /// Path of this library.
    library: String,
    variables: Vec<CString>,
}

impl ExecEnvironment {
    /// Reads the environment of this process.
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

    /// Adds the missing variables, and the application to join, to an environment; `None` if it is
    /// complete.
    pub(crate) fn complete(
        &self,
        environment: &[&CStr],
        application: Option<&ApplicationKey>,
    ) -> Option<Vec<CString>> {
        if self.library.is_empty() {
            return None;
        }
        let is_of = |variable: &CStr, name: &str| {
            let rest = variable.to_bytes().strip_prefix(name.as_bytes());
            rest.is_some_and(|rest| rest.starts_with(b"="))
        };
        let of = |name: &str| environment.iter().position(|it| is_of(it, name));
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
        if has_library && missing.is_empty() && application.is_none() {
            return None;
        }
        // The key of another application is of no use here.
        let stays = |it: &CStr| !is_of(it, APPLICATION) && (has_library || !is_of(it, PRELOAD));
        let stays = environment.iter().filter(|it| stays(it));
        let mut whole: Vec<CString> = stays.map(|&it| it.to_owned()).collect();
        if !has_library {
            let before = preload.map(|place| environment[place].to_bytes());
            let others = before.and_then(|it| it.strip_prefix(b"LD_PRELOAD="));
            let mut value = format!("{PRELOAD}={}", self.library).into_bytes();
            if let Some(others) = others.filter(|others| !others.is_empty()) {
                value.push(b':');
                value.extend(others);
            }
            whole.extend(CString::new(value));
        }
        whole.extend(missing);
        let application = application.map(|key| CString::new(format!("{APPLICATION}={key}")));
        whole.extend(application.into_iter().flatten());
        Some(whole)
    }
}

/// Part of the library's file name.
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
        strings(exec_environment().complete(environment, None)?)
    }

    fn strings(completed: Vec<CString>) -> Option<Vec<String>> {
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
    fn the_application_takes_the_place_of_another() {
        let key = "7:00303132333435363738396162636465";
        let before = [
            c"LD_PRELOAD=/lib/libsplitway-preload.so",
            c"SPLITWAY_APPLICATION=1:0",
            c"SPLITWAY_LISTEN=any",
        ];
        let completed = exec_environment().complete(&before, key.parse().ok().as_ref());
        let expected = [
            "LD_PRELOAD=/lib/libsplitway-preload.so",
            "SPLITWAY_LISTEN=any",
            &format!("SPLITWAY_APPLICATION={key}"),
        ];
        assert_eq!(completed.and_then(strings).unwrap(), expected);
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
