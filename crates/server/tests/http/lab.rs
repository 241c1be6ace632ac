//! A stream interface whose peers, files and clock are in the test's hands.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use host::app::{
    AppEvent, Application, CloseReason, Entry, EntryKind, FileHandle, FileMeta, Io, ListPart,
    ListPlace, Owner, Proxied, QuicCloseReason, QuicConnection, QuicEvent, QuicStream, StreamId,
    TlsAgreed, TlsCipher, TlsIdentity, TlsSuite, TlsVersion,
};
use host::{Growth, PassedId};
use server::{AccessRecord, AccessSink, Config, Origins, Server};

use crate::twin::{self, Over, Twin};

/// RFC 9110 §5.6.7's example date: Sun, 06 Nov 1994 08:49:37 GMT.
pub(crate) const START: Duration = Duration::from_secs(784_111_777);

/// Request streams that a client may have open.
pub(crate) const STREAMS_MAX: u64 = 100;

/// A server, and all that is around it.
pub(crate) struct Lab {
    server: Server,
    net: Net,
    keeper: Keeper,
    /// The hosts that connections are for.
    identity: TlsIdentity,
    /// What is asked of the server is asked of these, too.
    twins: Vec<Twin>,
}

/// Who keeps the access log, and what it was given.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    packets: Vec<Vec<u8>>,
    lost: u64,
    is_behind: bool,
}

impl AccessSink for Keeper {
    fn take(&mut self, packet: &[u8], lost: u64) -> bool {
        let mut kept = self.0.lock().unwrap();
        if !kept.is_behind {
            kept.packets.push(packet.to_vec());
            kept.lost = lost;
        }
        !kept.is_behind
    }
}

/// What the server sees as [`Io`].
struct Net {
    now: Duration,
    streams: BTreeMap<StreamId, Wire>,
    files: BTreeMap<Vec<u8>, File>,
    handles: BTreeMap<FileHandle, Handle>,
    handle_last: u64,
    inode_last: u64,
    hold_opens: bool,
    lists: Lists,
    quic: BTreeMap<QuicConnection, Quic>,
    events: VecDeque<Event>,
}

/// What the server is to hear of.
enum Event {
    Stream(StreamId, AppEvent),
    Quic(QuicConnection, QuicEvent),
}

/// A QUIC connection, seen from both ends.
#[derive(Default)]
struct Quic {
    /// The server may open no stream.
    is_barred: bool,
    /// With what the server has closed it.
    closed: Option<(u64, Vec<u8>)>,
    /// Streams that the peer has opened, of both and of one direction.
    opened: [u64; 2],
}

/// How directories are listed.
#[derive(Default)]
struct Lists {
    /// Entries in a part.
    entries_max: usize,
    /// What was asked for: paths, and whether from the beginning.
    asked: Vec<(String, bool)>,
    /// So many answers say that the directory has changed.
    changes: usize,
    /// So many answers say that the listing cannot go on.
    losses: usize,
    /// Nothing is answered.
    is_held: bool,
    /// What was found in the directory that was begun last.
    read: Vec<(Vec<u8>, (EntryKind, FileMeta))>,
}

/// A file, or why there is none.
enum File {
    Bytes(Vec<u8>, FileMeta),
    Zeros(u64),
    Errno(u16),
}

struct Handle {
    stream: StreamId,
    path: Vec<u8>,
    opened: bool,
    closed: bool,
}

/// One connection, or a stream of QUIC, seen from both ends.
#[derive(Default)]
struct Wire {
    quic: Option<QuicStream>,
    /// With what the server has reset it, and has had the peer stop, and by which priority it goes.
    reset: Option<u64>,
    stopped: Option<u64>,
    priority: Option<i32>,
    inbox: VecDeque<u8>,
    queued: Vec<Piece>,
    queued_bytes: u64,
    acknowledged_bytes: u64,
    retransmissions: u32,
    received_bytes: u64,
    /// Most unacknowledged bytes that the stream takes.
    queue_bytes_max: u64,
    acknowledges: bool,
    short: bool,
    /// The server wants to know when no more than so many bytes wait: here, what is sent is
    /// acknowledged.
    notsent_lowat: Option<u64>,
    usable_window_bytes: u64,
    is_idle: bool,
    timer: Option<Duration>,
    rate_max: Option<u64>,
    /// How often the server has said so.
    rates_set: u64,
    peer_finished: bool,
    shut_down: bool,
    aborted: bool,
    closed: bool,
}

enum Piece {
    Real(Vec<u8>),
    Virtual { path: Vec<u8>, range: Range<u64> },
}

/// A response as its client sees it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Response {
    /// The fields of interim responses before it, `:status` among them.
    pub(crate) interim: Vec<Vec<(String, String)>>,
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self
            .headers
            .iter()
            .filter(|(known, _)| known.eq_ignore_ascii_case(name));
        let value = values.next();
        assert!(values.next().is_none(), "{name} is there twice");
        value.map(|(_, value)| value.as_str())
    }

    /// The values of all lines of this name.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let headers = self.headers.iter();
        let lines = headers.filter(|(known, _)| known.eq_ignore_ascii_case(name));
        lines.map(|(_, value)| value.as_str()).collect()
    }
}

impl Lab {
    pub(crate) fn new() -> Self {
        Lab::with(Config::default())
    }

    /// Requests to the server are sent to twins over HTTP/2 and HTTP/3 as well, which answer alike.
    pub(crate) fn with(config: Config) -> Self {
        let mut lab = Lab::alone(config.clone());
        lab.twins = Over::ALL.map(|over| Twin::new(over, config.clone())).into();
        lab
    }

    /// From now on, what is asked is not compared: the server is no more like its twin.
    pub(crate) fn without_twin(&mut self) {
        self.twins.clear();
    }

    /// Without a twin.
    pub(crate) fn alone(config: Config) -> Self {
        Lab::of(Server::new(config))
    }

    /// With origins. What is sent to the server is sent to twins over HTTP/2 and HTTP/3 as well,
    /// with origins of their own that are played alike, and is answered and logged alike.
    pub(crate) fn with_origins(config: Config, origins: [Box<dyn Origins>; 3]) -> Self {
        let [own, others @ ..] = origins;
        let mut lab = Lab::of(Server::with_origins(config.clone(), own));
        for (over, origins) in Over::ALL.into_iter().zip(others) {
            let twin = Lab::of(Server::with_origins(config.clone(), origins));
            lab.twins.push(Twin::following(over, twin));
        }
        lab
    }

    /// All twins get the requests that this server gets.
    pub(crate) fn has_twins(&self) -> bool {
        self.twins.len() == Over::ALL.len()
    }

    /// The twins that are sent what this server is sent.
    fn followers(&mut self) -> impl Iterator<Item = &mut Twin> {
        self.twins.iter_mut().filter(|twin| twin.follows)
    }

    /// From now on, what twins that follow would get is not alike.
    fn leave_followers(&mut self) {
        self.twins.retain(|twin| !twin.follows);
    }

    fn of(server: Server) -> Self {
        Lab {
            server,
            net: Net {
                now: START,
                streams: BTreeMap::new(),
                files: BTreeMap::new(),
                handles: BTreeMap::new(),
                handle_last: 0,
                inode_last: 0,
                hold_opens: false,
                lists: Lists {
                    entries_max: 3,
                    ..Lists::default()
                },
                quic: BTreeMap::new(),
                events: VecDeque::new(),
            },
            keeper: Keeper::default(),
            identity: TlsIdentity::default(),
            twins: Vec::new(),
        }
    }

    /// The same with an access log.
    pub(crate) fn logging(config: Config) -> Self {
        let mut lab = Lab::with(config);
        lab.log_accesses();
        lab
    }

    /// From now on there is an access log.
    pub(crate) fn log_accesses(&mut self) {
        for twin in &mut self.twins {
            twin.lab.log_accesses();
        }
        self.server.log_accesses(Box::new(self.keeper.clone()));
    }

    /// The keeper of the log takes nothing, or goes on.
    pub(crate) fn keeper_is_behind(&mut self, is_behind: bool) {
        for twin in &mut self.twins {
            twin.log_differs();
        }
        self.keeper.0.lock().unwrap().is_behind = is_behind;
    }

    /// Turns without events, until all that waits is handed over.
    pub(crate) fn settle_log(&mut self) {
        while let Some(at_us) = self.server.next_timeout_us() {
            self.net.now = self.net.now.max(START + Duration::from_micros(at_us));
            let now_us = self.net.now_us();
            self.server.on_turn(&mut self.net, now_us);
            if self.keeper.0.lock().unwrap().is_behind {
                return;
            }
        }
    }

    /// Gives what was noted of each response since the last call to `look`, and returns how many
    /// records were lost.
    pub(crate) fn records(&mut self, mut look: impl FnMut(AccessRecord<'_>)) -> u64 {
        let mut own = Vec::new();
        let lost = self.own_records(|record| {
            own.push(twin::noted(&record));
            look(record);
        });
        for twin in &mut self.twins {
            twin.compare_records(&own);
        }
        lost
    }

    /// The same without its twin's.
    pub(crate) fn own_records(&mut self, mut look: impl FnMut(AccessRecord<'_>)) -> u64 {
        self.settle_log();
        let mut kept = self.keeper.0.lock().unwrap();
        for packet in std::mem::take(&mut kept.packets) {
            let mut rest = &packet[..];
            while let Some((record, behind)) = AccessRecord::take(rest) {
                look(record);
                rest = behind;
            }
            assert_eq!(rest, b"", "records and nothing else");
        }
        kept.lost
    }

    /// So much of what was sent on a stream had to be sent again.
    pub(crate) fn retransmits(&mut self, stream: StreamId, count: u32) {
        self.net.wire(stream).retransmissions += count;
    }

    /// Memory that the server accounts for a stream, in bytes.
    pub(crate) fn memory_bytes(&self, stream: StreamId) -> usize {
        self.server.memory(Owner::SERVER, stream).bytes
    }

    /// The client to which a proxy's stream belongs, for that account.
    pub(crate) fn memory_client(&self, stream: StreamId) -> Option<IpAddr> {
        self.server.memory(Owner::SERVER, stream).client
    }

    pub(crate) fn counters(&self) -> server::Counters {
        *self.server.counters()
    }

    /// Another configuration, between two turns of the shard.
    pub(crate) fn reconfigure(&mut self, config: Config) {
        for twin in &mut self.twins {
            twin.lab.reconfigure(config.clone());
        }
        self.server.reconfigure(config);
        self.turn();
    }

    /// The server is to take its leave; the number says how often it has told that no connection is
    /// left.
    pub(crate) fn drain(&mut self) -> Arc<AtomicUsize> {
        self.twins.clear();
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        self.server.drain(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        self.turn();
        told
    }

    /// The end of a turn of the shard.
    pub(crate) fn turn(&mut self) {
        let now_us = self.net.now.as_micros() as u64;
        self.server.on_turn(&mut self.net, now_us);
        self.settle();
    }

    /// When the server wants a turn at the latest, in how many microseconds.
    pub(crate) fn next_turn_us(&self) -> Option<u64> {
        let now_us = self.net.now.as_micros() as u64;
        let at_us = self.server.next_timeout_us()?;
        Some(at_us.saturating_sub(now_us))
    }

    // Files.

    pub(crate) fn file(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.file_of(path, bytes, 0);
    }

    pub(crate) fn file_of(&mut self, path: &str, bytes: impl Into<Vec<u8>>, mtime_ns: i64) {
        let meta = FileMeta {
            mtime_ns,
            ctime_ns: mtime_ns,
            ..FileMeta::default()
        };
        self.version(path, bytes, meta);
    }

    /// A file with this metadata, but for its size and inode: each is another one.
    pub(crate) fn version(&mut self, path: &str, bytes: impl Into<Vec<u8>>, meta: FileMeta) {
        self.net.inode_last += 1;
        let bytes = bytes.into();
        for twin in &mut self.twins {
            twin.lab.version(path, bytes.clone(), meta);
        }
        let meta = FileMeta {
            size: bytes.len() as u64,
            inode: self.net.inode_last,
            ..meta
        };
        self.net.files.insert(path.into(), File::Bytes(bytes, meta));
    }

    pub(crate) fn zeros(&mut self, path: &str, size_bytes: u64) {
        for twin in &mut self.twins {
            twin.lab.zeros(path, size_bytes);
        }
        self.net.files.insert(path.into(), File::Zeros(size_bytes));
    }

    pub(crate) fn fails(&mut self, path: &str, errno: i32) {
        for twin in &mut self.twins {
            twin.lab.fails(path, errno);
        }
        self.net
            .files
            .insert(path.into(), File::Errno(errno as u16));
    }

    pub(crate) fn directory(&mut self, path: &str) {
        self.fails(path, libc::EISDIR);
    }

    /// Of a listing's parts that go on where another has ended, so many say that the directory has
    /// changed.
    pub(crate) fn directory_changes(&mut self, times: usize) {
        for twin in &mut self.twins {
            twin.lab.directory_changes(times);
        }
        self.net.lists.changes = times;
    }

    /// So many of them cannot go on.
    pub(crate) fn listing_is_lost(&mut self, times: usize) {
        for twin in &mut self.twins {
            twin.lab.listing_is_lost(times);
        }
        self.net.lists.losses = times;
    }

    /// Most entries in a part of a listing.
    pub(crate) fn list_in_parts_of(&mut self, entries: usize) {
        for twin in &mut self.twins {
            twin.lab.list_in_parts_of(entries);
        }
        self.net.lists.entries_max = entries;
    }

    /// LIST is not answered.
    pub(crate) fn hold_lists(&mut self) {
        self.twins.clear();
        self.net.lists.is_held = true;
    }

    /// Paths that were to be listed since the last call, and whether from the beginning.
    pub(crate) fn listed(&mut self) -> Vec<(String, bool)> {
        std::mem::take(&mut self.net.lists.asked)
    }

    /// OPEN is answered only when [`Lab::answer_opens`] says so.
    pub(crate) fn hold_opens(&mut self) {
        self.twins.clear();
        self.net.hold_opens = true;
    }

    pub(crate) fn answer_opens(&mut self) {
        self.net.hold_opens = false;
        let waiting: Vec<_> = self
            .net
            .handles
            .iter()
            .filter(|(_, handle)| !handle.opened)
            .map(|(&handle, _)| handle)
            .collect();
        for handle in waiting {
            self.net.answer_open(handle);
        }
        self.settle();
    }

    /// Paths of OPENs, in order.
    pub(crate) fn opened_paths(&self) -> Vec<String> {
        self.net
            .handles
            .values()
            .map(|handle| String::from_utf8_lossy(&handle.path).into_owned())
            .collect()
    }

    /// Files that the server should have closed, and has not.
    pub(crate) fn files_left_open(&self) -> usize {
        self.net
            .handles
            .values()
            .filter(|handle| !handle.closed)
            .count()
    }

    /// The server's own descriptor is readable.
    pub(crate) fn wake(&mut self) {
        for twin in self.followers() {
            twin.lab.wake();
        }
        self.server.on_wake(&mut self.net, 0);
        self.settle();
    }

    // Peers.

    pub(crate) fn connect(&mut self) -> StreamId {
        self.connect_from("10.77.0.1")
    }

    pub(crate) fn connect_from(&mut self, address: &str) -> StreamId {
        self.connect_over(address, None)
    }

    /// A connection over TLS with this application protocol.
    pub(crate) fn connect_with_alpn(&mut self, alpn: &str) -> StreamId {
        let tls = TlsAgreed {
            alpn: Some(alpn.as_bytes().to_vec()),
            ..agreed(&self.identity)
        };
        self.connect_over("10.77.0.1", Some(Box::new(tls)))
    }

    /// Clients ask for this server name from now on, and get a certificate for these names.
    pub(crate) fn identify(&mut self, server_name: Option<&str>, names: &[&str]) {
        let certificates = fakes::site::Identity::ecdsa(names).certificates();
        self.identity = certificates.identity(server_name);
    }

    /// A connection that a proxy at this address passes on for a client, by the PROXY protocol.
    pub(crate) fn connect_for(&mut self, proxy: &str, client: &str) -> StreamId {
        let proxied = Proxied {
            client: client.parse().expect("an address and a port"),
            local: SocketAddr::from(([10, 77, 0, 2], 80)),
        };
        self.connect_as(proxy, Some(Box::new(proxied)), None)
    }

    fn connect_over(&mut self, address: &str, tls: Option<Box<TlsAgreed>>) -> StreamId {
        self.connect_as(address, None, tls)
    }

    fn connect_as(
        &mut self,
        address: &str,
        proxied: Option<Box<Proxied>>,
        tls: Option<Box<TlsAgreed>>,
    ) -> StreamId {
        let stream = StreamId(self.net.streams.len() as u64 + 1);
        self.net.streams.insert(
            stream,
            Wire {
                queue_bytes_max: u64::MAX,
                acknowledges: true,
                ..Wire::default()
            },
        );
        let address: IpAddr = address.parse().expect("an address");
        let peer = SocketAddr::from((address, 40_000));
        let accepted = AppEvent::Accepted { peer, proxied, tls };
        self.net.events.push_back(Event::Stream(stream, accepted));
        self.settle();
        stream
    }

    pub(crate) fn send(&mut self, stream: StreamId, bytes: impl AsRef<[u8]>) {
        self.twins.retain_mut(|twin| {
            if twin.follows {
                return twin.send(stream, bytes.as_ref());
            }
            twin.log_differs();
            true
        });
        let wire = self.net.wire(stream);
        if wire.stopped.is_some() {
            return;
        }
        assert!(!wire.peer_finished, "nothing follows a FIN");
        if wire.aborted || bytes.as_ref().is_empty() {
            return;
        }
        wire.inbox.extend(bytes.as_ref());
        self.net
            .events
            .push_back(Event::Stream(stream, AppEvent::Readable));
        self.settle();
    }

    pub(crate) fn finish(&mut self, stream: StreamId) {
        let wire = self.net.wire(stream);
        wire.peer_finished = true;
        if !wire.aborted {
            self.net
                .events
                .push_back(Event::Stream(stream, AppEvent::PeerFinished));
        }
        self.settle();
    }

    pub(crate) fn reset(&mut self, stream: StreamId) {
        for twin in self.followers() {
            twin.reset(stream);
        }
        self.net.close(stream, CloseReason::Reset);
        self.settle();
    }

    /// The peer acknowledges at once, or only what [`Lab::acknowledge`] says.
    pub(crate) fn acknowledges(&mut self, stream: StreamId, at_once: bool) {
        self.leave_followers();
        self.net.wire(stream).acknowledges = at_once;
        self.settle();
    }

    pub(crate) fn acknowledge(&mut self, stream: StreamId, bytes: u64) {
        self.net.acknowledge(stream, bytes);
        self.settle();
    }

    /// A segment that acknowledges all, and brings a request.
    pub(crate) fn acknowledge_and_send(&mut self, stream: StreamId, bytes: impl AsRef<[u8]>) {
        self.net.wire(stream).inbox.extend(bytes.as_ref());
        self.net
            .events
            .push_back(Event::Stream(stream, AppEvent::Readable));
        let unacknowledged = self.net.unacknowledged(stream);
        self.net.acknowledge(stream, unacknowledged);
        self.settle();
    }

    pub(crate) fn limit_queue(&mut self, stream: StreamId, bytes_max: u64) {
        self.leave_followers();
        self.net.wire(stream).queue_bytes_max = bytes_max;
    }

    /// Lets time pass, timer by timer.
    pub(crate) fn pass(&mut self, time: Duration) {
        for twin in self.followers() {
            twin.lab.pass(time);
        }
        let end = self.net.now + time;
        loop {
            let next = self
                .net
                .streams
                .iter()
                .filter(|(_, wire)| !wire.closed)
                .filter_map(|(&stream, wire)| Some((wire.timer?, stream)))
                .min()
                .filter(|&(deadline, _)| deadline <= end);
            let Some((deadline, stream)) = next else {
                break;
            };
            self.net.now = self.net.now.max(deadline);
            self.net.wire(stream).timer = None;
            self.net
                .events
                .push_back(Event::Stream(stream, AppEvent::Timer));
            self.settle();
        }
        self.net.now = end;
    }

    // Peers of QUIC.

    /// A handshake of QUIC is over. If `is_barred`, the server may open no streams.
    pub(crate) fn open_quic(&mut self, is_barred: bool) -> QuicConnection {
        self.begin_quic(is_barred, false)
    }

    /// Early data comes on a connection of QUIC.
    pub(crate) fn open_early(&mut self) -> QuicConnection {
        self.begin_quic(false, true)
    }

    /// The handshake of such a connection is over.
    pub(crate) fn complete_handshake(&mut self, connection: QuicConnection) {
        let complete = Event::Quic(connection, QuicEvent::HandshakeComplete);
        self.net.events.push_back(complete);
        self.settle();
    }

    fn begin_quic(&mut self, is_barred: bool, is_early: bool) -> QuicConnection {
        self.leave_followers();
        let connection = QuicConnection(self.net.quic.len() as u64 + 1);
        let quic = Quic {
            is_barred,
            ..Quic::default()
        };
        self.net.quic.insert(connection, quic);
        let opened = QuicEvent::Opened {
            peer: SocketAddr::from(([10, 77, 0, 1], 40_000)),
            tls: Box::new(agreed(&self.identity)),
            is_early,
        };
        self.net.events.push_back(Event::Quic(connection, opened));
        self.settle();
        connection
    }

    /// The peer opens a stream, in one direction or in both.
    pub(crate) fn open_stream(
        &mut self,
        connection: QuicConnection,
        is_unidirectional: bool,
    ) -> StreamId {
        let quic = self.net.quic.get_mut(&connection).expect("a connection");
        let count = &mut quic.opened[usize::from(is_unidirectional)];
        let id = *count * 4 + if is_unidirectional { 2 } else { 0 };
        *count += 1;
        let stream = self.net.new_stream(QuicStream { connection, id });
        let peer = SocketAddr::from(([10, 77, 0, 1], 40_000));
        let accepted = AppEvent::Accepted {
            peer,
            proxied: None,
            tls: None,
        };
        self.net.events.push_back(Event::Stream(stream, accepted));
        self.settle();
        stream
    }

    /// The stream on which the server says what is about the whole connection.
    pub(crate) fn control_stream(&self, connection: QuicConnection) -> StreamId {
        let id = QuicStream { connection, id: 3 };
        let mut streams = self.net.streams.iter();
        let found = streams.find(|(_, wire)| wire.quic == Some(id));
        *found.expect("a control stream").0
    }

    /// The peer abandons what it sends.
    pub(crate) fn peer_resets(&mut self, stream: StreamId, code: u64) {
        let wire = self.net.wire(stream);
        wire.peer_finished = true;
        wire.inbox.clear();
        if !wire.closed {
            let reset = AppEvent::PeerReset { code };
            self.net.events.push_back(Event::Stream(stream, reset));
        }
        self.settle();
    }

    /// The peer does not want what is sent.
    pub(crate) fn peer_stops(&mut self, stream: StreamId, code: u64) {
        if !self.net.wire(stream).closed {
            let stopped = AppEvent::PeerStopped { code };
            self.net.events.push_back(Event::Stream(stream, stopped));
        }
        self.settle();
    }

    /// The connection is lost.
    pub(crate) fn lose_quic(&mut self, connection: QuicConnection) {
        self.net.end_quic(connection, QuicCloseReason::TimedOut);
        self.settle();
    }

    /// With which code the server has closed a connection.
    pub(crate) fn quic_closed(&self, connection: QuicConnection) -> Option<u64> {
        Some(self.net.quic[&connection].closed.as_ref()?.0)
    }

    /// With which code the server has reset a stream.
    pub(crate) fn reset_code(&self, stream: StreamId) -> Option<u64> {
        self.net.streams[&stream].reset
    }

    /// With which code it has asked the peer to stop.
    pub(crate) fn stop_code(&self, stream: StreamId) -> Option<u64> {
        self.net.streams[&stream].stopped
    }

    pub(crate) fn priority(&self, stream: StreamId) -> Option<i32> {
        self.net.streams[&stream].priority
    }

    /// Connections that the server has.
    pub(crate) fn connections(&self) -> usize {
        self.server.connections()
    }

    pub(crate) fn connection_info(&self, stream: StreamId) -> Option<server::ConnectionInfo> {
        self.server.connection_info(stream)
    }

    // What the peer sees.

    /// How fast the server wants the stream to be sent to at most.
    pub(crate) fn rate_max(&self, stream: StreamId) -> Option<u64> {
        self.net.streams[&stream].rate_max
    }

    /// How often the server has set the rate of a stream, of all of them together.
    pub(crate) fn rates_set(&self) -> u64 {
        self.net.streams.values().map(|wire| wire.rates_set).sum()
    }

    pub(crate) fn is_shut_down(&self, stream: StreamId) -> bool {
        self.net.streams[&stream].shut_down
    }

    pub(crate) fn is_aborted(&self, stream: StreamId) -> bool {
        for twin in &self.twins {
            twin.compare_end(stream, self.net.streams[&stream].aborted);
        }
        self.net.streams[&stream].aborted
    }

    pub(crate) fn is_closed(&self, stream: StreamId) -> bool {
        self.net.streams[&stream].closed
    }

    pub(crate) fn unread_bytes(&self, stream: StreamId) -> usize {
        self.net.streams[&stream].inbox.len()
    }

    pub(crate) fn unacknowledged_bytes(&self, stream: StreamId) -> u64 {
        self.net.unacknowledged(stream)
    }

    pub(crate) fn set_usable_window(&mut self, stream: StreamId, bytes: u64) {
        self.net.wire(stream).usable_window_bytes = bytes;
    }

    /// All that was queued for the peer from here on, with file content in the place of ranges.
    pub(crate) fn received(&self, stream: StreamId) -> Vec<u8> {
        let wire = &self.net.streams[&stream];
        let mut bytes = Vec::new();
        for piece in &wire.queued {
            match piece {
                Piece::Real(real) => bytes.extend_from_slice(real),
                Piece::Virtual { path, range } => match &self.net.files[path] {
                    File::Bytes(content, _) => {
                        bytes.extend_from_slice(&content[range.start as usize..range.end as usize]);
                    }
                    File::Zeros(_) => {
                        bytes.resize(bytes.len() + (range.end - range.start) as usize, 0)
                    }
                    File::Errno(errno) => panic!("a range of a file that failed with {errno}"),
                },
            }
        }
        bytes.split_off(wire.received_bytes as usize)
    }

    /// File ranges queued so far.
    pub(crate) fn ranges(&self, stream: StreamId) -> Vec<Range<u64>> {
        let pieces = self.net.streams[&stream].queued.iter();
        pieces
            .filter_map(|piece| match piece {
                Piece::Real(_) => None,
                Piece::Virtual { range, .. } => Some(range.clone()),
            })
            .collect()
    }

    /// The next response, to a GET or whatever else may have a body.
    pub(crate) fn response(&mut self, stream: StreamId) -> Response {
        self.next_response(stream, true)
    }

    /// The next response, to a HEAD.
    pub(crate) fn response_to_head(&mut self, stream: StreamId) -> Response {
        self.next_response(stream, false)
    }

    fn next_response(&mut self, stream: StreamId, has_body: bool) -> Response {
        let bytes = self.received(stream);
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut head = httparse::Response::new(&mut fields);
        let parsed = head.parse(&bytes).expect("a well-formed response");
        let httparse::Status::Complete(head_bytes) = parsed else {
            panic!("no whole response in {:?}", String::from_utf8_lossy(&bytes));
        };
        assert_eq!(head.version, Some(1));
        let headers: Vec<(String, String)> = head
            .headers
            .iter()
            .map(|header| {
                (
                    header.name.to_owned(),
                    String::from_utf8(header.value.to_vec()).expect("text"),
                )
            })
            .collect();
        let status = head.code.expect("a status");
        let mut response = Response {
            status,
            headers,
            ..Response::default()
        };
        let length = response.header("Content-Length");
        // RFC 9112 §6.3: these have no body, whatever they say.
        let length: usize = match (has_body && status != 304 && status != 204, length) {
            (true, length) => length.expect("a length").parse().expect("a number"),
            (false, _) => 0,
        };
        let end = head_bytes + length;
        response.body = bytes[head_bytes..end].to_vec();
        self.net.wire(stream).received_bytes += end as u64;
        for twin in &mut self.twins {
            twin.compare_next(stream, &response);
        }
        response
    }

    /// Sends a request and returns its response.
    pub(crate) fn ask(&mut self, stream: StreamId, request: &str) -> Response {
        let is_follower = |twin: &mut Twin| twin.follows;
        let followers: Vec<Twin> = self.twins.extract_if(.., is_follower).collect();
        let mut others = std::mem::replace(&mut self.twins, followers);
        self.send(stream, request);
        let response = self.next_response(stream, !request.starts_with("HEAD "));
        for twin in &mut others {
            twin.lab.pass(self.net.now - twin.lab.net.now);
            twin.compare(request, &response);
        }
        self.twins.append(&mut others);
        response
    }

    /// Asks for a target with further header fields, on a connection of its own.
    pub(crate) fn get_with(&mut self, target: &str, fields: &[(&str, &str)]) -> Response {
        let stream = self.connect();
        self.ask(stream, &get_with(target, fields))
    }

    /// Asks for a target, on a connection of its own.
    pub(crate) fn get(&mut self, target: &str) -> Response {
        let stream = self.connect();
        self.ask(stream, &get(target))
    }

    /// Delivers events until none is left.
    fn settle(&mut self) {
        loop {
            while let Some(event) = self.net.events.pop_front() {
                match event {
                    Event::Stream(stream, event) => {
                        self.server.on_event(&mut self.net, stream, event);
                    }
                    Event::Quic(connection, event) => {
                        self.server.on_quic(&mut self.net, connection, event);
                    }
                }
            }
            let streams = self.net.streams.iter().filter(|(_, wire)| !wire.closed);
            let streams: Vec<_> = streams.map(|(&stream, _)| stream).collect();
            for stream in streams {
                let unacknowledged = self.net.unacknowledged(stream);
                let wire = self.net.wire(stream);
                if wire.acknowledges && !wire.closed && unacknowledged > 0 {
                    self.net.acknowledge(stream, unacknowledged);
                }
                self.net.tell_lowat(stream);
                let wire = self.net.wire(stream);
                let sends = wire
                    .quic
                    .is_none_or(|it| !it.is_unidirectional() || it.is_local());
                let receives = wire.quic.is_none_or(|it| !it.is_local());
                if wire.aborted {
                    self.net.close(stream, CloseReason::Aborted);
                } else if (wire.shut_down || wire.reset.is_some() || !sends)
                    && (wire.peer_finished || !receives)
                    && self.net.unacknowledged(stream) == 0
                {
                    self.net.close(stream, CloseReason::Finished);
                }
            }
            if self.net.events.is_empty() {
                return;
            }
        }
    }
}

impl Net {
    /// A stream of a QUIC connection.
    fn new_stream(&mut self, quic: QuicStream) -> StreamId {
        let stream = StreamId(self.streams.len() as u64 + 1);
        let wire = Wire {
            quic: Some(quic),
            queue_bytes_max: u64::MAX,
            acknowledges: true,
            ..Wire::default()
        };
        self.streams.insert(stream, wire);
        stream
    }

    /// A QUIC connection is over, and so are its streams.
    fn end_quic(&mut self, connection: QuicConnection, reason: QuicCloseReason) {
        let of_it = |wire: &Wire| wire.quic.is_some_and(|quic| quic.connection == connection);
        let streams = self.streams.iter().filter(|(_, wire)| of_it(wire));
        let streams: Vec<StreamId> = streams.map(|(&stream, _)| stream).collect();
        for stream in streams {
            self.close(stream, CloseReason::Aborted);
        }
        let closed = QuicEvent::Closed(reason);
        self.events.push_back(Event::Quic(connection, closed));
    }

    fn wire(&mut self, stream: StreamId) -> &mut Wire {
        self.streams
            .get_mut(&stream)
            .expect("a stream that was accepted")
    }

    fn acknowledge(&mut self, stream: StreamId, bytes: u64) {
        let wire = self.wire(stream);
        wire.acknowledged_bytes += bytes;
        assert!(wire.acknowledged_bytes <= wire.queued_bytes);
        let short = std::mem::take(&mut wire.short);
        let drained = wire.acknowledged_bytes == wire.queued_bytes;
        if short {
            self.events
                .push_back(Event::Stream(stream, AppEvent::Writable));
        }
        if drained {
            self.events
                .push_back(Event::Stream(stream, AppEvent::Drained));
        }
    }

    fn tell_lowat(&mut self, stream: StreamId) {
        let waiting = self.unacknowledged(stream);
        let wire = self.wire(stream);
        if !wire.closed && wire.notsent_lowat.is_some_and(|bytes| waiting <= bytes) {
            wire.notsent_lowat = None;
            self.events
                .push_back(Event::Stream(stream, AppEvent::Writable));
        }
    }

    fn close(&mut self, stream: StreamId, reason: CloseReason) {
        for handle in self
            .handles
            .values_mut()
            .filter(|handle| handle.stream == stream)
        {
            handle.closed = true;
        }
        let wire = self.wire(stream);
        if !wire.closed {
            (wire.closed, wire.aborted) = (true, wire.aborted || reason == CloseReason::Reset);
            let closed = AppEvent::Closed {
                reason,
                acknowledged: wire.acknowledged_bytes,
                retransmissions: wire.retransmissions,
            };
            self.events.push_back(Event::Stream(stream, closed));
        }
    }

    fn answer_open(&mut self, file: FileHandle) {
        let handle = self
            .handles
            .get_mut(&file)
            .expect("a handle that was given out");
        handle.opened = true;
        let stream = handle.stream;
        let event = match self.files.get(&handle.path) {
            Some(File::Bytes(_, meta)) => AppEvent::Opened { file, meta: *meta },
            Some(File::Zeros(size)) => AppEvent::Opened {
                file,
                meta: FileMeta {
                    size: *size,
                    ..FileMeta::default()
                },
            },
            failure => {
                handle.closed = true;
                let errno = if let Some(File::Errno(errno)) = failure {
                    *errno
                } else {
                    libc::ENOENT as u16
                };
                AppEvent::OpenFailed { file, errno }
            }
        };
        self.events.push_back(Event::Stream(stream, event));
    }
}

impl Net {
    /// The answer to LIST: what is below a path, by what is below the whole root.
    fn listing(&mut self, file: FileHandle, path: &[u8], from: usize) -> AppEvent {
        let failed = |errno: i32| AppEvent::OpenFailed {
            file,
            errno: errno as u16,
        };
        if from > 0 && self.lists.losses > 0 {
            self.lists.losses -= 1;
            return failed(libc::ESTALE);
        }
        match self.files.get(path) {
            Some(File::Errno(errno)) if i32::from(*errno) != libc::EISDIR => {
                return failed((*errno).into());
            }
            Some(File::Errno(_)) => {}
            Some(_) => return failed(libc::ENOTDIR),
            None => {}
        }
        if from == 0 {
            self.lists.read = self.names_in(path);
        }
        let names = &self.lists.read;
        if names.is_empty() && !self.files.contains_key(path) {
            return failed(libc::ENOENT);
        }
        let mut part = ListPart::default();
        let mut end = from;
        for (name, (kind, meta)) in names.iter().skip(from).take(self.lists.entries_max) {
            let entry = Entry {
                kind: *kind,
                size: meta.size,
                mtime_ns: meta.mtime_ns,
                name,
            };
            if part.entries.push(&entry).is_err() {
                break;
            }
            end += 1;
        }
        part.next = (end < names.len()).then(|| ListPlace::at(end as u64));
        if from > 0 && self.lists.changes > 0 {
            self.lists.changes -= 1;
            part.has_changed = true;
        }
        let part = Box::new(part);
        AppEvent::Listed { file, part }
    }

    /// What is in a directory, the other way round than it is to be told.
    fn names_in(&self, path: &[u8]) -> Vec<(Vec<u8>, (EntryKind, FileMeta))> {
        let prefix = match path {
            b"" => Vec::new(),
            _ => [path, b"/"].concat(),
        };
        let mut names = BTreeMap::new();
        for (path, stored) in &self.files {
            let Some(below) = path.strip_prefix(&prefix[..]).filter(|it| !it.is_empty()) else {
                continue;
            };
            let name = below.split(|&byte| byte == b'/').next().unwrap();
            let (kind, meta) = match stored {
                _ if name.len() < below.len() => (EntryKind::Directory, FileMeta::default()),
                File::Bytes(_, meta) => (EntryKind::File, *meta),
                File::Zeros(size) => {
                    let meta = FileMeta {
                        size: *size,
                        ..FileMeta::default()
                    };
                    (EntryKind::File, meta)
                }
                File::Errno(errno) if i32::from(*errno) == libc::EISDIR => {
                    (EntryKind::Directory, FileMeta::default())
                }
                File::Errno(_) => continue,
            };
            names.insert(name.to_vec(), (kind, meta));
        }
        names.into_iter().rev().collect()
    }
}

impl Io for Net {
    fn read(&mut self, stream: StreamId, buffer: &mut [u8]) -> usize {
        let inbox = &mut self.wire(stream).inbox;
        let count = inbox.len().min(buffer.len());
        for (into, from) in buffer.iter_mut().zip(inbox.drain(..count)) {
            *into = from;
        }
        count
    }

    fn write(&mut self, stream: StreamId, bytes: &[u8]) -> usize {
        let unacknowledged = self.unacknowledged(stream);
        let wire = self.wire(stream);
        assert!(!wire.shut_down, "nothing follows a FIN");
        let room = wire
            .queue_bytes_max
            .saturating_sub(unacknowledged)
            .min(bytes.len() as u64) as usize;
        wire.queued.push(Piece::Real(bytes[..room].to_vec()));
        wire.queued_bytes += room as u64;
        wire.short |= room < bytes.len();
        room
    }

    fn write_file(&mut self, stream: StreamId, file: FileHandle, range: Range<u64>) -> u64 {
        let handle = &self.handles[&file];
        assert!(
            handle.stream == stream && handle.opened && !handle.closed,
            "a file to write from"
        );
        let size = match &self.files[&handle.path] {
            File::Bytes(content, _) => content.len() as u64,
            File::Zeros(size) => *size,
            File::Errno(_) => 0,
        };
        assert!(
            range.start < range.end && range.end <= size,
            "{range:?} is within {size}"
        );
        let path = handle.path.clone();
        let unacknowledged = self.unacknowledged(stream);
        let wire = self.wire(stream);
        assert!(!wire.shut_down, "nothing follows a FIN");
        if unacknowledged >= wire.queue_bytes_max {
            wire.short = true;
            return 0;
        }
        let count = range.end - range.start;
        wire.queued_bytes += count;
        wire.queued.push(Piece::Virtual { path, range });
        count
    }

    fn open(&mut self, stream: StreamId, path: &[u8], _: Growth) -> FileHandle {
        assert!(
            !path.is_empty() && !path.starts_with(b"/") && !path.contains(&0),
            "{path:?} may be opened"
        );
        self.handle_last += 1;
        let file = FileHandle(self.handle_last);
        self.handles.insert(
            file,
            Handle {
                stream,
                path: path.to_vec(),
                opened: false,
                closed: false,
            },
        );
        if !self.hold_opens {
            self.answer_open(file);
        }
        file
    }

    fn open_passed(&mut self, _: StreamId, _: PassedId) -> FileHandle {
        unreachable!("the server opens files by path")
    }

    fn list(&mut self, stream: StreamId, path: &[u8], from: Option<ListPlace>) -> FileHandle {
        assert!(!path.starts_with(b"/") && !path.ends_with(b"/"));
        let number = match from {
            None => 0,
            Some(place) => {
                let known = (0..).find(|&number| ListPlace::at(number) == place);
                known.expect("a place that was given out")
            }
        };
        let text = String::from_utf8_lossy(path).into_owned();
        self.lists.asked.push((text, number == 0));
        self.handle_last += 1;
        let file = FileHandle(self.handle_last);
        if !self.lists.is_held {
            let event = self.listing(file, path, number as usize);
            self.events.push_back(Event::Stream(stream, event));
        }
        file
    }

    fn close_file(&mut self, file: FileHandle) {
        let handle = self
            .handles
            .get_mut(&file)
            .expect("a handle that was given out");
        assert!(!std::mem::replace(&mut handle.closed, true), "closed once");
    }

    fn shutdown(&mut self, stream: StreamId) {
        let wire = self.wire(stream);
        assert!(
            !std::mem::replace(&mut wire.shut_down, true),
            "shut down once"
        );
    }

    fn abort(&mut self, stream: StreamId) {
        self.wire(stream).aborted = true;
    }

    fn quic_stream(&self, stream: StreamId) -> Option<QuicStream> {
        self.streams.get(&stream)?.quic
    }

    fn open_unidirectional(&mut self, connection: QuicConnection) -> Option<StreamId> {
        if self.quic[&connection].is_barred {
            return None;
        }
        Some(self.new_stream(QuicStream { connection, id: 3 }))
    }

    fn peer_streams_max(&mut self, connection: QuicConnection) -> u64 {
        let is_over = |wire: &&Wire| {
            let quic = wire.quic.filter(|it| it.connection == connection);
            wire.closed && quic.is_some_and(|it| !it.is_unidirectional())
        };
        STREAMS_MAX + self.streams.values().filter(is_over).count() as u64
    }

    fn reset_stream(&mut self, stream: StreamId, code: u64) {
        let wire = self.wire(stream);
        wire.reset.get_or_insert(code);
    }

    fn stop_sending(&mut self, stream: StreamId, code: u64) {
        let wire = self.wire(stream);
        wire.stopped.get_or_insert(code);
        wire.inbox.clear();
        if !wire.peer_finished {
            // RFC 9000 §3.5: the peer answers with RESET_STREAM.
            wire.peer_finished = true;
            let reset = AppEvent::PeerReset { code };
            self.events.push_back(Event::Stream(stream, reset));
        }
    }

    fn prioritize(&mut self, stream: StreamId, priority: i32) {
        self.wire(stream).priority = Some(priority);
    }

    fn close_quic(&mut self, connection: QuicConnection, code: u64, reason: &[u8]) {
        let quic = self.quic.get_mut(&connection).expect("a connection");
        assert!(quic.closed.is_none(), "closed once");
        quic.closed = Some((code, reason.to_vec()));
        self.end_quic(connection, QuicCloseReason::Local);
    }

    fn set_timer(&mut self, stream: StreamId, after: Option<Duration>) {
        let now = self.now;
        self.wire(stream).timer = after.map(|after| now + after);
    }

    fn set_idle(&mut self, stream: StreamId, is_idle: bool) {
        self.wire(stream).is_idle = is_idle;
    }

    fn set_max_pacing_rate(&mut self, stream: StreamId, bytes_per_second: Option<u64>) {
        assert_ne!(bytes_per_second, Some(0), "a rate at which something moves");
        let wire = self.wire(stream);
        wire.rate_max = bytes_per_second;
        wire.rates_set += 1;
    }

    fn set_notsent_lowat(&mut self, stream: StreamId, bytes: u64) {
        self.wire(stream).notsent_lowat = Some(bytes);
    }

    fn acknowledged(&self, stream: StreamId) -> u64 {
        self.streams[&stream].acknowledged_bytes
    }

    fn unacknowledged(&self, stream: StreamId) -> u64 {
        let wire = &self.streams[&stream];
        wire.queued_bytes - wire.acknowledged_bytes
    }

    fn unsent(&self, stream: StreamId) -> u64 {
        self.unacknowledged(stream)
    }

    fn usable_window(&self, stream: StreamId) -> u64 {
        self.streams[&stream].usable_window_bytes
    }

    fn waits_for_peer(&self, stream: StreamId) -> bool {
        self.unacknowledged(stream) > 0
    }

    fn retransmissions(&self, stream: StreamId) -> u32 {
        self.streams[&stream].retransmissions
    }

    fn now_us(&self) -> u64 {
        (self.now - START).as_micros() as u64
    }

    fn unix_time(&self) -> Duration {
        self.now
    }
}

/// What TLS of QUIC agrees upon.
fn agreed(identity: &TlsIdentity) -> TlsAgreed {
    TlsAgreed {
        suite: TlsSuite {
            version: TlsVersion::Tls13,
            cipher: TlsCipher::Aes128Gcm,
        },
        alpn: Some(b"h3".to_vec()),
        is_resumed: false,
        identity: identity.clone(),
    }
}

/// A GET as most clients send it.
pub(crate) fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: example.org\r\n\r\n")
}

/// The same with further header fields.
pub(crate) fn get_with(target: &str, fields: &[(&str, &str)]) -> String {
    let lines = fields
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"));
    let lines: String = lines.collect();
    format!("GET {target} HTTP/1.1\r\nHost: example.org\r\n{lines}\r\n")
}

/// A HEAD likewise.
pub(crate) fn head(target: &str) -> String {
    format!("HEAD {target} HTTP/1.1\r\nHost: example.org\r\n\r\n")
}
