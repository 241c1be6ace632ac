//! `--share`: the machine's own addresses, of which the kernel keeps all ports but Splitway's.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Pid, Signal};
use testbed::backend::{Backend, Speech};
use testbed::http::{Connection, be_patient};
use testbed::link;
use testbed::namespace::{Network, inside, isolated, within};
use testbed::process::{run, signal};
use testbed::procfs::children;
use testbed::routed::{Routed, UPLINK};
use testbed::site::Site;
use testbed::splitway::Splitway;
use testbed::{Context, Result, wait};

use crate::http3::certificate;
use crate::http3::client::Client;
use crate::links::{OVERHEAD_BYTES, largest_segment_seen};
use crate::proxy::exchange;
use crate::support::{Random, SOON, ctl, kill_nics_amid, on_threads, program, sh};

/// The machine's interface.
const DEVICE: &str = "eth0";

/// Its addresses.
const OWN: [&str; 2] = ["10.93.0.2", "fd93::2"];

/// A program of the machine listens here.
const ECHO_PORT: u16 = 22;

/// A machine with one address of each family, beside the test's own namespace.
pub(crate) struct Machine(Network);

impl Machine {
    pub(crate) fn new() -> Machine {
        let machine = Machine(Network::new().unwrap());
        let pid = machine.pid().as_raw_nonzero();
        sh(&format!(
            "ip link add client type veth peer name {DEVICE} netns {pid}"
        ));
        machine.ip("link set lo up");
        machine.ip(&format!("link set {DEVICE} up"));
        machine.ip(&format!("address add 10.93.0.2/24 dev {DEVICE}"));
        machine.ip(&format!("address add fd93::2/64 dev {DEVICE} nodad"));
        for line in [
            "link set client up",
            "address add 10.93.0.1/24 dev client",
            "address add fd93::1/64 dev client nodad",
        ] {
            sh(&format!("ip {line}"));
        }
        let addresses = ["10.93.0.1", "fd93::1"].map(|it| it.parse().unwrap());
        link::await_ready(&["client"], &addresses).unwrap();
        machine
    }

    pub(crate) fn pid(&self) -> Pid {
        self.0.holder()
    }

    pub(crate) fn ip(&self, line: &str) -> String {
        self.run(&format!("ip {line}"))
    }

    /// Runs a line of words there; its output.
    pub(crate) fn run(&self, line: &str) -> String {
        run(&mut within(self.pid(), line)).unwrap()
    }

    /// `splitway serve` there.
    fn command(&self, site: &Site, options: &[&str]) -> Command {
        serve_at(self.pid(), DEVICE, site, options)
    }

    pub(crate) fn serve(&self, site: &Site, options: &[&str]) -> Splitway {
        Splitway::start(&mut self.command(site, options)).unwrap()
    }
}

fn serve_at(process: Pid, device: &str, site: &Site, options: &[&str]) -> Command {
    let mut command = within(process, program().to_str().unwrap());
    command.arg("serve").arg(site.root());
    command.args(["--dev", device, "--share"]).args(options);
    command
}

/// The server's address in each family.
pub(crate) fn servers(port: u16) -> [SocketAddr; 2] {
    OWN.map(|own| SocketAddr::new(own.parse().unwrap(), port))
}

/// Sends random bytes to a service of the kernel, and compares its echo.
pub(crate) fn echo(stream: &mut TcpStream, bytes: usize, random: &mut Random) -> Result<()> {
    let sent: Vec<u8> = (0..bytes).map(|_| random.below(256) as u8).collect();
    let mut received = vec![0; bytes];
    stream
        .write_all(&sent)
        .and_then(|()| stream.read_exact(&mut received))
        .context(|| "echo of the kernel's service".into())?;
    assert!(received == sent, "other bytes");
    Ok(())
}

fn echo_once(server: SocketAddr, seed: u64) -> Result<()> {
    let mut stream = TcpStream::connect(server).context(|| format!("connecting to {server}"))?;
    be_patient(&stream)?;
    echo(&mut stream, 10_000, &mut Random::of(seed))
}

fn ping(address: &str) {
    sh(&format!("ping -n -c 1 -W 5 {address}"));
}

/// A file, with all of its bytes, from each family.
fn download(servers: &[SocketAddr], file: &testbed::site::KnownFile) {
    for server in servers {
        Connection::open(*server).unwrap().get(file).unwrap();
    }
}

#[test]
fn the_kernel_keeps_its_services_while_files_are_served_and_nic_processes_die() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 6;
    isolated(|site| {
        let file = site.file("file", 2_000_000).unwrap();
        let machine = Machine::new();
        let _echo = Backend::inside(machine.pid(), ECHO_PORT, Speech::Echo).unwrap();
        let splitway = machine.serve(&site, &[]);
        let done = AtomicUsize::new(0);
        kill_nics_amid(&splitway, 2, (&done, CLIENTS * ROUNDS), || {
            on_threads(CLIENTS, |client| {
                let (http, kernel) = (servers(80)[client % 2], servers(ECHO_PORT)[client % 2]);
                let mut stream = TcpStream::connect(kernel).context(|| "echo".into())?;
                be_patient(&stream)?;
                let mut random = Random::of(client as u64 + 1);
                let mut connection = Connection::open(http)?;
                for round in 0..ROUNDS {
                    connection.get(&file)?;
                    echo(&mut stream, 50_000, &mut random)?;
                    echo_once(kernel, (client * ROUNDS + round) as u64 + 100)?;
                    ping(OWN[client % 2]);
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
        });
    });
}

#[test]
fn http3_is_served_on_the_machines_address() {
    isolated(|site| {
        let file = site.file("file", 3_000_000).unwrap();
        let machine = Machine::new();
        let certificate = certificate(&site);
        let options = certificate.options();
        let mut all = vec!["--tls-listen", "443", "--http3"];
        all.extend(options.iter().map(String::as_str));
        let splitway = machine.serve(&site, &all);
        for (seed, server) in (1..).zip(servers(443)) {
            let mut client = Client::connect(server, &certificate, seed);
            client.download(&file);
        }
        // The machine itself, over loopback.
        for (seed, server) in (11..).zip(servers(443)) {
            let at_home = || {
                let mut client = Client::connect(server, &certificate, seed);
                client.download(&file);
                Ok(())
            };
            inside(machine.pid(), at_home).unwrap();
        }
        drop(splitway);
    });
}

#[test]
fn the_machine_reaches_the_service_on_its_own_address() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let machine = Machine::new();
        let _echo = Backend::inside(machine.pid(), ECHO_PORT, Speech::Echo).unwrap();
        let splitway = machine.serve(&site, &[]);
        let at_home = || {
            for server in servers(80) {
                Connection::open(server)?.get(&file)?;
            }
            for server in servers(ECHO_PORT) {
                echo_once(server, 7)?;
            }
            Ok(())
        };
        inside(machine.pid(), at_home).unwrap();
        // As far as the link's MTU, and as far as loopback's.
        machine.ip("link set lo mtu 2000");
        inside(machine.pid(), at_home).unwrap();
        drop(splitway);
    });
}

#[test]
fn nothing_is_left_when_every_process_is_killed() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let machine = Machine::new();
        let settings = || {
            let all = machine.run("sysctl -a");
            let lasting = |line: &&str| {
                let (name, _) = line.split_once(' ').unwrap_or((line, ""));
                name.starts_with("net.ipv4.conf.")
                    || name.starts_with("net.ipv6.conf.")
                    || name.starts_with("net.ipv4.ip_")
            };
            all.lines()
                .filter(lasting)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let state = || {
            let links = machine.ip("-oneline address");
            (
                links,
                machine.run("nft list ruleset"),
                machine.run("ss -Hlnt"),
                settings(),
            )
        };
        let before = state();
        assert!(before.3.len() > 20, "{:?}", before.3);
        let mut splitway = machine.serve(&site, &[]);
        download(&servers(80), &file);
        // Tools list its ports.
        assert!(machine.run("ss -Hlnt").contains("10.93.0.2:80"));
        let mut all = children(splitway.supervisor()).unwrap();
        all.insert(0, splitway.supervisor());
        for process in &all {
            // Those that are bound to another are gone by then.
            let _ = signal(*process, Signal::KILL);
        }
        splitway.wait().unwrap();
        wait::until(SOON, "the state before", || {
            (state() == before).then_some(())
        })
        .unwrap();
        // The kernel's again.
        let _echo = Backend::inside(machine.pid(), 80, Speech::Echo).unwrap();
        for server in servers(80) {
            echo_once(server, 3).unwrap();
        }
    });
}

/// Its whole output; it must fail.
fn refusal(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    said
}

#[test]
fn what_cannot_be_shared_is_refused_and_says_why() {
    isolated(|site| {
        let machine = Machine::new();
        let taken = inside(machine.pid(), || {
            Ok(TcpListener::bind(servers(80)[0]).unwrap())
        });
        let said = refusal(&mut machine.command(&site, &[]));
        let comm = fs::read_to_string("/proc/self/comm").unwrap();
        let holder = format!("in use by {} (process {})", comm.trim(), std::process::id());
        let expected = format!("TCP port 80 of 10.93.0.2: {holder}");
        assert!(said.contains(&expected), "{expected}: {said}");
        drop(taken);

        let said = refusal(&mut machine.command(&site, &["--sockets", "/run/sockets"]));
        assert!(said.contains("programs open ports"), "{said}");
        machine.ip("address flush dev eth0");
        let said = refusal(&mut machine.command(&site, &[]));
        assert!(said.contains("the kernel has no address on eth0"), "{said}");
    });
}

#[test]
fn addresses_are_followed_and_connections_of_those_that_go_end() {
    isolated(|site| {
        let file = site.file("file", 50_000_000).unwrap();
        let machine = Machine::new();
        let mut splitway = machine.serve(&site, &[]);
        for line in [
            "address add 10.94.0.1/24 dev client",
            "address add fd94::1/64 dev client nodad",
        ] {
            sh(&format!("ip {line}"));
        }
        let new: [SocketAddr; 2] = ["10.94.0.2:80", "[fd94::2]:80"].map(|it| it.parse().unwrap());
        machine.ip("address add 10.94.0.2/24 dev eth0");
        machine.ip("address add fd94::2/64 dev eth0 nodad");
        for address in ["10.94.0.2", "fd94::2"] {
            let line = |line: &str| line.contains("an address was added") && line.contains(address);
            splitway.line(line).unwrap();
        }
        wait::until(SOON, "service on the new addresses", || {
            new.iter()
                .all(|server| Connection::open(*server).is_ok_and(|mut it| it.get(&file).is_ok()))
                .then_some(())
        })
        .unwrap();
        // It stays while another goes.
        let mut stays = Connection::open(servers(80)[0]).unwrap();
        stays.send_get(file.name()).unwrap();
        let mut going: Vec<Connection> = Vec::new();
        for server in new {
            let mut connection = Connection::open(server).unwrap();
            connection.send_get(file.name()).unwrap();
            connection.read_file_head(&file).unwrap();
            going.push(connection);
        }
        machine.ip("address del 10.94.0.2/24 dev eth0");
        machine.ip("address del fd94::2/64 dev eth0");
        for mut connection in going {
            let mut rest = Vec::new();
            let error = connection.stream_mut().read_to_end(&mut rest).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        stays.read_file(&file).unwrap();
        download(&servers(80), &file);
    });
}

/// The kernel's MTU for the path, its gateway outside of every prefix, and what routers say.
#[test]
fn routes_are_the_kernels_and_narrow_paths_are_found() {
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
        for line in [
            "link set lo up",
            "address add 10.92.0.2/32 dev uplink",
            "address add fd92::2/128 dev uplink nodad",
            "route add 198.51.100.1 dev uplink scope link",
            "route add default via 198.51.100.1 dev uplink",
            "route add default via fe80::92:254 dev uplink",
        ] {
            run(&mut within(routed.beyond(), &format!("ip {line}"))).unwrap();
        }
        let _echo = Backend::inside(routed.beyond(), ECHO_PORT, Speech::Echo).unwrap();
        let mut command = serve_at(routed.beyond(), UPLINK, &site, &[]);
        let splitway = Splitway::start(&mut command).unwrap();
        let server = |port: u16| {
            ["10.92.0.2", "fd92::2"]
                .map(|own| SocketAddr::new(own.parse::<IpAddr>().unwrap(), port))
        };
        for mtu in [1500, 1300] {
            routed.narrow(mtu).unwrap();
            for family in [0, 1] {
                let mut connection = Connection::open(server(80)[family]).unwrap();
                connection.get(&file).unwrap();
                assert_eq!(largest_segment_seen() + OVERHEAD_BYTES[family], mtu);
                echo_once(server(ECHO_PORT)[family], 5).unwrap();
            }
        }
        drop(splitway);
    });
}

#[test]
fn bridges_and_macvlans_have_addresses_to_share() {
    isolated(|site| {
        let file = site.file("file", 1_000_000).unwrap();
        let machine = Machine::new();
        machine.ip("address flush dev eth0");
        for (device, kind) in [("br0", "bridge"), ("mv0", "macvlan")] {
            match kind {
                "bridge" => {
                    machine.ip("link add br0 type bridge");
                    machine.ip("link set eth0 master br0");
                }
                _ => drop(machine.ip("link add mv0 link eth0 type macvlan mode bridge")),
            }
            machine.ip(&format!("link set {device} up"));
            machine.ip(&format!("address add 10.93.0.2/24 dev {device}"));
            machine.ip(&format!("address add fd93::2/64 dev {device} nodad"));
            let echo = Backend::inside(machine.pid(), ECHO_PORT, Speech::Echo).unwrap();
            let mut command = serve_at(machine.pid(), device, &site, &[]);
            let splitway = Splitway::start(&mut command).unwrap();
            for (http, kernel) in servers(80).into_iter().zip(servers(ECHO_PORT)) {
                wait::until(SOON, "a way through the device", || {
                    TcpStream::connect(kernel).ok()
                })
                .unwrap();
                Connection::open(http).unwrap().get(&file).unwrap();
                echo_once(kernel, 9).unwrap();
            }
            drop(splitway);
            drop(echo);
            machine.ip(&format!("link delete {device}"));
        }
    });
}

/// Backends are programs of the same machine, on its address and on loopback, and of another one.
#[test]
fn a_proxy_reaches_backends_of_its_own_machine() {
    isolated(|site| {
        let machine = Machine::new();
        let at_home = Backend::inside(machine.pid(), 8080, Speech::Http).unwrap();
        let afar = Backend::new(8081, Speech::Http);
        let listen =
            |port: u16, pool: &str| format!("[[proxy.listen]]\nport = {port}\npool = \"{pool}\"\n");
        let pool = |name: &str, address: &str| {
            format!(
                "[[proxy.pool]]\nname = \"{name}\"\n\
                 [[proxy.pool.backend]]\naddress = \"{address}\"\n"
            )
        };
        let pools = [
            (80, "own", "10.93.0.2:8080"),
            (81, "own6", "[fd93::2]:8080"),
            (82, "loopback", "127.0.0.1:8080"),
            (83, "loopback6", "[::1]:8080"),
            (84, "afar", "10.93.0.1:8081"),
            (85, "afar6", "[fd93::1]:8081"),
        ];
        let mut text = "network = { interface = \"eth0\", share = true }\n".to_owned();
        text.extend(pools.iter().map(|(port, name, _)| listen(*port, name)));
        text.extend(pools.iter().map(|(_, name, address)| pool(name, address)));
        let path = site.outside().join("proxy.toml");
        fs::write(&path, text).unwrap();
        let command = || {
            let mut command = within(machine.pid(), program().to_str().unwrap());
            command.args(["proxy", "--config"]).arg(&path);
            command
        };
        let splitway = Splitway::start(&mut command()).unwrap();
        for (port, _, _) in pools {
            for server in servers(port) {
                let mut connection = Connection::open(server).unwrap();
                for target in ["/10", "/3000000", "/chunked/70000"] {
                    exchange(&mut connection, target).unwrap();
                }
            }
        }
        assert!(at_home.requests() >= 24 && afar.requests() >= 12);
        let in_machine = || {
            for server in servers(80) {
                exchange(&mut Connection::open(server)?, "/500000")?;
            }
            Ok(())
        };
        inside(machine.pid(), in_machine).unwrap();
        drop(splitway);

        // The kernel must not choose the ports of these connections.
        let mut text = fs::read_to_string(&path).unwrap();
        text = text.replace(
            "share = true",
            "share = true, local_ports = \"60000-61000\"",
        );
        fs::write(&path, text).unwrap();
        let said = refusal(&mut command());
        assert!(said.contains("the kernel gives port 60000"), "{said}");
        assert!(
            said.contains("ip_local_reserved_ports=60000-61000"),
            "{said}"
        );
    });
}

#[test]
fn a_reload_keeps_what_is_shared() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let machine = Machine::new();
        let path = site.outside().join("splitway.toml");
        let root = site.root().to_str().unwrap();
        let text = format!(
            "network = {{ interface = \"eth0\", share = true }}\nnic = {{ root = \"{root}\" }}\n"
        );
        fs::write(&path, text).unwrap();
        let mut command = within(machine.pid(), program().to_str().unwrap());
        command.args(["serve", "--config"]).arg(&path);
        let splitway = Splitway::start(&mut command).unwrap();
        download(&servers(80), &file);
        let (is_done, said) = ctl("reload", None);
        assert!(is_done, "{said}");
        download(&servers(80), &file);
        drop(splitway);
    });
}
