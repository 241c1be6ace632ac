//! How fast the server lets streams be sent to.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use host::app::StreamId;
use server::{Config, Pace, Rule, Site};

use crate::lab::{Lab, get, get_with};

fn rate(bytes_per_second: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(bytes_per_second)
}

/// Files of a million bytes: `clip.mp4` is paced at 1000 bytes per second, `film.mp4` after 300,000
/// bytes at once.
fn lab(config: Config) -> Lab {
    let pace = |at_once_bytes| {
        Some(Pace {
            bytes_per_second: rate(1000).unwrap(),
            at_once_bytes,
        })
    };
    let mut lab = Lab::with(Config {
        sites: vec![Site {
            rules: vec![
                Rule {
                    pace: pace(0),
                    ..Rule::new("/clip.mp4".parse().unwrap())
                },
                Rule {
                    pace: pace(300_000),
                    ..Rule::new("/film.mp4".parse().unwrap())
                },
            ],
            ..Site::default()
        }],
        ..config
    });
    for name in ["clip.mp4", "film.mp4", "page.html"] {
        lab.file(name, vec![7; 1_000_000]);
    }
    lab
}

/// Asks, and does not acknowledge.
fn ask(lab: &mut Lab, client: StreamId, target: &str) {
    lab.acknowledges(client, false);
    lab.send(client, get(target));
}

/// Bytes of files that are queued so far.
fn file_bytes(lab: &Lab, client: StreamId) -> u64 {
    let ranges = lab.ranges(client);
    ranges.iter().map(|range| range.end - range.start).sum()
}

#[test]
fn nothing_is_bounded_unless_told_so() {
    let mut lab = lab(Config::default());
    let client = lab.connect();
    ask(&mut lab, client, "/page.html");
    assert_eq!(lab.rate_max(client), None);
}

#[test]
fn a_paced_response_has_its_rate_and_the_next_one_its_own() {
    let mut lab = lab(Config::default());
    let client = lab.connect();
    ask(&mut lab, client, "/clip.mp4");
    assert_eq!(lab.rate_max(client), Some(1000));
    // What is queued is not hurried by what comes after it.
    lab.send(client, get("/page.html"));
    assert_eq!(lab.rate_max(client), Some(1000));
    lab.acknowledges(client, true);
    for _ in 0..2 {
        assert_eq!(lab.response(client).body, vec![7; 1_000_000]);
    }
    ask(&mut lab, client, "/page.html");
    assert_eq!(lab.rate_max(client), None);
}

#[test]
fn the_beginning_of_a_film_is_sent_at_once() {
    let mut lab = lab(Config::default());
    let client = lab.connect();
    ask(&mut lab, client, "/film.mp4");
    assert_eq!(lab.rate_max(client), None);
    assert_eq!(file_bytes(&lab, client), 300_000);
    let queued = lab.unacknowledged_bytes(client);
    lab.acknowledge(client, queued - 1);
    assert_eq!(file_bytes(&lab, client), 300_000);
    lab.acknowledge(client, 1);
    assert_eq!(file_bytes(&lab, client), 1_000_000);
    assert_eq!(lab.rate_max(client), Some(1000));
    lab.acknowledges(client, true);
    assert_eq!(lab.response(client).body, vec![7; 1_000_000]);
    assert_eq!(lab.received(client), b"");
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn the_acknowledgement_of_what_came_before_does_not_end_the_beginning() {
    let mut lab = lab(Config::default());
    let client = lab.connect();
    ask(&mut lab, client, "/page.html");
    lab.acknowledge_and_send(client, get("/film.mp4"));
    assert_eq!(
        (file_bytes(&lab, client), lab.rate_max(client)),
        (1_300_000, None)
    );
}

#[test]
fn a_part_that_is_shorter_than_that_is_not_paced() {
    let mut lab = lab(Config::default());
    let client = lab.connect();
    let request = get_with("/film.mp4", &[("Range", "bytes=500000-799999")]);
    assert_eq!(lab.ask(client, &request).status, 206);
    assert_eq!(lab.rate_max(client), None);
    let request = get_with("/film.mp4", &[("Range", "bytes=500000-800000")]);
    assert_eq!(lab.ask(client, &request).body.len(), 300_001);
    assert_eq!(lab.rate_max(client), Some(1000));
    // Several parts are, from the start.
    let other = lab.connect();
    let request = get_with("/film.mp4", &[("Range", "bytes=0-0,5000-5000")]);
    assert_eq!(lab.ask(other, &request).status, 206);
    assert_eq!(lab.rate_max(other), Some(1000));
    let head = "HEAD /clip.mp4 HTTP/1.1\r\nHost: h\r\n\r\n";
    let other = lab.connect();
    lab.ask(other, head);
    assert_eq!(lab.rate_max(other), None);
}

#[test]
fn a_client_that_does_not_take_the_beginning_is_given_up() {
    let mut lab = lab(Config::default());
    let client = lab.connect();
    ask(&mut lab, client, "/film.mp4");
    lab.pass(Config::default().stall_timeout);
    assert!(lab.is_aborted(client));
}

#[test]
fn a_connection_has_its_bound_whatever_is_asked_for() {
    let mut lab = lab(Config {
        connection_bytes_per_second_max: rate(500_000),
        ..Config::default()
    });
    let client = lab.connect();
    ask(&mut lab, client, "/page.html");
    assert_eq!(lab.rate_max(client), Some(500_000));
    lab.acknowledges(client, true);
    ask(&mut lab, client, "/clip.mp4");
    assert_eq!(lab.rate_max(client), Some(1000));
}

#[test]
fn connections_of_a_source_share_while_they_send() {
    let mut lab = lab(Config {
        source_bytes_per_second_max: rate(600_000),
        ..Config::default()
    });
    let [a, b, c] = ["10.77.0.1", "10.77.0.1", "10.77.0.9"].map(|from| lab.connect_from(from));
    let rates = |lab: &Lab| [a, b, c].map(|client| lab.rate_max(client));
    ask(&mut lab, a, "/page.html");
    assert_eq!(rates(&lab), [Some(600_000), None, None]);
    ask(&mut lab, b, "/page.html");
    ask(&mut lab, c, "/page.html");
    assert_eq!(rates(&lab), [Some(300_000), Some(300_000), Some(600_000)]);
    // Another request of the same connection does not count twice.
    lab.send(a, get("/page.html"));
    assert_eq!(rates(&lab)[..2], [Some(300_000), Some(300_000)]);
    // Who has everything leaves its share to the other.
    lab.acknowledges(b, true);
    assert_eq!(lab.rate_max(a), Some(600_000));
    ask(&mut lab, b, "/clip.mp4");
    assert_eq!(rates(&lab)[..2], [Some(300_000), Some(1000)]);
    lab.reset(b);
    assert_eq!(lab.rate_max(a), Some(600_000));
}

#[test]
fn a_response_costs_no_more_because_its_source_has_many_connections() {
    const MANY: u64 = 100;
    const TOTAL: u64 = 60_000_000;
    let mut lab = lab(Config {
        source_bytes_per_second_max: rate(TOTAL),
        ..Config::default()
    });
    lab.file("small", "a few bytes");
    let mut clients = Vec::new();
    for _ in 0..MANY {
        let client = lab.connect();
        ask(&mut lab, client, "/page.html");
        clients.push(client);
        let rates = clients.iter().map(|&client| lab.rate_max(client).unwrap());
        let (sum, count) = (rates.sum::<u64>(), clients.len() as u64);
        // A share lacks less than a byte of what it would be.
        assert!(sum + count > TOTAL, "{sum} of {count}");
        let more = if count > 16 { TOTAL / 15 } else { 0 };
        assert!(sum <= TOTAL + more, "{sum} of {count}");
    }
    assert!(lab.rates_set() < 20 * MANY, "{}", lab.rates_set());

    let before = lab.rates_set();
    let client = lab.connect();
    for _ in 0..100 {
        assert_eq!(lab.ask(client, &get("/small")).status, 200);
    }
    let set = lab.rates_set() - before;
    assert!(set < 2 * MANY + 200, "{set}");

    // Who remains gets what the others had.
    for client in clients.drain(1..) {
        lab.reset(client);
    }
    assert_eq!(lab.rate_max(clients[0]), Some(TOTAL));
}

#[test]
fn networks_of_ipv6_are_sources() {
    let mut lab = lab(Config {
        source_bytes_per_second_max: rate(30_000),
        ..Config::default()
    });
    let clients = ["2001:db8::1", "2001:db8::2:0:0:1", "2001:db8:0:1::1"];
    let clients = clients.map(|from| lab.connect_from(from));
    for client in clients {
        ask(&mut lab, client, "/page.html");
    }
    assert_eq!(
        clients.map(|client| lab.rate_max(client)),
        [Some(15_000), Some(15_000), Some(30_000)]
    );
}

#[test]
fn no_client_is_served_so_slowly_that_it_looks_as_if_it_were_gone() {
    let mut lab = lab(Config {
        source_bytes_per_second_max: rate(2_500),
        ..Config::default()
    });
    let clients = [(); 3].map(|()| lab.connect_from("10.77.0.1"));
    for client in clients {
        ask(&mut lab, client, "/page.html");
    }
    assert_eq!(clients.map(|client| lab.rate_max(client)), [Some(1_000); 3]);
}

#[test]
fn a_film_is_paced_by_its_bit_rate() {
    let (bits, percent) = (NonZeroU64::new(8_000_000), NonZeroU32::new(200));
    let pace = Pace::of_media(bits.unwrap(), percent.unwrap(), Duration::from_secs(10));
    assert_eq!(pace.bytes_per_second.get(), 2_000_000);
    assert_eq!(pace.at_once_bytes, 10_000_000);
}
