//! Detects directories in use whose paths lead elsewhere by now, as after a deployment that renames
//! a new directory into the place of the old: processes keep the directory that they have opened. A
//! warning is logged once, and a metric is set.
//!
//! A thread checks once a second: a lookup on a network file system may take long.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use failure::Failure;
use rustix::event::{EventfdFlags, eventfd};

use config::root::Identity;
use observer::DirectoryReport;

const PERIOD: Duration = Duration::from_secs(1);

/// A directory in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    /// Name for messages.
    pub(crate) what: &'static str,
    pub(crate) path: PathBuf,
    /// Directory that processes have opened.
    pub(crate) used: Identity,
}

/// Target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    InUse,
    Elsewhere,
    /// Missing or inaccessible, for this reason.
    Gone(String),
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct DirectoryWatch {
    shared: Arc<Shared>,
    /// State last logged for each directory.
    logged: Vec<(Watched, State)>,
}

#[derive(Debug)]
struct Shared {
    watched: Mutex<Vec<(Watched, State)>>,
    /// Readable when a state has changed.
    changed: OwnedFd,
}

impl DirectoryWatch {
    /// Watches nothing yet.
    pub(crate) fn new() -> Result<Self, Failure> {
        let failed = |error| Failure::broken("watching directories", error);
        let changed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| failed(errno.into()))?;
        let shared = Arc::new(Shared {
            watched: Mutex::default(),
            changed,
        });
        let seen = Arc::downgrade(&shared);
        thread::Builder::new()
            .name("directories".to_owned())
            .spawn(move || look_on(&seen))
            .map_err(failed)?;
        Ok(Self {
            shared,
            logged: Vec::new(),
        })
    }

    /// Logs changes of the directories in use.
    pub(crate) fn on_time(&mut self, in_use: impl Iterator<Item = Watched>) {
        // Later changes are read below.
        let _ = rustix::io::read(&self.shared.changed, &mut [0u8; 8]);
        for line in self.news(in_use.collect()) {
            tracing::warn!("{line}");
        }
    }

    fn news(&mut self, in_use: Vec<Watched>) -> Vec<String> {
        let known = self.shared.lock().clone();
        let state_of = |watched: &Watched, of: &[(Watched, State)]| {
            let found = of.iter().find(|(other, _)| other == watched);
            found.map(|(_, state)| state.clone())
        };
        let now = in_use.into_iter().map(|watched| {
            let state = state_of(&watched, &known).unwrap_or(State::InUse);
            (watched, state)
        });
        let now: Vec<_> = now.collect();
        let mut lines = Vec::new();
        for (watched, state) in &now {
            let before = state_of(watched, &self.logged).unwrap_or(State::InUse);
            if *state != before {
                lines.push(line(watched, state));
            }
        }
        if self.logged != now {
            *self.shared.lock() = now.clone();
            self.logged = now;
        }
        lines
    }

    /// Returns the metrics: one for each path, which several directories in use may share.
    pub(crate) fn reports(&self) -> Vec<DirectoryReport> {
        let mut reports: Vec<DirectoryReport> = Vec::new();
        for (watched, state) in &self.logged {
            let path = watched.path.display().to_string();
            let is_replaced = *state != State::InUse;
            match reports.iter_mut().find(|report| report.path == path) {
                Some(report) => report.is_replaced |= is_replaced,
                None => reports.push(DirectoryReport { path, is_replaced }),
            }
        }
        reports
    }

    /// Returns a descriptor that is readable when a state has changed.
    pub(crate) fn watch(&self) -> BorrowedFd<'_> {
        self.shared.changed.as_fd()
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Watched, State)>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn line(Watched { what, path, .. }: &Watched, state: &State) -> String {
    let path = path.display();
    match state {
        State::InUse => format!("{what} {path}: the directory in use is in its place again"),
        State::Elsewhere => format!(
            "{what} {path}: another directory has taken its place; the one from before stays in \
             use until `splitway ctl reload`"
        ),
        State::Gone(why) => format!("{what} {path}: {why}; the directory stays in use"),
    }
}

/// Checks until the watch is dropped.
fn look_on(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        look(&shared);
        drop(shared);
        thread::sleep(PERIOD);
    }
}

fn look(shared: &Shared) {
    let before = shared.lock().clone();
    let states = before.iter().map(|(watched, _)| look_at(watched));
    let states: Vec<State> = states.collect();
    let mut watched = shared.lock();
    let mut has_changed = false;
    for ((looked_at, _), found) in before.into_iter().zip(states) {
        let known = watched.iter_mut().find(|(other, _)| *other == looked_at);
        if let Some((_, state)) = known.filter(|(_, state)| *state != found) {
            *state = found;
            has_changed = true;
        }
    }
    if has_changed {
        let _ = rustix::io::write(&shared.changed, &1u64.to_ne_bytes());
    }
}

fn look_at(watched: &Watched) -> State {
    match Identity::of(&watched.path) {
        Ok(found) if found == watched.used => State::InUse,
        Ok(_) => State::Elsewhere,
        Err(errno) => State::Gone(errno.to_string()),
    }
}

/// Returns the directory that processes opened at `path`, if they have.
pub(crate) fn watched(what: &'static str, path: &Path, used: Option<Identity>) -> Option<Watched> {
    Some(Watched {
        what,
        path: path.to_owned(),
        used: used?,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_directory_that_is_replaced_is_reported_once_each_time() {
        let place = tempfile::tempdir().unwrap();
        let [root, new, old] = ["root", "new", "old"].map(|name| place.path().join(name));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&new).unwrap();
        let used = Identity::of(&root).unwrap();
        let mut watch = DirectoryWatch::new().unwrap();
        let mut news = |used| {
            let in_use: Vec<_> = watched("root", &root, Some(used)).into_iter().collect();
            watch.news(in_use.clone());
            look(&watch.shared);
            let lines = watch.news(in_use).join("\n");
            (lines, watch.reports()[0].is_replaced)
        };
        assert_eq!(news(used), (String::new(), false));
        fs::rename(&root, &old).unwrap();
        let (lines, is_replaced) = news(used);
        assert!(is_replaced && lines.contains("stays in use"), "{lines}");
        fs::rename(&new, &root).unwrap();
        let (lines, is_replaced) = news(used);
        assert!(is_replaced && lines.contains("ctl reload"), "{lines}");
        assert_eq!(news(used), (String::new(), true));
        // It is in use from now on.
        let used = Identity::of(&root).unwrap();
        assert_eq!(news(used), (String::new(), false));
    }

    /// Without ROOT, the root is the cache directory.
    #[test]
    fn a_directory_in_use_twice_has_one_report() {
        let place = tempfile::tempdir().unwrap();
        let [both, new, old] = ["both", "new", "old"].map(|name| place.path().join(name));
        fs::create_dir(&both).unwrap();
        fs::create_dir(&new).unwrap();
        let before = Identity::of(&both).unwrap();
        fs::rename(&both, &old).unwrap();
        fs::rename(&new, &both).unwrap();
        let after = Identity::of(&both).unwrap();
        let mut watch = DirectoryWatch::new().unwrap();
        for used in [[before, after], [after, before]] {
            let in_use = ["root", "cache directory"].into_iter().zip(used);
            let in_use = in_use.filter_map(|(what, used)| watched(what, &both, Some(used)));
            let in_use: Vec<_> = in_use.collect();
            watch.news(in_use.clone());
            look(&watch.shared);
            watch.news(in_use);
            let report = DirectoryReport {
                path: both.display().to_string(),
                is_replaced: true,
            };
            assert_eq!(watch.reports(), [report]);
        }
    }
}
