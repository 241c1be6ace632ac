//! Reads the configuration file and certificates again while the server serves.
//!
//! Everything is read and checked before anything changes; then the host process puts it in use at
//! once, and reports that. If the configuration is invalid, the old one stays, but certificates are
//! renewed; an unusable certificate alone keeps its old version. Backend names that did not resolve
//! are looked up later, and passed in the same way.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use failure::Failure;

use crate::args::overlay;
use crate::args::serve::ServeArgs;
use crate::supervisor::origin_plan::{CacheLimits, OriginPlan};
use crate::supervisor::resolver::Resolver;
use crate::supervisor::{site_directories, time_limit};
use crate::terminal::say;
use config::certificates::{CertificateSource, InUse, Loaded};
use config::key_file::SecretBytes;
use config::log_level::LogLevel;
use config::self_signed::Fresh;
use config::{AccessNetworks, Config, Content, Forwarding};
use processes::ipc::fd_passing;
use processes::ipc::host_configuration::{HostConfiguration, Observed};
use processes::ipc::messages::ToHost;

/// The configuration that the host process uses, and those on their way to it.
pub(crate) struct Reload<'a> {
    args: &'a ServeArgs,
    config: Config,
    certificates: Option<CertificateSource>,
    /// The host process keeps it until its end.
    quic_secret: Option<SecretBytes>,
    /// Further state of the host process.
    served: Served,
    addresses: Vec<IpAddr>,
    resolver: Resolver,
    to_host: OwnedFd,
    /// Configurations that the host process has not answered yet, in order.
    passed: VecDeque<Passed>,
}

/// Inputs of the host process read from files or DNS.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) content: Content,
    pub(crate) forwarding: Forwarding,
    /// Certificates in use.
    pub(crate) in_use: Vec<InUse>,
}

/// Why a configuration is passed to the host process.
#[derive(Debug)]
enum Occasion {
    /// It was read again.
    Reload,
    /// The configuration is invalid, for this reason; only certificates are renewed.
    Renewal(String),
    /// Names of backends were looked up.
    Lookup,
}

/// A configuration that the host process has not answered yet.
struct Passed {
    /// Whether a client waits for the outcome.
    is_asked: bool,
    occasion: Occasion,
    config: Config,
    certificates: Option<CertificateSource>,
    passing: Passing,
    /// Keys whose new values need a restart.
    ignored: Vec<String>,
}

/// Result of a reload, and whether a client waits for it.
pub(crate) struct Outcome {
    pub(crate) is_asked: bool,
    pub(crate) result: Result<String, String>,
}

/// What changed with the configuration in use.
pub(crate) enum Used {
    /// A configuration that was read again.
    Configuration(Outcome),
    /// Renewed certificates; nothing else, since the configuration is wrong.
    Certificates(Outcome),
}

impl Outcome {
    /// Prints a line, and appends it to the result.
    pub(crate) fn add(&mut self, line: &str) {
        say(&format!("{line}\n"));
        let (Ok(text) | Err(text)) = &mut self.result;
        text.push('\n');
        text.push_str(line);
    }
}

impl<'a> Reload<'a> {
    /// Starts with the configuration that the host process was started with.
    pub(crate) fn new(
        args: &'a ServeArgs,
        config: Config,
        certificates: Option<CertificateSource>,
        quic_secret: Option<SecretBytes>,
        served: Served,
        addresses: Vec<IpAddr>,
        (resolver, to_host): (Resolver, OwnedFd),
    ) -> Self {
        Self {
            args,
            config,
            certificates,
            quic_secret,
            served,
            addresses,
            resolver,
            to_host,
            passed: VecDeque::new(),
        }
    }

    /// Returns the configuration in use.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the networks in use that may connect, or may not.
    pub(crate) fn access(&self) -> &AccessNetworks {
        self.served.content.access()
    }

    /// Returns the log level of the configuration in use.
    pub(crate) fn log_level(&self) -> LogLevel {
        self.config.logs.level.0
    }

    /// Returns the drain timeout of the configuration in use: the longest time that responses under
    /// way have when the server ends.
    pub(crate) fn drain_timeout(&self) -> Duration {
        self.config.operation.drain_timeout.0.0
    }

    /// Returns the root path as configured.
    pub(crate) fn root(&self) -> Option<&Path> {
        self.config.nic.root.as_deref()
    }

    /// Returns the cache limits of the configuration in use, if it names any origin.
    pub(crate) fn cache_limits(&self) -> Option<CacheLimits> {
        let names_any = !self.config.origins().is_empty();
        names_any.then_some(CacheLimits::of(&self.config.origin))
    }

    /// Reads everything again, has `prepare` start the fetcher and the observer's files for it, and
    /// passes it to the host process, whose answer brings the outcome; returns the outcome if there
    /// is no such answer to wait for.
    pub(crate) fn begin(
        &mut self,
        is_asked: bool,
        prepare: impl FnOnce(&Config, Option<&OriginPlan>) -> Result<(), Failure>,
    ) -> Option<Outcome> {
        let has_root = self.config.nic.root.is_some();
        if self.args.config.is_none() && self.certificates.is_none() && !has_root {
            let why = "this server has nothing to read again: it was started without --config, \
                --tls-listen and ROOT";
            return Some(Outcome {
                is_asked,
                result: Err(why.to_owned()),
            });
        }
        let passed = self.read_again(is_asked, prepare).or_else(|failure| {
            // A renewed certificate does not wait for a configuration to be mended.
            let renewed = self.renew(is_asked, failure.to_string());
            renewed.unwrap_or(Err(failure))
        });
        match passed {
            Ok(passed) => {
                self.passed.push_back(passed);
                None
            }
            Err(failure) => Some(self.refused(is_asked, &failure.to_string())),
        }
    }

    /// Returns the certificates in use once every configuration passed so far is in use.
    fn in_use(&self) -> &[InUse] {
        let last = self.passed.back().map(|passed| &passed.passing.served);
        &last.unwrap_or(&self.served).in_use
    }

    /// Passes certificates alone, read again from the files in use, since the configuration is
    /// invalid; `None` if there are none to read.
    fn renew(&self, is_asked: bool, why: String) -> Option<Result<Passed, Failure>> {
        let source = self.certificates.as_ref()?;
        if matches!(source, CertificateSource::SelfSigned(_)) || !self.passed.is_empty() {
            return None;
        }
        let (content, forwarding) = (self.served.content.clone(), self.served.forwarding.clone());
        let passed = source
            .read_again(&self.addresses, self.in_use())
            .and_then(|loaded| pass((content, forwarding), &self.config, loaded, &self.to_host));
        Some(passed.map(|passing| Passed {
            is_asked,
            occasion: Occasion::Renewal(why),
            config: self.config.clone(),
            certificates: self.certificates.clone(),
            passing,
            ignored: Vec::new(),
        }))
    }

    /// Returns a descriptor that is readable once names of backends were looked up again.
    pub(crate) fn watch(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.resolver.watch()
    }

    /// Returns when to call [`Reload::on_time`] at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.resolver.deadline()
    }

    /// Returns the certificates in use.
    pub(crate) fn certificates(&self) -> &[InUse] {
        &self.served.in_use
    }

    /// Passes the addresses of backends whose lookups have completed.
    pub(crate) fn on_time(&mut self, now: Instant) {
        let forwarding = &self.served.forwarding;
        let Some(answers) = self.resolver.on_time(now, forwarding) else {
            return;
        };
        if !self.passed.is_empty() {
            self.resolver.postpone(now);
            return;
        }
        let resolved = forwarding.with(&answers);
        if resolved.unresolved() == forwarding.unresolved() {
            // The reasons may have changed.
            self.served.forwarding = resolved;
            return;
        }
        if let Err(failure) = self.pass_looked_up(resolved) {
            tracing::error!("{failure}");
        }
    }

    fn pass_looked_up(&mut self, forwarding: Forwarding) -> Result<(), Failure> {
        let served = &self.served;
        let passing = pass(
            (served.content.clone(), forwarding),
            &self.config,
            Loaded::keep_all(&served.in_use),
            &self.to_host,
        )?;
        self.passed.push_back(Passed {
            is_asked: false,
            occasion: Occasion::Lookup,
            config: self.config.clone(),
            certificates: self.certificates.clone(),
            passing,
            ignored: Vec::new(),
        });
        Ok(())
    }

    fn read_again(
        &self,
        is_asked: bool,
        prepare: impl FnOnce(&Config, Option<&OriginPlan>) -> Result<(), Failure>,
    ) -> Result<Passed, Failure> {
        let mut config = self.config.clone();
        let mut ignored = Vec::new();
        let mut next = config.quic.clone();
        if self.args.config.is_some() {
            config = overlay::load(self.args)?;
            next = config.quic.clone();
            ignored = config.keep_until_restart(&self.config)?;
        }
        let plan = OriginPlan::check(&config)?;
        let content = Content::read(&config, plan.as_ref().map(|plan| &plan.place))?;
        let secret = next.secret()?;
        if next.secret_file == config.quic.secret_file && secret != self.quic_secret {
            ignored.push("what is in quic.secret_file".to_owned());
        }
        let forwarding = self.resolver.read(&config, Some(&self.served.forwarding));
        let before = self.certificates.as_ref();
        let certificates = CertificateSource::of(&config, before)?;
        let loaded = certificates.as_ref();
        let loaded = loaded.map(|source| source.read_again(&self.addresses, self.in_use()));
        let loaded = loaded.transpose()?.unwrap_or_default();
        prepare(&config, plan.as_ref())?;
        let mut passing = pass((content, forwarding), &config, loaded, &self.to_host)?;
        passing.warnings.extend(odd(&config));
        Ok(Passed {
            is_asked,
            occasion: Occasion::Reload,
            config,
            certificates,
            passing,
            ignored,
        })
    }

    /// Takes the first configuration passed into use, with this `count` of certificates; `ended`
    /// connections were ended, of clients that may no longer connect. Returns
    /// `None` after a lookup, which no operator asked for.
    pub(crate) fn on_used(&mut self, count: usize, ended: usize) -> Option<Used> {
        let mut passed = self.passed.pop_front()?;
        let is_tcp_new = self.config.tcp != passed.config.tcp;
        let is_receive_new = self.config.quic.receive() != passed.config.quic.receive()
            && passed.config.http3_ports().next().is_some();
        let fresh = passed.passing.fresh.take();
        let before = std::mem::replace(&mut self.served, passed.passing.served.clone());
        self.config = passed.config.clone();
        self.certificates.clone_from(&passed.certificates);
        if matches!(passed.occasion, Occasion::Lookup) {
            report_resolved(&before.forwarding, &self.served.forwarding);
            return None;
        }
        let is_asked = passed.is_asked;
        if let Some(Err(failure)) = fresh.map(Fresh::put_in_place) {
            let text = format!("{failure}; clients cannot trust the new one, which is used");
            tracing::error!("{text}");
            return Some(Used::Configuration(Outcome {
                is_asked,
                result: Err(text),
            }));
        }
        let mut lines = Vec::new();
        if let (Occasion::Reload, Some(_)) = (&passed.occasion, &self.args.config) {
            lines.push("configuration read again, for requests from now on".to_owned());
        }
        if is_tcp_new {
            let line = "TCP: limits hold from now on, the rest for connections from now on";
            lines.push(line.to_owned());
        }
        if before.content.proxies() != self.served.content.proxies() {
            let line = "proxies: those of the configuration are trusted on connections from now on";
            lines.push(line.to_owned());
        }
        if before.content.access() != self.served.content.access() {
            lines.push(format!(
                "firewall: in force now; {} ended",
                connections(ended)
            ));
        }
        if is_receive_new {
            let line = "QUIC: quic.receive applies to all connections now";
            lines.push(line.to_owned());
        }
        let read = count.saturating_sub(passed.passing.kept);
        if self.certificates.is_some() && read > 0 {
            let certificates = match read {
                1 => "certificate",
                _ => "certificates",
            };
            lines.push(format!(
                "{read} {certificates} read again, for connections from now on"
            ));
        }
        if lines.is_empty() && passed.passing.refused.is_empty() {
            lines.push("the root is followed again".to_owned());
        }
        let is_renewal = matches!(passed.occasion, Occasion::Renewal(_));
        let outcome = self.outcome(passed, lines);
        Some(match is_renewal {
            true => Used::Certificates(outcome),
            false => Used::Configuration(outcome),
        })
    }

    /// Builds the report on a configuration in use, with its warnings and refusals.
    fn outcome(&self, passed: Passed, mut lines: Vec<String>) -> Outcome {
        let Passed {
            is_asked,
            occasion,
            passing,
            ignored,
            ..
        } = passed;
        let (mut warnings, refused) = (passing.warnings, passing.refused);
        if !ignored.is_empty() {
            warnings.push(format!("not before a restart: {}", ignored.join(", ")));
        }
        for line in &warnings {
            tracing::warn!("{line}");
        }
        for line in &refused {
            tracing::error!("{line}");
        }
        let is_good = refused.is_empty() && matches!(occasion, Occasion::Reload);
        lines.extend(warnings);
        if !lines.is_empty() {
            say(&format!("{}\n", lines.join("\n")));
        }
        lines.extend(refused);
        if let Occasion::Renewal(why) = occasion {
            let text = self
                .refused(is_asked, &why)
                .result
                .unwrap_or_else(|text| text);
            lines.push(text);
        }
        let text = lines.join("\n");
        Outcome {
            is_asked,
            result: if is_good { Ok(text) } else { Err(text) },
        }
    }

    /// Drops the first configuration passed: the host process has refused it for this reason.
    pub(crate) fn on_refused(&mut self, why: &str) -> Option<Outcome> {
        let passed = self.passed.pop_front()?;
        let outcome = self.refused(passed.is_asked, why);
        (!matches!(passed.occasion, Occasion::Lookup)).then_some(outcome)
    }

    fn refused(&self, is_asked: bool, why: &str) -> Outcome {
        // A remedy may follow in further lines.
        let what = match self.args.config {
            Some(_) => "the configuration that was there stays",
            None => "the certificates that were there stay",
        };
        let text = format!("{what}: {why}");
        tracing::error!("{text}");
        Outcome {
            is_asked,
            result: Err(text),
        }
    }
}

/// Reports backends whose names resolve now.
fn report_resolved(before: &Forwarding, now: &Forwarding) {
    let unresolved = now.unresolved();
    for backend in before.unresolved() {
        if !unresolved.contains(&backend) {
            tracing::warn!(%backend, "the name of the backend is resolved");
        }
    }
}

/// A configuration that was passed to the host process.
pub(crate) struct Passing {
    pub(crate) served: Served,
    /// Certificate state that replaces the current one once the host process uses it.
    pub(crate) fresh: Option<Fresh>,
    /// Number of certificates that keep their old versions.
    kept: usize,
    /// Why they do.
    refused: Vec<String>,
    /// Warnings for the operator.
    pub(crate) warnings: Vec<String>,
}

/// Passes to the host process what HTTP serves or the proxy forwards, certificates, and the rest of
/// `config` that it uses.
pub(crate) fn pass(
    (content, forwarding): (Content, Forwarding),
    config: &Config,
    loaded: Loaded,
    to_host: &OwnedFd,
) -> Result<Passing, Failure> {
    let Loaded {
        files,
        fresh,
        in_use,
        kept,
        refused,
        mut warnings,
    } = loaded;
    warnings.extend(forwarding.warnings());
    let served = Served {
        content: content.clone(),
        forwarding: forwarding.clone(),
        in_use,
    };
    let configuration = HostConfiguration {
        content,
        forwarding,
        tcp: config.tcp.clone(),
        quic: config.quic.without_files(),
        observed: observed(config),
        certificates: files,
    };
    let message = configuration.message()?;
    fd_passing::pass(to_host, &ToHost::Configure, Some(&message))
        .map_err(|errno| Failure::broken("handing the configuration to the host process", errno))?;
    Ok(Passing {
        served,
        fresh,
        kept,
        refused,
        warnings,
    })
}

/// A number of connections, for people.
pub(crate) fn connections(count: usize) -> String {
    match count {
        1 => "1 connection was".to_owned(),
        _ => format!("{count} connections were"),
    }
}

/// Warnings about a configuration and the directories of its sites.
pub(crate) fn odd(config: &Config) -> Vec<String> {
    let warnings = config.warnings().into_iter();
    let warnings = warnings.map(|problem| format!("{}: {}", problem.place, problem.why));
    let mut lines: Vec<String> = warnings.collect();
    if let Some(root) = &config.nic.root {
        let (whole, at) = (config.clone(), root.clone());
        let look = move || site_directories::look(&whole, &at);
        match time_limit::within(time_limit::TIME_MAX, look) {
            Some(missing) => lines.extend(missing.iter().map(Failure::to_string)),
            None => lines.push(format!(
                "root {}: the file system does not answer; directories of sites may be missing",
                root.display()
            )),
        }
    }
    lines
}

/// Returns which records the host process is to send to the observer.
fn observed(config: &Config) -> Observed {
    let counters = config.operation.admin.is_some();
    Observed {
        // Metrics count responses by the contents of their records.
        accesses: counters || config.logs.access.is_some(),
        counters,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use clap::FromArgMatches;

    use super::*;
    use crate::cli::{Cli, Command};
    use config::key_file;
    use netsetup::seqpacket;

    fn args(line: &str) -> ServeArgs {
        let words = line.split_whitespace();
        let matches = Cli::command_line().get_matches_from(words);
        match Cli::from_arg_matches(&matches).unwrap().command {
            Command::Serve(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    /// Starts a reload with the state of a server started with `args`; also returns the host
    /// process's end of the socket.
    fn started(args: &ServeArgs) -> (Reload<'_>, OwnedFd) {
        let config = overlay::load(args).unwrap();
        let certificates = CertificateSource::check(&config, None).unwrap();
        let quic_secret = config.quic.secret().unwrap();
        let (to_host, host) = seqpacket::pair().unwrap();
        let loaded = certificates.as_ref();
        let loaded = loaded.map(|source| source.read(&[]).unwrap());
        let served = Served {
            content: Content::read(&config, None).unwrap(),
            forwarding: Forwarding::default(),
            in_use: loaded.unwrap_or_default().in_use,
        };
        (
            Reload::new(
                args,
                config,
                certificates,
                quic_secret,
                served,
                Vec::new(),
                (Resolver::here().unwrap(), to_host),
            ),
            host,
        )
    }

    /// The outcome of a reload of the whole configuration.
    fn used(used: Option<Used>) -> Option<Outcome> {
        match used? {
            Used::Configuration(outcome) => Some(outcome),
            Used::Certificates(_) => panic!("certificates alone"),
        }
    }

    fn said(outcome: Option<Outcome>) -> (bool, String) {
        let Outcome { is_asked, result } = outcome.expect("an outcome");
        (
            is_asked,
            result.unwrap_or_else(|why| format!("error: {why}")),
        )
    }

    #[test]
    fn a_client_gets_the_outcome_of_its_own_reload() {
        let args = args("splitway serve site --tls-listen 443 --tls-self-signed");
        let (mut reload, _host) = started(&args);
        // SIGHUP came before.
        assert!(reload.begin(false, |_, _| Ok(())).is_none());
        assert!(reload.begin(true, |_, _| Ok(())).is_none());
        assert_eq!(
            said(used(reload.on_used(1, 0))),
            (
                false,
                "1 certificate read again, for connections from now on".to_owned()
            )
        );
        let (is_asked, text) = said(reload.on_refused("no good"));
        assert!(
            is_asked && text.ends_with("certificates that were there stay: no good"),
            "{text}"
        );
        assert!(reload.on_used(1, 0).is_none(), "nothing was passed");
    }

    #[test]
    fn a_wrong_configuration_changes_nothing_but_certificates() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("splitway.toml");
        let [chain, key] = ["chain.pem", "key.pem"].map(|name| directory.path().join(name));
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(&chain, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let write = |more: &str| {
            let text = format!(
                "nic.root = \"/srv\"\n{more}\nlisten = [{{ port = 443, tls = true }}]\n\
                 [[tls.certificate]]\nchain = {chain:?}\nkey = {key:?}\n"
            );
            fs::write(&path, text).unwrap();
        };
        write("");
        let args = args(&format!("splitway serve --config {}", path.display()));
        let (mut reload, _host) = started(&args);
        write("http.ranges_maximum = 1");
        assert!(reload.begin(true, |_, _| Ok(())).is_none());
        let Some(Used::Certificates(outcome)) = reload.on_used(1, 0) else {
            panic!("certificates alone");
        };
        let (_, text) = said(Some(outcome));
        assert!(text.contains("1 certificate read again"), "{text}");
        assert!(text.contains("unknown key `ranges_maximum`"), "{text}");
        write("");
        assert!(reload.begin(true, |_, _| Ok(())).is_none());
        assert!(used(reload.on_used(1, 0)).is_some());
    }

    #[test]
    fn what_is_made_for_trying_out_is_put_in_its_place_when_it_is_used() {
        let args = args("splitway serve site --tls-listen 443 --tls-self-signed");
        let (mut reload, _host) = started(&args);
        let source = reload.certificates.clone().unwrap();
        let read = || fs::read_to_string(source.file_to_trust().unwrap()).unwrap();
        assert!(reload.begin(false, |_, _| Ok(())).is_none());
        assert!(!source.file_to_trust().unwrap().exists());
        reload.on_used(1, 0);
        let used = read();
        assert!(used.contains("BEGIN CERTIFICATE"), "{used}");
        assert!(reload.begin(false, |_, _| Ok(())).is_none());
        reload.on_refused("no good");
        assert_eq!(read(), used);
    }

    #[test]
    fn what_needs_a_restart_is_named_and_the_rest_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("splitway.toml");
        let write = |text: &str| fs::write(&path, text).unwrap();
        write("[nic]\nroot = \"/srv\"\n");
        let line = format!("splitway serve --config {} --workers 2", path.display());
        let args = args(&line);
        let (mut reload, _host) = started(&args);
        write(
            "[nic]\nroot = \"/other\"\nworkers = 7\n[tls]\nkey_records = 16\n[tcp]\necn = \"off\"\n\
             [http]\nranges_max = 3\n[[listen]]\nport = 81\n",
        );
        assert!(reload.begin(true, |_, _| Ok(())).is_none());
        let (_, text) = said(used(reload.on_used(0, 0)));
        assert_eq!(
            text,
            "configuration read again, for requests from now on\n\
             TCP: limits hold from now on, the rest for connections from now on\n\
             not before a restart: listen, nic.root, tls.key_records"
        );
        assert_eq!(reload.config.nic.root.as_deref(), Some(Path::new("/srv")));
        assert_eq!(
            (reload.config.nic.workers, reload.config.http.ranges_max),
            (2, 3)
        );

        write("[http]\nrange_max = 4\n");
        let (_, text) = said(reload.begin(true, |_, _| Ok(())));
        assert!(
            text.starts_with("error: the configuration that was there stays: ")
                && text.contains("`ranges_max`"),
            "{text}"
        );
        assert_eq!(reload.config.http.ranges_max, 3);
    }

    #[test]
    fn another_secret_of_quic_is_used_after_a_restart_and_none_that_is_no_good() {
        let directory = tempfile::tempdir().unwrap();
        let [path, secret, other] =
            ["splitway.toml", "secret", "other"].map(|name| directory.path().join(name));
        let write = |text: &str| fs::write(&path, format!("nic.root = \"/srv\"\n{text}")).unwrap();
        write("quic.secret_file = \"secret\"\n");
        key_file::generate(&secret).unwrap();
        key_file::generate(&other).unwrap();
        let args = args(&format!("splitway serve --config {}", path.display()));
        let (mut reload, _host) = started(&args);
        let mut said_again = || {
            let begun = reload.begin(true, |_, _| Ok(()));
            said(begun.or_else(|| used(reload.on_used(0, 0)))).1
        };
        let restart = "not before a restart";
        let text = said_again();
        assert!(!text.contains(restart), "{text}");
        write("quic.secret_file = \"other\"\n");
        let text = said_again();
        assert!(
            text.ends_with("not before a restart: quic.secret_file"),
            "{text}"
        );
        write("quic.secret_file = \"secret\"\n");
        fs::rename(&other, &secret).unwrap();
        for _ in 0..2 {
            let text = said_again();
            assert!(
                text.ends_with("not before a restart: what is in quic.secret_file"),
                "{text}"
            );
        }
        fs::write(&secret, "no secret").unwrap();
        let text = said_again();
        assert!(
            text.contains("that was there stays") && text.contains("splitway keygen"),
            "{text}"
        );
    }

    #[test]
    fn ports_that_stay_keep_their_certificates() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("splitway.toml");
        let write = |more: &str| fs::write(&path, format!("nic.root = \"/srv\"\n{more}")).unwrap();
        write("tls.self_signed = true\nlisten = [{ port = 443, tls = true }]\n");
        let args = args(&format!("splitway serve --config {}", path.display()));
        let (mut reload, _host) = started(&args);
        write("");
        assert!(reload.begin(true, |_, _| Ok(())).is_none());
        let (_, text) = said(used(reload.on_used(1, 0)));
        assert!(text.contains("1 certificate read again"), "{text}");
        assert!(
            text.ends_with("not before a restart: listen, tls.self_signed"),
            "{text}"
        );
    }

    #[test]
    fn a_server_that_was_told_nothing_in_files_has_nothing_to_read() {
        let args = args("splitway serve --nic /nowhere --dev eth0 --addr 192.0.2.1/24");
        let (mut reload, _host) = started(&args);
        let (_, text) = said(reload.begin(true, |_, _| Ok(())));
        assert!(
            text.contains("--config") && text.contains("--tls-listen"),
            "{text}"
        );
    }
}
