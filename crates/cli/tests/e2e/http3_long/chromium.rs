//! Chromium.

use std::fs;

use testbed::wait;

use super::Trial;
use crate::browser::{DOWNLOADS, Page, QUIC_ORIGIN};
use crate::stat::json;
use crate::support::SOON;

fn download(trial: &Trial<'_>, page: &mut Page, times: usize, asks_again: bool) {
    let files = trial.files.iter();
    let files: Vec<_> = files
        .flat_map(|file| std::iter::repeat_n(file, times))
        .collect();
    page.download(trial.site, "h3", &files, asks_again);
}

/// Downloads all files.
pub(super) fn attempt(trial: &Trial<'_>) {
    fs::write(trial.site.root().join("page.html"), DOWNLOADS).unwrap();
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
