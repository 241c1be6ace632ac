//! Simulations, by `sim`'s model, of hardware that this machine lacks: IO-TCP's figures 3 and 12a
//! and its table 4, and the host cores needed for 100 to 800 Gbit/s. Calibrated with the results of
//! `splitway-bench ceiling`.
//!
//! | Module | Contents |
//! |---|---|
//! | [`calibration`] | measurements for the model |
//! | [`figure3`] | part of a core needed for disks |
//! | [`figure12a`] | lookups of connections beside disk I/O |
//! | [`table4`] | instructions per cycle |
//! | [`cores`] | hardware needed for a rate, and its bottleneck |

mod calibration;
mod cores;
mod figure12a;
mod figure3;
mod table4;

use std::path::PathBuf;

use serde::Serialize;
use sim::model::paper::Point;
use testbed::Result;

use self::calibration::Measured;
use crate::measure::plan::Plan;
use crate::measure::publish::results_directory;
use crate::measure::results::{Measures, Published};
use crate::measure::rounds::Rounds;

/// The simulations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Figure3,
    Figure12a,
    Table4,
    Cores,
}

impl Name {
    pub(crate) const ALL: [Name; 4] = [Name::Figure3, Name::Figure12a, Name::Table4, Name::Cores];
}

/// The settings of the simulations.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    /// Directory of the results; the number and length of runs only affect measurements.
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Results of `splitway-bench ceiling` [default: those in the directory of results]
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Connections of the calibration that host cores are computed from
    #[arg(long, default_value_t = 1600)]
    connections: usize,
}

const NOTE: &str = "**Simulated.** Nothing here was measured on the hardware that it speaks of, \
    except what is marked as the paper's (IO-TCP, Kim et al., NSDI 2023) and the host stack's \
    costs, which `splitway-bench ceiling` has measured on this machine. Parameters, their sources, \
    and what the model cannot tell: `docs/model.md`.";

/// Returns the duration, most of which is a simulated cache, longer the more disks write.
pub(crate) fn plan(names: &[Name], settings: &Settings) -> Plan {
    let mut plan = Plan::new();
    for name in names {
        let (quick, usual) = match name {
            Name::Figure3 | Name::Cores => (0.2, 0.2),
            Name::Figure12a => (5.0, 20.0),
            Name::Table4 => (2.0, 15.0),
        };
        plan.also(
            1,
            if settings.rounds.is_quick() {
                quick
            } else {
                usual
            },
        );
    }
    plan
}

/// Runs some simulations, and writes `NAME.md`, `NAME.json` and plots for each.
pub(crate) fn draw(names: &[Name], settings: &Settings) -> Result<()> {
    let output = settings.rounds.output(&results_directory()?).to_owned();
    for name in names {
        let measured = || Measured::read(settings.calibration.as_deref(), &output);
        let mut results = match name {
            Name::Figure3 => figure3::results(settings)?,
            Name::Figure12a => figure12a::results(settings, &measured()?)?,
            Name::Table4 => table4::results(settings, &measured()?)?,
            Name::Cores => cores::results(settings, &measured()?, settings.connections)?,
        };
        results.note(NOTE);
        results.publish(&output)?;
    }
    Ok(())
}

/// Returns a point of the paper, comparable with a measure of ours.
fn published(
    point: &Point,
    measure: &'static str,
    x: Option<f64>,
    value: f64,
    unit: &'static str,
) -> Published {
    Published {
        source: point.place,
        series: point.what,
        measure,
        x,
        value,
        unit,
    }
}

fn measures<const N: usize>(values: [(&str, f64); N]) -> Measures {
    values.map(|(name, value)| (name.to_owned(), value)).into()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::suites::ceiling::saved_results;

    pub(crate) fn settings() -> Settings {
        Settings {
            rounds: Rounds::default(),
            calibration: None,
            connections: 1600,
        }
    }

    /// Returns results as if the ceiling had been measured.
    pub(crate) fn measured(directory: &Path) -> Measured {
        saved_results::tests::found(directory);
        Measured::read(None, directory).unwrap()
    }

    #[test]
    fn each_says_that_it_is_simulated_and_has_the_papers_points_on_its_plot() {
        let directory = tempfile::tempdir().unwrap();
        measured(directory.path());
        let words = [
            "bench",
            "--quick",
            "--output",
            directory.path().to_str().unwrap(),
        ];
        let settings = parsed(&words);
        draw(&Name::ALL, &settings).unwrap();
        for name in ["figure3", "figure12a", "table4", "cores"] {
            let read =
                |kind| fs::read_to_string(directory.path().join(format!("{name}.{kind}"))).unwrap();
            let text = read("md");
            assert!(text.starts_with("# Simulated: "), "{text}");
            assert!(text.contains("Published (IO-TCP, NSDI 2023)"), "{name}");
            let svg = read("svg");
            assert!(
                svg.contains("Simulated: ") && svg.contains("published: "),
                "{name}"
            );
            let json: serde_json::Value = serde_json::from_str(&read("json")).unwrap();
            assert_eq!(json["is_simulated"], true);
            assert!(json["machine"]["cores"].as_u64().unwrap() > 0);
        }
    }

    fn parsed(words: &[&str]) -> Settings {
        #[derive(clap::Parser)]
        struct Arguments {
            #[command(flatten)]
            settings: Settings,
        }
        let arguments: Arguments = clap::Parser::try_parse_from(words).unwrap();
        arguments.settings
    }
}
