//! What an operator says about HTTP.

use std::ffi::OsString;

use std::num::NonZeroU64;

use ::link::conditions::Rate;
use clap::Args;
use server::{Coding, Config, RelativePath, Site};

use crate::serve::option;

/// The options of `splitway serve` and of the host process alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpOptions {
    /// Files that a directory is asked for; the first that is there is served [default: index.html]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_index)]
    index: Vec<RelativePath>,

    /// Codings in which files may lie beside themselves, made ready by somebody, the best first: NAME.br, NAME.zst,
    /// NAME.gz. Who accepts one gets it in the place of NAME
    #[arg(long, value_name = "br,zstd,gzip", value_delimiter = ',')]
    precompressed: Vec<Coding>,

    /// How fast a connection is sent to at most: 20mbit [default: as fast as it goes]
    #[arg(long, value_name = "RATE")]
    rate_per_connection: Option<Rate>,

    /// How fast all connections of one source together are sent to at most: of an IPv4 address, or of an IPv6 network of 64
    /// bits [default: as fast as it goes]
    #[arg(long, value_name = "RATE")]
    rate_per_source: Option<Rate>,
}

fn parse_index(text: &str) -> Result<RelativePath, String> {
    match text {
        "" => Err("a directory is no index: name a file, such as index.html".to_owned()),
        _ => text
            .parse()
            .map_err(|error: server::RelativePathError| error.to_string()),
    }
}

impl HttpOptions {
    /// The same for the host process.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let index = self
            .index
            .iter()
            .map(|name| option("--index", name.to_string().as_ref()));
        let codings = self.precompressed.iter();
        let codings = codings.map(|coding| option("--precompressed", coding.name().as_ref()));
        let mut arguments: Vec<OsString> = index.chain(codings).collect();
        for (name, rate) in [
            ("--rate-per-connection", self.rate_per_connection),
            ("--rate-per-source", self.rate_per_source),
        ] {
            if let Some(Rate(bits)) = rate {
                arguments.extend([name.into(), format!("{bits}bit").into()]);
            }
        }
        arguments
    }

    /// What the server is to do.
    pub(crate) fn apply(&self, config: &mut Config) {
        let mut site = Site {
            precompressed: self.precompressed.clone(),
            ..Site::default()
        };
        if !self.index.is_empty() {
            site.index.clone_from(&self.index);
        }
        config.sites = vec![site];
        let bytes = |rate: Option<Rate>| rate.and_then(|Rate(bits)| NonZeroU64::new(bits / 8));
        config.connection_bytes_per_second_max = bytes(self.rate_per_connection);
        config.source_bytes_per_second_max = bytes(self.rate_per_source);
    }
}

#[cfg(test)]
mod tests {
    use clap::{FromArgMatches, Parser};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: HttpOptions,
    }

    #[test]
    fn the_host_process_is_told_the_same() {
        for line in [
            "splitway",
            "splitway --index index.html,-x/y.htm --precompressed zstd,gzip",
            "splitway --index a --index b --precompressed br",
            "splitway --rate-per-connection 20.5mbit --rate-per-source 1000gbit",
        ] {
            use clap::CommandFactory;
            let parse = |words: Vec<OsString>| {
                let matches = Line::command().get_matches_from(words);
                Line::from_arg_matches(&matches).unwrap().options
            };
            let options = parse(line.split_whitespace().map(OsString::from).collect());
            let mut words = vec![OsString::from("splitway")];
            words.extend(options.arguments());
            assert_eq!(parse(words), options, "{line}");
        }
    }
}
