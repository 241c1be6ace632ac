//! What a NIC stack that starts anew is told.

use std::sync::Arc;

use tls::{Connection, Replay, Tag, Transmit};

use crate::support::{Keys, LIMITS, Nic, Pair, SUITES, Site, seal};

/// Takes all that there is to send; the bytes, and where raw bytes end.
fn transmit(connection: &mut Connection, nic: &mut Nic, report: bool) -> Vec<u8> {
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
    let mut keys = None;
    let mut stream = Vec::new();
    let mut epochs = Vec::new();
    for replay in pair.server.connection.replay() {
        match replay {
            Replay::Key(key) => {
                epochs.push(key.epoch);
                keys = Some(Keys::of(key));
            }
            Replay::Run(run) => {
                assert_eq!(run.stream_offset, begin + stream.len() as u64);
                let (bytes, tags) = seal(keys.as_ref().unwrap(), run);
                assert_eq!(tags, run.tags);
                stream.extend(bytes);
            }
        }
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
        let left: Vec<_> = connection
            .replay()
            .filter_map(|replay| match replay {
                Replay::Run(run) => Some(run.clone()),
                Replay::Key(_) => None,
            })
            .collect();
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
