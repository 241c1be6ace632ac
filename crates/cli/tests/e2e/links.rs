//! Links: of every size, lossy, and seen from ping.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testbed::http::{Connection, PATIENCE, download};
use testbed::namespace::{Network, devices_of, isolated, within};
use testbed::process::run;
use testbed::site::Site;
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
    largest_segment_in("")
}

/// The same on those connections that `ss` filters.
fn largest_segment_in(filter: &str) -> u32 {
    let sockets = sh(&format!("ss -Htin state established {filter}"));
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

/// Has the kernel cut superpackets into packets at the stack's end of the link, so that loss hits
/// single ones.
pub(crate) fn send_single_packets(splitway: &Splitway) {
    for device in devices_of(splitway.host()).unwrap() {
        let line = format!("ethtool -K {device} tso off gso off");
        run(&mut within(splitway.host(), &line)).unwrap();
    }
}

/// Drops 1 % of all TCP packets in each direction: of every 300, three chosen by the seed.
pub(crate) fn lose_one_in_a_hundred(random: &mut Random) {
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
        let mut command = serve_at_uplink(&network, &site);
        command.args(UPLINK_ADDRESSES);
        command.args(["--gateway", "10.90.0.1", "fd90::1"]);
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

/// The addresses of a server at `uplink`.
const UPLINK_ADDRESSES: [&str; 3] = ["--addr", "10.90.0.2/24", "fd90::2/64"];

/// The command of a server at `uplink`, without an address yet.
fn serve_at_uplink(network: &Network, site: &Site) -> Command {
    let mut command = within(network.holder(), program().to_str().unwrap());
    command.arg("serve").arg(site.root());
    command.args(["--dev", "uplink", "--listen", "8080"]);
    command
}

/// A bridge `lan` here, with addresses of this machine.
fn make_bridge() {
    for line in [
        "ip link add lan type bridge",
        "ip link set lan up",
        "ip address add 10.90.0.1/24 dev lan",
        "ip address add fd90::1/64 dev lan nodad",
    ] {
        sh(line);
    }
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
        make_bridge();
        let serve_at = |network: &Network| {
            Splitway::start(serve_at_uplink(network, &site).args(UPLINK_ADDRESSES)).unwrap()
        };
        let servers = ["10.90.0.2:8080", "[fd90::2]:8080"].map(|it| it.parse().unwrap());
        let machines = [machine_at_bridge("first"), machine_at_bridge("second")];
        let _dead = serve_at(&machines[0]);
        for server in servers {
            download(server, &file).unwrap();
        }
        sh("ip link set first down");
        let mut successor = serve_at(&machines[1]);
        for server in servers {
            let begun = Instant::now();
            download(server, &file).unwrap();
            let found_after = begun.elapsed();
            assert!(found_after < FOUND_WITHIN, "{server}: {found_after:?}");
        }
        // Back from the dead it claims its addresses again.
        sh("ip link set first up");
        for address in ["10.90.0.2", "fd90::2"] {
            let is_conflict = |line: &str| {
                line.contains("another machine on the link uses") && line.contains(address)
            };
            successor.line(is_conflict).unwrap();
        }
    });
}

#[test]
fn a_server_whose_address_is_in_use_does_not_start() {
    isolated(|site| {
        let file = site.file("file", 200_000).unwrap();
        make_bridge();
        let [first, second] = ["first", "second"].map(machine_at_bridge);
        let _first =
            Splitway::start(serve_at_uplink(&first, &site).args(UPLINK_ADDRESSES)).unwrap();
        let shown = run(&mut within(first.holder(), "ip -o link show uplink")).unwrap();
        let (_, rest) = shown.split_once("link/ether ").unwrap();
        let (mac, _) = rest.split_once(' ').unwrap();
        for address in ["10.90.0.2/24", "fd90::2/64"] {
            let mut command = serve_at_uplink(&second, &site);
            let output = command.args(["--addr", address]).output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            let (ip, _) = address.split_once('/').unwrap();
            let said = format!("{ip} is in use by the machine with hardware address {mac}");
            assert!(stderr.contains(&said), "{stderr}");
            assert!(stderr.contains("--no-dad"), "{stderr}");
            assert!(!output.status.success());
        }
        let server = "10.90.0.2:8080".parse().unwrap();
        download(server, &file).unwrap();
        let mut command = serve_at_uplink(&second, &site);
        Splitway::start(command.arg("--no-dad").args(UPLINK_ADDRESSES)).unwrap();
    });
}

/// A server at `uplink` in a namespace of its own, on a link to `client` here.
fn serve_on_an_interface_that_exists(site: &Site) -> (Network, Splitway) {
    let network = Network::new().unwrap();
    let holder = network.holder();
    sh(&format!(
        "ip link add client type veth peer name uplink netns {}",
        holder.as_raw_nonzero()
    ));
    run(&mut within(holder, "ip link set uplink up")).unwrap();
    for line in [
        "ip link set client mtu 9000 up",
        "ip address add 10.90.0.1/24 dev client",
        "ip address add fd90::1/64 dev client nodad",
    ] {
        sh(line);
    }
    let splitway = Splitway::start(serve_at_uplink(&network, site).args(UPLINK_ADDRESSES)).unwrap();
    (network, splitway)
}

const ON_UPLINK: [&str; 2] = ["10.90.0.2:8080", "[fd90::2]:8080"];

#[test]
fn a_hardware_address_that_changes_is_announced_while_downloads_go_on() {
    // The first SYN may go to the address before, and is sent again after a second.
    const FOUND_WITHIN: Duration = Duration::from_secs(3);
    isolated(|site| {
        let small = site.file("small", 200_000).unwrap();
        let large = site.file("large", 20_000_000).unwrap();
        let (network, _splitway) = serve_on_an_interface_that_exists(&site);
        let change = |line: &str| {
            run(&mut within(
                network.holder(),
                &format!("ip link set uplink {line}"),
            ))
            .unwrap();
        };
        let servers = ON_UPLINK.map(|it| it.parse().unwrap());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let downloads = servers.map(|server| {
                let (large, is_over) = (&large, &is_over);
                scope.spawn(move || {
                    let mut connection = Connection::open(server).unwrap();
                    let mut rounds = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        connection.get(large).unwrap();
                        rounds += 1;
                    }
                    rounds
                })
            });
            for server in servers {
                download(server, &small).unwrap();
            }
            for changes in [
                &["address 02:00:00:00:90:01"][..],
                // Many drivers take another one only while they are down.
                &["down", "address 02:00:00:00:90:02", "up"],
                &["address 02:00:00:00:90:03"],
                &["down", "up"],
            ] {
                for line in changes {
                    change(line);
                }
                for server in servers {
                    let begun = Instant::now();
                    download(server, &small).unwrap();
                    let found_after = begun.elapsed();
                    assert!(found_after < FOUND_WITHIN, "{changes:?}: {found_after:?}");
                }
            }
            is_over.store(true, Ordering::Relaxed);
            for download in downloads {
                assert!(download.join().unwrap() > 0);
            }
        });
    });
}

#[test]
fn segments_follow_the_mtu_of_an_interface_that_exists() {
    isolated(|site| {
        let file = site.file("file", 5_000_000).unwrap();
        let (network, _splitway) = serve_on_an_interface_that_exists(&site);
        let servers = ON_UPLINK.map(|it| it.parse().unwrap());
        let mut open_before = servers.map(|server| Connection::open(server).unwrap());
        for (mtu, is_first) in [(1500, true), (1280, false), (9000, false), (1400, false)] {
            if !is_first {
                let line = format!("ip link set uplink mtu {mtu}");
                run(&mut within(network.holder(), &line)).unwrap();
            }
            for (server, overhead) in servers.into_iter().zip(OVERHEAD_BYTES) {
                let begun = Instant::now();
                loop {
                    let mut connection = Connection::open(server).unwrap();
                    connection.get(&file).unwrap();
                    let port = connection.stream().local_addr().unwrap().port();
                    let seen = largest_segment_in(&format!("sport = :{port}"));
                    if seen == mtu - overhead {
                        break;
                    }
                    // The server hears of it from its kernel.
                    assert!(begun.elapsed() < PATIENCE, "{mtu}, {server}: {seen}");
                }
            }
            for connection in &mut open_before {
                connection.get(&file).unwrap();
            }
        }
    });
}
