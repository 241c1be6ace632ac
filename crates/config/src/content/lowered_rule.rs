//! A rule of a site, as the server has it.

use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderName, HeaderValue, StatusCode};
use netem::conditions::Rate;
use server::{EarlyHint, ExtraField, Glob, RulePull, SigningKeys};

use super::{bytes_per_second, is_error};
use crate::origin_place::OriginChoice;
use crate::place::{Place, Problem};
use crate::site::{Cors, Pace, Redirect, RequestLimit, Rule, RuleError};
use crate::text::{Text, Time};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Most fallbacks of a rule: each is an OPEN.
const FALLBACKS_MAX: usize = 16;

pub(super) fn lower_rule(
    rule: &Rule,
    place: &Place,
    keys: &BTreeMap<&str, SigningKeys>,
    problems: &mut Vec<Problem>,
) -> server::Rule {
    let mut lowered = server::Rule::new(rule.path.0.clone());
    lowered.scheme = rule.scheme.map(|Text(scheme)| scheme);
    lowered.versions = rule.versions();
    let mut wrong = |place: Place, why: &dyn fmt::Display| problems.push(Problem::new(place, why));
    if let Some(value) = &rule.cache_control {
        match HeaderValue::from_str(value) {
            Ok(value) => lowered.cache_control = Some(value),
            Err(_) => wrong(
                place.key("cache_control"),
                &format!("{value:?} is no value of a header field"),
            ),
        }
    }
    lowered.expires = rule.expires.map(|time| time.0.0);
    lowered.listing = rule.listing;
    lowered.growth = host::Growth::from(rule.append_only);
    for (at, line) in rule.fields.iter().enumerate() {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        match ExtraField::new(name, value.trim()) {
            Ok(field) => lowered.fields.push(field),
            Err(error) => wrong(place.key("fields").index(at), &error),
        }
    }
    lowered.early_hints = lower_early_hints(&rule.early_hints, place, &mut wrong);
    lowered.criteria = lower_criteria(rule, place, &mut wrong);
    lowered.continues = rule.continues;
    let limit = rule.request_limit.as_ref();
    lowered.request_limit = limit.map(|limit| lower_request_limit(limit, place, &mut wrong));
    lower_actions(rule, &mut lowered, place, &mut wrong);
    let mut signed = SigningKeys::default();
    for (at, name) in rule.signed_by.iter().enumerate() {
        let added = match keys.get(name.as_str()) {
            Some(key) => signed.extend(key).map_err(|error| error.to_string()),
            None => Err(format!("there is no key {name:?} in signing_keys")),
        };
        if let Err(why) = added {
            wrong(place.key("signed_by").index(at), &why);
        }
    }
    if !rule.signed_by.is_empty() {
        lowered.signed = Some(signed);
    }
    if let Some(cors) = &rule.cors {
        match lower_cors(cors) {
            Ok(cors) => lowered.cors = Some(cors),
            Err((key, why)) => wrong(place.key("cors").key(key), &why),
        }
    }
    lowered.pull = rule.origin.as_ref().map(|Text(choice)| match choice {
        OriginChoice::Off => RulePull::Off,
        OriginChoice::Url(url) => RulePull::From(Arc::clone(url.text())),
    });
    if let Some(pace) = &rule.pace {
        match lower_pace(pace) {
            Ok(pace) => lowered.pace = Some(pace),
            Err(why) => wrong(place.key("pace"), &why),
        }
    }
    lowered
}

fn field_name(name: &str) -> Result<HeaderName, String> {
    name.parse()
        .map_err(|_| format!("{name:?} is no name of a header field"))
}

/// The limit of a rule. Its number is given once all rules are known.
fn lower_request_limit(
    limit: &RequestLimit,
    place: &Place,
    wrong: &mut impl FnMut(Place, &dyn fmt::Display),
) -> server::RequestLimit {
    let Text(Time(per)) = limit.per;
    let place = place.key("request_limit");
    if !(SECOND..=DAY).contains(&per) {
        let why = format!("{} is not between 1s and 1d", limit.per.0);
        wrong(place.key("per"), &why);
    }
    let by = limit
        .by
        .as_ref()
        .map(|name| field_name(name).inspect_err(|why| wrong(place.key("by"), why)));
    server::RequestLimit {
        number: 0,
        requests: limit.requests,
        per,
        burst: limit.burst.unwrap_or(limit.requests),
        by: by.and_then(Result::ok),
    }
}

/// The criteria of a rule besides path, scheme and version.
fn lower_criteria(
    rule: &Rule,
    place: &Place,
    wrong: &mut impl FnMut(Place, &dyn fmt::Display),
) -> server::Criteria {
    let mut criteria = server::Criteria {
        methods: rule.methods.iter().map(|method| method.0).collect(),
        ..server::Criteria::default()
    };
    for (name, value) in &rule.request_fields {
        let Ok(glob) = value.parse::<Glob>();
        match field_name(name) {
            Ok(name) => criteria.fields.push((name, glob)),
            Err(why) => wrong(place.key("request_fields").key(name), &why),
        }
    }
    for (name, value) in &rule.query {
        let Ok(glob) = value.parse::<Glob>();
        criteria.query.push((name.as_str().into(), glob));
    }
    criteria
}

/// Redirect, rewriting, error and fallbacks of a rule, and the fields that it removes.
fn lower_actions(
    rule: &Rule,
    lowered: &mut server::Rule,
    place: &Place,
    wrong: &mut impl FnMut(Place, &dyn fmt::Display),
) {
    let actions = [
        ("redirect", rule.redirect.is_some()),
        ("rewrite", rule.rewrite.is_some()),
        ("error", rule.error.is_some()),
    ];
    let mut used = actions.iter().filter(|(_, is_used)| *is_used);
    if let (Some((first, _)), Some((second, _))) = (used.next(), used.next()) {
        let why = format!("the rule has {first} as well, and can do one of them");
        wrong(place.key(second), &why);
    }
    if let Some(Redirect { status, to }) = &rule.redirect {
        let key = |error: &server::RedirectError| match error {
            server::RedirectError::Status(_) => "status",
            server::RedirectError::To(_) => "to",
        };
        match server::Redirect::new(*status, to) {
            Ok(redirect) => lowered.redirect = Some(redirect),
            Err(error) => wrong(place.key("redirect").key(key(&error)), &error),
        }
    }
    lowered.rewrite = rule.rewrite.as_ref().map(|Text(template)| template.clone());
    if let Some(RuleError { status, page }) = &rule.error {
        let known = StatusCode::from_u16(*status).ok();
        match known.filter(is_error) {
            Some(status) => {
                let page = page.as_ref().map(|Text(page)| page.clone());
                lowered.error = Some(server::RuleError { status, page });
            }
            None => wrong(
                place.key("error").key("status"),
                &format!("{status} is no status of an error: those are 400 to 599"),
            ),
        }
    }
    if rule.fallback.len() > FALLBACKS_MAX {
        let why = format!(
            "{} paths; there may be {FALLBACKS_MAX}",
            rule.fallback.len()
        );
        wrong(place.key("fallback"), &why);
    }
    if !rule.fallback.is_empty() {
        let paths = rule.fallback.iter().map(|Text(template)| template.clone());
        lowered.fallback = Some(server::Fallback {
            pattern: lowered.pattern.clone(),
            paths: paths.take(FALLBACKS_MAX).collect(),
        });
    }
    for (at, name) in rule.remove_fields.iter().enumerate() {
        match field_name(name) {
            Ok(name) => lowered.removed_fields.push(name),
            Err(why) => wrong(place.key("remove_fields").index(at), &why),
        }
    }
}

fn lower_early_hints(
    hints: &[String],
    place: &Place,
    wrong: &mut impl FnMut(Place, &dyn fmt::Display),
) -> Vec<EarlyHint> {
    let place = place.key("early_hints");
    let bytes: usize = hints.iter().map(String::len).sum();
    if hints.len() > server::EARLY_HINTS_MAX || bytes > server::EARLY_HINTS_BYTES_MAX {
        let why = format!(
            "{} hints of {bytes} bytes; a response has at most {} of {} bytes",
            hints.len(),
            server::EARLY_HINTS_MAX,
            server::EARLY_HINTS_BYTES_MAX
        );
        wrong(place.clone(), &why);
    }
    let mut lowered = Vec::new();
    for (at, text) in hints.iter().enumerate() {
        match EarlyHint::new(text) {
            Ok(hint) => lowered.push(hint),
            Err(error) => wrong(place.index(at), &error),
        }
    }
    lowered
}

fn lower_pace(pace: &Pace) -> Result<server::Pace, String> {
    match *pace {
        Pace {
            rate: Some(rate),
            at_once,
            media_rate: None,
            percent: None,
            ahead: None,
        } => Ok(server::Pace {
            bytes_per_second: bytes_per_second(rate).unwrap_or(NonZeroU64::MIN),
            at_once_bytes: at_once.map_or(0, |size| size.0.0),
        }),
        Pace {
            rate: None,
            at_once: None,
            media_rate: Some(Text(Rate(bits))),
            percent,
            ahead,
        } => {
            let percent = NonZeroU32::new(percent.unwrap_or(Pace::PERCENT));
            let percent = percent.ok_or("0 percent of a rate is none")?;
            let Time(ahead) = ahead.map_or(Pace::AHEAD, |ahead| ahead.0);
            let bits = NonZeroU64::new(bits).unwrap_or(NonZeroU64::MIN);
            Ok(server::Pace::of_media(bits, percent, ahead))
        }
        _ => Err(
            "it is a rate, with at_once if wanted, or a media_rate, with percent and ahead if \
             wanted"
                .to_owned(),
        ),
    }
}

fn lower_cors(cors: &Cors) -> Result<server::Cors, (&'static str, String)> {
    let origins: Vec<&str> = cors.origins.iter().map(String::as_str).collect();
    let mut lowered = match origins[..] {
        ["*"] if cors.credentials => {
            let why = "pages of all origins must not be sent credentials: name the origins";
            return Err(("credentials", why.to_owned()));
        }
        ["*"] => server::Cors::any(),
        [] => {
            return Err((
                "origins",
                "there is no origin: write \"*\" for all".to_owned(),
            ));
        }
        _ => server::Cors::these(&origins, cors.credentials)
            .map_err(|error| ("origins", error.to_string()))?,
    };
    let names = |names: &[String]| -> Result<Vec<HeaderName>, String> {
        names.iter().map(|name| field_name(name)).collect()
    };
    if let Some(fields) = &cors.request_fields {
        lowered.request_fields = names(fields).map_err(|why| ("request_fields", why))?;
    }
    if let Some(fields) = &cors.exposed_fields {
        lowered.exposed_fields = names(fields).map_err(|why| ("exposed_fields", why))?;
    }
    if let Some(Text(Time(time))) = cors.max_age {
        lowered.max_age = time;
    }
    Ok(lowered)
}
