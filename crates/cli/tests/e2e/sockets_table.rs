//! What docs/sockets.md says of each call, flag and option, held against the kernel: by the
//! library, on a cluster node, and as unmodified programs have it, with a library and without.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::namespace::isolated;

use crate::cluster::Cluster;
use crate::programs::{Stack, output_of};
use crate::run::splitway_run_on;
use crate::run_compared::{ALL, opened};
use crate::run_compat::compat_on;

/// What a cell of a table says of a result.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    /// It is the kernel's.
    Kernel,
    /// So are errors and lengths, but not values.
    OwnValues,
    /// It fails like this with legal arguments.
    Refused(String),
    /// The library has no such call.
    NotThere,
}

impl Verdict {
    fn of(cell: &str) -> Verdict {
        match cell {
            "as the kernel" => Verdict::Kernel,
            "own values" => Verdict::OwnValues,
            "not there" => Verdict::NotThere,
            other => {
                let refused = other.strip_prefix("refused: ");
                Verdict::Refused(refused.expect("a verdict").to_owned())
            }
        }
    }
}

/// What is said of one subject: of a call, both verdicts are the one that is there.
#[derive(Debug)]
struct Row {
    verdicts: [Verdict; 2],
}

/// How programs come to split sockets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// By calls of `libsplitway`.
    Library,
    /// By calls of `libsplitway` on a cluster node.
    Node,
    /// By `splitway run`: a socket is the kernel's until it has an address.
    Preload,
    /// By `splitway run --compat`: the same.
    Compat,
}

/// A result that differs from the kernel's.
#[derive(Debug)]
struct Difference {
    /// The subject, its states, what is done, and what both return.
    cells: [String; 5],
    was_seen: bool,
}

/// The tables of docs/sockets.md.
#[derive(Debug)]
struct Tables {
    rows: BTreeMap<String, Row>,
    differences: Vec<Difference>,
}

fn cells(line: &str) -> Vec<&str> {
    // A link to a page has no bars.
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(str::trim).collect()
}

fn tables() -> Tables {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sockets.md");
    let page = fs::read_to_string(page).unwrap();
    let mut tables = Tables {
        rows: BTreeMap::new(),
        differences: Vec::new(),
    };
    let mut head = Vec::new();
    for line in page.lines() {
        if !line.starts_with('|') {
            head.clear();
            continue;
        }
        let cells = cells(line);
        if head.is_empty() {
            head = cells;
            continue;
        }
        if cells[0].starts_with("--") {
            continue;
        }
        let verdicts = match head[..] {
            ["Call", "Result", _] => [1, 1],
            ["Flag", "Sending", "Receiving", _] | ["Option", "Get", "Set", _] => [1, 2],
            ["Of", "State", "Step", "Kernel", "Split stack"] => {
                let cells = [0, 1, 2, 3, 4].map(|at| cells[at].replace('`', ""));
                let was_seen = false;
                tables.differences.push(Difference { cells, was_seen });
                continue;
            }
            _ => continue,
        };
        let row = || Row {
            verdicts: verdicts.map(|at| Verdict::of(cells[at])),
        };
        let names = cells[0].split(", ").map(|name| name.replace('`', ""));
        for name in names {
            let before = tables.rows.insert(name.clone(), row());
            assert!(before.is_none(), "{name} is there twice");
        }
    }
    tables
}

/// What a program has printed, by subject: `== SUBJECT`, then its lines.
fn sections(said: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut sections = BTreeMap::new();
    let mut subject = "";
    for line in said.lines() {
        match line.strip_prefix("== ") {
            Some(next) => subject = next,
            None => sections.entry(subject).or_insert_with(Vec::new).push(line),
        }
    }
    sections
}

/// A line without a value.
fn without_value(line: &str) -> &str {
    line.split(" =").next().unwrap()
}

/// What is done, and what it returns.
fn result_of(line: &str) -> (&str, &str) {
    line.split_once(": ").unwrap_or((line.trim(), ""))
}

/// What docs/cluster.md names: sockets that connect to where a listener was closed just before, and
/// that dissolve a connection or a listener.
fn differs_on_a_node(subject: &str, place: &str) -> bool {
    let is_dissolved = subject == "shutdown" && place.ends_with("listening");
    subject == "connect" || place.ends_with("refused") || is_dissolved
}

/// The differences between what both stacks have printed that the tables do not have.
fn compare(
    (subject, way): (&str, Way),
    kernel: &[&str],
    split: &[&str],
    tables: &mut Tables,
) -> Vec<String> {
    let row = &tables.rows[subject];
    let mut place = "";
    let mut wrong = Vec::new();
    for (line, split) in split.iter().enumerate() {
        let kernel = kernel.get(line).copied().unwrap_or_default();
        if let Some(next) = split.strip_prefix("-- ") {
            place = next;
        }
        let (action, result) = result_of(split);
        let is_second = action.starts_with("set") || action.starts_with("recv");
        let fault = match &row.verdicts[usize::from(is_second)] {
            Verdict::Kernel => {
                // Of two faults, the illegal argument may be the one that is found.
                let is_option = action.starts_with("get") || action.starts_with("set");
                let is_found = action.contains("illegal") && matches!(result, "EFAULT" | "EINVAL");
                let is_same = kernel == *split || is_found && !is_option;
                (!is_same).then_some(kernel)
            }
            Verdict::OwnValues => {
                let kernel = without_value(kernel);
                (kernel != without_value(split)).then_some(kernel)
            }
            Verdict::Refused(errno) => {
                let is_legal = !action.contains("illegal") && place != "no socket";
                let is_call = !matches!(action, "" | "recv leaves") && !split.starts_with("-- ");
                let is_run = matches!(way, Way::Preload | Way::Compat);
                let is_kernels = is_run && kernel == *split;
                let is_wrong = is_legal && is_call && result != errno && !is_kernels;
                is_wrong.then_some(errno.as_str())
            }
            Verdict::NotThere => Some("nothing"),
        };
        let is_named = way == Way::Node && differs_on_a_node(subject, place);
        let Some(fault) = fault.filter(|_| !is_named) else {
            continue;
        };
        let [kernel, split] = [result_of(fault), result_of(split)];
        let known = tables.differences.iter_mut().find(|known| {
            let [of, states, action, result, ours] = &known.cells;
            let mut states = states.split(", ");
            let is_there = states.any(|state| state == "all" || place.ends_with(state));
            let is_it = of == subject && action == split.0 && is_there;
            is_it && result == kernel.1 && ours == split.1
        });
        match known {
            Some(known) => known.was_seen = true,
            None => wrong.push(format!("{subject}, {place}: {fault:?}, not {split:?}")),
        }
    }
    if row.verdicts.contains(&Verdict::Kernel) && kernel.len() != split.len() {
        wrong.push(format!(
            "{subject}: {} and {} lines",
            kernel.len(),
            split.len()
        ));
    }
    wrong
}

/// What the program prints of one stack.
fn printed(command: &mut Command) -> String {
    let done = command.output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    let last: Vec<&str> = said.lines().rev().take(5).collect();
    assert!(done.status.success(), "{errors}, after {last:?}");
    said
}

/// The program, and what it prints of the kernel.
fn on_the_kernel(stack: &Stack) -> (PathBuf, String) {
    let program = stack.compile_from("../capi/tests/programs", "options");
    let mut command = Command::new(&program);
    let said = printed(command.arg("kernel").env("LD_LIBRARY_PATH", &stack.folder));
    (program, said)
}

/// What docs/run.md names as different with `--compat`.
fn differing_with_compat() -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/run.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, names) = page.split_once("these differ in a state or two:").unwrap();
    let (names, _) = names.split_once("\n\n").unwrap();
    names
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Holds what was printed of split sockets against the tables.
fn assert_as_tables_say(way: Way, kernel: &str, split: &str) {
    let mut tables = tables();
    let [kernel, split] = [kernel, split].map(sections);
    let rows = tables.rows.iter();
    let rows = rows.filter(|(_, row)| row.verdicts[0] != Verdict::NotThere);
    let rows: BTreeSet<&str> = rows.map(|(name, _)| name.as_str()).collect();
    let checks: BTreeSet<&str> = split.keys().copied().collect();
    assert_eq!(rows, checks, "rows and checks");
    let mut wrong = Vec::new();
    let mut differing = if way == Way::Compat {
        differing_with_compat()
    } else {
        BTreeSet::new()
    };
    for (subject, said) in &split {
        let found = compare((subject, way), &kernel[subject], said, &mut tables);
        if !differing.remove(*subject) {
            wrong.extend(found);
        }
    }
    assert!(differing.is_empty(), "no rows: {differing:?}");
    // What is no split socket, an unmodified program has from the kernel itself.
    let must_be_seen = |known: &&Difference| !known.was_seen && way == Way::Library;
    let unseen = tables.differences.iter().filter(must_be_seen);
    wrong.extend(unseen.map(|known| format!("{:?} is no difference", known.cells)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_call_and_option_does_what_the_tables_of_the_page_say() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let (program, kernel) = on_the_kernel(&stack);
        let split = output_of(&stack, &program, &["split"]);
        let errors = String::from_utf8_lossy(&split.stderr).into_owned();
        assert!(split.status.success(), "{errors}");
        let split = String::from_utf8(split.stdout).unwrap();
        assert_as_tables_say(Way::Library, &kernel, &split);
        stack.assert_nothing_left();
    });
}

#[test]
fn on_a_cluster_node_they_do_the_same() {
    isolated(|site| {
        let cluster = Cluster::new(&site);
        let (program, kernel) = on_the_kernel(&cluster.stack);
        let _node = cluster.node();
        let split = printed(&mut cluster.command_of(&program, &["split"]));
        assert_as_tables_say(Way::Node, &kernel, &split);
        cluster.stack.assert_nothing_left();
    });
}

#[test]
fn unmodified_programs_have_the_same() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let (program, kernel) = on_the_kernel(&stack);
        assert_eq!(opened(), 0);
        let mut command = splitway_run_on(&stack, &ALL);
        command.arg("--").arg(&program).arg("kernel");
        let split = printed(command.env("LD_LIBRARY_PATH", &stack.folder));
        assert!(opened() > 100);
        assert_as_tables_say(Way::Preload, &kernel, &split);
        stack.assert_nothing_left();
    });
}

#[test]
fn programs_without_a_library_have_the_same_but_for_what_the_page_names() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let (program, kernel) = on_the_kernel(&stack);
        let mut command = compat_on(&stack, &ALL);
        command.arg("--").arg(&program).arg("kernel");
        let split = printed(command.env("LD_LIBRARY_PATH", &stack.folder));
        assert!(opened() > 100);
        assert_as_tables_say(Way::Compat, &kernel, &split);
        stack.assert_nothing_left();
    });
}

#[test]
fn calls_that_are_not_there_are_not_in_the_library() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi/include/splitway.h");
    let header = fs::read_to_string(header).unwrap();
    let declares = |name: &str| header.contains(&format!(" sw_{name}("));
    let mut absent = 0;
    for (name, row) in tables().rows {
        let is_there = row.verdicts[0] != Verdict::NotThere;
        absent += usize::from(!is_there);
        let is_call = name
            .chars()
            .all(|it| it.is_ascii_lowercase() || it.is_ascii_digit());
        if is_call {
            assert_eq!(declares(&name), is_there, "{name}");
        }
    }
    assert!(absent > 0 && declares("epoll_ctl"));
}
