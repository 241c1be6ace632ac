//! `splitway keygen`: writes a fresh key for two machines, or a secret of QUIC.

use std::path::PathBuf;

use clap::Args;
use failure::Failure;

use config::key_file;

/// A new key.
#[derive(Clone, Debug, Args)]
pub(crate) struct KeygenArgs {
    /// File to write, which must not exist yet
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Writes the key.
pub(crate) fn run(args: &KeygenArgs) -> Result<(), Failure> {
    key_file::generate(&args.file)
}
