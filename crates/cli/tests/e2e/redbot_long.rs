//! REDbot, which looks for mistakes in what an HTTP server says.

use std::fs;
use std::path::Path;

use serde_json::Value;
use testbed::namespace::isolated_long;
use testbed::process::{run, tool};

use crate::https::{Certificate, serve_tls};

/// What it says of a URL and of what its page refers to: its URL, a level, and a sentence.
fn notes(url: &str) -> Vec<(String, String, String)> {
    let har = run(tool("redbot --output-format har --assets").arg(url)).unwrap();
    let har: Value =
        serde_json::from_str(&har).unwrap_or_else(|error| panic!("{url}: {error}: {har}"));
    let entries = har["log"]["entries"].as_array().unwrap();
    assert!(!entries.is_empty(), "{url} was not answered: {har}");
    let mut found = Vec::new();
    for entry in entries {
        let url = entry["request"]["url"].as_str().unwrap();
        let mut notes: Vec<&Value> = entry["_red_messages"].as_array().unwrap().iter().collect();
        while let Some(note) = notes.pop() {
            notes.extend(note["subnotes"].as_array().into_iter().flatten());
            let word = |name: &str| note[name].as_str().unwrap().to_owned();
            found.push((url.to_owned(), word("level"), word("summary")));
        }
    }
    found
}

#[test]
#[ignore = "needs REDbot, which takes long to install"]
fn redbot_finds_no_error() {
    isolated_long(|site| {
        let root = site.root();
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/site");
        run(tool("cp --recursive").arg(example.join(".")).arg(root)).unwrap();
        fs::create_dir(root.join("directory")).unwrap();
        fs::write(root.join("empty"), "").unwrap();
        fs::write(
            root.join("notes.txt"),
            "what repeats can be compressed\n".repeat(1000),
        )
        .unwrap();
        run(tool("gzip --keep index.html style.css notes.txt").current_dir(root)).unwrap();
        // There is no tag while a file is fresh.
        let files = "index.html style.css split.svg video.mp4 empty notes.txt";
        run(tool(&format!("touch -d 2020-01-01 {files}")).current_dir(root)).unwrap();
        run(tool("touch -d 2020-01-01 index.html.gz style.css.gz notes.txt.gz").current_dir(root))
            .unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let options = ["--listen", "80", "--precompressed", "gzip"];
        let _splitway = serve_tls(&site, &[&certificate], &options);
        let mut seen = Vec::new();
        for path in [
            "/",
            "/style.css",
            "/split.svg",
            "/video.mp4",
            "/notes.txt",
            "/empty",
            "/directory",
            "/missing",
        ] {
            for (url, level, summary) in notes(&format!("http://10.77.0.2{path}")) {
                println!("{level:5} {url} {summary}");
                assert_ne!(level, "BAD", "{url}: {summary}");
                seen.push(summary);
            }
        }
        // It has looked at what is to be looked at.
        for about in ["If-None-Match", "If-Modified-Since", "ange", "gzip"] {
            assert!(
                seen.iter().any(|summary| summary.contains(about)),
                "nothing of {about}"
            );
        }
    });
}
