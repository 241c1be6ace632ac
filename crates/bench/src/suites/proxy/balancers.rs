//! Balancers: their names, ports and configurations.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use testbed::splitway::STACK_V4;

use crate::servers::peer_network;

/// nginx's module for balancing TCP, where it is not built in.
const NGINX_STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Connection limit, above the need of any comparison.
const CONNECTIONS_MAX: usize = 4096;

/// Measured balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    HaproxyHttp,
    HaproxyTcp,
    HaproxySplice,
    NginxStream,
    /// HAProxy by `splitway run`.
    RunHttp,
    RunTcp,
    /// HAProxy by `splitway run`; the NIC stack forwards the data that HAProxy would splice.
    RunSpliced,
    OwnHttp,
    OwnTcp,
    /// Spliced, with frames that the host forwards.
    OwnHandedOn,
    OwnSpliced,
}

/// How a balancer is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Haproxy,
    Nginx,
    HaproxyRun,
    Own,
}

impl Subject {
    pub(super) const ALL: [Subject; 11] = [
        Subject::HaproxyHttp,
        Subject::HaproxyTcp,
        Subject::HaproxySplice,
        Subject::NginxStream,
        Subject::RunHttp,
        Subject::RunTcp,
        Subject::RunSpliced,
        Subject::OwnHttp,
        Subject::OwnTcp,
        Subject::OwnHandedOn,
        Subject::OwnSpliced,
    ];

    /// Balancers that targets concern.
    pub(super) const QUICK: [Subject; 4] = [
        Subject::HaproxyTcp,
        Subject::HaproxySplice,
        Subject::RunSpliced,
        Subject::OwnSpliced,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Subject::HaproxyHttp => "HAProxy, http",
            Subject::HaproxyTcp => "HAProxy, tcp",
            Subject::HaproxySplice => "HAProxy, tcp, splice",
            Subject::NginxStream => "nginx, stream",
            Subject::RunHttp => "HAProxy, http, split",
            Subject::RunTcp => "HAProxy, tcp, split",
            Subject::RunSpliced => "HAProxy, tcp, splice, split",
            Subject::OwnHttp => "splitway proxy, http",
            Subject::OwnTcp => "splitway proxy, tcp",
            Subject::OwnHandedOn => "splitway proxy, tcp, splice, handed on",
            Subject::OwnSpliced => "splitway proxy, tcp, splice",
        }
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Subject::HaproxyHttp | Subject::HaproxyTcp | Subject::HaproxySplice => Kind::Haproxy,
            Subject::NginxStream => Kind::Nginx,
            Subject::RunHttp | Subject::RunTcp | Subject::RunSpliced => Kind::HaproxyRun,
            Subject::OwnHttp | Subject::OwnTcp | Subject::OwnHandedOn | Subject::OwnSpliced => {
                Kind::Own
            }
        }
    }

    pub(super) fn is_http(self) -> bool {
        matches!(
            self,
            Subject::HaproxyHttp | Subject::RunHttp | Subject::OwnHttp
        )
    }

    /// Returns true if its data may bypass the program.
    fn splices(self) -> bool {
        self == Subject::HaproxySplice || self.has_splices()
    }

    /// Returns true if connections are joined in the NIC stack.
    pub(super) fn has_splices(self) -> bool {
        matches!(
            self,
            Subject::RunSpliced | Subject::OwnHandedOn | Subject::OwnSpliced
        )
    }

    /// Returns its address, and the backends' address from there.
    pub(super) fn addresses(self) -> (IpAddr, Ipv4Addr) {
        match self.kind() {
            Kind::Haproxy | Kind::Nginx => (peer_network::SERVER.into(), peer_network::CLIENT),
            Kind::HaproxyRun | Kind::Own => (STACK_V4, Ipv4Addr::new(10, 77, 0, 1)),
        }
    }
}

/// Service behind a balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    Files,
    /// Echo on persistent connections.
    Echo,
    /// One echo on each connection.
    Short,
}

impl Service {
    const ALL: [Service; 3] = [Service::Files, Service::Echo, Service::Short];

    fn name(self) -> &'static str {
        match self {
            Service::Files => "files",
            Service::Echo => "echo",
            Service::Short => "short",
        }
    }

    /// Returns the port where a balancer accepts connections for it.
    pub(super) fn port(self) -> u16 {
        match self {
            Service::Files => 8080,
            Service::Echo => 8081,
            Service::Short => 8082,
        }
    }

    /// Returns the port of the service itself.
    pub(super) fn backend_port(self) -> u16 {
        self.port() + 1000
    }

    /// Returns the services that a balancer of HTTP, or of TCP, supports.
    fn behind(subject: Subject) -> &'static [Service] {
        if subject.is_http() {
            &[Service::Files]
        } else {
            &Service::ALL
        }
    }
}

/// Returns the balancer's configuration; `own` is a directory for its own files.
pub(super) fn configuration(subject: Subject, own: &Path) -> String {
    match subject.kind() {
        Kind::Haproxy | Kind::HaproxyRun => haproxy(subject),
        Kind::Nginx => nginx(subject, own),
        Kind::Own => splitway(subject),
    }
}

fn haproxy(subject: Subject) -> String {
    let (at, backend) = subject.addresses();
    let mode = if subject.is_http() { "http" } else { "tcp" };
    let mut text = format!(
        "global
    nbthread 1
    maxconn {CONNECTIONS_MAX}
defaults
    mode {mode}
    maxconn {CONNECTIONS_MAX}
    timeout connect 10s
    timeout client 60s
    timeout server 60s
"
    );
    if subject.splices() {
        text.push_str("    option splice-request\n    option splice-response\n");
    }
    for service in Service::behind(subject) {
        let (name, port) = (service.name(), service.port());
        let behind = service.backend_port();
        let _ = writeln!(
            text,
            "listen {name}\n    bind {at}:{port}\n    server backend {backend}:{behind}"
        );
    }
    text
}

fn nginx(subject: Subject, own: &Path) -> String {
    let (at, backend) = subject.addresses();
    let mut text = String::new();
    if Path::new(NGINX_STREAM).exists() {
        let _ = writeln!(text, "load_module {NGINX_STREAM};");
    }
    let own = own.display();
    let _ = write!(
        text,
        "daemon off;
user root root;
worker_processes 1;
worker_rlimit_nofile {descriptors};
pid {own}/nginx.pid;
error_log {own}/error.log;
events {{ worker_connections {descriptors}; }}
stream {{
",
        descriptors = 4 * CONNECTIONS_MAX
    );
    for service in Service::behind(subject) {
        let (port, behind) = (service.port(), service.backend_port());
        let _ = writeln!(
            text,
            "    server {{ listen {at}:{port}; proxy_pass {backend}:{behind}; }}"
        );
    }
    text.push_str("}\n");
    text
}

fn splitway(subject: Subject) -> String {
    let (_, backend) = subject.addresses();
    let mode = if subject.is_http() { "http" } else { "tcp" };
    let mut text = format!("[proxy]\nsplice = {}\n", subject.splices());
    for service in Service::behind(subject) {
        let (name, port) = (service.name(), service.port());
        let behind = service.backend_port();
        let _ = write!(
            text,
            "[[proxy.listen]]
port = {port}
mode = \"{mode}\"
pool = \"{name}\"
[[proxy.pool]]
name = \"{name}\"
connections_max = {CONNECTIONS_MAX}
[[proxy.pool.backend]]
address = \"{backend}:{behind}\"
"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balancers_of_one_kind_differ_in_what_is_compared() {
        let of = |subject| configuration(subject, Path::new("/own"));
        let (copying, splicing) = (of(Subject::HaproxyTcp), of(Subject::HaproxySplice));
        let options = "    option splice-request\n    option splice-response\n";
        assert_eq!(splicing.replace(options, ""), copying);
        let (copying, splicing) = (of(Subject::RunTcp), of(Subject::RunSpliced));
        assert_eq!(splicing.replace(options, ""), copying);
        assert_eq!(of(Subject::OwnSpliced), of(Subject::OwnHandedOn));
        let copying = of(Subject::OwnTcp);
        assert_eq!(
            of(Subject::OwnSpliced),
            copying.replace("splice = false", "splice = true")
        );
        assert!(of(Subject::OwnHttp).contains("mode = \"http\""));
        assert!(of(Subject::NginxStream).contains("proxy_pass 10.78.0.1:9081;"));
    }
}
