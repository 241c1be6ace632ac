//! What a NIC stack that starts again receives.

use std::sync::Arc;

use tls::{Connection, Definition, Known, Run, Tag, Transmit};

use fakes::keys::{Keys, SUITES};
use fakes::run_sealer::{LIMITS, RunSealer, seal};
use fakes::site::Site;
use fakes::tls_pair::Pair;

/// Takes all that there is to send; the bytes, and where raw bytes end.
fn transmit(connection: &mut Connection, nic: &mut RunSealer, report: bool) -> Vec<u8> {
    let mut stream = Vec::new();
    while let Some(transmit) = connection.poll_transmit(0, &LIMITS) {
        match transmit {
            Transmit::Raw(raw) => stream.extend(raw),
            Transmit::Key(key) => {
                nic.keys.insert(key.epoch, Keys::of(key));
            }
            Transmit::Run(run) => {
                let (epoch, number) = (run.epoch, run.number);
                let (bytes, tags) = nic.seal(run);
                stream.extend(bytes);
                if report {
                    connection.on_sealed(epoch, number, &tags).unwrap();
                }
            }
        }
    }
    stream
}

/// What a NIC stack that knows nothing gets: epochs of keys, and runs.
fn replay(connection: &Connection) -> (Vec<u16>, Vec<Run>) {
    let mut known = Known::default();
    let (mut epochs, mut runs) = (Vec::new(), Vec::new());
    while let Some(definition) = connection.missing(&known) {
        match definition {
            Definition::Key(key) => epochs.push(key.epoch),
            Definition::Run(run) => {
                assert_eq!(epochs.last(), Some(&run.epoch), "its key comes before it");
                runs.push(run.clone());
            }
        }
        known.add(definition);
    }
    (epochs, runs)
}

/// A connection with a response under three keys, and what was sent of it.
fn connection() -> (Pair, Vec<u8>, u64) {
    let site = Site::plain();
    let mut pair = Pair::new(&site, Arc::new(site.client_config(SUITES[1])));
    pair.pump().unwrap();
    let mut sent = Vec::new();
    let begin = pair.server.nic_stream_end();
    for object in 0..3 {
        pair.client.refresh_traffic_keys().unwrap();
        let mut update = Vec::new();
        pair.client.write_tls(&mut update).unwrap();
        pair.server.receive(&update);
        pair.server.connection.write(b"header");
        pair.server.connection.write_range(object, 5, 300_000);
        sent.extend(transmit(
            &mut pair.server.connection,
            &mut pair.server.nic,
            true,
        ));
    }
    (pair, sent, begin)
}

#[test]
fn a_new_nic_stack_seals_the_same_bytes() {
    let (pair, sent, begin) = connection();
    let mut stream = Vec::new();
    let (epochs, runs) = replay(&pair.server.connection);
    for run in runs {
        assert_eq!(run.stream_offset, begin + stream.len() as u64);
        let (bytes, tags) = seal(&pair.server.nic.keys[&run.epoch], &run);
        assert_eq!(tags, run.tags);
        stream.extend(bytes);
    }
    assert_eq!(epochs, [0, 1, 2, 3]);
    assert!(stream == sent);
}

#[test]
fn what_is_acknowledged_is_forgotten_and_its_keys_are_removed() {
    let (mut pair, sent, begin) = connection();
    let end = begin + sent.len() as u64;
    let connection = &mut pair.server.connection;
    let mut removed = Vec::new();
    let mut released = Vec::new();
    let mut runs = usize::MAX;
    for upto in (begin..=end).step_by(10_007).chain([end]) {
        connection.acknowledge(upto, |epoch| removed.push(epoch));
        released.extend(std::iter::from_fn(|| connection.poll_released()));
        let (_, left) = replay(connection);
        assert!(left.len() <= runs);
        runs = left.len();
        assert!(left.iter().all(|run| run.stream_end() > upto));
        assert!(left.first().is_none_or(|run| run.stream_offset <= upto));
        // A key goes with the last run that it sealed.
        assert!(left.iter().all(|run| !removed.contains(&run.epoch)));
    }
    assert_eq!(runs, 0);
    // The last one is still in use.
    assert_eq!(removed, [0, 1, 2]);
    assert_eq!(released, [0, 1, 2]);
}

#[test]
fn tags_that_make_no_sense_are_refused() {
    let site = Site::plain();
    let mut pair = Pair::new(&site, Arc::new(site.client_config(SUITES[1])));
    pair.pump().unwrap();
    let connection = &mut pair.server.connection;
    connection.write_range(1, 0, 100_000);
    transmit(connection, &mut pair.server.nic, false);
    let tag = |n| -> Tag { [n; 16] };
    // Number 0 were the tickets.
    let first = 1;
    assert!(
        connection.on_sealed(0, first + 1, &[tag(1)]).is_err(),
        "a gap"
    );
    connection.on_sealed(0, first, &[tag(0), tag(1)]).unwrap();
    connection.on_sealed(0, first, &[tag(0)]).unwrap();
    connection
        .on_sealed(0, first + 1, &[tag(1), tag(2)])
        .unwrap();
    assert!(
        connection.on_sealed(0, first + 1, &[tag(9)]).is_err(),
        "another"
    );
    assert!(
        connection.on_sealed(1, 0, &[tag(1)]).is_err(),
        "no such key"
    );
    assert!(
        connection.on_sealed(0, 10_000, &[tag(1)]).is_err(),
        "no such record"
    );
    // Across runs, up to the last one; then acknowledged, and told once more.
    let records = pair.server.nic.records.len() as u64;
    let tags: Vec<_> = (3..records).map(|n| tag(n as u8)).collect();
    connection.on_sealed(0, first + 3, &tags).unwrap();
    connection.acknowledge(u64::MAX, |_| {});
    connection.on_sealed(0, first, &[tag(7)]).unwrap();
    assert!(connection.on_sealed(0, first + records, &[tag(7)]).is_err());
}

#[test]
fn records_without_a_tag_are_known() {
    let site = Site::plain();
    let mut pair = Pair::new(&site, Arc::new(site.client_config(SUITES[1])));
    pair.pump().unwrap();
    let begin = pair.server.nic_stream_end();
    let connection = &mut pair.server.connection;
    connection.write_range(1, 0, 20_000);
    transmit(connection, &mut pair.server.nic, false);
    assert!(!connection.untagged_before(begin));
    assert!(connection.untagged_before(begin + 1));
    connection.on_sealed(0, 1, &[[0; 16]; 2]).unwrap();
    let third = begin + 2 * (4096 + 22);
    assert!(!connection.untagged_before(third));
    assert!(connection.untagged_before(third + 1));
    connection.on_sealed(0, 3, &[[0; 16]; 3]).unwrap();
    assert!(!connection.untagged_before(u64::MAX));
}

#[test]
fn a_nic_stack_gets_what_it_does_not_know_and_nothing_twice() {
    let (mut pair, _, _) = connection();
    let connection = &mut pair.server.connection;
    let mut known = Known::default();
    assert!(!known.is_any());
    while let Some(definition) = connection.missing(&known) {
        known.add(definition);
    }
    assert!(known.is_any());
    assert!(!known.remove_key(9), "it never had that one");
    assert!(known.remove_key(0) && !known.remove_key(0));
    connection.write_range(7, 0, 10_000);
    transmit(connection, &mut pair.server.nic, true);
    let Some(Definition::Run(run)) = connection.missing(&known) else {
        panic!("it has the key");
    };
    assert!(run.pieces.iter().any(|piece| piece.len() > 4096));
    known.add(Definition::Run(run));
    assert!(connection.missing(&known).is_none());
}

#[test]
fn acknowledged_bytes_are_the_applications() {
    let site = Site::plain();
    for suite in SUITES {
        let mut pair = Pair::new(&site, Arc::new(site.client_config(suite)));
        pair.pump().unwrap();
        let begin = pair.server.nic_stream_end();
        let connection = &mut pair.server.connection;
        connection.write(b"header");
        connection.write_range(1, 0, 199_994);
        connection.close();
        assert_eq!(connection.taken_bytes(), 200_000);
        let sent = transmit(connection, &mut pair.server.nic, true);
        let mut before = 0;
        for upto in begin..=begin + sent.len() as u64 {
            connection.acknowledge(upto, |_| {});
            let acknowledged = connection.acknowledged_bytes();
            assert!(acknowledged <= upto - begin);
            // What is no plaintext: prefix and suffix of a record at most.
            assert!(
                (before..=before + 1).contains(&acknowledged),
                "{suite:?} {upto}"
            );
            before = acknowledged;
        }
        assert_eq!(before, 200_000);
    }
}
