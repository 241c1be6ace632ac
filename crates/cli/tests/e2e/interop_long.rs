//! Programs and libraries, each at its own job, at Splitway and beside it at nginx: the tables in
//! docs/interop.md are made of it. `scripts/setup.sh long` installs them.

pub(crate) mod clients;
pub(crate) mod page;
mod players;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use testbed::namespace::isolated_long;
use testbed::process::{Process, run, tool};
use testbed::site::{KnownFile, Site};
use testbed::splitway::{HTTP_V4, STACK_V4};
use testbed::wait;

use self::clients::{HTTP1, HTTP2, HTTP3, IN_FRONT, Job, Source, Way};
use self::page::{Row, UPDATE, page, without_versions};
use crate::browser::Page;
use crate::http3_long;
use crate::https::{Certificate, HTTPS, serve_tls};
use crate::proxy::{listen, pool, started, written};
use crate::support::SOON;

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// nginx as a server, and as a proxy that wants PROXY headers.
const NGINX: SocketAddr = local(8001);
const NGINX_PROXY: SocketAddr = local(8002);

/// The backend of both proxies, which is nginx.
const BACKEND_PORT: u16 = 8003;

/// A server, and its proxy.
struct Server {
    url: String,
    proxy: SocketAddr,
}

/// The files, and the programs.
struct Bench<'a> {
    site: &'a Site,
    clients: PathBuf,
    certificate: Certificate,
    /// For Chromium.
    files: Vec<KnownFile>,
}

/// The folder of the clients that no distribution has.
pub(crate) fn installed() -> PathBuf {
    let clients = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../interop");
    let installed = clients.join("complete").exists();
    assert!(installed, "clients are missing: scripts/setup.sh long");
    clients.canonicalize().unwrap()
}

/// The scripts of jobs.
fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/interop")
}

impl Bench<'_> {
    fn new(site: &Site) -> Bench<'_> {
        let clients = installed();
        let files = [1000, 300_000, 5_000_000]
            .map(|size| site.file(&format!("file-{size}"), size).unwrap());
        let memory = site.root().join("memory");
        let older = site.outside().join("older");
        fs::create_dir(&memory).unwrap();
        fs::create_dir(&older).unwrap();
        run(tool("mount -t tmpfs splitway-test").arg(&memory)).unwrap();
        let mut make = tool("bash");
        make.arg(scripts().join("site.sh"));
        make.arg(site.root()).arg(&older).env("CLIENTS", &clients);
        run(&mut make).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        Bench {
            site,
            clients,
            certificate,
            files: files.into(),
        }
    }

    /// The outcome of a job.
    fn outcome(&self, way: Way, server: &Server) -> Result<String, String> {
        match way {
            Way::Script(name) => self.outcome_of_script(name, server),
            Way::Page(function, targets) => {
                let browser = (self.site, &self.certificate);
                targets.iter().try_for_each(|target| {
                    players::attempt(browser, &server.url, function, target)
                })?;
                Ok(String::new())
            }
            Way::ChromiumOverTls => {
                let files = self.files.iter().cycle().take(3 * 20);
                let mut page = Page::open(self.site, &self.certificate, "");
                let url = format!("https://{STACK_V4}");
                let files: Vec<&KnownFile> = files.collect();
                page.downloads(self.site, ("h2", &url), &files);
                Ok(String::new())
            }
            Way::ChromiumOverQuic => {
                http3_long::chromium_downloads(self.site, &self.certificate, &self.files, HTTPS[0]);
                Ok(String::new())
            }
        }
    }

    /// The same, of a function of `jobs.sh`.
    fn outcome_of_script(&self, name: &str, server: &Server) -> Result<String, String> {
        let outside = self.site.outside();
        let folder = outside.join("work");
        fs::create_dir(&folder).unwrap();
        let mut job = tool("timeout 60 bash");
        job.arg(scripts().join("jobs.sh")).arg(name);
        job.env("ROOT", self.site.root());
        job.env("OLDER", outside.join("older"));
        job.env("CLIENTS", &self.clients);
        job.env("HOME", &folder);
        job.env("URL", &server.url);
        job.env("PROXY", server.proxy.to_string());
        job.env("HOST", STACK_V4.to_string());
        job.env("TRUST", &self.certificate.certificate);
        let output = job.current_dir(&folder).stdin(Stdio::null()).output();
        let output = output.unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let last = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.trim_end().lines().last().unwrap_or("").to_owned()
        };
        let printed = last(&output.stdout);
        if !output.status.success() {
            println!("{name}: {}", String::from_utf8_lossy(&output.stderr));
        }
        match output.status.code() {
            Some(0) => Ok(printed),
            Some(124) => Err("it hangs".to_owned()),
            _ if printed.is_empty() => Err(last(&output.stderr)),
            _ => Err(printed),
        }
    }

    /// The rows of jobs, each done at all servers, of which Splitway is the first; it must succeed.
    fn rows(&self, jobs: &[Job], servers: &[Server], failures: &mut Vec<String>) -> Vec<Row> {
        let row = |&(client, source, way, job): &Job| {
            let version = source.version(&self.clients);
            let mut row = vec![client.to_owned(), version, job.to_owned()];
            for (at, server) in servers.iter().enumerate() {
                let outcome = self.outcome(way, server);
                println!("{client}, {job}, {}: {outcome:?}", server.url);
                row.push(match outcome {
                    Ok(which) if which.is_empty() => "OK".to_owned(),
                    Ok(which) => format!("OK: {which}"),
                    Err(why) => {
                        if at == 0 {
                            failures.push(format!("{client}, {job}: {why}"));
                        }
                        format!("fails: {why}")
                    }
                });
            }
            row
        };
        jobs.iter().map(row).collect()
    }
}

/// nginx as server, proxy and backend.
fn nginx(site: &Site) -> Process {
    let (root, prefix) = (site.root().display(), site.outside().display());
    let configuration = site.outside().join("nginx.conf");
    let text = format!(
        "daemon off; user root root; pid {prefix}/nginx.pid; events {{ }}
        http {{
            include /etc/nginx/mime.types; types {{ text/csv csv; }}
            access_log off; gzip_static on; client_body_temp_path {prefix}/body;
            proxy_temp_path {prefix}/proxy; fastcgi_temp_path {prefix}/fastcgi;
            uwsgi_temp_path {prefix}/uwsgi; scgi_temp_path {prefix}/scgi; root {root};
            server {{ listen {NGINX}; }}
            server {{
                listen {NGINX_PROXY} proxy_protocol;
                location / {{
                    proxy_pass http://127.0.0.1:{BACKEND_PORT};
                    proxy_set_header X-Forwarded-For $proxy_protocol_addr;
                }}
            }}
            server {{
                listen 0.0.0.0:{BACKEND_PORT};
                location = /client {{ return 200 $http_x_forwarded_for; }}
            }}
        }}"
    );
    fs::write(&configuration, text).unwrap();
    let mut command = tool("nginx");
    command.arg("-c").arg(&configuration);
    command.arg("-e").arg(site.outside().join("error.log"));
    let process = Process::spawn(command.stdin(Stdio::null()).stderr(Stdio::null())).unwrap();
    wait::until(SOON, "nginx answering", || TcpStream::connect(NGINX).ok()).unwrap();
    process
}

/// Has all clients do their jobs, and returns the page.
fn page_of_all(bench: &Bench<'_>) -> String {
    let site = bench.site;
    let _nginx = nginx(site);
    let servers = [
        Server {
            url: format!("http://{STACK_V4}"),
            proxy: HTTP_V4,
        },
        Server {
            url: format!("http://{NGINX}"),
            proxy: NGINX_PROXY,
        },
    ];
    let mut failures = Vec::new();
    let options = ["--listen", "80", "--http3", "--precompressed", "gzip"];
    let splitway = serve_tls(site, &[&bench.certificate], &options);
    // A date is sent once no later version can have it.
    wait::until(SOON, "a date of the film in tmpfs", || {
        let mut head = tool("curl -q --silent --head");
        let head = run(head.arg(format!("{}/memory/film.mp4", servers[0].url)));
        head.unwrap().contains("Last-Modified").then_some(())
    })
    .unwrap();
    let http1 = bench.rows(HTTP1, &servers, &mut failures);
    let http2 = bench.rows(HTTP2, &servers[..1], &mut failures);
    let http3 = bench.rows(HTTP3, &servers[..1], &mut failures);
    drop(splitway);
    let text = listen(80, "web", "proxy_protocol_from = [\"10.77.0.0/24\"]")
        + &pool("web", "", &[BACKEND_PORT]);
    let _proxy = started(&written(site, &text));
    let in_front = bench.rows(IN_FRONT, &servers, &mut failures);
    assert!(failures.is_empty(), "{failures:#?}");
    let peer = Source::Debian("nginx").version(&bench.clients);
    page(&peer, [&http1, &in_front], [&http2, &http3])
}

#[test]
#[ignore = "its clients take long to install"]
fn clients_do_their_jobs_as_the_page_says() {
    isolated_long(|site| {
        let found = page_of_all(&Bench::new(&site));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/interop.md");
        if std::env::var_os("UPDATE_INTEROP").is_some() {
            fs::write(&path, &found).unwrap();
        }
        let written = fs::read_to_string(&path).unwrap();
        assert_eq!(
            without_versions(&written),
            without_versions(&found),
            "docs/interop.md differs from the outcomes: {UPDATE}"
        );
    });
}
