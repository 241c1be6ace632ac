//! Through a router, the kernel's, whose next link is narrower than either end of the path knows,
//! and which may mark packets instead of dropping them.

use std::net::SocketAddr;

use rustix::process::Signal;
use testbed::http::Connection;
use testbed::namespace::{isolated, within};
use testbed::process::run;
use testbed::routed::{GATEWAYS, Routed, UPLINK};
use testbed::site::{KnownFile, Site};
use testbed::splitway::Splitway;

use crate::links::{OVERHEAD_BYTES, largest_segment_seen};
use crate::support::{program, tcp_counter};

/// Its server beyond the router.
pub(crate) fn servers() -> [SocketAddr; 2] {
    ["10.92.0.2:80", "[fd92::2]:80"].map(|address| address.parse().unwrap())
}

pub(crate) fn serve(routed: &Routed, site: &Site, options: &[&str]) -> Splitway {
    let mut command = within(routed.beyond(), program().to_str().unwrap());
    command.arg("serve").arg(site.root());
    command.args(["--dev", UPLINK, "--addr", "10.92.0.2/24", "fd92::2/64"]);
    command
        .arg("--gateway")
        .args(GATEWAYS.map(|ip| ip.to_string()));
    command.arg("--report-json").args(options);
    Splitway::start(&mut command).unwrap()
}

/// The addresses of a virtual machine at some providers: no prefix, and a gateway outside of it.
#[test]
fn a_gateway_outside_of_every_prefix_is_asked_for_on_the_link() {
    isolated(|site| {
        let file = site.file("file", 3_000_000).unwrap();
        let routed = Routed::new().unwrap();
        for line in [
            "address flush dev far",
            "address add 198.51.100.1/32 dev far",
            "address add 2001:db8::1/128 dev far nodad",
            "address add fe80::92:254/64 dev far nodad",
            "route add 10.92.0.2/32 dev far scope link",
            "route add fd92::2/128 dev far",
        ] {
            run(&mut within(routed.router(), &format!("ip {line}"))).unwrap();
        }
        for ipv6_gateway in ["2001:db8::1", "fe80::92:254"] {
            let mut command = within(routed.beyond(), program().to_str().unwrap());
            command.arg("serve").arg(site.root());
            command.args(["--dev", UPLINK, "--addr", "10.92.0.2/32", "fd92::2/128"]);
            command.args(["--gateway", "198.51.100.1", ipv6_gateway]);
            let mut splitway = Splitway::start(&mut command).unwrap();
            for server in servers() {
                Connection::open(server).unwrap().get(&file).unwrap();
            }
            assert!(splitway.end_with(Signal::TERM).unwrap().success());
        }
    });
}

/// Ends it while a last connection is open, which it resets; what its host process has counted.
fn end(mut splitway: Splitway) -> impl Fn(&str) -> u64 {
    // Answered after the others have been heard to end: their last packets are ahead of its
    // request.
    let mut last = Connection::open(servers()[0]).unwrap();
    last.send_get("nowhere").unwrap();
    assert_eq!(last.read_head().unwrap().status, 404);
    splitway.end_with(Signal::TERM).unwrap();
    let report = splitway.line(|line| line.starts_with('{')).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    move |name| report["host"][name].as_u64().expect("a counter")
}

/// Downloads a file and compares every byte; the largest segment that has come through, with its
/// headers.
fn largest_packet(server: usize, file: &KnownFile) -> u32 {
    let mut connection = Connection::open(servers()[server]).unwrap();
    connection.get(file).unwrap();
    largest_segment_seen() + OVERHEAD_BYTES[server]
}

#[test]
fn a_router_tells_what_its_next_link_carries_and_segments_become_as_small() {
    isolated(|site| {
        let file = site.file("file", 5_000_000).unwrap();
        let routed = Routed::new().unwrap();
        let splitway = serve(&routed, &site, &[]);
        for mtu in [1400, 1300, 1280] {
            routed.narrow(mtu).unwrap();
            for server in [0, 1] {
                assert_eq!(largest_packet(server, &file), mtu);
            }
        }
        let counter = end(splitway);
        assert_eq!(counter("mtus_reduced"), 6, "once for each connection");
        assert_eq!(counter("connections_broken"), 0, "all was delivered");
    });
}

#[test]
fn a_router_that_swallows_what_is_too_big_without_a_word_is_found_out() {
    isolated(|site| {
        let file = site.file("file", 30_000_000).unwrap();
        let routed = Routed::new().unwrap();
        for script in [
            "add table inet silence",
            "add chain inet silence words { type filter hook output priority 0; }",
            "add rule inet silence words icmp type destination-unreachable counter drop",
            "add rule inet silence words icmpv6 type packet-too-big counter drop",
        ] {
            routed.nft(script).unwrap();
        }
        let splitway = serve(&routed, &site, &[]);
        for mtu in [1400, 1300] {
            routed.narrow(mtu).unwrap();
            for server in [0, 1] {
                let largest = largest_packet(server, &file);
                assert!(largest <= mtu && largest + 32 > mtu, "{largest} of {mtu}");
            }
        }
        let counter = end(splitway);
        assert_eq!(counter("mtus_reduced"), 0, "no ICMP error has arrived");
        assert_eq!(counter("connections_broken"), 0, "all was delivered");
        let silenced = routed.nft("list chain inet silence words").unwrap();
        let counts = silenced.matches("counter packets").count();
        assert_eq!(counts, 2, "{silenced}");
        assert!(!silenced.contains("counter packets 0 "), "{silenced}");
    });
}

#[test]
fn a_router_that_marks_packets_is_heeded_and_no_byte_is_wrong() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let routed = Routed::new().unwrap();
        routed.offer_ecn().unwrap();
        for script in [
            "add table inet congestion",
            "add chain inet congestion marks { type filter hook forward priority 0; }",
            "add rule inet congestion marks ip ecn ect0 numgen inc mod 7 == 0 ip ecn set ce",
            "add rule inet congestion marks ip6 ecn ect0 numgen inc mod 7 == 0 ip6 ecn set ce",
        ] {
            routed.nft(script).unwrap();
        }
        // IPv4's alone.
        let marked = || tcp_counter("IpExt", "InCEPkts");
        for server in servers() {
            let splitway = serve(&routed, &site, &[]);
            let mut connection = Connection::open(server).unwrap();
            connection.get(&file).unwrap();
            assert!(end(splitway)("ecn_reductions") > 0, "{server}");
        }

        // A server that does not take part sends nothing that could be marked.
        let before = marked();
        assert!(before > 0);
        let splitway = serve(&routed, &site, &["--ecn", "off"]);
        let mut connection = Connection::open(servers()[0]).unwrap();
        connection.get(&file).unwrap();
        assert_eq!(marked(), before);
        assert_eq!(end(splitway)("ecn_reductions"), 0);
    });
}
