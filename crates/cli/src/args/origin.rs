//! Options about origins.

use std::path::PathBuf;

use clap::Args;

use config::origin_place::OriginPlace;
use config::size::Size;

/// The options of `splitway serve`. What they say is laid over the section `origin` of a
/// configuration file.
#[derive(Clone, Debug, Args)]
#[allow(rustdoc::bare_urls, reason = "the text is that of --help")]
#[command(next_help_heading = "Origins")]
pub(crate) struct OriginOptions {
    /// Fetch what is not there from this origin, http:// or https://, keep it in the cache
    /// directory, and serve it from there. With a pattern, such as '/vod/*=https://origin.example',
    /// only paths that it is about. May be given several times; the first that is about a path
    /// counts. What lies below ROOT comes first
    #[arg(long, value_name = "[PATTERN=]URL", group = "content")]
    pub(crate) origin: Vec<OriginPlace>,

    /// Where what comes from origins is kept: ROOT, or below it, since it is read from there.
    /// Without ROOT, it is ROOT [default: .splitway-cache below ROOT]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,

    /// Most that is kept there, such as 500M or 20G [default: 10G]
    #[arg(long, value_name = "SIZE")]
    pub(crate) origin_cache_bytes: Option<Size>,

    /// File with the certificates, in PEM, of the authorities that origins are believed through
    /// [default: those that this machine believes]
    #[arg(long, value_name = "FILE")]
    pub(crate) origin_ca: Option<PathBuf>,

    /// Say of what comes from an origin whether it was there, in the field Cache-Status (RFC 9211)
    #[arg(long)]
    pub(crate) cache_status: bool,
}
