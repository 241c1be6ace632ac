//! Generates the reference of all keys, `docs/config.md`, and the JSON schema,
//! `docs/config.schema.json`, from the types.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;

use super::Config;
use super::forms::time_above_zero;
use super::ranges;
use super::text::Time;

/// Marks around the generated part of `docs/config.md`.
const BEGIN: &str =
    "<!-- made from the types: UPDATE_CONFIG=1 cargo test -p splitway-config reference -->\n";
const END: &str = "<!-- end -->\n";

fn in_tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn schema() -> Value {
    let schema = schemars::schema_for!(Config);
    let mut schema = serde_json::to_value(schema).unwrap();
    let (numbers, times) = ranges::all();
    for (key, least, most) in numbers {
        let property = property(&mut schema, key);
        property.insert("minimum".to_owned(), (*least).into());
        property.insert("maximum".to_owned(), (*most).into());
    }
    for (key, least, _) in times {
        if *least >= Time::LEAST {
            property(&mut schema, key).insert("pattern".to_owned(), time_above_zero().into());
        }
    }
    let statuses = ranges::REDIRECT_STATUSES.to_vec();
    for key in ["site.rule.redirect.status", "site.https_redirect"] {
        let property = property(&mut schema, key);
        property.insert("enum".to_owned(), statuses.clone().into());
    }
    for (key, pattern) in [
        ("operation.admin", "^(\\[.+\\]|[0-9.]+):[0-9]+$"),
        ("proxy.via", "^[A-Za-z0-9._-]+$"),
        ("proxy.pool.check_path", "^/"),
    ] {
        property(&mut schema, key).insert("pattern".to_owned(), pattern.into());
    }
    let name = property(&mut schema, "proxy.pool.name");
    name.insert("minLength".to_owned(), 1.into());
    name.insert("maxLength".to_owned(), crate::proxy::POOL_NAME_MAX.into());
    schema
}

/// The schema of a key.
fn property<'a>(all: &'a mut Value, key: &str) -> &'a mut serde_json::Map<String, Value> {
    let mut pointer = String::new();
    for name in key.split('.') {
        let next = format!("{pointer}/properties/{name}");
        let found = all.pointer(&next).unwrap_or_else(|| panic!("{key}"));
        let reference = [
            &found["$ref"],
            &found["items"]["$ref"],
            &found["anyOf"][0]["$ref"],
        ]
        .into_iter()
        .find_map(Value::as_str);
        pointer = match reference {
            Some(reference) => reference.trim_start_matches('#').to_owned(),
            None => next,
        };
    }
    all.pointer_mut(&pointer).unwrap().as_object_mut().unwrap()
}

/// Fails unless the file holds this text; with `UPDATE_CONFIG`, writes it first.
fn holds(path: &str, text: &str) {
    let path = in_tree(path);
    if std::env::var_os("UPDATE_CONFIG").is_some() {
        fs::write(&path, text).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "{} is out of date: UPDATE_CONFIG=1 cargo test -p splitway-config reference",
        path.display()
    );
}

/// A table of the configuration, or an array of tables.
struct Table<'a> {
    /// Name of the table, such as `site.rule`.
    path: String,
    is_array: bool,
    about: &'a str,
    schema: &'a Value,
}

/// Resolves references of a property; also returns whether it is an array.
fn resolved<'a>(all: &'a Value, property: &'a Value) -> (&'a Value, bool) {
    let reference = property["$ref"].as_str();
    if let Some(name) = reference.and_then(|reference| reference.strip_prefix("#/$defs/")) {
        return (&all["$defs"][name], false);
    }
    if let Some(options) = property["anyOf"].as_array() {
        return resolved(all, &options[0]);
    }
    if property["items"]["$ref"].is_string() {
        (resolved(all, &property["items"]).0, true)
    } else {
        (property, false)
    }
}

/// All tables, each after the one in which it stands.
fn tables<'a>(all: &'a Value, path: &str, schema: &'a Value, found: &mut Vec<Table<'a>>) {
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        let (schema, is_array) = resolved(all, property);
        let is_table = schema["properties"].is_object();
        let is_named = path.is_empty() && schema["additionalProperties"].is_object();
        if !(is_table || is_named) {
            continue;
        }
        let path = match path {
            "" => key.clone(),
            _ => format!("{path}.{key}"),
        };
        found.push(Table {
            path: path.clone(),
            is_array,
            about: property["description"].as_str().unwrap_or_default(),
            schema,
        });
        tables(all, &path, schema, found);
    }
}

fn kind(property: &Value) -> String {
    if let Some(values) = property["enum"].as_array() {
        let values = values.iter().filter(|value| !value.is_null());
        let values: Vec<String> = values.map(|value| format!("`{value}`")).collect();
        return values.join(", ");
    }
    let named = match &property["type"] {
        Value::Array(names) => names[0].as_str(),
        name => name.as_str(),
    };
    match named {
        Some("array") => format!("list of {}", kind(&property["items"])),
        Some("object") => format!("table of {}", kind(&property["additionalProperties"])),
        Some("string") => "string".to_owned(),
        Some("integer") => "integer".to_owned(),
        Some("boolean") => "boolean".to_owned(),
        _ => "string".to_owned(),
    }
}

/// Whether a reload applies a changed key: the last property on its path with `x-reload` decides.
fn is_reloaded(all: &Value, key: &str) -> bool {
    let mut schema = all;
    let mut is_reloaded = true;
    for name in key.split('.') {
        let property = &schema["properties"][name];
        is_reloaded = property["x-reload"].as_bool().unwrap_or(is_reloaded);
        schema = resolved(all, property).0;
    }
    is_reloaded
}

/// The keys of a table, a row of each.
fn rows(all: &Value, table: &Table<'_>) -> String {
    let mut text = String::new();
    let required: Vec<&Value> = table.schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    for (key, property) in table.schema["properties"].as_object().into_iter().flatten() {
        let (schema, _) = resolved(all, property);
        if schema["properties"].is_object() {
            continue;
        }
        let default = match &property["default"] {
            _ if required.contains(&&Value::from(key.as_str())) => "required".to_owned(),
            Value::Null => String::new(),
            Value::Array(list) if list.is_empty() => String::new(),
            Value::Object(_) => String::new(),
            value => format!("`{value}`"),
        };
        let about = property["description"]
            .as_str()
            .unwrap_or_default()
            .replace('\n', " ");
        let reload = if is_reloaded(all, &format!("{}.{key}", table.path)) {
            "yes"
        } else {
            "restart"
        };
        let _ = writeln!(
            text,
            "| `{key}` | {} | {default} | {reload} | {about} |",
            kind(property)
        );
    }
    text
}

/// The part of the reference that is made from the types.
fn reference() -> String {
    let all = schema();
    let mut found = Vec::new();
    tables(&all, "", &all, &mut found);
    let mut text = String::new();
    for table in &found {
        let path = &table.path;
        let heading = if table.is_array {
            format!("[[{path}]]")
        } else {
            format!("[{path}]")
        };
        let _ = writeln!(
            text,
            "\n### `{heading}`\n\n{}\n",
            table.about.replace('\n', " ")
        );
        let rows = rows(&all, table);
        if !rows.is_empty() {
            let _ = write!(
                text,
                "| Key | Type | Default | Reload | Meaning |\n|---|---|---|---|---|\n{rows}"
            );
        }
    }
    text.push('\n');
    text
}

#[test]
fn the_reference_names_every_key() {
    let path = "docs/config.md";
    let found = fs::read_to_string(in_tree(path)).unwrap();
    let (before, rest) = found.split_once(BEGIN).expect("where the keys begin");
    let (_, after) = rest.split_once(END).expect("where they end");
    holds(path, &format!("{before}{BEGIN}{}{END}{after}", reference()));
}

#[test]
fn the_schema_is_that_of_the_types() {
    let text = serde_json::to_string_pretty(&schema()).unwrap();
    holds("docs/config.schema.json", &(text + "\n"));
}

#[test]
fn the_examples_have_all_sections() {
    let sections = schema();
    let sections = sections["properties"].as_object().unwrap().keys();
    let names = |path: &str| -> Vec<String> {
        let text = fs::read_to_string(in_tree(path)).unwrap();
        let lines = text.lines().map(|line| line.trim_start_matches("#: "));
        let headings = lines.filter_map(|line| line.strip_prefix('['));
        let name = |heading: &str| {
            let name = heading.trim_start_matches('[');
            name.split([']', '.']).next().unwrap().to_owned()
        };
        headings.map(name).collect()
    };
    let (server, proxy) = (names("deploy/splitway.toml"), names("deploy/proxy.toml"));
    for section in sections {
        let example = if section == "proxy" { &proxy } else { &server };
        assert!(example.contains(section), "{section} is in no example");
    }
}

#[test]
fn the_examples_make_sense() {
    for path in ["deploy/splitway.toml", "deploy/proxy.toml"] {
        makes_sense(path);
    }
}

fn makes_sense(path: &str) {
    let text = fs::read_to_string(in_tree(path)).unwrap();
    let config: Config = toml::from_str(&text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.problems(), []);
    // The commented-out settings must be valid as well.
    let uncommented: String = text
        .lines()
        .map(|line| {
            line.strip_prefix("#:")
                .map_or(line, str::trim_start)
                .to_owned()
                + "\n"
        })
        .collect();
    let all: Config = toml::from_str(&uncommented).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(all.problems(), []);
    assert_ne!(all, config);
}

/// Errors reported by the schema for a text in TOML.
fn complaints(validator: &jsonschema::Validator, text: &str) -> Vec<String> {
    let table: toml::Table = toml::from_str(text).unwrap_or_else(|error| panic!("{error}"));
    let value = serde_json::to_value(table).unwrap();
    let errors = validator.iter_errors(&value);
    errors.map(|error| error.to_string()).collect()
}

/// Values of a wrong type, or out of bounds.
const WRONG: &[&str] = &[
    "network.share = 'yes'",
    "network.local_ports = 61000",
    "network.local_ports = 'all'",
    "network.mtu = 1279",
    "network.mtu = 65536",
    "network.addresses = ['192.0.2.1']",
    "network.interfaces = 'eth0'",
    "firewall.allow = '10.0.0.0/8'",
    "firewall.deny = ['host']",
    "nic.workers = 0",
    "nic.workers = 65",
    "nic.workers = 'two'",
    "nic.workers_min = 65",
    "nic.cache = '1T'",
    "nic.root = 7",
    "listen = [{ port = 0 }]",
    "listen = [{ port = 70000 }]",
    "listen = [{ tls = true }]",
    "tcp.congestion = 'vegas'",
    "tcp.ecn = 'offer'",
    "tcp.keepalive = '90'",
    "tcp.pacing = 'maybe'",
    "tcp.orphans = 0",
    "tcp.connection_memory = '1.5G'",
    "tls.versions = ['1.1']",
    "tls.ciphers = ['3des']",
    "tls.key_records = 15",
    "quic.idle_timeout = '0s'",
    "quic.receive = 'both'",
    "quic.preferred_addresses = ['host']",
    "http.ranges_max = 0",
    "http.idle_timeout = 'soon'",
    "http.head_timeout = '0ms'",
    "http.rate_min = '5'",
    "http.rate_per_source = '8mb'",
    "http.precompressed = ['lzma']",
    "http.forwarded = 'both'",
    "http.forwarded_from = ['lb']",
    "listen = [{ port = 80, proxy_protocol_from = ['lb'] }]",
    "origin.variants_max = 1025",
    "origin.urls = ['ftp://a.example']",
    "signing_keys.a = 1",
    "site = [{ names = ['a b'] }]",
    "site = [{ https_redirect = 304 }]",
    "site = [{ hsts = { max_age = '1' } }]",
    "site = [{ hsts = {} }]",
    "site = [{ rule = [{ path = 'a' }] }]",
    "site = [{ rule = [{ path = '/*/*' }] }]",
    "site = [{ rule = [{ path = '*', redirect = { status = 200, to = '/' } }] }]",
    "site = [{ rule = [{ path = '*', expires = '1' }] }]",
    "site = [{ rule = [{ path = '*', scheme = 'ftp' }] }]",
    "site = [{ rule = [{ path = '*', versions = ['1.0'] }] }]",
    "site = [{ rule = [{ path = '*', methods = ['POST'] }] }]",
    "site = [{ rule = [{ path = '*', rewrite = 'x' }] }]",
    "site = [{ rule = [{ path = '*', fallback = '/x' }] }]",
    "site = [{ rule = [{ path = '*', error = { page = 'x' } }] }]",
    "http.media_types = 'text/css'",
    "site = [{ rule = [{ path = '*', request_limit = { requests = 0, per = '1m' } }] }]",
    "site = [{ rule = [{ path = '*', request_limit = { requests = 1 } }] }]",
    "site = [{ rule = [{ expires = '1s' }] }]",
    "sockets.sockets_max = 0",
    "sockets.applications_max = 4097",
    "sockets.offload.setup = 'always'",
    "sockets.allow = [{ listen = ['http'] }]",
    "proxy.forwarded = 'yes'",
    "proxy.connect_timeout = '0s'",
    "proxy.via = ''",
    "proxy.listen = [{ port = 80, mode = 'udp' }]",
    "proxy.pool = [{ name = '' }]",
    "proxy.pool = [{ name = 'a', balance = 'random' }]",
    "proxy.pool = [{ name = 'a', check = 'ping' }]",
    "proxy.pool = [{ name = 'a', check_rise = 0 }]",
    "proxy.pool = [{ name = 'a', protocol = 'h2' }]",
    "proxy.pool = [{ name = 'a', send_proxy = 'v3' }]",
    "proxy.pool = [{ name = 'a', backend = [{ address = 'a' }] }]",
    "logs.level = 'loud'",
    "logs.access_format = 'clf'",
    "operation.admin = 'localhost'",
    "operation.drain_timeout = '5 min'",
];

#[test]
fn the_schema_refuses_wrong_values_that_the_program_refuses() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    for text in WRONG {
        // A proxy needs a port.
        let port = match text.starts_with("proxy.") && !text.starts_with("proxy.listen") {
            true => "proxy.listen = [{ port = 80 }]\n",
            false => "",
        };
        let text = format!("{port}{text}\n");
        assert!(!complaints(&validator, &text).is_empty(), "{text}");
        let (key, _) = text[port.len()..].split_once(" =").unwrap();
        let is_refused = match toml::from_str::<Config>(&text) {
            Ok(config) => {
                let problems = config.problems();
                problems
                    .iter()
                    .any(|problem| problem.place.to_string().starts_with(key))
            }
            Err(_) => true,
        };
        assert!(is_refused, "{text}");
    }
}

#[test]
fn the_schema_accepts_all_that_the_program_accepts() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    // All values that each key may have, one after the other.
    for decision in 0..8u8 {
        let text = file(&[decision; 200]);
        toml::from_str::<Config>(&text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(complaints(&validator, &text), [""; 0], "{text}");
    }
    let examples = fs::read_dir(in_tree("deploy")).unwrap();
    let paths = examples.map(|entry| entry.unwrap().path());
    let mut count = 0;
    for path in paths.filter(|path| path.extension().is_some_and(|it| it == "toml")) {
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(complaints(&validator, &text), [""; 0], "{}", path.display());
        count += 1;
    }
    assert!(count > 0);
    // The printed configuration is complete.
    let printed = Config::default().to_toml().unwrap();
    assert_eq!(complaints(&validator, &printed), [""; 0], "{printed}");
}

#[test]
fn names_in_the_schema_are_those_that_are_read() {
    use super::text::Form;
    fn parse<T: Form + std::str::FromStr>() {
        let form = T::form();
        let names = form["enum"].as_array().into_iter().flatten();
        for name in names.filter_map(Value::as_str) {
            assert!(name.parse::<T>().is_ok(), "{name}");
            assert!(format!("{name}x").parse::<T>().is_err(), "{name}");
        }
    }
    parse::<::proxy::Mode>();
    parse::<::proxy::Forwarded>();
    parse::<server::ForwardedField>();
    parse::<::proxy::Protocol>();
    parse::<::proxy::Version>();
    parse::<observer::AccessFormat>();
    parse::<host::CongestionAlgorithm>();
    parse::<server::Coding>();
    parse::<server::HttpVersion>();
    parse::<server::Scheme>();
    parse::<super::tls_names::VersionName>();
}

type Values = &'static [&'static str];

/// Values that each key may have.
const VALUES: &[(&str, &[(&str, Values)])] = &[
    (
        "[network]",
        &[
            ("interface", &["'eth0'"]),
            ("addresses", &["['192.0.2.1/24', 'fd00::1/64']"]),
            ("gateways", &["['192.0.2.2', 'fd00::2']"]),
            ("share", &["true", "false"]),
            ("local_ports", &["'61000-65535'", "'1'"]),
            ("dad", &["true", "false"]),
            ("mtu", &["1280", "65535"]),
        ],
    ),
    (
        "[firewall]",
        &[
            ("allow", &["['10.0.0.0/8', '::1']"]),
            ("allow_file", &["'/etc/splitway/allow'"]),
            ("deny", &["['192.0.2.7', '2001:db8::/32']"]),
            ("deny_file", &["'/etc/splitway/deny'"]),
        ],
    ),
    (
        "[[listen]]",
        &[
            ("port", &["80"]),
            ("tls", &["true", "false"]),
            ("proxy_protocol_from", &["['10.0.0.0/8', '::1']"]),
        ],
    ),
    (
        "[[listen]]",
        &[
            ("port", &["443"]),
            ("tls", &["true"]),
            ("http3", &["true", "false"]),
        ],
    ),
    (
        "[nic]",
        &[
            ("root", &["'/srv/a b'", "'/\u{e9}'"]),
            ("workers", &["1", "64"]),
            ("workers_min", &["1"]),
            ("cache", &["'512M'", "'2048K'", "'8388609'"]),
            ("attach", &["['/run/x', 'eth:e,02:00:5e:10:00:01']"]),
            ("key_file", &["'/key'"]),
            ("replicas", &["true", "false"]),
        ],
    ),
    (
        "[tcp]",
        &[
            ("congestion", &["'bbr'", "'cubic'"]),
            ("ecn", &["'off'", "'accept'"]),
            ("keepalive", &["'off'", "'90s'", "'168h'", "'30m'"]),
            ("pacing", &["'on'", "'off'"]),
            ("fast_open", &["true", "false"]),
            ("connections_per_source", &["1"]),
            ("orphans", &["7"]),
            ("connection_memory", &["'64M'", "'1048576'"]),
            ("resets_per_second", &["10"]),
            ("echo_replies_per_second", &["1000000"]),
        ],
    ),
    (
        "[tls]",
        &[
            ("versions", &["['1.3']", "['1.2', '1.3']"]),
            ("ciphers", &["['chacha20-poly1305', 'AES-128-GCM']"]),
            ("key_records", &["16"]),
            ("http2", &["true", "false"]),
            ("self_signed", &["true"]),
        ],
    ),
    (
        "[quic]",
        &[
            ("connections_max", &["1", "1000000"]),
            ("retry_above", &["0", "100"]),
            ("idle_timeout", &["'1s'", "'10m'"]),
            ("migration", &["false"]),
            (
                "preferred_addresses",
                &["['192.0.2.7', '2001:db8::7']", "[]"],
            ),
            ("secret_file", &["'/q'"]),
            ("early_data", &["true"]),
            ("receive", &["'nic'"]),
            ("receive_after", &["'1M'", "'1'"]),
        ],
    ),
    (
        "[[tls.certificate]]",
        &[
            ("chain", &["'/a'"]),
            ("key", &["'/b'"]),
            ("ocsp", &["'/c'"]),
        ],
    ),
    (
        "[http]",
        &[
            ("index", &["[]", "['a', 'b/c']"]),
            ("precompressed", &["['zstd', 'br']"]),
            ("listing", &["true"]),
            ("rate_per_connection", &["'1.5mbit'", "'1001bit'"]),
            ("rate_per_source", &["'1000gbit'"]),
            ("head_max", &["'1M'"]),
            ("request_line_max", &["'8001'"]),
            ("body_max", &["'0'"]),
            ("ranges_max", &["1"]),
            ("responses_in_flight_max", &["1000000"]),
            ("http2_streams_max", &["1000"]),
            ("http2_prior_knowledge", &["true", "false"]),
            ("forwarded_from", &["['10.0.0.0/8', '::1']"]),
            ("forwarded", &["'forwarded'", "'x-forwarded-for'"]),
            ("reject_misdirected", &["true", "false"]),
            ("head_timeout", &["'1500ms'"]),
            ("idle_timeout", &["'24h'"]),
            ("stall_timeout", &["'120s'"]),
            ("rate_min", &["'off'", "'8kbit'"]),
            ("rate_period", &["'10s'"]),
            ("media_types", &["{ md = 'text/markdown; charset=utf-8' }"]),
            ("linger_timeout", &["'1d'"]),
            ("linger_max", &["'4G'"]),
        ],
    ),
    (
        "[origin]",
        &[
            (
                "urls",
                &["['http://a.example', '/x/*=https://b.example/c']", "[]"],
            ),
            ("cache_dir", &["'/srv/cache'"]),
            ("cache_max", &["'16M'", "'50G'"]),
            ("variants_max", &["1", "1024"]),
            ("head_max", &["'1K'", "'20K'"]),
            ("fields_max", &["1", "256"]),
            ("ca", &["'/ca'"]),
            ("cache_status", &["true"]),
        ],
    ),
    (
        "[signing_keys]",
        &[("old", &["'/k'"]), ("\"a.b\"", &["'/l'"])],
    ),
    (
        "[[site]]",
        &[
            ("names", &["['a.org', '*.B.org', '[fd00::1]']"]),
            ("root", &["'a/b'"]),
            ("index", &["[]", "['x']"]),
            ("precompressed", &["['gzip']"]),
            ("listing", &["true", "false"]),
            ("origin", &["'https://a.example:8443'", "'off'"]),
            ("https_redirect", &["308", "301"]),
            (
                "hsts",
                &[
                    "{ max_age = '365d', include_subdomains = true, preload = true }",
                    "{ max_age = '0s' }",
                ],
            ),
            (
                "error_pages",
                &["{ 404 = 'e' }", "{ 500 = 'a', '502' = 'b' }"],
            ),
        ],
    ),
    (
        "[[site.rule]]",
        &[
            ("path", &["'/a*'", "'*.m3u8'"]),
            ("scheme", &["'http'", "'https'"]),
            ("versions", &["['2', '3']", "['1.1']"]),
            ("cache_control", &["'no-store'"]),
            ("expires", &["'0s'"]),
            ("fields", &["['A: \"b\"', 'C: d']"]),
            (
                "early_hints",
                &["['</a>; rel=preload', '<https://b>; rel=preconnect']", "[]"],
            ),
            ("signed_by", &["['old']"]),
            ("listing", &["true", "false"]),
            ("append_only", &["true"]),
            (
                "redirect",
                &["{ to = '/x/*' }", "{ status = 308, to = 'https://a.org' }"],
            ),
            (
                "cors",
                &[
                    "{ origins = ['*'], exposed_fields = [] }",
                    "{ origins = ['https://a'], credentials = true, request_fields = ['X'], \
                     max_age = '1m' }",
                ],
            ),
            (
                "pace",
                &[
                    "{ rate = '1mbit', at_once = '1M' }",
                    "{ media_rate = '2mbit', percent = 90, ahead = '3s' }",
                ],
            ),
            ("origin", &["'off'", "'http://[fd00::1]/base'"]),
        ],
    ),
    (
        "[[site.rule]]",
        &[
            ("path", &["'/old/*'"]),
            ("methods", &["['GET', 'HEAD']", "['OPTIONS']"]),
            (
                "request_fields",
                &["{ Accept = '*image/avif*', Cookie = '!*' }"],
            ),
            ("query", &["{ v = '*', 'a b' = '' }"]),
            ("continue", &["true", "false"]),
            ("rewrite", &["'/new/*'", "'/'"]),
            ("fallback", &["['/*.html', '/index.html']", "[]"]),
            ("remove_fields", &["['X-Powered-By']"]),
            (
                "request_limit",
                &[
                    "{ requests = 60, per = '1m' }",
                    "{ requests = 1, per = '1d', burst = 5, by = 'X-Api-Key' }",
                ],
            ),
        ],
    ),
    (
        "[[site.rule]]",
        &[
            ("path", &["'*'"]),
            (
                "error",
                &["{ status = 503, page = 'down.html' }", "{ status = 410 }"],
            ),
        ],
    ),
    (
        "[[site]]",
        &[("names", &["['second']"]), ("origin", &["'off'"])],
    ),
    (
        "[sockets]",
        &[
            ("path", &["'/run/s'"]),
            ("sockets_max", &["1", "1048576"]),
            ("listeners_max", &["0", "7"]),
            ("bindings_max", &["0", "7"]),
            ("segment", &["'64M'", "'1G'"]),
            ("files_max", &["0", "7"]),
            ("source_share_percent", &["1", "100"]),
            ("messages_per_turn", &["1"]),
            ("turn_us_max", &["50"]),
            ("applications_max", &["1"]),
            ("applications_per_user_max", &["1"]),
            ("processes_max", &["1"]),
        ],
    ),
    (
        "[[sockets.allow]]",
        &[
            ("user", &["'www-data'", "'1000'"]),
            ("group", &["'33'"]),
            ("listen", &["[]", "['80', '8000-8999']"]),
            ("addresses", &["['10.77.0.0/24', 'fd77::2']"]),
            ("connect", &["true", "false"]),
        ],
    ),
    ("[[sockets.allow]]", &[("connect", &["false"])]),
    (
        "[sockets.offload]",
        &[
            ("setup", &["true", "false", "'on-request'"]),
            ("teardown", &["true", "false", "'on-request'"]),
        ],
    ),
    (
        "[proxy]",
        &[
            ("head_max", &["'8K'"]),
            ("request_line_max", &["'4K'"]),
            ("http2_streams_max", &["1000"]),
            ("connect_timeout", &["'500ms'"]),
            ("head_timeout", &["'2s'"]),
            ("keepalive_timeout", &["'2s'"]),
            ("response_timeout", &["'2s'"]),
            ("idle_timeout", &["'2s'"]),
            ("rate_min", &["'off'", "'8kbit'"]),
            ("rate_period", &["'10s'"]),
            ("tunnel_timeout", &["'2d'"]),
            ("splice", &["true", "false"]),
            ("backend_idle_timeout", &["'2s'"]),
            ("resolve_interval", &["'2s'"]),
            ("forwarded", &["'off'", "'forwarded'", "'both'"]),
            ("via", &["'edge'"]),
        ],
    ),
    (
        "[[proxy.listen]]",
        &[
            ("port", &["80"]),
            ("mode", &["'tcp'", "'http'"]),
            ("pool", &["'web'"]),
            ("http2_prior_knowledge", &["false"]),
            ("proxy_protocol_from", &["['10.0.0.0/8', '::1']"]),
        ],
    ),
    (
        "[[proxy.listen]]",
        &[("port", &["443"]), ("tls", &["true", "false"])],
    ),
    (
        "[[proxy.rule]]",
        &[
            ("pool", &["'web'"]),
            ("ports", &["[80]"]),
            ("hosts", &["['a.org', '*.b.org']"]),
            ("path_prefixes", &["['/api/']"]),
        ],
    ),
    (
        "[[proxy.pool]]",
        &[
            ("name", &["'web'"]),
            (
                "balance",
                &["'least-connections'", "'maglev-header:x-user'"],
            ),
            ("protocol", &["'h2c'"]),
            ("send_proxy", &["'v1'", "'v2'"]),
            ("connections_max", &["7"]),
            ("idle_max", &["0"]),
            ("queue_max", &["0"]),
            ("queue_timeout", &["'2s'"]),
            ("request_buffer", &["'0'", "'128K'"]),
            ("evict_after", &["'0s'", "'200ms'"]),
            ("retries", &["0"]),
            ("eject_failures", &["0"]),
            ("eject_time", &["'2s'"]),
            ("check", &["'tcp'", "'http'"]),
            ("check_path", &["'/health'"]),
            ("check_host", &["'a.org'"]),
            ("check_statuses", &["'204'", "'200-299'"]),
            ("check_interval", &["'1s'"]),
            ("check_timeout", &["'1s'"]),
            ("check_rise", &["1"]),
            ("check_fall", &["1"]),
        ],
    ),
    (
        "[[proxy.pool.backend]]",
        &[
            (
                "address",
                &["'192.0.2.7:80'", "'[fd00::1]:80'", "'a.internal:80'"],
            ),
            ("drain", &["true", "false"]),
        ],
    ),
    (
        "[logs]",
        &[
            ("level", &["'error'", "'trace'"]),
            ("access", &["'-'", "'/a'"]),
            ("access_format", &["'json'", "'combined-cache'"]),
            ("error", &["'/e'"]),
        ],
    ),
    (
        "[operation]",
        &[
            ("control_socket", &["'/run/c'"]),
            ("admin", &["'127.0.0.1:9180'", "'[::1]:1'"]),
            ("drain_timeout", &["'0s'", "'90m'"]),
            ("heartbeat", &["'0s'", "'700ms'"]),
        ],
    ),
];

/// Required keys of their tables.
const REQUIRED: [&str; 7] = ["port", "chain", "key", "path", "pool", "name", "address"];

/// A file with some of these values: one decision for each key.
fn file(decisions: &[u8]) -> String {
    let mut decisions = decisions.iter().copied().chain(std::iter::repeat(0));
    let mut decide = || usize::from(decisions.next().unwrap_or_default());
    let mut text = String::new();
    for (table, keys) in VALUES {
        let has_tables = ["[[site]]", "[[proxy.pool]]"].contains(table);
        if decide() % 4 == 3 && !has_tables {
            continue;
        }
        let _ = writeln!(text, "{table}");
        for (key, values) in *keys {
            let decision = decide();
            if decision % 2 == 0 || REQUIRED.contains(key) {
                let _ = writeln!(text, "{key} = {}", values[decision / 2 % values.len()]);
            }
        }
    }
    text
}

#[test]
fn the_reference_tells_what_a_reload_changes() {
    let all = schema();
    // A certificate, without which the whole of `tls` stays, and an origin, whose fetcher stays.
    let common = "[[tls.certificate]]\nchain = '/c'\nkey = '/k'\n";
    let origin = "[origin]\nurls = ['http://z.example']\n";
    for (table, keys) in VALUES.iter().filter(|(table, _)| !table.starts_with("[[")) {
        let path = table.trim_matches(['[', ']']);
        for (key, values) in keys.iter().filter(|(key, _)| *key != "urls") {
            let name = format!("{path}.{key}");
            for value in *values {
                let (header, origin) = match path {
                    "origin" => (origin.to_owned(), ""),
                    _ => (format!("[{path}]\n"), origin),
                };
                let parse = |text: &str| toml::from_str::<Config>(text).unwrap();
                let old = parse(&format!("{header}{origin}{common}"));
                let mut new = parse(&format!("{header}{key} = {value}\n{origin}{common}"));
                if new == old {
                    continue;
                }
                let kept = new.keep_until_restart(&old).unwrap();
                assert_eq!(
                    kept.is_empty(),
                    is_reloaded(&all, &name),
                    "{name} = {value}: {kept:?}"
                );
            }
        }
    }
}

#[test]
fn every_key_is_tried() {
    let all = schema();
    let mut found = Vec::new();
    tables(&all, "", &all, &mut found);
    for table in found {
        let keys = table.schema["properties"].as_object();
        for key in keys.into_iter().flatten().map(|(key, _)| key) {
            let mut tables = VALUES.iter().flat_map(|(_, keys)| *keys);
            let is_tried = tables.any(|(tried, values)| {
                tried == key
                    || values
                        .iter()
                        .any(|value| value.contains(&format!("{key} =")))
            });
            let is_table = VALUES
                .iter()
                .any(|(name, _)| name.trim_matches(['[', ']']) == format!("{}.{key}", table.path));
            assert!(is_tried || is_table, "{}.{key}", table.path);
        }
    }
}

proptest! {
    #[test]
    fn what_is_printed_says_the_same(decisions in vec(any::<u8>(), 0..120)) {
        let text = file(&decisions);
        let config: Config = toml::from_str(&text)
            .map_err(|error| TestCaseError::fail(format!("{text}{error}")))?;
        let printed = config.to_toml().unwrap();
        let again: Config = toml::from_str(&printed)
            .map_err(|error| TestCaseError::fail(format!("{printed}{error}")))?;
        prop_assert_eq!(&again, &config, "{}", printed);
        prop_assert_eq!(again.to_toml().unwrap(), printed);
    }
}
