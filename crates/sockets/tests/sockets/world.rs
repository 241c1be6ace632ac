//! A machine with applications and a machine with clients, on one link, in virtual time.

use std::collections::BTreeMap;

use contract::channel::in_memory;
use contract::splicing::{SpliceEndReason, SpliceNumbers, SpliceOutcome};
use contract::{Event, FlowId};
use fakes::nic::FakeNic;
use host::app::{AppEvent, Application, CloseReason, Io, Owner, StreamId};
use host::{Absent, Applications, Link, Stack, StackConfig};
use netdev::memory::{self, MemoryPort, pair};
use netdev::{Offload, Port, Superpacket};
use socket_channel::{AppId, ChannelId};
use sockets::Sockets;

pub(crate) const SERVER: &str = "10.77.0.2";
const CLIENT: &str = "10.77.0.1";
/// Another address of the machine with clients.
pub(crate) const OTHER_CLIENT: &str = "10.77.0.3";

/// What a client has heard of one connection.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) is_connected: bool,
    pub(crate) received: Vec<u8>,
    pub(crate) has_finished: bool,
    pub(crate) closed: Option<CloseReason>,
    /// What is still to be sent.
    unsent: Vec<u8>,
    finishes: bool,
}

/// Clients that note what they hear, and servers that echo.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    pub(crate) heard: BTreeMap<StreamId, Heard>,
    /// What is accepted is sent back, and ended when the peer has ended.
    pub(crate) echoes: bool,
    /// What has arrived is left where it is.
    pub(crate) is_stalled: bool,
}

impl Clients {
    fn send(&mut self, io: &mut dyn Io, stream: StreamId) {
        let heard = self.heard.entry(stream).or_default();
        let taken = io.write(stream, &heard.unsent);
        heard.unsent.drain(..taken);
        if heard.unsent.is_empty() && heard.finishes {
            io.shutdown(stream);
        }
    }

    fn receive(&mut self, io: &mut dyn Io, stream: StreamId) {
        let mut buffer = [0; 4096];
        while !self.is_stalled {
            let count = io.read(stream, &mut buffer);
            if count == 0 {
                return;
            }
            let echoes = self.echoes;
            let heard = self.heard.entry(stream).or_default();
            heard.received.extend_from_slice(&buffer[..count]);
            if echoes {
                heard.unsent.extend_from_slice(&buffer[..count]);
                self.send(io, stream);
            }
        }
    }
}

impl Application for Clients {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        let echoes = self.echoes;
        let heard = self.heard.entry(stream).or_default();
        match event {
            AppEvent::Connected | AppEvent::Accepted { .. } => heard.is_connected = true,
            AppEvent::Readable => self.receive(io, stream),
            AppEvent::Writable => self.send(io, stream),
            AppEvent::PeerFinished => {
                heard.has_finished = true;
                heard.finishes |= echoes;
                self.receive(io, stream);
                self.send(io, stream);
            }
            AppEvent::Closed { reason, .. } => heard.closed = Some(reason),
            _ => {}
        }
    }
}

/// Does something with an [`Io`] once.
struct Once<F>(Option<F>);

impl<F: FnOnce(&mut dyn Io)> Application for Once<F> {
    fn on_event(&mut self, _: &mut dyn Io, _: StreamId, event: AppEvent) {
        panic!("{event:?} before anything was said");
    }

    fn on_wake(&mut self, io: &mut dyn Io, _: u64) {
        self.0.take().expect("once")(io);
    }
}

pub(crate) struct World {
    pub(crate) now_us: u64,
    pub(crate) clients: Clients,
    pub(crate) client: Stack,
    client_port: MemoryPort,
    client_nic: FakeNic,
    pub(crate) apps: Applications<Clients, Absent, Sockets>,
    pub(crate) server: Stack,
    server_port: MemoryPort,
    pub(crate) nic: FakeNic,
    /// The NIC stack ends splices as soon as the host stack wants to have one back.
    pub(crate) ends_splices: bool,
    splices_ended: usize,
    /// Frames to the server of which one in so many is lost; 0: none.
    pub(crate) loss: u64,
    frames: u64,
}

fn stack(
    address: &str,
    listen_ports: Vec<u16>,
    port: &MemoryPort,
    now_us: u64,
    configure: impl FnOnce(&mut StackConfig),
) -> (Stack, FakeNic) {
    let addresses = vec![(address.parse().unwrap(), 24)];
    let mut config = StackConfig::new(addresses, listen_ports, [address.len() as u8; 16]);
    configure(&mut config);
    let (host, nic) = in_memory();
    let stack = Stack::new(config, Link::of(port), vec![host], now_us);
    (stack, FakeNic::new(nic))
}

impl World {
    pub(crate) fn new() -> World {
        World::with(|_| {})
    }

    /// The same with a configuration of the applications' stack.
    pub(crate) fn with(configure: impl FnOnce(&mut StackConfig)) -> World {
        let now_us = 1_000_000;
        let (client_port, server_port) = pair(memory::Link::default());
        let (client, client_nic) = stack(CLIENT, vec![7], &client_port, now_us, |config| {
            config.addresses.push((OTHER_CLIENT.parse().unwrap(), 24));
        });
        let (server, nic) = stack(SERVER, vec![], &server_port, now_us, configure);
        World {
            now_us,
            clients: Clients {
                echoes: true,
                ..Clients::default()
            },
            client,
            client_port,
            client_nic,
            apps: Applications {
                server: Clients::default(),
                proxy: Absent,
                others: Sockets::without_descriptors(),
            },
            server,
            server_port,
            nic,
            ends_splices: false,
            splices_ended: 0,
            loss: 0,
            frames: 0,
        }
    }

    pub(crate) fn sockets(&self) -> &Sockets {
        &self.apps.others
    }

    /// Opens a connection of a client.
    pub(crate) fn connect(&mut self, port: u16) -> StreamId {
        self.connect_from(CLIENT, port)
    }

    /// The same from one of the addresses of clients.
    pub(crate) fn connect_from(&mut self, from: &str, port: u16) -> StreamId {
        let to = format!("{SERVER}:{port}").parse().unwrap();
        let from = format!("{from}:0").parse().unwrap();
        let stream = self
            .client
            .connect(self.now_us, Owner::SERVER, Some(from), to)
            .unwrap();
        self.clients.heard.insert(stream, Heard::default());
        stream
    }

    pub(crate) fn heard(&self, stream: StreamId) -> &Heard {
        &self.clients.heard[&stream]
    }

    /// The client sends, and then ends its direction if it finishes.
    pub(crate) fn client_sends(&mut self, stream: StreamId, bytes: &[u8], finishes: bool) {
        let heard = self.clients.heard.entry(stream).or_default();
        heard.unsent.extend_from_slice(bytes);
        heard.finishes = finishes;
        let clients = &mut self.clients;
        let act = |io: &mut dyn Io| clients.send(io, stream);
        self.client.wake(self.now_us, &mut Once(Some(act)));
    }

    /// Clients take what has arrived again.
    pub(crate) fn resume_clients(&mut self) {
        self.clients.is_stalled = false;
        let streams: Vec<StreamId> = self.clients.heard.keys().copied().collect();
        for stream in streams {
            let clients = &mut self.clients;
            let act = |io: &mut dyn Io| clients.receive(io, stream);
            self.client.wake(self.now_us, &mut Once(Some(act)));
        }
    }

    pub(crate) fn client_aborts(&mut self, stream: StreamId) {
        let act = |io: &mut dyn Io| io.abort(stream);
        self.client.wake(self.now_us, &mut Once(Some(act)));
    }

    /// A process of an application ends without a word.
    pub(crate) fn end_process(&mut self, app: AppId, channel: ChannelId) {
        let sockets = &mut self.apps.others;
        let act = |io: &mut dyn Io| sockets.end_process(io, app, channel);
        self.server.wake(self.now_us, &mut Once(Some(act)));
    }

    /// The kernel closes a descriptor.
    pub(crate) fn hang_up(&mut self, app: AppId, handle: socket_channel::HandleId) {
        let sockets = &mut self.apps.others;
        let act = |io: &mut dyn Io| sockets.close_handle(io, app, handle);
        self.server.wake(self.now_us, &mut Once(Some(act)));
    }

    /// A descriptor that the shard watches ends its sleep.
    pub(crate) fn on_wake(&mut self) {
        let (sockets, now_us) = (&mut self.apps.others, self.now_us);
        let act = |io: &mut dyn Io| sockets.on_wake(io, now_us);
        self.server.wake(now_us, &mut Once(Some(act)));
    }

    pub(crate) fn detach(&mut self, app: AppId) -> bool {
        self.apps.others.detach(app)
    }

    pub(crate) fn step(&mut self) {
        self.now_us += 50;
        let now_us = self.now_us;
        let client = &mut self.client;
        let receive = &mut |frame: netdev::Frame<'_>| client.on_frame(now_us, frame);
        self.client_port.receive(usize::MAX, receive).unwrap();
        turn(
            client,
            &mut self.client_port,
            &mut self.clients,
            &mut self.client_nic,
            now_us,
        );
        let (server, loss, frames) = (&mut self.server, self.loss, &mut self.frames);
        let receive = &mut |frame: netdev::Frame<'_>| {
            *frames += 1;
            if loss == 0 || *frames % loss != 0 {
                server.on_frame(now_us, frame);
            }
        };
        self.server_port.receive(usize::MAX, receive).unwrap();
        turn(
            server,
            &mut self.server_port,
            &mut self.apps,
            &mut self.nic,
            now_us,
        );
        while self.ends_splices && self.splices_ended < self.nic.unsplices.len() {
            let (flow, _) = self.nic.unsplices[self.splices_ended];
            self.splices_ended += 1;
            self.end_splice(flow, [0; 2], SpliceEndReason::Aborted);
        }
    }

    /// The NIC stack says that a splice has ended so, with so many bytes passed.
    pub(crate) fn end_splice(
        &mut self,
        flow: FlowId,
        passed_bytes: [u64; 2],
        reason: SpliceEndReason,
    ) {
        let seen = self.nic.splices.iter().rev().find(|it| it.flow == flow);
        let seen = *seen.expect("a SPLICE");
        let numbers = |side: usize| SpliceNumbers {
            snd_nxt: seen.legs[side].0,
            rcv_nxt: seen.legs[side].1,
            snd_window_bytes: 1 << 16,
            rcv_window_bytes: 1 << 16,
            ts_value: 1,
            ts_recent: 1,
        };
        let outcome = Box::new(SpliceOutcome {
            flow,
            passed_bytes,
            legs: [0, 1].map(numbers),
        });
        let event = Event::SpliceEnded { outcome, reason };
        self.nic.channel.send(&event).expect("room for an event");
        self.nic.channel.flush();
    }

    /// Steps until `done`, for at most two minutes of virtual time.
    #[track_caller]
    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&mut World) -> bool) {
        for _ in 0..2_400_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("{}", self.describe());
    }

    fn describe(&self) -> String {
        let clients = self.clients.heard.values().map(|heard| {
            let Heard {
                is_connected,
                has_finished,
                closed,
                ..
            } = heard;
            let (received, unsent) = (heard.received.len(), heard.unsent.len());
            format!("{is_connected} {has_finished} {closed:?} {received} {unsent}\n")
        });
        let clients: String = clients.collect();
        let applications: Vec<_> = self.sockets().applications().collect();
        let (counters, usage) = (self.sockets().counters(), self.server.usage());
        format!(
            "{clients}{applications:#?}\n{counters:#?}\n{usage:#?}\n{:#?}",
            self.server.counters()
        )
    }

    pub(crate) fn run_for_us(&mut self, us: u64) {
        let until_us = self.now_us + us;
        self.run_until(|world| world.now_us >= until_us);
    }

    /// Nothing of any application is left, nor of any connection but in TIME-WAIT.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&mut self) {
        self.run_until(|world| world.server.usage().connections == 0);
        let sockets = self.sockets();
        assert_eq!(sockets.counters().sockets, 0, "{}", self.describe());
        assert_eq!(sockets.applications().count(), 0, "{}", self.describe());
        assert_eq!(self.server.usage().files, 0);
    }
}

fn turn<A: Application>(
    stack: &mut Stack,
    port: &mut MemoryPort,
    app: &mut A,
    nic: &mut FakeNic,
    now_us: u64,
) {
    stack.on_channels(now_us, usize::MAX).unwrap();
    stack.on_time(now_us);
    stack.serve(now_us, port, app);
    stack.retry_waiting_room();
    nic.take();
    while let Some(work) = nic.work.pop_front() {
        for frame in nic.carry_out(work, now_us) {
            let packet = Superpacket {
                header: &frame,
                payload: &[],
                offload: Offload::None,
            };
            port.send(&packet).unwrap();
        }
    }
}
