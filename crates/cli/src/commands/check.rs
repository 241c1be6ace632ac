//! `splitway check`: reports all errors and warnings about a configuration that can be found
//! without starting a server.

use std::path::PathBuf;

use clap::Args;
use failure::Failure;

use crate::args::overlay::{self, Examined};
use crate::supervisor::broker;
use crate::supervisor::origin_plan::OriginPlan;
use crate::supervisor::resolver::Resolver;
use crate::supervisor::site_directories;
use crate::terminal::{complain, say};
use config::certificates::{CertificateSource, unix_time, without_site};
use config::control_link::NicPlace;
use config::key_file;
use config::root::check_root;
use config::{Config, Content};

/// The check of a configuration.
#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArgs {
    /// File, as for `serve --config` or `proxy --config`
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Checks a file and the files that it names; prints a message if there are no errors.
pub(crate) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let file = &args.file;
    let Examined {
        config,
        failure,
        warnings,
    } = overlay::examine_file(file)?;
    // A root that is the cache directory is created when it is needed.
    let root = config.nic.root.as_deref();
    let root = root.filter(|root| root.exists() || !OriginPlan::makes_root(&config));
    let mut failures: Vec<Failure> = failure.into_iter().collect();
    failures.extend(root.and_then(|root| check_root(root).err()));
    failures.extend(root.and_then(|_| OriginPlan::look(&config).err()));
    failures.extend(
        root.into_iter()
            .flat_map(|root| site_directories::look(&config, root)),
    );
    failures.extend(check_key_file(&config).err());
    failures.extend(config.quic.secret().err());
    failures.extend(Content::wrong_secrets(&config));
    failures.extend(config.firewall.read().err());
    failures.extend(broker::settings(&config.sockets).err());
    let mut lines: Vec<String> = warnings.iter().map(Failure::to_string).collect();
    match look_at_certificates(&config) {
        Ok(odd) => lines.extend(odd),
        Err(failure) => failures.push(failure),
    }
    let forwarding = Resolver::here().map(|resolver| resolver.read(&config, None));
    match forwarding {
        Ok(forwarding) => lines.extend(forwarding.warnings()),
        Err(failure) => failures.push(failure),
    }
    for line in lines {
        complain(&format!("warning: {line}\n"));
    }
    let failure = failures.into_iter().reduce(Failure::and);
    failure.map_or_else(
        || {
            say(&format!("{}: good\n", file.display()));
            Ok(())
        },
        Err,
    )
}

/// Returns the warnings about certificates.
fn look_at_certificates(config: &Config) -> Result<Vec<String>, Failure> {
    let Some(source @ CertificateSource::Files(_)) = CertificateSource::of(config, None)? else {
        return Ok(Vec::new());
    };
    let loaded = source.read(&[])?;
    let now = unix_time();
    let mut lines = loaded.warnings;
    let in_use = loaded.in_use.iter();
    lines.extend(in_use.filter_map(|known| known.warning(now)));
    lines.extend(without_site(&loaded.in_use, &config.site));
    Ok(lines)
}

/// Checks the key file of NIC stacks on other machines.
fn check_key_file(config: &Config) -> Result<(), Failure> {
    let mut places = config.nic.attach.iter();
    let is_needed = places.any(|place| matches!(place.0, NicPlace::Ethernet { .. }));
    match &config.nic.key_file {
        Some(path) if is_needed => key_file::read(path).map(|_| ()),
        _ => Ok(()),
    }
}
