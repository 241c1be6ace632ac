//! A normal client beside clients that take more than their share: it gets every response, and
//! soon.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use testbed::http::{Connection, download, request};
use testbed::namespace::isolated;
use testbed::site::{KnownFile, Site};
use testbed::splitway::Splitway;

use crate::concurrency::allow_many_sockets;
use crate::support::{FAMILIES, program, serve};

/// Limits are of sources: attackers come over IPv6, the normal client over IPv4.
const NORMAL: SocketAddr = FAMILIES[0];
const ATTACKED: SocketAddr = FAMILIES[1];

/// Requests of the normal client, each on a connection of its own.
const REQUESTS: usize = 200;

/// The normal client's slowest response in a hundred comes within this time. A SYN that is dropped
/// costs a second.
const SLOW_MAX: Duration = Duration::from_millis(250);

/// What the normal client asks for.
fn small_files(site: &Site) -> Vec<KnownFile> {
    let files = (0..10).map(|number| site.file(&format!("small{number}"), 20_000 + number));
    files.collect::<Result<_, _>>().unwrap()
}

/// How long the slowest response in a hundred takes, from the connection's first packet on. Every
/// byte is checked.
fn slow(files: &[KnownFile]) -> Duration {
    let times = (0..REQUESTS).map(|number| {
        let started = Instant::now();
        download(NORMAL, &files[number % files.len()]).unwrap();
        started.elapsed()
    });
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times[REQUESTS * 99 / 100]
}

/// The normal client's responses beside an attack.
fn check(attack: &str, quiet: Duration, files: &[KnownFile]) {
    let beside = slow(files);
    println!("{attack}: 99 of 100 responses within {beside:?}, in quiet {quiet:?}");
    assert!(
        beside < SLOW_MAX,
        "{attack}: {beside:?}, in quiet {quiet:?}"
    );
}

/// A connection that asks for files in one go and reads nothing.
fn ask(names: impl Iterator<Item = String>) -> Connection {
    let requests: String = names.map(|name| request("GET", &name)).collect();
    let mut connection = Connection::open(ATTACKED).unwrap();
    connection.send(requests.as_bytes()).unwrap();
    connection
}

#[test]
fn pipelining_without_reading_shuts_no_client_out() {
    isolated(|site| {
        allow_many_sockets();
        let files = small_files(&site);
        site.sparse_file("large", 1 << 30, vec![0..4096, 8192..9000])
            .unwrap();
        let _splitway = serve(&site);
        let quiet = slow(&files);
        let attackers: Vec<Connection> = (0..700)
            .map(|_| ask(std::iter::repeat_n("large".to_owned(), 32)))
            .collect();
        check("pipelining", quiet, &files);
        drop(attackers);
    });
}

/// More than the backlog holds.
#[test]
fn silent_connections_shut_no_client_out() {
    isolated(|site| {
        allow_many_sockets();
        let files = small_files(&site);
        let _splitway = serve(&site);
        let quiet = slow(&files);
        let attackers: Vec<TcpStream> = (0..17_000)
            .map(|_| TcpStream::connect(ATTACKED).unwrap())
            .collect();
        check("silence", quiet, &files);
        drop(attackers);
    });
}

/// All processes may have few descriptors, and the attackers want a different file each.
#[test]
fn clients_of_many_files_shut_no_client_out_where_descriptors_are_few() {
    isolated(|site| {
        const FILES: u64 = 600;
        let files = small_files(&site);
        for number in 0..FILES {
            site.sparse_file(
                &format!("large{number}"),
                64 << 20,
                vec![0..4096, 8192..9000],
            )
            .unwrap();
        }
        let mut command = Command::new("sh");
        let script = "ulimit -n 300 && exec \"$0\" serve \"$1\"";
        command.args(["-c", script]).arg(program()).arg(site.root());
        let _splitway = Splitway::start(&mut command).unwrap();
        let quiet = slow(&files);
        let attackers: Vec<Connection> = (0..FILES)
            .map(|number| ask(std::iter::once(format!("large{number}"))))
            .collect();
        check("many files", quiet, &files);
        drop(attackers);
    });
}
