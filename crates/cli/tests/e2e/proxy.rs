//! `splitway proxy` between clients and backends of the kernel.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::backend::{Backend, Speech};
use testbed::http::{Connection, Head, be_patient};
use testbed::namespace::isolated;
use testbed::site::Site;
use testbed::splitway::{HTTP_V4, HTTP_V6, Splitway};
use testbed::web::content;
use testbed::{Context, Failure, Result};

use crate::links::{lose_one_in_a_hundred, send_single_packets};
use crate::support::{Random, on_threads, program};

/// The kernel's end of the link, where backends are.
const KERNEL: &str = "10.77.0.1";

/// A pool of backends on these ports, with more keys.
pub(crate) fn pool(name: &str, more: &str, ports: &[u16]) -> String {
    let backends = ports
        .iter()
        .map(|port| format!("[[proxy.pool.backend]]\naddress = \"{KERNEL}:{port}\"\n"));
    let backends: String = backends.collect();
    format!("[[proxy.pool]]\nname = \"{name}\"\n{more}\n{backends}")
}

/// A port that everything of goes to a pool.
pub(crate) fn listen(port: u16, pool: &str, more: &str) -> String {
    format!("[[proxy.listen]]\nport = {port}\npool = \"{pool}\"\n{more}\n")
}

/// A file that says this.
pub(crate) fn written(site: &Site, text: &str) -> PathBuf {
    let path = site.outside().join("proxy.toml");
    fs::write(&path, text).unwrap();
    path
}

/// `splitway proxy` with a file.
pub(crate) fn started(path: &Path) -> Splitway {
    started_with(path, &[])
}

/// The same with further arguments.
pub(crate) fn started_with(path: &Path, arguments: &[&str]) -> Splitway {
    let mut command = Command::new(program());
    command
        .args(["proxy", "--report-json", "--config"])
        .arg(path)
        .args(arguments);
    Splitway::start(&mut command).unwrap()
}

/// The backend that has answered, and what.
fn answer<S: Read + Write>(connection: &mut Connection<S>) -> Result<(Head, Vec<u8>)> {
    let head = connection.read_head()?;
    let mut body = Vec::new();
    if head.field("transfer-encoding").is_some() {
        loop {
            let line = line_of(connection)?;
            let size = usize::from_str_radix(&line, 16)
                .map_err(|_| Failure::new(format!("{line:?} is no size of a chunk")))?;
            exactly(connection, size, &mut body)?;
            line_of(connection)?;
            if size == 0 {
                return Ok((head, body));
            }
        }
    }
    let length = head.content_length()? as usize;
    exactly(connection, length, &mut body)?;
    Ok((head, body))
}

fn exactly<S: Read + Write>(
    connection: &mut Connection<S>,
    bytes: usize,
    body: &mut Vec<u8>,
) -> Result<()> {
    connection.read_body(bytes as u64, |_, piece| {
        body.extend_from_slice(piece);
        Ok(())
    })
}

fn line_of<S: Read + Write>(connection: &mut Connection<S>) -> Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        exactly(connection, 1, &mut line)?;
    }
    line.truncate(line.len() - 2);
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Asks, and checks every byte; the name of the backend.
pub(crate) fn exchange(connection: &mut Connection, target: &str) -> Result<String> {
    let request = format!("GET {target} HTTP/1.1\r\nHost: test\r\n\r\n");
    connection.send(request.as_bytes())?;
    let (head, body) = answer(connection)?;
    let bytes = target
        .rsplit('/')
        .next()
        .and_then(|bytes| bytes.parse().ok());
    let bytes = bytes.unwrap_or(10);
    if head.status != 200 || body != content(bytes, bytes as u64) {
        let why = format!("{target}: {} with {} bytes", head.status, body.len());
        return Err(Failure::new(why));
    }
    Ok(head.field("x-backend").unwrap_or_default().to_owned())
}

/// Sends a body, in chunks or by its length, and has it back.
fn upload(connection: &mut Connection, body: &[u8], in_chunks: bool) -> Result<()> {
    let head = "POST /echo HTTP/1.1\r\nHost: test\r\n";
    if in_chunks {
        connection.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes())?;
        for chunk in body.chunks(7001) {
            connection.send(format!("{:x};ext=1\r\n", chunk.len()).as_bytes())?;
            connection.send(&[chunk, b"\r\n"].concat())?;
        }
        connection.send(b"0\r\nTrailer: x\r\n\r\n")?;
    } else {
        connection.send(format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes())?;
        connection.send(body)?;
    }
    let (head, echoed) = answer(connection)?;
    match head.status == 200 && echoed == body {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "{} of {} bytes",
            head.status,
            echoed.len()
        ))),
    }
}

/// All that a client of HTTP does, on one connection.
fn visit(client: usize, server: SocketAddr, bytes: usize) -> Result<()> {
    let mut connection = Connection::open(server)?;
    for round in 0..3 {
        let bytes = bytes + client * 31 + round;
        exchange(&mut connection, &format!("/{bytes}"))?;
        exchange(&mut connection, &format!("/chunked/{bytes}"))?;
        let body = content(bytes / 2, client as u64);
        upload(&mut connection, &body, (client + round).is_multiple_of(2))?;
    }
    Ok(())
}

#[test]
fn two_hundred_clients_get_every_byte_from_three_backends() {
    isolated(|site| {
        let backends = [9001, 9002, 9003].map(|port| Backend::new(port, Speech::Http));
        let ports = backends.each_ref().map(|backend| backend.port);
        let text = listen(80, "web", "") + &pool("web", "check = \"http\"", &ports);
        let _proxy = started(&written(&site, &text));
        on_threads(200, |client| {
            let server = if client.is_multiple_of(2) {
                HTTP_V4
            } else {
                HTTP_V6
            };
            visit(client, server, 20_000)
        });
        let requests = backends.each_ref().map(Backend::requests);
        // Nine of each client; checks besides.
        assert!(requests.iter().sum::<usize>() >= 1800, "{requests:?}");
        assert!(
            requests.iter().all(|requests| *requests > 400),
            "{requests:?}"
        );
        let connections: usize = backends.iter().map(Backend::connections).sum();
        assert!(
            connections < 1800,
            "{connections} connections for 1800 requests"
        );
    });
}

#[test]
fn every_byte_arrives_where_one_packet_in_a_hundred_is_lost() {
    isolated(|site| {
        let backend = Backend::new(9001, Speech::Http);
        let echo = Backend::new(9002, Speech::Echo);
        let text = listen(80, "web", "")
            + &listen(81, "echo", "mode = \"tcp\"")
            + &pool("web", "", &[backend.port])
            + &pool("echo", "", &[echo.port]);
        let proxy = started(&written(&site, &text));
        send_single_packets(&proxy);
        lose_one_in_a_hundred(&mut Random::seeded());
        on_threads(20, |client| {
            visit(client, HTTP_V4, 100_000)?;
            tunnel(SocketAddr::new(HTTP_V4.ip(), 81), client, 200_000)
        });
    });
}

/// A connection whose client waits long.
pub(crate) fn patient(server: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(server).context(|| "connecting".into())?;
    be_patient(&stream)?;
    Ok(stream)
}

/// Sends and receives at once through an echo, and ends each direction.
pub(crate) fn tunnel(server: SocketAddr, client: usize, bytes: usize) -> Result<()> {
    let stream = patient(server)?;
    echoed(&stream, &content(bytes + client, client as u64))
}

/// The same behind a pause, in which nothing is under way and enough has been copied for a splice.
pub(crate) fn spliced_tunnel(server: SocketAddr, client: usize, bytes: usize) -> Result<()> {
    let stream = patient(server)?;
    echoed_behind_a_pause(&stream, client, bytes)
}

/// What goes through such a tunnel.
pub(crate) fn echoed_behind_a_pause(stream: &TcpStream, client: usize, bytes: usize) -> Result<()> {
    round_trip(stream, &content(100_000, client as u64))?;
    echoed(stream, &content(bytes + client, client as u64))
}

/// Sends bytes, ends the direction, and has the bytes and the end back.
pub(crate) fn echoed(stream: &TcpStream, sent: &[u8]) -> Result<()> {
    let finish = |stream: &TcpStream| stream.shutdown(Shutdown::Write);
    there_and_back(stream, sent, finish)?;
    match (&*stream).read(&mut [0]) {
        Ok(0) => Ok(()),
        other => Err(Failure::new(format!("{other:?}, and no end"))),
    }
}

/// Sends bytes, and has them back.
pub(crate) fn round_trip(stream: &TcpStream, sent: &[u8]) -> Result<()> {
    there_and_back(stream, sent, |_| Ok(()))
}

fn there_and_back(
    stream: &TcpStream,
    sent: &[u8],
    behind_it: impl FnOnce(&TcpStream) -> std::io::Result<()> + Send,
) -> Result<()> {
    let mut received = vec![0; sent.len()];
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            (&*stream).write_all(sent)?;
            behind_it(stream)
        });
        let read = (&*stream).read_exact(&mut received);
        let wrote = sender
            .join()
            .map_err(|_| Failure::new("a panic".to_owned()))?;
        wrote.context(|| "writing".into())?;
        read.context(|| "reading".into())
    })?;
    match received == sent {
        true => Ok(()),
        false => Err(Failure::new("other bytes have come back")),
    }
}

#[test]
fn two_hundred_connections_of_tcp_are_carried_both_ways_with_their_ends() {
    isolated(|site| {
        let backends = [9001, 9002].map(|port| Backend::new(port, Speech::Echo));
        let text = listen(80, "echo", "mode = \"tcp\"")
            + &pool("echo", "balance = \"least-connections\"", &[9001, 9002]);
        let _proxy = started(&written(&site, &text));
        on_threads(200, |client| tunnel(HTTP_V4, client, 100_000));
        let connections = backends.each_ref().map(Backend::connections);
        assert_eq!(connections.iter().sum::<usize>(), 200);
        assert!(
            connections.iter().all(|count| *count > 50),
            "{connections:?}"
        );
    });
}

#[test]
fn an_upgrade_carries_another_protocol() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Http);
        let text = listen(80, "web", "") + &pool("web", "", &[9001]);
        let _proxy = started(&written(&site, &text));
        on_threads(10, |client| {
            let stream = TcpStream::connect(HTTP_V4).context(|| "connecting".into())?;
            let copy = stream.try_clone().context(|| "dup".into())?;
            let mut connection = Connection::on(stream)?;
            connection.send(
                b"GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
            )?;
            let head = connection.read_head()?;
            assert_eq!((head.status, head.field("upgrade")), (101, Some("echo")));
            echoed(&copy, &content(300_000 + client, 7))
        });
    });
}

#[test]
fn the_proxy_protocol_names_clients_both_ways() {
    isolated(|site| {
        let backend = Backend::behind_header(9001, Speech::Http);
        let trusting = "proxy_protocol_from = [\"10.77.0.0/24\"]";
        let text = listen(80, "web", trusting)
            + &listen(81, "web", "")
            + &pool("web", "send_proxy = \"v1\"", &[9001]);
        let _proxy = started(&written(&site, &text));
        let mut connection = Connection::open(HTTP_V4).unwrap();
        // Version 2 comes in, version 1 goes out.
        let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
        header.extend([192, 0, 2, 7, 10, 77, 0, 2]);
        header.extend([4711u16.to_be_bytes(), 80u16.to_be_bytes()].concat());
        connection.send(&header).unwrap();
        exchange(&mut connection, "/100").unwrap();
        let heads = backend.heads();
        assert_eq!(heads[0], "PROXY TCP4 192.0.2.7 10.77.0.2 4711 80\r\n");
        assert!(
            heads[1].contains("\r\nX-Forwarded-For: 192.0.2.7\r\n"),
            "{heads:?}"
        );
        // Where no source is trusted, the connection itself is named, and a header is no request.
        let stream = TcpStream::connect(SocketAddr::new(HTTP_V4.ip(), 81)).unwrap();
        let own = stream.local_addr().unwrap().port();
        let mut connection = Connection::on(stream).unwrap();
        exchange(&mut connection, "/100").unwrap();
        assert_eq!(
            backend.heads()[2],
            format!("PROXY TCP4 {KERNEL} 10.77.0.2 {own} 81\r\n")
        );
        let mut connection = Connection::open(SocketAddr::new(HTTP_V4.ip(), 81)).unwrap();
        connection.send(&header).unwrap();
        assert_eq!(connection.read_head().unwrap().status, 400);
    });
}
