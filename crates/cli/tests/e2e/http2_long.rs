//! HTTP/2 held against h2spec, which others wrote.

use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::namespace::isolated_long;
use testbed::site::Site;
use testbed::splitway::STACK_V4;

use crate::config::{configuration, serve_configured};
use crate::https::{Certificate, serve_tls};

/// The suite's program, which `make test-long` builds.
fn program() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    target
        .unwrap_or_else(|| workspace.join("target"))
        .join("h2spec")
}

/// Runs the suite in strict mode: all of its 146 cases pass.
fn assert_all_pass(options: &str) {
    let mut command = Command::new(program());
    command.args(["--strict", "--timeout", "5", "--path", "/file"]);
    command.args(["--host", &STACK_V4.to_string()]);
    command.args(options.split(' '));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("146 tests, 146 passed, 0 skipped, 0 failed"),
        "{text}"
    );
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
        assert_all_pass("--tls --insecure --port 443");
    });
}

#[test]
#[ignore = "needs h2spec, which takes Go"]
fn h2spec_finds_no_fault_without_tls() {
    isolated_long(|site| {
        site_with_a_file(&site);
        let path = configuration(&site, "[http]\nhttp2_prior_knowledge = true\n");
        let _splitway = serve_configured(&path);
        assert_all_pass("--port 80");
    });
}
