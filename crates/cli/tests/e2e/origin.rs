//! What is not there comes from an origin: once, and right to the last byte.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use testbed::namespace::{isolated, isolated_unprivileged};
use testbed::process::signal;
use testbed::site::Site;
use testbed::splitway::{HTTP_V4, Splitway};
use testbed::wait;
use testbed::web::{Reply, Web, content};

use crate::config::{await_replaced, configuration, serve_configured};
use crate::metrics::ADMIN;
use crate::support::{FAMILIES, Random, SOON, ctl, fetcher, on_threads, program, serve_with, sh};

const FRESH: &str = "Cache-Control: max-age=1000\nContent-Type: video/mp4";

/// An answer, as far as it came: its status, its head and its body.
pub(crate) struct Answer {
    status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

/// Asks for a target on a connection of its own, with further header fields.
fn ask(server: SocketAddr, target: &str, fields: &str) -> testbed::Result<Answer> {
    ask_host(server, "x", target, fields)
}

/// The same of a virtual host.
fn ask_host(server: SocketAddr, host: &str, target: &str, fields: &str) -> testbed::Result<Answer> {
    let failed = |error: std::io::Error| testbed::Failure::new(format!("{target}: {error}"));
    let mut stream = TcpStream::connect(server).map_err(failed)?;
    stream.set_read_timeout(Some(SOON)).map_err(failed)?;
    let request =
        format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{fields}\r\n");
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
pub(crate) fn get(target: &str) -> Answer {
    ask(HTTP_V4, target, "").unwrap()
}

/// A server of what an origin has, and of nothing else.
pub(crate) fn serve_origin(site: &Site, web: &Web, arguments: &[&str]) -> Splitway {
    let cache = site.root().to_str().unwrap();
    let mut all = vec!["--origin", &web.url, "--cache-dir", cache];
    all.extend(arguments);
    serve_with(site, &all)
}

/// An origin whose every target is a fresh file of so many bytes.
pub(crate) fn web_of_one_file(bytes: usize) -> Web {
    let body = content(bytes, 1);
    Web::new(move |_| Reply::ok(FRESH, &body))
}

/// A client that followed the origin's own address would go past the cache, or nowhere.
#[test]
fn a_redirect_below_the_base_of_the_origin_leads_to_the_server() {
    isolated(|site| {
        let web = Web::new(|request| {
            let host = request.field("host").unwrap_or_default();
            let location = match request.target.as_str() {
                "/base/dir" => format!("http://{host}/base/dir/"),
                "/base/path" => "/base/path/".to_owned(),
                "/base/away" => format!("http://{host}/other/"),
                _ => return Reply::status(404),
            };
            Reply {
                fields: format!("Location: {location}\r\n"),
                ..Reply::status(301)
            }
        });
        let base = format!("{}/base", web.url);
        let root = site.root().to_str().unwrap();
        // Without a root, the options of the NIC stack are those of the one that reads the cache
        // directory.
        let options = [
            "--origin",
            &base,
            "--cache-dir",
            root,
            "--cache",
            "64M",
            "--workers",
            "2",
        ];
        let mut serve = Command::new(program());
        serve.arg("serve").args(options);
        let _splitway = Splitway::start(&mut serve).unwrap();
        let away = format!("{}/other/", web.url);
        for (target, location) in [("/dir", "/dir/"), ("/path", "/path/"), ("/away", &*away)] {
            let answer = get(target);
            assert_eq!(answer.status, 301, "{target}");
            let told = answer
                .head
                .lines()
                .find_map(|line| line.strip_prefix("Location: "));
            assert_eq!(told, Some(location), "{target}");
        }
    });
}

/// An origin whose pages are in the language that the client prefers.
#[test]
fn each_language_is_fetched_once_and_given_to_those_who_want_it() {
    isolated(|site| {
        let page = |language: &str| content(200_000 + 1000 * language.len(), language.len() as u64);
        let web = Web::new(move |request| {
            let language = request.field("accept-language").unwrap_or_default();
            let fields = format!("{FRESH}\nVary: Accept-Language");
            Reply::in_parts(request, "\"v1\"", &fields, &page(language))
        });
        let splitway = serve_origin(&site, &web, &[]);
        let languages = ["", "d", "fr", "ita"];
        let check_all = || {
            for server in FAMILIES {
                for language in languages {
                    let fields = match language {
                        "" => String::new(),
                        _ => format!("Accept-Language: {language}\r\n"),
                    };
                    let answer = ask(server, "/page", &fields).unwrap();
                    assert_eq!(answer.status, 200, "{}", answer.head);
                    assert!(answer.body == page(language), "{language}");
                    let head = answer.head.to_ascii_lowercase();
                    assert!(head.contains("vary: accept-language\r\n"), "{head}");
                }
            }
        };
        check_all();
        let heads = web.requests();
        let whole = heads.iter().filter(|it| it.field("range").is_none());
        assert_eq!(whole.count(), languages.len());
        // Another fetcher finds what this one has left.
        let before = heads.len();
        let first = fetcher(&splitway).unwrap();
        signal(first, Signal::KILL).unwrap();
        let is_another = || fetcher(&splitway).filter(|&pid| pid != first);
        testbed::wait::until(SOON, "another fetcher", is_another).unwrap();
        check_all();
        assert_eq!(web.requests().len(), before);
    });
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

/// An origin of one object in parts, which stops before this byte until it is let go on.
fn halts_at(byte: usize, body: &[u8]) -> Web {
    let body = body.to_vec();
    Web::new(move |request| Reply {
        gate_at: Some(byte),
        ..Reply::in_parts(request, "\"v1\"", FRESH, &body)
    })
}

#[test]
fn no_privilege_is_needed_for_it_in_a_user_namespace() {
    isolated_unprivileged(|site| an_origin_is_asked_once(&site));
}

#[test]
fn a_hundred_clients_share_one_request_while_the_object_arrives() {
    isolated(|site| {
        let body = content(3_000_000, 2);
        let web = halts_at(2_500_000, &body);
        let _splitway = serve_origin(&site, &web, &[]);
        // Its beginning is served while its end is not there.
        let first = ask(HTTP_V4, "/x", "Range: bytes=0-1999999\r\n").unwrap();
        assert!(first.body == body[..2_000_000]);
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                on_threads(100, |index| {
                    let answer = ask(FAMILIES[index % 2], "/x", "")?;
                    if answer.body == body {
                        Ok(())
                    } else {
                        Err(testbed::Failure::new(format!(
                            "{} bytes",
                            answer.body.len()
                        )))
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
                if path.is_dir() {
                    next.push(path)
                } else {
                    segments.push(path)
                }
            }
        }
        assert_eq!(
            segments.len(),
            4,
            "boot, meta, sums, a segment: {segments:?}"
        );
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
        // Another version in the midst of it: what has come is of the first one, and the next
        // answer of the second one.
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
        let is_beginning = |of: &[u8], it: &[u8]| it.len() < of.len() && of.starts_with(it);
        // A client that has not heard of it when it ends gets an error.
        assert!(answer.status == 502 || is_beginning(&body, &answer.body));
        web.answers(|request| Reply::in_parts(request, "\"v2\"", FRESH, &content(4_200_000, 4)));
        assert!(get("/changed").body == content(4_200_000, 4));
        // One that is shorter than it says, and cannot be asked for in parts.
        web.answers(|_| Reply {
            claims: Some(3_000_000),
            ..Reply::ok(FRESH, &content(2_000_000, 5))
        });
        let answer = get("/short");
        assert!(answer.status == 502 || is_beginning(&content(2_000_001, 5), &answer.body));
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
        assert_eq!(get("/closed-port").status, 502);
        assert!(get("/chunked").body == content(2_000_000, 6));
    });
}

#[test]
fn a_fetcher_that_dies_in_the_midst_of_downloads_is_followed_by_another() {
    isolated(|site| {
        let body = content(6_000_000, 7);
        let web = halts_at(1_500_000, &body);
        let mut splitway = serve_origin(&site, &web, &[]);
        let fetcher = fetcher(&splitway).unwrap();
        let (heard, begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..5 {
                let (heard, body) = (heard.clone(), &body);
                scope.spawn(move || {
                    let (mut stream, mut bytes) = begin("/x");
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
            let shard = shard.unwrap().path();
            if !shard.ends_with("boot") {
                assert_eq!(fs::read_dir(shard).unwrap().count(), 0);
            }
        }
    });
}

#[test]
fn a_slow_client_of_a_long_object_keeps_few_files_open() {
    isolated(|site| {
        let body = content(40_000_000, 9);
        let web = in_parts(&body);
        let splitway = serve_origin(&site, &web, &[]);
        assert!(get("/x").body == body);
        let (mut stream, mut bytes) = begin("/x");
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

#[test]
fn a_download_that_is_stale_outlives_its_fetcher_and_its_origin() {
    isolated(|site| {
        // More than the sockets hold: the client reads on when the fetcher is another one.
        let body = content(24_000_000, 10);
        for fields in ["Cache-Control: max-age=0", "Cache-Control: no-store"] {
            let web = Web::new({
                let body = body.clone();
                // It comes whole or not at all.
                move |_| Reply::ok(fields, &body)
            });
            let mut splitway = serve_origin(&site, &web, &[]);
            let (mut stream, mut bytes) = begin("/x");
            testbed::wait::until(SOON, "all of it", || {
                let segments = segments(&site.root().join("objects"));
                let complete = segments.iter().filter(|it| !is_unfinished(it));
                (complete.count() == 23).then_some(())
            })
            .unwrap();
            drop(web);
            let before = fetcher(&splitway).unwrap();
            signal(before, Signal::KILL).unwrap();
            let is_another = || fetcher(&splitway).filter(|&pid| pid != before);
            testbed::wait::until(SOON, "another fetcher", is_another).unwrap();
            // It knows by now which versions are read: all others have gone when it answers.
            assert_eq!(get("/y").status, 502);
            stream.read_to_end(&mut bytes).unwrap();
            assert!(bytes.ends_with(&body), "{fields}: {} bytes", bytes.len());
            splitway.end_with(Signal::TERM).unwrap();
            fs::remove_dir_all(site.root().join("objects")).unwrap();
        }
    });
}

/// The segments of all versions below a directory of them.
fn segments(objects: &Path) -> Vec<PathBuf> {
    let list = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    let shards = list(objects.to_owned());
    let versions = shards.flat_map(|shard| list(shard.path()));
    let files = versions.flat_map(|version| list(version.path()));
    let files = files.map(|file| file.path());
    files
        .filter(|it| !it.ends_with("meta") && !it.ends_with("sums"))
        .collect()
}

/// It is being written, or was when its fetcher died.
fn is_unfinished(segment: &Path) -> bool {
    let name = segment.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b".")
}

#[test]
fn segments_that_others_remove_or_cut_cost_no_client_anything() {
    isolated(|site| {
        let body = content(9_500_000, 12);
        let web = in_parts(&body);
        let _splitway = serve_origin(&site, &web, &[]);
        assert!(get("/x").body == body);
        let objects = site.root().join("objects");
        let mut all = segments(&objects);
        all.sort();
        assert_eq!(all.len(), 10);
        // All but one, so that what is left is not found to be missing with its neighbours.
        for (index, segment) in all.iter().enumerate() {
            match index % 3 {
                0 => fs::remove_file(segment).unwrap(),
                1 => fs::write(segment, "short").unwrap(),
                _ => {}
            }
        }
        for _ in 0..2 {
            let answer = get("/x");
            assert_eq!(answer.status, 200);
            assert!(answer.body == body, "{} bytes", answer.body.len());
        }
        fs::remove_dir_all(all[0].parent().unwrap()).unwrap();
        assert!(get("/x").body == body);
    });
}

#[test]
fn what_is_for_one_client_can_be_sent_again_by_another_nic_process() {
    isolated(|site| {
        let body = content(30_000_000, 11);
        let web = Web::new({
            let body = body.clone();
            move |_| Reply::ok("Cache-Control: no-store", &body)
        });
        let _splitway = serve_origin(&site, &web, &[]);
        let mut stream = TcpStream::connect(HTTP_V4).unwrap();
        // Little of it is acknowledged before it is read.
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 64 << 10).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
            .write_all(b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut bytes = Vec::new();
        // In the midst of it, and at the end, where all is queued and not all is acknowledged.
        for place in [10_000_000, 29_500_000, 29_700_000] {
            let read = bytes.len();
            bytes.resize(place, 0);
            stream.read_exact(&mut bytes[read..]).unwrap();
            let (is_done, said) = ctl("restart-nic", None);
            assert!(is_done, "{said}");
        }
        stream.read_to_end(&mut bytes).unwrap();
        assert!(bytes.ends_with(&body), "{} bytes", bytes.len());
        let objects = site.root().join("objects");
        testbed::wait::until(SOON, "nothing of it to be left", || {
            segments(&objects).is_empty().then_some(())
        })
        .unwrap();
    });
}

/// A disk of this size for the cache.
fn small_disk(site: &Site, size: &str) -> PathBuf {
    let disk = site.root().join("disk");
    fs::create_dir(&disk).unwrap();
    sh(&format!(
        "mount -t tmpfs -o size={size} tmpfs {}",
        disk.display()
    ));
    disk
}

/// Lets a file take all that is left of a disk.
fn fill(ballast: &Path) {
    let mut options = fs::File::options();
    let mut file = options.create(true).append(true).open(ballast).unwrap();
    while file.write(&[0; 64 << 10]).is_ok() {}
}

/// Does something while a file takes all that is left of a disk, and whatever makes room.
fn while_filling<T>(ballast: &Path, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fill(ballast);
            }
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

#[test]
fn a_full_disk_makes_room_and_where_there_is_none_clients_get_an_error() {
    isolated(|site| {
        let disk = small_disk(&site, "24m");
        let body = |number: u64| content(3_000_000, number);
        let web = Web::new(move |request| {
            let number = request.target[1..].parse().unwrap();
            Reply::in_parts(request, "\"v\"", FRESH, &body(number))
        });
        let cache = disk.to_str().unwrap();
        let mut splitway = serve_with(&site, &["--origin", &web.url, "--cache-dir", cache]);
        // Twice as much as there is room for.
        for number in 0..16 {
            let answer = get(&format!("/{number}"));
            assert_eq!(answer.status, 200, "{number}");
            assert!(answer.body == body(number), "{number}");
        }
        let is_full = |line: &str| line.contains("disk of the cache directory is full");
        let said = splitway.line(is_full).unwrap();
        assert!(said.contains("--origin-cache-bytes"), "{said}");
        // Another program takes the space that is left, and, sooner or later, all that becomes
        // free.
        let ballast = disk.join("ballast");
        while_filling(&ballast, || {
            let mut number = 100;
            testbed::wait::until(SOON, "a disk that is full of something else", || {
                number += 1;
                let answer = get(&format!("/{number}"));
                // A client that gets nothing hears why.
                assert!([200, 503].contains(&answer.status), "{}", answer.head);
                (answer.status == 503).then_some(())
            })
        })
        .unwrap();
        let said = splitway.line(|line| line.contains("cannot be written to"));
        assert!(said.unwrap().contains("No space left"));
        // What is there goes on being served, and there will be more when there is room.
        fs::remove_file(&ballast).unwrap();
        for number in [200, 201, 200, 201] {
            assert!(get(&format!("/{number}")).body == body(number));
        }
        fill(&ballast);
        for number in [200, 201] {
            assert!(get(&format!("/{number}")).body == body(number));
        }
        // Nothing unfinished is left.
        let left: Vec<_> = segments(&disk.join("objects"));
        assert!(!left.iter().any(|it| is_unfinished(it)), "{left:?}");
        splitway.end_with(Signal::TERM).unwrap();
    });
}

#[test]
fn a_disk_that_something_else_fills_costs_nothing_that_is_being_served() {
    isolated(|site| {
        let disk = small_disk(&site, "48m");
        let body = |number: u64| content(12_000_000, number);
        let web = Web::new(move |request| {
            let number = request.target[1..].parse().unwrap();
            Reply::in_parts(request, "\"v\"", FRESH, &body(number))
        });
        let cache = disk.to_str().unwrap();
        let _splitway = serve_with(&site, &["--origin", &web.url, "--cache-dir", cache]);
        for number in 0..2 {
            assert!(get(&format!("/{number}")).body == body(number));
        }
        let (mut stream, mut bytes) = begin("/0");
        // All that is left is taken, and whatever makes room.
        let ballast = disk.join("ballast");
        while_filling(&ballast, || {
            let (mut number, mut refused) = (100, 0);
            testbed::wait::until(SOON, "a disk that is full of something else", || {
                number += 1;
                let status = get(&format!("/{number}")).status;
                assert!([200, 503].contains(&status), "{number}: {status}");
                refused += u32::from(status == 503);
                (number > 150 && refused > 0).then_some(())
            })
        })
        .unwrap();
        // The client that has begun gets the rest from the disk, and so does the next one.
        stream.read_to_end(&mut bytes).unwrap();
        assert!(bytes.ends_with(&body(0)), "{} bytes", bytes.len());
        let (requests, first) = (web.requests(), "/0");
        let asked = requests.iter().filter(|it| it.target == first).count();
        assert_eq!(asked, 1, "nothing of it had to come again");
    });
}

#[test]
fn a_thousand_bytes_of_a_long_object_cost_one_segment() {
    isolated(|site| {
        let body = content(30_000_000, 13);
        let web = in_parts(&body);
        let _splitway = serve_origin(&site, &web, &[]);
        let range = "Range: bytes=15000000-15000999\r\n";
        let answer = ask(HTTP_V4, "/x", range).unwrap();
        assert_eq!(answer.status, 206, "{}", answer.head);
        assert!(answer.body == body[15_000_000..15_001_000]);
        assert_eq!(segments(&site.root().join("objects")).len(), 1);
        let requests = web.requests();
        let asked: Vec<_> = requests.iter().map(|it| it.field("range")).collect();
        assert_eq!(asked, [None, Some("bytes=14680064-15728639")]);
        assert!(get("/x").body == body);
    });
}

#[test]
fn a_resolver_that_does_not_answer_holds_up_no_other_origin() {
    isolated(|site| {
        // It hears, and says nothing.
        let resolver = std::net::UdpSocket::bind("127.0.0.1:53").unwrap();
        let settings = site.outside().join("resolv.conf");
        fs::write(
            &settings,
            "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n",
        )
        .unwrap();
        sh(&format!(
            "mount --bind {} /etc/resolv.conf",
            settings.display()
        ));
        let web = Web::new(|_| Reply::ok(FRESH, &content(3_000_000, 1)));
        let slow = "/slow/*=http://slow.example";
        let _splitway = serve_with(&site, &["--origin", slow, "--origin", &web.url]);
        let mut waiting: Vec<TcpStream> = Vec::new();
        for number in 0..30 {
            let mut stream = TcpStream::connect(HTTP_V4).unwrap();
            let request = format!("GET /slow/{number} HTTP/1.1\r\nHost: x\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            waiting.push(stream);
        }
        resolver.set_read_timeout(Some(SOON)).unwrap();
        resolver.recv_from(&mut [0; 512]).unwrap();
        assert!(get("/x").body == content(3_000_000, 1));
        // They get an answer before the resolver gives up.
        for mut stream in waiting {
            stream.set_read_timeout(Some(SOON)).unwrap();
            let mut status = [0; 12];
            stream.read_exact(&mut status).unwrap();
            assert!([b"HTTP/1.1 504", b"HTTP/1.1 502"].contains(&&status));
        }
    });
}

#[test]
fn whatever_resolves_names_is_loaded_before_nothing_can_be_loaded_any_more() {
    isolated(|site| {
        let settings = site.outside().join("nsswitch.conf");
        // One that is a library of its own, and knows nothing.
        fs::write(&settings, "hosts: hesiod files\n").unwrap();
        sh(&format!(
            "mount --bind {} /etc/nsswitch.conf",
            settings.display()
        ));
        let web = Web::new(|_| Reply::ok(FRESH, &content(1000, 1)));
        let url = web.url.replace("127.0.0.1", "localhost");
        let splitway = serve_with(&site, &["--origin", &url]);
        assert!(get("/x").body == content(1000, 1));
        let fetcher = fetcher(&splitway).unwrap();
        let maps = fs::read_to_string(format!("/proc/{}/maps", fetcher.as_raw_nonzero()));
        let maps = maps.unwrap();
        let code = |line: &&str| line.contains("libnss_hesiod") && line.contains("r-xp");
        assert!(maps.lines().any(|line| code(&line)), "{maps}");
    });
}

/// The body that a virtual host gives.
fn body_of(host: &str, target: &str) -> Vec<u8> {
    let answer = ask_host(HTTP_V4, host, target, "").unwrap();
    assert_eq!(answer.status, 200, "{host}{target}: {}", answer.head);
    answer.body
}

#[test]
fn each_site_and_rule_may_have_an_origin_of_its_own() {
    isolated(|site| {
        let webs = [1, 2, 3].map(|seed| {
            // The same tags everywhere: it is the origin that tells objects apart.
            Web::new(move |request| {
                Reply::in_parts(request, "\"v\"", FRESH, &content(1_500_000, seed))
            })
        });
        fs::write(site.root().join("own.txt"), "own").unwrap();
        let [all, films, other] = webs.each_ref().map(|web| &web.url);
        let more = format!(
            r#"
            [origin]
            urls = ["{all}"]
            cache_max = "64M"
            cache_status = true
            [[site]]
            [[site.rule]]
            path = "/films/*"
            origin = "{films}/base"
            [[site.rule]]
            path = "/here/*"
            origin = "off"
            [[site]]
            names = ["other.example"]
            origin = "{other}"
            [[site]]
            names = ["files.example"]
            origin = "off"
            "#
        );
        let path = configuration(&site, &more);
        let checked = Command::new(program()).arg("check").arg(&path).output();
        assert!(checked.unwrap().status.success());
        let _splitway = serve_configured(&path);
        for _ in 0..2 {
            for (host, target, seed) in [
                ("x", "/x", 1),
                ("x", "/films/x", 2),
                ("other.example", "/x", 3),
                ("other.example", "/films/x", 3),
            ] {
                assert!(
                    body_of(host, target) == content(1_500_000, seed),
                    "{host}{target}"
                );
            }
        }
        let targets = webs.each_ref().map(|web| {
            let requests = web.requests().into_iter();
            requests.map(|it| it.target).collect::<Vec<_>>()
        });
        let expected = [vec!["/x"], vec!["/base/films/x"], vec!["/x", "/films/x"]];
        assert_eq!(targets, expected, "each once");
        assert_eq!(body_of("files.example", "/own.txt"), b"own");
        for (host, target) in [("x", "/here/x"), ("files.example", "/x")] {
            let answer = ask_host(HTTP_V4, host, target, "").unwrap();
            assert_eq!(answer.status, 404, "{host}{target}");
        }
        let answer = get("/x");
        assert!(
            answer.head.contains("Cache-Status: splitway; hit\r\n"),
            "{}",
            answer.head
        );
        // What has the same tag at another origin is another version.
        let tag = |answer: &Answer| {
            let line = answer.head.lines().find(|line| line.starts_with("ETag: "));
            line.unwrap().to_owned()
        };
        let another = ask_host(HTTP_V4, "other.example", "/x", "").unwrap();
        assert_ne!(tag(&answer), tag(&another));
    });
}

/// A download that has begun, and the bytes of it that have been read.
fn begin(target: &str) -> (TcpStream, Vec<u8>) {
    let mut stream = TcpStream::connect(HTTP_V4).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = vec![0; 1_000_000];
    stream.read_exact(&mut bytes).unwrap();
    (stream, bytes)
}

#[test]
fn a_reload_that_adds_origins_cuts_no_download() {
    isolated(|site| {
        let body = content(6_000_000, 11);
        // One object comes in parts, the other only as a whole.
        let web = Web::new({
            let body = body.clone();
            move |request| Reply {
                gate_at: Some(1_500_000),
                ..match &*request.target {
                    "/whole" => Reply::ok(FRESH, &body),
                    _ => Reply::in_parts(request, "\"v1\"", FRESH, &body),
                }
            }
        });
        let added = Web::new(|_| Reply::ok(FRESH, &content(3_000_000, 12)));
        let url = &web.url;
        let origins =
            |more: &str| format!("[origin]\nurls = [\"/one/*={url}/one\", \"{url}\"]\n{more}");
        let path = configuration(&site, &origins(""));
        let splitway = serve_configured(&path);
        let first = fetcher(&splitway).unwrap();
        let downloads = ["/whole", "/part"].map(begin);
        // One at a port that the fetcher may connect to: it goes on.
        let rule = |path: &str, url: &str| {
            format!("[[site.rule]]\npath = \"{path}\"\norigin = \"{url}\"\n")
        };
        let near = format!("[[site]]\n{}", rule("/near/*", &format!("{url}/else")));
        configuration(&site, &origins(&near));
        let (is_reloaded, said) = ctl("reload", None);
        assert!(is_reloaded, "{said}");
        web.answers({
            let body = body.clone();
            move |request| match &*request.target {
                "/else/near/x" => Reply::ok(FRESH, b"near"),
                _ => Reply::in_parts(request, "\"v1\"", FRESH, &body),
            }
        });
        assert_eq!(get("/near/x").body, b"near");
        assert!(PathBuf::from(format!("/proc/{}", first.as_raw_nonzero())).exists());
        // One at another port: another fetcher comes, when that interrupts no transfer.
        configuration(&site, &origins(&(near + &rule("/far/*", &added.url))));
        let (is_reloaded, said) = ctl("reload", None);
        assert!(is_reloaded, "{said}");
        web.open_gate();
        assert!(get("/far/x").body == content(3_000_000, 12));
        for (mut stream, mut bytes) in downloads {
            stream.read_to_end(&mut bytes).unwrap();
            assert!(bytes.ends_with(&body), "{} bytes", bytes.len());
        }
        assert!(get("/whole").body == body);
        let requests = web.requests();
        let wholes = requests.iter().filter(|it| it.target == "/whole").count();
        assert_eq!(wholes, 1, "{requests:?}");
        assert!(!PathBuf::from(format!("/proc/{}", first.as_raw_nonzero())).exists());
        // The place of the cache stays until a restart, and the answer says so.
        let elsewhere = site.root().join("elsewhere");
        let moved = format!("cache_dir = \"{}\"\n", elsewhere.display());
        configuration(&site, &origins(&moved));
        let (_, said) = ctl("reload", None);
        assert!(
            said.contains("not before a restart: origin.cache_dir"),
            "{said}"
        );
        assert!(get("/whole").body == body);
        assert!(!elsewhere.exists());
    });
}

#[test]
fn a_cache_directory_that_another_replaces_is_used_from_a_reload_on() {
    isolated(|site| {
        let body = content(100_000, 1);
        let web = web_of_one_file(body.len());
        let [cache, new, old] = ["cache", "new", "old"].map(|name| site.root().join(name));
        for directory in [&cache, &new] {
            fs::create_dir(directory).unwrap();
        }
        let text = format!(
            "[origin]\nurls = [\"{}\"]\ncache_dir = \"{}\"\n[operation]\nadmin = \"{ADMIN}\"\n",
            web.url,
            cache.display()
        );
        let mut splitway = serve_configured(&configuration(&site, &text));
        assert!(get("/before").body == body);
        let first = fetcher(&splitway).unwrap();
        // Nothing has changed, and nothing is started.
        assert!(ctl("reload", None).0);
        assert_eq!(fetcher(&splitway), Some(first));

        fs::rename(&cache, &old).unwrap();
        fs::rename(&new, &cache).unwrap();
        let is_warning = |line: &str| {
            line.contains("cache directory") && line.contains("another directory has taken its")
        };
        splitway.line(is_warning).unwrap();
        await_replaced(&cache, true);
        let (is_reloaded, said) = ctl("reload", None);
        assert!(is_reloaded, "{said}");
        wait::until(SOON, "another fetcher", || {
            fetcher(&splitway).filter(|next| *next != first)
        })
        .unwrap();
        await_replaced(&cache, false);
        for target in ["/after", "/before"] {
            assert!(get(target).body == body, "{target}");
        }
        assert!(fs::read_dir(&cache).unwrap().count() > 0);
        let warnings = splitway.output().iter().filter(|line| is_warning(line));
        assert_eq!(warnings.count(), 1);
    });
}

#[test]
fn a_server_that_had_no_origin_gets_one_by_a_reload() {
    isolated(|site| {
        let body = content(2_000_000, 13);
        let web = in_parts(&body);
        let path = configuration(&site, "");
        let _splitway = serve_configured(&path);
        assert_eq!(get("/film.mp4").status, 404);
        configuration(&site, &format!("[origin]\nurls = [\"{}\"]\n", web.url));
        let (is_reloaded, said) = ctl("reload", None);
        assert!(is_reloaded, "{said}");
        assert!(get("/film.mp4").body == body);
        configuration(&site, "");
        assert!(ctl("reload", None).0);
        assert_eq!(get("/film.mp4").status, 404, "it is asked no more");
        assert_eq!(web.requests().len(), 1);
    });
}

#[test]
fn what_the_cache_does_is_seen_from_outside() {
    isolated(|site| {
        let web = in_parts(&content(1_200_000, 14));
        let log = site.outside().join("access.log");
        let arguments = [
            "--access-log",
            log.to_str().unwrap(),
            "--access-log-format",
            "combined-cache",
            "--admin",
            "127.0.0.1:9180",
        ];
        let _splitway = serve_origin(&site, &web, &arguments);
        for _ in 0..3 {
            get("/x");
        }
        testbed::wait::until(SOON, "three lines", || {
            let text = fs::read_to_string(&log).ok()?;
            let words = text.lines().map(|line| line.rsplit(' ').next().unwrap());
            (words.collect::<Vec<_>>() == ["MISS", "HIT", "HIT"]).then_some(())
        })
        .unwrap();
        let origin = &web.url;
        testbed::wait::until(SOON, "what the fetcher has counted", || {
            let answer = ask("127.0.0.1:9180".parse().unwrap(), "/metrics", "").ok()?;
            let text = String::from_utf8(answer.body).ok()?;
            let said = [
                format!("splitway_origin_hits_total{{origin=\"{origin}\"}} 2\n"),
                format!("splitway_origin_misses_total{{origin=\"{origin}\"}} 1\n"),
                format!("splitway_origin_fetched_bytes_total{{origin=\"{origin}\"}} 1200000\n"),
                "splitway_origin_cached_objects 1\n".to_owned(),
            ];
            said.iter().all(|line| text.contains(line)).then_some(())
        })
        .unwrap();
        let output = Command::new(program()).args(["stat", "--json"]).output();
        let document: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        let fetcher = &document["server"]["fetcher"];
        assert_eq!(fetcher["counters"]["origin_hits"], 2, "{fetcher}");
        assert!(fetcher["process"]["memory_bytes"].is_u64(), "{fetcher}");
    });
}
