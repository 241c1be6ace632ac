//! What an operator says about HTTP on the command line. A configuration file can say more.

use clap::Args;
use netem::conditions::Rate;
use server::{Coding, RelativePath};

/// The options of `splitway serve`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpOptions {
    /// Files that a directory is asked for; the first that is there is served [default: index.html]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_index)]
    pub(crate) index: Vec<RelativePath>,

    /// Codings in which files may lie ready beside themselves, the best first: NAME.br, NAME.zst,
    /// NAME.gz. A client that accepts one gets it in the place of NAME
    #[arg(long, value_name = "br,zstd,gzip", value_delimiter = ',')]
    pub(crate) precompressed: Vec<Coding>,

    /// List directories that have no index: a page, or JSON for those who prefer it. Names that
    /// begin with a dot are not told
    #[arg(long)]
    pub(crate) listing: bool,

    /// How fast a connection is sent to at most: 20mbit [default: as fast as it goes]
    #[arg(long, value_name = "RATE")]
    pub(crate) rate_per_connection: Option<Rate>,

    /// How fast all connections of one source together are sent to at most: of an IPv4 address, or
    /// of an IPv6 network of 64 bits [default: as fast as it goes]
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
