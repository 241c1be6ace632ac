//! Serving files that are not in memory: Splitway, nginx with `sendfile`, and nginx with direct
//! reads in threads.
//!
//! Before each run the kernel drops every file from its cache, and a run requests each file once.
//! Results include the part that came from the disk.

use std::fs::File;

use rustix::fs::{Advice, fadvise};
use serde::Serialize;
use testbed::site::Site;
use testbed::{Context, Result};

use crate::load;
use crate::measure::plan::Plan;
use crate::measure::results::{Bound, Results, Table, column};
use crate::measure::rounds::Rounds;
use crate::measure::run;
use crate::measure::table::COST;
use crate::servers::server_set::{SPLITWAY, ServerSet, Wanted, Workspace};

/// The one part of the results.
const PART: &str = "disk";

/// Promised limit of both processes: CPU time per gigabyte, relative to nginx's worker with
/// `sendfile`.
const BOTH_RATIO_MAX: f64 = 1.2;

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Connections, each asking for file after file
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Number of files; 5000, or 500 for quick runs, with Splitway's cache as much smaller. Their
    /// size is needed on the disk of target/bench
    #[arg(long)]
    files: Option<usize>,
    /// Size of each file, in bytes
    #[arg(long, default_value_t = 1_000_000)]
    file_bytes: u64,
    /// A further argument for `splitway serve`, such as `--splitway=--workers=2`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

/// Most seconds of a run; it ends earlier, when all files have been served.
const SECONDS_MAX: f64 = 10.0;

/// Returns an upper estimate of the time to read `files` files from a disk, in seconds.
pub(crate) fn seconds_from_disk(files: usize, file_bytes: u64) -> f64 {
    const BYTES_PER_S: f64 = 500e6;
    files as f64 * file_bytes as f64 / BYTES_PER_S
}

impl Settings {
    /// Returns the number of files, more than any default cache of a server holds.
    fn files(&self) -> usize {
        let default = if self.rounds.is_quick() { 500 } else { 5000 };
        self.files.unwrap_or(default)
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = self.splitway.clone();
        if self.rounds.is_quick() {
            arguments.push(QUICK_CACHE.into());
        }
        arguments
    }
}

/// Splitway's cache for few files.
pub(crate) const QUICK_CACHE: &str = "--cache=128M";

/// Two configurations of nginx.
const SENDFILE: &str = "nginx sendfile";
const DIRECT: &str = "nginx aio threads, directio";

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let mut plan = Plan::new();
    plan.files(settings.files(), settings.file_bytes);
    plan.beds(1);
    let seconds = seconds_from_disk(settings.files(), settings.file_bytes).min(SECONDS_MAX);
    plan.runs(
        3 * settings.rounds.count(),
        settings.connections,
        0,
        seconds,
    );
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let workspace = Workspace::prepare(settings.files(), settings.file_bytes)?;
    let files = open_all(&workspace.site, settings.files())?;
    let wanted = Wanted {
        splitway: settings.arguments(),
        ..Wanted::default()
    };
    let server_set = ServerSet::start(&workspace, &wanted)?;
    let [splitway, mut sendfile, _] = server_set.servers()?;
    sendfile.name = SENDFILE;
    let servers = [splitway, sendfile, server_set.nginx_direct(DIRECT)?];
    let title = format!(
        "{} files of {} bytes, not in memory, each asked for once in a run; {} connections",
        settings.files(),
        settings.file_bytes,
        settings.connections
    );
    let mut results = Results::new("disk", title, settings)?;
    server_set.describe(&mut results)?;
    settings.rounds.take_turns(&servers, |server| {
        forget(&files)?;
        let load = load::Settings {
            once: true,
            ..workspace.load(server, settings.connections, SECONDS_MAX)
        };
        let run = run::run(server, &load)?;
        eprintln!("{run}  {:.2} from the disk", run.device_share());
        results.add(PART, server.name, &[], run.measures());
        Ok(())
    })?;
    server_set.end(&mut results)?;
    report(&mut results);
    results.publish(settings.rounds.output(&workspace.output))
}

/// Opens the files of a site, and writes them back to the disk.
pub(crate) fn open_all(site: &Site, count: usize) -> Result<Vec<File>> {
    let open = |index: usize| {
        let path = site.root().join(load::file_name(index));
        File::open(&path)
            .and_then(|file| file.sync_data().map(|()| file))
            .context(|| format!("opening {}", path.display()))
    };
    (0..count).map(open).collect()
}

/// Drops these files from the kernel's page cache.
pub(crate) fn forget(files: &[File]) -> Result<()> {
    files.iter().try_for_each(|file| {
        fadvise(file, 0, None, Advice::DontNeed).context(|| "dropping a file from memory".into())
    })
}

fn report(results: &mut Results) {
    let mut columns = COST.to_vec();
    columns.push(column("device_share", "from the disk", 2));
    results.table(Table::of(PART, columns));
    for (what, bound) in [
        ("server", Bound::AtMost(BOTH_RATIO_MAX)),
        ("machine", Bound::None),
    ] {
        let measure = format!("cpu_s_per_gb.{what}");
        for (peer, bound) in [(SENDFILE, bound), (DIRECT, Bound::None)] {
            let ratio = results.ratio(PART, (SPLITWAY, &measure), (peer, &measure));
            results.check(format!("CPU per GB, {what}, against {peer}"), ratio, bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::run::tests::run;

    #[test]
    fn the_report_says_whether_the_promise_is_kept() {
        for (nic_ns, met) in [(600_000_000, true), (601_000_000, false)] {
            let mut results = Results::new("disk", "Files", &()).unwrap();
            let mut add = |server, process, cpu_ns| {
                let run = run(server, 1_000_000_000, &[(process, cpu_ns)]);
                results.add(PART, server, &[], run.measures());
            };
            add(SPLITWAY, "nic", nic_ns);
            add(SENDFILE, "worker", 500_000_000);
            add(DIRECT, "worker", 1_000_000_000);
            report(&mut results);
            let first = &results.checks()[0];
            assert_eq!(
                (first.what.as_str(), first.met),
                ("CPU per GB, server, against nginx sendfile", met)
            );
        }
    }
}
