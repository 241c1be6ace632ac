//! Applies command-line options over a configuration file.

use std::num::NonZeroU16;
use std::path::Path;

use failure::Failure;

use crate::args::firewall::FirewallOptions;
use crate::args::serve::ServeArgs;
use config::file::{self, ConfigFile};
use config::place::Place;
use config::{Config, Listen, Text};

/// Default HTTP port of browsers.
const HTTP_PORT: NonZeroU16 = NonZeroU16::new(80).expect("it is not zero");

/// Returns the configuration of a command line, read and validated. Files that it names are not
/// opened.
pub(crate) fn load(args: &ServeArgs) -> Result<Config, Failure> {
    let file = args.config.as_deref().map(ConfigFile::read).transpose()?;
    let mut config = match &file {
        Some(file) => file.parse()?,
        None => Config::default(),
    };
    let overridden = lay_over(args, &mut config)?;
    let said = &args.origins;
    let is_in_vain = config.origins().is_empty();
    for (option, is_said) in [
        ("--cache-dir", said.cache_dir.is_some()),
        ("--origin-cache-bytes", said.origin_cache_bytes.is_some()),
        ("--origin-ca", said.origin_ca.is_some()),
    ] {
        if is_said && is_in_vain {
            return Err(Failure::input(option, "no origin is named")
                .remedy("Name one with --origin URL, or in the configuration file."));
        }
    }
    let mut config = checked(config, file.as_ref(), &overridden)?;
    if args.programs_alone {
        config.listen.clear();
    }
    Ok(config)
}

/// Returns the configuration of a file alone, validated.
pub(crate) fn load_file(path: &Path) -> Result<Config, Failure> {
    let file = ConfigFile::read(path)?;
    checked(file.parse()?, Some(&file), &[])
}

/// The readable part of a file, its errors and its warnings.
#[derive(Debug)]
pub(crate) struct Examined {
    pub(crate) config: Config,
    pub(crate) failure: Option<Failure>,
    pub(crate) warnings: Option<Failure>,
}

/// Examines a file alone.
///
/// # Errors
///
/// It cannot be read at all.
pub(crate) fn examine_file(path: &Path) -> Result<Examined, Failure> {
    let file = ConfigFile::read(path)?;
    let mut partial = file.examine()?;
    add_defaults(&mut partial.config);
    let config = partial.config.clone();
    Ok(Examined {
        failure: partial.failure(&file, &config.problems()),
        warnings: file.failure(&config.warnings(), &[]),
        config,
    })
}

/// Adds defaults and validates.
fn checked(
    mut config: Config,
    file: Option<&ConfigFile>,
    overridden: &[Place],
) -> Result<Config, Failure> {
    add_defaults(&mut config);
    let problems = config.problems();
    let failure = match file {
        Some(file) => file.failure(&problems, overridden),
        None => file::failure(&problems),
    };
    failure.map_or(Ok(config), Err)
}

fn add_defaults(config: &mut Config) {
    if config.listen.is_empty() && !config.is_proxy() {
        config.listen.push(Listen {
            port: HTTP_PORT,
            tls: false,
            http3: false,
            proxy_protocol_from: Vec::new(),
        });
    }
    // Without a root of its own, the server serves cached responses of origins.
    let has_content = config.nic.root.is_some() || !config.nic.attach.is_empty();
    if !has_content && !config.origins().is_empty() {
        config.nic.root.clone_from(&config.origin.cache_dir);
    }
}

/// Sets each key that the command line gives; returns the keys that were set.
macro_rules! overlay {
    ($config:ident: $($section:ident.$key:ident = $said:expr;)*) => {{
        let mut replaced = Vec::new();
        $(
            if let Some(said) = $said {
                $config.$section.$key = said;
                replaced.push(Place::of(stringify!($section)).key(stringify!($key)));
            }
        )*
        replaced
    }};
}

/// Applies the command line over the configuration; returns the keys that were replaced.
fn lay_over(args: &ServeArgs, config: &mut Config) -> Result<Vec<Place>, Failure> {
    let mut replaced = overlay! { config:
        network.interface = some(&args.dev);
        network.addresses = list(&args.addr, Text);
        network.share = args.share.then_some(true);
        network.gateways = list(&args.gateway, |it| it);
        network.dad = args.no_dad.then_some(false);
        network.mtu = some(&args.mtu);

        nic.root = some(&args.root);
        nic.workers = args.workers;
        nic.workers_min = args.workers_min;
        nic.cache = some(&args.cache.cache.map(Text));
        nic.attach = list(&args.nic, Text);
        nic.key_file = some(&args.key_file);
        nic.replicas = args.replicas.then_some(true);

        tcp.congestion = args.congestion.map(Text);
        tcp.ecn = args.tcp.ecn.map(Text);
        tcp.keepalive = args.tcp.keepalive.map(Text);
        tcp.pacing = args.tcp.pacing.map(Text);
        tcp.fast_open = args.tcp.fast_open.then_some(true);
        tcp.connections_per_source = some(&args.connections_per_source);
        tcp.orphans = args.orphans;

        tls.versions = list(&args.tls.tls_versions, Text);
        tls.ciphers = list(&args.tls.tls_ciphers, Text);
        tls.key_records = some(&args.tls.tls_key_records);

        http.index = list(&args.http.index, Text);
        http.precompressed = list(&args.http.precompressed, Text);
        http.listing = args.http.listing.then_some(true);
        http.rate_per_connection = some(&args.http.rate_per_connection.map(Text));
        http.rate_per_source = some(&args.http.rate_per_source.map(Text));

        origin.urls = list(&args.origins.origin, Text);
        origin.cache_dir = some(&args.origins.cache_dir);
        origin.cache_max = args.origins.origin_cache_bytes.map(Text);
        origin.ca = some(&args.origins.origin_ca);
        origin.cache_status = args.origins.cache_status.then_some(true);

        sockets.path = some(&args.sockets);

        logs.level = args.log.map(Text);
        logs.access = some(&args.logs.access_log.clone().map(Text));
        logs.access_format = args.logs.access_log_format.map(Text);
        logs.error = some(&args.logs.error_log);

        operation.control_socket = some(&args.control_socket);
        operation.admin = some(&args.logs.admin);
    };
    replaced.extend(lay_firewall_over(&args.firewall, config));
    replaced.extend(lay_offload_over(args, config));
    if let Some(listen) = list(&listened(args), |it| it) {
        config.listen = listen;
        replaced.push(Place::of("listen"));
    }
    // Either option replaces both keys.
    let certificates = args.certificates.paths()?;
    let self_signed = args.certificates.tls_self_signed;
    if self_signed || !certificates.is_empty() {
        replaced.extend(overlay! { config:
            tls.self_signed = Some(self_signed);
            tls.certificate = Some(certificates);
        });
    }
    Ok(replaced)
}

fn lay_offload_over(args: &ServeArgs, config: &mut Config) -> Vec<Place> {
    let mut replaced = Vec::new();
    let offload = &mut config.sockets.offload;
    for (key, option, to) in [
        ("offload.setup", args.setup_offload, &mut offload.setup),
        (
            "offload.teardown",
            args.teardown_offload,
            &mut offload.teardown,
        ),
    ] {
        if let Some(option) = option {
            *to = option;
            replaced.push(Place::of("sockets").key(key));
        }
    }
    replaced
}

fn lay_firewall_over(options: &FirewallOptions, config: &mut Config) -> Vec<Place> {
    overlay! { config:
        firewall.allow = list(&options.allow, Text);
        firewall.allow_file = some(&options.allow_file);
        firewall.deny = list(&options.deny, Text);
        firewall.deny_file = some(&options.deny_file);
    }
}

/// Returns the ports of both options. TLS ports alone leave no plain port.
fn listened(args: &ServeArgs) -> Vec<Listen> {
    let plain = args.listen.iter().map(|port| (*port, false));
    let ports = plain.chain(args.tls.tls_listen.iter().map(|port| (*port, true)));
    let ports = ports.filter_map(|(port, tls)| {
        let port = NonZeroU16::new(port)?;
        let http3 = tls && args.tls.http3;
        Some(Listen {
            port,
            tls,
            http3,
            proxy_protocol_from: Vec::new(),
        })
    });
    ports.collect()
}

/// Wraps the value of a key that may be absent.
fn some<T: Clone>(said: &Option<T>) -> Option<Option<T>> {
    said.clone().map(Some)
}

/// Replaces a list as a whole; an empty option leaves it alone.
fn list<T: Clone, U>(said: &[T], wrap: impl Fn(T) -> U) -> Option<Vec<U>> {
    (!said.is_empty()).then(|| said.iter().cloned().map(wrap).collect())
}
