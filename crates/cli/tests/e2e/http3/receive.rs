//! The same with `receive = "nic"`: NIC workers open what clients send.

use std::fs;

use rustix::process::Signal;
use testbed::namespace::isolated;
use testbed::site::Site;

use super::{bring_every_byte, outlive, survive_changes};
use crate::deaths::{counted, counter};

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

#[test]
fn connections_outlive_nic_processes_that_open() {
    isolated(|site| {
        let options = options(&site);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let splitway = outlive(&site, 3, &options);
        let [opened, _, rejected, accepted] = counted(splitway, NAMES);
        assert_eq!((rejected, accepted), (0, 20));
        assert!(opened > 1_000, "{opened}");
    });
}
