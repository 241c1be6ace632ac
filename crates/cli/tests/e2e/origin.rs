//! What is not there comes from an origin: once, and right to the last byte.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use rustix::process::{Pid, Signal};
use testbed::namespace::{isolated, isolated_unprivileged};
use testbed::process::signal;
use testbed::site::Site;
use testbed::splitway::{HTTP_V4, Splitway};
use testbed::web::{Reply, Web, content};

use crate::support::{FAMILIES, Random, SOON, on_threads, serve_with};

const FRESH: &str = "Cache-Control: max-age=1000\nContent-Type: video/mp4";

/// An answer, as far as it came: its status, its head and its body.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

/// Asks for a target on a connection of its own, with further header fields.
fn ask(server: SocketAddr, target: &str, fields: &str) -> testbed::Result<Answer> {
    let failed = |error: std::io::Error| testbed::Failure::new(format!("{target}: {error}"));
    let mut stream = TcpStream::connect(server).map_err(failed)?;
    stream.set_read_timeout(Some(SOON)).map_err(failed)?;
    let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut bytes = Vec::new();
    // One that is reset has come as far as it came.
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|it| it == b"\r\n\r\n");
    let end = end.ok_or_else(|| testbed::Failure::new(format!("{target}: no answer")))? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
    Ok(Answer {
        status: status.unwrap_or(0),
        body: bytes.split_off(end),
        head,
    })
}

/// The same, where nothing is to fail.
fn get(target: &str) -> Answer {
    ask(HTTP_V4, target, "").unwrap()
}

/// A server of what an origin has, and of nothing else.
fn serve_origin(site: &Site, web: &Web, arguments: &[&str]) -> Splitway {
    let cache = site.root().to_str().unwrap();
    let mut all = vec!["--origin", &web.url, "--cache-dir", cache];
    all.extend(arguments);
    serve_with(site, &all)
}

fn fetcher(splitway: &mut Splitway) -> Pid {
    let line = splitway
        .line(|line| line.starts_with("fetcher process "))
        .unwrap();
    let digits = line["fetcher process ".len()..].split(':').next().unwrap();
    Pid::from_raw(digits.parse().unwrap()).unwrap()
}

/// An origin of one object that it gives parts of.
fn in_parts(body: &[u8]) -> Web {
    let body = body.to_vec();
    Web::new(move |request| Reply::in_parts(request, "\"v1\"", FRESH, &body))
}

fn an_origin_is_asked_once(site: &Site) {
    let body = content(5_300_123, 1);
    let web = in_parts(&body);
    let mut splitway = serve_origin(site, &web, &[]);
    for server in FAMILIES {
        let answer = ask(server, "/film.mp4?x", "").unwrap();
        assert_eq!(answer.status, 200, "{}", answer.head);
        assert!(answer.body == body, "{} bytes", answer.body.len());
        assert!(
            answer.head.contains("Content-Type: video/mp4\r\n"),
            "{}",
            answer.head
        );
        for (range, part) in [
            ("0-99", 0..100),
            ("1048570-1048599", 1_048_570..1_048_600),
            ("-1", 5_300_122..5_300_123),
            ("2000000-", 2_000_000..5_300_123),
        ] {
            let field = format!("Range: bytes={range}\r\n");
            let answer = ask(server, "/film.mp4?x", &field).unwrap();
            assert_eq!(answer.status, 206, "{}", answer.head);
            assert!(answer.body == body[part], "{range}");
        }
    }
    assert_eq!(web.requests().len(), 1);
    assert_eq!(web.requests()[0].target, "/film.mp4?x");
    // It is there after a restart, too.
    splitway.end_with(Signal::TERM).unwrap();
    let _splitway = serve_origin(site, &web, &[]);
    assert!(get("/film.mp4?x").body == body);
    assert_eq!(web.requests().len(), 1);
}

#[test]
fn an_origin_is_asked_once_and_a_restart_forgets_nothing() {
    isolated(|site| an_origin_is_asked_once(&site));
}

#[test]
fn no_privilege_is_needed_for_it_in_a_user_namespace() {
    isolated_unprivileged(|site| an_origin_is_asked_once(&site));
}

#[test]
fn a_hundred_clients_share_one_request_while_the_object_arrives() {
    isolated(|site| {
        let body = content(3_000_000, 2);
        let web = Web::new({
            let body = body.clone();
            move |request| Reply {
                gate_at: Some(2_500_000),
                ..Reply::in_parts(request, "\"v1\"", FRESH, &body)
            }
        });
        let _splitway = serve_origin(&site, &web, &[]);
        // Its beginning is served while its end is not there.
        let first = ask(HTTP_V4, "/x", "Range: bytes=0-1999999\r\n").unwrap();
        assert!(first.body == body[..2_000_000]);
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                on_threads(100, |index| {
                    let answer = ask(FAMILIES[index % 2], "/x", "")?;
                    match answer.body == body {
                        true => Ok(()),
                        false => Err(testbed::Failure::new(format!(
                            "{} bytes",
                            answer.body.len()
                        ))),
                    }
                });
            });
            web.open_gate();
            clients.join().unwrap();
        });
        assert_eq!(web.requests().len(), 1);
    });
}

#[test]
fn files_come_first_and_the_cache_is_no_place_to_ask_for() {
    isolated(|site| {
        fs::write(site.root().join("own.txt"), "own").unwrap();
        let web = Web::new(|request| Reply::ok(FRESH, request.target.as_bytes()));
        let _splitway = serve_with(&site, &["--origin", &web.url]);
        assert_eq!(get("/own.txt").body, b"own");
        assert_eq!(get("/other.txt").body, b"/other.txt");
        assert_eq!(web.requests().len(), 1);
        let mut next = vec![site.root().join(".splitway-cache")];
        let mut segments: Vec<PathBuf> = Vec::new();
        while let Some(directory) = next.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => next.push(path),
                    false => segments.push(path),
                }
            }
        }
        assert_eq!(segments.len(), 2, "a segment, and what it is: {segments:?}");
        for segment in segments {
            let path = segment.strip_prefix(site.root()).unwrap();
            assert_eq!(get(&format!("/{}", path.display())).status, 404);
        }
        assert_eq!(web.requests().len(), 1);
    });
}

#[test]
fn some_paths_come_from_one_origin_and_some_from_another() {
    isolated(|site| {
        let [one, other] =
            [1, 2].map(|seed| Web::new(move |_| Reply::ok(FRESH, &content(100, seed))));
        let rule = format!("/vod/*={}/base", one.url);
        let _splitway = serve_with(&site, &["--origin", &rule, "--origin", &other.url]);
        assert!(get("/vod/x").body == content(100, 1));
        assert!(get("/x").body == content(100, 2));
        assert_eq!(one.requests()[0].target, "/base/vod/x");
    });
}

#[test]
fn whatever_the_origin_does_no_byte_is_wrong() {
    isolated(|site| {
        let mut random = Random::seeded();
        let body = content(4_200_000, 3);
        let web = in_parts(&body);
        let _splitway = serve_origin(&site, &web, &[]);
        // Bodies that break off, where parts may be asked for.
        for round in 0..5 {
            let (body, cut) = (body.clone(), 1 + random.below(4_000_000) as usize);
            web.answers({
                let body = body.clone();
                move |request| Reply {
                    cut_at: request.field("range").is_none().then_some(cut),
                    ..Reply::in_parts(request, "\"v1\"", FRESH, &body)
                }
            });
            let answer = get(&format!("/resumed{round}"));
            assert!(
                answer.body == body,
                "cut at {cut}: {} bytes",
                answer.body.len()
            );
        }
        // Another version in the midst of it: what has come is of the first one, and the next answer of the second one.
        web.answers({
            let body = body.clone();
            move |request| match request.field("range") {
                None => Reply {
                    cut_at: Some(2_200_000),
                    ..Reply::in_parts(request, "\"v1\"", FRESH, &body)
                },
                Some(_) => Reply::in_parts(request, "\"v2\"", FRESH, &content(4_200_000, 4)),
            }
        });
        let answer = get("/changed");
        assert!(answer.body.len() < body.len() && body.starts_with(&answer.body));
        web.answers(|request| Reply::in_parts(request, "\"v2\"", FRESH, &content(4_200_000, 4)));
        assert!(get("/changed").body == content(4_200_000, 4));
        // One that is shorter than it says, and cannot be asked for in parts.
        web.answers(|_| Reply {
            claims: Some(3_000_000),
            ..Reply::ok(FRESH, &content(2_000_000, 5))
        });
        let answer = get("/short");
        assert!(answer.body.len() <= 2_000_000 && content(2_000_000, 5).starts_with(&answer.body));
        // One that does not say how long it is.
        web.answers(|_| Reply {
            is_chunked: true,
            ..Reply::ok(FRESH, &content(2_000_000, 6))
        });
        let answer = get("/chunked");
        assert!(
            answer.head.contains("Content-Length: 2000000\r\n"),
            "{}",
            answer.head
        );
        assert!(answer.body == content(2_000_000, 6));
        for (said, status) in [(500, 502), (503, 503), (404, 404)] {
            web.answers(move |_| Reply::status(said));
            assert_eq!(get(&format!("/status{said}")).status, status);
        }
        // And one that is gone does not take away what is there.
        drop(web);
        assert_eq!(get("/nobody").status, 502);
        assert!(get("/chunked").body == content(2_000_000, 6));
    });
}

#[test]
fn a_fetcher_that_dies_in_the_midst_of_downloads_is_followed_by_another() {
    isolated(|site| {
        let body = content(6_000_000, 7);
        let web = Web::new({
            let body = body.clone();
            move |request| Reply {
                gate_at: Some(1_500_000),
                ..Reply::in_parts(request, "\"v1\"", FRESH, &body)
            }
        });
        let mut splitway = serve_origin(&site, &web, &[]);
        let fetcher = fetcher(&mut splitway);
        let (heard, begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..5 {
                let (heard, body) = (heard.clone(), &body);
                scope.spawn(move || {
                    let mut stream = TcpStream::connect(HTTP_V4).unwrap();
                    stream.set_read_timeout(Some(SOON)).unwrap();
                    stream
                        .write_all(b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                        .unwrap();
                    let mut bytes = vec![0; 1_000_000];
                    stream.read_exact(&mut bytes).unwrap();
                    heard.send(()).unwrap();
                    stream.read_to_end(&mut bytes).unwrap();
                    assert!(bytes.ends_with(body), "{} bytes", bytes.len());
                });
            }
            for _ in 0..5 {
                begun.recv_timeout(SOON).unwrap();
            }
            signal(fetcher, Signal::KILL).unwrap();
            web.open_gate();
        });
        let said = splitway
            .line(|line| line.contains("another fetcher is started"))
            .unwrap();
        assert!(said.contains("SIGKILL"), "{said}");
        assert!(get("/x").body == body);
        let requests = web.requests();
        assert!(requests.len() <= 4, "{requests:?}");
    });
}

#[test]
fn what_is_for_one_client_leaves_nothing_on_the_disk() {
    isolated(|site| {
        let web = Web::new(|_| Reply::ok("Cache-Control: no-store", &content(2_000_000, 8)));
        let mut splitway = serve_origin(&site, &web, &["--report-json"]);
        for _ in 0..2 {
            let answer = get("/x");
            assert!(answer.body == content(2_000_000, 8));
            assert!(answer.head.contains("no-store"), "{}", answer.head);
        }
        assert_eq!(web.requests().len(), 2);
        splitway.end_with(Signal::TERM).unwrap();
        let line = splitway.line(|line| line.starts_with('{')).unwrap();
        let counters: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(counters["fetcher"]["origin_passed"], 2);
        assert_eq!(counters["fetcher"]["origin_cached_bytes"], 0);
        let objects = site.root().join("objects");
        for shard in fs::read_dir(objects).unwrap() {
            let left = fs::read_dir(shard.unwrap().path()).unwrap().count();
            assert_eq!(left, 0);
        }
    });
}

#[test]
fn a_slow_client_of_a_long_object_keeps_few_files_open() {
    isolated(|site| {
        let body = content(40_000_000, 9);
        let web = in_parts(&body);
        let splitway = serve_origin(&site, &web, &[]);
        let mut stream = TcpStream::connect(HTTP_V4).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
            .write_all(b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut bytes = vec![0; 1_000_000];
        stream.read_exact(&mut bytes).unwrap();
        // All of it has been fetched, and the client still has not read on.
        testbed::wait::until(SOON, "the whole object", || {
            let directory = fs::read_dir(site.root().join("objects")).ok()?.flatten();
            let versions =
                directory.flat_map(|shard| fs::read_dir(shard.path()).into_iter().flatten());
            let segments = versions
                .flatten()
                .flat_map(|it| fs::read_dir(it.path()).into_iter().flatten());
            (segments.count() >= 40).then_some(())
        })
        .unwrap();
        let descriptors = format!("/proc/{}/fd", splitway.nic().as_raw_nonzero());
        let links = fs::read_dir(descriptors).unwrap().flatten();
        let links = links.filter_map(|link| fs::read_link(link.path()).ok());
        let open = links
            .filter(|link| link.starts_with(site.root().join("objects")))
            .count();
        assert!((1..12).contains(&open), "{open} segments are open");
        stream.read_to_end(&mut bytes).unwrap();
        assert!(bytes.ends_with(&body), "{} bytes", bytes.len());
    });
}
