//! What curl gets to see.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::{Duration, Instant};

use testbed::http::{Connection, request};
use testbed::namespace::{isolated, isolated_unprivileged};
use testbed::process::{run, tool};
use testbed::site::{KnownFile, Site};
use testbed::wait;

use crate::support::{FAMILIES, SOON, serve, serve_with, sh, started};

const URLS: [&str; 2] = ["http://10.77.0.2", "http://[fd77::2]"];

/// The status with which curl is answered.
fn status(arguments: &[&str]) -> u16 {
    let mut curl = Command::new("curl");
    curl.args([
        "--silent",
        "--max-time",
        "20",
        "--output",
        "/dev/null",
        "--write-out",
        "%{http_code}",
    ]);
    let printed = run(curl.args(arguments)).unwrap();
    printed
        .parse()
        .unwrap_or_else(|_| panic!("curl {arguments:?} printed {printed:?}"))
}

fn downloads_with_curl(site: &Site) {
    let names = ["a page.html", "100%.txt", "naïve", "video.mp4"];
    for (index, name) in names.into_iter().enumerate() {
        site.file(name, 200_000 + index as u64).unwrap();
    }
    let long = "x".repeat(255);
    site.file(&long, 1000).unwrap();
    let _splitway = serve(site);
    let downloaded = site.outside().join("downloaded");
    for url in URLS {
        for (path, name) in [
            ("a%20page.html", "a page.html"),
            ("100%25.txt", "100%.txt"),
            ("na%C3%AFve", "naïve"),
            ("video.mp4?quality=high", "video.mp4"),
            (long.as_str(), long.as_str()),
        ] {
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--fail", "--max-time", "20", "--output"])
                .arg(&downloaded);
            run(curl.arg(format!("{url}/{path}"))).unwrap();
            assert_eq!(
                fs::read(&downloaded).unwrap(),
                fs::read(site.root().join(name)).unwrap(),
                "{name}"
            );
        }
    }
}

#[test]
fn curl_downloads_files_of_any_name() {
    isolated(|site| downloads_with_curl(&site));
}

#[test]
fn no_privilege_over_the_machine_is_needed_in_a_user_namespace() {
    isolated_unprivileged(|site| downloads_with_curl(&site));
}

#[test]
fn a_directory_answers_with_its_index() {
    isolated(|site| {
        fs::create_dir(site.root().join("sub")).unwrap();
        fs::create_dir(site.root().join("bare")).unwrap();
        fs::write(site.root().join("index.html"), "the top").unwrap();
        fs::write(site.root().join("sub/index.html"), "below").unwrap();
        let _splitway = serve(&site);
        for url in URLS {
            assert_eq!(sh(&format!("curl -sf --max-time 20 {url}/")), "the top");
            assert_eq!(sh(&format!("curl -sf --max-time 20 {url}/sub/")), "below");
            assert_eq!(sh(&format!("curl -sfL --max-time 20 {url}/sub")), "below");
            assert!([403, 404].contains(&status(&[&format!("{url}/bare/")])));
        }
    });
}

#[test]
fn head_tells_what_get_would_bring_without_bringing_it() {
    isolated(|site| {
        let file = site.file("clip.mp4", 123_456).unwrap();
        let _splitway = serve(&site);
        for server in FAMILIES {
            let mut connection = Connection::open(server).unwrap();
            connection
                .send(request("HEAD", file.name()).as_bytes())
                .unwrap();
            let head = connection.read_file_head(&file).unwrap();
            assert_eq!(head.field("content-type"), Some("video/mp4"));
            // Whatever came after that header would be taken for the next response.
            connection.get(&file).unwrap();
        }
    });
}

#[test]
fn curl_resumes_and_takes_parts_also_beyond_four_gigabytes() {
    isolated(|site| {
        let file = site.file("clip.mp4", 3_000_000).unwrap();
        let middle = (1 << 32) - 5000..(1 << 32) + 5000;
        let end = (5 << 30) - 5000..5 << 30;
        let islands = vec![0..5000, middle.clone(), end.clone()];
        let huge = site.sparse_file("huge", 5 << 30, islands).unwrap();
        let _splitway = serve(&site);
        let downloaded = site.outside().join("downloaded");
        let whole = fs::read(site.root().join(file.name())).unwrap();
        for url in URLS {
            let curl = |arguments: &str, name: &str| {
                sh(&format!(
                    "curl -sf --max-time 20 {arguments} -o {} {url}/{name}",
                    downloaded.display()
                ));
                fs::read(&downloaded).unwrap()
            };
            fs::write(&downloaded, &whole[..1_000_000]).unwrap();
            assert!(curl("-C -", file.name()) == whole);
            for (range, part) in [
                ("4294962296-4294972295", middle.clone()),
                ("5368704120-", end.clone()),
                ("-5000", end.clone()),
                ("0-4999", 0..5000),
            ] {
                let bytes = curl(&format!("-r {range}"), huge.name());
                assert_eq!(bytes.len() as u64, part.end - part.start, "{range}");
                assert_eq!(huge.check(part.start, &bytes), Ok(()), "{range}");
            }
            assert_eq!(status(&["-r", "5368709120-", &format!("{url}/huge")]), 416);
        }
    });
}

#[test]
fn curl_gets_what_was_compressed_before() {
    isolated(|site| {
        let page = "<p>all of it</p>".repeat(1000);
        fs::create_dir(site.root().join("sub")).unwrap();
        let path = site.root().join("sub/home.htm");
        fs::write(&path, &page).unwrap();
        run(tool("gzip --keep").arg(&path)).unwrap();
        let packed = fs::metadata(site.root().join("sub/home.htm.gz"))
            .unwrap()
            .len();
        let options = [
            "--index",
            "index.html,home.htm",
            "--precompressed",
            "br,gzip",
        ];
        let _splitway = serve_with(&site, &options);
        for url in URLS {
            let get = |options: &str| sh(&format!("curl -sf --max-time 20 {options} {url}/sub/"));
            assert!(get("--compressed") == page);
            assert!(get("") == page);
            let count = get("--compressed -o /dev/null -w %{size_download}");
            assert_eq!(count, packed.to_string());
            assert_eq!(
                status(&[
                    "-H",
                    "Accept-Encoding: zstd, identity;q=0",
                    &format!("{url}/sub/")
                ]),
                406
            );
        }
    });
}

/// What a `multipart/byteranges` response has of a file: the ranges, each byte of which is right.
pub(crate) fn parts_of(response: &[u8], file: &KnownFile) -> Vec<Range<u64>> {
    let end = |bytes: &[u8]| {
        bytes
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap()
    };
    let head_len = end(response);
    let head = String::from_utf8(response[..head_len].to_vec()).unwrap();
    let (_, boundary) = head.split_once("multipart/byteranges; boundary=").unwrap();
    let boundary = format!("\r\n--{}", boundary.split("\r\n").next().unwrap());
    let (mut rest, mut parts) = (&response[head_len + 4..], Vec::new());
    // The line break before a delimiter is part of it; before the first one it may be absent (RFC
    // 2046 §5.1.1), as in a response of Caddy.
    if rest.starts_with(b"--") {
        rest = &response[head_len + 2..];
    }
    loop {
        rest = rest.strip_prefix(boundary.as_bytes()).unwrap();
        if rest == b"--\r\n" {
            return parts;
        }
        let head_len = end(rest);
        let head = String::from_utf8(rest[..head_len].to_vec()).unwrap();
        let (_, range) = head.split_once("Content-Range: bytes ").unwrap();
        let (first, last) = range.split_once('/').unwrap().0.split_once('-').unwrap();
        let range = first.parse().unwrap()..last.parse::<u64>().unwrap() + 1;
        let (body, after) = rest[head_len + 4..].split_at((range.end - range.start) as usize);
        assert_eq!(file.check(range.start, body), Ok(()), "{range:?}");
        parts.push(range);
        rest = after;
    }
}

#[test]
fn many_parts_are_right_with_tls_and_without() {
    isolated(|site| {
        let file = site.file("clip.mp4", 3_000_000).unwrap();
        let _splitway = serve_with(
            &site,
            &["--listen", "80", "--tls-listen", "443", "--tls-self-signed"],
        );
        let ranges: Vec<Range<u64>> = (0..256)
            .map(|at| (255 - at) * 11_000 + at * 30..(256 - at) * 11_000 - 500)
            .collect();
        let specs: Vec<String> = ranges
            .iter()
            .map(|range| format!("{}-{}", range.start, range.end - 1))
            .collect();
        for url in ["http://10.77.0.2", "https://10.77.0.2", "https://[fd77::2]"] {
            let mut curl = tool("curl -q --silent --insecure --include --max-time 20 --range");
            let output = curl
                .arg(specs.join(","))
                .arg(format!("{url}/clip.mp4"))
                .output();
            assert_eq!(parts_of(&output.unwrap().stdout, &file), ranges, "{url}");
        }
    });
}

#[test]
fn no_connection_is_faster_than_it_may_be() {
    isolated(|site| {
        let file = site.file("clip.mp4", 1_000_000).unwrap();
        let _splitway = serve_with(&site, &["--rate-per-connection", "4mbit"]);
        for server in FAMILIES {
            let begun = Instant::now();
            Connection::open(server).unwrap().get(&file).unwrap();
            // Two seconds' worth.
            assert!(begun.elapsed() > Duration::from_millis(1500));
        }
    });
}

#[test]
fn curl_fetches_only_what_has_changed() {
    isolated(|site| {
        let path = site.root().join("page.html");
        fs::write(&path, "the first").unwrap();
        let _splitway = serve(&site);
        let tag = site.outside().join("tag");
        let tag = tag.to_str().unwrap();
        let url = format!("{}/page.html", URLS[0]);
        // There is no tag right after a change.
        wait::until(SOON, "a tag", || {
            let mut connection = Connection::open(FAMILIES[0]).unwrap();
            connection
                .send(request("HEAD", "page.html").as_bytes())
                .unwrap();
            let head = connection.read_head().unwrap();
            head.field("etag").map(|_| ())
        })
        .unwrap();
        let compare = ["--etag-save", tag, "--etag-compare", tag, &url];
        assert_eq!(status(&compare), 200);
        assert_eq!(status(&compare), 304);
        let other = site.outside().join("other");
        fs::write(&other, "the other").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(status(&compare), 200);
        assert_eq!(status(&["-z", path.to_str().unwrap(), &url]), 304);
    });
}

#[test]
fn what_is_not_there_or_not_allowed_has_its_status_and_the_connection_lives_on() {
    isolated(|site| {
        let file = site.file("file", 1000).unwrap();
        let secret = site.outside().join("secret");
        fs::write(&secret, "not for you").unwrap();
        symlink(&secret, site.root().join("absolute")).unwrap();
        symlink("../outside/secret", site.root().join("relative")).unwrap();
        symlink("../outside", site.root().join("directory")).unwrap();
        sh(&format!("mkfifo {}", site.root().join("fifo").display()));
        let _splitway = serve(&site);
        for server in FAMILIES {
            let mut connection = Connection::open(server).unwrap();
            for (name, statuses) in [
                ("missing", &[404][..]),
                ("file/below", &[404]),
                ("absolute", &[403, 404]),
                ("relative", &[403, 404]),
                ("directory/secret", &[403, 404]),
                ("fifo", &[403, 404]),
                ("%2e%2e/outside/secret", &[400, 403, 404]),
                ("..%2foutside%2fsecret", &[400, 403, 404]),
            ] {
                connection.send_get(name).unwrap();
                let head = connection.read_head().unwrap();
                assert!(statuses.contains(&head.status), "{name}: {}", head.status);
                let len = head.content_length().unwrap();
                connection.read_body(len, |_, _| Ok(())).unwrap();
                if head.status == 400 {
                    // The server may end a connection on which it was told nonsense.
                    connection = Connection::open(server).unwrap();
                }
                connection.get(&file).unwrap();
            }
        }
        for url in URLS {
            let above = format!("{url}/../outside/secret");
            assert!([400, 403, 404].contains(&status(&["--path-as-is", &above])));
            assert!([405, 501].contains(&status(&["--request", "DELETE", &format!("{url}/file")])));
        }
    });
}

#[test]
fn nonsense_is_refused_and_the_next_client_is_served() {
    isolated(|site| {
        let file = site.file("file", 1000).unwrap();
        let _splitway = serve(&site);
        let endless = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(1 << 20));
        for nonsense in [
            "\0\0\0\0\r\n\r\n",
            "GET\r\n\r\n",
            "GET / HTTP/9.9\r\n\r\n",
            &endless,
        ] {
            let mut connection = Connection::open(FAMILIES[0]).unwrap();
            // The server may refuse, and reset, before all of it is sent; what it answered may be
            // lost with that.
            let sent = connection.send(nonsense.as_bytes());
            match connection.read_head() {
                Ok(head) => assert!((400..=505).contains(&head.status), "{}", head.status),
                Err(failure) => assert!(sent.is_err() || nonsense == endless, "{failure}"),
            }
            for server in FAMILIES {
                started(server, &file)
                    .read_file_part(&file, 0..file.size())
                    .unwrap();
            }
        }
    });
}
