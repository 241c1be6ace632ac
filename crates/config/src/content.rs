//! The host process's part of the configuration about HTTP: sites, rules, limits, and the secrets
//! of signed URLs and of QUIC.

use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};
use std::path::Path;
use std::sync::Arc;

use ::http::{HeaderName, HeaderValue, StatusCode};
use failure::Failure;
use host::{HeaderPort, Proxies, QuicSecret};
use netem::conditions::Rate;
use origin::OriginUrl;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use server::{EarlyHint, ExtraField, Prefix, Pull, RulePull, Scheme, SigningKeys};
use zeroize::Zeroizing;

use super::place::{Place, Problem};
use super::ranges::{check_number, check_time};
use super::site::{Cors, Hsts, Pace, Redirect, Rule, Site};
use super::text::{Text, Time};
use super::{Config, Http, Listen, Origin, file};
use crate::key_file::{self, SecretBytes};
use crate::origin_place::{CachePlace, OriginChoice};
use crate::size::Size;
use crate::socket_values::AddressRange;

/// The part that is sent to the host process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Content {
    http: Http,
    origin: Origin,
    /// Place of the origin cache, if there are origins.
    cache: Option<CachePlace>,
    site: Vec<Site>,
    replicas: bool,
    http3_port: Option<NonZeroU16>,
    listen: Vec<Listen>,
    /// Port of redirects to `https`.
    https_port: Option<NonZeroU16>,
    secrets: BTreeMap<String, Secret>,
    quic_secret: Option<Secret>,
}

/// A secret of signed URLs or of QUIC. No message or print shows it.
#[derive(Clone, PartialEq, Eq)]
struct Secret(Zeroizing<Vec<u8>>);

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_slice().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(|bytes| Secret(Zeroizing::new(bytes)))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Most sites, and most rules of a site: they have 16-bit numbers.
const COUNT_MAX: usize = u16::MAX as usize;

/// Largest limit of a request head: more than any request needs, and still little per connection.
const HEAD_MAX: Size = Size(1 << 20);

impl Content {
    /// Reads the secrets from their files, and adds the place of the origin cache.
    pub fn read(config: &Config, cache: Option<&CachePlace>) -> Result<Self, Failure> {
        let mut content = Self::new(config, |name, path| {
            read_secret(path)
                .map_err(|failure| Failure::input(format!("signing key {name:?}"), failure))
        })?;
        content.cache = cache.cloned();
        // A secret may be unusable.
        let problems = content.server_config().err().unwrap_or_default();
        file::failure(&problems).map_or(Ok(content), Err)
    }

    /// Failures of all unreadable or unusable keys for signed URLs.
    pub fn wrong_secrets(config: &Config) -> Vec<Failure> {
        let wrong = config.signing_keys.iter().filter_map(|(name, path)| {
            let what = format!("signing key {name:?}");
            match read_secret(path) {
                Err(failure) => Some(Failure::input(what, failure)),
                Ok(secret) => {
                    let added = SigningKeys::default().add(name, &secret);
                    added.err().map(|error| Failure::input(what, error))
                }
            }
        });
        wrong.collect()
    }

    /// [`Content::read`] with placeholders for the secrets.
    pub fn without_secrets(config: &Config) -> Self {
        let any =
            |_: &str, _: &Path| Ok::<_, std::convert::Infallible>(Zeroizing::new(vec![0; 32]));
        let Ok(content) = Self::new(config, any);
        content
    }

    fn new<E>(
        config: &Config,
        secret: impl Fn(&str, &Path) -> Result<Zeroizing<Vec<u8>>, E>,
    ) -> Result<Self, E> {
        let secrets = config.signing_keys.iter();
        let secrets = secrets.map(|(name, path)| Ok((name.clone(), Secret(secret(name, path)?))));
        Ok(Self {
            http: config.http.clone(),
            origin: config.origin.clone(),
            cache: None,
            site: config.site.clone(),
            replicas: config.nic.replicas,
            http3_port: config.http3_ports().next(),
            listen: config.listen.clone(),
            https_port: config.https_port(),
            secrets: secrets.collect::<Result<_, E>>()?,
            quic_secret: None,
        })
    }

    /// Adds the result of [`Quic::secret`](super::Quic::secret).
    pub fn with_quic_secret(mut self, secret: Option<&SecretBytes>) -> Self {
        self.quic_secret = secret.map(|secret| Secret(Zeroizing::new(secret.to_vec())));
        self
    }

    /// The secret of QUIC, if there is one.
    pub fn quic_secret(&self) -> Option<QuicSecret> {
        let Secret(secret) = self.quic_secret.as_ref()?;
        Some(QuicSecret::new(secret.as_slice().try_into().ok()?))
    }

    /// Place of the origin cache, if there are origins.
    pub fn cache(&self) -> Option<&CachePlace> {
        self.cache.as_ref()
    }

    /// The proxies in front of the server.
    pub fn proxies(&self) -> Proxies {
        let listens = self.listen.iter();
        let ports = listens.filter(|listen| !listen.proxy_protocol_from.is_empty());
        let ports = ports.map(|listen| HeaderPort {
            port: listen.port.get(),
            networks: networks(&listen.proxy_protocol_from),
            timeout: self.http.head_timeout.0.0,
        });
        Proxies {
            header_ports: ports.collect(),
            forwarding: networks(&self.http.forwarded_from),
        }
    }

    /// The server's configuration, or all problems.
    pub fn server_config(&self) -> Result<server::Config, Vec<Problem>> {
        let mut problems = Vec::new();
        let http = &self.http;
        self.check_limits(&mut problems);
        let bytes = |Text(Size(bytes)): Text<Size>| usize::try_from(bytes).unwrap_or(usize::MAX);
        let keys = self.keys(&mut problems);
        let whole = [Site::default()];
        let sites = if self.site.is_empty() {
            &whole[..]
        } else {
            &self.site
        };
        self.check_names(&mut problems);
        let hidden = self.cache.as_ref().map(|it| it.directory(origin::OBJECTS));
        let hidden = hidden.transpose().unwrap_or_else(|error| {
            let place = Place::of("origin").key("cache_dir");
            problems.push(Problem::new(place, error));
            None
        });
        let sites = sites.iter().enumerate();
        let sites = sites.map(|(number, site)| {
            self.lower_site(site, &Place::of("site").index(number), &keys, &mut problems)
        });
        let config = server::Config {
            hidden,
            files_come_first: self.cache.as_ref().is_none_or(|it| it.is_among_files),
            cache_status: self.origin.cache_status,
            sites: sites.collect(),
            head_bytes_max: bytes(http.head_max),
            request_line_bytes_max: bytes(http.request_line_max),
            body_bytes_max: http.body_max.0.0,
            ranges_max: http.ranges_max as usize,
            roots_are_replicas: self.replicas,
            http3_port: self.http3_port,
            connection_bytes_per_second_max: http.rate_per_connection.and_then(bytes_per_second),
            source_bytes_per_second_max: http.rate_per_source.and_then(bytes_per_second),
            responses_in_flight_max: http.responses_in_flight_max as usize,
            http2_streams_max: http.http2_streams_max,
            http2_prior_knowledge: http.http2_prior_knowledge,
            forwarded_from: networks(&http.forwarded_from),
            forwarded: http.forwarded.0,
            rejects_misdirected: http.reject_misdirected,
            head_timeout: http.head_timeout.0.0,
            idle_timeout: http.idle_timeout.0.0,
            stall_timeout: http.stall_timeout.0.0,
            bytes_per_second_min: http.rate_min.0.0,
            rate_period: http.rate_period.0.0,
            linger_timeout: http.linger_timeout.0.0,
            linger_bytes_max: http.linger_max.0.0,
        };
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(problems)
        }
    }

    fn check_limits(&self, problems: &mut Vec<Problem>) {
        let http = &self.http;
        let here = |key: &str| Place::of("http").key(key);
        for (key, Text(size)) in [
            ("head_max", http.head_max),
            ("request_line_max", http.request_line_max),
        ] {
            if !(1..=HEAD_MAX.0).contains(&size.0) {
                let why = format!("{size} is not from 1 byte to {HEAD_MAX}");
                problems.push(Problem::new(here(key), why));
            }
        }
        for (key, number) in [
            ("ranges_max", http.ranges_max),
            ("responses_in_flight_max", http.responses_in_flight_max),
            ("http2_streams_max", http.http2_streams_max),
        ] {
            let name = format!("http.{key}");
            check_number(here(key), &name, number.into(), problems);
        }
        for (key, time) in [
            ("head_timeout", http.head_timeout),
            ("idle_timeout", http.idle_timeout),
            ("stall_timeout", http.stall_timeout),
            ("rate_period", http.rate_period),
            ("linger_timeout", http.linger_timeout),
        ] {
            check_time(here(key), &format!("http.{key}"), time, problems);
        }
        check_index(&http.index, here("index"), problems);
    }

    fn keys(&self, problems: &mut Vec<Problem>) -> BTreeMap<&str, SigningKeys> {
        let mut all = BTreeMap::new();
        for (name, Secret(secret)) in &self.secrets {
            let mut keys = SigningKeys::default();
            match keys.add(name, secret) {
                Ok(()) => {
                    all.insert(name.as_str(), keys);
                }
                Err(error) => {
                    problems.push(Problem::new(Place::of("signing_keys").key(name), error));
                }
            }
        }
        all
    }

    fn check_names(&self, problems: &mut Vec<Problem>) {
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        for (number, site) in self.site.iter().enumerate() {
            let place = Place::of("site").index(number);
            if number > 0 && site.names.is_empty() {
                let why = "a site without names is never found: only the first one serves what is \
                    asked of none";
                problems.push(Problem::new(place.clone(), why).remedy("Give it names = [\"…\"]."));
            }
            for (at, Text(name)) in site.names.iter().enumerate() {
                if let Some(other) = known.insert(name.to_string(), number) {
                    let why = format!("{name} is a name of site {} already", other + 1);
                    problems.push(Problem::new(place.key("names").index(at), why));
                }
            }
        }
        if self.site.len() > COUNT_MAX {
            problems.push(Problem::new(
                Place::of("site"),
                format!("more than {COUNT_MAX} sites"),
            ));
        }
    }

    fn lower_site(
        &self,
        site: &Site,
        place: &Place,
        keys: &BTreeMap<&str, SigningKeys>,
        problems: &mut Vec<Problem>,
    ) -> server::Site {
        let mut error_pages = Vec::new();
        for (status, Text(page)) in &site.error_pages {
            let code = StatusCode::from_bytes(status.as_bytes()).ok();
            match code.filter(|code| code.is_client_error() || code.is_server_error()) {
                Some(code) => error_pages.push((code, page.clone())),
                None => {
                    let why =
                        format!("{status} is no status of an error: those are from 400 to 599");
                    problems.push(Problem::new(place.key("error_pages").key(status), why));
                }
            }
        }
        if let Some(index) = &site.index {
            check_index(index, place.key("index"), problems);
        }
        let hsts = site.hsts.map(|hsts| lower_hsts(hsts, place, problems));
        if hsts.is_some() {
            forbid_second_hsts(site, place, problems);
        }
        if site.rule.len() > COUNT_MAX {
            let why = format!("more than {COUNT_MAX} rules");
            problems.push(Problem::new(place.key("rule"), why));
        }
        let rules = site.rule.iter().enumerate();
        let rules =
            rules.map(|(at, rule)| lower_rule(rule, &place.key("rule").index(at), keys, problems));
        let mut rules = rules.collect();
        self.redirect_to_https(site, &mut rules, place, problems);
        let index = site.index.as_ref().unwrap_or(&self.http.index);
        let codings = site
            .precompressed
            .as_ref()
            .unwrap_or(&self.http.precompressed);
        server::Site {
            pulls: self.pulls(site),
            names: site.names.iter().map(|name| name.0.clone()).collect(),
            root: site.root.0.clone(),
            index: index.iter().map(|name| name.0.clone()).collect(),
            precompressed: codings.iter().map(|coding| coding.0).collect(),
            listing: site.listing.unwrap_or(self.http.listing),
            rules,
            error_pages,
            hsts,
        }
    }

    /// Puts the site's redirect to `https` behind the rules for `http`, and before all others.
    fn redirect_to_https(
        &self,
        site: &Site,
        rules: &mut Vec<server::Rule>,
        place: &Place,
        problems: &mut Vec<Problem>,
    ) {
        let Some(status) = site.https_redirect else {
            return;
        };
        let place = place.key("https_redirect");
        let Some(port) = self.https_port else {
            let why = "there is no port with TLS to which clients could be redirected";
            let remedy = "Add one with [[listen]] and tls = true, or leave https_redirect out.";
            problems.push(Problem::new(place, why).remedy(remedy));
            return;
        };
        match server::Redirect::to_https(status, port) {
            Ok(redirect) => {
                let is_of_http = |rule: &mut server::Rule| rule.scheme == Some(Scheme::Http);
                let mut of_http: Vec<_> = rules.extract_if(.., is_of_http).collect();
                let mut rule = server::Rule::new(server::Pattern::all());
                rule.scheme = Some(Scheme::Http);
                rule.redirect = Some(redirect);
                of_http.push(rule);
                rules.splice(..0, of_http);
            }
            Err(error) => problems.push(Problem::new(place, error)),
        }
    }

    /// The origins of a site's missing files.
    fn pulls(&self, site: &Site) -> Vec<Pull> {
        let pull = |pattern: server::Pattern, url: &OriginUrl| Pull {
            pattern,
            origin: Arc::clone(url.text()),
        };
        match &site.origin {
            Some(Text(OriginChoice::Off)) => Vec::new(),
            Some(Text(OriginChoice::Url(url))) => vec![pull(server::Pattern::all(), url)],
            None => {
                let places = self.origin.urls.iter();
                places
                    .map(|Text(place)| {
                        let pattern = place.pattern.clone();
                        pull(pattern.unwrap_or_else(server::Pattern::all), &place.url)
                    })
                    .collect()
            }
        }
    }
}

/// Reads the secret in a file, without the white space around it.
fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let what = format!("file {}", path.display());
    let text = key_file::read_private(
        path,
        &what,
        &format!(
            "Make one: (umask 077; openssl rand -hex 32 > {})",
            path.display()
        ),
        "Anyone who has it can sign URLs",
    )?;
    Ok(Zeroizing::new(text.trim().as_bytes().to_vec()))
}

fn check_index(index: &[Text<server::RelativePath>], place: Place, problems: &mut Vec<Problem>) {
    for (at, Text(name)) in index.iter().enumerate() {
        if name.to_string().is_empty() {
            let why = "a directory is no index: name a file, such as index.html";
            problems.push(Problem::new(place.index(at), why));
        }
    }
}

/// Rates below a byte are rounded up: 0 would mean that there is no bound.
fn bytes_per_second(Text(Rate(bits)): Text<Rate>) -> Option<NonZeroU64> {
    NonZeroU64::new(if bits > 0 { (bits / 8).max(1) } else { 0 })
}

fn lower_rule(
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

fn lower_hsts(hsts: Hsts, place: &Place, problems: &mut Vec<Problem>) -> server::Hsts {
    let Text(Time(max_age)) = hsts.max_age;
    if max_age.subsec_nanos() != 0 {
        let why = format!("{} is not a number of whole seconds", hsts.max_age.0);
        problems.push(Problem::new(place.key("hsts").key("max_age"), why));
    }
    server::Hsts {
        max_age,
        include_subdomains: hsts.include_subdomains,
        preload: hsts.preload,
    }
}

/// RFC 6797 §7.1: a response has one field.
fn forbid_second_hsts(site: &Site, place: &Place, problems: &mut Vec<Problem>) {
    for (number, rule) in site.rule.iter().enumerate() {
        for (at, line) in rule.fields.iter().enumerate() {
            let name = line.split(':').next().unwrap_or_default();
            if name.eq_ignore_ascii_case("strict-transport-security") {
                let place = place.key("rule").index(number).key("fields").index(at);
                let why = "hsts of the site states Strict-Transport-Security already";
                problems.push(Problem::new(place, why).remedy("Leave one of them out."));
            }
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
        let names = names.iter();
        names
            .map(|name| {
                name.parse()
                    .map_err(|_| format!("{name:?} is no name of a header field"))
            })
            .collect()
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

fn networks(ranges: &[Text<AddressRange>]) -> Vec<Prefix> {
    ranges.iter().map(|range| range.0.network()).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lowered(text: &str) -> Result<server::Config, String> {
        let config: Config = toml::from_str(text).unwrap();
        let content = Content::without_secrets(&config);
        content.server_config().map_err(|problems| {
            let problems = problems.iter();
            let lines: Vec<String> = problems
                .map(|problem| format!("{}: {}", problem.place, problem.why))
                .collect();
            lines.join("\n")
        })
    }

    #[test]
    fn nothing_said_is_what_a_server_does_by_itself() {
        let config = lowered("").unwrap();
        assert_eq!(
            format!("{config:?}"),
            format!("{:?}", server::Config::default())
        );
    }

    #[test]
    fn sites_inherit_what_they_do_not_say() {
        let config = lowered(
            "[http]\nindex = [\"a.html\"]\nprecompressed = [\"zstd\"]\n[[site]]\n[[site]]\nnames = \
             [\"b.org\"]\nindex = []\nprecompressed = [\"br\"]",
        )
        .unwrap();
        let indices: Vec<usize> = config.sites.iter().map(|site| site.index.len()).collect();
        assert_eq!(indices, [1, 0]);
        assert_eq!(config.sites[0].precompressed, [server::Coding::Zstd]);
        assert_eq!(config.sites[1].precompressed, [server::Coding::Brotli]);
    }

    #[test]
    fn sites_and_rules_name_origins_of_their_own_or_none() {
        let config = lowered(
            r#"
            [origin]
            urls = ["/vod/*=http://vod.example", "http://all.example/"]
            cache_status = true
            [[site]]
            [[site.rule]]
            path = "/own/*"
            origin = "off"
            [[site.rule]]
            path = "/x"
            origin = "HTTPS://X.example:443"
            [[site.rule]]
            path = "/y"
            [[site]]
            names = ["b.org"]
            origin = "http://b.example/base"
            [[site]]
            names = ["c.org"]
            origin = "off"
            "#,
        )
        .unwrap();
        let [a, b, c] = &config.sites[..] else {
            panic!()
        };
        let urls = |site: &server::Site| -> Vec<String> {
            let pulls = site.pulls.iter();
            pulls.map(|pull| pull.origin.to_string()).collect()
        };
        assert_eq!(urls(a), ["http://vod.example", "http://all.example"]);
        assert_eq!(urls(b), ["http://b.example/base"]);
        assert_eq!(urls(c), [""; 0]);
        let pulls: Vec<_> = a.rules.iter().map(|rule| rule.pull.clone()).collect();
        let from = |url: &str| Some(RulePull::From(url.into()));
        assert_eq!(
            pulls,
            [Some(RulePull::Off), from("https://x.example"), None]
        );
        assert!(config.cache_status && config.files_come_first);
    }

    #[test]
    fn a_rule_can_say_all_that_a_server_can_do() {
        let config = lowered(
            r#"
            [http]
            rate_per_source = "80mbit"
            [signing_keys]
            old = "old.key"
            new = "new.key"
            [[site]]
            error_pages = { 404 = "errors/404.html" }
            [[site.rule]]
            path = "/film/*"
            cache_control = "public"
            expires = "1h"
            fields = ["X-Frame-Options: DENY", "Link: </a>"]
            signed_by = ["old", "new"]
            cors.origins = ["https://a.org"]
            cors.credentials = true
            cors.exposed_fields = ["ETag"]
            cors.max_age = "1m"
            pace = { media_rate = "8mbit", percent = 200, ahead = "2s" }
            [[site.rule]]
            path = "/old/*"
            redirect = { to = "/new/*" }
            pace = { rate = "8mbit", at_once = "1K" }
            "#,
        )
        .unwrap();
        let site = &config.sites[0];
        assert_eq!(
            config.source_bytes_per_second_max,
            NonZeroU64::new(10_000_000)
        );
        assert_eq!(site.error_pages[0].0, StatusCode::NOT_FOUND);
        let [film, old] = &site.rules[..] else {
            panic!()
        };
        assert_eq!(film.fields.len(), 2);
        assert_eq!(format!("{:?}", film.signed), "Some([\"old\", \"new\"])");
        let pace = film.pace.unwrap();
        assert_eq!(
            (pace.bytes_per_second.get(), pace.at_once_bytes),
            (2_000_000, 2_000_000)
        );
        let pace = old.pace.unwrap();
        assert_eq!(
            (pace.bytes_per_second.get(), pace.at_once_bytes),
            (1_000_000, 1024)
        );
        assert!(old.redirect.is_some());
    }

    #[test]
    fn a_redirect_to_https_stands_behind_rules_for_http_alone() {
        let config = lowered(
            r#"
            listen = [{ port = 80 }, { port = 8443, tls = true }, { port = 443, tls = true }]
            [[site]]
            https_redirect = 301
            hsts = { max_age = "1h" }
            [[site.rule]]
            path = "/a"
            [[site.rule]]
            path = "/.well-known/acme-challenge/*"
            scheme = "http"
            [[site.rule]]
            path = "/b"
            scheme = "https"
            "#,
        )
        .unwrap();
        let site = &config.sites[0];
        let shown: Vec<String> = site
            .rules
            .iter()
            .map(|rule| format!("{} {:?}", rule.pattern, rule.scheme))
            .collect();
        assert_eq!(
            shown,
            [
                "/.well-known/acme-challenge/* Some(Http)",
                "/* Some(Http)",
                "/a None",
                "/b Some(Https)"
            ]
        );
        let to_443 = server::Redirect::to_https(301, NonZeroU16::new(443).unwrap());
        assert_eq!(site.rules[1].redirect, to_443.ok());
        assert_eq!(site.hsts.unwrap().max_age.as_secs(), 3600);
    }

    #[test]
    fn early_hints_are_bounded() {
        let with = |hints: &str, count: usize| {
            let hints = vec![hints; count].join(", ");
            lowered(&format!(
                "[[site]]\n[[site.rule]]\npath = '*'\nearly_hints = [{hints}]"
            ))
        };
        let config = with("'</a>; rel=preload'", 16).unwrap();
        assert_eq!(config.sites[0].rules[0].early_hints.len(), 16);
        let long = format!("'</{}>; rel=preload'", "x".repeat(4096));
        for (hint, count) in [("'</a>; rel=preload'", 17), (&long, 1)] {
            let told = with(hint, count).unwrap_err();
            assert!(told.starts_with("site[0].rule[0].early_hints: "), "{told}");
        }
    }

    #[test]
    fn https_and_its_consequences_must_make_sense() {
        let told = lowered(
            r#"
            listen = [{ port = 80 }]
            [[site]]
            https_redirect = 308
            hsts = { max_age = "500ms" }
            [[site.rule]]
            path = "*"
            fields = ["A: b", "strict-transport-security: max-age=1"]
            "#,
        )
        .unwrap_err();
        for complaint in [
            "site[0].https_redirect: there is no port with TLS",
            "site[0].hsts.max_age: 500ms is not a number of whole seconds",
            "site[0].rule[0].fields[1]: hsts of the site states",
        ] {
            assert!(told.contains(complaint), "{complaint}: {told}");
        }
        let wrong = "listen = [{ port = 1, tls = true }]\n[[site]]\nhttps_redirect = 304";
        let told = lowered(wrong).unwrap_err();
        assert!(
            told.starts_with("site[0].https_redirect: 304 is no status"),
            "{told}"
        );
    }

    #[test]
    fn what_cannot_be_is_named_by_its_place_and_all_of_it() {
        let told = lowered(
            r#"
            [http]
            head_max = "0"
            idle_timeout = "0s"
            [signing_keys]
            "a b" = "x"
            [[site]]
            [[site]]
            names = ["a.org"]
            error_pages = { 200 = "x" }
            [[site.rule]]
            path = "*"
            cache_control = "a\nb"
            fields = ["Server: x", "A"]
            early_hints = ["</a>; rel=preload", "/b"]
            signed_by = ["none"]
            redirect = { status = 200, to = "/" }
            cors = { origins = ["*"], credentials = true }
            pace = { rate = "1mbit", percent = 3 }
            [[site]]
            [[site]]
            names = ["A.org"]
            "#,
        )
        .unwrap_err();
        for complaint in [
            "http.head_max: 0 is not from",
            "http.idle_timeout: 0s is not from 1s",
            "signing_keys.a b: a key for signed URLs cannot be named",
            "site[1].error_pages.200: 200 is no status of an error",
            "site[1].rule[0].cache_control: ",
            "site[1].rule[0].fields[0]: the header field Server cannot be added",
            "site[1].rule[0].early_hints[1]: \"/b\" is no early hint",
            "site[1].rule[0].signed_by[0]: there is no key \"none\"",
            "site[1].rule[0].redirect.status: 200 is no status",
            "site[1].rule[0].cors.credentials: ",
            "site[1].rule[0].pace: it is a rate",
            "site[2]: a site without names",
            "site[3].names[0]: a.org is a name of site 2 already",
        ] {
            assert!(told.contains(complaint), "{complaint}: {told}");
        }
    }

    #[test]
    fn secrets_cross_and_are_in_no_message() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        testbed::site::write_secret(&path, "0123456789abcdef0123\n").unwrap();
        let mut config = Config::default();
        config.signing_keys.insert("k".into(), path.clone());
        let content = Content::read(&config, None).unwrap();
        let crossed = serde_json::to_vec(&content).unwrap();
        let crossed: Content = serde_json::from_slice(&crossed).unwrap();
        assert_eq!(crossed, content);
        assert_eq!(*crossed.secrets["k"].0, b"0123456789abcdef0123");
        assert!(!format!("{content:?}").contains("48"), "{content:?}");
        assert!(crossed.quic_secret().is_none());
        let sent = content.with_quic_secret(Some(&Zeroizing::new([48; 32])));
        let crossed = serde_json::to_vec(&sent).unwrap();
        let crossed: Content = serde_json::from_slice(&crossed).unwrap();
        assert_eq!(*crossed.quic_secret.as_ref().unwrap().0, [48; 32]);
        let shown = format!("{crossed:?} {:?}", crossed.quic_secret());
        assert!(!shown.contains("48"), "{shown}");
        std::fs::remove_file(&path).unwrap();
        let failure = Content::read(&config, None).unwrap_err().to_string();
        assert!(
            failure.contains("\"k\"") && failure.contains("openssl rand"),
            "{failure}"
        );
    }
}
