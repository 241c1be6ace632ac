//! Splices between clients and backends that differ: in the MTU of their links, in the version of
//! IP, and in what happens on the way.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use testbed::backend::{Backend, Speech};
use testbed::http::be_patient;
use testbed::namespace::{isolated, isolated_long, within};
use testbed::process::run;
use testbed::routed::{GATEWAYS, Routed, UPLINK};
use testbed::site::Site;
use testbed::splitway::{STACK_V4, STACK_V6, Splitway};
use testbed::web::content;
use testbed::{Context, wait};

use crate::links::{lose_one_in_a_hundred, send_single_packets};
use crate::proxy::{echoed_behind_a_pause, listen, round_trip, spliced_tunnel, started, written};
use crate::spliced::counted;
use crate::stat::host_counted;
use crate::support::{Random, SOON, on_threads, program, sh};

/// Ports for a backend of either version of IP.
const PORTS: [u16; 2] = [80, 81];
const BACKEND_PORT: u16 = 9001;

/// How long one of many clients waits for a byte.
const PATIENCE: Duration = Duration::from_secs(150);

/// What each client sends and has back, in bytes.
const BYTES: usize = 1_000_000;

/// Connections of TCP that are spliced, from a port for each of two addresses of one backend.
fn configuration(network: &str, backend: [IpAddr; 2]) -> String {
    let mut text = format!("[proxy]\nsplice = true\n{network}");
    for (port, address) in PORTS.into_iter().zip(backend) {
        let address = SocketAddr::new(address, BACKEND_PORT);
        text += &listen(port, &format!("to-{port}"), "mode = \"tcp\"");
        text += &format!(
            "[[proxy.pool]]\nname = \"to-{port}\"\n\
             [[proxy.pool.backend]]\naddress = \"{address}\"\n"
        );
    }
    text
}

/// The proxy beyond a router, at whose end of the link to it the backend is.
fn beyond(routed: &Routed, site: &Site) -> Splitway {
    let gateways = GATEWAYS.map(|ip| format!("{ip:?}")).join("\", \"");
    let network = format!(
        "[network]\ninterface = \"{UPLINK}\"\naddresses = [\"10.92.0.2/24\", \"fd92::2/64\"]\n\
         gateways = [\"{gateways}\"]\n"
    );
    let path = written(site, &configuration(&network, GATEWAYS));
    let mut command = within(routed.beyond(), program().to_str().unwrap());
    command.args(["proxy", "--report-json", "--config"]);
    Splitway::start(command.arg(path)).unwrap()
}

/// Each pair of a client's version of IP and a backend's.
fn pairs(addresses: [IpAddr; 2]) -> Vec<SocketAddr> {
    let ports = |address| PORTS.map(|port| SocketAddr::new(address, port));
    addresses.into_iter().flat_map(ports).collect()
}

/// The MSS that the backend offers is that of an MTU, whatever the link carries.
fn offer_mss_of(routed: &Routed, mtu: u32) {
    for (family, network, headers) in [("-4", "10.92.0.0/24", 40), ("-6", "fd92::/64", 60)] {
        let mss = mtu - headers;
        let line = format!("ip {family} route replace {network} dev far advmss {mss}");
        run(&mut within(routed.router(), &line)).unwrap();
    }
}

fn set_mtu(routed: &Routed, links: &[&str], mtu: u32) {
    for link in links {
        match *link {
            "client" => drop(sh(&format!("ip link set client mtu {mtu}"))),
            UPLINK => {
                let line = format!("ip link set {UPLINK} mtu {mtu}");
                run(&mut within(routed.beyond(), &line)).unwrap();
            }
            link => {
                let line = format!("ip link set {link} mtu {mtu}");
                run(&mut within(routed.router(), &line)).unwrap();
            }
        }
    }
}

#[test]
fn segments_of_any_size_pass_between_links_that_differ_in_both_versions_of_ip() {
    isolated(|site| {
        let routed = Routed::new().unwrap();
        set_mtu(&routed, &["far", UPLINK], 9000);
        let backend = Backend::inside(routed.router(), BACKEND_PORT, Speech::Echo).unwrap();
        let proxy = beyond(&routed, &site);
        let servers = pairs(["10.92.0.2", "fd92::2"].map(|ip| ip.parse().unwrap()));
        for (client_mtu, backend_mtu) in [
            (1280, 9000),
            (9000, 1280),
            (1500, 9000),
            (9000, 1500),
            (1280, 1500),
            (9000, 9000),
        ] {
            set_mtu(&routed, &["near", "client"], client_mtu);
            offer_mss_of(&routed, backend_mtu);
            for (index, server) in servers.iter().enumerate() {
                let before = host_counted("splices_joined");
                on_threads(3, |client| spliced_tunnel(*server, client + index, BYTES));
                let joined = host_counted("splices_joined") - before;
                let pair = format!("{client_mtu} to {backend_mtu} bytes, {server}");
                assert_eq!(joined, 3, "{pair}");
            }
        }
        let names = ["splices_joined", "spliced_bytes", "connections_broken"];
        let [joined, bytes, broken] = counted(proxy, names);
        println!("{joined} joined, {bytes} bytes");
        assert_eq!((backend.connections(), broken), (6 * 4 * 3, 0));
        // The first 64 KiB of each are copied.
        assert!(bytes >= joined * BYTES as u64, "{joined}, {bytes}");
    });
}

/// So many clients at once, of either version of IP to backends of either, where packets are lost.
fn clients_at_once(site: &Site, clients: usize, bytes: usize) {
    let addresses = ["10.77.0.1", "fd77::1"].map(|ip| ip.parse().unwrap());
    let _backend = Backend::new(BACKEND_PORT, Speech::Echo);
    let proxy = started(&written(site, &configuration("", addresses)));
    send_single_packets(&proxy);
    lose_one_in_a_hundred(&mut Random::seeded());
    let servers = pairs([STACK_V4, STACK_V6]);
    on_threads(clients, |client| {
        let server = servers[client % servers.len()];
        let stream = TcpStream::connect(server).context(|| "connecting".into())?;
        // Two cores are busy for longer than a retransmission is waited for elsewhere.
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        echoed_behind_a_pause(&stream, client, bytes)
    });
    let names = ["splices_joined", "splices_given_up", "connections_broken"];
    let [joined, given_up, broken] = counted(proxy, names);
    println!("{joined} joined, {given_up} given up");
    assert!(joined >= clients as u64 / 2, "{joined} of {clients}");
    assert_eq!(broken, 0);
}

#[test]
fn two_hundred_splices_at_once_lose_packets_and_no_byte() {
    isolated(|site| clients_at_once(&site, 200, 300_000));
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_splices_at_once_lose_packets_and_no_byte() {
    isolated_long(|site| clients_at_once(&site, 1_000, 200_000));
}

/// A connection that is spliced.
fn spliced(server: SocketAddr) -> TcpStream {
    let before = host_counted("splices_joined");
    let stream = TcpStream::connect(server).unwrap();
    be_patient(&stream).unwrap();
    wait::until(SOON, "a splice", || {
        round_trip(&stream, &content(50_000, before)).unwrap();
        (host_counted("splices_joined") > before).then_some(())
    })
    .unwrap();
    stream
}

/// The router sends "too big", about what comes from the backend, in mid-stream.
#[test]
fn a_link_that_becomes_narrower_gives_a_splice_back_and_costs_no_byte() {
    isolated(|site| {
        let routed = Routed::new().unwrap();
        let _backend = Backend::inside(routed.router(), BACKEND_PORT, Speech::Echo).unwrap();
        let proxy = beyond(&routed, &site);
        let servers = pairs(["10.92.0.2", "fd92::2"].map(|ip| ip.parse().unwrap()));
        // The client knows of it, and offers the MSS of before.
        for (network, way, mss) in [
            ("10.92.0.0/24", "10.91.0.254", 1460),
            ("fd92::/64", "fd91::254", 1440),
        ] {
            sh(&format!(
                "ip route change {network} via {way} mtu 1280 advmss {mss}"
            ));
        }
        let streams: Vec<_> = servers.into_iter().map(spliced).collect();
        routed.narrow(1300).unwrap();
        for (seed, stream) in streams.iter().enumerate() {
            round_trip(stream, &content(BYTES, seed as u64)).unwrap();
        }
        drop(streams);
        let names = ["splices_returned", "mtus_reduced", "connections_broken"];
        let [returned, reduced, broken] = counted(proxy, names);
        assert!(returned >= 4, "{returned}");
        assert_eq!(broken, 0);
        assert!(reduced >= 4, "{reduced}");
    });
}

/// Binds a client to a port, so that its connections have the same addresses and ports.
fn connect_from(port: u16, server: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
    wait::until(SOON, "a port whose TIME-WAIT may be taken over", || {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        let own = SocketAddr::from(([10, 77, 0, 1], port));
        bind(&socket, &own).ok()?;
        connect(&socket, &server).ok()?;
        Some(TcpStream::from(socket))
    })
    .unwrap()
}

/// A client's port comes again, behind the end of a splice and behind a reset.
#[test]
fn a_port_comes_again_when_its_splice_has_ended() {
    isolated(|site| {
        let reuse = PathBuf::from("/proc/sys/net/ipv4/tcp_tw_reuse");
        fs::write(reuse, "1").unwrap();
        let addresses = ["10.77.0.1", "fd77::1"].map(|ip| ip.parse().unwrap());
        let _backend = Backend::new(BACKEND_PORT, Speech::Echo);
        let proxy = started(&written(&site, &configuration("", addresses)));
        let server = SocketAddr::new(STACK_V4, PORTS[0]);
        for round in 0..6 {
            let before = host_counted("splices_joined");
            let mut stream = connect_from(40_000, server);
            be_patient(&stream).unwrap();
            wait::until(SOON, "a splice", || {
                round_trip(&stream, &content(50_000, round)).unwrap();
                (host_counted("splices_joined") > before).then_some(())
            })
            .unwrap();
            round_trip(&stream, &content(BYTES, round)).unwrap();
            if round % 2 == 0 {
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            } else {
                // Closing resets what is unread.
                stream.write_all(b"unread").unwrap();
                stream.peek(&mut [0]).unwrap();
            }
        }
        let names = ["splices_joined", "splices_finished", "splices_broken"];
        let [joined, finished, broken] = counted(proxy, names);
        assert_eq!((joined, finished, broken), (6, 3, 3));
    });
}
