//! Detects processes of the program that use the kernel's TCP sockets because they have not loaded
//! the library: no program falls back to the kernel silently.
//!
//! Every look covers all processes that the program has started, as `/proc` shows them. A process
//! with the library is skipped until it executes another image. A process without it twice in a row
//! that has a TCP socket is reported, with the reason and the remedy; each program once.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use crate::commands::run::program;
use crate::commands::run::wait::children_of;

/// Most processes inspected, and most programs reported.
const PROCESSES_MAX: usize = 4096;
const REPORTS_MAX: usize = 32;

/// Entry of the auxiliary vector that is set if the loader ignores libraries from the environment
/// (`AT_SECURE` of getauxval(3)).
const AT_SECURE: u64 = 23;

/// Identity of the image that a process executes: the start of the process, and addresses that the
/// kernel lays out at each `exec`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Image {
    begun: String,
    code: String,
    stack: String,
}

/// State of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Loaded,
    /// Without the library at the last look; it may not have loaded it yet.
    NotYet,
    /// Without the library. Reported once it has a TCP socket.
    Without,
    Reported,
}

/// Processes without the library.
#[derive(Debug)]
pub(super) struct Unloaded {
    /// File name of the library.
    library: String,
    /// The program's own stack, which does not load the library.
    stack: Option<Pid>,
    known: HashMap<Pid, (Image, Known)>,
    /// Programs already reported.
    reported: HashSet<PathBuf>,
}

impl Unloaded {
    /// Starts with no process seen. `library` is a file.
    pub(super) fn new(library: &Path, stack: Option<Pid>) -> Unloaded {
        let name = library.file_name().unwrap_or_default();
        Unloaded {
            library: name.to_string_lossy().into_owned(),
            stack,
            known: HashMap::new(),
            reported: HashSet::new(),
        }
    }

    /// Looks once; returns true if there may be something to report soon: a process or an image is
    /// new or gone, or is not known to have the library.
    pub(super) fn look(&mut self) -> bool {
        let processes = descendants(self.stack);
        let mut known = HashMap::with_capacity(processes.len());
        for pid in processes {
            if let Some(image) = image_of(pid) {
                let before = self.known.get(&pid).filter(|(of, _)| *of == image);
                let before = before.map(|(_, known)| *known);
                let now = self.look_at(pid, before);
                known.insert(pid, (image, now));
            }
        }
        let is_settled =
            |(_, known): &(Image, Known)| matches!(known, Known::Loaded | Known::Reported);
        let is_lively = known != self.known || !known.values().all(is_settled);
        self.known = known;
        is_lively
    }

    fn look_at(&mut self, pid: Pid, before: Option<Known>) -> Known {
        let now = match before {
            Some(known @ (Known::Loaded | Known::Reported)) => return known,
            Some(Known::Without) => Known::Without,
            _ if self.has_library(pid) => return Known::Loaded,
            Some(Known::NotYet) => Known::Without,
            None => Known::NotYet,
        };
        if now == Known::NotYet || !has_tcp_socket(pid) {
            return now;
        }
        let program = executable_of(pid);
        if self.reported.len() < REPORTS_MAX && self.reported.insert(program.clone()) {
            let (why, remedy) = reason(pid, &program);
            eprintln!(
                "splitway: {} (process {pid}) has TCP sockets of the kernel: {why}. {remedy}",
                program.display()
            );
        }
        Known::Reported
    }

    /// Returns whether a process has the library. A process that is gone or may not be inspected
    /// counts as having it.
    fn has_library(&self, pid: Pid) -> bool {
        let maps = fs::read_to_string(of(pid, "maps"));
        maps.map_or(true, |maps| maps.is_empty() || maps.contains(&self.library))
    }
}

fn of(pid: Pid, what: &str) -> PathBuf {
    format!("/proc/{pid}/{what}").into()
}

/// Returns all descendants of this process except the stack.
fn descendants(stack: Option<Pid>) -> Vec<Pid> {
    let own = rustix::process::getpid();
    let mut found: Vec<Pid> = children_of(own);
    found.retain(|pid| Some(*pid) != stack);
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        if found.len() >= PROCESSES_MAX {
            break;
        }
        found.extend(children_of(pid));
        next += 1;
    }
    found
}

/// Returns the image of a process; `None` if it is gone.
fn image_of(pid: Pid) -> Option<Image> {
    let stat = fs::read_to_string(of(pid, "stat")).ok()?;
    // Behind the name, which may hold any character, the first field is the third of
    // proc_pid_stat(5).
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).map(|it| (*it).to_owned());
    Some(Image {
        begun: field(22)?,
        code: field(26)?,
        stack: field(28)?,
    })
}

fn executable_of(pid: Pid) -> PathBuf {
    fs::read_link(of(pid, "exe")).unwrap_or_else(|_| of(pid, "exe"))
}

/// Returns whether a process has a TCP socket of the kernel, in any network namespace.
fn has_tcp_socket(pid: Pid) -> bool {
    let entries = fs::read_dir(of(pid, "fd")).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.path());
    names.any(|path| {
        let mut name = [0; 16];
        let found = rustix::fs::getxattr(path, "system.sockprotoname", &mut name);
        found.is_ok_and(|len| name[..len].starts_with(b"TCP"))
    })
}

/// Returns why a process has not loaded the library, and the remedy.
fn reason(pid: Pid, program: &Path) -> (String, &'static str) {
    // Read through /proc, since the process may have another root.
    let bytes = fs::read(of(pid, "exe")).unwrap_or_default();
    if let Some((why, remedy)) = program::obstacle(&bytes) {
        return (why.to_owned(), remedy);
    }
    if fs::read(of(pid, "auxv")).is_ok_and(|vector| is_secure(&vector)) {
        let why = "it has begun with rights that its caller has not (setuid, capabilities of its \
                   file, or different user IDs), so the loader takes no library from the caller";
        let remedy = "Start it as the user that it runs as, or with `splitway run --compat`, which \
                      gives it no further rights.";
        return (why.to_owned(), remedy);
    }
    let root = fs::read_link(of(pid, "root")).unwrap_or_else(|_| PathBuf::from("/"));
    if root != Path::new("/") {
        return (
            format!("its root is {}, where the library is not", root.display()),
            "Copy the library there, at the same path, or use `splitway run --compat`.",
        );
    }
    let environment = fs::read(of(pid, "environ")).unwrap_or_default();
    let mut variables = environment.split(|byte| *byte == 0);
    if !variables.any(|variable| variable.starts_with(b"LD_PRELOAD=")) {
        return (
            format!("{} was started without LD_PRELOAD", program.display()),
            "Have its caller pass the environment on, or use `splitway run --compat`.",
        );
    }
    (
        "the loader has not loaded the library".to_owned(),
        "Its message above may say why; `splitway run --compat` needs no library.",
    )
}

/// Returns whether an auxiliary vector sets `AT_SECURE`.
fn is_secure(vector: &[u8]) -> bool {
    let (words, _) = vector.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let (pairs, _) = words.as_chunks::<2>();
    pairs
        .iter()
        .any(|[key, value]| *key == AT_SECURE && *value != 0)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process::Command;

    use super::*;

    fn own() -> Pid {
        rustix::process::getpid()
    }

    #[test]
    fn a_tcp_socket_is_found_among_descriptors() {
        let _listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(has_tcp_socket(own()));
        let mut sleeper = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Pid::from_child(&sleeper);
        assert!(!has_tcp_socket(pid) && descendants(None).contains(&pid));
        assert!(!descendants(Some(pid)).contains(&pid));
        assert_eq!(image_of(pid), image_of(pid));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(image_of(pid), None);
    }

    #[test]
    fn the_auxiliary_vector_says_whether_the_loader_trusts_its_caller() {
        assert!(!is_secure(&fs::read("/proc/self/auxv").unwrap()));
        let of = |words: [u64; 4]| words.map(u64::to_ne_bytes).concat();
        assert!(is_secure(&of([6, 4096, AT_SECURE, 1])));
        assert!(!is_secure(&of([AT_SECURE, 0, 6, AT_SECURE])));
    }
}
