//! A client of rustls on the rig's TCP, and a server that speaks TLS.

use std::io::{Read, Write};
use std::sync::Arc;

use host::StackConfig;
use host::app::{AppEvent, CloseReason, TlsAgreed};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tls::{Settings, Suite};

use crate::rig::Rig;
use fakes::sealer::World;
use fakes::site::{Identity, Site, UNIX_TIME};

/// Everything together.
pub(crate) struct Secured {
    pub(crate) rig: Rig,
    pub(crate) world: World,
    pub(crate) client: ClientConnection,
    config: Arc<ClientConfig>,
    /// What the client has received.
    pub(crate) received: Vec<u8>,
    /// Why the client has given up, if it has.
    pub(crate) broken: Option<rustls::Error>,
    /// The server has said close_notify.
    pub(crate) is_closed: bool,
    outgoing: Vec<u8>,
}

impl Secured {
    pub(crate) fn new(suite: Suite) -> Secured {
        Secured::with(suite, &Settings::default(), 1, |_| {})
    }

    /// With settings and a configuration of its own, and so many NIC stacks.
    pub(crate) fn with(
        suite: Suite,
        settings: &Settings,
        nics: usize,
        configure: impl FnOnce(&mut StackConfig),
    ) -> Secured {
        Secured::with_workers(suite, settings, &vec![1; nics], configure)
    }

    /// The same with NIC stacks of so many workers.
    pub(crate) fn with_workers(
        suite: Suite,
        settings: &Settings,
        nics: &[usize],
        configure: impl FnOnce(&mut StackConfig),
    ) -> Secured {
        let site = Site::new(&[Identity::ecdsa(&["localhost"])], settings);
        let mut rig = Rig::with_workers(nics, configure);
        let world = World::default();
        for worker in 0..nics.iter().sum() {
            rig.nic(worker).sealer = Some(world.sealer());
        }
        rig.stack.set_unix_time(UNIX_TIME);
        rig.stack.serve_tls(80, Arc::clone(&site.config));
        let config = Arc::new(site.client_config(suite));
        Secured {
            rig,
            world,
            client: connect(&config),
            config,
            received: Vec::new(),
            broken: None,
            is_closed: false,
            outgoing: Vec::new(),
        }
    }

    /// A new client, which knows what the one before has learned, takes its place.
    pub(crate) fn reconnect(&mut self) {
        self.rig.reconnect();
        self.client = connect(&self.config);
        self.received.clear();
        self.outgoing.clear();
        (self.broken, self.is_closed) = (None, false);
    }

    /// What another client would say first.
    pub(crate) fn hello(&self) -> Vec<u8> {
        let mut hello = Vec::new();
        connect(&self.config).write_tls(&mut hello).unwrap();
        hello
    }

    pub(crate) fn step(&mut self) {
        self.rig.step();
        self.exchange();
    }

    /// What has come goes through TLS, and what there is to say is handed to TCP.
    pub(crate) fn exchange(&mut self) {
        let bytes = std::mem::take(&mut self.rig.received);
        let mut rest = &bytes[..];
        while !rest.is_empty() && self.broken.is_none() {
            self.client.read_tls(&mut rest).unwrap();
            let state = match self.client.process_new_packets() {
                Ok(state) => state,
                Err(error) => {
                    self.broken = Some(error);
                    break;
                }
            };
            self.is_closed |= state.peer_has_closed();
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = self.client.reader().read(&mut buffer) {
                self.received.extend(&buffer[..count]);
            }
        }
        while self.client.wants_write() {
            self.client.write_tls(&mut self.outgoing).unwrap();
        }
        let taken = self.rig.client.write(&self.outgoing);
        self.outgoing.drain(..taken);
    }

    /// Steps until `done`, for at most a minute of virtual time.
    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&Secured) -> bool) {
        self.exchange();
        for _ in 0..600_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!(
            "not done after a minute: {} bytes received, {:?}, {:?}, {:?}",
            self.received.len(),
            self.broken,
            self.rig.client.state(),
            self.rig.stack.counters()
        );
    }

    /// The client asks for files of these sizes, in one go.
    pub(crate) fn ask(&mut self, lines: &[&str]) {
        for line in lines {
            let line = format!("{line}\n");
            self.client.writer().write_all(line.as_bytes()).unwrap();
        }
        self.exchange();
    }

    /// Bytes that no TLS has seen.
    pub(crate) fn say_raw(&mut self, bytes: &[u8]) {
        self.outgoing.extend_from_slice(bytes);
    }

    /// What was agreed upon, on each connection that was accepted.
    pub(crate) fn agreed(&self) -> Vec<TlsAgreed> {
        let events = self.rig.app.events.iter();
        events
            .filter_map(|event| match event {
                AppEvent::Accepted { tls, .. } => tls.as_deref().cloned(),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        self.rig.app.events.iter().find_map(|event| match event {
            AppEvent::Closed { reason, .. } => Some(*reason),
            _ => None,
        })
    }

    /// A new NIC worker takes the place of the old one. `has_ended`: nothing of the old one can be
    /// missing.
    pub(crate) fn restart_nic(&mut self, has_ended: bool) {
        if has_ended {
            self.rig.stack.on_nic_ended(self.rig.now_us, 0);
        }
        self.rig.restart_nic();
        self.rig.nic.sealer = Some(self.world.sealer());
    }

    pub(crate) fn lose_nic(&mut self, number: usize, has_ended: bool) {
        if has_ended {
            self.rig.stack.on_nic_ended(self.rig.now_us, number);
        }
        self.rig.lose_nic(number);
    }

    pub(crate) fn bring_nic(&mut self, number: usize) {
        self.rig.bring_nic(number);
        self.rig.nic(number).sealer = Some(self.world.sealer());
    }

    /// Lets time pass until nothing of the connection is left, and says how long that took.
    pub(crate) fn until_nothing_is_left(&mut self) -> u64 {
        let begun_us = self.rig.now_us;
        self.run_until(|secured| secured.rig.stack.usage().connections == 0);
        let took_us = self.rig.now_us - begun_us;
        self.step();
        self.step();
        let usage = self.rig.stack.usage();
        assert_eq!((usage.files, usage.sends_outstanding), (0, 0));
        took_us
    }
}

fn connect(config: &Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(Arc::clone(config), name).unwrap()
}
