//! Chromium.

use std::fs;

use testbed::process::{run, tool};
use testbed::site::KnownFile;
use testbed::wait;

use super::Trial;
use crate::browser::{Page, QUIC_ORIGIN};
use crate::stat::json;
use crate::support::SOON;

/// Downloads files at once: of each by which protocols, its length and its sum. A browser may learn
/// only when it asks that its connection is over, and then asks again.
const PAGE: &str = r#"<!doctype html><title>downloads</title><script>
async function download(name, asksAgain) {
  const ask = () => fetch(name, { cache: "no-store" });
  const response = asksAgain ? await ask().catch(ask) : await ask();
  const bytes = await response.arrayBuffer();
  const sum = await crypto.subtle.digest("SHA-256", bytes);
  const hex = Array.from(new Uint8Array(sum), (byte) => byte.toString(16).padStart(2, "0"));
  const entries = performance.getEntriesByName(response.url);
  const answered = entries.filter((entry) => entry.responseStatus === 200);
  const protocols = new Set(answered.map((entry) => entry.nextHopProtocol));
  return `${[...protocols]} ${bytes.byteLength} ${hex.join("")}`;
}
const downloads = (names, asksAgain) =>
  Promise.all(names.map((name) => download(name, asksAgain)));
</script>"#;

/// What the page is to say of a file.
fn expected(trial: &Trial<'_>, file: &KnownFile) -> String {
    let sum = run(tool("sha256sum").arg(trial.site.root().join(file.name()))).unwrap();
    format!("h3 {} {}", file.size(), sum.split(' ').next().unwrap())
}

fn download(trial: &Trial<'_>, page: &mut Page, times: usize, asks_again: bool) {
    let files = || {
        trial
            .files
            .iter()
            .flat_map(|file| std::iter::repeat_n(file, times))
    };
    let names: Vec<&str> = files().map(KnownFile::name).collect();
    let said = page.evaluate(&format!(
        "downloads({}, {asks_again})",
        serde_json::json!(names)
    ));
    let expected: Vec<String> = files().map(|file| expected(trial, file)).collect();
    assert_eq!(said, serde_json::json!(expected), "{trial}");
}

/// Downloads all files.
pub(super) fn attempt(trial: &Trial<'_>) {
    fs::write(trial.site.root().join("page.html"), PAGE).unwrap();
    let mut page = Page::open_over_quic(trial.site, trial.certificate, trial.server, "");
    page.load(&format!("{QUIC_ORIGIN}/page.html"));
    let times = if trial.case == "multiplexing" { 20 } else { 1 };
    download(trial, &mut page, times, false);
    if matches!(trial.case, "resumption" | "0-RTT" | "0-RTT refused") {
        wait::until(SOON, "the end of a connection that is idle", || {
            let document = json(&[]);
            let connections = document["quic_connections"].as_array().unwrap();
            connections.is_empty().then_some(())
        })
        .unwrap();
        download(trial, &mut page, 1, true);
    }
}
