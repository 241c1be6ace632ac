//! Backends that are asked whether they work, and those that are taken out because requests fail.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proxy::{BackendCounters, Check, CheckKind, Config, Ejection};

use crate::world::{GET, World, config, pool, response};

fn checked(kind: CheckKind) -> Config {
    let mut config = config(&[9001, 9002]);
    config.pools[0].check = Some(Check {
        kind,
        interval: Duration::from_secs(1),
        timeout: Duration::from_millis(500),
        ..Check::default()
    });
    config.pools[0].ejection = None;
    config
}

fn up_and_down(world: &World) -> (u64, u64) {
    let counters = world.counters();
    (counters.backends_up, counters.backends_down)
}

#[test]
fn a_backend_that_does_not_listen_is_down_until_it_does() {
    let mut world = World::new(checked(CheckKind::Tcp), &[9002]);
    world.settle();
    assert_eq!(up_and_down(&world), (1, 1));
    let before = world.counters().backend_connects;
    for _ in 0..3 {
        let client = world.client(GET);
        let backend = world.backend(9002);
        world.send(backend, response("x"));
        assert!(world.take(client).ends_with("x"));
    }
    assert_eq!(world.counters().retries, 0);
    assert!(world.counters().backend_connects > before);
    world.listen(9001);
    world.pass(Duration::from_millis(1100));
    assert_eq!(up_and_down(&world), (1, 1), "one good check is not enough");
    world.pass(Duration::from_secs(1));
    assert_eq!(up_and_down(&world), (2, 0));
}

#[test]
fn a_check_of_http_wants_a_status_in_time() {
    let kind = CheckKind::Http {
        path: "/health".to_owned(),
        host: "check".to_owned(),
        statuses: 200..=299,
    };
    let mut world = World::new(checked(kind), &[9001, 9002]);
    world.settle();
    let (good, bad) = (world.backend(9001), world.backend(9002));
    let request = world.take(good);
    assert!(
        request.starts_with("GET /health HTTP/1.1\r\nHost: check\r\n"),
        "{request}"
    );
    world.send(good, "HTTP/1.1 204 No Content\r\n\r\n");
    world.send(bad, "HTTP/1.1 500 Oh\r\n\r\n");
    assert_eq!(up_and_down(&world), (1, 1));
    // One that says nothing fails as well, three times in a row for one that was up.
    world.pass(Duration::from_millis(2700));
    assert_eq!(up_and_down(&world), (1, 1));
    world.pass(Duration::from_secs(2));
    assert_eq!(up_and_down(&world), (0, 2));
    let client = world.client(GET);
    let answer = world.take(client);
    assert!(
        answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"),
        "{answer}"
    );
    assert!(answer.ends_with("no backend is available\n"), "{answer}");
}

/// The log, as far as this thread writes it.
#[derive(Clone, Default)]
struct LogText(Arc<Mutex<Vec<u8>>>);

impl Write for LogText {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_log_says_why_a_check_has_failed() {
    type Acts = fn(&mut World);
    let http = CheckKind::Http {
        path: "/".to_owned(),
        host: String::new(),
        statuses: 200..=299,
    };
    let cases: [(&[u16], &CheckKind, Acts, &str); 6] = [
        (&[9002], &CheckKind::Tcp, |_| (), "no connection"),
        (&[9002], &http, |_| (), "no connection"),
        (
            &[9001, 9002],
            &http,
            |world| world.send(world.backend(9001), "HTTP/1.1 500 Oh\r\n\r\n"),
            "it answers 500",
        ),
        (
            &[9001, 9002],
            &http,
            |world| world.send(world.backend(9001), "nonsense\r\n\r\n"),
            "its answer is malformed",
        ),
        (
            &[9001, 9002],
            &http,
            |world| world.finish(world.backend(9001)),
            "it closed before it answered",
        ),
        (
            &[9001, 9002],
            &http,
            |world| world.pass(Duration::from_millis(600)),
            "no answer within 500ms",
        ),
    ];
    for (listening, kind, act, why) in cases {
        let log = LogText::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let mut world = World::new(checked(kind.clone()), listening);
            world.settle();
            act(&mut world);
            world.settle();
            let failures = world.failures();
            let line = format!("last check: {why}");
            assert!(
                failures.iter().any(|it| it.starts_with(&line)),
                "{failures:?}"
            );
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let line = text.lines().find(|line| line.contains("backend is down"));
        let line = line.unwrap_or_else(|| panic!("{why}: {text:?}"));
        assert!(line.contains(&format!("backend is down: {why}")), "{line}");
    }
}

#[test]
fn a_check_reads_its_answer_before_it_closes() {
    let kind = CheckKind::Http {
        path: "/".to_owned(),
        host: String::new(),
        statuses: 200..=299,
    };
    let mut config = checked(kind);
    if let Some(check) = &mut config.pools[0].check {
        check.timeout = Duration::from_secs(10);
    }
    let mut world = World::new(config, &[9001, 9002]);
    world.settle();
    let backends = [world.backend(9001), world.backend(9002)];
    for backend in backends {
        world.send(backend, "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n");
    }
    assert_eq!(up_and_down(&world), (2, 0), "the head decides");
    for backend in backends {
        for _ in 0..10 {
            world.send(backend, vec![b'x'; 30_000]);
        }
        assert!(!world.has_ended(backend), "nothing is reset");
        world.finish(backend);
        assert!(world.heard(backend).has_finished);
    }
    assert_eq!(world.counters().checks_failed, 0);
}

#[test]
fn failures_in_a_row_take_a_backend_out_for_a_time() {
    let mut world = World::new(config(&[9001, 9002]), &[9002]);
    let answered = |world: &mut World| {
        let client = world.client(GET);
        let backend = world.backend(9002);
        world.send(backend, response("x"));
        assert!(world.take(client).ends_with("x"));
    };
    for _ in 0..10 {
        answered(&mut world);
    }
    assert_eq!(world.counters().ejections, 1);
    let before = world.counters().backend_connect_failures;
    assert_eq!(before, 5);
    for _ in 0..4 {
        answered(&mut world);
    }
    assert_eq!(
        world.counters().backend_connect_failures,
        before,
        "it is left alone"
    );
    world.pass(Duration::from_secs(11));
    for _ in 0..2 {
        answered(&mut world);
    }
    assert_eq!(world.counters().backend_connect_failures, before + 1);
}

#[test]
fn each_backend_has_its_counts_in_each_pool() {
    let mut config = config(&[9001, 9002]);
    config.pools[0].ejection = Some(Ejection {
        failures: 1,
        time: Duration::from_secs(10),
    });
    config.pools.push(pool("other", &[9002, 9003, 9003]));
    config.pools[1].backends[0].drains = true;
    let mut world = World::new(config, &[9002]);
    let client = world.client(GET);
    let of = |world: &World, pool: &str, name: &str| {
        world.backends()[&(pool.to_owned(), name.to_owned())]
    };
    let refused = BackendCounters {
        requests_failed: 1,
        ejections: 1,
        up: 1,
        ejected: 1,
        ..BackendCounters::default()
    };
    assert_eq!(of(&world, "web", "b9001"), refused);
    let asked = BackendCounters {
        requests: 1,
        connections: 1,
        up: 1,
        ..BackendCounters::default()
    };
    assert_eq!(of(&world, "web", "b9002"), asked);
    world.send(world.backend(9002), response("x"));
    assert!(world.take(client).ends_with("x"));
    let answered = BackendCounters {
        responses: 1,
        connections: 0,
        connections_idle: 1,
        ..asked
    };
    assert_eq!(of(&world, "web", "b9002"), answered);
    world.send(client, GET);
    assert_eq!(of(&world, "web", "b9002").requests, 2);
    world.pass(Duration::from_secs(11));
    assert_eq!(of(&world, "web", "b9001").ejected, 0);
    assert_eq!(of(&world, "other", "b9002").draining, 1);
    // One that is there twice has one name.
    assert_eq!(
        (of(&world, "other", "b9003").up, world.backends().len()),
        (2, 4)
    );
}
