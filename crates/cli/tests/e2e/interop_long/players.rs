//! Players in Chromium.

use std::fs;
use std::path::Path;

use serde_json::Value;
use testbed::process::{run, tool};
use testbed::site::Site;

use crate::browser::Page;
use crate::https::Certificate;

/// Runs a function of `player.html` on a target, and compares the bytes of each response that its
/// scripts can see with those of the file.
pub(super) fn attempt(
    (site, certificate): (&Site, &Certificate),
    server: &str,
    function: &str,
    target: &str,
) -> Result<(), String> {
    // Sums are for secure origins alone.
    let options = format!(
        "--autoplay-policy=no-user-gesture-required \
         --unsafely-treat-insecure-origin-as-secure={server}"
    );
    let mut page = Page::open(site, certificate, &options);
    page.clear_cache();
    page.load(&format!("{server}/player.html"));
    let found = page.evaluate(&format!("attempt({function:?}, {target:?})"));
    let failure = found["failure"].as_str().unwrap();
    if !failure.is_empty() {
        return Err(format!("{target}: {failure}"));
    }
    let responses = found["responses"].as_array().unwrap();
    assert_eq!(responses.is_empty(), function == "native", "{found}");
    let wrong = responses.iter().find(|it| !is_right(site.root(), it));
    wrong.map_or(Ok(()), |it| Err(format!("other bytes: {it}")))
}

/// Whether a response has the bytes of the file, or of its range: path, status, range, sum.
fn is_right(root: &Path, response: &Value) -> bool {
    let [path, range, sum] = [0, 2, 3].map(|at| response[at].as_str().unwrap());
    let path = root.join(path.trim_start_matches('/'));
    let size = fs::metadata(&path).unwrap().len();
    let (first, last) = match response[1].as_u64() {
        Some(200) => (0, size - 1),
        Some(206) => {
            let range = range.trim_start_matches("bytes ");
            let (range, _) = range.split_once('/').unwrap();
            let (first, last) = range.split_once('-').unwrap();
            (first.parse().unwrap(), last.parse().unwrap())
        }
        _ => return false,
    };
    let mut shell = tool("sh -c");
    shell.arg(format!(
        "tail -c +{} '{}' | head -c {} | sha256sum",
        first + 1,
        path.display(),
        last + 1 - first
    ));
    run(&mut shell).unwrap().split(' ').next() == Some(sum)
}
