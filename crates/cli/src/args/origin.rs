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
    /// Origin of missing files, http:// or https://, which the server fetches, keeps in the cache
    /// directory, and serves from there. With a pattern, such as '/vod/*=https://origin.example',
    /// only for matching paths. May be repeated; the first match counts. Files below ROOT come
    /// first
    #[arg(long, value_name = "[PATTERN=]URL", group = "content")]
    pub(crate) origin: Vec<OriginPlace>,

    /// Directory of the origin cache: ROOT, or below it, since the NIC stack reads it from there.
    /// Without ROOT, it becomes ROOT [default: .splitway-cache below ROOT]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,

    /// Maximum size of the origin cache, such as 500M or 20G [default: 10G]
    #[arg(long, value_name = "SIZE")]
    pub(crate) origin_cache_bytes: Option<Size>,

    /// PEM file with the CA certificates trusted for origins [default: those that this machine
    /// trusts]
    #[arg(long, value_name = "FILE")]
    pub(crate) origin_ca: Option<PathBuf>,

    /// Add Cache-Status (RFC 9211) to responses from origins: whether the cache had them
    #[arg(long)]
    pub(crate) cache_status: bool,
}
