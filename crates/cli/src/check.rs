//! `splitway check`: whether a server could be started with a configuration, as far as that can be told without starting it.

use std::path::Path;

use crate::certificates::CertificateSource;
use crate::config::{self, Config, Content};
use crate::control_link::NicPlace;
use crate::error::Failure;
use crate::origin_options::OriginPlan;
use crate::root::check_root;
use crate::{key_file, say};

/// Checks a file and all that it names; says so if it is good.
pub(crate) fn run(file: &Path) -> Result<(), Failure> {
    let config = config::load_file(file)?;
    // One that is there for what comes from origins is made when it is needed.
    let root = config.nic.root.as_deref();
    let root = root.filter(|root| root.exists() || !OriginPlan::makes_root(&config));
    let failures = [
        root.map_or(Ok(()), check_root),
        root.map_or(Ok(()), |_| OriginPlan::look(&config)),
        check_key_file(&config),
        CertificateSource::check(&config, None).map(|_| ()),
        Content::read(&config, None).map(|_| ()),
    ];
    let failures = failures.into_iter().filter_map(Result::err);
    let failure = failures.reduce(Failure::and);
    failure.map_or_else(
        || {
            say(&format!("{}: good\n", file.display()));
            Ok(())
        },
        Err,
    )
}

/// That of NIC stacks on other machines.
fn check_key_file(config: &Config) -> Result<(), Failure> {
    let mut places = config.nic.attach.iter();
    let is_needed = places.any(|place| matches!(place.0, NicPlace::Ethernet { .. }));
    match &config.nic.key_file {
        Some(path) if is_needed => key_file::read(path).map(|_| ()),
        _ => Ok(()),
    }
}
