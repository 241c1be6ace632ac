//! Options about HTTP, a subset of the configuration file's keys.

use clap::Args;
use netem::conditions::Rate;
use server::{Coding, RelativePath};

use crate::args::named::named;

/// The options of `splitway serve`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpOptions {
    /// Index files of directories; the first that exists is served [default: index.html]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_index)]
    pub(crate) index: Vec<RelativePath>,

    /// Codings of precompressed files to look for, the best first: NAME.br, NAME.zst, NAME.gz. A
    /// client that accepts one gets it instead of NAME
    #[arg(long, value_name = "br,zstd,gzip", value_delimiter = ',', hide_possible_values = true,
        value_parser = named::<Coding>(Coding::ALL.map(Coding::name)))]
    pub(crate) precompressed: Vec<Coding>,

    /// List directories that have no index: a page, or JSON for clients that prefer it. Listings
    /// omit names that begin with a dot
    #[arg(long)]
    pub(crate) listing: bool,

    /// Maximum send rate of a connection: 20mbit [default: no limit]
    #[arg(long, value_name = "RATE")]
    pub(crate) rate_per_connection: Option<Rate>,

    /// Maximum send rate of all connections of one source together: an IPv4 address, or an IPv6
    /// network of 64 bits [default: no limit]
    #[arg(long, value_name = "RATE")]
    pub(crate) rate_per_source: Option<Rate>,
}

fn parse_index(text: &str) -> Result<RelativePath, String> {
    match text {
        "" => Err("a directory is no index: name a file, such as index.html".to_owned()),
        _ => text
            .parse()
            .map_err(|error: server::RelativePathError| error.to_string()),
    }
}
