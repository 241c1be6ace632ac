//! Splices whose backends go away, and at which strangers aim.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use netdev::packet::PacketPort;
use netdev::{Offload, Port, Superpacket};
use rustix::net::sockopt::set_socket_linger;
use testbed::backend::{Backend, Speech};
use testbed::http::be_patient;
use testbed::namespace::isolated;
use testbed::site::Site;
use testbed::splitway::{HTTP_V4, LINK, Splitway};
use testbed::wait;
use wire::frame::TcpTemplate;
use wire::tcp::{Flags, Header};

use crate::proxy::{listen, pool, started, tunnel, written};
use crate::setup::macs;
use crate::spliced::{STEERED, counted, splicing};
use crate::stat::host_counted;
use crate::support::{Random, SOON, nft, on_threads};

const CLIENTS: usize = 10;

/// A backend that sends back so much of each connection, and then resets it.
fn resetting(port: u16, bytes: usize) -> TcpListener {
    let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
    let copy = listener.try_clone().unwrap();
    std::thread::spawn(move || {
        for stream in copy.incoming() {
            // It ends with the test.
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut buffer = vec![0; bytes];
                stream.read_exact(&mut buffer).unwrap();
                stream.write_all(&buffer).unwrap();
                set_socket_linger(&stream, Some(std::time::Duration::ZERO)).unwrap();
            });
        }
    });
    listener
}

/// The client hears of it, and what the backend has acknowledged has come back.
#[test]
fn a_backend_that_resets_in_mid_stream_resets_the_client() {
    const BYTES: usize = 1_000_000;
    isolated(|site| {
        let _backend = resetting(9001, BYTES);
        let proxy = splicing(&site, STEERED);
        on_threads(CLIENTS, |client| {
            let stream = TcpStream::connect(HTTP_V4).unwrap();
            be_patient(&stream)?;
            let sent = testbed::web::content(2 * BYTES, client as u64);
            let mut received = Vec::new();
            let ended = std::thread::scope(|scope| {
                scope.spawn(|| {
                    // It may be reset before all is written.
                    let _ = (&stream).write_all(&sent);
                });
                (&stream).read_to_end(&mut received)
            });
            assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(received == sent[..received.len()], "other bytes");
            Ok(())
        });
        let [joined, broken] = counted(proxy, ["splices_joined", "splices_broken"]);
        println!("{joined} joined, {broken} broken");
        assert!(joined >= CLIENTS as u64 / 2 && broken == joined);
    });
}

fn with_timeout(site: &Site, timeout: &str) -> Splitway {
    let text = format!("[proxy]\nsplice = true\ntunnel_timeout = \"{timeout}\"\n")
        + &listen(80, "echo", "mode = \"tcp\"")
        + &pool("echo", "", &[9001]);
    started(&written(site, &text))
}

/// Some connections that are spliced.
pub(crate) fn spliced(count: usize) -> Vec<TcpStream> {
    let mut streams: Vec<_> = (0..count)
        .map(|_| {
            let stream = TcpStream::connect(HTTP_V4).unwrap();
            be_patient(&stream).unwrap();
            stream
        })
        .collect();
    let mut buffer = vec![0; 50_000];
    wait::until(SOON, "splices", || {
        for stream in &mut streams {
            stream.write_all(&buffer).unwrap();
            stream.read_exact(&mut buffer).unwrap();
        }
        (host_counted("splices_joined") >= count as u64).then_some(())
    })
    .unwrap();
    streams
}

/// Nothing more comes from the backend, no RST either: the limit on idleness ends it, whether the
/// client says something or waits.
#[test]
fn a_backend_that_vanishes_ends_a_splice_by_its_limit() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Echo);
        let proxy = with_timeout(&site, "2s");
        let mut streams = spliced(CLIENTS);
        for script in [
            "add table inet gone",
            "add chain inet gone out { type filter hook output priority 0; }",
            "add chain inet gone in { type filter hook input priority 0; }",
            "add rule inet gone out tcp sport 9001 drop",
            "add rule inet gone in tcp dport 9001 drop",
        ] {
            nft(script);
        }
        let (waiting, saying) = streams.split_at_mut(CLIENTS / 2);
        for stream in &mut *saying {
            stream.write_all(b"are you there?").unwrap();
        }
        for stream in waiting.iter_mut().chain(saying) {
            let end = stream.read(&mut [0]).unwrap_err();
            assert_eq!(end.kind(), ErrorKind::ConnectionReset);
        }
        let names = ["splices_joined", "splices_broken", "splices_finished"];
        let all = CLIENTS as u64;
        assert_eq!(counted(proxy, names), [all, all, 0]);
    });
}

/// Tunnels that say nothing are kept as long as the limit says, and used again.
#[test]
fn a_splice_that_is_idle_for_less_than_its_limit_goes_on() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Echo);
        let proxy = with_timeout(&site, "20s");
        let mut streams = spliced(2);
        // Not a wait for something: the span without a frame.
        std::thread::sleep(std::time::Duration::from_secs(3));
        for stream in &mut streams {
            stream.write_all(b"still there").unwrap();
            let mut answer = [0; 11];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"still there");
        }
        drop(streams);
        let names = ["splices_finished", "splices_broken"];
        assert_eq!(counted(proxy, names), [2, 0]);
    });
}

/// A frame of a stranger, who knows the addresses and ports of a splice and no sequence number.
fn forged(random: &mut Random, template: &TcpTemplate) -> Vec<u8> {
    let mut number = || random.below(1 << 32) as u32;
    let (seq, ack) = (number(), number());
    let (flags, payload) = match random.below(5) {
        0 | 1 => (Flags::RST, &b""[..]),
        2 => (Flags::RST | Flags::ACK, &b""[..]),
        3 => (Flags::SYN, &b""[..]),
        _ => (Flags::ACK | Flags::PSH, &b"a stranger's"[..]),
    };
    let header = Header {
        seq,
        ack,
        flags,
        window: 1000,
        ..Header::default()
    };
    let mut frame = template.to_frame(&header, payload);
    if random.below(8) == 0 {
        // Not the last fragment of its packet.
        frame[20] = 0x20;
        frame[24..26].fill(0);
        let sum = wire::checksum::of(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

#[test]
fn frames_of_strangers_end_no_splice_and_put_no_byte_into_it() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Echo);
        let proxy = splicing(&site, STEERED);
        let streams = spliced(CLIENTS);
        let mut random = Random::seeded();
        let is_over = AtomicBool::new(false);
        let mut port = PacketPort::send_only(LINK).unwrap();
        let [own, stacks] = macs(&port);
        let clients: Vec<SocketAddr> = streams.iter().map(|it| it.local_addr().unwrap()).collect();
        let mut sent = 0;
        std::thread::scope(|scope| {
            let transfers = scope.spawn(|| {
                // Beside those that stay, others come and go.
                on_threads(CLIENTS, |client| tunnel(HTTP_V4, client, 2_000_000));
                on_threads(CLIENTS, |client| {
                    let mut stream = &streams[client];
                    let bytes = testbed::web::content(30_000, client as u64);
                    let mut answer = vec![0; bytes.len()];
                    for _ in 0..50 {
                        stream.write_all(&bytes).unwrap();
                        stream.read_exact(&mut answer).unwrap();
                        assert!(answer == bytes, "other bytes");
                    }
                    Ok(())
                });
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) && !transfers.is_finished() {
                let client = clients[random.below(CLIENTS as u64) as usize];
                let template = TcpTemplate::new(own, stacks, client, HTTP_V4);
                let frame = forged(&mut random, &template);
                let packet = Superpacket {
                    header: &frame,
                    payload: &[],
                    offload: Offload::None,
                };
                sent += u32::from(port.send(&packet).is_ok());
            }
            transfers.join().unwrap();
        });
        drop(streams);
        println!("{sent} forged frames");
        assert!(sent > 1_000, "{sent}");
        let names = ["splices_broken", "connections_broken", "fragments_dropped"];
        let [splices, connections, fragments] = counted(proxy, names);
        assert_eq!((splices, connections), (0, 0));
        assert!(fragments > 0);
    });
}
