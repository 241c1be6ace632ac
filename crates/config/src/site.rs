//! Sites, and settings for some of their paths.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use netem::conditions::Rate;
use serde::{Deserialize, Serialize};
use server::{
    Coding, HostName, HttpVersion, Method, Pattern, RelativePath, Scheme, Template, Versions,
};

use super::text::{Text, Time};
use crate::origin_place::OriginChoice;
use crate::size::Size;

/// What is served under some names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Site {
    /// Host names: `"example.org"`, or `"*.example.org"` for all names below it. The first site
    /// needs none.
    pub names: Vec<Text<HostName>>,
    /// Directory of the site's files, below the NIC stack's root; empty for the root itself.
    pub root: Text<RelativePath>,
    /// Index files of directories; the first that exists is served. Default: those of `http`.
    pub index: Option<Vec<Text<RelativePath>>>,
    /// Codings of precompressed files to look for. Default: those of `http`.
    pub precompressed: Option<Vec<Text<Coding>>>,
    /// List directories that have no index. Default: as in `http`.
    pub listing: Option<bool>,
    /// Origin of missing files: `"https://origin.example"`, or `"off"`. Default: those of `origin`.
    pub origin: Option<Text<OriginChoice>>,
    /// Redirect requests over `http` to the same host, path and query over `https`, with this
    /// status: 308 or 301 for good, 307, 303 or 302 for now. A rule with `scheme = "http"` that
    /// matches excepts a request; no other rule applies to `http` then.
    pub https_redirect: Option<u16>,
    /// `Strict-Transport-Security` (RFC 6797) in every response over TLS, errors included.
    pub hsts: Option<Hsts>,
    /// Files, below the site's root, sent with these statuses: `404 = "errors/404.html"`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub error_pages: BTreeMap<String, Text<RelativePath>>,
    /// Settings for some requests, one table for each. The first rule that matches a request
    /// counts; if it has `continue`, the next one as well.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rule: Vec<Rule>,
}

/// Settings for some requests of a site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Paths to match, with at most one star, which matches anything: `"/about"`, `"/video/*"`,
    /// `"*.m3u8"`.
    pub path: Text<Pattern>,
    /// Scheme to match, `"http"` or `"https"`: that of the connection, even if the client or a
    /// proxy in front writes another. Default: both.
    #[serde(default)]
    pub scheme: Option<Text<Scheme>>,
    /// Versions of HTTP to match, of `"1.1"`, which includes HTTP/1.0, `"2"` and `"3"`. Default:
    /// all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<Text<HttpVersion>>,
    /// Methods to match, of `"GET"`, `"HEAD"` and `"OPTIONS"`. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<Text<Method>>,
    /// Request fields to match, each with a text in which stars match anything, in any case:
    /// `{ Accept = "*image/avif*" }`. With `!` before the text, no line of the field may be like
    /// it: `{ Cookie = "!*" }` matches requests without cookies. Responses of the site have these
    /// fields in `Vary`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub request_fields: BTreeMap<String, String>,
    /// Parameters of the query to match, decoded, in the same form: `{ format = "webp" }`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<String, String>,
    /// Apply the next rule that matches as well, where this one sets nothing: a field for all paths
    /// is then written once. Its `fields`, `early_hints` and `remove_fields` are added to these;
    /// one rule decides about caching, and one redirects, rewrites or answers with an error.
    #[serde(default, rename = "continue")]
    pub continues: bool,
    /// Value of `Cache-Control` in files, redirects and 304 responses.
    #[serde(default)]
    pub cache_control: Option<String>,
    /// Time from `Date` to `Expires` in such responses.
    #[serde(default)]
    pub expires: Option<Text<Time>>,
    /// Additional header fields of every response, each as `"Name: value"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// Links that browsers follow while the response to a navigation is under way, over HTTP/2 and
    /// HTTP/3 (103, RFC 8297), each as a value of `Link`:
    /// `"</style.css>; rel=preload; as=style"`. A 200 has them as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub early_hints: Vec<String>,
    /// Names of the keys, one of which must have signed the URL; other requests get 403.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signed_by: Vec<String>,
    /// Fields of an origin's response that clients do not get: `["X-Powered-By"]`. To replace one,
    /// set it in `fields`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove_fields: Vec<String>,
    /// Redirect for these paths.
    #[serde(default)]
    pub redirect: Option<Redirect>,
    /// Path of the site to serve instead: `"/new/*"`. A star stands for the text that the star of
    /// the rule's path matched. The client keeps its URL, no other rule is looked for, and an
    /// origin gets this path.
    #[serde(default)]
    pub rewrite: Option<Text<Template>>,
    /// Error to answer with, instead of any content.
    #[serde(default)]
    pub error: Option<RuleError>,
    /// Paths of the site to serve with status 200 if the file is missing, the first that exists:
    /// `["/*.html", "/index.html"]`. A star stands for the text that the star of the rule's path
    /// matched. An origin is asked, and a directory listed, if all are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback: Vec<Text<Template>>,
    /// Permissions for pages of other origins (CORS).
    #[serde(default)]
    pub cors: Option<Cors>,
    /// Maximum requests of each client: further ones get 429, with `Retry-After`.
    #[serde(default)]
    pub request_limit: Option<RequestLimit>,
    /// Send rate of files.
    #[serde(default)]
    pub pace: Option<Pace>,
    /// Whether to list directories that have no index. Default: as in the site.
    #[serde(default)]
    pub listing: Option<bool>,
    /// Continue downloads when their file grows, up to its size at their start: for logs and live
    /// recordings, whose writers only append and rewrite nothing.
    #[serde(default)]
    pub append_only: bool,
    /// Origin of missing files: `"https://origin.example"`, or `"off"`. Default: as in the site.
    #[serde(default)]
    pub origin: Option<Text<OriginChoice>>,
}

impl Rule {
    /// The versions to match.
    pub fn versions(&self) -> Versions {
        match &self.versions[..] {
            [] => Versions::ALL,
            versions => versions.iter().map(|version| version.0).collect(),
        }
    }
}

/// What browsers remember of a site over TLS: to use it without TLS no more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Hsts {
    /// Time that browsers remember it, such as `"365d"`; `"0s"` makes them forget it.
    pub max_age: Text<Time>,
    /// Apply it to all names below the host's as well.
    #[serde(default)]
    pub include_subdomains: bool,
    /// Consent to lists of sites that are built into browsers. They ask for `include_subdomains`
    /// and a year at least.
    #[serde(default)]
    pub preload: bool,
}

/// How many requests a rule answers of each client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RequestLimit {
    /// Requests per period, evenly: with 60 in a minute, one each second.
    pub requests: NonZeroU32,
    /// The period, such as `"1m"`.
    pub per: Text<Time>,
    /// Requests that a client may make at once after a pause. Default: `requests`.
    #[serde(default)]
    pub burst: Option<NonZeroU32>,
    /// Request field whose value distinguishes clients, such as `"X-Api-Key"`. Default: the
    /// client's address, or the IPv6 network of 64 bits, which counts for requests without the
    /// field as well.
    #[serde(default)]
    pub by: Option<String>,
}

/// An error with which a rule answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RuleError {
    /// Status, from 400 to 599, such as 503 during maintenance, or 410 for content that is gone.
    pub status: u16,
    /// File to send with it, below the site's root. Default: that of `error_pages`.
    #[serde(default)]
    pub page: Option<Text<RelativePath>>,
}

/// Where clients are sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Redirect {
    /// Status: 301 and 308 are permanent, 302, 303 and 307 temporary.
    #[serde(default = "found")]
    pub status: u16,
    /// Path of the same site, or a URL. A star stands for what the star of the rule's path matched.
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
    /// Allowed origins, such as `"https://example.org"`, or `"*"` alone for all.
    pub origins: Vec<String>,
    /// Allow cookies and other credentials; not with `"*"`.
    #[serde(default)]
    pub credentials: bool,
    /// Header fields that a page may set, besides the safelisted ones. Default: `Range` and the
    /// conditional fields.
    #[serde(default)]
    pub request_fields: Option<Vec<String>>,
    /// Header fields that a page may read, besides the safelisted ones. Default: those that media
    /// players need, and `Listing-Truncated`.
    #[serde(default)]
    pub exposed_fields: Option<Vec<String>>,
    /// Time that a browser may cache the preflight response. Default: a day.
    #[serde(default)]
    pub max_age: Option<Text<Time>>,
}

/// How fast files are sent: by `rate`, or by the bit rate of media.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Pace {
    /// Send rate, such as `"8mbit"`.
    pub rate: Option<Text<Rate>>,
    /// With `rate`: amount sent first at full speed, such as `"1M"`.
    pub at_once: Option<Text<Size>>,
    /// Bit rate of the media.
    pub media_rate: Option<Text<Rate>>,
    /// With `media_rate`: send rate in percent of it. Default: 150.
    pub percent: Option<u32>,
    /// With `media_rate`: playing time sent first at full speed. Default: 10s.
    pub ahead: Option<Text<Time>>,
}

impl Pace {
    /// Default send rate, in percent of the media's bit rate.
    pub const PERCENT: u32 = 150;
    /// Default playing time sent first at full speed.
    pub const AHEAD: Time = Time::from_secs(10);
}
