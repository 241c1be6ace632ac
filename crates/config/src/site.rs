//! Sites, and what is special about some of their paths.

use std::collections::BTreeMap;

use netem::conditions::Rate;
use serde::{Deserialize, Serialize};
use server::{Coding, HostName, Pattern, RelativePath};

use super::text::{Text, Time};
use crate::origin_place::OriginChoice;
use crate::size::Size;

/// What is served under some names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Site {
    /// Its names: `"example.org"`, or `"*.example.org"` for all names below it. The first site
    /// needs none.
    pub names: Vec<Text<HostName>>,
    /// Directory below the NIC stack's root in which its files are; empty for the root itself.
    pub root: Text<RelativePath>,
    /// Files that a directory is asked for; the first that is there is served. Without it, those of
    /// `http`.
    pub index: Option<Vec<Text<RelativePath>>>,
    /// Codings in which files may lie beside themselves. Without it, those of `http`.
    pub precompressed: Option<Vec<Text<Coding>>>,
    /// List directories that have no index. Without it, as `http` has it.
    pub listing: Option<bool>,
    /// Where what is not there comes from: `"https://origin.example"`, or `"off"`. Without it, from
    /// those of `origin`.
    pub origin: Option<Text<OriginChoice>>,
    /// Files, below its root, that are sent with these statuses: `404 = "errors/404.html"`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub error_pages: BTreeMap<String, Text<RelativePath>>,
    /// What is special about some paths, one table for each. The first that is about a path counts,
    /// and no other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rule: Vec<Rule>,
}

/// What is special about some paths of a site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Which paths, with at most one star, which stands for anything: `"/about"`, `"/video/*"`,
    /// `"*.m3u8"`.
    pub path: Text<Pattern>,
    /// The value of `Cache-Control`, where the answer is a file, a redirect, or 304.
    #[serde(default)]
    pub cache_control: Option<String>,
    /// How long after `Date` such an answer `Expires`.
    #[serde(default)]
    pub expires: Option<Text<Time>>,
    /// Further header fields of every answer, each as `"Name: value"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// Names of the signing keys with which URLs have to be signed; others get 403.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signed_by: Vec<String>,
    /// Where to go instead.
    #[serde(default)]
    pub redirect: Option<Redirect>,
    /// What pages of other origins may do.
    #[serde(default)]
    pub cors: Option<Cors>,
    /// How fast files are sent.
    #[serde(default)]
    pub pace: Option<Pace>,
    /// List directories that have no index, or do not. Without it, as the site has it.
    #[serde(default)]
    pub listing: Option<bool>,
    /// Downloads go on when their file grows, up to its size at their start: for logs and live
    /// recordings, whose writers append and rewrite nothing.
    #[serde(default)]
    pub append_only: bool,
    /// Where what is not there comes from: `"https://origin.example"`, or `"off"`. Without it, as
    /// the site has it.
    #[serde(default)]
    pub origin: Option<Text<OriginChoice>>,
}

/// Where clients are sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Redirect {
    /// 301 and 308 for good, 302, 303 and 307 for now.
    #[serde(default = "found")]
    pub status: u16,
    /// A path of the same site or a URL. A star in it stands for what the star of the rule's path
    /// has stood for.
    pub to: String,
}

fn found() -> u16 {
    302
}

/// What pages of other origins may do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Cors {
    /// Origins such as `"https://example.org"`, or `"*"` alone for all.
    pub origins: Vec<String>,
    /// Cookies and other credentials may be sent along; not with `"*"`.
    #[serde(default)]
    pub credentials: bool,
    /// Header fields that a page may set, besides those that it always may. Without it, `Range` and
    /// the conditions.
    #[serde(default)]
    pub request_fields: Option<Vec<String>>,
    /// Header fields that a page gets to see, besides those that it always does. Without it, what a
    /// player of media wants, and `Listing-Truncated`.
    #[serde(default)]
    pub exposed_fields: Option<Vec<String>>,
    /// How long a browser may remember that it is allowed. Without it, a day.
    #[serde(default)]
    pub max_age: Option<Text<Time>>,
}

/// How fast files are sent: by `rate`, or by the bit rate of media.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Pace {
    /// The rate, such as `"8mbit"`.
    pub rate: Option<Text<Rate>>,
    /// With `rate`: what is sent before that as fast as it goes, such as `"1M"`.
    pub at_once: Option<Text<Size>>,
    /// The bit rate of media.
    pub media_rate: Option<Text<Rate>>,
    /// With `media_rate`: percent of it to send at. Without it, 150.
    pub percent: Option<u32>,
    /// With `media_rate`: what is played in this time is sent as fast as it goes. Without it, 10s.
    pub ahead: Option<Text<Time>>,
}

impl Pace {
    /// Percent of the bit rate of media to send at, unless told otherwise.
    pub const PERCENT: u32 = 150;
    /// What is played in this time is sent at once, unless told otherwise.
    pub const AHEAD: Time = Time::from_secs(10);
}
