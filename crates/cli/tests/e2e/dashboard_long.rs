//! The dashboard in a browser, while files are downloaded.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use testbed::http::download;
use testbed::namespace::isolated_long;
use testbed::process::run;
use testbed::site::Site;
use testbed::splitway::HTTP_V4;

use crate::metrics::{ADMIN, watched};

/// Chromium on the dashboard, for some minutes of its own virtual time.
fn browser(site: &Site, arguments: &[&str]) -> Command {
    let mut chromium = Command::new("chromium");
    chromium.args(["--headless", "--no-sandbox", "--disable-gpu"]);
    chromium.args(["--virtual-time-budget=300000", "--window-size=1200,900"]);
    let profile = site.outside().join("profile");
    chromium.arg(format!("--user-data-dir={}", profile.display()));
    chromium.args(arguments).arg(format!("http://{ADMIN}/"));
    chromium
}

/// The text of an element of the page.
fn shown<'a>(page: &'a str, id: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("id=\"{id}\"")).expect(page);
    let (_, rest) = rest.split_once('>').unwrap();
    rest.split('<').next().unwrap()
}

#[test]
#[ignore = "needs a browser, which takes long to install"]
fn the_dashboard_shows_what_is_going_on() {
    isolated_long(|site| {
        let file = site.file("film.mp4", 5_000_000).unwrap();
        let _splitway = watched(&site, &[]);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let downloads = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    download(HTTP_V4, &file).unwrap();
                }
            });
            let page = run(&mut browser(&site, &["--dump-dom"])).unwrap();
            let picture = site.outside().join("page.png");
            run(&mut browser(
                &site,
                &[&format!("--screenshot={}", picture.display())],
            ))
            .unwrap();
            is_over.store(true, Ordering::Relaxed);
            downloads.join().unwrap();
            assert!(shown(&page, "state").contains("serving"), "{page}");
            let throughput = shown(&page, "throughput");
            assert!(
                throughput.ends_with("bit/s") && !throughput.starts_with("0 "),
                "{throughput}"
            );
            let requests = shown(&page, "requests");
            assert!(
                requests.ends_with(" /s") && !requests.starts_with("0 "),
                "{requests}"
            );
            assert!(shown(&page, "cache").ends_with(" %"), "{page}");
            assert!(
                page.contains("/film.mp4") && page.contains("<path"),
                "{page}"
            );
            // One that is blank has a tenth of that.
            assert!(fs::metadata(picture).unwrap().len() > 20_000);
        });
    });
}
