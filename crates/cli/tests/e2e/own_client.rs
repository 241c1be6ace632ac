//! A client that stands on our TCP, for the kernel as server: `splitway` itself opens no
//! connections.
//!
//! It drives [`tcp::Connection`] over a packet port, as the host stack does, without a NIC stack:
//! all that it sends is a name.

use std::fs::File;
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use netdev::packet::PacketPort;
use netdev::{Offload, Port, SendError, Superpacket};
use nix::sched::{CloneFlags, setns};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;
use tcp::{CloseReason, Config, Connection, ConnectionEvent, Instant, Limits, Piece, Transmit};
use testbed::site::KnownFile;
use testbed::{Context, Failure, Result};
use wire::frame::{HEADER_BYTES_MAX, HeaderMut, Received, TcpTemplate, parse};

/// How long nothing may happen before that is a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// Frames taken before connections have their turn.
const BUDGET: usize = 256;

const LIMITS: Limits = Limits {
    bytes_max: 1400,
    pieces_max: 4,
    real_bytes_max: 1400,
    direct_bytes_max: 0,
};

/// The client.
pub(crate) struct OwnClient {
    port: PacketPort,
    address: Ipv4Addr,
    epoch: std::time::Instant,
    /// Of the next connection: none has one that an earlier had.
    local_port: u16,
}

/// A download.
struct Flow<'a> {
    tcp: Connection,
    template: TcpTemplate,
    file: &'a KnownFile,
    /// Bytes that have come, and were right.
    offset: u64,
    ended: Option<CloseReason>,
}

impl OwnClient {
    /// A client on a device in the network namespace of a process, with an address of its own.
    pub(crate) fn open(namespace: Pid, device: &str, address: Ipv4Addr) -> Result<OwnClient> {
        let path = format!("/proc/{}/ns/net", namespace.as_raw_nonzero());
        // A thread of its own, for it stays in the namespace that it enters.
        let port = std::thread::scope(|scope| {
            let opened = scope.spawn(|| {
                let namespace = File::open(&path).context(|| path.clone())?;
                setns(namespace, CloneFlags::CLONE_NEWNET).context(|| path.clone())?;
                PacketPort::open(device, &[IpAddr::V4(address)]).context(|| "a port".into())
            });
            opened.join().expect("no panic")
        })?;
        Ok(OwnClient {
            port,
            address,
            epoch: std::time::Instant::now(),
            local_port: 10_000,
        })
    }

    /// Its link address.
    pub(crate) fn mac(&self) -> [u8; 6] {
        self.port.mac()
    }

    fn now(&self) -> Instant {
        Instant::from_us(self.epoch.elapsed().as_micros() as u64)
    }

    /// Asks for each of these files on a connection of its own, all at once, and compares every
    /// byte.
    pub(crate) fn download(
        &mut self,
        server: SocketAddr,
        server_mac: [u8; 6],
        files: &[KnownFile],
    ) -> Result<()> {
        let config = Config::default();
        let first_port = self.local_port;
        let mut flows = Vec::with_capacity(files.len());
        for file in files {
            let isn = u32::from(self.local_port) << 16;
            let now = self.now();
            let mut tcp = Connection::connect(&config, self.local_port, server.port(), isn, 0, now);
            let name = format!("{}\n", file.name());
            assert_eq!(tcp.write(name.as_bytes()), name.len());
            let local = SocketAddr::new(self.address.into(), self.local_port);
            flows.push(Flow {
                tcp,
                template: TcpTemplate::new(self.port.mac(), server_mac, local, server),
                file,
                offset: 0,
                ended: None,
            });
            self.local_port += 1;
        }
        let mut last_news = std::time::Instant::now();
        while flows.iter().any(|flow| flow.ended.is_none()) {
            let now = self.now();
            let received = self.port.receive(BUDGET, &mut |frame| {
                let Ok(Received::Tcp(packet)) = parse(frame.bytes, frame.checksum_valid) else {
                    return;
                };
                let port = packet.segment.header.destination_port;
                let index = usize::from(port.wrapping_sub(first_port));
                if let Some(flow) = flows.get_mut(index) {
                    flow.tcp.on_segment(now, &packet.segment);
                }
            });
            let received = received.context(|| "receiving".into())?;
            let mut next = None::<Instant>;
            for flow in &mut flows {
                flow.turn(now, &mut self.port)?;
                next = next.into_iter().chain(flow.tcp.next_timeout()).min();
            }
            if received > 0 {
                last_news = std::time::Instant::now();
                continue;
            }
            if last_news.elapsed() > PATIENCE {
                return Err(Failure::new(format!(
                    "nothing has come for {PATIENCE:?}; {} of {} files are there",
                    flows
                        .iter()
                        .filter(|flow| flow.offset == flow.file.size())
                        .count(),
                    flows.len()
                )));
            }
            self.sleep(next)?;
        }
        // Connections in TIME-WAIT answer no more: the kernel, which closed first or at the same
        // time, copes.
        Ok(())
    }

    /// Until a frame comes or it is time.
    fn sleep(&self, until: Option<Instant>) -> Result<()> {
        let now_us = self.now().as_us();
        let left_us = until.map_or(100_000, |until| until.as_us().saturating_sub(now_us));
        let timeout = Timespec {
            tv_sec: (left_us / 1_000_000) as i64,
            tv_nsec: (left_us % 1_000_000 * 1000) as i64,
        };
        let descriptors = self.port.receive_fds();
        let mut fds: Vec<_> = descriptors
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        poll(&mut fds, Some(&timeout))
            .context(|| "poll".into())
            .map(drop)
    }
}

impl Flow<'_> {
    /// Timers, what has come, what is to go.
    fn turn(&mut self, now: Instant, port: &mut PacketPort) -> Result<()> {
        if self
            .tcp
            .next_timeout()
            .is_some_and(|timeout| timeout <= now)
        {
            self.tcp.on_timeout(now);
        }
        while let Some(event) = self.tcp.poll_event() {
            match event {
                ConnectionEvent::Readable => self.read()?,
                ConnectionEvent::PeerFinished => {
                    self.read()?;
                    if self.offset != self.file.size() {
                        return Err(Failure::new(format!(
                            "{}: ended after {} bytes",
                            self.file.name(),
                            self.offset
                        )));
                    }
                    self.tcp.shutdown();
                }
                ConnectionEvent::Closed { reason } => self.ended = Some(reason),
                _ => {}
            }
        }
        if !matches!(self.ended, None | Some(CloseReason::Finished)) {
            return Err(Failure::new(format!(
                "{}: {:?} after {} bytes",
                self.file.name(),
                self.ended,
                self.offset
            )));
        }
        while let Some(transmit) = self.tcp.poll_transmit(now, &LIMITS) {
            self.send(&transmit, port)?;
            if let Some(transmission) = transmit.transmission {
                self.tcp.on_departed(transmission, now);
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let mut buffer = [0; 16 << 10];
        loop {
            let len = self.tcp.read(&mut buffer);
            if len == 0 {
                return Ok(());
            }
            self.file
                .check(self.offset, &buffer[..len])
                .map_err(|mismatch| {
                    Failure::new(format!(
                        "{}: wrong byte at {}",
                        self.file.name(),
                        mismatch.offset
                    ))
                })?;
            self.offset += len as u64;
        }
    }

    fn send(&mut self, transmit: &Transmit, port: &mut PacketPort) -> Result<()> {
        let mut header = [0; HEADER_BYTES_MAX];
        let len = self.template.write(&transmit.header, &mut header);
        let header = &mut header[..len.expect("one family, and room enough")];
        let payload: Vec<IoSlice<'_>> = self
            .tcp
            .pieces(transmit.range.clone())
            .filter_map(|piece| match piece {
                Piece::Real(bytes) => Some(IoSlice::new(bytes)),
                Piece::Virtual { .. } => None,
            })
            .collect();
        let bytes = payload.iter().map(|slice| slice.len()).sum();
        let mut view = HeaderMut::parse(header).context(|| "our own header".into())?;
        view.finish(bytes).context(|| "our own header".into())?;
        let offload = Offload::Tcp {
            tcp_offset: view.tcp_offset() as u16,
            mss: transmit.mss,
            ipv6: false,
        };
        match port.send(&Superpacket {
            header,
            payload: &payload,
            offload,
        }) {
            Ok(()) | Err(SendError::WouldBlock | SendError::Dropped) => Ok(()),
            Err(SendError::Failed(error)) => Err(error).context(|| "sending".into()),
        }
    }
}
