//! Ports of the kernel that are held for the stack, so that no program of the machine gets them,
//! and tools list them (`ss -l`). Their sockets receive nothing, and the kernel answers nothing on
//! their behalf, neither RST nor an ICMP error. They end with the process, however it ends.

use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use netdev::packet::receive_nothing;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A port of one address, held until dropped.
#[derive(Debug)]
pub struct HeldPort {
    _socket: OwnedFd,
}

/// Reason for not holding a port.
#[derive(Debug, PartialEq, Eq)]
pub enum HoldError {
    /// The kernel has it in use: by this program, if it is known.
    Taken(Option<Holder>),
    /// The kernel refuses.
    System(Errno),
}

/// A program that has a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// `/proc/PID/comm`.
    pub name: String,
}

impl HeldPort {
    /// Holds a port of an address that the kernel has in the thread's present network namespace. A
    /// port below 1024 needs `CAP_NET_BIND_SERVICE`.
    pub fn new(transport: Transport, address: IpAddr, port: u16) -> Result<Self, HoldError> {
        match hold(transport, address, port) {
            Ok(socket) => Ok(Self { _socket: socket }),
            Err(Errno::ADDRINUSE) => Err(HoldError::Taken(holder(transport, port))),
            Err(errno) => Err(HoldError::System(errno)),
        }
    }
}

fn hold(transport: Transport, address: IpAddr, port: u16) -> Result<OwnedFd, Errno> {
    let family = match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let kind = match transport {
        Transport::Tcp => SocketType::STREAM,
        Transport::Udp => SocketType::DGRAM,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, kind, flags, None)?;
    // Before it has a port, so that nothing ever gets in.
    receive_nothing(socket.as_fd())
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if transport == Transport::Tcp {
        // Beside connections of the kernel in TIME-WAIT, but not beside listeners.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &SocketAddr::new(address, port))?;
    if transport == Transport::Tcp {
        listen(&socket, 0)?;
    }
    Ok(socket)
}

/// Returns a program with this port, if this process may see it.
fn holder(transport: Transport, port: u16) -> Option<Holder> {
    let inodes: Vec<String> = match transport {
        Transport::Tcp => ["tcp", "tcp6"],
        Transport::Udp => ["udp", "udp6"],
    }
    .into_iter()
    .filter_map(|table| fs::read_to_string(format!("/proc/net/{table}")).ok())
    .flat_map(|table| inodes(&table, transport, port))
    .map(|inode| format!("socket:[{inode}]"))
    .collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find_map(|pid| {
        let mut descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        let is_it = descriptors.any(|descriptor| {
            let target = fs::read_link(descriptor.path());
            let target = target
                .ok()
                .and_then(|it| it.into_os_string().into_string().ok());
            target.is_some_and(|target| inodes.contains(&target))
        });
        let name = || fs::read_to_string(format!("/proc/{pid}/comm"));
        is_it.then(|| Holder {
            pid,
            name: name().unwrap_or_default().trim_end().to_owned(),
        })
    })
}

/// Returns the inodes of sockets with this local port in a table below `/proc/net` (`proc(5)`); of
/// TCP, those that listen.
fn inodes(table: &str, transport: Transport, port: u16) -> Vec<u64> {
    const LISTENS: &str = "0A";
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(local, 16) == Ok(port)
            && (transport == Transport::Udp || *fields.get(3)? == LISTENS);
        is_it.then(|| fields.get(9)?.parse().ok()).flatten()
    };
    table.lines().skip(1).filter_map(inode).collect()
}

impl fmt::Display for HoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken(Some(Holder { pid, name })) => {
                write!(f, "in use by {name} (process {pid})")
            }
            Self::Taken(None) => f.write_str("in use by another program"),
            Self::System(errno) => write!(f, "holding it failed: {errno}"),
        }
    }
}

impl std::error::Error for HoldError {}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};

    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn this_program() -> u32 {
        std::process::id()
    }

    #[test]
    fn a_port_in_use_is_refused_and_its_program_named() {
        let tcp = TcpListener::bind((LOOPBACK, 0)).unwrap();
        let udp = UdpSocket::bind((LOOPBACK, 0)).unwrap();
        for (transport, port) in [
            (Transport::Tcp, tcp.local_addr().unwrap().port()),
            (Transport::Udp, udp.local_addr().unwrap().port()),
        ] {
            let error = HeldPort::new(transport, LOOPBACK, port).unwrap_err();
            let HoldError::Taken(Some(holder)) = error else {
                panic!("{error}");
            };
            assert_eq!(holder.pid, this_program());
        }
    }

    #[test]
    fn a_held_port_is_nobody_elses_and_says_nothing() {
        let free = TcpListener::bind((LOOPBACK, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let held = HeldPort::new(Transport::Tcp, LOOPBACK, port).unwrap();
        assert!(TcpListener::bind((LOOPBACK, port)).is_err());
        let patience = std::time::Duration::from_millis(50);
        let refused = TcpStream::connect_timeout(&(LOOPBACK, port).into(), patience).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::TimedOut, "no RST");
        drop(held);
        TcpListener::bind((LOOPBACK, port)).unwrap();
    }

    #[test]
    fn lines_of_the_tables_are_read() {
        let rest = "00000000:00000000 00:00000000 00000000     0        0";
        let table = format!(
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n\
             0: 0100007F:01BB 00000000:0000 0A {rest} 17 1\n\
             1: 0100007F:01BB 0100007F:8888 01 {rest} 18 1\n"
        );
        assert_eq!(inodes(&table, Transport::Tcp, 443), [17]);
        assert_eq!(inodes(&table, Transport::Udp, 443), [17, 18]);
        assert_eq!(inodes(&table, Transport::Tcp, 80), []);
    }
}
