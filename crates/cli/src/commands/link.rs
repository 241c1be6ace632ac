//! `splitway link`: the link emulator.

use std::os::fd::AsFd;

use clap::Args;
use failure::Failure;
use netem::bridge::{Bridge, Settings};
use netem::conditions::{Burst, Changes, Conditions, Queue, Rate, Share, Time};
use netsetup::device::port_failed;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::terminal::say;
use processes::ipc::signals::Signals;

/// The link emulator.
#[derive(Clone, Debug, Args)]
pub(crate) struct LinkArgs {
    /// Interface at one end, A
    #[arg(value_name = "IF_A")]
    pub(crate) a: String,

    /// Interface at the other end, B
    #[arg(value_name = "IF_B")]
    pub(crate) b: String,

    #[command(flatten)]
    pub(crate) both: ConditionsArgs,

    /// Conditions that differ from A to B, such as loss=1%,rate=10mbit: the options above without
    /// the dashes
    #[arg(long, value_name = "NAME=VALUE,…")]
    pub(crate) ab: Option<Changes>,

    /// Conditions that differ from B to A
    #[arg(long, value_name = "NAME=VALUE,…")]
    pub(crate) ba: Option<Changes>,

    /// Seed of all random decisions; the same seed loses the same packets
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) seed: u64,

    /// On exit, print what happened as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Exit when the parent process exits
    #[arg(long, hide = true)]
    pub(crate) end_with_parent: bool,
}

/// What the link is like in both directions.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConditionsArgs {
    /// One-way delay: 20ms, 200us
    #[arg(long, value_name = "TIME")]
    delay: Option<Time>,

    /// Maximum variation of the delay from packet to packet; no packet overtakes another
    #[arg(long, value_name = "TIME")]
    jitter: Option<Time>,

    /// Send rate: 200mbit, 1.5gbit [default: unlimited]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    /// Queue limit: 256kb, or as a time at that rate, 50ms [default: unlimited]
    #[arg(long, value_name = "BYTES|TIME")]
    queue: Option<Queue>,

    /// Share of packets lost: 1%
    #[arg(long, value_name = "SHARE")]
    loss: Option<Share>,

    /// Packets lost in a row, on average [default: independent losses]
    #[arg(long, value_name = "PACKETS")]
    loss_burst: Option<Burst>,

    /// Share of packets held back, so that later ones overtake them
    #[arg(long, value_name = "SHARE")]
    reorder: Option<Share>,

    /// Time that they are held back [default: 1ms]
    #[arg(long, value_name = "TIME")]
    reorder_by: Option<Time>,

    /// Share of packets duplicated
    #[arg(long, value_name = "SHARE")]
    duplicate: Option<Share>,
}

impl ConditionsArgs {
    /// Returns the changes that the options make.
    pub(crate) fn changes(&self) -> Changes {
        Changes {
            delay: self.delay,
            jitter: self.jitter,
            rate: self.rate,
            queue: self.queue,
            loss: self.loss,
            loss_burst: self.loss_burst,
            reorder: self.reorder,
            reorder_by: self.reorder_by,
            duplicate: self.duplicate,
        }
    }
}

pub(crate) const LINK_HELP: &str = "Frames that arrive on one interface leave from the other, as \
if such a link were between them. Neither interface should have addresses. A GSO superpacket is \
treated as its packets. A lost packet takes its time on the link like any other.

Stop it with Ctrl-C: it prints the fate of the packets, and how late the emulator was. This needs \
CAP_NET_RAW (sudo has it).

Examples:
  sudo splitway link eth1 eth2 --delay 20ms --rate 200mbit --queue 40ms
  sudo splitway link eth1 eth2 --delay 50ms --loss 1% --loss-burst 3 --seed 7
  sudo splitway link eth1 eth2 --delay 10ms --ab rate=50mbit,queue=256kb \\
    --ba rate=5mbit,queue=64kb";

/// Emulates until a signal or a failure.
pub(crate) fn run(args: &LinkArgs) -> Result<(), Failure> {
    if args.a == args.b {
        let what = format!("a link from {} to itself", args.a);
        return Err(Failure::input(what, "its two ends are two interfaces"));
    }
    let settings = Settings {
        directions: [
            conditions(args, args.ab, "--ab")?,
            conditions(args, args.ba, "--ba")?,
        ],
        seed: args.seed,
    };
    if args.end_with_parent {
        set_parent_process_death_signal(Some(Signal::TERM))
            .map_err(|errno| Failure::broken("binding the process to its parent", errno))?;
    }
    let signals = Signals::catch_ends()?;
    // The error itself names the interface that cannot be opened.
    let mut bridge = Bridge::open([&args.a, &args.b], settings)
        .map_err(|error| port_failed(&format!("{} or {}", args.a, args.b), &error))?;
    say(&format!("{} and {} are joined\n", args.a, args.b));
    let ended = bridge.run(signals.as_fd());
    let report = bridge
        .report()
        .map_err(|error| Failure::broken("reading the interfaces' counters", error))?;
    say(&if args.json {
        let json = serde_json::to_string(&report)
            .map_err(|error| Failure::broken("writing JSON", error))?;
        format!("{json}\n")
    } else {
        report.to_string()
    });
    ended.map_err(|error| Failure::broken("the link", error))
}

/// Returns the conditions of one direction.
fn conditions(
    args: &LinkArgs,
    changes: Option<Changes>,
    option: &str,
) -> Result<Conditions, Failure> {
    let said = args.both.changes().but(changes.unwrap_or_default());
    said.conditions().map_err(|error| {
        let where_ = match changes {
            Some(_) => format!("the link as {option} makes it"),
            None => "the link".to_owned(),
        };
        Failure::input(where_, error)
    })
}
