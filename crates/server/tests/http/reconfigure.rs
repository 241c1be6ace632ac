//! Another configuration while requests are in hand.

use std::num::NonZeroU64;
use std::time::Duration;

use http::StatusCode;
use server::{Config, ExtraField, Rule, Site};

use crate::lab::{Lab, get};

/// A site below this root, whose first `rules` rules are about nothing and the next one names it.
fn config(root: &str, rules: usize) -> Config {
    let mut all: Vec<Rule> = (0..rules)
        .map(|number| Rule::new(format!("/nothing/{number}").parse().unwrap()))
        .collect();
    all.push(Rule {
        fields: vec![ExtraField::new("X-Site", root).unwrap()],
        ..Rule::new("*".parse().unwrap())
    });
    Config {
        sites: vec![Site {
            root: root.parse().unwrap(),
            rules: all,
            error_pages: vec![(
                StatusCode::NOT_FOUND,
                format!("{root}.html").parse().unwrap(),
            )],
            ..Site::default()
        }],
        ..Config::default()
    }
}

fn lab() -> Lab {
    let mut lab = Lab::with(config("old", 3));
    for root in ["old", "new"] {
        lab.file(&format!("{root}/a"), root);
        lab.file(&format!("{root}/{root}.html"), format!("no {root}"));
    }
    lab
}

#[test]
fn a_request_in_hand_keeps_its_site_and_rule_and_the_next_one_has_the_new() {
    for rules in [0, 9] {
        let mut lab = lab();
        let stream = lab.connect();
        lab.hold_opens();
        lab.send(stream, get("/a"));
        lab.reconfigure(config("new", rules));
        lab.send(stream, get("/a"));
        lab.answer_opens();
        for root in ["old", "new"] {
            let response = lab.response(stream);
            assert_eq!(response.body, root.as_bytes());
            assert_eq!(response.header("X-Site"), Some(root));
        }
    }
}

#[test]
fn so_does_the_page_of_its_error() {
    let mut lab = lab();
    let stream = lab.connect();
    lab.hold_opens();
    lab.send(stream, get("/missing"));
    lab.reconfigure(config("new", 0));
    lab.answer_opens();
    let response = lab.response(stream);
    assert_eq!((response.status, response.body), (404, b"no old".to_vec()));
    let response = lab.ask(stream, &get("/missing"));
    assert_eq!((response.status, response.body), (404, b"no new".to_vec()));
}

#[test]
fn limits_and_times_hold_for_what_begins_next() {
    let mut lab = lab();
    let stream = lab.connect();
    assert_eq!(lab.ask(stream, &get("/a")).status, 200);
    lab.reconfigure(Config {
        head_bytes_max: 100,
        idle_timeout: Duration::from_secs(2),
        ..config("new", 0)
    });
    let long = get("/a").replace("\r\n\r\n", &format!("\r\nX: {}\r\n\r\n", "x".repeat(200)));
    let refused = lab.connect();
    assert_eq!(lab.ask(refused, &long).status, 431);
    lab.reconfigure(Config {
        idle_timeout: Duration::from_secs(2),
        ..config("new", 0)
    });
    assert_eq!(lab.ask(stream, &long).status, 200);
    lab.pass(Duration::from_secs(2));
    assert!(lab.is_shut_down(stream), "it has been idle for two seconds");
}

#[test]
fn shared_rates_are_those_of_now() {
    let with = |source: Option<u64>| Config {
        source_bytes_per_second_max: source.and_then(NonZeroU64::new),
        ..config("old", 0)
    };
    let mut lab = lab();
    lab.reconfigure(with(Some(8000)));
    let streams = [lab.connect(), lab.connect()];
    for stream in streams {
        lab.acknowledges(stream, false);
        lab.send(stream, get("/a"));
    }
    let rates = |lab: &Lab| streams.map(|stream| lab.rate_max(stream));
    assert_eq!(rates(&lab), [Some(4000); 2]);
    lab.reconfigure(with(Some(6000)));
    assert_eq!(rates(&lab), [Some(3000); 2]);
    lab.reconfigure(with(None));
    assert_eq!(rates(&lab), [None; 2]);
    // Who began without a share goes on without one.
    lab.reconfigure(with(Some(2000)));
    assert_eq!(rates(&lab), [None; 2]);
    for stream in streams {
        let bytes = lab.unacknowledged_bytes(stream);
        lab.acknowledge(stream, bytes);
        lab.response(stream);
        lab.send(stream, get("/a"));
    }
    assert_eq!(rates(&lab), [Some(1000); 2]);
}
