//! What options say over a file.

use std::num::NonZeroU16;
use std::path::Path;

use failure::Failure;

use crate::args::serve::ServeArgs;
use config::file::{self, ConfigFile};
use config::place::Place;
use config::{Config, Http, Listen, Logs, Nic, Origin, Text};

/// Where browsers expect HTTP.
const HTTP_PORT: NonZeroU16 = NonZeroU16::new(80).expect("it is not zero");

/// The configuration that a command line leads to, read and found to make sense. Files that it
/// names have not been looked at.
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
            return Err(Failure::input(option, "nothing comes from an origin")
                .remedy("Name one with --origin URL, or in the configuration file."));
        }
    }
    checked(config, file.as_ref(), &overridden)
}

/// The same of a file alone.
pub(crate) fn load_file(path: &Path) -> Result<Config, Failure> {
    let file = ConfigFile::read(path)?;
    checked(file.parse()?, Some(&file), &[])
}

/// What was not said is added, and what was said makes sense.
fn checked(
    mut config: Config,
    file: Option<&ConfigFile>,
    overridden: &[Place],
) -> Result<Config, Failure> {
    if config.listen.is_empty() {
        config.listen.push(Listen {
            port: HTTP_PORT,
            tls: false,
        });
    }
    // Who has no files of his own serves what comes from origins.
    let has_content = config.nic.root.is_some() || !config.nic.attach.is_empty();
    if !has_content && !config.origins().is_empty() {
        config.nic.root.clone_from(&config.origin.cache_dir);
    }
    let problems = config.problems();
    let failure = match file {
        Some(file) => file.failure(&problems, overridden),
        None => file::failure(&problems),
    };
    failure.map_or(Ok(config), Err)
}

/// Puts what the command line says over what is there already; returns what has been replaced by
/// that.
fn lay_over(args: &ServeArgs, config: &mut Config) -> Result<Vec<Place>, Failure> {
    let mut over = Over::default();
    let network = Place::of("network");
    over.option(
        &network.key("interface"),
        &args.dev,
        &mut config.network.interface,
    );
    over.list(
        &network.key("addresses"),
        &args.addr,
        &mut config.network.addresses,
        Text,
    );
    over.list(
        &network.key("gateways"),
        &args.gateway,
        &mut config.network.gateways,
        |it| it,
    );
    over.value(
        &network.key("dad"),
        args.no_dad.then_some(false),
        &mut config.network.dad,
    );
    over.option(&network.key("mtu"), &args.mtu, &mut config.network.mtu);

    let (plain, tls) = (&args.listen, &args.tls.tls_listen);
    let ports = plain.iter().map(|port| (*port, false));
    let ports = ports.chain(tls.iter().map(|port| (*port, true)));
    // Who asks for TLS gets nothing else that he has not asked for.
    let listen = ports.filter_map(|(port, tls)| {
        let port = NonZeroU16::new(port)?;
        Some(Listen { port, tls })
    });
    let listen: Vec<Listen> = listen.collect();
    over.list(&Place::of("listen"), &listen, &mut config.listen, |it| it);

    let nic = Place::of("nic");
    let Nic {
        root,
        workers,
        cache,
        attach,
        key_file,
        replicas,
    } = &mut config.nic;
    over.option(&nic.key("root"), &args.root, root);
    over.value(&nic.key("workers"), args.workers, workers);
    over.option(&nic.key("cache"), &args.cache.cache.map(Text), cache);
    over.list(&nic.key("attach"), &args.nic, attach, Text);
    over.option(&nic.key("key_file"), &args.key_file, key_file);
    over.value(
        &nic.key("replicas"),
        args.replicas.then_some(true),
        replicas,
    );

    let place = Place::of("tcp");
    let tcp = &mut config.tcp;
    over.value(
        &place.key("congestion"),
        args.congestion.map(Text),
        &mut tcp.congestion,
    );
    over.value(&place.key("ecn"), args.tcp.ecn.map(Text), &mut tcp.ecn);
    over.value(
        &place.key("keepalive"),
        args.tcp.keepalive.map(Text),
        &mut tcp.keepalive,
    );
    over.value(
        &place.key("pacing"),
        args.tcp.pacing.map(Text),
        &mut tcp.pacing,
    );
    over.option(
        &place.key("connections_per_source"),
        &args.connections_per_source,
        &mut tcp.connections_per_source,
    );
    over.value(&place.key("orphans"), args.orphans, &mut tcp.orphans);

    let place = Place::of("tls");
    let tls = &mut config.tls;
    over.list(
        &place.key("versions"),
        &args.tls.tls_versions,
        &mut tls.versions,
        Text,
    );
    over.list(
        &place.key("ciphers"),
        &args.tls.tls_ciphers,
        &mut tls.ciphers,
        Text,
    );
    over.option(
        &place.key("key_records"),
        &args.tls.tls_key_records,
        &mut tls.key_records,
    );
    let certificates = args.certificates.paths()?;
    if args.certificates.tls_self_signed || !certificates.is_empty() {
        tls.self_signed = args.certificates.tls_self_signed;
        tls.certificate = certificates;
        over.0
            .extend([place.key("self_signed"), place.key("certificate")]);
    }

    let place = Place::of("http");
    let Http {
        index,
        precompressed,
        listing,
        rate_per_connection,
        rate_per_source,
        ..
    } = &mut config.http;
    over.list(&place.key("index"), &args.http.index, index, Text);
    over.list(
        &place.key("precompressed"),
        &args.http.precompressed,
        precompressed,
        Text,
    );
    over.value(
        &place.key("listing"),
        args.http.listing.then_some(true),
        listing,
    );
    over.option(
        &place.key("rate_per_connection"),
        &args.http.rate_per_connection.map(Text),
        rate_per_connection,
    );
    over.option(
        &place.key("rate_per_source"),
        &args.http.rate_per_source.map(Text),
        rate_per_source,
    );
    let place = Place::of("origin");
    let Origin {
        urls,
        cache_dir,
        cache_max,
        // In files only: few need it.
        variants_max: _,
        ca,
        cache_status,
    } = &mut config.origin;
    let said = &args.origins;
    over.list(&place.key("urls"), &said.origin, urls, Text);
    over.option(&place.key("cache_dir"), &said.cache_dir, cache_dir);
    over.value(
        &place.key("cache_max"),
        said.origin_cache_bytes.map(Text),
        cache_max,
    );
    over.option(&place.key("ca"), &said.origin_ca, ca);
    over.value(
        &place.key("cache_status"),
        said.cache_status.then_some(true),
        cache_status,
    );
    over.option(
        &Place::of("operation").key("control_socket"),
        &args.control_socket,
        &mut config.operation.control_socket,
    );
    over.option(
        &Place::of("operation").key("admin"),
        &args.logs.admin,
        &mut config.operation.admin,
    );
    let place = Place::of("logs");
    let Logs {
        access,
        access_format,
        error,
    } = &mut config.logs;
    let said = &args.logs;
    over.option(
        &place.key("access"),
        &said.access_log.clone().map(Text),
        access,
    );
    over.value(
        &place.key("access_format"),
        said.access_log_format.map(Text),
        access_format,
    );
    over.option(&place.key("error"), &said.error_log, error);
    Ok(over.0)
}

/// What has been replaced so far.
#[derive(Default)]
struct Over(Vec<Place>);

impl Over {
    fn option<T: Clone>(&mut self, place: &Place, said: &Option<T>, value: &mut Option<T>) {
        self.value(place, said.clone().map(Some), value);
    }

    fn value<T>(&mut self, place: &Place, said: Option<T>, value: &mut T) {
        if let Some(said) = said {
            *value = said;
            self.0.push(place.clone());
        }
    }

    /// A list takes the place of a list; none is said by an empty one.
    fn list<T: Clone, U>(
        &mut self,
        place: &Place,
        said: &[T],
        value: &mut Vec<U>,
        wrap: impl Fn(T) -> U,
    ) {
        let said = (!said.is_empty()).then(|| said.iter().cloned().map(wrap).collect());
        self.value(place, said, value);
    }
}
