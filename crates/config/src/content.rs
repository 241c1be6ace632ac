//! The host process's part of the configuration about HTTP: sites, rules, limits, and the secrets
//! of signed URLs and of QUIC.

mod lowered_rule;

use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU16, NonZeroU64};
use std::path::Path;
use std::sync::Arc;

use ::http::StatusCode;
use failure::Failure;
use host::{HeaderPort, Proxies, QuicSecret};
use netem::conditions::Rate;
use origin::OriginUrl;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use server::{MediaTypes, Prefix, Pull, Scheme, SigningKeys};
use zeroize::Zeroizing;

use self::lowered_rule::lower_rule;
use super::place::{Place, Problem};
use super::ranges::{check_number, check_time};
use super::site::{Hsts, Site};
use super::text::{Text, Time};
use super::{AccessNetworks, Config, Http, Listen, Origin, file};
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
    access: AccessNetworks,
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
    /// Reads the secrets and networks from their files, and adds the place of the origin cache.
    pub fn read(config: &Config, cache: Option<&CachePlace>) -> Result<Self, Failure> {
        let mut content = Self::new(config, |name, path| {
            read_secret(path)
                .map_err(|failure| Failure::input(format!("signing key {name:?}"), failure))
        })?;
        content.cache = cache.cloned();
        content.access = config.firewall.read()?;
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
            access: AccessNetworks::default(),
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

    /// The networks that may connect, or may not.
    pub fn access(&self) -> &AccessNetworks {
        &self.access
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
        let mut sites: Vec<server::Site> = sites.collect();
        let media_types = Arc::new(self.media_types(&mut problems));
        for site in &mut sites {
            site.media_types = Arc::clone(&media_types);
        }
        let rules = sites.iter_mut().flat_map(|site| &mut site.rules);
        let limits = rules.filter_map(|rule| rule.request_limit.as_mut());
        for (limit, number) in limits.zip(0..) {
            limit.number = number;
        }
        let config = server::Config {
            hidden,
            files_come_first: self.cache.as_ref().is_none_or(|it| it.is_among_files),
            cache_status: self.origin.cache_status,
            sites,
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
            match code.filter(is_error) {
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
            media_types: Arc::default(),
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

    /// The media types of `http`.
    fn media_types(&self, problems: &mut Vec<Problem>) -> MediaTypes {
        let mut types = MediaTypes::default();
        for (extension, name) in &self.http.media_types {
            if let Err(error) = types.add(extension, name) {
                let place = Place::of("http").key("media_types").key(extension);
                problems.push(Problem::new(place, error));
            }
        }
        types
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

/// Whether a response with this status is an error.
fn is_error(status: &StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
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

fn networks(ranges: &[Text<AddressRange>]) -> Vec<Prefix> {
    ranges.iter().map(|range| range.0.network()).collect()
}

#[cfg(test)]
mod tests {
    use server::RulePull;

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

    fn rule_of(text: &str) -> Result<server::Rule, String> {
        let text = format!("[[site]]\n[[site.rule]]\npath = '/old/*'\n{text}");
        Ok(lowered(&text)?.sites[0].rules[0].clone())
    }

    #[test]
    fn rules_have_criteria_and_actions() {
        let rule = rule_of(
            "methods = ['HEAD']\nrequest_fields = { Accept = '*avif*' }\nquery = { v = '!1' }\n\
             continue = true\nrewrite = '/new/*'\nfallback = ['/*.html', '/']\n\
             remove_fields = ['X-Powered-By']",
        )
        .unwrap();
        assert_eq!(rule.criteria.methods, [server::Method::Head]);
        assert_eq!(rule.criteria.fields[0].0.as_str(), "accept");
        assert_eq!(rule.criteria.query[0].1.to_string(), "!1");
        assert!(rule.continues);
        assert_eq!(
            rule.rewrite.map(|to| to.to_string()).as_deref(),
            Some("/new/*")
        );
        let fallback = rule.fallback.unwrap();
        assert_eq!((fallback.paths.len(), fallback.pattern), (2, rule.pattern));
        assert_eq!(rule.removed_fields[0].as_str(), "x-powered-by");
        let rule = rule_of("error = { status = 503, page = 'down.html' }").unwrap();
        let error = rule.error.unwrap();
        assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            error.page.map(|page| page.to_string()).as_deref(),
            Some("down.html")
        );
    }

    #[test]
    fn what_rules_cannot_do_is_named() {
        for (text, key, complaint) in [
            (
                "request_limit = { requests = 1, per = '0s' }",
                "request_limit.per",
                "between 1s",
            ),
            (
                "request_limit = { requests = 1, per = '1s', by = 'a b' }",
                "request_limit.by",
                "no name of a header",
            ),
            (
                "error = { status = 200 }",
                "error.status",
                "200 is no status of an error",
            ),
            (
                "error = { status = 600 }",
                "error.status",
                "600 is no status of an error",
            ),
            (
                "error = { status = 503 }\nrewrite = '/x'",
                "error",
                "the rule has rewrite as well",
            ),
            (
                "rewrite = '/x'\nredirect = { to = '/x' }",
                "rewrite",
                "has redirect as well",
            ),
            (
                "request_fields = { 'a b' = '*' }",
                "request_fields.a b",
                "no name of a header",
            ),
            (
                "remove_fields = ['x', 'a:b']",
                "remove_fields[1]",
                "no name of a header",
            ),
        ] {
            let told = rule_of(text).unwrap_err();
            let place = format!("site[0].rule[0].{key}: ");
            assert!(
                told.starts_with(&place) && told.contains(complaint),
                "{text}: {told}"
            );
        }
        let paths = vec!["'/x'"; 17].join(", ");
        let told = rule_of(&format!("fallback = [{paths}]")).unwrap_err();
        assert!(told.contains("17 paths; there may be 16"), "{told}");
    }

    #[test]
    fn each_limit_of_requests_has_a_number() {
        let rule = "[[site.rule]]\npath = '*'\n";
        let limit = "request_limit = { requests = 60, per = '1m' }\n";
        let text = format!("[[site]]\n{rule}{limit}{rule}[[site]]\nnames = ['b']\n{rule}{limit}");
        let config = lowered(&text).unwrap();
        let rules = config.sites.iter().flat_map(|site| &site.rules);
        let limits = rules.map(|rule| rule.request_limit.as_ref());
        let limits = limits.map(|limit| limit.map(|limit| (limit.number, limit.burst.get())));
        assert_eq!(
            limits.collect::<Vec<_>>(),
            [Some((0, 60)), None, Some((1, 60))]
        );
    }

    #[test]
    fn media_types_are_those_of_every_site() {
        let config = lowered(
            "[http]\nmedia_types = { md = 'text/markdown' }\n[[site]]\n[[site]]\nnames = ['b']",
        )
        .unwrap();
        let [one, two] = &config.sites[..] else {
            panic!("two sites")
        };
        assert_eq!(one.media_types, two.media_types);
        assert_ne!(one.media_types, server::Site::default().media_types);
        let told = lowered("[http]\nmedia_types = { md = 'markdown', '.md' = 'text/x' }");
        let told = told.unwrap_err();
        for place in ["http.media_types.md: ", "http.media_types..md: "] {
            assert!(told.contains(place), "{told}");
        }
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
