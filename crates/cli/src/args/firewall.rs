//! Options about clients that may connect.

use std::path::PathBuf;

use clap::Args;

use config::socket_values::AddressRange;

/// Options of `splitway serve`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Firewall")]
pub(crate) struct FirewallOptions {
    /// Let only clients with these addresses connect, such as 10.0.0.0/8; several may follow
    #[arg(long, value_name = "NETWORK", num_args = 1.., value_delimiter = ',')]
    pub(crate) allow: Vec<AddressRange>,

    /// Let only the networks in this file connect, one a line, besides those of --allow
    #[arg(long, value_name = "FILE")]
    pub(crate) allow_file: Option<PathBuf>,

    /// Let clients with these addresses not connect; several may follow
    #[arg(long, value_name = "NETWORK", num_args = 1.., value_delimiter = ',')]
    pub(crate) deny: Vec<AddressRange>,

    /// Let the networks in this file not connect either, one a line
    #[arg(long, value_name = "FILE")]
    pub(crate) deny_file: Option<PathBuf>,
}
