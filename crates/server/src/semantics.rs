//! From a request to a response, in any version of HTTP (RFC 9110): sites and rules, conditions,
//! ranges, variants, listings, origins. It never imports a codec, nor `exchange`.

pub(crate) mod answer;
pub(crate) mod attempt;
pub(crate) mod conditional;
pub(crate) mod content;
pub(crate) mod cors;
pub(crate) mod criteria;
pub(crate) mod date;
pub(crate) mod early_hints;
pub(crate) mod encoding;
pub(crate) mod etag;
pub(crate) mod fields;
pub(crate) mod glob;
pub(crate) mod hsts;
pub(crate) mod joined_rules;
pub(crate) mod listing;
pub(crate) mod method;
pub(crate) mod mime;
pub(crate) mod open_failure;
pub(crate) mod passed;
pub(crate) mod pattern;
pub(crate) mod pull;
pub(crate) mod range;
pub(crate) mod rate;
pub(crate) mod redirect;
pub(crate) mod relative_path;
pub(crate) mod request_limit;
pub(crate) mod rule;
pub(crate) mod scheme;
pub(crate) mod signed;
pub(crate) mod site;
pub(crate) mod target;
pub(crate) mod template;
pub(crate) mod versions;
