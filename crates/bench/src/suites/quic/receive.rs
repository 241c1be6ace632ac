//! `[quic] receive`: the host or NIC workers open clients' packets.

use std::fs;
use std::path::{Path, PathBuf};

use testbed::splitway::STACK_V4;
use testbed::{Context, Failure, Result};

use super::{CONNECTIONS, PORT, Settings, measures, own_arguments, run_one};
use crate::measure::results::Results;
use crate::measure::run::Server;
use crate::servers::server_set::{SPLITWAY, Workspace, end_splitway, processes, start_splitway};
use crate::suites::tls::identity::Identity;

/// The part of the results.
pub(super) const RECEIVE: &str = "receive";

/// The side that opens packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Host,
    Nic,
}

impl Mode {
    pub(super) const ALL: [Mode; 2] = [Mode::Host, Mode::Nic];

    /// The value of the key.
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Host => "host",
            Mode::Nic => "nic",
        }
    }

    /// Writes a configuration with this value to a directory; returns its path.
    pub(super) fn configuration(self, directory: &Path) -> Result<PathBuf> {
        let path = directory.join(format!("receive-{}.toml", self.name()));
        let text = format!("[quic]\nreceive = \"{}\"\n", self.name());
        fs::write(&path, text).context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }
}

/// Measures both, each with its own Splitway in each round.
pub(super) fn measure(
    settings: &Settings,
    workspace: &Workspace,
    identity: &Identity,
    results: &mut Results,
) -> Result<()> {
    let connections = settings.receive_connections();
    settings.rounds.take_turns(&Mode::ALL, |mode| {
        let configuration = mode.configuration(workspace.site.outside())?;
        let mut arguments = own_arguments(identity);
        arguments.push(format!("--config={}", configuration.display()));
        arguments.extend(settings.splitway.iter().cloned());
        let mut splitway = start_splitway(workspace, &arguments)?;
        let address = (STACK_V4, PORT).into();
        let server = Server {
            certificate: Some(identity.certificate.clone()),
            ..Server::new(SPLITWAY, address, processes(&splitway))
        };
        let run = run_one(settings, &server, connections, settings.rounds.seconds())?;
        eprintln!("receive = {}: {run}", mode.name());
        let conditions = [(CONNECTIONS, connections as f64)];
        results.add(RECEIVE, mode.name(), &conditions, measures(&run));
        let counted = end_splitway(&mut splitway)?;
        let opened = counted["nic"]["quic_packets_opened"].as_u64().unwrap_or(0);
        if (opened > 0) != (*mode == Mode::Nic) {
            return Err(Failure::new(format!(
                "with receive = \"{}\", NIC workers have opened {opened} packets",
                mode.name()
            )));
        }
        results.count(counted);
        Ok(())
    })
}
