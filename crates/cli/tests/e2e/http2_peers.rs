//! The same frames to Splitway, nginx, lighttpd, Caddy and nghttpd, and the table of their answers
//! beside the text of the RFCs: docs/http2-peers.md.

mod cases;
mod client;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};

use testbed::namespace::isolated_long;
use testbed::process::{Process, tool};
use testbed::site::{KnownFile, Site};
use testbed::splitway::HTTP_V4;
use testbed::wait;

use self::cases::{Case, all};
use self::client::Client;
use crate::config::{configuration, serve_configured};
use crate::support::SOON;

const UPDATE: &str =
    "UPDATE_PEERS=1 cargo test -p splitway-cli --test e2e http2_peers:: -- --ignored";

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

const NGINX: SocketAddr = local(8001);
const LIGHTTPD: SocketAddr = local(8002);
const CADDY: SocketAddr = local(8003);
const NGHTTPD: SocketAddr = local(8004);

/// A server, and its name with the version.
struct Peer {
    name: String,
    address: SocketAddr,
    _process: Option<Process>,
}

/// Starts a server, and waits until it accepts connections. `version` is the output in which its
/// number follows `before`.
fn peer(
    mut command: Command,
    (name, version, before): (&str, &str, &str),
    address: SocketAddr,
) -> Peer {
    let version = tool(version).output().unwrap();
    let version = [version.stdout, version.stderr].concat();
    let version = String::from_utf8(version).unwrap();
    let (_, number) = version.split_once(before).unwrap();
    let number = number.split([' ', '\n']).next().unwrap();
    let process = Process::spawn(command.stdin(Stdio::null()).stderr(Stdio::null())).unwrap();
    wait::until(SOON, "a peer that accepts connections", || {
        std::net::TcpStream::connect(address).ok()
    })
    .unwrap();
    Peer {
        name: format!("{name} {number}"),
        address,
        _process: Some(process),
    }
}

fn nginx(site: &Site) -> Peer {
    let (root, prefix) = (site.root().display(), site.outside().display());
    let configuration = site.outside().join("nginx.conf");
    let text = format!(
        "daemon off; user root root; pid {prefix}/nginx.pid; events {{ }}
        http {{
            access_log off; client_body_temp_path {prefix}/body; proxy_temp_path {prefix}/proxy;
            fastcgi_temp_path {prefix}/fastcgi; uwsgi_temp_path {prefix}/uwsgi;
            scgi_temp_path {prefix}/scgi; server {{ listen {NGINX} http2; root {root}; }}
        }}"
    );
    fs::write(&configuration, text).unwrap();
    let mut command = tool("nginx");
    command.arg("-c").arg(&configuration);
    command.arg("-e").arg(site.outside().join("error.log"));
    peer(command, ("nginx", "nginx -v", "nginx/"), NGINX)
}

fn lighttpd(site: &Site) -> Peer {
    let configuration = site.outside().join("lighttpd.conf");
    let text = format!(
        "server.document-root = \"{}\"\nserver.bind = \"{}\"\nserver.port = {}\n",
        site.root().display(),
        LIGHTTPD.ip(),
        LIGHTTPD.port(),
    );
    fs::write(&configuration, text).unwrap();
    let mut command = tool("lighttpd -D");
    command.arg("-f").arg(&configuration);
    peer(command, ("lighttpd", "lighttpd -v", "lighttpd/"), LIGHTTPD)
}

fn caddy(site: &Site) -> Peer {
    let configuration = site.outside().join("Caddyfile");
    let text = format!(
        "{{
            admin off
            auto_https off
            servers {{
                protocols h1 h2c
            }}
        }}
        http://:{} {{
            bind {}
            root * {}
            file_server
        }}\n",
        CADDY.port(),
        CADDY.ip(),
        site.root().display(),
    );
    fs::write(&configuration, text).unwrap();
    let mut command = tool("caddy run --adapter caddyfile");
    command.arg("--config").arg(&configuration);
    for place in ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
        command.env(place, site.outside());
    }
    peer(command, ("Caddy", "caddy version", ""), CADDY)
}

fn nghttpd(site: &Site) -> Peer {
    let mut command = tool("nghttpd --no-tls");
    command.arg("--address").arg(NGHTTPD.ip().to_string());
    command.arg("--htdocs").arg(site.root());
    command.arg(NGHTTPD.port().to_string());
    let version = ("nghttpd", "nghttpd --version", "nghttp2/");
    peer(command, version, NGHTTPD)
}

/// The answer of a server to a case.
fn outcome(peer: &Peer, case: &Case, file: &KnownFile) -> String {
    let mut client = Client::connect(peer.address, file);
    for (bytes, watched) in &case.steps {
        client.begin_step();
        client.send(bytes);
        client.read_until_answer(*watched);
    }
    match case.awaits_end {
        true => client.read_to_end(),
        false => client.read_to_fence(),
    }
    client.outcome()
}

/// The text permits this answer.
fn is_permitted(case: &Case, outcome: &str) -> bool {
    case.permitted.contains(&outcome)
}

fn table(peers: &[Peer], file: &KnownFile) -> String {
    let names: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
    let mut text = format!(
        "# HTTP/2 next to others\n\nThe answers of {} to the same frames, made by \
         `e2e/http2_peers.rs`, without TLS. Each row is a connection of its own: SETTINGS and a \
         large window, then the frames of the row. Where these are not a request by themselves, a \
         GET follows, and its status shows that the connection goes on. Every byte of a file is \
         compared.\n\n`RST_STREAM` and `GOAWAY` have the code that the server sends; *closes*: \
         the connection ends without GOAWAY; *waits*: no answer within five seconds. **Bold** \
         answers are none of those that the text has. A stream error may be a connection error \
         (RFC 9113 §5.4.1), and a malformed request may be answered with 400 (§8.1.1). To make the \
         table again:\n\n```sh\n{UPDATE}\n```\n\n| The client sends | The text | {} |\n\
         |---|---|{}\n",
        names.join(", "),
        names.join(" | "),
        "---|".repeat(names.len()),
    );
    let mut faults = Vec::new();
    for case in all() {
        let answers = peers.iter().map(|peer| {
            let outcome = outcome(peer, &case, file);
            let is_permitted = is_permitted(&case, &outcome);
            if peer.address == HTTP_V4 && !is_permitted {
                faults.push(format!("{}: {outcome}, {}", case.what, case.rule));
            }
            match is_permitted {
                true => outcome,
                false => format!("**{outcome}**"),
            }
        });
        let answers: Vec<String> = answers.collect();
        let (what, rule) = (case.what, case.rule);
        text += &format!("| {what} | {rule} | {} |\n", answers.join(" | "));
    }
    println!("{text}");
    assert!(faults.is_empty(), "Splitway is at fault: {faults:#?}");
    text
}

/// The rows up to Splitway's answers. Other servers answer otherwise in other versions,
/// and some by chance.
fn own_column(page: &str) -> Vec<Vec<&str>> {
    let rows = page.lines().filter(|line| line.starts_with('|'));
    rows.map(|row| row.split(" | ").take(3).collect()).collect()
}

#[test]
#[ignore = "needs nginx, lighttpd, Caddy and nghttpd"]
fn the_table_of_answers_of_other_servers_is_true() {
    isolated_long(|site| {
        let file = site.file("file", 100_000).unwrap();
        let path = configuration(&site, "[http]\nhttp2_prior_knowledge = true\n");
        let _splitway = serve_configured(&path);
        let own = Peer {
            name: "Splitway".to_owned(),
            address: HTTP_V4,
            _process: None,
        };
        let peers = [
            own,
            nginx(&site),
            lighttpd(&site),
            caddy(&site),
            nghttpd(&site),
        ];
        let found = table(&peers, &file);
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/http2-peers.md");
        if std::env::var_os("UPDATE_PEERS").is_some() {
            fs::write(&page, &found).unwrap();
        }
        let written = fs::read_to_string(&page).unwrap();
        assert_eq!(
            own_column(&written),
            own_column(&found),
            "docs/http2-peers.md is not what is answered: {UPDATE}"
        );
    });
}
