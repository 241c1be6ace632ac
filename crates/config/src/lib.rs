//! The configuration of `splitway serve`: the operator's file, and options that override it.
//!
//! | Module | Its one idea |
//! |---|---|
//! | `network`, `firewall`, `nic`, `tcp`, `tls`, `quic`, `http`, `origin`, `site`, `sockets`, `proxy`, `logs`, `operation` | the sections, one each |
//! | `text` | values with units, or in a form of their own |
//! | `size`, `connection_memory`, `tcp_values`, `tls_names`, `control_link`, `log_level`, `log_place`, `origin_place`, `socket_values` | values of keys |
//! | `root` | the directory whose files are served |
//! | `certificates`, `self_signed`, `key_file` | contents of certificate and secret files |
//! | `temporary` | temporary directories, and removal of those of dead processes |
//! | `reference` | the reference of all keys and the schema, made from the types |
//! | `file` | reading a file; its errors, with their places |
//! | `place` | places of values in a file |
//! | `content` | the host process's part about HTTP |
//! | `ranges`, `forms` | bounds of numbers and times; forms of texts, for the schema |
//! | `rules` | invalid combinations of values |
//! | `warnings` | valid values that are probably mistakes |
//!
//! Each section is a struct that knows its keys, so that an unknown key is an error. To add a
//! section: a struct with `#[serde(default, deny_unknown_fields)]`, whose comments become
//! `docs/config.md` and the JSON schema, a field of [`Config`], and its options in `options`. A
//! reload changes each key, except those with `x-reload` false; a test compares this with
//! [`Config::keep_until_restart`].

#![forbid(unsafe_code)]

pub mod certificates;
pub mod connection_memory;
mod content;
pub mod control_link;
pub mod file;
mod firewall;
mod http;
pub mod key_file;
pub mod log_level;
pub mod log_place;
mod logs;
mod network;
mod nic;
mod operation;
mod origin;
pub mod origin_place;
pub mod place;
mod proxy;
mod quic;
mod ranges;
pub mod root;
mod rules;
pub mod self_signed;
mod site;
pub mod size;
pub mod socket_values;
mod sockets;
mod tcp;
pub mod tcp_values;
pub mod temporary;
pub mod text;
mod tls;
pub mod tls_names;
mod warnings;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf, absolute};

use ::origin::OriginUrl;
use serde::{Deserialize, Serialize};

pub use self::content::Content;
pub use self::firewall::{AccessNetworks, Firewall};
pub use self::http::Http;
pub use self::logs::Logs;
pub use self::network::{Listen, Network};
pub use self::nic::Nic;
pub use self::operation::Operation;
pub use self::origin::Origin;
pub use self::proxy::{Answer, BackendAddress, Forwarding, Proxy};
pub use self::quic::Quic;
pub use self::site::Site;
pub use self::sockets::{Allow, Offload, Sockets};
pub use self::tcp::Tcp;
pub use self::text::Text;
pub use self::tls::{Certificate, Tls, TlsSettings};
use crate::control_link::NicPlace;
use failure::Failure;

/// The whole configuration, section by section.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Link and addresses of the stack.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub network: Network,
    /// Ports to serve on, one table for each. Default: port 80, without TLS.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listen: Vec<Listen>,
    /// Clients that may connect. A reload ends the connections of those that no longer may.
    pub firewall: Firewall,
    /// NIC stack: the source of content.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub nic: Nic,
    /// TCP connections.
    pub tcp: Tcp,
    /// TLS and its certificates.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub tls: Tls,
    /// QUIC, which carries HTTP/3.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub quic: Quic,
    /// HTTP: limits, timeouts, and defaults of all sites.
    pub http: Http,
    /// Origins: the server fetches missing files from them and serves them from a cache directory.
    pub origin: Origin,
    /// Keys for signed URLs: a name, and the file with the secret, of at least 16 bytes (`openssl
    /// rand -hex 32`), which no other user may read.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub signing_keys: BTreeMap<String, PathBuf>,
    /// Sites, one table for each. The first also serves requests that match no other. Without any,
    /// one site serves everything below the root.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub site: Vec<Site>,
    /// Sockets of the host stack for other programs, which attach to it.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub sockets: Sockets,
    /// Proxy: `splitway proxy` forwards requests and connections to backends.
    pub proxy: Proxy,
    /// Log files, their format and level.
    pub logs: Logs,
    /// Control, monitoring and shutdown of the server.
    pub operation: Operation,
}

impl Config {
    /// Ports with TLS, or those without.
    pub fn ports(&self, tls: bool) -> impl Iterator<Item = u16> {
        let these = self.listen.iter().filter(move |listen| listen.tls == tls);
        these.map(|listen| listen.port.get())
    }

    /// The port with TLS to which clients are redirected: 443, or else the first.
    pub fn https_port(&self) -> Option<NonZeroU16> {
        let ports = || self.listen.iter().filter(|listen| listen.tls);
        let default = ports().find(|listen| listen.port.get() == 443);
        default.or_else(|| ports().next()).map(|listen| listen.port)
    }

    /// Ports with HTTP/3.
    pub fn http3_ports(&self) -> impl Iterator<Item = NonZeroU16> {
        let these = self.listen.iter().filter(|listen| listen.http3);
        these.map(|listen| listen.port)
    }

    /// Whether NIC workers open QUIC packets.
    pub fn receives_quic_on_nic(&self) -> bool {
        self.http3_ports().next().is_some() && self.quic.receive.0 == quic::ReceiveOption::Nic
    }

    /// Ports of the proxy.
    pub fn proxy_ports(&self) -> impl Iterator<Item = u16> {
        self.proxy.listen.iter().map(|listen| listen.port.get())
    }

    /// Ports on which the proxy terminates TLS.
    pub fn proxy_tls_ports(&self) -> impl Iterator<Item = u16> {
        let these = self.proxy.listen.iter().filter(|listen| listen.tls);
        these.map(|listen| listen.port.get())
    }

    /// Whether the stack terminates TLS on any port.
    pub fn has_tls(&self) -> bool {
        self.ports(true)
            .chain(self.proxy_tls_ports())
            .next()
            .is_some()
    }

    /// Whether this is the configuration of a proxy, which serves no files.
    pub fn is_proxy(&self) -> bool {
        !self.proxy.listen.is_empty()
    }

    /// All configured origins, each once.
    pub fn origins(&self) -> BTreeSet<&OriginUrl> {
        let of_sites = self.site.iter().flat_map(|site| {
            let rules = site.rule.iter().filter_map(|rule| rule.origin.as_ref());
            site.origin.iter().chain(rules)
        });
        let of_all = self.origin.urls.iter().map(|place| &place.0.url);
        of_all
            .chain(of_sites.filter_map(|choice| choice.0.url()))
            .collect()
    }

    /// All configured files and directories.
    fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let Self {
            firewall,
            nic,
            tls,
            quic,
            origin,
            signing_keys,
            sockets: programs,
            logs,
            operation,
            ..
        } = self;
        let sockets = nic
            .attach
            .iter_mut()
            .filter_map(|place| match &mut place.0 {
                NicPlace::Socket(path) => Some(path),
                NicPlace::Ethernet { .. } => None,
            });
        let certificates = tls.certificate.iter_mut();
        let certificates = certificates.flat_map(|files| {
            [&mut files.chain, &mut files.key]
                .into_iter()
                .chain(&mut files.ocsp)
        });
        sockets
            .chain(&mut firewall.allow_file)
            .chain(&mut firewall.deny_file)
            .chain(&mut nic.root)
            .chain(&mut nic.key_file)
            .chain(&mut quic.secret_file)
            .chain(&mut origin.cache_dir)
            .chain(&mut origin.ca)
            .chain(certificates)
            .chain(signing_keys.values_mut())
            .chain(
                logs.access
                    .iter_mut()
                    .filter_map(|Text(place)| place.path_mut()),
            )
            .chain(&mut programs.path)
            .chain(&mut logs.error)
            .chain(&mut operation.control_socket)
    }

    /// Makes relative paths relative to `directory`.
    fn resolve_paths(&mut self, directory: &Path) {
        for path in self.paths() {
            *path = directory.join(&path);
        }
    }

    /// Resets keys that cannot change while a server runs to their old values; returns the keys
    /// whose new values differ.
    pub fn keep_until_restart(&mut self, old: &Self) -> Result<Vec<String>, Failure> {
        let wanted = self.clone();
        self.network = old.network.clone();
        let ports = |config: &Self| {
            let listens = config.listen.iter();
            let ports = listens.map(|listen| (listen.port, listen.tls, listen.http3));
            ports.collect::<Vec<_>>()
        };
        if ports(self) != ports(old) {
            self.listen = old.listen.clone();
        }
        self.nic = old.nic.clone();
        self.quic = Quic {
            receive: wanted.quic.receive,
            receive_after: wanted.quic.receive_after,
            ..old.quic.clone()
        };
        self.sockets = old.sockets.clone();
        let ports = |config: &Self| {
            let listens = config.proxy.listen.iter();
            let ports = listens.map(|listen| (listen.port, listen.tls));
            ports.collect::<Vec<_>>()
        };
        if ports(self) != ports(old) {
            self.proxy.listen = old.proxy.listen.clone();
        }
        self.tls = Tls {
            self_signed: wanted.tls.self_signed,
            certificate: wanted.tls.certificate.clone(),
            ..old.tls.clone()
        };
        // The processes keep their standard error.
        if self.logs.error.is_some() != old.logs.error.is_some() {
            self.logs.error = old.logs.error.clone();
        }
        // Ports with TLS stay open, and need certificates.
        if wanted.tls.certificate.is_empty() && !wanted.tls.self_signed {
            self.tls = old.tls.clone();
        }
        self.operation.control_socket = old.operation.control_socket.clone();
        self.operation.heartbeat = old.operation.heartbeat;
        // The fetcher is running already.
        if !old.origins().is_empty() {
            self.origin.cache_dir = old.origin.cache_dir.clone();
            self.origin.ca = old.origin.ca.clone();
        }
        Ok(differences(&wanted.to_table()?, &self.to_table()?))
    }

    fn to_table(&self) -> Result<toml::Table, Failure> {
        toml::Table::try_from(self)
            .map_err(|error| Failure::broken("comparing configurations", error))
    }

    /// The configuration as a file with absolute paths, valid in any directory.
    pub fn to_toml(&self) -> Result<String, Failure> {
        let mut anywhere = self.clone();
        for path in anywhere.paths() {
            *path = absolute(&path).unwrap_or_else(|_| path.clone());
        }
        toml::to_string(&anywhere)
            .map_err(|error| Failure::broken("writing the configuration as TOML", error))
    }
}

/// The keys of two tables that differ, down to those of nested tables.
fn differences(one: &toml::Table, other: &toml::Table) -> Vec<String> {
    let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let mut found = Vec::new();
    for key in keys {
        match (one.get(key), other.get(key)) {
            (Some(toml::Value::Table(one)), Some(toml::Value::Table(other))) => {
                let inner = differences(one, other).into_iter();
                found.extend(inner.map(|inner| format!("{key}.{inner}")));
            }
            (one, other) if one != other => found.push(key.clone()),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod forms;
#[cfg(test)]
mod reference;
