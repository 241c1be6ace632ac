//! Links: of every size, lossy, and seen from ping.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testbed::http::{Connection, download};
use testbed::namespace::{Network, devices_of, isolated, within};
use testbed::process::run;
use testbed::splitway::{LINK, STACK_V4, STACK_V6, Splitway};

use crate::support::{FAMILIES, Random, nft, on_threads, program, serve, serve_with, sh};

#[test]
fn ping_is_answered_in_both_families() {
    isolated(|site| {
        let _splitway = serve(&site);
        for stack in [STACK_V4, STACK_V6] {
            for payload in [0, 56, 1400] {
                sh(&format!("ping -c 3 -i 0.05 -W 5 -s {payload} {stack}"));
            }
        }
    });
}

/// IP header, TCP header, timestamp option.
pub(crate) const OVERHEAD_BYTES: [u32; 2] = [20 + 20 + 12, 40 + 20 + 12];

/// The largest payload of a segment that the client has seen on its open connections.
pub(crate) fn largest_segment_seen() -> u32 {
    let sockets = sh("ss -Htin state established");
    let sizes = sockets
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("rcvmss:")?.parse().ok());
    sizes
        .max()
        .unwrap_or_else(|| panic!("no connection in {sockets:?}"))
}

fn dropped_by_the_link() -> u64 {
    let links: serde_json::Value =
        serde_json::from_str(&sh(&format!("ip -j -s link show {LINK}"))).unwrap();
    let received = &links[0]["stats64"]["rx"];
    ["errors", "dropped"]
        .map(|counter| received[counter].as_u64().unwrap())
        .iter()
        .sum()
}

#[test]
fn segments_are_as_large_as_the_link_allows() {
    isolated(|site| {
        let file = site.file("file", 5_000_000).unwrap();
        for mtu in [1280, 1500, 9000] {
            let mut splitway = serve_with(&site, &["--mtu", &mtu.to_string()]);
            for (server, overhead) in FAMILIES.into_iter().zip(OVERHEAD_BYTES) {
                let mut connection = Connection::open(server).unwrap();
                connection.get(&file).unwrap();
                assert_eq!(
                    largest_segment_seen(),
                    mtu - overhead,
                    "MTU {mtu}, {server}"
                );
            }
            splitway.end_with(Signal::TERM).unwrap();
        }
    });
}

#[test]
fn segments_are_no_larger_than_the_client_allows() {
    isolated(|site| {
        let file = site.file("file", 5_000_000).unwrap();
        let _splitway = serve_with(&site, &["--mtu", "9000"]);
        sh(&format!("ip link set {LINK} mtu 1280"));
        let dropped = dropped_by_the_link();
        for (server, overhead) in FAMILIES.into_iter().zip(OVERHEAD_BYTES) {
            let mut connection = Connection::open(server).unwrap();
            connection.get(&file).unwrap();
            assert_eq!(largest_segment_seen(), 1280 - overhead, "{server}");
        }
        assert_eq!(
            dropped_by_the_link(),
            dropped,
            "frames too large for the client"
        );
    });
}

/// Has the kernel cut superpackets into packets at the stack's end of the link, so that loss hits single ones.
fn send_single_packets(splitway: &Splitway) {
    for device in devices_of(splitway.host()).unwrap() {
        let line = format!("ethtool -K {device} tso off gso off");
        run(&mut within(splitway.host(), &line)).unwrap();
    }
}

/// Drops 1 % of all TCP packets in each direction: of every 300, three chosen by the seed.
fn lose_one_in_a_hundred(random: &mut Random) {
    for hook in ["input", "output"] {
        let mut lost = BTreeSet::new();
        while lost.len() < 3 {
            lost.insert(random.below(300));
        }
        let verdicts: Vec<String> = lost
            .iter()
            .map(|position| format!("{position} : goto lost"))
            .collect();
        nft(&format!(
            "add table inet {hook}; \
             add chain inet {hook} lost; \
             add rule inet {hook} lost counter drop; \
             add chain inet {hook} packets {{ type filter hook {hook} priority 0; }}; \
             add rule inet {hook} packets meta l4proto tcp numgen inc mod 300 vmap {{ {} }}",
            verdicts.join(", ")
        ));
    }
}

/// Loss that did not happen has shown nothing.
fn packets_were_lost_both_ways() {
    for hook in ["input", "output"] {
        let chain = sh(&format!("nft list chain inet {hook} lost"));
        // counter packets 7 bytes 123 drop
        let mut words = chain
            .split_whitespace()
            .skip_while(|word| *word != "packets");
        let lost: u64 = words.nth(1).unwrap().parse().unwrap();
        assert!(lost > 0, "nothing was lost on {hook}");
    }
}

#[test]
fn every_byte_is_right_where_superpackets_are_lost() {
    isolated(|site| {
        let files: Vec<_> = (0..8)
            .map(|i| site.file(&format!("{i}"), 2_000_000 + i).unwrap())
            .collect();
        let _splitway = serve(&site);
        lose_one_in_a_hundred(&mut Random::seeded());
        on_threads(16, |index| {
            let mut connection = Connection::open(FAMILIES[index % 2])?;
            files
                .iter()
                .try_for_each(|file| connection.get(file).map(drop))
        });
        packets_were_lost_both_ways();
    });
}

#[test]
fn every_byte_is_right_where_single_packets_are_lost() {
    isolated(|site| {
        let files: Vec<_> = (0..4)
            .map(|i| site.file(&format!("{i}"), 500_000 + i).unwrap())
            .collect();
        let splitway = serve(&site);
        send_single_packets(&splitway);
        lose_one_in_a_hundred(&mut Random::seeded());
        on_threads(8, |index| {
            let mut connection = Connection::open(FAMILIES[index % 2])?;
            files
                .iter()
                .try_for_each(|file| connection.get(file).map(drop))
        });
        packets_were_lost_both_ways();
    });
}

#[test]
fn connections_are_made_and_ended_where_packets_are_lost() {
    isolated(|site| {
        let file = site.file("file", 3000).unwrap();
        let _splitway = serve(&site);
        lose_one_in_a_hundred(&mut Random::seeded());
        on_threads(16, |index| {
            (0..20).try_for_each(|_| download(FAMILIES[index % 2], &file).map(drop))
        });
        packets_were_lost_both_ways();
    });
}

#[test]
fn on_an_interface_that_exists_it_is_one_more_machine_and_answers_through_its_router() {
    isolated(|site| {
        let file = site.file("file", 2_000_000).unwrap();
        let network = Network::new().unwrap();
        let holder = network.holder();
        sh(&format!(
            "ip link add client type veth peer name uplink netns {}",
            holder.as_raw_nonzero()
        ));
        run(&mut within(holder, "ip link set uplink up")).unwrap();
        for line in [
            "ip link set client up",
            "ip address add 10.90.0.1/24 dev client",
            "ip address add fd90::1/64 dev client nodad",
            // Addresses beyond the router that this machine is to the stack.
            "ip address add 192.168.90.1/32 dev lo",
            "ip address add fd91::1/128 dev lo",
        ] {
            sh(line);
        }
        let mut command = within(holder, program().to_str().unwrap());
        command.arg("serve").arg(site.root()).args([
            "--dev",
            "uplink",
            "--listen",
            "8080",
            "--addr",
            "10.90.0.2/24",
            "fd90::2/64",
            "--gateway",
            "10.90.0.1",
            "fd90::1",
        ]);
        let mut splitway = Splitway::start(&mut command).unwrap();
        let downloaded = site.outside().join("downloaded");
        for (from, url) in [
            ("10.90.0.1", "http://10.90.0.2:8080"),
            ("192.168.90.1", "http://10.90.0.2:8080"),
            ("fd90::1", "http://[fd90::2]:8080"),
            ("fd91::1", "http://[fd90::2]:8080"),
        ] {
            sh(&format!(
                "curl -sf --max-time 20 --interface {from} -o {} {url}/file",
                downloaded.display()
            ));
            file.check(0, &std::fs::read(&downloaded).unwrap()).unwrap();
        }
        splitway.end_with(Signal::TERM).unwrap();
        // An interface that it has not made is not its own to remove.
        assert_eq!(devices_of(holder).unwrap(), ["uplink"]);
    });
}

/// A namespace with an interface `uplink`, whose other end is a port of the bridge here.
fn machine_at_bridge(port: &str) -> Network {
    let network = Network::new().unwrap();
    let holder = network.holder();
    sh(&format!(
        "ip link add {port} type veth peer name uplink netns {}",
        holder.as_raw_nonzero()
    ));
    sh(&format!("ip link set {port} master lan up"));
    run(&mut within(holder, "ip link set uplink up")).unwrap();
    network
}

#[test]
fn an_address_that_moves_from_a_dead_machine_is_found_at_once() {
    const FOUND_WITHIN: Duration = Duration::from_secs(1);
    isolated(|site| {
        let file = site.file("file", 200_000).unwrap();
        for line in [
            "ip link add lan type bridge",
            "ip link set lan up",
            "ip address add 10.90.0.1/24 dev lan",
            "ip address add fd90::1/64 dev lan nodad",
        ] {
            sh(line);
        }
        let serve_at = |network: &Network| {
            let mut command = within(network.holder(), program().to_str().unwrap());
            command.arg("serve").arg(site.root()).args([
                "--dev",
                "uplink",
                "--listen",
                "8080",
                "--addr",
                "10.90.0.2/24",
                "fd90::2/64",
            ]);
            Splitway::start(&mut command).unwrap()
        };
        let servers = ["10.90.0.2:8080", "[fd90::2]:8080"].map(|it| it.parse().unwrap());
        let machines = [machine_at_bridge("first"), machine_at_bridge("second")];
        let _dead = serve_at(&machines[0]);
        for server in servers {
            download(server, &file).unwrap();
        }
        sh("ip link set first down");
        let _successor = serve_at(&machines[1]);
        for server in servers {
            let begun = Instant::now();
            download(server, &file).unwrap();
            let found_after = begun.elapsed();
            assert!(found_after < FOUND_WITHIN, "{server}: {found_after:?}");
        }
    });
}
