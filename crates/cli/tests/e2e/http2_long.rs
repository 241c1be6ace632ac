//! HTTP/2 held against h2spec, which others wrote.

use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::backend::{Backend, Speech};
use testbed::namespace::isolated_long;
use testbed::site::Site;
use testbed::splitway::STACK_V4;

use crate::config::{configuration, serve_configured};
use crate::https::{Certificate, serve_tls};
use crate::proxy::{pool, started, written};
use crate::proxy_http2::listen_tls;

/// The suite's program, which `make test-long` builds.
fn program() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    target
        .unwrap_or_else(|| workspace.join("target"))
        .join("h2spec")
}

/// Runs the suite's 146 cases in strict mode; returns its report.
fn report(options: &str) -> String {
    report_on("/file", options)
}

fn report_on(path: &str, options: &str) -> String {
    let mut command = Command::new(program());
    command.args(["--strict", "--timeout", "5", "--path", path]);
    command.args(["--host", &STACK_V4.to_string()]);
    command.args(options.split(' '));
    let output = command.output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn site_with_a_file(site: &Site) {
    site.file("file", 10_000).unwrap();
}

#[test]
#[ignore = "needs h2spec, which takes Go"]
fn h2spec_finds_no_fault_over_tls() {
    isolated_long(|site| {
        site_with_a_file(&site);
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let _splitway = serve_tls(&site, &[&certificate], &[]);
        let report = report("--tls --insecure --port 443");
        let all = "146 tests, 146 passed, 0 skipped, 0 failed";
        assert!(report.contains(all), "{report}");
    });
}

#[test]
#[ignore = "needs h2spec, which takes Go"]
fn h2spec_finds_no_fault_in_the_proxy() {
    isolated_long(|site| {
        let _backend = Backend::new(9001, Speech::Http);
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let text = listen_tls(&certificate) + &pool("web", "", &[9001]);
        let _proxy = started(&written(&site, &text));
        let report = report_on("/10000", "--tls --insecure --port 443");
        let all = "146 tests, 146 passed, 0 skipped, 0 failed";
        assert!(report.contains(all), "{report}");
    });
}

/// Bytes that are no preface of HTTP/2 are HTTP/1.1, and answered with 400.
#[test]
#[ignore = "needs h2spec, which takes Go"]
fn h2spec_finds_no_fault_without_tls_but_an_answer_to_another_preface() {
    isolated_long(|site| {
        site_with_a_file(&site);
        let path = configuration(&site, "[http]\nhttp2_prior_knowledge = true\n");
        let _splitway = serve_configured(&path);
        let report = report("--port 80");
        let all_but_one = "146 tests, 145 passed, 0 skipped, 1 failed";
        assert!(report.contains(all_but_one), "{report}");
        let case = "× 2: Sends invalid connection preface";
        assert!(report.contains(case), "{report}");
    });
}
