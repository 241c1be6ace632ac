//! The same with `receive = "nic"`: NIC workers open what clients send.

use std::fs;

use rustix::process::Signal;
use testbed::namespace::{isolated, isolated_long};
use testbed::site::Site;
use testbed::wait;

use super::client::Client;
use super::{bring_every_byte, certificate, outlive, serve, survive_changes};
use crate::deaths::{counted, counter, lose_packets};
use crate::https::HTTPS;
use crate::stat::json;
use crate::support::{SOON, ctl, program, sh};

/// Options of a server whose NIC workers open what clients send.
pub(crate) fn options(site: &Site) -> Vec<String> {
    let configuration = site.outside().join("receive.toml");
    fs::write(&configuration, "[quic]\nreceive = \"nic\"\n").unwrap();
    let configuration = configuration.to_str().unwrap().to_owned();
    ["--report-json", "--config", &configuration]
        .map(str::to_owned)
        .to_vec()
}

const NAMES: [&str; 4] = [
    "quic_packets_opened",
    "quic_packets_refused",
    "quic_rejected",
    "quic_connections_accepted",
];

#[test]
fn nic_workers_open_what_arrives_by_packet_filter_where_packets_are_lost() {
    isolated(|site| {
        let options = options(&site);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let splitway = bring_every_byte(&site, &options);
        let [opened, refused, rejected, accepted] = counted(splitway, NAMES);
        println!("{opened} packets opened, {refused} of them refused");
        assert_eq!((refused, rejected, accepted), (0, 0, 20));
        assert!(opened > 1_000, "{opened}");
    });
}

#[test]
fn nic_workers_open_what_the_host_hands_on() {
    isolated(|site| {
        let options = options(&site);
        let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
        options.push("--no-steering");
        let mut splitway = bring_every_byte(&site, &options);
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
        let names = [
            "quic_datagrams_handed_on",
            "quic_packets_opened",
            "quic_packets_refused",
        ];
        let [handed_on, opened, refused] = names.map(|name| counter(&mut splitway, "host", name));
        println!("{handed_on} datagrams handed on, {opened} packets opened");
        assert_eq!(refused, 0);
        assert!(
            opened > 1_000 && handed_on >= opened,
            "{opened} {handed_on}"
        );
    });
}

#[test]
fn addresses_and_keys_change_while_nic_workers_open() {
    isolated(|site| {
        let options = options(&site);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let splitway = survive_changes(&site, &options);
        let [opened, _, rejected, accepted] = counted(splitway, NAMES);
        assert_eq!((rejected, accepted), (0, 2));
        assert!(opened > 100, "{opened}");
    });
}

fn outlive_that_open(site: &Site, deaths: usize) {
    let options = options(site);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let splitway = outlive(site, deaths, &options);
    let [opened, _, rejected, accepted] = counted(splitway, NAMES);
    assert_eq!((rejected, accepted), (0, 20));
    assert!(opened > 1_000, "{opened}");
}

#[test]
fn connections_outlive_nic_processes_that_open() {
    isolated(|site| outlive_that_open(&site, 3));
}

#[test]
#[ignore = "long: a hundred deaths"]
fn connections_outlive_a_hundred_nic_processes_that_open() {
    isolated_long(|site| outlive_that_open(&site, 100));
}

/// What `splitway stat` says of the only connection: whether a NIC worker opens its packets, and
/// how many one has opened.
fn reception() -> (bool, u64) {
    let document = json(&["--port", "443"]);
    let [row] = &document["quic_connections"].as_array().unwrap()[..] else {
        panic!("{document}");
    };
    let opened = row["packets_opened_by_nic"].as_u64().unwrap();
    (row["is_opened_by_nic"].as_bool().unwrap(), opened)
}

/// By packet filter, or handed on by a server that was started without.
fn move_amid_a_download(site: &Site, first: &str) {
    let file = site.file("file", 100_000_000).unwrap();
    let certificate = certificate(site);
    let configuration = site.outside().join("receive.toml");
    let write = |quic: &str| fs::write(&configuration, format!("[quic]\n{quic}\n")).unwrap();
    write(first);
    let path = configuration.to_str().unwrap();
    let splitway = serve(site, &certificate, &["--report-json", "--config", path]);
    lose_packets();
    let mut client = Client::connect(HTTPS[0], &certificate, 1);
    let stream = client.begin("GET", "/file", &[]);
    let mut end = 0;
    for turn in 0..6 {
        end += 8_000_000;
        client.until("a part", |it| it.has_received(stream) > end);
        let is_for_nic = turn % 2 == 0;
        write(match (is_for_nic, turn) {
            (true, 0) => "receive = \"nic\"\nreceive_after = \"1M\"",
            (true, _) => "receive = \"nic\"",
            (false, _) => "receive = \"host\"",
        });
        let (is_done, said) = ctl("reload", None);
        assert!(is_done && !said.contains("restart"), "{said}");
        assert!(
            said.contains("QUIC: quic.receive applies to all connections now"),
            "{said}"
        );
        let (is_opened_by_nic, before) = wait::until(SOON, "the change", || {
            client.turn();
            Some(reception()).filter(|(is_opened_by_nic, _)| *is_opened_by_nic == is_for_nic)
        })
        .unwrap();
        let text = sh(&format!("{} stat", program().display()));
        assert_eq!(text.contains("receive:nic"), is_opened_by_nic, "{text}");
        if is_for_nic {
            client.until("packets that a worker opens", |_| {
                reception().1 > before + 20
            });
        }
    }
    let response = client.response(stream);
    assert!(
        response.body == file.bytes(0, file.size() as usize),
        "other bytes"
    );
    client.close();
    let [opened, refused, rejected, accepted] = counted(splitway, NAMES);
    assert_eq!((refused, rejected, accepted), (0, 0, 1));
    assert!(opened > 60, "{opened}");
}

#[test]
fn a_reload_moves_a_connection_between_host_and_nic_worker() {
    isolated(|site| move_amid_a_download(&site, "receive = \"nic\""));
}

#[test]
fn a_server_that_was_started_without_receiving_on_nic_workers_does_so_after_a_reload() {
    isolated(|site| move_amid_a_download(&site, "receive = \"host\""));
}
