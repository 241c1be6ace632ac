//! What a running server sends and receives, in a file.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use testbed::http::Connection;
use testbed::namespace::isolated;
use testbed::process::{Process, signal};
use testbed::splitway::{HTTP_V4, HTTP_V6, STACK_V4};
use wire::frame::{Received, parse};
use wire::tcp::Flags;

use crate::support::{SOON, program, serve};

/// What a file says of an interface.
#[derive(Debug, Default)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) packets: Vec<Packet>,
    pub(crate) dropped: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Packet {
    time_ns: u64,
    pub(crate) len: usize,
    pub(crate) bytes: Vec<u8>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn half(bytes: &[u8], at: usize) -> usize {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()).into()
}

/// The value of an option, of those in `bytes`.
fn option(mut bytes: &[u8], code: usize) -> Option<&[u8]> {
    while bytes.len() >= 4 && half(bytes, 0) != 0 {
        let len = half(bytes, 2);
        if half(bytes, 0) == code {
            return Some(&bytes[4..4 + len]);
        }
        bytes = &bytes[4 + len.next_multiple_of(4)..];
    }
    None
}

/// Reads a file as draft-ietf-opsawg-pcapng has it.
pub(crate) fn read(path: &Path) -> Vec<Interface> {
    let file = fs::read(path).unwrap();
    let mut rest = &file[..];
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut last_ns = 0;
    assert_eq!(word(rest, 0), 0x0a0d_0d0a, "a section header");
    while !rest.is_empty() {
        let (block_type, len) = (word(rest, 0), word(rest, 4) as usize);
        let body = &rest[8..len - 4];
        assert_eq!(word(rest, len - 4) as usize, len, "at both ends");
        rest = &rest[len..];
        match block_type {
            1 => {
                assert_eq!(half(body, 0), 1, "Ethernet");
                assert_eq!(option(&body[8..], 9), Some(&[9][..]), "nanoseconds");
                let name = option(&body[8..], 2).unwrap();
                interfaces.push(Interface {
                    name: String::from_utf8(name.to_vec()).unwrap(),
                    ..Interface::default()
                });
            }
            6 => {
                let time_ns = u64::from(word(body, 4)) << 32 | u64::from(word(body, 8));
                assert!(time_ns >= last_ns, "in the order of time");
                last_ns = time_ns;
                let captured = word(body, 12) as usize;
                interfaces[word(body, 0) as usize].packets.push(Packet {
                    time_ns,
                    len: word(body, 16) as usize,
                    bytes: body[20..20 + captured].to_vec(),
                });
            }
            5 => {
                let dropped = option(&body[12..], 5).unwrap();
                interfaces[word(body, 0) as usize].dropped =
                    u64::from_le_bytes(dropped.try_into().unwrap());
            }
            _ => {}
        }
    }
    interfaces
}

/// A capture that has begun.
pub(crate) struct Capture {
    process: Process,
    said: BufReader<std::process::ChildStderr>,
}

impl Capture {
    pub(crate) fn begin(arguments: &[&str], file: &Path) -> Capture {
        let mut command = Command::new(program());
        command.arg("capture").args(arguments).arg("-w").arg(file);
        let mut process = Process::spawn(command.stderr(Stdio::piped())).unwrap();
        let mut said = BufReader::new(process.child().stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.contains("capturing on"), "{line}");
        Capture { process, said }
    }

    /// Ends it; what it says last.
    pub(crate) fn end(mut self) -> String {
        signal(self.process.pid(), Signal::INT).unwrap();
        self.await_end()
    }

    fn await_end(&mut self) -> String {
        let status = self.process.wait(SOON).unwrap();
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        assert!(status.success(), "{said}");
        said
    }
}

/// The TCP segments of packets: from where, to where, sequence number, flags, text.
fn segments(
    packets: &[Packet],
) -> impl Iterator<Item = (SocketAddr, SocketAddr, u32, Flags, Vec<u8>)> + '_ {
    packets.iter().filter_map(|packet| {
        // Checksums are not complete yet.
        let Ok(Received::Tcp(tcp)) = parse(&packet.bytes, true) else {
            return None;
        };
        let header = &tcp.segment.header;
        let source = SocketAddr::new(tcp.source, header.source_port);
        let destination = SocketAddr::new(tcp.destination, header.destination_port);
        let text = tcp.segment.payload.to_vec();
        Some((source, destination, header.seq, header.flags, text))
    })
}

#[test]
fn a_captured_download_is_the_file_and_each_packet_has_its_sender() {
    isolated(|site| {
        // As many superpackets as there is memory for, so that none is missing though the reader
        // pauses.
        let file = site.file("film.mp4", 2_000_000).unwrap();
        let _splitway = serve(&site);
        for server in [HTTP_V4, HTTP_V6] {
            let path = site.outside().join("server.pcapng");
            let capture = Capture::begin(&["--snaplen", "300000"], &path);
            let mut connection = Connection::open(server).unwrap();
            let client = connection.stream().local_addr().unwrap();
            connection.get(&file).unwrap();
            let said = capture.end();
            assert!(said.contains("none is missing"), "{said}");

            let interfaces = read(&path);
            let names: Vec<&str> = interfaces.iter().map(|it| &it.name[..]).collect();
            assert_eq!(names, ["received", "host stack sends", "NIC stack sends"]);
            let [received, host, nic] = &interfaces[..] else {
                panic!("three")
            };
            assert!(interfaces.iter().all(|it| it.dropped == 0));
            // The client's side of it: a handshake, a request, acknowledgments.
            let request = segments(&received.packets)
                .find(|segment| !segment.4.is_empty())
                .expect("a request");
            assert_eq!((request.0, request.1), (client, server));
            assert!(request.4.starts_with(b"GET /film.mp4 "));
            assert!(segments(&received.packets).all(|segment| segment.1.ip() == server.ip()));
            // The host stack answers the handshake, and has no byte of the file; the NIC stack no
            // handshake.
            let syn_ack = segments(&host.packets).find(|segment| segment.3.contains(Flags::SYN));
            let syn_ack = syn_ack.expect("a SYN,ACK");
            assert_eq!((syn_ack.0, syn_ack.1), (server, client));
            assert!(segments(&nic.packets).all(|segment| !segment.3.contains(Flags::SYN)));
            assert!(
                nic.packets.iter().any(|packet| packet.len > 20_000),
                "superpackets"
            );
            let head_bytes: usize = segments(&host.packets).map(|segment| segment.4.len()).sum();
            assert!(head_bytes < 1000, "{head_bytes} bytes from the host stack");

            // All that was sent, put in order, is the response.
            let mut stream: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
            for packets in [&host.packets, &nic.packets] {
                for (_, to, seq, flags, text) in segments(packets) {
                    if to == client && !text.is_empty() && !flags.contains(Flags::SYN) {
                        let offset = seq.wrapping_sub(syn_ack.2.wrapping_add(1));
                        let known = stream.entry(offset).or_default();
                        if known.len() < text.len() {
                            *known = text;
                        }
                    }
                }
            }
            let mut response: Vec<u8> = Vec::new();
            for (offset, text) in stream {
                let offset = offset as usize;
                assert!(offset <= response.len(), "a gap before {offset}");
                let known = (response.len() - offset).min(text.len());
                response.extend_from_slice(&text[known..]);
            }
            let head = response
                .windows(4)
                .position(|four| four == b"\r\n\r\n")
                .expect("a head")
                + 4;
            assert_eq!((response.len() - head) as u64, file.size());
            file.check(0, &response[head..]).unwrap();

            // By the same clock, the request came before the first byte of the answer.
            let first = |packets: &[Packet], from: SocketAddr| {
                let with_text = packets.iter().find(|packet| {
                    let packet = [Packet::clone(packet)];
                    segments(&packet).any(|it| it.0 == from && !it.4.is_empty())
                });
                with_text.expect("some text").time_ns
            };
            assert!(first(&received.packets, client) < first(&nic.packets, server));
        }
    });
}

#[test]
fn headers_of_what_is_wanted_are_captured_and_no_more() {
    isolated(|site| {
        let file = site.file("file", 500_000).unwrap();
        let _splitway = serve(&site);
        let path = site.outside().join("some.pcapng");
        let host = STACK_V4.to_string();
        let arguments = ["--host", &host, "--port", "80", "--count", "10"];
        let mut capture = Capture::begin(&arguments, &path);
        for server in [HTTP_V6, HTTP_V4] {
            Connection::open(server).unwrap().get(&file).unwrap();
        }
        let said = capture.await_end();
        assert!(said.contains("10 packets ("), "{said}");
        let packets: Vec<Packet> = read(&path).into_iter().flat_map(|it| it.packets).collect();
        assert_eq!(packets.len(), 10);
        assert!(packets.iter().all(|packet| packet.bytes.len() <= 114));
        assert!(packets.iter().any(|packet| packet.len > packet.bytes.len()));
        for packet in &packets {
            assert_eq!(packet.bytes[12..14], [8, 0], "IPv4");
        }
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    });
}

#[test]
fn a_capture_ends_with_its_server_and_keeps_no_interface_alive() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let splitway = serve(&site);
        let path = site.outside().join("last.pcapng");
        let mut capture = Capture::begin(&[], &path);
        Connection::open(HTTP_V4).unwrap().get(&file).unwrap();
        signal(splitway.supervisor(), Signal::KILL).unwrap();
        let said = capture.await_end();
        assert!(said.contains("the server has ended"), "{said}");
        assert!(read(&path).iter().any(|it| !it.packets.is_empty()));
        testbed::wait::until(SOON, "the interface is gone", || {
            let devices = fs::read_to_string("/proc/self/net/dev").unwrap();
            (!devices.contains("splitway0")).then_some(())
        })
        .unwrap();
    });
}
