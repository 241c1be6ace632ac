//! Over emulated links: loss, distance, reordering, from one flow to two hundred, against the
//! kernel's TCP with each congestion control it has, as client and as server.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};

use testbed::http::download;
use testbed::namespace::{isolated, isolated_long, within};
use testbed::path::{CLIENT, CLIENT_ADDRESSES, Path, UPLINK, addresses};
use testbed::site::{KnownFile, Site};
use testbed::splitway::Splitway;
use testbed::{Context, Failure};

use crate::own_client::OwnClient;
use crate::support::{on_threads, program, sh};

/// Host numbers on the path's networks: of `splitway serve`, and of a client that stands on our
/// TCP.
const SERVER: u8 = 3;
const OWN_CLIENT: u8 = 4;

/// What a link is like, and how many flows there are at once.
#[derive(Clone, Copy)]
struct Cell {
    /// Packets lost, in percent.
    loss: &'static str,
    /// Round-trip time, in microseconds.
    rtt_us: u32,
    /// Packets that others overtake, in percent.
    reorder: u8,
    flows: usize,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell {
            loss,
            rtt_us,
            reorder,
            flows,
        } = self;
        write!(
            f,
            "loss {loss} %, round trip {rtt_us} µs, reordered {reorder} %, flows {flows}"
        )
    }
}

const LOSSES: [&str; 4] = ["0", "0.1", "1", "5"];
const ROUND_TRIPS_US: [u32; 3] = [200, 20_000, 100_000];
const REORDERINGS: [u8; 2] = [0, 1];
const FLOWS: [usize; 3] = [1, 16, 200];

fn matrix() -> Vec<Cell> {
    let mut cells = Vec::new();
    for rtt_us in ROUND_TRIPS_US {
        for loss in LOSSES {
            for reorder in REORDERINGS {
                for flows in FLOWS {
                    cells.push(Cell {
                        loss,
                        rtt_us,
                        reorder,
                        flows,
                    });
                }
            }
        }
    }
    cells
}

/// Every pair of values of two conditions, once at least: what goes wrong mostly takes no more than
/// two.
fn covering(rtt_us: u32) -> Vec<Cell> {
    let turn = ROUND_TRIPS_US
        .iter()
        .position(|other| *other == rtt_us)
        .unwrap();
    let cells = LOSSES.iter().zip(0..).map(|(loss, row)| Cell {
        loss,
        rtt_us,
        // Each loss and each number of flows meets both.
        reorder: REORDERINGS[(row + turn) % 2],
        flows: FLOWS[(row + turn) % 3],
    });
    cells.collect()
}

#[test]
fn a_covering_set_has_every_pair_of_values() {
    let cells: Vec<Cell> = ROUND_TRIPS_US.into_iter().flat_map(covering).collect();
    for loss in LOSSES {
        for flows in FLOWS {
            assert!(
                cells
                    .iter()
                    .any(|cell| (cell.loss, cell.flows) == (loss, flows))
            );
        }
        for rtt_us in ROUND_TRIPS_US {
            assert!(
                cells
                    .iter()
                    .any(|cell| (cell.loss, cell.rtt_us) == (loss, rtt_us))
            );
        }
        for reorder in REORDERINGS {
            assert!(
                cells
                    .iter()
                    .any(|cell| (cell.loss, cell.reorder) == (loss, reorder))
            );
        }
    }
    for flows in FLOWS {
        for rtt_us in ROUND_TRIPS_US {
            assert!(
                cells
                    .iter()
                    .any(|cell| (cell.flows, cell.rtt_us) == (flows, rtt_us))
            );
        }
        for reorder in REORDERINGS {
            assert!(
                cells
                    .iter()
                    .any(|cell| (cell.flows, cell.reorder) == (flows, reorder))
            );
        }
    }
}

impl Cell {
    /// Options of `splitway link`. A queue of one bandwidth-delay product, and of two superpackets
    /// at least.
    fn options(&self, seed: usize) -> Vec<String> {
        let Cell {
            loss,
            rtt_us,
            reorder,
            ..
        } = self;
        let queue_bytes = (rtt_us * 25).max(131_072);
        format!(
            "--rate=200mbit --queue={queue_bytes}b --delay={}us --loss={loss}% \
             --reorder={reorder}% --reorder-by={}us --duplicate=0.1% --seed={seed}",
            rtt_us / 2,
            (rtt_us / 8).max(100),
        )
        .split(' ')
        .map(str::to_owned)
        .collect()
    }

    /// One file for each flow; a flow that is alone gets more.
    fn files(&self, site: &Site) -> Vec<KnownFile> {
        let bytes =
            [600_000, 200_000, 40_000][FLOWS.iter().position(|n| *n == self.flows).unwrap()];
        (0..self.flows)
            .map(|flow| {
                site.file(&format!("{}-{flow}", self.flows), bytes + flow as u64)
                    .unwrap()
            })
            .collect()
    }
}

/// The kernel's congestion controls; which there are depends on how it was built.
fn congestion_controls() -> Vec<String> {
    let available =
        fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    let known = ["cubic", "bbr", "reno"].into_iter();
    let there = known.filter(|name| available.split_whitespace().any(|other| other == *name));
    there.map(str::to_owned).collect()
}

/// Does `work` over a link like that of each cell, with each congestion control of the kernel in
/// its turn.
fn over_links(path: &Path, cells: &[Cell], mut work: impl FnMut(&Cell)) {
    let controls = congestion_controls();
    let mut lost = 0;
    for (index, cell) in cells.iter().enumerate() {
        let control = &controls[index % controls.len()];
        path.congestion_control(false, control).unwrap();
        println!("{cell}, the kernel with {control}");
        let emulator = path.emulate(program(), cell.options(index)).unwrap();
        work(cell);
        let report: serde_json::Value = serde_json::from_str(&emulator.end().unwrap()).unwrap();
        for direction in 0..2 {
            let counters = &report["directions"][direction]["counters"];
            lost += counters["lost"].as_u64().unwrap();
            let refused = &report["directions"][direction]["refused"];
            assert_eq!(
                refused, 0,
                "the kernel refused frames of the emulator: {report}"
            );
        }
    }
    assert!(lost > 0, "loss that did not happen has shown nothing");
}

fn the_kernel_as_client(site: &Site, cells: &[Cell]) {
    let path = Path::new().unwrap();
    let mut command = within(path.beyond(), program().to_str().unwrap());
    command
        .arg("serve")
        .arg(site.root())
        .args(["--dev", UPLINK]);
    let [v4, v6] = addresses(SERVER);
    command.args(["--addr", &format!("{v4}/24"), &format!("{v6}/64")]);
    let _splitway = Splitway::start(&mut command).unwrap();
    over_links(&path, cells, |cell| {
        let files = cell.files(site);
        on_threads(cell.flows, |flow| {
            let server = SocketAddr::new(addresses(SERVER)[flow % 2], 80);
            download(server, &files[flow]).map(drop)
        });
    });
}

/// A server on the kernel's TCP: to each that sends the name of a file, the file, and the end.
fn serve_files(listener: &TcpListener, site: &Site, connections: usize) {
    std::thread::scope(|scope| {
        for _ in 0..connections {
            let (stream, _) = listener.accept().unwrap();
            scope.spawn(move || -> testbed::Result<()> {
                let mut name = String::new();
                let failed = || "serving a file".to_owned();
                BufReader::new(&stream)
                    .read_line(&mut name)
                    .context(failed)?;
                let mut file = fs::File::open(site.root().join(name.trim())).context(failed)?;
                std::io::copy(&mut file, &mut &stream).context(failed)?;
                (&stream).flush().context(failed)
            });
        }
    });
}

fn the_kernel_as_server(site: &Site, cells: &[Cell]) {
    let path = Path::new().unwrap();
    let [server, _] = CLIENT_ADDRESSES;
    let [IpAddr::V4(own), _] = addresses(OWN_CLIENT) else {
        unreachable!("the first is that of IPv4")
    };
    let mut client = OwnClient::open(path.beyond(), UPLINK, own).unwrap();
    let mac: String = client.mac().map(|byte| format!("{byte:02x}")).join(":");
    sh(&format!(
        "ip neigh replace {own} dev {CLIENT} lladdr {mac} nud permanent"
    ));
    let listener = TcpListener::bind((server, 0)).unwrap();
    let server = listener.local_addr().unwrap();
    let server_mac = mac_of(CLIENT);
    let failures = AtomicUsize::new(0);
    over_links(&path, cells, |cell| {
        let files = cell.files(site);
        std::thread::scope(|scope| {
            scope.spawn(|| serve_files(&listener, site, cell.flows));
            if let Err(failure) = client.download(server, server_mac, &files) {
                println!("{cell}: {failure}");
                failures.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(failures.load(Ordering::Relaxed), 0, "{cell}");
    });
}

fn mac_of(device: &str) -> [u8; 6] {
    let shown = sh(&format!("ip -oneline link show {device}"));
    let mut words = shown
        .split_whitespace()
        .skip_while(|word| *word != "link/ether");
    let bytes: Option<Vec<u8>> = words.nth(1).and_then(|mac| {
        mac.split(':')
            .map(|byte| u8::from_str_radix(byte, 16).ok())
            .collect()
    });
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| Failure::new(shown))
        .unwrap()
}

#[test]
fn the_kernel_gets_every_byte_from_nearby() {
    isolated(|site| the_kernel_as_client(&site, &covering(200)));
}

#[test]
fn the_kernel_gets_every_byte_from_20_ms_away() {
    isolated(|site| the_kernel_as_client(&site, &covering(20_000)));
}

#[test]
fn the_kernel_gets_every_byte_from_100_ms_away() {
    isolated(|site| the_kernel_as_client(&site, &covering(100_000)));
}

#[test]
fn the_kernel_delivers_every_byte() {
    isolated(|site| the_kernel_as_server(&site, &covering(20_000)));
}

#[test]
#[ignore = "takes minutes"]
fn the_kernel_gets_every_byte_over_every_link() {
    isolated_long(|site| the_kernel_as_client(&site, &matrix()));
}

#[test]
#[ignore = "takes minutes"]
fn the_kernel_delivers_every_byte_over_every_link() {
    isolated_long(|site| the_kernel_as_server(&site, &matrix()));
}
