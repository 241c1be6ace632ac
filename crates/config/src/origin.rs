//! Origins: what is not there is fetched from them, and kept.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::text::Text;
use crate::origin_place::OriginPlace;
use crate::size::Size;

/// Origins: what is not there is fetched from them, kept in a cache directory, and served from
/// there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Origin {
    /// Origins of sites that do not name one themselves, such as `"https://origin.example"`; with a
    /// pattern, such as `"/vod/*=https://vod.example"`, of paths that it is about. The first that
    /// is about a path counts.
    pub urls: Vec<Text<OriginPlace>>,
    /// Directory in which what comes from origins is kept: the root, or below it, since it is read
    /// from there. Without it, `.splitway-cache` below the root; without a root, it is the root.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub cache_dir: Option<PathBuf>,
    /// Most that is kept there.
    pub cache_max: Text<Size>,
    /// Most variants of a target, 1 to 1,024: answers that `Vary` tells apart. One more takes the
    /// place of the one that was asked for least recently.
    pub variants_max: u16,
    /// File with the certificates, in PEM, of the authorities that origins are believed through.
    /// Without it, those that this machine believes.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub ca: Option<PathBuf>,
    /// What comes from an origin says whether it was there, in `Cache-Status` (RFC 9211).
    pub cache_status: bool,
}

impl Default for Origin {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            cache_dir: None,
            cache_max: Text(Size(10 << 30)),
            variants_max: 16,
            ca: None,
            cache_status: false,
        }
    }
}
