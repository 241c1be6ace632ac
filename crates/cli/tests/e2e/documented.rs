//! The examples of a page of the documentation, run as the page has them.

use std::fs;
use std::path::Path;

use testbed::namespace::isolated;
use testbed::process::{run, tool};
use testbed::splitway::{HTTP_V4, STACK_V4};

use crate::config::{configuration, serve_configured};
use crate::https::Certificate;

/// The page's blocks of code between these lines, in order: their language and text.
fn examples(page: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = fs::read_to_string(path.join(page)).unwrap();
    let (_, rest) = text.split_once("<!-- examples -->").expect("a beginning");
    let (examples, _) = rest.split_once("<!-- end of examples -->").expect("an end");
    let mut fences = examples.split("```").skip(1);
    let mut found = Vec::new();
    while let Some(block) = fences.next() {
        let (language, code) = block.split_once('\n').expect("a language");
        found.push((language.to_owned(), code.to_owned()));
        fences.next();
    }
    found
}

/// Every line of `expected` is one of the output, in the same order.
fn assert_has(output: &str, expected: &str, command: &str) {
    let mut lines = output.lines().map(str::trim_end);
    for wanted in expected.lines() {
        let is_there = lines.any(|line| line == wanted);
        assert!(
            is_there,
            "{wanted:?} is not in the output of {command}{output}"
        );
    }
}

#[test]
fn examples_of_http2_print_what_the_page_shows() {
    isolated(|site| {
        let challenges = site.root().join(".well-known/acme-challenge");
        fs::create_dir_all(&challenges).unwrap();
        fs::write(challenges.join("token"), "proof\n").unwrap();
        fs::write(site.root().join("page.html"), "<title>Page</title>").unwrap();
        fs::write(site.root().join("style.css"), "a {}").unwrap();
        site.file("film.mp4", 20_000_000).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["example.org"]);
        let options = certificate.options();
        let examples = examples("http2.md");
        let blocks = |wanted: &str| {
            let of_language = examples.iter().filter(|(language, _)| language == wanted);
            of_language
                .map(|(_, code)| code.clone())
                .collect::<Vec<_>>()
        };
        // The film takes longer than a request.
        let text = format!(
            "[http]\nrate_per_connection = \"200mbit\"\n\
             [[tls.certificate]]\nchain = \"{}\"\nkey = \"{}\"\n{}",
            options[1],
            options[3],
            blocks("toml").concat()
        );
        let _splitway = serve_configured(&configuration(&site, &text));
        assert_eq!(HTTP_V4.port(), 80);
        // Each operation of a command line has options of its own.
        let more = format!(
            "--max-time 60 --cacert {} --resolve example.org:443:{STACK_V4} \
             --resolve example.org:80:{STACK_V4} ",
            certificate.certificate.display()
        );
        let (curl, next) = (format!("curl -q {more}"), format!("--next {more}"));
        let (commands, outputs) = (blocks("sh"), blocks("text"));
        assert!(commands.len() > 3 && commands.len() == outputs.len());
        for (command, expected) in commands.iter().zip(&outputs) {
            let line = command.replacen("curl ", &curl, 1);
            let line = line.replace("--next ", &next);
            let mut shell = tool("sh -c");
            let output = run(shell.arg(&line).current_dir(site.outside())).unwrap();
            assert_has(&output, expected, command);
        }
    });
}

/// The first block of TOML in a section of a page.
fn example_of(page: &str, heading: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = fs::read_to_string(path.join(page)).unwrap();
    let (_, section) = text
        .split_once(&format!("\n### {heading}\n"))
        .expect("the section");
    let (_, block) = section.split_once("```toml\n").expect("an example");
    let (example, _) = block.split_once("```").expect("its end");
    example.to_owned()
}

#[test]
fn rules_of_the_page_about_http_do_what_it_says() {
    isolated(|site| {
        for (path, text) in [
            ("index.html", "app"),
            ("about.html", "about"),
            ("back-soon.html", "soon"),
            ("shop/cart", "cart"),
            ("archive/2025/a", "old"),
            ("assets/a.css", "style"),
        ] {
            let path = site.root().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let rules = example_of("http.md", "Applications, moved paths and maintenance");
        let path = configuration(&site, &format!("[[site]]\n{rules}"));
        let _splitway = serve_configured(&path);
        for (target, cookie, status, body) in [
            ("/about", "", "200", "about"),
            ("/some/view", "", "200", "app"),
            ("/shop/cart", "", "503", "soon"),
            ("/shop/cart", "a=b; preview=1", "200", "cart"),
            ("/2025/a", "", "200", "old"),
            ("/assets/a.css", "", "200", "style"),
            ("/assets/none.css", "", "404", "<!doctype"),
        ] {
            let mut curl =
                tool("curl --silent --write-out %{http_code}%header{x-content-type-options}");
            curl.args(["--cookie", cookie, &format!("http://{STACK_V4}{target}")]);
            let answered = run(&mut curl).unwrap();
            assert!(answered.starts_with(body), "{target}: {answered}");
            assert!(
                answered.ends_with(&format!("{status}nosniff")),
                "{target}: {answered}"
            );
        }
    });
}
