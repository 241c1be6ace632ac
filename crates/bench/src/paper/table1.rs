//! Where CPU time goes: table 1 of IO-TCP, of nginx, of our host process, and of our NIC process.
//!
//! Files are not in memory, as in the paper. A sampling profiler on the software clock looks at
//! each process while it serves; each sample goes to the group of the innermost function that
//! belongs to one ([`GROUPS`]).

use std::collections::BTreeMap;

use serde::Serialize;
use testbed::Result;

use crate::load;
use crate::measure::perf::{Profiler, Stack, must_see_kernel};
use crate::measure::plan::Plan;
use crate::measure::results::{Measures, Plot, Results, Table, column};
use crate::measure::rounds::Rounds;
use crate::measure::run;
use crate::paper;
use crate::servers::server_set::{ServerSet, Wanted, Workspace};
use crate::suites::disk::{QUICK_CACHE, forget, open_all, seconds_from_disk};

/// The settings of the benchmark.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Connections, each asking for file after file
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Number of files of 1 MB; 3000, or 500 for quick runs. Their size is needed on the disk of
    /// target/bench
    #[arg(long)]
    files: Option<usize>,
}

impl Settings {
    fn files(&self) -> usize {
        let default = if self.rounds.is_quick() { 500 } else { 3000 };
        self.files.unwrap_or(default)
    }
}

const FILE_BYTES: u64 = 1_000_000;
const SECONDS_MAX: f64 = 10.0;

/// Time that `perf` takes for its report, as a multiple of the sampling time.
const PERF: f64 = 2.0;

/// Functions that are shown by name, of each process.
const TOP: usize = 8;

/// Parts of the results: groups of functions, and functions.
const PROFILE: &str = "groups";
const FUNCTIONS: &str = "functions";

/// Groups of functions that the paper distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Read,
    Memory,
    Move,
    Open,
    Send,
    Control,
}

/// Prefixes of function names, by group. Functions of no group belong to the control plane: TCP,
/// HTTP, waiting for work.
const GROUPS: [(Group, &[&str]); 6] = [
    (
        Group::Control,
        // Packet reception, on top of the interrupted work.
        &[
            "net_rx_action",
            "__napi_poll",
            "tcp_v4_rcv",
            "tpacket_rcv",
            "packet_rcv",
            "handle_softirqs",
        ],
    ),
    (
        Group::Memory,
        &[
            "alloc_pages",
            "__alloc_pages",
            "__alloc_frozen_pages",
            "get_page_from_freelist",
            "__folio_alloc",
            "folio_alloc",
            "free_unref",
            "free_frozen",
            "free_pages",
            "__free_pages",
            "filemap_add_folio",
            "__filemap_add_folio",
            "filemap_alloc",
            "lru_",
            "folio_add_lru",
            "folio_batch",
            "__folio_batch",
            "folios_put",
            "__folio_put",
            "xas_",
            "xa_",
            "shrink_",
            "handle_mm_fault",
            "__handle_mm_fault",
            "do_anonymous_page",
            "clear_page",
            "exc_page_fault",
            "kmem_cache_",
            "kmalloc",
            "__kmalloc",
            "kfree",
            "mem_cgroup_",
            "__mem_cgroup",
            "try_charge",
            "malloc",
            "free",
            "cfree",
            "invalidate_",
            "truncate_",
        ],
    ),
    (
        Group::Open,
        &[
            "do_sys_open",
            "__x64_sys_open",
            "__arm64_sys_open",
            "path_openat",
            "do_filp_open",
            "vfs_open",
            "vfs_statx",
            "vfs_fstat",
            "__do_sys_newfstat",
            "__x64_sys_newfstat",
            "__x64_sys_close",
            "filp_close",
            "filp_flush",
            "__fput",
            "link_path_walk",
            "path_lookup",
            "nic::root",
            "nic::files",
        ],
    ),
    (
        Group::Send,
        &[
            "ip_queue_xmit",
            "__ip_queue_xmit",
            "ip_finish_output",
            "ip_output",
            "dev_hard_start_xmit",
            "__dev_queue_xmit",
            "dev_queue_xmit",
            "__dev_direct_xmit",
            "veth_",
            "validate_xmit",
            "skb_segment",
            "enqueue_to_backlog",
            "netif_rx",
            "__netif_rx",
            "napi_",
        ],
    ),
    (
        Group::Move,
        &[
            "splice_to_socket",
            "sock_sendmsg",
            "tcp_sendmsg",
            "skb_splice",
            "tcp_skb_entail",
            "_copy_from_iter",
            "copyin",
            "packet_snd",
            "packet_sendmsg",
            "packet_parse",
            "skb_copy_datagram_from_iter",
            "rep_movs",
            "netdev::packet",
            "netdev::segment",
            "ngx_linux_sendfile",
            "sendfile",
        ],
    ),
    (
        Group::Read,
        &[
            "filemap_",
            "page_cache_",
            "ondemand_readahead",
            "force_page_cache",
            "read_pages",
            "splice_direct",
            "generic_file_",
            "ext4_",
            "btrfs_",
            "xfs_",
            "f2fs_",
            "erofs_",
            "iomap_",
            "mpage_",
            "submit_bio",
            "__submit_bio",
            "blk_",
            "__blk_",
            "bio_",
            "nvme_",
            "virtblk_",
            "virtio_",
            "io_read",
            "io_issue",
            "io_submit",
            "__io_",
            "blkdev_",
            "overlayfs",
            "ovl_",
            "dio_",
            "nic::reader",
            "copy_page_to_iter",
            "vfs_read",
        ],
    ),
];

impl Group {
    const ALL: [Group; 6] = [
        Group::Read,
        Group::Memory,
        Group::Move,
        Group::Open,
        Group::Send,
        Group::Control,
    ];

    /// That of the innermost function which belongs to one.
    fn of(stack: &Stack) -> Group {
        let known = |function: &String| {
            let mut groups = GROUPS.iter();
            groups.find(|(_, names)| names.iter().any(|name| function.starts_with(name)))
        };
        let found = stack.functions.iter().find_map(known);
        found.map_or(Group::Control, |(group, _)| *group)
    }

    fn name(self) -> &'static str {
        match self {
            Group::Read => "read data from the disk",
            Group::Memory => "memory management",
            Group::Move => "move data to the socket",
            Group::Open => "open files and get stat",
            Group::Send => "IP and link",
            Group::Control => "control plane",
        }
    }
}

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let files = settings.files();
    let mut plan = Plan::new();
    plan.files(files, FILE_BYTES);
    plan.beds(1);
    let seconds = seconds_from_disk(files, FILE_BYTES).min(SECONDS_MAX);
    plan.runs(
        2 * settings.rounds.count(),
        settings.connections,
        0,
        (1.0 + PERF) * seconds,
    );
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    must_see_kernel()?;
    let rounds = &settings.rounds;
    let workspace = Workspace::prepare(settings.files(), FILE_BYTES)?;
    let files = open_all(&workspace.site, workspace.files())?;
    // Its cache must not hold everything that it has read before.
    let wanted = Wanted {
        splitway: vec![QUICK_CACHE.into()],
        ..Wanted::default()
    };
    let server_set = ServerSet::start(&workspace, &wanted)?;
    let title = "Table 1: CPU time by function, files that are not in memory";
    let mut results = Results::new("table1", title, settings)?;
    server_set.describe(&mut results)?;
    let [splitway, nginx, _] = server_set.servers()?;
    rounds.take_turns(&[splitway, nginx], |server| {
        forget(&files)?;
        let profiles: Vec<_> = server
            .processes
            .iter()
            .map(|&(name, pid)| {
                let file = workspace.site.outside().join(format!("{name}.perf"));
                Profiler::start(pid, &file).map(|profiler| (name, profiler, file))
            })
            .collect::<Result<_>>()?;
        let load = load::Settings {
            once: true,
            ..workspace.load(server, settings.connections, SECONDS_MAX)
        };
        let run = run::run(server, &load)?;
        eprintln!("{run}  {:.2} from the disk", run.device_share());
        let measures = run.measures();
        for (name, profiler, file) in profiles {
            let stacks = profiler.stop(&file)?;
            let who = format!("{} {name}", server.name);
            eprintln!("{who}: {} samples", stacks.len());
            let cpu = measures[&format!("cpu_s_per_gb.{name}")];
            tell(&mut results, &who, &stacks, cpu);
        }
        Ok(())
    })?;
    server_set.end(&mut results)?;
    report(&mut results);
    results.publish(rounds.output(&workspace.output))
}

/// Adds a process's samples to the results; `cpu_s_per_gb` is its CPU time per gigabyte.
fn tell(results: &mut Results, who: &str, stacks: &[Stack], cpu_s_per_gb: f64) {
    let share = |count: usize| {
        let part = count as f64 / stacks.len().max(1) as f64;
        Measures::from([
            ("percent".to_owned(), 100.0 * part),
            ("cpu_s_per_gb".to_owned(), part * cpu_s_per_gb),
        ])
    };
    for group in Group::ALL {
        let count = stacks
            .iter()
            .filter(|stack| Group::of(stack) == group)
            .count();
        results.add(
            PROFILE,
            format!("{who}: {}", group.name()),
            &[],
            share(count),
        );
    }
    let mut functions: BTreeMap<&str, usize> = BTreeMap::new();
    for function in stacks.iter().filter_map(|stack| stack.functions.first()) {
        *functions.entry(function).or_default() += 1;
    }
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    for (function, count) in functions.into_iter().take(TOP) {
        results.add(FUNCTIONS, format!("{who}: `{function}`"), &[], share(count));
    }
}

fn report(results: &mut Results) {
    for (part, title) in [
        (PROFILE, "By what the paper tells apart"),
        (
            FUNCTIONS,
            "The functions themselves in which each process was found most often",
        ),
    ] {
        let columns = vec![
            column("percent", "% of its CPU time", 2),
            column("cpu_s_per_gb", "CPU s/GB", 4),
        ];
        results.table(Table::of(part, columns).titled(title).of_each("Process"));
    }
    results.plot(Plot::bars(
        "table1",
        PROFILE,
        ("percent", "% of the process's CPU time"),
    ));
    results.publish_beside(paper::TABLE_1);
    results.note(
        "The paper's nginx 1.16 read with the page cache from NVMe disks and sent through a \
         driver; here the link is a veth pair, whose cost stands in a row of its own. The kernel \
         charges packets that come in to whatever they interrupt: they are in the control plane's \
         row. Our NIC process reads past the page cache, into memory of its own, and copies once, \
         into packets: that copy is its *move data to the socket*.",
    );
    results.note(
        "*IP and link* is a part of the paper's control plane. A sample belongs to the innermost \
         function on its stack that is known to be of a group; what is not, is the control \
         plane's. Sampled by the software clock; under a hypervisor there are no cycles to count.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::perf::tests::stack;

    #[test]
    fn the_innermost_known_function_decides() {
        for (functions, group) in [
            (
                &[
                    "memset",
                    "get_page_from_freelist",
                    "page_cache_ra_unbounded",
                    "filemap_splice_read",
                ][..],
                Group::Memory,
            ),
            (
                &[
                    "virtblk_add_req",
                    "submit_bio",
                    "filemap_splice_read",
                    "do_sendfile",
                ],
                Group::Read,
            ),
            (
                &[
                    "skb_splice_from_iter",
                    "tcp_sendmsg_locked",
                    "splice_to_socket",
                ],
                Group::Move,
            ),
            (
                &[
                    "__tcp_transmit_skb",
                    "tcp_write_xmit",
                    "__tcp_push_pending_frames",
                ],
                Group::Control,
            ),
            (
                &[
                    "veth_xmit",
                    "dev_hard_start_xmit",
                    "__tcp_transmit_skb",
                    "tcp_sendmsg_locked",
                ],
                Group::Send,
            ),
            (
                &["_copy_from_iter", "packet_snd", "__sys_sendmsg"],
                Group::Move,
            ),
            (&["strncpy_from_user", "do_sys_openat2"], Group::Open),
            (
                &[
                    "tcp_ack",
                    "tcp_v4_rcv",
                    "net_rx_action",
                    "filemap_splice_read",
                ],
                Group::Control,
            ),
            (&["host::stack::transmit"], Group::Control),
            (&["nic::reader::uring::Uring::submit"], Group::Read),
        ] {
            assert_eq!(Group::of(&stack(false, functions)), group, "{functions:?}");
        }
    }

    #[test]
    fn shares_are_of_the_process_and_add_up() {
        let mut results = Results::new("table1", "Table 1", &()).unwrap();
        let stacks = [
            stack(false, &["_copy_from_iter"]),
            stack(false, &["_copy_from_iter"]),
            stack(false, &["virtblk_add_req"]),
            stack(false, &["main"]),
        ];
        tell(&mut results, "splitway nic", &stacks, 0.2);
        let percent = |group: Group| {
            let series = format!("splitway nic: {}", group.name());
            results.of(PROFILE, &series).median("percent")
        };
        assert_eq!((percent(Group::Move), percent(Group::Read)), (50.0, 25.0));
        assert_eq!(Group::ALL.map(percent).iter().sum::<f64>(), 100.0);
        let copy = results.of(FUNCTIONS, "splitway nic: `_copy_from_iter`");
        assert_eq!(copy.median("cpu_s_per_gb"), 0.1);
    }

    #[test]
    fn the_published_groups_add_up_as_well() {
        let sum: f64 = paper::TABLE_1.iter().map(|published| published.value).sum();
        assert!((sum - 100.0).abs() < 0.01);
    }
}
