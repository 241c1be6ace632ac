//! NIC workers answer SYNs, with the kernel's TCP at the other end, in both forms: a packet filter
//! steers SYNs to them, or the host hands SYNs on.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use netdev::packet::PacketPort;
use netdev::{Offload, Port, Superpacket};
use testbed::http::{Connection, download};
use testbed::namespace::isolated;
use testbed::process::{run, tool};
use testbed::procfs::cpu_ns;
use testbed::site::Site;
use testbed::splitway::{HTTP_V4, LINK, Splitway};
use testbed::wait;
use wire::frame::TcpTemplate;
use wire::tcp::{Flags, Header, Options};

use crate::deaths::counted;
use crate::stat::{host_counted, json};
use crate::support::{FAMILIES, SOON, kill_nics_amid, on_threads, serve_with};

/// Clients at a time.
const CLIENTS: usize = 20;

/// Connections of each.
const TURNS: usize = 10;

/// How SYNs get to workers, as `stat` says it, and what it takes.
const STEERED: (&str, &[&str]) = ("steered", &["--setup-offload", "--report-json"]);
const HANDED_ON: (&str, &[&str]) = (
    "handed on",
    &["--setup-offload", "--report-json", "--no-steering"],
);

/// A server whose workers answer SYNs.
fn serve((form, arguments): (&str, &[&str]), site: &Site) -> Splitway {
    let splitway = serve_with(site, arguments);
    workers_answer(form);
    splitway
}

fn workers_answer(form: &str) {
    wait::until(SOON, "workers that answer SYNs", || {
        (json(&["--summary"])["host"]["syns"] == form).then_some(())
    })
    .unwrap();
}

/// Downloads on connections of their own, of which every byte is checked.
fn downloads(site: &Site) {
    let file = site.file("file", 50_000).unwrap();
    on_threads(CLIENTS, |index| {
        for _ in 0..TURNS {
            download(FAMILIES[index % 2], &file)?;
        }
        Ok(())
    });
}

#[test]
fn a_packet_filter_steers_syns_and_the_host_sees_none() {
    isolated(|site| {
        let splitway = serve(STEERED, &site);
        downloads(&site);
        let names = [
            "connections_set_up",
            "connections_broken",
            "syns_handed_on",
            "resets_sent",
        ];
        let all = (CLIENTS * TURNS) as u64;
        let syns = host_counted("syns_received");
        let [set_up, broken, handed_on, resets] = counted(splitway, names);
        // A client's port may come again, or the hash of another connection: its SYN is the host's.
        assert_eq!((set_up + syns, broken, handed_on, resets), (all, 0, 0, 0));
        assert!(syns <= all / 20, "{syns}");
    });
}

#[test]
fn the_host_hands_syns_on_where_none_can_be_steered() {
    isolated(|site| {
        let splitway = serve(HANDED_ON, &site);
        downloads(&site);
        let names = ["connections_set_up", "connections_broken", "resets_sent"];
        let all = (CLIENTS * TURNS) as u64;
        let handed_on = host_counted("syns_handed_on");
        assert!(handed_on >= all, "{handed_on}");
        assert_eq!(counted(splitway, names), [all, 0, 0]);
    });
}

#[test]
fn without_the_switch_the_host_answers() {
    isolated(|site| {
        let splitway = serve_with(&site, &["--report-json"]);
        downloads(&site);
        assert!(json(&["--summary"])["host"]["syns"].is_null());
        let names = ["connections_set_up", "setups", "syns_received"];
        let all = (CLIENTS * TURNS) as u64;
        assert_eq!(counted(splitway, names), [0, 0, all]);
    });
}

/// A closed port is as closed as without the switch.
#[test]
fn ports_without_a_listener_refuse() {
    isolated(|site| {
        let _splitway = serve(STEERED, &site);
        for server in FAMILIES {
            let closed = SocketAddr::new(server.ip(), 81);
            let error = Connection::open(closed).map(drop).unwrap_err();
            assert!(format!("{error:?}").contains("refused"), "{error:?}");
        }
        downloads(&site);
    });
}

fn killed_amid_connections(form: (&str, &[&str]), site: &Site) {
    let file = site.file("file", 50_000).unwrap();
    let splitway = serve(form, site);
    let done = AtomicUsize::new(0);
    let all = CLIENTS * TURNS;
    kill_nics_amid(&splitway, 3, (&done, all), || {
        on_threads(CLIENTS, |index| {
            for _ in 0..TURNS {
                download(FAMILIES[index % 2], &file)?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    });
    // The process that has taken its place answers as well.
    workers_answer(form.0);
    let before = host_counted("connections_set_up");
    on_threads(CLIENTS, |index| {
        download(FAMILIES[index % 2], &file).map(drop)
    });
    let [set_up, broken] = counted(splitway, ["connections_set_up", "connections_broken"]);
    assert!(set_up > before, "{set_up}, {before}");
    assert_eq!(broken, 0);
}

#[test]
fn nic_processes_are_killed_amid_steered_connections() {
    isolated(|site| killed_amid_connections(STEERED, &site));
}

#[test]
fn nic_processes_are_killed_amid_connections_handed_on() {
    isolated(|site| killed_amid_connections(HANDED_ON, &site));
}

/// A SYN of a forged source.
fn forged_syn(number: u32, macs: [[u8; 6]; 2]) -> Vec<u8> {
    let [_, a, b, c] = number.wrapping_mul(0x9e37_79b1).to_be_bytes();
    let source = SocketAddr::from((Ipv4Addr::new(198, 18 + (a & 1), b, c), 1024 + a as u16));
    let header = Header {
        seq: number,
        flags: Flags::SYN,
        window: 64_000,
        options: Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            ..Options::default()
        },
        ..Header::default()
    };
    TcpTemplate::new(macs[0], macs[1], source, HTTP_V4).to_frame(&header, &[])
}

/// Hardware addresses of the kernel's end of the link, and of the stack's.
pub(crate) fn macs(port: &PacketPort) -> [[u8; 6]; 2] {
    let line = run(&mut tool(&format!(
        "ip neigh show {} dev {LINK}",
        HTTP_V4.ip()
    )))
    .unwrap();
    let mac = line.split_whitespace().find(|word| word.len() == 17);
    let bytes = mac.expect("the stack is known").split(':');
    let bytes: Vec<u8> = bytes
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    [port.mac(), bytes.try_into().unwrap()]
}

/// Sends forged SYNs for so long; returns how many.
fn flood(span: Duration) -> u32 {
    let mut port = PacketPort::send_only(LINK).unwrap();
    let macs = macs(&port);
    let end = Instant::now() + span;
    let mut sent = 0;
    while Instant::now() < end {
        for _ in 0..32 {
            let frame = forged_syn(sent, macs);
            let packet = Superpacket {
                header: &frame,
                payload: &[],
                offload: Offload::None,
            };
            sent += u32::from(port.send(&packet).is_ok());
        }
    }
    sent
}

/// The host process sees none of it, and clients get everything meanwhile.
#[test]
fn the_host_sees_nothing_of_a_flood_that_is_steered() {
    isolated(|site| {
        let file = site.file("file", 50_000).unwrap();
        let splitway = serve(STEERED, &site);
        let host = splitway.host();
        download(HTTP_V4, &file).unwrap();
        let before = (
            host_counted("frames_received"),
            host_counted("syns_received"),
        );
        let cpu_before_ns = cpu_ns(host).unwrap();
        let span = Duration::from_secs(2);
        let sent = u64::from(flood(span));
        let used_ns = cpu_ns(host).unwrap() - cpu_before_ns;
        let frames = host_counted("frames_received") - before.0;
        let syns = host_counted("syns_received") - before.1;
        let share = used_ns as f64 / span.as_nanos() as f64;
        println!(
            "{sent} SYNs: {frames} frames at the host, {:.2} % of a core",
            share * 100.0
        );
        assert!(sent > 10_000, "{sent}");
        assert!(
            syns < sent / 1_000 && frames < sent / 1_000 + 100,
            "{syns} {frames}"
        );
        // Beside the flood, a client is served.
        std::thread::scope(|scope| {
            let flooding = scope.spawn(|| flood(span));
            for server in FAMILIES.into_iter().cycle().take(20) {
                download(server, &file).unwrap();
            }
            assert!(flooding.join().unwrap() > 10_000);
        });
        let [half_open, broken] = counted(splitway, ["half_open_evicted", "connections_broken"]);
        assert_eq!((half_open, broken), (0, 0));
    });
}
