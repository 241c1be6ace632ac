//! `wrk` against the same server: an independent load generator that shares no code with Splitway.

use std::fs;
use std::path::Path;
use std::process::Command;

use testbed::process::{run as run_tool, tool};
use testbed::{Context, Failure, Result};

use crate::CLIENT_CORE;
use crate::load::file_name;
use crate::measure::results::Measures;
use crate::measure::run::Server;
use crate::servers::server_set::Workspace;

/// Fails if `wrk` is missing, before anything is measured.
pub(crate) fn must_be_there() -> Result<()> {
    let asked = Command::new("wrk").arg("-v").output();
    asked
        .map(drop)
        .context(|| "--cross-check needs `wrk`, which most distributions have a package of".into())
}

/// Loads a server on the client's core, at random files, as the load generator does.
pub(crate) fn run(
    workspace: &Workspace,
    server: &Server,
    connections: usize,
    seconds: f64,
) -> Result<Measures> {
    let script = write_script(workspace)?;
    let address = server.addresses[0];
    // It knows whole seconds only.
    let seconds = seconds.ceil();
    let mut command = tool(&format!(
        "taskset --cpu-list {CLIENT_CORE} wrk --threads 1 --connections {connections} --duration \
         {seconds}s --script"
    ));
    command.arg(&script).arg(format!("http://{address}/"));
    let printed = run_tool(&mut command)?;
    let requests_per_s = requests_per_s_in(&printed)
        .ok_or_else(|| Failure::new(format!("wrk printed {printed:?}")))?;
    let bits = 8.0 * workspace.file_bytes() as f64;
    Ok([
        ("requests_per_s".to_owned(), requests_per_s),
        ("gbit_per_s".to_owned(), requests_per_s * bits / 1e9),
    ]
    .into())
}

fn write_script(workspace: &Workspace) -> Result<std::path::PathBuf> {
    let path = Path::join(workspace.site.outside(), "wrk.lua");
    // The names of all files but for the number at the end.
    let name = file_name(0);
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let text = format!(
        "request = function() return wrk.format('GET', '/{stem}' .. math.random(0, {})) end\n",
        workspace.files().saturating_sub(1)
    );
    fs::write(&path, text).context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// Returns the rate that `wrk` printed; `None` if it reports any error response or socket error.
fn requests_per_s_in(printed: &str) -> Option<f64> {
    let field = |name: &str| {
        let mut lines = printed.lines();
        lines.find_map(|line| line.trim().strip_prefix(name))
    };
    if field("Non-2xx or 3xx responses:").is_some() || field("Socket errors:").is_some() {
        return None;
    }
    field("Requests/sec:")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_prints_is_understood() {
        let printed = "Running 5s test @ http://10.77.0.2/\n  1 threads and 64 connections\n\
            Requests/sec:   4321.50\nTransfer/sec:      2.01GB\n";
        assert_eq!(requests_per_s_in(printed), Some(4321.5));
        let refused = format!("{printed}  Non-2xx or 3xx responses: 7\n");
        assert_eq!(requests_per_s_in(&refused), None);
        assert_eq!(requests_per_s_in("unable to connect"), None);
    }
}
