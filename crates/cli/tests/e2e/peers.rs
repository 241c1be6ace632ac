//! The same requests to Splitway, nginx, lighttpd and Caddy, and the table of what each answers:
//! docs/http-peers.md.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use testbed::http::be_patient;
use testbed::namespace::isolated_long;
use testbed::process::{Process, tool};
use testbed::site::{KnownFile, Site, write_secret};
use testbed::splitway::{HTTP_V4, Splitway};
use testbed::wait;
use testbed::web::{Reply, Request, Web, content};

use crate::http::parts_of;
use crate::support::{SOON, program};

const UPDATE: &str = "UPDATE_PEERS=1 cargo test -p splitway-cli --test e2e peers:: -- --ignored";

const NGINX: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);
const LIGHTTPD: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8002);
const CADDY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8003);

/// Bytes of `/clip.mp4`.
const SIZE: u64 = 100_000;

/// A request, and why not all answer alike; empty if they do. `$E` is the server's tag of
/// `/clip.mp4`, `$L` its time of modification, `$S` the path of `/private/a.mp4` signed as the
/// server wants it, `$X` stands for 20,000 letters.
type Row = (&'static str, &'static [&'static str], &'static str);

const ROWS: &[Row] = &[
    ("GET /clip.mp4", &[], ""),
    ("HEAD /clip.mp4", &[], ""),
    ("GET /", &[], "a server that looks for variants says so"),
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
    (
        "GET /clip.mp4",
        &["Range: lines=1-2"],
        "RFC 9110 §14.2 has a unit that is not known ignored",
    ),
    ("GET /clip.mp4", &["Range: bytes=0-0,1000-1001"], ""),
    (
        "GET /clip.mp4",
        &["Range: bytes=0-9,5-20"],
        "nginx and Caddy send bytes twice",
    ),
    (
        "GET /clip.mp4",
        &["Range: bytes=0-,0-,0-"],
        "nginx and Caddy ignore ranges that are longer together than the file",
    ),
    (
        "HEAD /clip.mp4",
        &["Range: bytes=0-9"],
        "RFC 9110 §14.2 defines ranges for GET alone",
    ),
    ("GET /5GiB.mp4", &["Range: bytes=4294967290-4294967305"], ""),
    ("GET /5GiB.mp4", &["Range: bytes=-16"], ""),
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
        &["Accept-Encoding: br"],
        "nginx comes without brotli and zstd; lighttpd does not look for variants",
    ),
    (
        "GET /style.css",
        &["Accept-Encoding: zstd"],
        "nginx comes without brotli and zstd; lighttpd does not look for variants",
    ),
    (
        "GET /style.css",
        &["Accept-Encoding: gzip, deflate, br, zstd"],
        "nginx comes without brotli and zstd; lighttpd does not look for variants",
    ),
    (
        "GET /style.css",
        &["Accept-Encoding: br;q=0.5, gzip"],
        "lighttpd does not look for variants",
    ),
    (
        "GET /style.css",
        &["Accept-Encoding: *"],
        "nginx and Caddy do not know that it stands for all codings",
    ),
    (
        "GET /style.css",
        &["Accept-Encoding: gzip", "Range: bytes=0-9"],
        "most libraries cannot decode a part of a variant: Splitway sends that of the plain file, \
         nginx the whole variant; lighttpd does not look for variants",
    ),
    ("GET /clip.mp4", &["Accept-Encoding: gzip"], ""),
    (
        "GET /style.css",
        &["Accept-Encoding: gzip;q=0"],
        "lighttpd does not look for variants",
    ),
    (
        "GET /style.css",
        &["Accept-Encoding: identity;q=0"],
        "others send what the client said it does not take",
    ),
    (
        "GET /dir",
        &[],
        "nginx names the host, which need not be the one that the client sees; Caddy redirects \
         only where there is an index",
    ),
    (
        "GET /dir/",
        &[],
        "where there is no index and no listing, there is nothing",
    ),
    (
        "GET /listed/",
        &[],
        "a link that leads out of the root is nothing here that could be asked for; Caddy lists \
         names that begin with a dot; a server that has JSON as well says so",
    ),
    (
        "GET /listed/",
        &["Accept: application/json"],
        "as above; nginx has one of both for all, lighttpd has pages only, Caddy does not say that \
         it has both",
    ),
    (
        "HEAD /listed/",
        &[],
        "a server that has JSON as well says so",
    ),
    (
        "GET /listed/sub/",
        &[],
        "a server that has JSON as well says so",
    ),
    (
        "GET /listed/sub",
        &[],
        "nginx names the host, which need not be the one that the client sees; Caddy's redirect is \
         308",
    ),
    (
        "GET /listed/with-index/",
        &[],
        "an index comes first; a server that looks for variants says so",
    ),
    (
        "GET /missing",
        &[],
        "the status depends on Accept-Encoding where a variant may exist without its file",
    ),
    (
        "OPTIONS /clip.mp4",
        &[],
        "nginx knows no OPTIONS; lighttpd allows POST to files; Caddy answers any method as if it \
         were GET",
    ),
    (
        "POST /clip.mp4",
        &["Content-Length: 0"],
        "lighttpd and Caddy answer as if it were GET; nginx does not say what is allowed",
    ),
    (
        "DELETE /clip.mp4",
        &[],
        "RFC 9110 §15.5.6: known, and not allowed here; Caddy answers as if it were GET",
    ),
    (
        "BREW /clip.mp4",
        &[],
        "RFC 9110 §15.6.2: not known; Caddy answers as if it were GET",
    ),
    (
        "GET /../missing",
        &[],
        "lighttpd and Caddy stay at the root; others refuse what climbs above it",
    ),
    ("GET /%00", &[], "Caddy takes it for a mistake of its own"),
    ("GET /a%2fb", &[], ""),
    (
        "GET /clip.mp4",
        &["Content-Length: 5\r\n\r\nhello"],
        "lighttpd wants no body with GET",
    ),
    (
        "GET /clip.mp4",
        &["Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"],
        "a body of unknown length that no server wants: lighttpd refuses any, Splitway asks for \
         its length, others skip it",
    ),
    (
        "GET /clip.mp4",
        &[
            "Content-Length: 5",
            "Transfer-Encoding: chunked\r\n\r\n0\r\n",
        ],
        "two lengths may be two requests to another server (RFC 9112 §6.1); Caddy believes the \
         second",
    ),
    (
        "POST /clip.mp4",
        &["Content-Length: 5\r\n\r\nhello"],
        "lighttpd and Caddy answer as if it were GET; nginx does not say what is allowed",
    ),
    (
        "POST /clip.mp4",
        &["Expect: 100-continue", "Content-Length: 5"],
        "lighttpd and Caddy answer as if it were GET; nginx does not say what is allowed",
    ),
    ("GET /clip.mp4", &["Host: other"], ""),
    (
        "GET http://media.example/of-its-own.mp4",
        &[],
        "lighttpd wants Host to say the same; RFC 9112 §3.2.2 has it ignored",
    ),
    ("GET /of-its-own.mp4", &[], ""),
    ("GET /cached/a.mp4", &[], ""),
    (
        "GET /cached/a.mp4",
        &["If-Modified-Since: $L"],
        "lighttpd leaves out what RFC 9110 §15.4.5 asks for",
    ),
    (
        "GET /cached/missing",
        &[],
        "Caddy has caches keep errors as well",
    ),
    (
        "GET /old/a/b?c=d",
        &[],
        "nginx names the host; Caddy keeps the query only where its configuration says so",
    ),
    (
        "GET /cors/a.mp4",
        &["Origin: https://example.org"],
        "others send a fixed field; Splitway looks at the origin, and says so to caches",
    ),
    (
        "GET /cors/a.mp4",
        &["Origin: https://other.example"],
        "others send a fixed field; Splitway looks at the origin, and says so to caches",
    ),
    (
        "OPTIONS /cors/a.mp4",
        &[
            "Origin: https://example.org",
            "Access-Control-Request-Method: GET",
            "Access-Control-Request-Headers: range",
        ],
        "others answer preflights only where each field is written down for them",
    ),
    (
        "GET /private/a.mp4",
        &[],
        "Caddy has no signed URLs, and lighttpd was not told to have them: its mod_secdownload has \
         signatures in paths",
    ),
    (
        "GET /private/a.mp4?expires=1&key=key&signature=00",
        &[],
        "Caddy has no signed URLs, and lighttpd was not told to have them: its mod_secdownload has \
         signatures in paths",
    ),
    ("GET $S", &[], ""),
    (
        "GET /clip.mp4",
        &["X: $X"],
        "nginx says it in its own way; Caddy takes up to 1 MB",
    ),
    (
        "GET /$X",
        &[],
        "lighttpd counts the line as a part of the head; Caddy takes it for a mistake of its own",
    ),
    (
        "GET /clip.mp4",
        &["Expect: the-unexpected"],
        "RFC 9110 §10.1.1 lets it be refused or ignored",
    ),
];

/// What comes from an origin: the request, what the origin answers ([`reply`]), and why not all do
/// alike. Each row finds what those before it have left in caches.
const PULLS: &[(&str, &[&str], &str, &str)] = &[
    ("GET /pulled/a.mp4", &[], "fresh", ""),
    (
        "GET /pulled/a.mp4",
        &[],
        "fresh",
        "Caddy and lighttpd have no cache",
    ),
    (
        "GET /pulled/a.mp4",
        &["Range: bytes=2000000-2000009"],
        "fresh",
        "Caddy and lighttpd have no cache, and pass ranges on",
    ),
    (
        "GET /pulled/b.mp4",
        &["Range: bytes=2000000-2000009"],
        "fresh",
        "a server that has a cache fetches more than the range",
    ),
    (
        "GET /pulled/b.mp4",
        &["Range: bytes=0-9"],
        "fresh",
        "Caddy and lighttpd have no cache, and pass ranges on",
    ),
    ("GET /pulled/private.mp4", &[], "private", ""),
    ("GET /pulled/private.mp4", &[], "private", ""),
    ("GET /pulled/cookie.mp4", &[], "a cookie", ""),
    ("GET /pulled/cookie.mp4", &[], "a cookie", ""),
    ("GET /pulled/stale.mp4", &[], "fresh for 1 s", ""),
    (
        "GET /pulled/stale.mp4",
        &[],
        "500",
        "what is stale stands in, where there is a cache",
    ),
    (
        "GET /pulled/stale.mp4",
        &[],
        "fresh for 1 s",
        "a server that has a cache asks whether it is still good",
    ),
    ("GET /pulled/missing.mp4", &[], "404", ""),
    (
        "GET /pulled/500.mp4",
        &[],
        "500",
        "others pass on what went wrong behind them; it is 502 here",
    ),
    (
        "GET /pulled/503.mp4",
        &[],
        "503",
        "it may be over in a moment: Splitway asks three times",
    ),
    (
        "GET /pulled/504.mp4",
        &[],
        "504",
        "it may be over in a moment: Splitway asks three times",
    ),
    (
        "GET /dead/a.mp4",
        &[],
        "nothing",
        "lighttpd takes it for a fault of its own",
    ),
];

/// Bytes of what the origin has.
const PULLED_BYTES: usize = 3_000_000;

/// What the origin answers that is said to answer so.
fn reply(kind: &str, request: &Request) -> Reply {
    let body = content(PULLED_BYTES, 1);
    match kind {
        "fresh" => Reply::in_parts(request, "\"v\"", "Cache-Control: max-age=1000", &body),
        "fresh for 1 s" => {
            let fields = "Cache-Control: max-age=1, stale-if-error=1000";
            Reply::in_parts(request, "\"v\"", fields, &body)
        }
        "private" => Reply::ok("Cache-Control: private", &body),
        "a cookie" => Reply::ok("Cache-Control: max-age=1000\nSet-Cookie: a=b", &body),
        status => Reply::status(status.parse().unwrap()),
    }
}

/// A server, and what it is called.
struct Peer {
    name: String,
    /// `/private/a.mp4`, signed for it.
    signed: String,
    address: SocketAddr,
    _process: Option<Process>,
}

fn nginx(site: &Site, web: &Web) -> Peer {
    let origin = &web.url;
    let (root, prefix) = (site.root().display(), site.outside().display());
    let configuration = site.outside().join("nginx.conf");
    let text = format!(
        "daemon off; user root root; pid {prefix}/nginx.pid; events {{ }}
        http {{
            types {{ text/css css; video/mp4 mp4; }}
            access_log off; gzip_static on; gzip_vary on;
            client_body_temp_path {prefix}/body; proxy_temp_path {prefix}/proxy;
            proxy_cache_path {prefix}/cache keys_zone=cache:1m;
            fastcgi_temp_path {prefix}/fastcgi; uwsgi_temp_path {prefix}/uwsgi;
            scgi_temp_path {prefix}/scgi;
            server {{
                listen {NGINX}; server_name site; root {root};
                error_page 404 /errors/404.html;
                location /listed/ {{ autoindex on; }}
                location /cached/ {{ expires 10m; }}
                location /old/ {{ rewrite ^/old/(.*)$ /new/$1 permanent; }}
                location /cors/ {{ add_header Access-Control-Allow-Origin https://example.org; }}
                location /pulled/ {{
                    proxy_pass {origin};
                    proxy_cache cache;
                    proxy_cache_revalidate on;
                    proxy_cache_use_stale error timeout http_500 http_502 http_503 http_504;
                }}
                location /dead/ {{ proxy_pass {DEAD}; }}
                location /private/ {{
                    secure_link $arg_signature,$arg_expires;
                    secure_link_md5 \"$secure_link_expires$uri secret\";
                    if ($secure_link = \"\") {{ return 403; }}
                    if ($secure_link = \"0\") {{ return 410; }}
                }}
            }}
            server {{ listen {NGINX}; server_name media.example; root {root}/media; }}
        }}"
    );
    fs::write(&configuration, text).unwrap();
    let mut command = tool("nginx");
    command.arg("-c").arg(&configuration);
    command.arg("-e").arg(site.outside().join("error.log"));
    let version = tool("nginx -v").output().unwrap().stderr;
    let mac = md5(&format!("{EXPIRES}/private/a.mp4 secret"));
    let mac = mac.replace('+', "-").replace('/', "_");
    let signed = format!(
        "/private/a.mp4?signature={}&expires={EXPIRES}",
        mac.trim_end_matches('=')
    );
    let version = String::from_utf8(version).unwrap();
    peer(command, &version, signed, NGINX)
}

fn lighttpd(site: &Site, web: &Web) -> Peer {
    let port = port_of(web);
    let root = site.root().display();
    let configuration = site.outside().join("lighttpd.conf");
    let text = format!(
        "server.document-root = \"{}\"\nserver.bind = \"{}\"\nserver.port = {}\nindex-file.names = \
         ( \"index.html\" )\nmimetype.assign = ( \".css\" => \"text/css\", \".mp4\" => \
         \"video/mp4\" )\nserver.modules = ( \"mod_redirect\", \"mod_expire\", \"mod_setenv\", \
         \"mod_proxy\" )\n$HTTP[\"url\"] =~ \"^/pulled/\" {{ proxy.server = ( \"\" => (( \"host\" \
         => \"127.0.0.1\", \"port\" => {port} )) ) }}\n$HTTP[\"url\"] =~ \"^/dead/\" {{ \
         proxy.server = ( \"\" => (( \"host\" => \"127.0.0.1\", \"port\" => 1 )) ) }}\n\
         server.errorfile-prefix = \"{root}/errors/\"\nexpire.url = ( \"/cached/\" => \"access \
         plus 10 minutes\" )\nurl.redirect = ( \"^/old/(.*)$\" => \"/new/$1\" )\n$HTTP[\"url\"] =~ \
         \"^/listed/\" {{ dir-listing.activate = \"enable\" }}\n$HTTP[\"url\"] =~ \"^/cors/\" {{ \
         setenv.add-response-header = ( \"Access-Control-Allow-Origin\" => \"https://example.org\" \
         ) }}\n$HTTP[\"host\"] == \"media.example\" {{ server.document-root = \"{root}/media\" \
         }}\n",
        site.root().display(),
        LIGHTTPD.ip(),
        LIGHTTPD.port(),
    );
    fs::write(&configuration, text).unwrap();
    let mut command = tool("lighttpd -D");
    command.arg("-f").arg(&configuration);
    let version = tool("lighttpd -v").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    let unsigned = "/private/a.mp4".to_owned();
    peer(command, &version, unsigned, LIGHTTPD)
}

fn caddy(site: &Site, web: &Web) -> Peer {
    let port = port_of(web);
    let configuration = site.outside().join("Caddyfile");
    let text = format!(
        "{{
            admin off
            auto_https off
        }}
        http://:{} {{
            bind {}
            root * {root}
            header /cached/* Cache-Control max-age=600
            header /cors/* Access-Control-Allow-Origin https://example.org
            @old path_regexp old ^/old/(.*)$
            redir @old /new/{{re.old.1}} 301
            file_server /listed/* browse
            reverse_proxy /pulled/* 127.0.0.1:{port}
            reverse_proxy /dead/* 127.0.0.1:1
            file_server {{
                precompressed br zstd gzip
            }}
            handle_errors {{
                @missing expression {{http.error.status_code}} == 404
                rewrite @missing /errors/404.html
                file_server
            }}
        }}
        http://media.example:{} {{
            bind {}
            root * {root}/media
            file_server
        }}\n",
        CADDY.port(),
        CADDY.ip(),
        CADDY.port(),
        CADDY.ip(),
        root = site.root().display(),
    );
    fs::write(&configuration, text).unwrap();
    let mut command = tool("caddy run --adapter caddyfile");
    command.arg("--config").arg(&configuration);
    for place in ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
        command.env(place, site.outside());
    }
    let version = tool("caddy version").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    let number = version
        .split_whitespace()
        .next()
        .unwrap()
        .trim_start_matches('v');
    let unsigned = "/private/a.mp4".to_owned();
    peer(command, &format!("Caddy/{number}"), unsigned, CADDY)
}

/// A port without a listener.
const DEAD: &str = "http://127.0.0.1:1";

/// Until when signed URLs are good, where they say that.
const EXPIRES: u64 = 4_000_000_000;

const SECRET: &str = "more than sixteen bytes";

fn port_of(web: &Web) -> &str {
    web.url.rsplit(':').next().unwrap()
}

/// MD5 of a text in base64, as nginx has it in signed URLs.
fn md5(text: &str) -> String {
    piped("openssl dgst -md5 -binary | openssl base64", text)
}

/// What a line of the shell makes of a text.
fn piped(line: &str, text: &str) -> String {
    let mut shell = std::process::Command::new("sh");
    let shell = shell.args(["-c", line]).stdin(Stdio::piped());
    let mut shell = shell.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = shell.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    let output = shell.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Splitway, with the same.
fn splitway(site: &Site, web: &Web) -> Splitway {
    let origin = &web.url;
    let configuration = site.outside().join("splitway.toml");
    write_secret(&site.outside().join("key"), SECRET).unwrap();
    let text = format!(
        "[[listen]]
        port = 80
        [nic]
        root = {:?}
        [http]
        precompressed = [\"br\", \"zstd\", \"gzip\"]
        [signing_keys]
        key = \"key\"
        [[site]]
        error_pages = {{ 404 = \"errors/404.html\" }}
        [[site.rule]]
        path = \"/cached/*\"
        cache_control = \"max-age=600\"
        expires = \"10m\"
        [[site.rule]]
        path = \"/old/*\"
        redirect = {{ status = 301, to = \"/new/*\" }}
        [[site.rule]]
        path = \"/cors/*\"
        cors = {{ origins = [\"https://example.org\"] }}
        [[site.rule]]
        path = \"/listed/*\"
        listing = true
        [[site.rule]]
        path = \"/private/*\"
        signed_by = [\"key\"]
        [[site.rule]]
        path = \"/pulled/*\"
        origin = {origin:?}
        [[site.rule]]
        path = \"/dead/*\"
        origin = {DEAD:?}
        [[site]]
        names = [\"media.example\"]
        root = \"media\"\n",
        site.root()
    );
    fs::write(&configuration, text).unwrap();
    let mut command = std::process::Command::new(program());
    command.args(["serve", "--config"]).arg(&configuration);
    Splitway::start(&mut command).unwrap()
}

/// Starts a server, and waits until it answers. What it says of its version has the name and the
/// number in a word of the kind `nginx/1.22.1`.
fn peer(
    mut command: std::process::Command,
    version: &str,
    signed: String,
    address: SocketAddr,
) -> Peer {
    let process = Process::spawn(command.stdin(Stdio::null()).stderr(Stdio::null())).unwrap();
    wait::until(SOON, "a peer answering", || {
        TcpStream::connect(address).ok()
    })
    .unwrap();
    let word = version.split_whitespace().find(|word| word.contains('/'));
    Peer {
        name: word.unwrap().replace('/', " "),
        signed,
        address,
        _process: Some(process),
    }
}

/// All that a server answers, until it closes.
fn ask(peer: &Peer, line: &str, fields: &[String]) -> Vec<u8> {
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let request = format!("{line} HTTP/1.1\r\nHost: site\r\nConnection: close\r\n{fields}\r\n");
    let request = request
        .replace("$X", &"x".repeat(20_000))
        .replace("$S", &peer.signed);
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

/// The values of all lines of a field (RFC 9110 §5.3).
fn values(head: &str, name: &str) -> Option<String> {
    let lines = head.split("\r\n").filter_map(|line| field(line, name));
    let values: Vec<&str> = lines.collect();
    (!values.is_empty()).then(|| values.join(", "))
}

/// The names that a listing of a directory tells, in the order of the alphabet.
fn listed(body: &[u8]) -> Vec<String> {
    let text = String::from_utf8(body.to_vec()).unwrap();
    let mut names: Vec<String> = match serde_json::from_str::<Vec<serde_json::Value>>(&text) {
        Ok(entries) => {
            let names = entries.iter();
            names
                .map(|entry| {
                    entry["name"]
                        .as_str()
                        .unwrap()
                        .trim_end_matches('/')
                        .to_owned()
                })
                .collect()
        }
        Err(_) => text
            .split("href=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap())
            .map(|link| link.trim_start_matches("./"))
            // What leads up, sorts, or belongs to the page.
            .filter(|link| {
                !link.is_empty() && !link.starts_with("..") && !link.starts_with(['?', '/', '#'])
            })
            .filter(|link| !link.contains(':'))
            .map(|link| {
                link.trim_end_matches('/')
                    .replace("%25", "%")
                    .replace("%20", " ")
            })
            .collect(),
    };
    names.sort();
    names.dedup();
    names
}

/// What matters of a response, in a few words; whatever it has of a file is compared with that.
fn summary(site: &Site, known: &[KnownFile], line: &str, response: &[u8]) -> String {
    let (head, body) = split(response);
    let name = line.split_once(' ').unwrap().1;
    let name = match name.trim_start_matches('/') {
        "" => "index.html".to_owned(),
        "$S" => "private/a.mp4".to_owned(),
        name => name.replace("http://media.example", "media"),
    };
    let name = name.split('?').next().unwrap();
    let name = match name {
        "listed/with-index/" => "listed/with-index/index.html",
        name => name,
    };
    let known = known.iter().find(|file| file.name() == name);
    let status = head.split(' ').nth(1).unwrap();
    let mut words = vec![status.to_owned()];
    let multipart = field(&head, "content-type").is_some_and(|it| it.starts_with("multipart/"));
    if multipart {
        let parts = parts_of(response, known.unwrap()).into_iter();
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
        if let (Some(known), "206", false) = (known, status, line.starts_with("HEAD")) {
            assert_eq!(
                known.check(first.parse().unwrap(), body),
                Ok(()),
                "{line}: {head}"
            );
        }
    } else if status == "404" && body == fs::read(site.root().join("errors/404.html")).unwrap() {
        words.push("its page".to_owned());
    } else if status == "200" && line.starts_with("GET ") && name.ends_with("/") {
        words.push(format!("lists {}", listed(body).join(", ")));
    } else if status == "200" && line.starts_with("GET ") {
        let packed = match field(&head, "content-encoding") {
            None => "",
            Some("gzip") => ".gz",
            Some("br") => ".br",
            Some("zstd") => ".zst",
            Some(other) => panic!("{other}"),
        };
        let file = name.to_owned() + packed;
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
        ("cache-control", "Cache-Control: "),
        (
            "access-control-allow-origin",
            "Access-Control-Allow-Origin: ",
        ),
        (
            "access-control-allow-methods",
            "Access-Control-Allow-Methods: ",
        ),
    ] {
        words.extend(values(&head, name).map(|value| format!("{before}{value}")));
    }
    words.join("; ")
}

fn table(peers: &[Peer], site: &Site, known: &[KnownFile]) -> String {
    let mut unexplained = Vec::new();
    let names: Vec<_> = peers.iter().map(|peer| peer.name.as_str()).collect();
    let mut text = format!(
        "# HTTP next to others\n\nWhat is answered to the same requests by {}, made by \
         `e2e/peers.rs`, which compares every byte of a file that comes. `$E` is the server's own \
         tag of the file, `$L` its time of modification, `$S` is `/private/a.mp4` signed as the \
         server wants it (Splitway with HMAC-SHA256, nginx's secure_link with MD5, the others not \
         at all), `$X` stands for 20,000 letters. All are configured alike as far as they can be: \
         variants, a page for 404, `Cache-Control` for `/cached/`, a redirect from `/old/`, CORS \
         for `/cors/`, signed URLs in `/private/`, listings below `/listed/`, a site of its own at \
         `media.example`. What shows in no single answer is not here: rates, pacing, limits of \
         connections and times ([http.md](http.md)). To make the table again:\n\n```sh\n{UPDATE}\n\
         ```\n\n| Request | {} | Why they differ |\n|---|{}---|\n",
        names.join(", "),
        names.join(" | "),
        "---|".repeat(names.len()),
    );
    for (line, fields, why) in ROWS {
        let answers: Vec<String> = peers
            .iter()
            .map(|peer| {
                let response = ask(peer, "HEAD /clip.mp4", &[]);
                let (head, _) = split(&response);
                let validator = |name| field(&head, name).expect("a validator");
                let fields: Vec<String> = fields
                    .iter()
                    .map(|field| {
                        field
                            .replace("$E", validator("etag"))
                            .replace("$L", validator("last-modified"))
                    })
                    .collect();
                summary(site, known, line, &ask(peer, line, &fields))
            })
            .collect();
        let alike = answers.iter().all(|answer| *answer == answers[0]);
        if alike != why.is_empty() {
            unexplained.push(format!("{line} {fields:?}: {answers:#?} {why}"));
        }
        let request = [&[*line][..], fields].concat().join("`<br>`");
        let request = request
            .replace("\r\n\r\n", "`<br><br>`")
            .trim_end()
            .replace("\r\n", "`<br>`");
        text += &format!("| `{request}` | {} | {why} |\n", answers.join(" | "));
    }
    assert!(
        unexplained.is_empty(),
        "explain these: {}",
        unexplained.join("\n")
    );
    text
}

/// What of a response that comes from an origin matters, and what the origin was asked for it.
fn pulled(peer: &Peer, web: &Web, line: &str, fields: &[&str]) -> String {
    let asked_before = web.requests().len();
    let fields: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
    let response = ask(peer, line, &fields);
    let (head, body) = split(&response);
    let status = head.split(' ').nth(1).unwrap();
    let mut words = vec![status.to_owned()];
    let whole = content(PULLED_BYTES, 1);
    match (status, field(&head, "content-range")) {
        ("200", _) => assert!(body == whole, "{}: {line}: {head}", peer.name),
        ("206", Some(range)) => {
            let first = range.trim_start_matches("bytes ").split('-').next();
            let first: usize = first.unwrap().parse().unwrap();
            assert!(whole[first..].starts_with(body), "{}: {line}", peer.name);
            words.push(range.to_owned());
        }
        _ => {}
    }
    let requests = web.requests().split_off(asked_before);
    let asked = requests.iter().map(|request| {
        let conditions = ["range", "if-none-match"].map(|name| request.field(name));
        let conditions: Vec<&str> = conditions.into_iter().flatten().collect();
        format!("asked {}", conditions.join(" "))
            .trim_end()
            .to_owned()
    });
    words.extend(asked);
    words.join("; ")
}

fn pull_table(peers: &[Peer], web: &Web) -> String {
    let names: Vec<_> = peers.iter().map(|peer| peer.name.as_str()).collect();
    let mut unexplained = Vec::new();
    let mut text = format!(
        "\n## From an origin\n\nThe same next to nginx's `proxy_cache`, lighttpd's mod_proxy and \
         Caddy's `reverse_proxy`, which have no cache. Requests are made one after the other; \
         `asked`: what the origin was asked for this one, with `Range` or `If-None-Match`. Every \
         byte is compared.\n\n| Request | The origin has | {} | Why they differ |\n\
         |---|---|{}---|\n",
        names.join(" | "),
        "---|".repeat(names.len()),
    );
    let mut stale_at = None;
    for &(line, fields, kind, why) in PULLS {
        let is_about_staleness = line.contains("/stale");
        if let Some(stale_at) = stale_at.filter(|_| is_about_staleness) {
            let is_stale = || (std::time::Instant::now() > stale_at).then_some(());
            wait::until(SOON, "what is fresh, or left alone, for a second", is_stale).unwrap();
        }
        if kind != "nothing" {
            web.answers(move |request| reply(kind, request));
        }
        let answers = peers.iter().map(|peer| pulled(peer, web, line, fields));
        let answers: Vec<String> = answers.collect();
        if is_about_staleness {
            stale_at = Some(std::time::Instant::now() + Duration::from_millis(2_100));
        }
        let alike = answers.iter().all(|answer| *answer == answers[0]);
        if alike != why.is_empty() {
            unexplained.push(format!("{line} {fields:?}: {answers:#?} {why}"));
        }
        let request = [&[line], fields].concat().join("`<br>`");
        text += &format!(
            "| `{request}` | {kind} | {} | {why} |\n",
            answers.join(" | ")
        );
    }
    assert!(
        unexplained.is_empty(),
        "explain these: {}",
        unexplained.join("\n")
    );
    text
}

#[test]
#[ignore = "needs nginx, lighttpd and Caddy"]
fn the_table_of_what_others_answer_is_true() {
    isolated_long(|site| {
        let clip = site.file("clip.mp4", SIZE).unwrap();
        let size = 5 << 30;
        let islands = vec![4294967000..4294968000, size - 100..size];
        let large = site.sparse_file("5GiB.mp4", size, islands).unwrap();
        for directory in ["cached", "cors", "private", "media", "errors"] {
            fs::create_dir(site.root().join(directory)).unwrap();
        }
        for (name, content) in [
            ("index.html", "<!doctype html><title>index</title>\n"),
            ("style.css", "p { color: red }\n"),
            // Their bytes are not compared.
            ("style.css.br", "what brotli would make of it"),
            ("style.css.gz", "what gzip would make of it"),
            ("style.css.zst", "what zstd would make of it"),
            ("cached/a.mp4", "cached"),
            ("cors/a.mp4", "cors"),
            ("private/a.mp4", "private"),
            ("media/of-its-own.mp4", "of its own"),
            ("errors/404.html", "<!doctype html><title>missing</title>\n"),
        ] {
            fs::write(site.root().join(name), content).unwrap();
        }
        fs::create_dir(site.root().join("dir")).unwrap();
        for directory in ["sub", "with-index"] {
            fs::create_dir_all(site.root().join("listed").join(directory)).unwrap();
        }
        for name in [
            "100% a.txt",
            "b.mp4",
            ".hidden",
            "sub/c",
            "with-index/index.html",
        ] {
            fs::write(site.root().join("listed").join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", site.root().join("listed/passwd")).unwrap();
        // There is no tag while a file is fresh.
        let touch = "touch -d 2020-01-01 clip.mp4 cached/a.mp4 5GiB.mp4 index.html style.css \
            style.css.br style.css.gz style.css.zst";
        testbed::process::run(tool(touch).current_dir(site.root())).unwrap();
        let web = Web::new(|_| Reply::status(404));
        let _splitway = splitway(&site, &web);
        let mut keys = server::SigningKeys::default();
        keys.add("key", SECRET.as_bytes()).unwrap();
        let own = Peer {
            name: "Splitway".to_owned(),
            signed: keys.sign("/private/a.mp4", "key", EXPIRES).unwrap(),
            address: HTTP_V4,
            _process: None,
        };
        wait::until(SOON, "a tag", || {
            let response = ask(&own, "HEAD /clip.mp4", &[]);
            field(&split(&response).0, "etag").map(|_| ())
        })
        .unwrap();
        let peers = [
            own,
            nginx(&site, &web),
            lighttpd(&site, &web),
            caddy(&site, &web),
        ];
        let found = table(&peers, &site, &[clip, large]) + &pull_table(&peers, &web);
        let page: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/http-peers.md");
        if std::env::var_os("UPDATE_PEERS").is_some() {
            fs::write(&page, &found).unwrap();
        }
        let written = fs::read_to_string(&page).unwrap();
        let versions = |text: &str| text.lines().nth(2).map(str::to_owned);
        // Others may answer otherwise in other versions, as long as what is said of the difference
        // is so.
        if versions(&written) == versions(&found) {
            assert!(
                written == found,
                "docs/http-peers.md is not what is answered: {UPDATE}\n{found}"
            );
        }
    });
}
