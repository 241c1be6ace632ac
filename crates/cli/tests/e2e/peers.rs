//! The same requests to Splitway, nginx and lighttpd, and the table of what each answers: docs/http-peers.md.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use testbed::http::be_patient;
use testbed::namespace::isolated_long;
use testbed::process::{Process, tool};
use testbed::site::{KnownFile, Site};
use testbed::splitway::HTTP_V4;
use testbed::wait;

use crate::http::parts_of;
use crate::support::{SOON, serve_with};

const UPDATE: &str = "UPDATE_PEERS=1 cargo test -p splitway-cli --test e2e peers:: -- --ignored";

const NGINX: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);
const LIGHTTPD: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8002);

/// Bytes of `/clip.mp4`.
const SIZE: u64 = 100_000;

/// A request, and why not all answer alike; empty if they do. `$E` is the server's tag of the file, `$L` its time of
/// modification.
type Row = (&'static str, &'static [&'static str], &'static str);

const ROWS: &[Row] = &[
    ("GET /clip.mp4", &[], ""),
    ("GET /clip.mp4", &["Range: bytes=0-9"], ""),
    ("GET /clip.mp4", &["Range: bytes=-5"], ""),
    ("GET /clip.mp4", &["Range: bytes=99999-"], ""),
    ("GET /clip.mp4", &["Range: bytes=99990-200000"], ""),
    (
        "GET /clip.mp4",
        &["Range: bytes=100000-"],
        "lighttpd does not say how long the file is",
    ),
    (
        "GET /clip.mp4",
        &["Range: bytes=5-1"],
        "a range that ends before it begins may be ignored or refused (RFC 9110 §14.2)",
    ),
    ("GET /clip.mp4", &["Range: lines=1-2"], ""),
    ("GET /clip.mp4", &["Range: bytes=0-0,1000-1001"], ""),
    (
        "GET /clip.mp4",
        &["Range: bytes=0-9,5-20"],
        "nginx sends bytes twice",
    ),
    (
        "GET /clip.mp4",
        &["Range: bytes=0-,0-,0-"],
        "nginx ignores ranges that are longer together than the file",
    ),
    (
        "HEAD /clip.mp4",
        &["Range: bytes=0-9"],
        "RFC 9110 §14.2 defines ranges for GET alone",
    ),
    ("GET /clip.mp4", &["If-None-Match: $E"], ""),
    ("GET /clip.mp4", &["If-None-Match: \"x\", W/$E"], ""),
    ("GET /clip.mp4", &["If-None-Match: *"], ""),
    (
        "GET /clip.mp4",
        &["If-None-Match: \"x\"", "If-Modified-Since: $L"],
        "",
    ),
    ("GET /clip.mp4", &["If-Match: $E"], ""),
    (
        "GET /clip.mp4",
        &["If-Match: \"x\""],
        "lighttpd does not look at If-Match",
    ),
    ("GET /clip.mp4", &["If-Modified-Since: $L"], ""),
    (
        "GET /clip.mp4",
        &["If-Modified-Since: Sun, 06 Nov 2033 08:49:37 GMT"],
        "nginx wants the very date; RFC 9110 §13.1.3 has any later one do",
    ),
    (
        "GET /clip.mp4",
        &["If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT"],
        "lighttpd does not look at If-Unmodified-Since",
    ),
    ("GET /clip.mp4", &["If-Range: $E", "Range: bytes=0-9"], ""),
    ("GET /clip.mp4", &["If-Range: $L", "Range: bytes=0-9"], ""),
    ("GET /clip.mp4", &["If-Range: W/$E", "Range: bytes=0-9"], ""),
    (
        "GET /clip.mp4",
        &["If-Range: \"x\"", "Range: bytes=0-9"],
        "",
    ),
    (
        "GET /style.css",
        &["Accept-Encoding: gzip"],
        "lighttpd does not look for variants",
    ),
    (
        "GET /style.css",
        &["Accept-Encoding: gzip;q=0"],
        "lighttpd does not look for variants",
    ),
    (
        "GET /style.css",
        &["Accept-Encoding: identity;q=0"],
        "nginx sends what the client said it does not take",
    ),
    (
        "GET /dir",
        &[],
        "nginx names the host, which need not be the one that the client sees",
    ),
    (
        "GET /dir/",
        &[],
        "where there is no index and no listing, there is nothing",
    ),
    ("GET /missing", &[], ""),
    (
        "OPTIONS /clip.mp4",
        &[],
        "nginx knows no OPTIONS; lighttpd allows POST to files",
    ),
    (
        "POST /clip.mp4",
        &["Content-Length: 0"],
        "lighttpd answers as if it were GET; nginx does not say what is allowed",
    ),
    (
        "DELETE /clip.mp4",
        &[],
        "RFC 9110 §15.5.6: known, and not allowed here",
    ),
    ("BREW /clip.mp4", &[], "RFC 9110 §15.6.2: not known"),
    (
        "GET /../missing",
        &[],
        "lighttpd stays at the root; others refuse what climbs above it",
    ),
    ("GET /%00", &[], ""),
    ("GET /a%2fb", &[], ""),
    (
        "GET /clip.mp4",
        &["Expect: the-unexpected"],
        "RFC 9110 §10.1.1 lets it be refused or ignored",
    ),
];

/// A server, and what it is called.
struct Peer {
    name: String,
    address: SocketAddr,
    _process: Option<Process>,
}

fn nginx(site: &Site) -> Peer {
    let (root, prefix) = (site.root().display(), site.outside().display());
    let configuration = site.outside().join("nginx.conf");
    let text = format!(
        "daemon off; user root root; pid {prefix}/nginx.pid; events {{ }}
        http {{
            types {{ text/css css; video/mp4 mp4; }}
            access_log off; gzip_static on; gzip_vary on;
            client_body_temp_path {prefix}/body; proxy_temp_path {prefix}/proxy;
            fastcgi_temp_path {prefix}/fastcgi; uwsgi_temp_path {prefix}/uwsgi; scgi_temp_path {prefix}/scgi;
            server {{ listen {NGINX}; root {root}; }}
        }}"
    );
    fs::write(&configuration, text).unwrap();
    let mut command = tool("nginx");
    command.arg("-c").arg(&configuration);
    command.arg("-e").arg(site.outside().join("error.log"));
    let version = tool("nginx -v").output().unwrap().stderr;
    peer(command, &String::from_utf8(version).unwrap(), NGINX)
}

fn lighttpd(site: &Site) -> Peer {
    let configuration = site.outside().join("lighttpd.conf");
    let text = format!(
        "server.document-root = \"{}\"\nserver.bind = \"{}\"\nserver.port = {}\n\
         mimetype.assign = ( \".css\" => \"text/css\", \".mp4\" => \"video/mp4\" )\n",
        site.root().display(),
        LIGHTTPD.ip(),
        LIGHTTPD.port(),
    );
    fs::write(&configuration, text).unwrap();
    let mut command = tool("lighttpd -D");
    command.arg("-f").arg(&configuration);
    let version = tool("lighttpd -v").output().unwrap().stdout;
    peer(command, &String::from_utf8(version).unwrap(), LIGHTTPD)
}

/// Starts a server, and waits until it answers. What it says of its version has the name and the number in a word of
/// the kind `nginx/1.22.1`.
fn peer(mut command: std::process::Command, version: &str, address: SocketAddr) -> Peer {
    let process = Process::spawn(command.stdin(Stdio::null()).stderr(Stdio::null())).unwrap();
    wait::until(SOON, "a peer answering", || {
        TcpStream::connect(address).ok()
    })
    .unwrap();
    let word = version.split_whitespace().find(|word| word.contains('/'));
    Peer {
        name: word.unwrap().replace('/', " "),
        address,
        _process: Some(process),
    }
}

/// All that a server answers, until it closes.
fn ask(peer: &Peer, line: &str, fields: &[String]) -> Vec<u8> {
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let request = format!("{line} HTTP/1.1\r\nHost: site\r\nConnection: close\r\n{fields}\r\n");
    let mut stream = TcpStream::connect(peer.address).unwrap();
    be_patient(&stream).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    match stream.read_to_end(&mut response) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => {
            panic!("{}: {error}", peer.name)
        }
        _ => response,
    }
}

/// Status and header of a response, and its body.
fn split(response: &[u8]) -> (String, &[u8]) {
    let end = response.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.expect("the end of a header");
    let head = String::from_utf8(response[..end].to_vec()).unwrap();
    (head, &response[end + 4..])
}

/// The value of a header field.
fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.split("\r\n").find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

/// What matters of a response, in a few words; whatever it has of a file is compared with that.
fn summary(site: &Site, clip: &KnownFile, line: &str, response: &[u8]) -> String {
    let (head, body) = split(response);
    let status = head.split(' ').nth(1).unwrap();
    let mut words = vec![status.to_owned()];
    let multipart = field(&head, "content-type").is_some_and(|it| it.starts_with("multipart/"));
    if multipart {
        let parts = parts_of(response, clip).into_iter();
        let parts: Vec<_> = parts
            .map(|part| format!("{}-{}", part.start, part.end - 1))
            .collect();
        words.push(format!("parts {}", parts.join(", ")));
    } else if let Some(range) = field(&head, "content-range") {
        words.push(range.to_owned());
        let first = range
            .trim_start_matches("bytes ")
            .split('-')
            .next()
            .unwrap();
        if status == "206" && !line.starts_with("HEAD") {
            assert_eq!(
                clip.check(first.parse().unwrap(), body),
                Ok(()),
                "{line}: {head}"
            );
        }
    } else if status == "200" && line.starts_with("GET ") {
        let packed = field(&head, "content-encoding").map_or("", |_| ".gz");
        let file = line.trim_start_matches("GET /").to_owned() + packed;
        assert!(
            fs::read(site.root().join(file)).unwrap() == body,
            "{line}: {head}"
        );
    }
    for (name, before) in [
        ("content-encoding", ""),
        ("vary", "Vary: "),
        ("location", "→ "),
        ("allow", "Allow: "),
    ] {
        words.extend(field(&head, name).map(|value| format!("{before}{value}")));
    }
    words.join("; ")
}

fn table(peers: &[Peer], site: &Site, clip: &KnownFile) -> String {
    let names: Vec<_> = peers.iter().map(|peer| peer.name.as_str()).collect();
    let mut text = format!(
        "# HTTP next to others\n\n\
         What is answered to the same requests by {}, made by `e2e/peers.rs`, which compares every byte of a file that \
         comes. `$E` is the server's own tag of the file, `$L` its time of modification. To make the table anew:\n\n\
         ```sh\n{UPDATE}\n```\n\n\
         | Request | {} | Why they differ |\n|---|---|---|---|---|\n",
        names.join(", "),
        names.join(" | "),
    );
    for (line, fields, why) in ROWS {
        let answers: Vec<String> = peers
            .iter()
            .map(|peer| {
                let response = ask(peer, "HEAD /clip.mp4", &[]);
                let (head, _) = split(&response);
                let known = |name| field(&head, name).expect("a validator");
                let fields: Vec<String> = fields
                    .iter()
                    .map(|field| {
                        field
                            .replace("$E", known("etag"))
                            .replace("$L", known("last-modified"))
                    })
                    .collect();
                summary(site, clip, line, &ask(peer, line, &fields))
            })
            .collect();
        let alike = answers.iter().all(|answer| *answer == answers[0]);
        assert_eq!(alike, why.is_empty(), "{line} {fields:?}: {answers:#?}");
        let request = [&[*line][..], fields].concat().join("`<br>`");
        text += &format!("| `{request}` | {} | {why} |\n", answers.join(" | "));
    }
    text
}

#[test]
#[ignore = "needs nginx and lighttpd"]
fn the_table_of_what_others_answer_is_true() {
    isolated_long(|site| {
        let clip = site.file("clip.mp4", SIZE).unwrap();
        fs::write(
            site.root().join("style.css"),
            "p { color: red }\n".repeat(100),
        )
        .unwrap();
        fs::create_dir(site.root().join("dir")).unwrap();
        testbed::process::run(tool("gzip --keep").arg(site.root().join("style.css"))).unwrap();
        // Tags are weak while a file is fresh.
        let touch = "touch -d 2020-01-01 clip.mp4 style.css style.css.gz";
        testbed::process::run(tool(touch).current_dir(site.root())).unwrap();
        let _splitway = serve_with(&site, &["--precompressed", "gzip"]);
        let own = Peer {
            name: "Splitway".to_owned(),
            address: HTTP_V4,
            _process: None,
        };
        wait::until(SOON, "a strong tag", || {
            let response = ask(&own, "HEAD /clip.mp4", &[]);
            field(&split(&response).0, "etag")
                .unwrap()
                .starts_with('"')
                .then_some(())
        })
        .unwrap();
        let found = table(&[own, nginx(&site), lighttpd(&site)], &site, &clip);
        let page: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/http-peers.md");
        if std::env::var_os("UPDATE_PEERS").is_some() {
            fs::write(&page, &found).unwrap();
        }
        let written = fs::read_to_string(&page).unwrap();
        let versions = |text: &str| text.lines().nth(2).map(str::to_owned);
        // Others may answer otherwise in other versions, as long as what is said of the difference is so.
        if versions(&written) == versions(&found) {
            assert!(
                written == found,
                "docs/http-peers.md is not what is answered: {UPDATE}\n{found}"
            );
        }
    });
}
