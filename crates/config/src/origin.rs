//! Origins: missing files are fetched from them, and cached.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::text::Text;
use crate::origin_place::OriginPlace;
use crate::size::Size;

/// Origins: the server fetches missing files from them and serves them from a cache directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Origin {
    /// Origins of sites that name none, such as `"https://origin.example"`; with a pattern, such as
    /// `"/vod/*=https://vod.example"`, only for matching paths. The first match counts.
    pub urls: Vec<Text<OriginPlace>>,
    /// Directory of the origin cache: the root, or below it, since the NIC stack reads it from
    /// there. Default: `.splitway-cache` below the root; without a root, this directory becomes the
    /// root.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub cache_dir: Option<PathBuf>,
    /// Maximum size of the origin cache.
    pub cache_max: Text<Size>,
    /// Maximum variants of a target, 1 to 1,024: answers that differ by `Vary`. A new one replaces
    /// the least recently requested.
    pub variants_max: u16,
    /// Maximum size of the header fields of an origin's response that are kept, 1K to 20K. Clients
    /// get 502 for a response with more.
    pub head_max: Text<Size>,
    /// Maximum number of these header fields, 1 to 256.
    pub fields_max: u16,
    /// PEM file with the CA certificates trusted for origins. Default: those that this machine
    /// trusts.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub ca: Option<PathBuf>,
    /// Add `Cache-Status` (RFC 9211) to responses from origins: whether the cache had them.
    pub cache_status: bool,
}

impl Default for Origin {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            cache_dir: None,
            cache_max: Text(Size(10 << 30)),
            variants_max: 16,
            head_max: Text(Size(16 << 10)),
            fields_max: 128,
            ca: None,
            cache_status: false,
        }
    }
}
