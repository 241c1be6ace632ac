//! HTTP/3 with clients that others wrote: the table in docs/quic.md is made of what is here.

mod chromium;
mod clients;
mod wire;

use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use testbed::namespace::{isolated_long, within};
use testbed::path::{self, CLIENT, UPLINK};
use testbed::site::{KnownFile, Site};
use testbed::splitway::{LINK, Splitway};

use self::wire::{Fault, Hole, Muzzle, Watch};
use crate::https::{Certificate, HTTPS};
use crate::stat::all_host_counted;
use crate::support::{program, serve_with};

const CLIENTS: [&str; 5] = ["curl", "aioquic", "ngtcp2", "quic-go", "Chromium"];

/// Cases, and which clients know them. Early data is refused to clients that send it although no
/// ticket allows it. One sends none then.
const CASES: [(&str, [&str; CLIENTS.len()]); 16] = [
    ("transfer", ["yes", "yes", "yes", "yes", "yes"]),
    ("multiplexing", ["yes", "yes", "yes", "yes", "yes"]),
    ("resumption", ["yes", "yes", "yes", "yes", "yes"]),
    ("0-RTT", ["", "yes", "yes", "yes", "yes"]),
    ("0-RTT refused", ["", "yes", "yes", "yes", "none"]),
    ("retry", ["yes", "yes", "yes", "yes", "yes"]),
    ("version negotiation", ["", "yes", "yes", "yes", ""]),
    ("key update", ["", "yes", "yes", "yes", ""]),
    ("connection ID", ["", "yes", "", "", ""]),
    ("migration", ["", "", "yes", "yes", ""]),
    ("preferred address", ["", "", "yes", "", ""]),
    ("loss", ["yes", "yes", "yes", "yes", "yes"]),
    ("reordering", ["yes", "yes", "yes", "yes", "yes"]),
    ("corruption", ["yes", "yes", "yes", "yes", "yes"]),
    ("blackhole", ["yes", "yes", "yes", "yes", "yes"]),
    ("amplification", ["yes", "yes", "yes", "yes", "yes"]),
];

/// Of the server at the other end of an emulated link.
const FAR: [SocketAddr; 2] = {
    let [v4, v6] = path::addresses(3);
    [SocketAddr::new(v4, 443), SocketAddr::new(v6, 443)]
};

/// Where clients of that server move to.
const PREFERRED: [IpAddr; 2] = path::addresses(7);

/// Of a download, bytes that come from there at the least.
const MOVED_BYTES_MIN: u64 = 3_000_000;

/// For how long nothing gets through.
const SILENCE: Duration = Duration::from_secs(3);

/// The same, before the address of a client is validated. Chromium waits for four seconds, and does
/// not ask again in the second half of them.
const SILENCE_OF_A_HANDSHAKE: Duration = Duration::from_millis(1500);

/// One client, one case, one server.
struct Trial<'a> {
    client: &'a str,
    case: &'a str,
    site: &'a Site,
    certificate: &'a Certificate,
    files: &'a [KnownFile],
    server: SocketAddr,
    /// At the client's end of the link.
    device: &'a str,
}

impl fmt::Display for Trial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.client, self.case, self.server)
    }
}

impl Trial<'_> {
    /// Has the client download all files.
    fn download(&self) {
        match self.client {
            "Chromium" => chromium::attempt(self),
            _ => clients::attempt(self),
        }
    }

    /// The same, and that the fault has happened.
    fn download_despite(&self, fault: Fault) {
        self.download();
        assert!(fault.received() > 0, "{self}");
    }

    /// The same. Until what `meanwhile` returns is gone, the download cannot be over.
    fn download_through<T>(&self, meanwhile: impl FnOnce() -> T) {
        std::thread::scope(|scope| {
            let download = scope.spawn(|| self.download());
            let obstacle = meanwhile();
            assert!(!download.is_finished(), "{self}");
            drop(obstacle);
        });
    }

    /// The same, with what the case does to datagrams on their way.
    fn download_on_the_way_of_the_case(&self) {
        match self.case {
            "loss" => self.download_despite(Fault::loss(self.device)),
            "corruption" => self.download_despite(Fault::damage(self.device)),
            "blackhole" => {
                let hole = Hole::new(self.device);
                self.download_through(|| {
                    hole.await_opening();
                    // Not a wait for something: nothing gets through for so long.
                    std::thread::park_timeout(SILENCE);
                    hole
                });
            }
            "amplification" => {
                let muzzle = Muzzle::new(self.device, self.server.is_ipv6());
                self.download_through(|| {
                    muzzle.await_answer();
                    // Not a wait for something: the server could send more for so long.
                    std::thread::park_timeout(SILENCE_OF_A_HANDSHAKE);
                    let [received, sent] = muzzle.bytes_of_the_server();
                    assert!(sent <= 3 * received, "{self}: {sent} for {received}");
                    // As much as it may: a datagram more would be too much.
                    assert!(sent + 1200 > 3 * received, "{self}: {sent} for {received}");
                    muzzle
                });
            }
            _ => self.download(),
        }
    }

    /// The same, and that what the case is about has happened.
    fn attempt(&self) {
        const NAMES: [&str; 5] = [
            "quic_connections_accepted",
            "quic_streams_accepted",
            "quic_resumed",
            "quic_early",
            "quic_keys",
        ];
        let watch = Watch::new(self.device);
        let before = all_host_counted(NAMES);
        self.download_on_the_way_of_the_case();
        let after = all_host_counted(NAMES);
        let [connections, streams, resumed, early, keys] =
            std::array::from_fn(|at| after[at] - before[at]);
        let is_resumed = resumed > 0 && resumed + 1 == connections;
        let has_happened = match self.case {
            // The server changes its keys after ten to a thousand packets.
            "transfer" => keys > connections,
            "multiplexing" => connections == 1 && streams >= self.files.len() as u64,
            "0-RTT" => is_resumed && early == resumed,
            "resumption" | "0-RTT refused" => is_resumed && early == 0,
            "retry" => watch.retries() > 0,
            "version negotiation" => watch.negotiations() > 0,
            "migration" => connections == 1 && watch.ports() > 1,
            "preferred address" => {
                let [sent, received] = watch.moved_bytes();
                connections == 1 && sent > 0 && received >= MOVED_BYTES_MIN
            }
            _ => true,
        };
        assert!(
            has_happened,
            "{self}: connections {connections}, streams {streams}, resumed {resumed}, \
             early {early}, keys {keys}"
        );
    }
}

/// Options of a server for a case.
fn options(site: &Site, certificate: &Certificate, case: &str) -> Vec<String> {
    let mut options: Vec<String> = ["--tls-listen", "443", "--http3"].map(str::to_owned).into();
    options.extend(certificate.options());
    let setting = match case {
        "retry" => "retry_above = 0",
        // A browser's second connection has to wait for the end of the first.
        "resumption" | "0-RTT refused" => "idle_timeout = \"1s\"",
        "0-RTT" => "idle_timeout = \"1s\"\nearly_data = true",
        "preferred address" => &format!(
            "preferred_addresses = {:?}",
            PREFERRED.map(|it| it.to_string())
        ),
        _ => return options,
    };
    let configuration = site.outside().join("quic.toml");
    fs::write(&configuration, format!("[quic]\n{setting}\n")).unwrap();
    options.extend([
        "--config".to_owned(),
        configuration.to_str().unwrap().to_owned(),
    ]);
    options
}

/// Tries a case with a server next to the client.
fn attempt_nearby(trial: &Trial<'_>) {
    let options = options(trial.site, trial.certificate, trial.case);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let _splitway = serve_with(trial.site, &options);
    for server in HTTPS {
        Trial { server, ..*trial }.attempt();
    }
}

/// The same over a link, to a server with two addresses of each version of IP. Where the case is
/// about that, one packet in ten comes late, in both directions.
fn attempt_from_afar(trial: &Trial<'_>) {
    let path = path::Path::new().unwrap();
    let mut command = within(path.beyond(), program().to_str().unwrap());
    command.arg("serve").arg(trial.site.root());
    command.args(["--dev", UPLINK, "--addr"]);
    let [v4, v6] = FAR.map(|server| server.ip());
    command.args([format!("{v4}/24"), format!("{v6}/64")]);
    let [v4, v6] = PREFERRED;
    command.args([format!("--addr={v4}/24"), format!("--addr={v6}/64")]);
    command.args(options(trial.site, trial.certificate, trial.case));
    let _splitway = Splitway::start(&mut command).unwrap();
    let is_reordered = trial.case == "reordering";
    let mut link = vec!["--delay=10ms"];
    if is_reordered {
        link.extend(["--reorder=10%", "--reorder-by=5ms"]);
    }
    let emulator = path.emulate(program(), link).unwrap();
    for server in FAR {
        Trial {
            server,
            device: CLIENT,
            ..*trial
        }
        .attempt();
    }
    let report: serde_json::Value = serde_json::from_str(&emulator.end().unwrap()).unwrap();
    for direction in 0..2 {
        let report = &report["directions"][direction];
        assert_eq!(
            (&report["refused"], &report["uncut"]),
            (&0.into(), &0.into()),
            "{report}"
        );
        let reordered = report["counters"]["reordered"].as_u64().unwrap();
        assert_eq!(reordered > 10, is_reordered, "{report}");
    }
}

/// Has Chromium download files, each twenty times at once.
pub(crate) fn chromium_downloads(
    site: &Site,
    certificate: &Certificate,
    files: &[KnownFile],
    server: SocketAddr,
) {
    let trial = Trial {
        client: "Chromium",
        case: "multiplexing",
        site,
        certificate,
        files,
        server,
        device: LINK,
    };
    trial.download();
}

/// Tries all cases that a client knows.
fn attempt_all(site: &Site, client: &str) {
    let at = CLIENTS.iter().position(|known| *known == client).unwrap();
    let files: Vec<KnownFile> = [1000, 300_000, 5_000_000]
        .iter()
        .enumerate()
        .map(|(at, &size)| site.file(&format!("file{at}"), size).unwrap())
        .collect();
    // Clients that name "localhost" ask for the address.
    let [v4, v6] = FAR.map(|server| server.ip().to_string());
    let certificate = Certificate::new(site.outside(), "localhost", "ec", &["localhost", &v4, &v6]);
    // Longer than three times a client's hello.
    let names: Vec<String> = (0..250)
        .map(|at| format!("{at}.of-many-names.example.org"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let long = Certificate::new(site.outside(), "long", "ec", &names);
    for (case, cells) in CASES {
        if cells[at].is_empty() {
            continue;
        }
        let trial = Trial {
            client,
            case,
            site,
            certificate: if case == "amplification" {
                &long
            } else {
                &certificate
            },
            files: &files,
            server: HTTPS[0],
            device: LINK,
        };
        match case {
            "reordering" | "preferred address" => attempt_from_afar(&trial),
            _ => attempt_nearby(&trial),
        }
        println!("{client}: {case}");
    }
}

/// The rows of the table.
fn rows() -> String {
    let row = |first: &str, cells: &[&str]| {
        let mut row = String::from("|");
        for cell in [&[first], cells].concat() {
            row += &if cell.is_empty() {
                " |".to_owned()
            } else {
                format!(" {cell} |")
            };
        }
        row + "\n"
    };
    let mut rows = row("", &CLIENTS);
    rows += &format!("|---{}|\n", "|---".repeat(CLIENTS.len()));
    for (case, cells) in CASES {
        rows += &row(case, &cells);
    }
    rows
}

#[test]
fn the_page_has_the_table_of_clients_and_cases() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/quic.md");
    let page = fs::read_to_string(page).unwrap();
    let rows = rows();
    assert!(page.contains(&rows), "docs/quic.md is to have:\n{rows}");
}

#[test]
#[ignore = "needs a client that takes long to install"]
fn curl_downloads_every_byte() {
    isolated_long(|site| attempt_all(&site, "curl"));
}

#[test]
#[ignore = "needs a client that takes long to install"]
fn aioquic_downloads_every_byte() {
    isolated_long(|site| attempt_all(&site, "aioquic"));
}

#[test]
#[ignore = "needs a client that takes long to install"]
fn ngtcp2_downloads_every_byte() {
    isolated_long(|site| attempt_all(&site, "ngtcp2"));
}

#[test]
#[ignore = "needs a client that takes long to install"]
fn quic_go_downloads_every_byte() {
    isolated_long(|site| attempt_all(&site, "quic-go"));
}

#[test]
#[ignore = "needs a browser, which takes long to install"]
fn chromium_downloads_every_byte() {
    isolated_long(|site| attempt_all(&site, "Chromium"));
}
