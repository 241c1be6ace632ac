//! `splitway-bench share`: addresses that Splitway shares with the kernel, against a link of its
//! own, and against the kernel's DNAT to such a link.
//!
//! ```text
//! client 10.77.0.1 ── 10.77.0.2 splitway
//! client 10.78.1.1 ── 10.78.1.2 kernel and splitway --share
//! client 10.78.2.1 ── 10.78.2.2 kernel, DNAT ── 10.77.0.2 splitway
//! ```

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Pid;
use serde::Serialize;
use testbed::namespace::within;
use testbed::process::run as run_tool;
use testbed::splitway::{STACK_V4, Splitway};
use testbed::{Context, Failure, Result};

use crate::measure::plan::Plan;
use crate::measure::results::{Bound, Results};
use crate::measure::rounds::Rounds;
use crate::measure::run::{self, Run, Server};
use crate::measure::table;
use crate::servers::cores::server_cores;
use crate::servers::link::{Device, copy_sizes};
use crate::servers::peer_network::{self, PeerNetwork};
use crate::servers::server_set::{Workspace, end_splitway, processes, start_splitway, with_ends};
use crate::suites::quic::client;
use crate::suites::tls::identity::Identity;

/// The settings of the suite.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Connections, each asking for file after file
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Number of files, requested at random
    #[arg(long, default_value_t = 200)]
    files: usize,
    /// Size of each file, in bytes
    #[arg(long, default_value_t = 500_000)]
    file_bytes: u64,
}

/// Who has the address that clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Splitway alone.
    Own,
    /// Splitway and the kernel.
    Shared,
    /// The kernel, which passes connections on.
    Forwarded,
}

impl Place {
    const ALL: [Place; 3] = [Place::Own, Place::Shared, Place::Forwarded];

    fn name(self) -> &'static str {
        match self {
            Place::Own => "a link of its own",
            Place::Shared => "--share",
            Place::Forwarded => "DNAT",
        }
    }
}

/// How the files are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Plain,
    Tls,
    Quic,
}

impl Protocol {
    const ALL: [Protocol; 3] = [Protocol::Plain, Protocol::Tls, Protocol::Quic];

    fn part(self) -> &'static str {
        match self {
            Protocol::Plain => "HTTP/1.1",
            Protocol::Tls => "HTTP/1.1 over TLS",
            Protocol::Quic => "HTTP/3",
        }
    }

    fn port(self) -> u16 {
        match self {
            Protocol::Plain => 80,
            Protocol::Tls | Protocol::Quic => 443,
        }
    }
}

/// CPU time of the whole machine per gigabyte: promised limit, against a link of its own.
const MACHINE_RATIO_MAX: f64 = 1.03;

/// Gives the kernel's address to a link behind it, as operators do it.
const POD_NETWORK: &str = include_str!("../../../../deploy/pod-network");

const NOTE: &str = "Only the CPU time of the whole machine, client included, has all that sharing \
    costs: the kernel runs its programs and its DNAT in the context of the sender. Servers run \
    on one core, the client on another. Machines are noisy: compare ratios of one invocation.";

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let mut plan = Plan::new();
    plan.files(settings.files, settings.file_bytes);
    plan.splitways(Place::ALL.len());
    for _ in Protocol::ALL {
        let places = Place::ALL.len();
        let (connections, bytes) = (settings.connections, settings.file_bytes);
        plan.tls_turns(&settings.rounds, places, connections, bytes);
    }
    plan
}

/// Splitway at one of the places.
struct Served {
    place: Place,
    splitway: Splitway,
    address: IpAddr,
    _network: Option<PeerNetwork>,
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    if !crate::is_privileged() {
        return Err(Failure::new(
            "share: programs of eBPF and nftables need root",
        ));
    }
    let workspace = Workspace::prepare(settings.files, settings.file_bytes)?;
    let identity = Identity::make(workspace.site.outside())?;
    let mut served = start(&workspace, &identity)?;
    let title = format!(
        "An address shared with the kernel: files of {} bytes in memory, {} connections",
        settings.file_bytes, settings.connections
    );
    let mut results = Results::new("share", title, settings)?;
    for protocol in Protocol::ALL {
        if !settings.rounds.is_quick() {
            for it in &served {
                one(
                    settings,
                    &workspace,
                    &identity,
                    (it, protocol),
                    run::WARM_UP_SECONDS,
                )?;
            }
        }
        settings.rounds.take_turns(&served, |it| {
            let seconds = settings.rounds.seconds();
            let run = one(settings, &workspace, &identity, (it, protocol), seconds)?;
            eprintln!("{}: {run}", protocol.part());
            results.add(protocol.part(), it.place.name(), &[], run.measures());
            Ok(())
        })?;
    }
    for it in &mut served {
        results.count(end_splitway(&mut it.splitway)?);
    }
    report(&mut results);
    results.publish(settings.rounds.output(&workspace.output))
}

/// Does one run.
fn one(
    settings: &Settings,
    workspace: &Workspace,
    identity: &Identity,
    (served, protocol): (&Served, Protocol),
    seconds: f64,
) -> Result<Run> {
    let address = SocketAddr::new(served.address, protocol.port());
    let mut server = Server::new(served.place.name(), address, processes(&served.splitway));
    if protocol != Protocol::Plain {
        server.certificate = Some(identity.certificate.clone());
    }
    if protocol != Protocol::Quic {
        return run::run(
            &server,
            &workspace.load(&server, settings.connections, seconds),
        );
    }
    let load = client::Settings {
        server: address,
        certificate: identity.certificate.clone(),
        connections: settings.connections,
        files: settings.files,
        file_bytes: settings.file_bytes,
        seconds,
        ramp_up_seconds: None,
    };
    run::run_generator(&server, load.arguments(), false)
}

/// Starts Splitway at each place; the links are all made like the first one's.
fn start(workspace: &Workspace, identity: &Identity) -> Result<Vec<Served>> {
    let options = options(identity);
    let splitway = start_splitway(workspace, &options)?;
    let number = |place: Place| place as u8;
    let (shared, forwarded) = (number(Place::Shared), number(Place::Forwarded));
    let networks = with_ends(&splitway, |ends| {
        let for_shared = PeerNetwork::numbered(shared, ends, false)?;
        let for_forwarded = PeerNetwork::numbered(forwarded, ends, false)?;
        forward(for_forwarded.holder(), forwarded, ends)?;
        Ok((for_shared, for_forwarded))
    })?;
    let root = workspace.site.root();
    let program = |network: &PeerNetwork| {
        let cores = server_cores(1);
        let mut command = within(network.holder(), &format!("taskset --cpu-list {cores}"));
        command.arg(&workspace.splitway);
        command
    };
    let device = peer_network::device(shared);
    let at = ["--dev", &*device, "--share"];
    let with_share = serve(program(&networks.0), root, &options, &at)?;
    let at = [
        "--dev",
        "stack0",
        "--addr",
        "10.77.0.2/24",
        "--gateway",
        "10.77.0.1",
    ];
    let behind = serve(program(&networks.1), root, &options, &at)?;
    Ok(vec![
        Served {
            place: Place::Own,
            splitway,
            address: STACK_V4,
            _network: None,
        },
        Served {
            place: Place::Shared,
            splitway: with_share,
            address: peer_network::server(shared).into(),
            _network: Some(networks.0),
        },
        Served {
            place: Place::Forwarded,
            splitway: behind,
            address: peer_network::server(forwarded).into(),
            _network: Some(networks.1),
        },
    ])
}

fn options(identity: &Identity) -> Vec<String> {
    vec![
        "--report-json".to_owned(),
        format!("--listen={}", Protocol::Plain.port()),
        format!("--tls-listen={}", Protocol::Tls.port()),
        format!("--tls-cert={}", identity.certificate.display()),
        format!("--tls-key={}", identity.key.display()),
        "--http3".to_owned(),
    ]
}

fn serve(mut command: Command, root: &Path, options: &[String], at: &[&str]) -> Result<Splitway> {
    command.arg("serve").arg(root).args(options).args(at);
    Splitway::start(&mut command)
}

/// Has the kernel of a network pass connections on to a link behind it.
fn forward(holder: Pid, number: u8, model: [Device<'_>; 2]) -> Result<()> {
    let device = peer_network::device(number);
    let gateway = format!("ip route add default via 10.78.{number}.1 dev {device}");
    run_tool(&mut within(holder, &gateway))?;
    let mut script = within(holder, "sh -s");
    let made = || "running deploy/pod-network".to_owned();
    let mut shell = script.stdin(Stdio::piped()).spawn().context(made)?;
    let mut input = shell.stdin.take().expect("a pipe");
    input.write_all(POD_NETWORK.as_bytes()).context(made)?;
    drop(input);
    if !shell.wait().context(made)?.success() {
        return Err(Failure::new("deploy/pod-network has failed"));
    }
    for (name, model) in ["stack1", "stack0"].into_iter().zip(model) {
        let namespace = Some(holder);
        copy_sizes(model, Device { namespace, name })?;
    }
    Ok(())
}

fn report(results: &mut Results) {
    for protocol in Protocol::ALL {
        let part = protocol.part();
        table::add_titled(results, part, part, &[]);
        let machine = "cpu_s_per_gb.machine";
        for (place, bound) in [
            (Place::Shared, Bound::AtMost(MACHINE_RATIO_MAX)),
            (Place::Forwarded, Bound::None),
        ] {
            let own = Place::Own.name();
            let ratio = results.ratio(part, (place.name(), machine), (own, machine));
            let what = format!(
                "{part}: machine CPU per GB, {}, against {own}",
                place.name()
            );
            results.check(what, ratio, bound);
        }
    }
    results.note(NOTE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::run::tests::run;

    #[test]
    fn the_report_compares_the_machines_time() {
        let mut results = Results::new("share", "Shared", &()).unwrap();
        for protocol in Protocol::ALL {
            for place in Place::ALL {
                let run = run(place.name(), 1_000_000_000, &[("host", 1), ("nic", 2)]);
                results.add(protocol.part(), place.name(), &[], run.measures());
            }
        }
        report(&mut results);
        let values: Vec<_> = results.checks().iter().map(|check| check.value).collect();
        assert_eq!(values, [Some(1.0); 6]);
        assert!(results.checks().iter().all(|check| check.met));
    }
}
