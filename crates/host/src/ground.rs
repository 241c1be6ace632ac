//! What both transports stand on: the link, the NIC workers, files, events and counters.
//!
//! A [`Ground`] knows no connection. Methods of a transport get it beside their own state.
//!
//! | File | Contents |
//! |---|---|
//! | `layers` | the transports, as the ground sees them |
//! | `workers` | the channels, and messages that did not fit |
//! | `nics` | NIC stacks that come, go, or start again |
//! | `reports` | events of the NIC workers |
//! | `nic_flow` | a connection's flow at its NIC worker |
//! | `moving` | connections that move from one worker to another |
//! | `files` | the search for a NIC stack that has a file |
//! | `reopening` | files that a new worker opens again |
//! | `listing` | listings of directories |
//! | `look_up` | metadata of files, for no connection |
//! | `division` | how many workers are in use, and which connections go to which, as load changes |
//! | `memory`, `shortage` | measures when connection memory, or files and descriptors, run short |
//! | `steering` | flows that a packet filter gives to NIC workers |
//! | `access` | which clients may connect |
//! | `echo` | replies to pings, and to datagrams without a socket |
//! | `link` | the link, and how much fits into a SEND |

mod access;
pub(crate) mod division;
pub(crate) mod echo;
pub(crate) mod files;
mod layers;

pub(crate) mod link;
pub(crate) mod listing;
pub(crate) mod look_up;
pub(crate) mod memory;
mod moving;
pub(crate) mod nic_flow;
mod nics;
mod reopening;
mod reports;
pub(crate) mod shortage;
pub(crate) mod steering;
pub(crate) mod workers;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use client_address::AccessList;
use netdev::steering::SteeringMap;

use self::division::Division;
use self::echo::EchoReplies;
use self::link::Link;
use self::memory::Memory;
use self::shortage::Shortage;
use self::workers::WorkerLink;
use crate::app::{AppEvent, StreamId};
use crate::config::{Proxies, StackConfig};
use crate::counters::Counters;
use crate::episode::Episode;
use crate::link::neighbor::Neighbors;
use crate::nics::balance::Balance;
use crate::nics::nic_stacks::{NicSet, NicStacks};
use crate::tables::files::FileTable;
use crate::tables::keyed_hash::KeyedHash;
use crate::tables::sources::Sources;

pub(crate) use self::layers::Layers;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) config: StackConfig,
    pub(crate) link: Link,
    pub(crate) neighbors: Neighbors,
    pub(crate) files: FileTable,
    pub(crate) nic_stacks: NicStacks,
    /// The workers of all NIC stacks.
    pub(crate) workers: Vec<WorkerLink>,
    /// How many connections each worker has.
    pub(crate) balance: Balance,
    pub(crate) division: Division,
    /// How many connections each source has.
    pub(crate) sources: Sources,
    /// Proxies in front of the server.
    pub(crate) proxies: Proxies,
    /// Which clients may connect.
    pub(crate) access: AccessList,
    /// Clients that may not connect have tried to.
    denied: Episode,
    pub(crate) memory: Memory,
    pub(crate) shortage: Shortage,
    pub(crate) steering: Option<SteeringMap>,
    pub(crate) echo: EchoReplies,
    /// True while the host handles a frame handed up by a NIC stack: it does not go there again.
    pub(crate) is_handed_up: bool,
    /// Events for applications, other than the connections' own.
    pub(crate) app_events: VecDeque<(StreamId, AppEvent)>,
    /// Finished frames that belong to no connection.
    pub(crate) frames: VecDeque<Vec<u8>>,
    /// SENDs issued and not departed, of all connections.
    pub(crate) sends_outstanding: u64,
    pub(crate) sends_departed: u64,
    pub(crate) unix_time: Duration,
    pub(crate) counters: Counters,
}

impl Ground {
    pub(crate) fn new(config: StackConfig, link: Link, nic_stacks: usize, now_us: u64) -> Ground {
        let limit = config.admission.connections_per_source;
        Ground {
            link,
            neighbors: neighbors(&link, &config),
            files: FileTable::default(),
            nic_stacks: NicStacks::new(nic_stacks),
            workers: Vec::new(),
            balance: Balance::default(),
            division: Division::default(),
            sources: Sources::new(limit, KeyedHash(config.hash_key())),
            proxies: Proxies::default(),
            access: AccessList::default(),
            denied: Episode::default(),
            memory: Memory::default(),
            shortage: Shortage::default(),
            steering: None,
            echo: EchoReplies::new(&config, now_us),
            is_handed_up: false,
            app_events: VecDeque::new(),
            frames: VecDeque::new(),
            sends_outstanding: 0,
            sends_departed: 0,
            unix_time: Duration::ZERO,
            counters: Counters::default(),
            config,
        }
    }

    /// Changes the addresses and gateways, of which the kernel answers for the addresses.
    pub(crate) fn set_addresses(&mut self, addresses: Vec<(IpAddr, u8)>, gateways: Vec<IpAddr>) {
        self.config.addresses = addresses;
        self.config.gateways = gateways;
        let config = &self.config;
        (self.neighbors).set_addresses(&config.addresses, &config.gateways);
    }

    /// The worker with the fewest connections, if there are any workers.
    pub(crate) fn least_busy(&self, workers: impl Iterator<Item = usize> + Clone) -> Option<usize> {
        self.balance.choose(workers, || 0)
    }

    /// Chooses a worker for a new connection, one that is there if possible. `hash` hashes its
    /// addresses under a secret key.
    pub(crate) fn enter_worker(&mut self, hash: impl Fn() -> u64) -> usize {
        let there = self.nic_stacks.workers_to_choose(NicSet::default());
        let worker = self.balance.choose(there, &hash);
        let worker = worker.or_else(|| self.balance.choose(self.nic_stacks.all_workers(), hash));
        let worker = worker.unwrap_or(0);
        self.balance.add(worker);
        worker
    }
}

fn neighbors(link: &Link, config: &StackConfig) -> Neighbors {
    let mut neighbors = Neighbors::new(link.mac, &config.addresses, &config.gateways);
    if config.is_shared {
        neighbors.share();
    }
    neighbors
}
