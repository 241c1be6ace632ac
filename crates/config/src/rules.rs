//! Invalid combinations of values. Nothing here reads files.

use std::path::Path;

use origin::FieldLimits;
use tls::Version;

use super::content::Content;
use super::place::{Place, Problem};
use super::ranges::{self, check_number, check_time};
use super::{Config, Forwarding, Network, Sockets, Text};
use crate::control_link::NicPlace;
use crate::origin_place::{CACHE_BYTES_MIN, ORIGINS_MAX};
use crate::size::Size;

/// Fewer bytes would not hold the fields of an ordinary response.
const ORIGIN_HEAD_BYTES_MIN: u64 = 1024;

/// Least part of a segment for each socket, for its record and bytes in transit, and the fixed part
/// of a segment, in bytes.
const SEGMENT_BYTES_PER_SOCKET_MIN: u64 = 1 << 10;
const SEGMENT_BYTES_BESIDES: u64 = 8 << 10;

/// Largest segment, in bytes: each process maps it.
const SEGMENT_BYTES_MAX: u64 = 1 << 36;

/// Most rules of `[sockets]`, and most ports and addresses of each: they must fit into one packet.
const ALLOW_MAX: usize = 256;
const RANGES_MAX: usize = 64;

impl Config {
    /// All problems of the configuration.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        self.check_network(&mut problems);
        self.check_ports(&mut problems);
        self.check_nic(&mut problems);
        self.check_tls(&mut problems);
        self.check_http3(&mut problems);
        self.check_origins(&mut problems);
        self.check_sockets(&mut problems);
        self.check_proxy(&mut problems);
        if let Err(wrong) = Content::without_secrets(self).server_config() {
            problems.extend(wrong);
        }
        problems
    }

    fn check_network(&self, problems: &mut Vec<Problem>) {
        let Network {
            interface,
            addresses,
            gateways,
            share,
            local_ports: _,
            dad: _,
            mtu,
        } = &self.network;
        let here = |key: &str| Place::of("network").key(key);
        if *share {
            self.check_share(problems);
        }
        match interface {
            Some(_) if *share => {}
            Some(_) if addresses.is_empty() => problems.push(
                Problem::new(here("interface"), "the stack has no address on it")
                    .option("--dev")
                    .remedy(
                        "Name one with addresses (--addr) that no other machine uses, not the \
                        kernel's own;\nor share the kernel's own addresses with share (--share).",
                    ),
            ),
            None if !addresses.is_empty() || !gateways.is_empty() => {
                let key = if addresses.is_empty() {
                    "gateways"
                } else {
                    "addresses"
                };
                problems.push(
                    Problem::new(here(key), "addresses need an interface, and none is named")
                        .option("--addr")
                        .remedy(
                            "Name it with interface (--dev); without one, the stack gets a link \
                            with its own addresses.",
                        ),
                );
            }
            _ => {}
        }
        if let Some(mtu) = mtu {
            if interface.is_some() {
                let why = "an interface has its own MTU: this one is for the link created \
                    without one";
                problems.push(Problem::new(here("mtu"), why).option("--mtu"));
            }
            let of_option = |problem: Problem| problem.option("--mtu");
            let mut found = Vec::new();
            check_number(here("mtu"), "network.mtu", (*mtu).into(), &mut found);
            problems.extend(found.into_iter().map(of_option));
        }
    }

    /// Checks what goes together with an interface whose addresses are the kernel's as well.
    fn check_share(&self, problems: &mut Vec<Problem>) {
        let Network {
            interface,
            addresses,
            gateways,
            ..
        } = &self.network;
        let here = |key: &str| Place::of("network").key(key);
        let mut add = |key: &str, why: &str, remedy: &str| {
            let problem = Problem::new(here(key), why).option("--share");
            problems.push(problem.remedy(remedy));
        };
        if interface.is_none() {
            let why = "the interface whose addresses are shared is not named";
            add("share", why, "Name it with interface (--dev).");
        }
        if !addresses.is_empty() {
            let why = "shared addresses are the kernel's, which the server follows";
            add(
                "addresses",
                why,
                "Leave out either share (--share) or addresses (--addr).",
            );
        }
        if !gateways.is_empty() {
            let why = "the gateways of shared addresses are those of the kernel's routes";
            add("gateways", why, "Leave gateways (--gateway) out.");
        }
        if self.sockets.path.is_some() {
            let why = "programs open ports that the kernel does not know to be theirs";
            let remedy =
                "Give the stack addresses of its own (--addr) to serve programs (--sockets).";
            add("share", why, remedy);
        }
        if !self.nic.attach.is_empty() {
            let why =
                "a NIC stack that was started elsewhere cannot share this machine's addresses";
            add("share", why, "Leave attach (--nic) out, and name a root.");
        }
    }

    fn check_ports(&self, problems: &mut Vec<Problem>) {
        for (at, listen) in self.listen.iter().enumerate() {
            let same = self.listen[..at]
                .iter()
                .find(|other| other.port == listen.port);
            let Some(same) = same else { continue };
            // Of the two options, the one with TLS is reported.
            let option = if listen.tls || same.tls {
                format!("--tls-listen {}", listen.port)
            } else {
                format!("--listen {}", listen.port)
            };
            let place = Place::of("listen").index(at).key("port");
            problems.push(if listen.tls == same.tls {
                Problem::new(place, format!("port {} is given twice", listen.port))
                    .option(option)
                    .remedy("Give each port once.")
            } else {
                Problem::new(
                    place,
                    format!(
                        "port {} is for TLS, but serves HTTP without TLS as well",
                        listen.port
                    ),
                )
                .option(option)
                .remedy("Give another port to one of them.")
            });
        }
    }

    fn check_workers_min(&self, problems: &mut Vec<Problem>) {
        let nic = &self.nic;
        // NIC stacks that run already may have more workers.
        let bounds = ranges::number("nic.workers_min");
        let most = match nic.attach.is_empty() {
            true => u64::from(nic.workers).clamp(1, *bounds.end()),
            false => *bounds.end(),
        };
        if !(*bounds.start()..=most).contains(&nic.workers_min.into()) {
            let why = format!("{} is not from 1 to {most}", nic.workers_min);
            let place = Place::of("nic").key("workers_min");
            let problem = Problem::new(place, why).option("--workers-min");
            problems.push(problem.remedy("It is the minimum of workers in use."));
        }
    }

    fn check_nic(&self, problems: &mut Vec<Problem>) {
        let nic = &self.nic;
        let here = |key: &str| Place::of("nic").key(key);
        let is_anything = nic.root.is_some() || !nic.attach.is_empty();
        if !is_anything && !self.origins().is_empty() {
            let why = "--cache-dir is missing";
            problems.push(
                Problem::new(Place::of("origin").key("cache_dir"), why)
                    .option("--origin")
                    .remedy(
                        "Give the directory of the origin cache: --cache-dir, or cache_dir in \
                        [origin].",
                    ),
            );
        } else if !is_anything && !self.is_proxy() {
            problems.push(
                Problem::new(here("root"), "there is nothing to serve")
                    .option("serve")
                    .remedy("Name the directory whose files are served: ROOT, or root in [nic]."),
            );
        }
        let mut found = Vec::new();
        let workers = nic.workers.into();
        check_number(here("workers"), "nic.workers", workers, &mut found);
        if let Some(problem) = found.pop() {
            problems.push(problem.option("--workers"));
        } else if let Some(size) = nic.cache
            && let Err((option, why, remedy)) = size.0.check_for(nic.workers)
        {
            problems.push(
                Problem::new(here("cache"), why)
                    .option(option)
                    .remedy(remedy),
            );
        }
        self.check_workers_min(problems);
        if !nic.attach.is_empty() && self.network.interface.is_none() {
            let why = "a running NIC stack needs the interface that it sends on";
            let problem = Problem::new(here("attach"), why).option("--nic");
            problems.push(problem.remedy("Name it with interface (--dev) and addresses (--addr)."));
        }
        for (at, place) in nic.attach.iter().enumerate() {
            let mut before = nic.attach[..at].iter();
            if before.any(|before| is_same(&before.0, &place.0)) {
                problems.push(
                    Problem::new(
                        here("attach").index(at),
                        format!("{} is given twice", place.0),
                    )
                    .option("--nic")
                    .remedy(
                        "Each is one NIC stack, which serves one host at a time: give it once.",
                    ),
                );
            }
            if matches!(place.0, NicPlace::Ethernet { .. }) && nic.key_file.is_none() {
                problems.push(
                    Problem::new(here("attach").index(at), "--key-file is missing")
                        .option(format!("--nic {}", place.0))
                        .remedy(
                            "Both machines need the same key: `splitway keygen FILE` makes \
                            one; name it with key_file.",
                        ),
                );
            }
        }
        let count = nic.attach.len() + usize::from(nic.root.is_some());
        if count > host::NIC_STACKS_MAX {
            let why = format!(
                "{count} NIC stacks; one host drives at most {}",
                host::NIC_STACKS_MAX
            );
            problems.push(Problem::new(here("attach"), why).option("--nic"));
        }
    }

    fn check_tls(&self, problems: &mut Vec<Problem>) {
        let tls = &self.tls;
        let here = |key: &str| Place::of("tls").key(key);
        let has_certificates = !tls.certificate.is_empty() || tls.self_signed;
        match self.has_tls() {
            true if !has_certificates => problems.push(self.without_certificate()),
            false if has_certificates => {
                let key = if tls.self_signed {
                    "self_signed"
                } else {
                    "certificate"
                };
                let why = "there are certificates, but no port with TLS";
                problems.push(Problem::new(here(key), why).option("--tls-cert").remedy(
                    "Say which with --tls-listen PORT, or [[listen]] or [[proxy.listen]] \
                             with tls = true.",
                ));
            }
            _ => {}
        }
        if !tls.certificate.is_empty() && tls.self_signed {
            let why = "it cannot be combined with certificates of your own";
            problems.push(Problem::new(here("self_signed"), why).option("--tls-self-signed"));
        }
        if let Some(records) = tls.key_records {
            let mut found = Vec::new();
            check_number(here("key_records"), "tls.key_records", records, &mut found);
            let found = found.into_iter();
            problems.extend(found.map(|problem| problem.option("--tls-key-records")));
        }
    }

    /// The first port with TLS has no certificate.
    fn without_certificate(&self) -> Problem {
        let why = "there is no certificate for clients";
        let at = self.proxy.listen.iter().position(|listen| listen.tls);
        if let Some(at) = at {
            let place = Place::of("proxy").key("listen").index(at).key("tls");
            return Problem::new(place, why).remedy(
                "Give one with [[tls.certificate]], or create one for testing: self_signed.",
            );
        }
        let at = self.listen.iter().position(|listen| listen.tls);
        let port = self.ports(true).next().unwrap_or_default();
        Problem::new(Place::of("listen").index(at.unwrap_or(0)).key("tls"), why)
            .option(format!("--tls-listen {port}"))
            .remedy(
                "Give one with --tls-cert FILE --tls-key FILE, or [[tls.certificate]], or create \
                 one for\ntesting: --tls-self-signed, or self_signed.",
            )
    }

    fn check_http3(&self, problems: &mut Vec<Problem>) {
        for (at, listen) in self.listen.iter().enumerate() {
            if listen.http3 && !listen.tls {
                let place = Place::of("listen").index(at).key("http3");
                let why = format!("port {} has no TLS, which HTTP/3 requires", listen.port);
                let remedy = "Say tls = true as well, or leave http3 out.";
                problems.push(Problem::new(place, why).remedy(remedy));
            }
        }
        let versions = &self.tls.versions;
        let has_tls13 = versions.is_empty() || versions.iter().any(|it| it.0.0 == Version::Tls13);
        if self.http3_ports().next().is_some() && !has_tls13 {
            let why = "HTTP/3 needs TLS version 1.3";
            problems.push(
                Problem::new(Place::of("tls").key("versions"), why)
                    .option("--tls-versions")
                    .remedy("Allow 1.3, or serve no HTTP/3."),
            );
        }
        let place = Place::of("quic").key("idle_timeout");
        let timeout = self.quic.idle_timeout;
        check_time(place, "quic.idle_timeout", timeout, problems);
        self.check_preferred_addresses(problems);
    }

    fn check_preferred_addresses(&self, problems: &mut Vec<Problem>) {
        let preferred = &self.quic.preferred_addresses;
        let place = || Place::of("quic").key("preferred_addresses");
        for (at, Text(address)) in preferred.iter().enumerate() {
            let mut own = self.network.addresses.iter();
            if !own.any(|own| own.0.address == address.0) {
                let why = format!("{address} is not an address of the stack");
                let remedy = "Give the stack this address as well, with addresses in [network] \
                              (--addr), or name\none that it has there.";
                problems.push(Problem::new(place().index(at), why).remedy(remedy));
            }
            let mut before = preferred[..at].iter();
            if let Some(same) = before.find(|it| it.0.0.is_ipv4() == address.0.is_ipv4()) {
                let why = format!("{address} has the same IP version as {same}", same = same.0);
                let remedy = "Clients get one address of each version: leave out the other.";
                problems.push(Problem::new(place().index(at), why).remedy(remedy));
            }
        }
        if !preferred.is_empty() && !self.quic.migration {
            let why = "clients cannot move without migration";
            let remedy = "Say migration = true, or leave preferred_addresses out.";
            problems.push(Problem::new(place(), why).remedy(remedy));
        }
    }

    fn check_origins(&self, problems: &mut Vec<Problem>) {
        let here = |key: &str| Place::of("origin").key(key);
        let Text(cache_max) = self.origin.cache_max;
        if cache_max < CACHE_BYTES_MIN {
            let why =
                "too little: objects are kept in segments of 1M, and several are read at once";
            problems.push(
                Problem::new(here("cache_max"), why)
                    .option(format!("--origin-cache-bytes {cache_max}"))
                    .remedy(format!("Give at least {CACHE_BYTES_MIN}.")),
            );
        }
        let variants = self.origin.variants_max.into();
        check_number(
            here("variants_max"),
            "origin.variants_max",
            variants,
            problems,
        );
        let Text(head_max) = self.origin.head_max;
        if !(ORIGIN_HEAD_BYTES_MIN..=FieldLimits::BYTES_MAX as u64).contains(&head_max.0) {
            let most = Size(FieldLimits::BYTES_MAX as u64);
            let why = format!(
                "{head_max} is not from {} to {most}",
                Size(ORIGIN_HEAD_BYTES_MIN)
            );
            problems.push(Problem::new(here("head_max"), why));
        }
        let fields = self.origin.fields_max.into();
        check_number(here("fields_max"), "origin.fields_max", fields, problems);
        let origins = self.origins();
        if origins.len() > ORIGINS_MAX {
            let why = format!("{} origins; there may be {ORIGINS_MAX}", origins.len());
            problems.push(
                Problem::new(here("urls"), why)
                    .option("--origin")
                    .remedy("Name fewer: sites and rules may share one."),
            );
        }
        if !origins.is_empty() && !self.nic.attach.is_empty() {
            problems.push(
                Problem::new(here("urls"), "the NIC stack has its files elsewhere")
                    .option("--origin with --nic")
                    .remedy(
                        "What comes from an origin is written by this server, and must be read by \
                         its own NIC process:\ngive ROOT or --cache-dir instead of --nic. With the \
                         NIC stack on another machine, an origin can\nnot be used yet.",
                    ),
            );
        }
    }

    fn check_proxy(&self, problems: &mut Vec<Problem>) {
        problems.extend(Forwarding::problems(&self.proxy));
        if self.is_proxy() && !self.listen.is_empty() {
            let why = "a proxy serves no files";
            let problem = Problem::new(Place::of("listen"), why);
            problems.push(problem.remedy("Its own ports stand in [[proxy.listen]]."));
        }
    }

    fn check_sockets(&self, problems: &mut Vec<Problem>) {
        let Sockets {
            path: _,
            sockets_max,
            listeners_max,
            bindings_max,
            segment: Text(segment),
            files_max,
            source_share_percent,
            messages_per_turn,
            turn_us_max,
            applications_max,
            applications_per_user_max,
            processes_max,
            allow,
            offload: _,
        } = &self.sockets;
        let here = |key: &str| Place::of("sockets").key(key);
        for (key, value) in [
            ("sockets_max", *sockets_max),
            ("listeners_max", *listeners_max),
            ("bindings_max", *bindings_max),
            ("files_max", *files_max),
            ("source_share_percent", *source_share_percent),
            ("messages_per_turn", *messages_per_turn),
            ("turn_us_max", *turn_us_max),
            ("applications_max", *applications_max),
            ("applications_per_user_max", *applications_per_user_max),
            ("processes_max", *processes_max),
        ] {
            let name = format!("sockets.{key}");
            check_number(here(key), &name, value.into(), problems);
        }
        let records = SEGMENT_BYTES_PER_SOCKET_MIN * u64::from(*sockets_max);
        let least = Size(records + SEGMENT_BYTES_BESIDES);
        if *segment < least {
            let why = format!("{segment} is too little for {sockets_max} sockets");
            let remedy = format!("Give at least {least}, or fewer sockets with sockets_max.");
            problems.push(Problem::new(here("segment"), why).remedy(remedy));
        } else if segment.0 > SEGMENT_BYTES_MAX {
            let why = format!("{segment} is more than {}", Size(SEGMENT_BYTES_MAX));
            problems.push(Problem::new(here("segment"), why));
        }
        if allow.len() > ALLOW_MAX {
            let why = format!("{} rules; there may be {ALLOW_MAX}", allow.len());
            problems.push(Problem::new(here("allow"), why));
        }
        for (at, rule) in allow.iter().enumerate() {
            let ports = rule.listen.as_ref().map_or(0, Vec::len);
            for (key, count) in [("listen", ports), ("addresses", rule.addresses.len())] {
                if count > RANGES_MAX {
                    let why = format!("{count} ranges; there may be {RANGES_MAX}");
                    problems.push(Problem::new(here("allow").index(at).key(key), why));
                }
            }
        }
    }
}

/// Whether two places are the same socket or machine. A machine is identified by its address, on
/// any interface.
fn is_same(one: &NicPlace, other: &NicPlace) -> bool {
    match (one, other) {
        (NicPlace::Ethernet { peer: one, .. }, NicPlace::Ethernet { peer: other, .. }) => {
            one == other
        }
        (NicPlace::Socket(one), NicPlace::Socket(other)) => {
            let file = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
            file(one) == file(other)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let config: Config = toml::from_str(text).unwrap();
        let problems = config.problems();
        let lines = problems
            .iter()
            .map(|problem| format!("{}: {}", problem.place, problem.why));
        lines.collect()
    }

    #[test]
    fn what_makes_no_sense_together_is_named_by_its_place() {
        for (text, complaint) in [
            ("", "nic.root: there is nothing to serve"),
            (
                "network.interface = \"e\"",
                "network.interface: the stack has no address",
            ),
            (
                "network.addresses = [\"192.0.2.1/24\"]",
                "network.addresses: ",
            ),
            ("network.gateways = [\"192.0.2.1\"]", "network.gateways: "),
            ("network.mtu = 1279", "network.mtu: 1279 is not from 1280"),
            (
                "network = { interface = \"e\", addresses = [\"192.0.2.1/24\"], mtu = 1500 }",
                "network.mtu: an interface has",
            ),
            (
                "listen = [{port = 80}, {port = 81}, {port = 80}]",
                "listen[2].port: port 80 is given twice",
            ),
            (
                "listen = [{port = 80}, {port = 80, tls = true}]",
                "listen[1].port: port 80 is for TLS",
            ),
            (
                "listen = [{port = 80}, {port = 443, tls = true}]",
                "listen[1].tls: there is no certificate",
            ),
            (
                "proxy.listen = [{port = 80}, {port = 443, tls = true}]",
                "proxy.listen[1].tls: there is no certificate",
            ),
            (
                "tls.self_signed = true",
                "tls.self_signed: there are certificates, but no port",
            ),
            (
                "tls = { self_signed = true, certificate = [{chain = \"a\", key = \"b\"}] }",
                "tls.self_signed: it cannot be combined",
            ),
            ("tls.key_records = 15", "tls.key_records: 15 is not from 16"),
            (
                "nic = { root = \"/\", workers = 65 }",
                "nic.workers: 65 is not from 1 to 64",
            ),
            (
                "nic = { root = \"/\", workers = 3, workers_min = 4 }",
                "nic.workers_min: 4 is not from 1 to 3",
            ),
            (
                "nic = { root = \"/\", workers_min = 0 }",
                "nic.workers_min: 0 is not from 1 to 1",
            ),
            (
                "nic = { root = \"/\", cache = \"1M\" }",
                "nic.cache: too little",
            ),
            ("nic.attach = [\"/x\"]", "nic.attach: a running NIC stack"),
            (
                "nic.attach = [\"/x\", \"/y\", \"/x\"]",
                "nic.attach[2]: /x is given twice",
            ),
            (
                "nic.attach = [\"eth:e,02:00:5e:10:00:01\"]",
                "nic.attach[0]: --key-file is missing",
            ),
            ("http.ranges_max = 0", "http.ranges_max: 0 is not from 1"),
        ] {
            let found = problems(text);
            assert!(
                found.iter().any(|problem| problem.starts_with(complaint)),
                "{text}: {found:?}"
            );
        }
        assert_eq!(problems("nic.root = \"/srv\""), [""; 0]);
    }

    #[test]
    fn shared_addresses_are_those_of_an_interface_for_programs_of_this_server_alone() {
        for (text, complaint) in [
            ("network.share = true", "network.share: the interface"),
            (
                "network = { interface = \"e\", share = true, addresses = [\"192.0.2.1/24\"] }",
                "network.addresses: shared addresses are the kernel's",
            ),
            (
                "network = { interface = \"e\", share = true, gateways = [\"192.0.2.1\"] }",
                "network.gateways: the gateways of shared addresses",
            ),
            (
                "network = { interface = \"e\", share = true }\nsockets.path = \"/run/s\"",
                "network.share: programs open ports",
            ),
            (
                "network = { interface = \"e\", share = true }\nnic.attach = [\"/run/n\"]",
                "network.share: a NIC stack that was started elsewhere",
            ),
        ] {
            let found = problems(text);
            assert!(
                found.iter().any(|problem| problem.starts_with(complaint)),
                "{text}: {found:?}"
            );
        }
    }

    #[test]
    fn clients_move_to_addresses_of_the_stack() {
        for (text, complaint) in [
            (
                "quic.preferred_addresses = [\"10.77.0.2\"]",
                "quic.preferred_addresses[0]: 10.77.0.2 is not an address of the stack",
            ),
            (
                "network = { interface = \"e\", addresses = [\"192.0.2.1/24\", \"192.0.2.2/24\"] }
                quic.preferred_addresses = [\"192.0.2.1\", \"192.0.2.2\"]",
                "quic.preferred_addresses[1]: 192.0.2.2 has the same IP version as 192.0.2.1",
            ),
            (
                "network = { interface = \"e\", addresses = [\"192.0.2.1/24\"] }
                quic = { preferred_addresses = [\"192.0.2.1\"], migration = false }",
                "quic.preferred_addresses: clients cannot move without migration",
            ),
        ] {
            let found = problems(text);
            assert!(
                found.iter().any(|problem| problem.starts_with(complaint)),
                "{text}: {found:?}"
            );
        }
        let moves = "nic.root = \"/srv\"
            network = { interface = \"e\", addresses = [\"192.0.2.1/24\", \"fd00::1/64\"] }
            quic.preferred_addresses = [\"192.0.2.1\", \"fd00::1\"]";
        assert_eq!(problems(moves), [""; 0]);
    }

    #[test]
    fn limits_of_applications_have_limits() {
        for (text, complaint) in [
            (
                "sockets.sockets_max = 0",
                "sockets.sockets_max: 0 is not from 1",
            ),
            (
                "sockets.processes_max = 5000",
                "sockets.processes_max: 5000 is not from 1 to 4096",
            ),
            (
                "sockets = { sockets_max = 1000, segment = \"999K\" }",
                "sockets.segment: 999K is too little for 1000 sockets",
            ),
            (
                "sockets.segment = \"65G\"",
                "sockets.segment: 65G is more than 64G",
            ),
        ] {
            let found = problems(&format!("nic.root = \"/srv\"\n{text}"));
            assert!(
                matches!(&found[..], [only] if only.starts_with(complaint)),
                "{text}: {found:?}"
            );
        }
        let ports = vec!["1"; RANGES_MAX + 1];
        let rule = format!("nic.root = \"/srv\"\n[[sockets.allow]]\nlisten = {ports:?}");
        let found = problems(&rule);
        assert_eq!(
            found,
            ["sockets.allow[0].listen: 65 ranges; there may be 64"]
        );
    }
}
