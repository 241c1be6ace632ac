//! KeyUpdate from either side (RFC 8446 §4.6.3).

use std::sync::Arc;

use tls::{AlertDescription, Error, Event, Limits, RunLimits, Settings, Transmit, Version};

use fakes::content::content;
use fakes::forger::Forger;
use fakes::keys::SUITES;
use fakes::site::{Identity, Site};
use fakes::tls_pair::Pair;

const UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
const UPDATE_REQUESTED: [u8; 5] = [24, 0, 0, 1, 1];

fn site(limits: Limits) -> Site {
    let settings = Settings {
        limits,
        ..Settings::default()
    };
    Site::new(&[Identity::ecdsa(&["localhost"])], &settings)
}

#[test]
fn a_client_updates_its_key_and_asks_for_ours() {
    let site = Site::plain();
    for suite in &SUITES[..3] {
        let mut pair = Pair::new(&site, Arc::new(site.client_config(*suite)));
        pair.pump().unwrap();
        for epoch in 1..10 {
            pair.client.refresh_traffic_keys().unwrap();
            pair.download(u32::from(epoch), 50_000);
            assert!(pair.server.nic.keys.contains_key(&epoch));
        }
        assert_eq!(pair.server.nic.keys.len(), 10);
    }
}

#[test]
fn a_key_is_replaced_before_it_has_sealed_too_much() {
    let limits = Limits {
        records_per_key_max: 7,
        ..Limits::default()
    };
    let site = site(limits);
    for suite in &SUITES[..3] {
        let mut pair = Pair::new(&site, Arc::new(site.client_config(*suite)));
        pair.pump().unwrap();
        pair.download(1, 500_000);
        pair.download(2, 500_000);
        assert!(pair.server.nic.keys.len() > 10);
    }
}

#[test]
fn a_key_is_replaced_when_it_is_old_and_there_is_something_to_seal() {
    let site = site(Limits::default());
    let mut pair = Pair::new(&site, Arc::new(site.client_config(SUITES[0])));
    pair.pump().unwrap();
    pair.download(1, 1000);
    pair.server.now_us = Limits::default().key_us_max + 1;
    assert_eq!(pair.server.transmit(), b"", "no side waits for anything");
    pair.download(1, 1000);
    pair.download(1, 1000);
    assert_eq!(pair.server.nic.keys.len(), 2);
}

#[test]
fn a_connection_of_tls_1_2_ends_when_its_key_has_sealed_enough() {
    let limits = Limits {
        records_per_key_max: 7,
        ..Limits::default()
    };
    let site = site(limits);
    for suite in &SUITES[3..] {
        let mut pair = Pair::new(&site, Arc::new(site.client_config(*suite)));
        pair.pump().unwrap();
        pair.server.connection.write_range(1, 0, 1 << 20);
        let outcome = pair.pump();
        // Not close_notify: this is not all of the response.
        let alert = rustls::Error::AlertReceived(AlertDescription::InternalError);
        assert_eq!(outcome, Err(alert));
        // Number 0 was Finished.
        let (alert, data) = pair.server.nic.records.split_last().unwrap();
        assert_eq!(*alert, (tls::ContentType::Alert, 2));
        assert_eq!(data, [(tls::ContentType::ApplicationData, 4096); 6]);
        assert_eq!(pair.server.events[1..], [Event::Failed(Error::KeyUsedUp)]);
        assert!(pair.server.connection.is_finished());
    }
}

#[test]
fn an_update_comes_between_two_records_of_a_response() {
    let site = Site::plain();
    let mut pair = Pair::new(&site, Arc::new(site.client_config(SUITES[0])));
    pair.pump().unwrap();
    pair.server.connection.write_range(1, 0, 1 << 20);
    // A part of it is defined, and cannot be changed any more.
    let Some(tls::Transmit::Run(run)) = pair
        .server
        .connection
        .poll_transmit(0, &fakes::run_sealer::LIMITS)
    else {
        panic!("there is a response");
    };
    let run = run.clone();
    let (bytes, _) = pair.server.nic.seal(&run);
    pair.client_receives(&bytes).unwrap();
    pair.client.refresh_traffic_keys().unwrap();
    pair.pump().unwrap();
    let wrong = pair.received.iter().zip(0..);
    let wrong = wrong.filter(|&(&byte, at)| byte != content(1, at)).count();
    assert_eq!((pair.received.len(), wrong), (1 << 20, 0));
    assert_eq!(pair.server.nic.keys.len(), 2);
}

#[test]
fn an_update_may_be_split_over_records_and_need_not_be_answered() {
    let site = Site::plain();
    for suite in &SUITES[..3] {
        let mut forger = Forger::new(&site, *suite);
        for byte in UPDATE {
            assert_eq!(forger.send(22, &[byte]), []);
        }
        forger.next_tx();
        assert_eq!(forger.send(23, b"GET"), []);
        assert_eq!(forger.server.received, b"GET");
        assert_eq!(forger.server.nic.keys.len(), 1);
    }
}

#[test]
fn several_requests_at_once_get_one_answer() {
    let site = Site::plain();
    for suite in &SUITES[..3] {
        let mut forger = Forger::new(&site, *suite);
        let mut both = forger.tx.seal(forger.tx_number, 22, &UPDATE_REQUESTED);
        forger.next_tx();
        both.extend(forger.tx.seal(forger.tx_number, 22, &UPDATE_REQUESTED));
        forger.next_tx();
        // Under the old key, and said to need no answer.
        assert_eq!(forger.send_raw(&both), [(22, UPDATE.to_vec())]);
        assert_eq!(forger.server.nic.keys.len(), 2);
        forger.server.connection.write(b"x");
        forger.next_rx(1);
        assert_eq!(forger.send(23, b"GET"), [(23, b"x".to_vec())]);
    }
}

#[test]
fn too_many_updates_within_a_minute_are_refused() {
    let site = Site::plain();
    let mut forger = Forger::new(&site, SUITES[0]);
    for minute in 0..3 {
        forger.server.now_us = minute * 61_000_000;
        for _ in 0..32 {
            assert_eq!(forger.send(22, &UPDATE), []);
            forger.next_tx();
        }
    }
    assert_eq!(forger.send(22, &UPDATE), [(21, vec![2, 10])]);
}

#[test]
fn an_update_of_tls_1_2_is_none() {
    let site = Site::plain();
    for suite in SUITES {
        if suite.version == Version::Tls12 {
            let mut forger = Forger::new(&site, suite);
            assert_eq!(forger.send(22, &UPDATE), [(21, vec![2, 10])]);
        }
    }
}

#[test]
fn no_more_keys_are_in_use_than_the_nic_stack_takes() {
    let limits = RunLimits {
        keys_max: 3,
        ..fakes::run_sealer::LIMITS
    };
    let site = Site::plain();
    let mut forger = Forger::new(&site, SUITES[0]);
    let connection = &mut forger.server.connection;
    connection.write_range(1, 0, 1 << 20);
    // The client asks again as soon as its last wish is defined, and acknowledges nothing.
    let mut epochs = Vec::new();
    let mut end = 0;
    for _ in 0..6 {
        let connection = &mut forger.server.connection;
        while let Some(transmit) = connection.poll_transmit(0, &limits) {
            match transmit {
                Transmit::Key(key) => epochs.push(key.epoch),
                Transmit::Run(run) => end = run.stream_end(),
                Transmit::Raw(_) => {}
            }
        }
        let record = forger.tx.seal(forger.tx_number, 22, &UPDATE_REQUESTED);
        forger.server.receive(&record);
        forger.next_tx();
    }
    // The first was polled with the handshake.
    assert_eq!(epochs, [1, 2]);
    let connection = &mut forger.server.connection;
    assert!(connection.poll_transmit(0, &limits).is_none());
    let mut removed = Vec::new();
    connection.acknowledge(end, |epoch| removed.push(epoch));
    assert_eq!(removed, [0, 1]);
    let Some(Transmit::Run(run)) = connection.poll_transmit(0, &limits) else {
        panic!("it goes on");
    };
    assert_eq!(run.content_type, tls::ContentType::Handshake);
}

#[test]
fn no_more_records_are_defined_than_the_nic_stack_takes() {
    let limits = RunLimits {
        outstanding_max: 100,
        ..fakes::run_sealer::LIMITS
    };
    let site = Site::plain();
    let mut forger = Forger::new(&site, SUITES[0]);
    let connection = &mut forger.server.connection;
    connection.write_range(1, 0, 10 << 20);
    let mut records = 0;
    let mut end = 0;
    while let Some(transmit) = connection.poll_transmit(0, &limits) {
        if let Transmit::Run(run) = transmit {
            records += run.count();
            end = run.stream_end();
        }
    }
    assert_eq!(records, 100);
    connection.acknowledge(end, |_| {});
    assert!(connection.poll_transmit(0, &limits).is_some());
}
