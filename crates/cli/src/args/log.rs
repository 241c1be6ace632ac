//! Options about logs and metrics.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use config::log_place::LogPlace;
use observer::AccessFormat;

/// The options of `splitway serve`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Logs and metrics")]
pub(crate) struct LogOptions {
    /// Note each response that is over in this file, or with - on standard output
    #[arg(long, value_name = "PATH|-")]
    pub(crate) access_log: Option<LogPlace>,

    /// What lines of the access log are like: combined, as Apache's and nginx's; combined-cache,
    /// with what the cache had to do with it behind that; or json, with more [default: combined]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) access_log_format: Option<AccessFormat>,

    /// Write to this file what the processes have to say, which otherwise goes to standard error
    #[arg(long, value_name = "PATH")]
    pub(crate) error_log: Option<PathBuf>,

    /// Serve monitoring here, on the kernel's own TCP: /metrics for Prometheus, /healthz and
    /// /readyz. Any client that can connect sees all of it: 127.0.0.1:9180 is for this machine
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
