//! Which backend a request goes to.

use proxy::{Balance, Config, HashOn, Mode, Rule};

use crate::world::{GET, World, config, listener, pool, response};

const PORTS: [u16; 3] = [9001, 9002, 9003];

fn counts(world: &World) -> Vec<usize> {
    PORTS
        .iter()
        .map(|port| world.accepted(*port).len())
        .collect()
}

#[test]
fn round_robin_and_least_connections() {
    let mut world = World::new(config(&PORTS), &PORTS);
    for _ in 0..6 {
        world.client(GET);
    }
    assert_eq!(counts(&world), [2, 2, 2]);
    let mut config = config(&PORTS);
    config.pools[0].balance = Balance::LeastConnections;
    let mut world = World::new(config, &PORTS);
    let clients: Vec<_> = (0..6).map(|_| world.client(GET)).collect();
    let backend = world.accepted(9002);
    for (stream, client) in backend.into_iter().zip([clients[1], clients[4]]) {
        world.send(
            stream,
            response("x").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"),
        );
        assert!(world.take(client).ends_with("x"));
    }
    world.client(GET);
    world.client(GET);
    assert_eq!(counts(&world), [2, 4, 2]);
}

#[test]
fn maglev_keeps_a_key_at_its_backend() {
    let mut config = config(&PORTS);
    config.pools[0].balance = Balance::Maglev(HashOn::Header("x-user".to_owned()));
    let mut world = World::new(config, &PORTS);
    let mut places = Vec::new();
    for round in 0..3 {
        for user in 0..20 {
            let before = counts(&world);
            let head = format!("POST / HTTP/1.1\r\nHost: h\r\nX-User: {user}\r\n\r\n");
            world.client(&head);
            let after = counts(&world);
            let place = (0..3).find(|at| after[*at] > before[*at]).unwrap();
            match round {
                0 => places.push(place),
                _ => assert_eq!(places[user], place, "user {user}"),
            }
        }
    }
    assert!((0..3).all(|at| places.contains(&at)), "{places:?}");
}

#[test]
fn rules_find_a_pool_by_host_and_path() {
    let rule = |host: &str, prefix: &str, pool| Rule {
        hosts: vec![host.parse().unwrap()],
        path_prefixes: vec![prefix.to_owned()],
        pool,
    };
    let mut listener = listener(Mode::Http);
    listener.rules = vec![rule("*.a.org", "/api/", 1), rule("b.org", "/", 2)];
    listener.pool = None;
    let config = Config {
        listeners: vec![listener],
        pools: vec![
            pool("web", &[9001]),
            pool("api", &[9002]),
            pool("b", &[9003]),
        ],
        ..Config::default()
    };
    let mut world = World::new(config, &PORTS);
    for (host, path, expected) in [
        ("x.a.org", "/api/1", [0, 1, 0]),
        ("B.org:80", "/anything", [0, 1, 1]),
    ] {
        world.client(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(counts(&world), expected, "{host}{path}");
    }
    let client = world.client(GET);
    assert!(world.take(client).starts_with("HTTP/1.1 404 Not Found\r\n"));
}
