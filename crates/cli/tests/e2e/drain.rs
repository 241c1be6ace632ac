//! A server that ends without losing anything, and one that cannot wait for ever.

use rustix::process::Signal;
use testbed::http::Connection;
use testbed::namespace::isolated;
use testbed::process::signal;
use testbed::splitway::HTTP_V4;
use testbed::wait;

use crate::config::{configuration, serve_configured};
use crate::deaths::host_counter;
use crate::support::{SOON, ctl, serve_with, started};

#[test]
fn responses_go_on_to_their_end_and_no_other_connection_is_accepted() {
    isolated(|site| {
        let large = site.file("large", 30_000_000).unwrap();
        let small = site.file("small", 5000).unwrap();
        for by_signal in [true, false] {
            let mut splitway = serve_with(&site, &["--report-json"]);
            let mut download = started(HTTP_V4, &large);
            download.read_file_part(&large, 0..100_000).unwrap();
            let mut idle = Connection::open(HTTP_V4).unwrap();
            idle.get(&small).unwrap();
            let mut new = Connection::open(HTTP_V4).unwrap();
            if by_signal {
                signal(splitway.supervisor(), Signal::QUIT).unwrap();
            } else {
                let (done, said) = ctl("drain", None);
                assert!(done && said.contains("no new connections"), "{said}");
            }
            splitway.line(|line| line.starts_with("draining")).unwrap();
            wait::until(SOON, "a refusal", || Connection::open(HTTP_V4).err()).unwrap();
            // In order, and not with a reset.
            idle.read_end().unwrap();
            let head = new.get(&small).unwrap();
            assert_eq!(head.field("connection"), Some("close"));
            new.read_end().unwrap();
            // Asking again changes nothing.
            let (done, said) = ctl("drain", None);
            assert!(done && said.contains("already"), "{said}");
            download
                .read_file_part(&large, 100_000..large.size())
                .unwrap();
            download.read_end().unwrap();
            drop((download, idle, new));
            assert!(splitway.wait().unwrap().success());
            splitway.line(|line| line.starts_with("drained")).unwrap();
            assert_eq!(host_counter(&mut splitway, "connections_broken"), 0);
        }
    });
}

#[test]
fn who_takes_too_long_is_reset() {
    isolated(|site| {
        let large = site.file("large", 30_000_000).unwrap();
        let path = configuration(&site, "[operation]\ndrain_timeout = \"300ms\"\n");
        let mut splitway = serve_configured(&path);
        let mut download = started(HTTP_V4, &large);
        signal(splitway.supervisor(), Signal::QUIT).unwrap();
        assert!(splitway.wait().unwrap().success());
        splitway.line(|line| line.contains("reset")).unwrap();
        assert!(download.read_file_part(&large, 0..large.size()).is_err());
    });
}
