//! A program in namespaces of its own.
//!
//! Network, mounts (with a `/run` of its own) and processes: its configuration is private,
//! addresses do not clash with those of another test, and its end also ends all its descendants.

use std::ffi::OsStr;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use rustix::process::Pid;

use crate::process::{Process, run, tool};
pub use crate::site::Site;
use crate::{Context, Result, wait};

/// Way into the namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// As root if this process is root, else through a user namespace.
    AsIs,
    /// Through a user namespace, also as root: without privileges over the machine.
    UserNamespace,
}

/// Returns the command that runs `program` as the first process of new namespaces.
pub fn command(privilege: Privilege, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("unshare");
    if privilege == Privilege::UserNamespace || !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args([
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    command.arg("--").arg(program);
    command
}

/// Returns a command in the network namespace of a process.
pub fn within(process: Pid, line: &str) -> Command {
    tool(&format!(
        "nsenter --target {} --net {line}",
        process.as_raw_nonzero()
    ))
}

/// Calls `body` in the network namespace of a process, on a thread of its own, whose child threads
/// are there as well.
pub fn inside<T: Send>(process: Pid, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let path = format!("/proc/{}/ns/net", process.as_raw_nonzero());
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let namespace = File::open(&path).context(|| path.clone())?;
            setns(namespace, CloneFlags::CLONE_NEWNET).context(|| path.clone())?;
            body()
        });
        thread.join().expect("no panic")
    })
}

/// Returns the names of the devices in the network namespace of a process, except loopback.
pub fn devices_of(process: Pid) -> Result<Vec<String>> {
    let printed = run(&mut within(process, "ip -oneline link"))?;
    // 2: eth0@if3: <BROADCAST,…
    let names = printed
        .lines()
        .filter_map(|line| line.split(": ").nth(1)?.split('@').next());
    Ok(names
        .filter(|name| *name != "lo")
        .map(str::to_owned)
        .collect())
}

/// A further network namespace, which exists as long as this value.
#[derive(Debug)]
pub struct Network {
    holder: Process,
}

impl Network {
    /// Creates an empty namespace, in which not even loopback is up.
    pub fn new() -> Result<Network> {
        let mut command = tool("unshare --net cat");
        // `cat` ends when its standard input does.
        let holder = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()))?;
        let namespace_of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net"));
        let own = namespace_of("self").context(|| "reading /proc/self/ns/net".into())?;
        wait::until(Duration::from_secs(5), "a network namespace", || {
            let held = namespace_of(&holder.pid().as_raw_nonzero().to_string()).ok()?;
            (held != own).then_some(())
        })?;
        Ok(Network { holder })
    }

    /// Returns the process that holds the namespace.
    pub fn holder(&self) -> Pid {
        self.holder.pid()
    }
}

/// Set within a test's namespaces; its value is the test's directory.
const INSIDE: &str = "SPLITWAY_TEST_DIRECTORY";

/// Time limits of a test.
const TEST_LIMIT: Duration = Duration::from_secs(180);
const LONG_TEST_LIMIT: Duration = Duration::from_secs(2700);

/// Runs a test's body in namespaces of its own, with a directory of its own.
///
/// The test executable runs itself again in new namespaces, with only this test. `body` must be a
/// closure of the test function itself, because the test's name is taken from its type's name.
pub fn isolated<F: FnOnce(Site)>(body: F) {
    isolated_with(Privilege::AsIs, TEST_LIMIT, body);
}

/// Calls [`isolated`], without privileges over the machine.
pub fn isolated_unprivileged<F: FnOnce(Site)>(body: F) {
    isolated_with(Privilege::UserNamespace, TEST_LIMIT, body);
}

/// Calls [`isolated`], for a test that takes minutes.
pub fn isolated_long<F: FnOnce(Site)>(body: F) {
    isolated_with(Privilege::AsIs, LONG_TEST_LIMIT, body);
}

fn isolated_with<F: FnOnce(Site)>(privilege: Privilege, limit: Duration, body: F) {
    if let Some(directory) = std::env::var_os(INSIDE) {
        run(&mut tool("ip link set lo up")).unwrap();
        // Directory of servers' sockets: their names contain process ids, which are unique only
        // within the namespace.
        run(&mut tool("mount -t tmpfs splitway-test /run")).unwrap();
        body(Site::at(PathBuf::from(directory)).unwrap());
        return;
    }
    // e2e::sizes::a_test::{{closure}}
    let name = std::any::type_name::<F>();
    let name = name.trim_end_matches("::{{closure}}");
    let (_, name) = name
        .split_once("::")
        .expect("a path that begins with the crate");

    let executable = std::env::current_exe().unwrap();
    // Beside the executable: the usual place for temporary files may be memory, and files here are
    // large.
    let beside = executable.parent().expect("an absolute path");
    let directory = tempfile::tempdir_in(beside).unwrap();
    let mut timed = Command::new("timeout");
    let inner = command(privilege, &executable);
    timed
        .args(["--kill-after=5", &limit.as_secs().to_string()])
        .arg(inner.get_program())
        .args(inner.get_args())
        .args([
            "--exact",
            name,
            "--include-ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(INSIDE, directory.path())
        .stdin(Stdio::null());
    let output = timed.output().context(|| format!("{timed:?}")).unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        !stderr.contains("unshare:"),
        "{stderr}tests need namespaces: as root, or as a user who may make user namespaces (on \
         Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0)"
    );
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{name}, in namespaces of its own: {}{}\n{stdout}\n{stderr}",
        output.status,
        if output.status.code() == Some(124) {
            ", out of time"
        } else {
            ""
        },
    );
    // Seeds and measurements, for runs with --nocapture.
    print!("{stdout}");
}
