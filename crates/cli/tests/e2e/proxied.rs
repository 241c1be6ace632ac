//! A server behind HAProxy and nginx: clients have the addresses that these name, by the PROXY
//! protocol and by fields of requests, and every byte arrives.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;
use testbed::http::Connection;
use testbed::namespace::isolated;
use testbed::process::{Process, run, tool};
use testbed::site::{KnownFile, Site};
use testbed::splitway::{HTTP_V4, LINK, STACK_V4, STACK_V6, Splitway};
use testbed::wait;

use crate::config::{configuration, serve_configured};
use crate::https::Certificate;
use crate::stat::host_counted;
use crate::support::{SOON, ctl, sh};

/// Where the balancers listen, and the address of their client there.
const FRONTS: [(&str, &str); 2] = [("127.0.0.1", "127.0.0.5"), ("2001:db8::1", "2001:db8::5")];

/// The kernel's addresses on the link, from which the balancers connect.
const KERNEL: [&str; 2] = ["10.77.0.1", "fd77::1"];

const STACK: [IpAddr; 2] = [STACK_V4, STACK_V6];

const TRUSTED: &str = "[\"10.77.0.1\", \"fd77::1\"]";

/// A way to ask curl for a file: options, scheme, and the version in the log.
const WAYS: [(&str, &str, &str); 4] = [
    ("--http1.1", "http", "HTTP/1.1"),
    ("--http2-prior-knowledge", "http", "HTTP/2.0"),
    ("--http1.1", "https", "HTTP/1.1"),
    ("--http2", "https", "HTTP/2.0"),
];

fn port_of(scheme: &str) -> u16 {
    if scheme == "https" { 443 } else { 80 }
}

/// A port of a balancer, in both families.
#[derive(Clone, Copy)]
struct Front {
    port: u16,
    /// The family of its connections to the server.
    family: usize,
    scheme: &'static str,
    /// The option of the balancer by which it passes on clients.
    how: &'static str,
}

/// Fronts for each family, scheme and way to pass on clients.
fn fronts(ways: &[&'static str]) -> Vec<Front> {
    let mut fronts = Vec::new();
    for family in [0, 1] {
        for scheme in ["http", "https"] {
            for how in ways {
                let port = 7000 + fronts.len() as u16;
                fronts.push(Front {
                    port,
                    family,
                    scheme,
                    how,
                });
            }
        }
    }
    fronts
}

struct Bed<'a> {
    site: &'a Site,
    certificate: Certificate,
    file: KnownFile,
    splitway: Splitway,
    access: PathBuf,
    error: PathBuf,
    /// Lines of the access log that were looked at.
    seen: usize,
}

impl<'a> Bed<'a> {
    /// A server with these settings of ports, and of HTTP.
    fn new(site: &'a Site, listen: &str, http: &str) -> Bed<'a> {
        for (front, client) in FRONTS {
            if front.contains(':') {
                sh(&format!("ip addr add {front}/128 dev lo"));
                sh(&format!("ip addr add {client}/128 dev lo"));
            }
        }
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let file = site.file("clip.mp4", 300_000).unwrap();
        let (access, error) = (site.outside().join("access"), site.outside().join("error"));
        let path = configuration(site, &text(site, listen, http));
        Bed {
            site,
            certificate,
            file,
            splitway: serve_configured(&path),
            access,
            error,
            seen: 0,
        }
    }

    fn reload(&self, listen: &str, http: &str) -> String {
        configuration(self.site, &text(self.site, listen, http));
        let (is_done, said) = ctl("reload", None);
        assert!(is_done, "{said}");
        said
    }

    /// Downloads the file by curl, which connects to `to` from `from`; returns curl's port.
    fn download(&self, to: SocketAddr, from: &str, (options, scheme): (&str, &str)) -> u16 {
        let downloaded = self.site.outside().join("downloaded");
        let mut curl = tool("curl -q --silent --show-error --fail --max-time 60");
        curl.args(options.split(' ')).args(["--interface", from]);
        curl.arg("--cacert").arg(&self.certificate.certificate);
        let ip = match to.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let port = to.port();
        curl.args(["--resolve", &format!("localhost:{port}:{ip}")]);
        curl.args(["--write-out", "%{local_port}", "--output"]);
        curl.arg(&downloaded);
        let said = run(curl.arg(format!("{scheme}://localhost:{port}/clip.mp4"))).unwrap();
        let bytes = fs::read(&downloaded).unwrap();
        assert_eq!(bytes.len() as u64, self.file.size());
        assert_eq!(self.file.check(0, &bytes), Ok(()));
        said.trim().parse().unwrap()
    }

    /// The next record of the access log: of the whole file, by this version.
    fn record(&mut self, version: &str) -> Value {
        let record = wait::until(SOON, "a line in the access log", || {
            let text = fs::read_to_string(&self.access).ok()?;
            let mut lines = text.split_inclusive('\n').filter(|it| it.ends_with('\n'));
            lines.nth(self.seen).map(str::to_owned)
        });
        self.seen += 1;
        let record: Value = serde_json::from_str(&record.unwrap()).unwrap();
        let got = (
            &record["status"],
            &record["body_bytes"],
            &record["protocol"],
        );
        assert_eq!(
            got,
            (&200.into(), &self.file.size().into(), &version.into())
        );
        record
    }

    /// Downloads through a front in each family, and compares the log.
    fn through(&mut self, front: Front) {
        for (listens, client) in FRONTS {
            let to = SocketAddr::new(listens.parse().unwrap(), front.port);
            for (options, _, version) in WAYS.iter().filter(|way| way.1 == front.scheme) {
                let port = self.download(to, client, (options, front.scheme));
                let record = self.record(version);
                let what = format!("{} {options} {to}: {record}", front.how);
                assert_eq!(record["remote_addr"], client, "{what}");
                assert_eq!(record["remote_port"], port, "{what}");
                assert_eq!(record["peer_addr"], KERNEL[front.family], "{what}");
                assert_eq!(
                    record["tls_version"].is_null(),
                    front.scheme == "http",
                    "{what}"
                );
            }
        }
    }

    fn end(mut self) {
        assert!(self.splitway.end_with(Signal::TERM).unwrap().success());
    }
}

fn text(site: &Site, listen: &str, http: &str) -> String {
    let outside = site.outside().display();
    format!(
        "[[listen]]\nport = 80\n{listen}\n[[listen]]\nport = 443\ntls = true\n{listen}\n\
         [[tls.certificate]]\nchain = \"{outside}/server.pem\"\nkey = \"{outside}/server.key\"\n\
         [http]\nhttp2_prior_knowledge = true\n{http}\n\
         [logs]\naccess = \"{outside}/access\"\naccess_format = \"json\"\n\
         error = \"{outside}/error\"\n"
    )
}

fn trusting() -> String {
    format!("proxy_protocol_from = {TRUSTED}")
}

/// A balancer, once it listens on all fronts.
fn balancer(line: &str, configuration: &Path, text: &str, fronts: &[Front]) -> Process {
    fs::write(configuration, text).unwrap();
    let mut command = tool(line);
    command.arg(configuration).stdin(Stdio::null());
    let process = Process::spawn(&mut command).unwrap();
    for front in fronts {
        for (listens, _) in FRONTS {
            // A connection that ends without a byte is a health check.
            let to = SocketAddr::new(listens.parse().unwrap(), front.port);
            wait::until(SOON, "a balancer", || TcpStream::connect(to).ok()).unwrap();
        }
    }
    process
}

/// HAProxy, in this mode; how clients are passed on are options of its servers.
fn haproxy(site: &Site, mode: &str, fronts: &[Front]) -> Process {
    let mut text = format!(
        "defaults\n mode {mode}\n timeout connect 5s\n timeout client 30s\n timeout server 30s\n"
    );
    if mode == "http" {
        text.push_str(" option forwardfor\n");
    }
    for Front {
        port,
        family,
        scheme,
        how,
    } in fronts
    {
        let server = SocketAddr::new(STACK[*family], port_of(scheme));
        writeln!(text, "listen front{port}").unwrap();
        for (listens, _) in FRONTS {
            writeln!(text, " bind {listens}:{port}").unwrap();
        }
        writeln!(text, " server one {server} {how}").unwrap();
    }
    balancer(
        "haproxy -q -db -f",
        &site.outside().join("haproxy.cfg"),
        &text,
        fronts,
    )
}

#[test]
fn haproxy_names_clients_in_both_versions_of_the_proxy_protocol() {
    isolated(|site| {
        let fronts = fronts(&["send-proxy", "send-proxy-v2", "send-proxy-v2-ssl-cn"]);
        let mut bed = Bed::new(&site, &trusting(), "");
        let _haproxy = haproxy(&site, "tcp", &fronts);
        fronts.iter().for_each(|front| bed.through(*front));
        assert_eq!(host_counted("proxy_headers_invalid"), 0);
        bed.end();
    });
}

#[test]
fn nginx_names_clients_by_the_proxy_protocol() {
    isolated(|site| {
        let fronts = fronts(&["proxy_protocol on"]);
        let prefix = site.outside().display().to_string();
        let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
        let mut text = match Path::new(module).exists() {
            true => format!("load_module {module};"),
            false => String::new(),
        };
        write!(
            text,
            "daemon off; user root root; pid {prefix}/nginx.pid; error_log {prefix}/nginx.log; \
             events {{ }} stream {{"
        )
        .unwrap();
        for front in &fronts {
            let port = front.port;
            let server = SocketAddr::new(STACK[front.family], port_of(front.scheme));
            write!(
                text,
                "server {{ listen 127.0.0.1:{port}; listen [2001:db8::1]:{port}; \
                 proxy_pass {server}; {}; }}",
                front.how
            )
            .unwrap();
        }
        text.push('}');
        let mut bed = Bed::new(&site, &trusting(), "");
        let _nginx = balancer(
            "nginx -c",
            &site.outside().join("nginx.conf"),
            &text,
            &fronts,
        );
        fronts.iter().for_each(|front| bed.through(*front));
        assert_eq!(host_counted("proxy_headers_invalid"), 0);
        bed.end();
    });
}

#[test]
fn fields_of_trusted_proxies_name_the_client_and_what_clients_write_does_not() {
    isolated(|site| {
        let from = format!("forwarded_from = {TRUSTED}");
        let mut bed = Bed::new(&site, "", &from);
        // Of HTTP/1.1 and HTTP/2 to the server.
        let fronts: Vec<Front> = [(0, "http", ""), (1, "https", "ssl verify none alpn h2")]
            .into_iter()
            .zip(7000..)
            .map(|((family, scheme, how), port)| Front {
                port,
                family,
                scheme,
                how,
            })
            .collect();
        let _haproxy = haproxy(&site, "http", &fronts);
        for front in &fronts {
            for (listens, client) in FRONTS {
                let to = SocketAddr::new(listens.parse().unwrap(), front.port);
                let lie = "--http1.1 --header X-Forwarded-For:192.0.2.66,10.77.0.1 --header \
                           Forwarded:for=192.0.2.66";
                bed.download(to, client, (lie, "http"));
                let is_tls = front.scheme == "https";
                let record = bed.record(if is_tls { "HTTP/2.0" } else { "HTTP/1.1" });
                assert_eq!(record["remote_addr"], client, "{record}");
                assert!(record["remote_port"].is_null(), "{record}");
                assert_eq!(record["peer_addr"], KERNEL[front.family], "{record}");
            }
        }
        // The same of RFC 7239, from a client that names another one as a proxy would.
        let said = bed.reload("", &format!("{from}\nforwarded = \"forwarded\""));
        assert!(said.contains("read again"), "{said}");
        let field = "--http1.1 --header X-Forwarded-For:192.0.2.66 --header \
                     Forwarded:for=\"[2001:db8::7]:77\"";
        bed.download(HTTP_V4, KERNEL[0], (field, "http"));
        let record = bed.record("HTTP/1.1");
        assert_eq!(
            (&record["remote_addr"], &record["remote_port"]),
            (&"2001:db8::7".into(), &77.into())
        );
        assert_eq!(host_counted("http_forwarded_invalid"), 0);
        bed.end();
    });
}

/// Sends a request without a header; true if the connection is reset.
fn is_reset(to: SocketAddr) -> bool {
    let mut connection = Connection::open(to).unwrap();
    connection
        .send(b"GET /clip.mp4 HTTP/1.1\r\nHost: h\r\n\r\n")
        .unwrap();
    connection.read_head().is_err()
}

#[test]
fn connections_without_the_header_are_reset_and_those_of_others_served() {
    isolated(|site| {
        let mut bed = Bed::new(&site, &trusting(), "");
        sh(&format!("ip addr add 10.77.0.9/24 dev {LINK}"));
        for to in [HTTP_V4, SocketAddr::new(STACK_V6, 80)] {
            assert!(is_reset(to));
        }
        assert_eq!(host_counted("proxy_headers_invalid"), 2);
        let told = || {
            let text = fs::read_to_string(&bed.error).ok()?;
            let told = text.matches("header of the PROXY protocol").count();
            (told > 0).then_some(told)
        };
        let told = wait::until(SOON, "a line in the error log", told).unwrap();
        assert_eq!(told, 1, "an episode is one line");
        let to = |scheme| SocketAddr::new(STACK_V4, port_of(scheme));
        for (options, scheme, version) in WAYS {
            bed.download(to(scheme), "10.77.0.9", (options, scheme));
            let record = bed.record(version);
            assert_eq!(record["remote_addr"], "10.77.0.9");
            assert!(record["peer_addr"].is_null(), "{record}");
        }
        // A reload is for connections that begin then.
        let said = bed.reload("", "");
        assert!(said.contains("proxies:"), "{said}");
        for (options, scheme, version) in WAYS {
            bed.download(to(scheme), KERNEL[0], (options, scheme));
            assert_eq!(bed.record(version)["remote_addr"], KERNEL[0]);
        }
        bed.reload(&trusting(), "");
        assert!(is_reset(HTTP_V4));
        bed.end();
    });
}
