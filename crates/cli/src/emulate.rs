//! `splitway link`: the link emulator.

use std::os::fd::AsFd;

use netem::bridge::{Bridge, Settings};
use netem::conditions::{Changes, Conditions};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::args::LinkArgs;
use crate::say;
use crate::signals::Signals;
use failure::Failure;
use netsetup::device::port_failed;

/// Emulates until the user or a failure ends it.
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
    // The first that cannot be opened is named in the error itself.
    let mut bridge = Bridge::open([&args.a, &args.b], settings)
        .map_err(|error| port_failed(&format!("{} or {}", args.a, args.b), &error))?;
    say(&format!("{} and {} are joined\n", args.a, args.b));
    let ended = bridge.run(signals.as_fd());
    let report = bridge
        .report()
        .map_err(|error| Failure::broken("reading the interfaces' counters", error))?;
    say(&match args.json {
        true => {
            let json = serde_json::to_string(&report)
                .map_err(|error| Failure::broken("writing JSON", error))?;
            format!("{json}\n")
        }
        false => report.to_string(),
    });
    ended.map_err(|error| Failure::broken("the link", error))
}

/// What one direction is like.
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
