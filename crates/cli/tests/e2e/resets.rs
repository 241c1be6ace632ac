//! Ends that no client may miss: a response that cannot go on, and a server that ends.

use std::fs::{File, OpenOptions, Permissions, set_permissions};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Barrier;
use std::time::SystemTime;

use rustix::io::ioctl_fionread;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketType, connect, socket};
use rustix::process::Signal;
use testbed::http::Connection;
use testbed::namespace::{isolated, within};
use testbed::path::{Path as Emulated, UPLINK, addresses};
use testbed::site::KnownFile;
use testbed::splitway::Splitway;
use testbed::wait;

use crate::support::{FAMILIES, SOON, program, serve};

/// Clients of each kind.
const CLIENTS: usize = 4;

/// What happens to a file, and how.
type Change = (&'static str, fn(&Path));

/// A client that has read the head of a response, with a receive buffer of so many bytes, or that
/// of the kernel's choice.
fn downloading(server: SocketAddr, file: &KnownFile, buffer_bytes: Option<usize>) -> Connection {
    let family = if server.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket(family, SocketType::STREAM, None).unwrap();
    if let Some(bytes) = buffer_bytes {
        set_socket_recv_buffer_size(socket.as_fd(), bytes).unwrap();
    }
    connect(&socket, &server).unwrap();
    let mut connection = Connection::on(socket.into()).unwrap();
    connection.send_get(file.name()).unwrap();
    connection.read_file_head(file).unwrap();
    connection
}

/// Waits until the window is nearly used up, as that of a paused player.
fn await_full_window(client: &Connection, bytes: u64) {
    wait::until(SOON, "a window that is nearly used up", || {
        let unread = ioctl_fionread(client.stream()).unwrap();
        (unread >= bytes).then_some(())
    })
    .unwrap();
}

/// Reads on to the end, which must be a reset.
fn assert_reset(client: &Connection) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        match client.stream().read(&mut bytes) {
            Ok(0) => panic!("the end of the stream"),
            Ok(_) => {}
            Err(error) => return assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
}

/// RFC 5961 §3.2
#[test]
fn a_client_with_a_full_window_takes_the_reset_of_a_response_that_cannot_go_on() {
    isolated(|site| {
        let _splitway = serve(&site);
        let changes: [Change; 4] = [
            ("touched", |path| {
                let file = File::options().write(true).open(path).unwrap();
                file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
            }),
            ("truncated", |path| {
                let file = OpenOptions::new().write(true).open(path).unwrap();
                file.set_len(1000).unwrap();
            }),
            ("appended", |path| {
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                file.write_all(b"x").unwrap();
            }),
            ("chmod", |path| {
                set_permissions(path, Permissions::from_mode(0o600)).unwrap();
            }),
        ];
        for (name, change) in changes {
            let file = site.file(name, 30_000_000).unwrap();
            let mut clients = Vec::new();
            for server in FAMILIES {
                for (buffer_bytes, window_bytes) in [(Some(8192), 2000), (None, 30_000)] {
                    for _ in 0..CLIENTS {
                        let client = downloading(server, &file, buffer_bytes);
                        await_full_window(&client, window_bytes);
                        clients.push(client);
                    }
                }
            }
            change(&site.root().join(name));
            for client in &clients {
                assert_reset(client);
            }
        }
    });
}

#[test]
fn each_client_is_reset_before_the_server_ends() {
    isolated(|site| {
        let file = site.file("file", 50_000_000).unwrap();
        let mut splitway = serve(&site);
        let mut clients = Vec::new();
        for server in FAMILIES {
            for buffer_bytes in [Some(8192), None] {
                for _ in 0..CLIENTS {
                    clients.push(downloading(server, &file, buffer_bytes));
                }
            }
        }
        // These wait for nothing but the next request.
        let idle = FAMILIES.map(|server| Connection::open(server).unwrap());
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
        for client in clients.iter().chain(&idle) {
            assert_reset(client);
        }
    });
}

/// All share a link of 50 Mbit/s and 40 ms, so that much is on its way to each.
#[test]
fn each_client_beyond_a_slow_link_is_reset_before_the_server_ends() {
    isolated(|site| {
        let file = site.file("file", 50_000_000).unwrap();
        let path = Emulated::new().unwrap();
        let link = ["--delay", "20ms", "--rate", "50mbit", "--queue", "40ms"];
        let _link = path.emulate(program(), link).unwrap();
        let servers = addresses(3);
        let mut command = within(path.beyond(), program().to_str().unwrap());
        command.arg("serve").arg(site.root());
        command.args(["--no-dad", "--dev", UPLINK, "--addr"]);
        command.args([format!("{}/24", servers[0]), format!("{}/64", servers[1])]);
        let mut splitway = Splitway::start(&mut command).unwrap();

        let of = |buffer_bytes| {
            let clients = servers.iter().flat_map(|ip| [*ip; 2 * CLIENTS]);
            clients
                .map(|ip| downloading(SocketAddr::new(ip, 80), &file, buffer_bytes))
                .collect::<Vec<_>>()
        };
        // These are paused, the others read until they are reset.
        let paused = of(Some(8192));
        let reading = of(None);
        for client in &paused {
            await_full_window(client, 2000);
        }
        let started = Barrier::new(reading.len() + 1);
        std::thread::scope(|scope| {
            for client in &reading {
                let started = &started;
                scope.spawn(move || {
                    client.stream().read_exact(&mut [0; 100_000]).unwrap();
                    started.wait();
                    assert_reset(client);
                });
            }
            started.wait();
            assert!(splitway.end_with(Signal::TERM).unwrap().success());
        });
        for client in &paused {
            assert_reset(client);
        }
    });
}
