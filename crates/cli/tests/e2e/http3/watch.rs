//! A watch on the clients' end of the link, before losses: it opens each 1-RTT packet from the
//! server, with keys from the clients' secrets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use contract::FlowId;
use contract::quic::QuicKey;
use contract::tls::Cipher;
use fakes::keys::expand;
use fakes::quic_client::CONNECTION_ID_BYTES;
use netdev::packet::{Arrival, PromiscuousPort};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::setpriority_process;
use rustls::KeyLog;
use sim::wire_watch::WireWatch;
use testbed::splitway::LINK;
use wire::datagram;

use super::client::Client;
use crate::https::{Certificate, HTTPS};

/// The priority of the watch's thread.
const NICE: i32 = -15;

/// Frames per call to receive.
const FRAMES_MAX: usize = 64;

/// Sleep of the watch without a frame, before it checks for the end.
const NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// The server's traffic secret (RFC 8446 §7.1), once a client has it.
#[derive(Debug, Default)]
struct ServerSecret(OnceLock<Vec<u8>>);

impl KeyLog for ServerSecret {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        if label == "SERVER_TRAFFIC_SECRET_0" {
            self.0.set(secret.to_vec()).expect("it is logged once");
        }
    }
}

/// The state that clients and the watch share.
#[derive(Debug, Default)]
struct Shared {
    /// Secrets of connected clients.
    secrets: Mutex<BTreeMap<SocketAddr, Vec<u8>>>,
    is_over: AtomicBool,
}

/// The watch, from [`begin`](Self::begin) to [`end`](Self::end).
pub(crate) struct Watch {
    shared: Arc<Shared>,
    thread: JoinHandle<Seen>,
}

impl Watch {
    /// Watches the link of the running server.
    pub(crate) fn begin() -> Self {
        let port = PromiscuousPort::open(LINK).unwrap();
        let shared = Arc::<Shared>::default();
        let seen = Seen {
            shared: Arc::clone(&shared),
            watch: WireWatch::default(),
            connections: BTreeMap::new(),
            early: BTreeMap::new(),
            last: None,
        };
        let thread = std::thread::spawn(|| seen.run(port));
        Self { shared, thread }
    }

    /// Connects a client under watch.
    pub(crate) fn connect(
        &self,
        server: SocketAddr,
        certificate: &Certificate,
        seed: u64,
    ) -> Client {
        let secret = Arc::<ServerSecret>::default();
        let log = Arc::clone(&secret) as Arc<dyn KeyLog>;
        let mut client = Client::connect_logging(server, certificate, seed, Some(log));
        client.keep_no_datagrams();
        let secret = secret.0.get().expect("the client is connected");
        let mut secrets = self.shared.secrets.lock().unwrap();
        let before = secrets.insert(client.quic.local, secret.clone());
        assert_eq!(before, None, "each client has an address of its own");
        client
    }

    /// Ends the watch, after this number of clients.
    ///
    /// # Panics
    /// If two packets had the same key and number, a packet was all zeros or failed to open, or the
    /// watch missed anything.
    pub(crate) fn end(self, clients: usize) {
        self.shared.is_over.store(true, Ordering::Release);
        let mut seen = self.thread.join().expect("the watch has seen no violation");
        assert!(seen.early.is_empty(), "datagrams of no connection");
        let packets = seen.connections.values().map(|it| it.packets);
        let (fewest, all) = (packets.clone().min(), packets.sum::<u64>());
        println!(
            "{all} packets of {} connections under {} keys, at least {fewest:?} of each",
            seen.connections.len(),
            seen.watch.keys()
        );
        assert_eq!(seen.connections.len(), clients);
        assert!(fewest > Some(0));
        // The watch notices a packet that is sent twice.
        let (at, last) = seen.last.take().expect("a packet");
        let flow = seen.connections[&at].flow;
        let again = seen.watch.on_datagram(flow, CONNECTION_ID_BYTES, &last);
        let violation = again.expect_err("a number that comes twice").to_string();
        assert!(violation.contains("sealed twice"), "{violation}");
    }
}

/// A connection.
struct Connection {
    flow: FlowId,
    cipher: Cipher,
    /// The secret of the next generation of keys.
    secret: Vec<u8>,
    header_key: Vec<u8>,
    generation: u32,
    packets: u64,
}

impl Connection {
    fn new(flow: FlowId, secret: Vec<u8>) -> Self {
        // Clients rank ChaCha20-Poly1305 last.
        let cipher = match secret.len() {
            32 => Cipher::Aes128Gcm,
            _ => Cipher::Aes256Gcm,
        };
        let key_bytes = cipher.key_bytes() as u16;
        Self {
            flow,
            cipher,
            header_key: expand(cipher, &secret, b"quic hp", key_bytes),
            secret,
            generation: 0,
            packets: 0,
        }
    }

    /// Gives the watch the key of the next generation (RFC 9001 §5.1, §6.1).
    fn give_key(&mut self, watch: &mut WireWatch) {
        let of = |label, bytes: usize| expand(self.cipher, &self.secret, label, bytes as u16);
        let iv = of(b"quic iv", 12);
        watch.on_key(&QuicKey {
            flow: self.flow,
            generation: self.generation,
            cipher: self.cipher,
            key: &of(b"quic key", self.cipher.key_bytes()),
            iv: iv.try_into().expect("as many bytes as asked for"),
            header_key: &self.header_key,
            floor: 0,
        });
        self.generation += 1;
        self.secret = of(b"quic ku", self.secret.len());
    }
}

/// The state of the watch.
struct Seen {
    shared: Arc<Shared>,
    watch: WireWatch,
    connections: BTreeMap<SocketAddr, Connection>,
    /// Datagrams for clients whose secrets are not known yet.
    early: BTreeMap<SocketAddr, Vec<Vec<u8>>>,
    /// The last packet, and its destination.
    last: Option<(SocketAddr, Vec<u8>)>,
}

impl Seen {
    fn run(mut self, mut port: PromiscuousPort) -> Self {
        // Many clients share the cores with this thread, which must keep up with all of them.
        setpriority_process(None, NICE).expect("root may raise its priority");
        loop {
            // Read first: all frames sent before the end are then received.
            let is_over = self.shared.is_over.load(Ordering::Acquire);
            let taken = port.receive(FRAMES_MAX, &mut |arrival| self.on_frame(arrival));
            if taken.unwrap() > 0 {
                continue;
            }
            if is_over {
                break;
            }
            let _ = poll(&mut [PollFd::new(&port, PollFlags::IN)], Some(&NAP));
        }
        for to in self.early.keys().copied().collect::<Vec<_>>() {
            self.on_datagram(to, None);
        }
        let dropped = port.dropped().unwrap();
        assert_eq!(
            dropped, 0,
            "frames that the kernel has dropped before the watch"
        );
        self
    }

    fn on_frame(&mut self, arrival: Arrival<'_>) {
        // Superpackets, and datagrams with checksums for the device to fill in, arrive as sent.
        let Ok(Some(packet)) = datagram::parse(arrival.bytes, true) else {
            return;
        };
        if !HTTPS.contains(&packet.source) {
            return;
        }
        let whole = packet.payload.len().max(1);
        let each = arrival.unfinished.datagram_bytes();
        let each = each.map_or(whole, |bytes| usize::from(bytes.get()));
        for datagram in packet.payload.chunks(each) {
            self.on_datagram(packet.destination, Some(datagram));
        }
    }

    /// Opens a datagram, if any, and those that waited for the secret.
    fn on_datagram(&mut self, to: SocketAddr, datagram: Option<&[u8]>) {
        let datagram = datagram.map(<[u8]>::to_vec);
        if !self.connections.contains_key(&to) {
            let Some(secret) = self.shared.secrets.lock().unwrap().remove(&to) else {
                self.early.entry(to).or_default().extend(datagram);
                return;
            };
            let flow = FlowId(self.connections.len() as u64 + 1);
            let mut connection = Connection::new(flow, secret);
            connection.give_key(&mut self.watch);
            self.connections.insert(to, connection);
        }
        let early = self.early.remove(&to).unwrap_or_default();
        for datagram in early.into_iter().chain(datagram) {
            self.open(to, datagram);
        }
    }

    fn open(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        let connection = self.connections.get_mut(&to).expect("its secret is known");
        let before = self.watch.packets;
        let flow = connection.flow;
        let mut opened = self.watch.on_datagram(flow, CONNECTION_ID_BYTES, &datagram);
        if opened.is_err() && self.watch.packets == before {
            // It may be the first of the next generation.
            connection.give_key(&mut self.watch);
            opened = self.watch.on_datagram(flow, CONNECTION_ID_BYTES, &datagram);
        }
        opened.unwrap_or_else(|violation| panic!("for {to}: {violation}"));
        if self.watch.packets > before {
            connection.packets += 1;
            self.last = Some((to, datagram));
        }
    }
}
