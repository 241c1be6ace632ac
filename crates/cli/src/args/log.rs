//! Options about logs and metrics.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::args::named::named;
use config::log_place::LogPlace;
use observer::AccessFormat;

/// The options of `splitway serve`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Logs and metrics")]
pub(crate) struct LogOptions {
    /// Access log, with a line for each finished response: a file, or - for standard output
    #[arg(long, value_name = "PATH|-")]
    pub(crate) access_log: Option<LogPlace>,

    /// Format of the access log: combined, as in Apache and nginx; combined-cache, which appends
    /// the cache status; or json, with more fields [default: combined]
    #[arg(long, value_name = "FORMAT", hide_possible_values = true,
        value_parser = named::<AccessFormat>(AccessFormat::names()))]
    pub(crate) access_log_format: Option<AccessFormat>,

    /// File for messages of the processes, instead of standard error
    #[arg(long, value_name = "PATH")]
    pub(crate) error_log: Option<PathBuf>,

    /// Address and port for monitoring, on the kernel's own TCP: /metrics for Prometheus, /healthz
    /// and /readyz. Any client that can connect sees all of it: 127.0.0.1:9180 is for this machine
    /// alone
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) admin: Option<SocketAddr>,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Options {
        #[command(flatten)]
        logs: LogOptions,
    }

    fn parse(line: &str) -> Result<LogOptions, String> {
        let words = ["splitway"].into_iter().chain(line.split_whitespace());
        let options = Options::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(options.logs)
    }

    #[test]
    fn a_dash_is_standard_output() {
        let logs = parse("--access-log - --access-log-format json").unwrap();
        assert_eq!(logs.access_log, Some(LogPlace::StandardOutput));
        assert_eq!(logs.access_log_format, Some(AccessFormat::Json));
        let logs = parse("--access-log ./- --error-log e").unwrap();
        assert_eq!(logs.access_log, Some(LogPlace::File("./-".into())));
        assert_eq!(parse("").unwrap(), LogOptions::default());
        let message = parse("--access-log a --access-log-format clf").unwrap_err();
        assert!(
            message.contains("combined") && message.contains("json"),
            "{message}"
        );
    }
}
