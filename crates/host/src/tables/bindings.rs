//! Local addresses and ports that applications have bound, and their listeners.
//!
//! The rules are those of Linux (socket(7), `inet_csk_get_port`): two bindings of one port conflict
//! if their addresses overlap, unless both allow the address to be used again and neither listens,
//! or both belong to the same reuseport group. The options of both count when the later one binds
//! or begins to listen; but a port that a member of a group was the last to bind or listen on
//! admits further members unchecked (`tb->fastreuseport`). Connections go to the listener with the
//! most specific address, and within a group to the one that the hash of their addresses chooses.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;

use contract::setup::SetupScope;
use rustc_hash::FxHashMap;
use slab::Slab;

use crate::app::{Bind, BindError, BindingId, Owner, StreamOptions, TrafficClass};
use crate::tables::sources::Source;

/// Destination addresses that a binding covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    One(IpAddr),
    AllV4,
    AllV6,
    /// Both families: an unspecified IPv6 address without `IPV6_V6ONLY`.
    All,
}

impl Scope {
    fn of(bind: &Bind) -> Scope {
        match bind.address.ip() {
            ip if !ip.is_unspecified() => Scope::One(ip),
            IpAddr::V4(_) => Scope::AllV4,
            IpAddr::V6(_) if bind.v6_only => Scope::AllV6,
            IpAddr::V6(_) => Scope::All,
        }
    }

    fn contains(self, other: Scope) -> bool {
        match (self, other) {
            (Scope::All, _) => true,
            (Scope::AllV4, Scope::One(ip)) => ip.is_ipv4(),
            (Scope::AllV6, Scope::One(ip)) => ip.is_ipv6(),
            (own, other) => own == other,
        }
    }
}

/// One bound address and port.
#[derive(Debug)]
pub(crate) struct Binding {
    generation: u32,
    owner: Owner,
    scope: Scope,
    address: SocketAddr,
    reuse_address: bool,
    reuse_port: Option<u32>,
    listening: Option<Listening>,
}

/// State of a listening binding.
#[derive(Debug, Default)]
struct Listening {
    options: StreamOptions,
    /// Connections that its application has room for; `None`: any number.
    room: Option<usize>,
    /// Connections on their way to the application.
    on_their_way: usize,
    /// Its place among the listeners of its scope that have room.
    open_at: Option<usize>,
}

impl Listening {
    fn is_full(&self) -> bool {
        self.room.is_some_and(|room| self.on_their_way >= room)
    }
}

/// The properties of a binding that decide about conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    owner: Owner,
    reuse_address: bool,
    reuse_port: Option<u32>,
    listens: bool,
}

impl Class {
    /// Reports whether another binding with these options may not bind or begin to listen.
    fn forbids(&self, reuse_address: bool, reuse_port: Option<u32>) -> bool {
        let is_reused = reuse_address && self.reuse_address && !self.listens;
        let is_shared = reuse_port.is_some() && self.reuse_port == reuse_port;
        !is_reused && !is_shared
    }
}

impl Binding {
    fn class(&self) -> Class {
        Class {
            owner: self.owner,
            reuse_address: self.reuse_address,
            reuse_port: self.reuse_port,
            listens: self.listening.is_some(),
        }
    }
}

/// Number of bindings of each class: at most eight classes per application, regardless of the
/// number of bindings.
#[derive(Debug, Default)]
struct Classes(Vec<(Class, u32)>);

impl Classes {
    fn add(&mut self, class: Class) {
        match self.0.iter_mut().find(|(other, _)| *other == class) {
            Some((_, count)) => *count += 1,
            None => self.0.push((class, 1)),
        }
    }

    fn remove(&mut self, class: Class) {
        if let Some(at) = self.0.iter().position(|(other, _)| *other == class) {
            self.0[at].1 -= 1;
            if self.0[at].1 == 0 {
                self.0.swap_remove(at);
            }
        }
    }

    fn any(&self, is: impl Fn(&Class) -> bool) -> bool {
        self.0.iter().any(|(class, _)| is(class))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The bindings of one port and one scope.
#[derive(Debug, Default)]
struct Group {
    classes: Classes,
    /// Number of its listeners.
    listeners: usize,
    /// Its listeners with room.
    open: Vec<usize>,
}

/// The bindings of one port.
#[derive(Debug, Default)]
struct Port {
    one: HashMap<IpAddr, Group>,
    /// Classes of the bindings of single addresses: IPv4's, and IPv6's.
    ones: [Classes; 2],
    /// Bindings of all IPv4 addresses, of all IPv6 addresses, and of both.
    all: [Group; 3],
    /// The reuseport group, and the scope, of the binding that was the last to bind or to begin to
    /// listen, if that binding was in a group. Later changes of its options have no effect.
    shared: Option<(u32, Scope)>,
}

fn family(ip: IpAddr) -> usize {
    usize::from(ip.is_ipv6())
}

impl Port {
    fn group_mut(&mut self, scope: Scope) -> &mut Group {
        match scope {
            Scope::One(ip) => self.one.entry(ip).or_default(),
            Scope::AllV4 => &mut self.all[0],
            Scope::AllV6 => &mut self.all[1],
            Scope::All => &mut self.all[2],
        }
    }

    fn add(&mut self, scope: Scope, class: Class) {
        self.group_mut(scope).classes.add(class);
        if let Scope::One(ip) = scope {
            self.ones[family(ip)].add(class);
        }
    }

    fn remove(&mut self, scope: Scope, class: Class) {
        let group = self.group_mut(scope);
        group.classes.remove(class);
        let is_empty = group.classes.is_empty();
        if let Scope::One(ip) = scope {
            self.ones[family(ip)].remove(class);
            if is_empty {
                self.one.remove(&ip);
            }
        }
    }

    /// Reports whether a binding with these options may bind or begin to listen.
    fn admits(&self, scope: Scope, reuse_address: bool, reuse_port: Option<u32>) -> bool {
        let forbids = |other: &Class| other.forbids(reuse_address, reuse_port);
        self.is_shared_by(scope, reuse_port) || !self.any_overlapping(scope, forbids)
    }

    fn is_shared_by(&self, scope: Scope, reuse_port: Option<u32>) -> bool {
        let shared = self.shared.filter(|(group, _)| Some(*group) == reuse_port);
        shared.is_some_and(|(_, of)| of.contains(scope))
    }

    /// Notes the scope and the group of a binding that was admitted.
    fn note_admitted(&mut self, scope: Scope, reuse_port: Option<u32>) {
        if !self.is_shared_by(scope, reuse_port) {
            self.shared = reuse_port.map(|group| (group, scope));
        }
    }

    fn is_empty(&self) -> bool {
        self.one.is_empty() && self.all.iter().all(|group| group.classes.is_empty())
    }

    /// True if `is` holds for any binding whose scope overlaps this one.
    fn any_overlapping(&self, scope: Scope, is: impl Fn(&Class) -> bool) -> bool {
        let [v4, v6, both] = &self.all;
        let [ones_v4, ones_v6] = &self.ones;
        let none = Classes::default();
        let of_one = |ip| self.one.get(&ip).map_or(&none, |group| &group.classes);
        let overlapping = match scope {
            Scope::One(ip) => [of_one(ip), &self.all[family(ip)].classes, &none, &none],
            Scope::AllV4 => [ones_v4, &v4.classes, &none, &none],
            Scope::AllV6 => [ones_v6, &v6.classes, &none, &none],
            Scope::All => [ones_v4, ones_v6, &v4.classes, &v6.classes],
        };
        both.classes.any(&is) || overlapping.into_iter().any(|classes| classes.any(&is))
    }

    /// The scopes that cover an address, the most specific first.
    fn covering(&self, ip: IpAddr) -> impl Iterator<Item = &Group> {
        let of_one = self.one.get(&ip).into_iter();
        of_one.chain([&self.all[family(ip)], &self.all[2]])
    }
}

/// Where a connection to a local address goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// To this listener.
    Listener(BindingId),
    /// To listeners, none of which has room for it now.
    Full,
    /// No listener covers the address.
    Closed,
}

/// All bindings of a shard.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    bindings: Slab<Binding>,
    by_port: FxHashMap<u16, Port>,
    by_owner: HashMap<Owner, usize>,
    /// Sources from which the listeners of an owner accept no more connections.
    exhausted: HashSet<(Owner, Source)>,
    generation: u32,
    /// Incremented with each change of the listeners.
    revision: u64,
    /// A listener has had packets of a traffic class.
    has_classes: bool,
    /// No connections are accepted any more.
    is_closed: bool,
}

fn id(index: usize, binding: &Binding) -> BindingId {
    let word = u64::from(binding.generation) << 32 | index as u64;
    BindingId(NonZeroU64::new(word).expect("generations begin with 1"))
}

impl Bindings {
    /// Most bindings of a shard, of all applications.
    pub(crate) const BINDINGS_MAX: usize = 1 << 16;

    /// Binds an address. Of a port of 0, `choose` names one, given which ports are free.
    pub(crate) fn bind(
        &mut self,
        bind: &Bind,
        choose: impl FnOnce(&mut dyn FnMut(u16) -> bool) -> Option<u16>,
    ) -> Result<BindingId, BindError> {
        if self.bindings.len() >= Self::BINDINGS_MAX {
            return Err(BindError::TooManyBindings);
        }
        let scope = Scope::of(bind);
        let port = match bind.address.port() {
            // A port that was not asked for is shared with no other binding.
            0 => choose(&mut |port| !self.by_port.contains_key(&port)).ok_or(BindError::NoPort)?,
            port => port,
        };
        let of_port = self.by_port.get(&port);
        let admits = |port: &Port| port.admits(scope, bind.reuse_address, bind.reuse_port);
        if !of_port.is_none_or(admits) {
            return Err(BindError::InUse);
        }
        self.generation = self.generation.wrapping_add(1).max(1);
        let binding = Binding {
            generation: self.generation,
            owner: bind.owner,
            scope,
            address: SocketAddr::new(bind.address.ip(), port),
            reuse_address: bind.reuse_address,
            reuse_port: bind.reuse_port,
            listening: None,
        };
        let of_port = self.by_port.entry(port).or_default();
        of_port.add(scope, binding.class());
        of_port.note_admitted(scope, bind.reuse_port);
        *self.by_owner.entry(bind.owner).or_default() += 1;
        let index = self.bindings.insert(binding);
        Ok(id(index, &self.bindings[index]))
    }

    /// Listens on a bound address; connections get these options.
    pub(crate) fn listen(
        &mut self,
        binding: BindingId,
        options: StreamOptions,
    ) -> Result<(), BindError> {
        self.has_classes |= options.traffic_class != TrafficClass::default();
        let open = self.get(binding).filter(|_| !self.is_closed);
        let (index, found) = open.ok_or(BindError::NoBinding)?;
        let (scope, class, port) = (found.scope, found.class(), found.address.port());
        if let Some(listening) = &mut self.bindings[index].listening {
            listening.options = options;
            self.revision += 1;
            return Ok(());
        }
        let of_port = self.by_port.entry(port).or_default();
        // A binding is no obstacle to itself.
        of_port.remove(scope, class);
        let is_admitted = of_port.admits(scope, class.reuse_address, class.reuse_port);
        of_port.add(scope, class);
        if !is_admitted {
            return Err(BindError::InUse);
        }
        of_port.note_admitted(scope, class.reuse_port);
        let listening = Listening {
            options,
            ..Listening::default()
        };
        self.change_listening(index, Some(listening));
        Ok(())
    }

    /// Whether the address may be shared with those that reuse addresses (`SO_REUSEADDR`).
    pub(crate) fn reuse_address(&mut self, binding: BindingId, reuses: bool) {
        if let Some((index, _)) = self.get(binding) {
            self.change(index, |binding| binding.reuse_address = reuses);
        }
    }

    /// Whether the address may be shared with others of a group (`SO_REUSEPORT`).
    pub(crate) fn reuse_port(&mut self, binding: BindingId, group: Option<u32>) {
        if let Some((index, _)) = self.get(binding) {
            self.change(index, |binding| binding.reuse_port = group);
        }
    }

    /// Whether it is worth looking for the traffic class of a listener.
    pub(crate) fn has_classes(&self) -> bool {
        self.has_classes
    }

    /// Listens no more. The address stays bound.
    pub(crate) fn unlisten(&mut self, binding: BindingId) {
        if let Some((index, _)) = self.get(binding) {
            self.change_listening(index, None);
        }
    }

    /// Sets or removes a binding's listening state.
    fn change_listening(&mut self, index: usize, listening: Option<Listening>) {
        self.change(index, |binding| binding.listening = listening);
    }

    /// Changes a binding, and updates the groups of its port.
    fn change(&mut self, index: usize, change: impl FnOnce(&mut Binding)) {
        self.revision += 1;
        self.take_out(index);
        let binding = &mut self.bindings[index];
        let (scope, before) = (binding.scope, binding.class());
        change(binding);
        let after = binding.class();
        let port = self.by_port.entry(binding.address.port()).or_default();
        // Before the other goes, so that its group stays.
        port.add(scope, after);
        port.remove(scope, before);
        let group = port.group_mut(scope);
        group.listeners += usize::from(after.listens);
        group.listeners -= usize::from(before.listens);
        self.note_room(index);
    }

    /// Lets go of an address. Returns whether it was bound.
    pub(crate) fn release(&mut self, binding: BindingId) -> bool {
        let Some((index, _)) = self.get(binding) else {
            return false;
        };
        self.change_listening(index, None);
        let found = self.bindings.remove(index);
        let port = found.address.port();
        if let Some(of_port) = self.by_port.get_mut(&port) {
            of_port.remove(found.scope, found.class());
            if of_port.is_empty() {
                self.by_port.remove(&port);
            }
        }
        if let Some(count) = self.by_owner.get_mut(&found.owner) {
            *count -= 1;
            if *count == 0 {
                self.by_owner.remove(&found.owner);
            }
        }
        true
    }

    /// No binding listens any more, nor begins to. The addresses stay bound.
    pub(crate) fn stop_listening(&mut self) {
        self.is_closed = true;
        let listening = self
            .bindings
            .iter()
            .filter(|(_, it)| it.listening.is_some());
        let listening: Vec<usize> = listening.map(|(index, _)| index).collect();
        for index in listening {
            self.change_listening(index, None);
        }
    }

    /// Sets the number of connections that the listener's application has room for.
    pub(crate) fn set_room(&mut self, binding: BindingId, room: usize) {
        if let Some((index, listening)) = self.listening_mut(binding) {
            listening.room = Some(room);
            self.note_room(index);
        }
    }

    /// A connection is on its way to the listener's application. True if there is a bound on that,
    /// so that its arrival counts.
    pub(crate) fn reserve(&mut self, binding: BindingId) -> bool {
        let found = self.listening_mut(binding);
        let Some((index, listening)) = found.filter(|(_, it)| it.room.is_some()) else {
            return false;
        };
        listening.on_their_way += 1;
        self.note_room(index);
        true
    }

    /// It has arrived, or is gone.
    pub(crate) fn unreserve(&mut self, binding: BindingId) {
        if let Some((index, listening)) = self.listening_mut(binding) {
            listening.on_their_way = listening.on_their_way.saturating_sub(1);
            self.note_room(index);
        }
    }

    /// Has a listener among those with room, or not, as it has.
    fn note_room(&mut self, index: usize) {
        let Some(binding) = self.bindings.get_mut(index) else {
            return;
        };
        let (scope, port) = (binding.scope, binding.address.port());
        let Some(listening) = &mut binding.listening else {
            return;
        };
        if listening.is_full() {
            self.take_out(index);
        } else if listening.open_at.is_none() {
            let group = self.by_port.entry(port).or_default().group_mut(scope);
            listening.open_at = Some(group.open.len());
            group.open.push(index);
        }
    }

    /// Has a listener not among those with room.
    fn take_out(&mut self, index: usize) {
        let binding = &mut self.bindings[index];
        let (scope, port) = (binding.scope, binding.address.port());
        let open_at = binding.listening.as_mut().and_then(|it| it.open_at.take());
        let Some(place) = open_at else {
            return;
        };
        let group = self.by_port.entry(port).or_default().group_mut(scope);
        group.open.swap_remove(place);
        let moved = group.open.get(place).copied();
        let moved = moved.and_then(|other| self.bindings[other].listening.as_mut());
        if let Some(moved) = moved {
            moved.open_at = Some(place);
        }
    }

    /// The address that was bound, with its port.
    pub(crate) fn address(&self, binding: BindingId) -> Option<SocketAddr> {
        Some(self.get(binding)?.1.address)
    }

    /// The application that has bound it.
    pub(crate) fn owner(&self, binding: BindingId) -> Option<Owner> {
        Some(self.get(binding)?.1.owner)
    }

    /// The options of the listener's connections.
    pub(crate) fn options(&self, binding: BindingId) -> Option<&StreamOptions> {
        let (_, found) = self.get(binding)?;
        Some(&found.listening.as_ref()?.options)
    }

    /// Another number than before if what listens has changed.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// What listens, the most specific first: its scope, its port, and the options of its
    /// connections. Those of a reuseport group come one by one.
    pub(crate) fn listening(&self) -> impl Iterator<Item = (SetupScope, u16, &StreamOptions)> {
        let listening = |is_one: bool| {
            self.bindings.iter().filter_map(move |(_, binding)| {
                let scope = match binding.scope {
                    Scope::One(ip) => SetupScope::One(ip),
                    Scope::AllV4 => SetupScope::AllV4,
                    Scope::AllV6 => SetupScope::AllV6,
                    Scope::All => SetupScope::All,
                };
                let options = &binding.listening.as_ref()?.options;
                let is_wanted = matches!(binding.scope, Scope::One(_)) == is_one;
                is_wanted.then_some((scope, binding.address.port(), options))
            })
        };
        listening(true).chain(listening(false))
    }

    /// How many bindings an application has.
    pub(crate) fn of_owner(&self, owner: Owner) -> usize {
        self.by_owner.get(&owner).copied().unwrap_or(0)
    }

    /// True if an application has this port.
    pub(crate) fn has_owner(&self, port: u16, owner: Owner) -> bool {
        let found = self.by_port.get(&port);
        found.is_some_and(|port| port.any_overlapping(Scope::All, |class| class.owner == owner))
    }

    /// True if any binding has this port.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.by_port.contains_key(&port)
    }

    /// True if an application other than `owner` has this address and port.
    pub(crate) fn is_taken(&self, owner: Owner, local: SocketAddr) -> bool {
        let found = self.by_port.get(&local.port());
        let mut groups = found.into_iter().flat_map(|port| port.covering(local.ip()));
        groups.any(|group| group.classes.any(|class| class.owner != owner))
    }

    /// Where a connection to `local` goes. `hash` is of its addresses and ports, so that all
    /// segments of one connection meet the same listener.
    pub(crate) fn destination(&self, local: SocketAddr, hash: u64) -> Destination {
        let found = self.by_port.get(&local.port());
        let mut groups = found.into_iter().flat_map(|port| port.covering(local.ip()));
        let Some(group) = groups.find(|group| group.listeners > 0) else {
            return Destination::Closed;
        };
        let count = group.open.len() as u64;
        let chosen = (count > 0).then(|| group.open[(hash % count) as usize]);
        match chosen {
            Some(index) => Destination::Listener(id(index, &self.bindings[index])),
            None => Destination::Full,
        }
    }

    /// The listeners of an owner accept connections from a source, or do not.
    pub(crate) fn set_source_room(&mut self, owner: Owner, source: IpAddr, has_room: bool) {
        let key = (owner, Source::from(source));
        if has_room {
            self.exhausted.remove(&key);
        } else {
            self.exhausted.insert(key);
        }
    }

    /// The destination of a connection from a source, given that of its address.
    pub(crate) fn unless_exhausted(&self, to: Destination, source: IpAddr) -> Destination {
        if self.exhausted.is_empty() {
            return to;
        }
        let Destination::Listener(listener) = to else {
            return to;
        };
        let owner = self.get(listener).map(|(_, binding)| binding.owner);
        let is_exhausted =
            owner.is_some_and(|owner| self.exhausted.contains(&(owner, Source::from(source))));
        if is_exhausted { Destination::Full } else { to }
    }

    fn get(&self, binding: BindingId) -> Option<(usize, &Binding)> {
        let word = binding.0.get();
        let index = word as u32 as usize;
        let found = self.bindings.get(index)?;
        (found.generation == (word >> 32) as u32).then_some((index, found))
    }

    fn listening_mut(&mut self, binding: BindingId) -> Option<(usize, &mut Listening)> {
        let (index, _) = self.get(binding)?;
        Some((index, self.bindings[index].listening.as_mut()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: [u16; 3] = [50_001, 50_002, 50_000];

    const ONE: Owner = Owner(1);
    const TWO: Owner = Owner(2);

    fn at(address: &str) -> Bind {
        Bind::new(ONE, address.parse().unwrap())
    }

    fn bind(bindings: &mut Bindings, bind: &Bind) -> Result<BindingId, BindError> {
        bindings.bind(bind, |is_free| {
            PORTS.into_iter().find(|port| is_free(*port))
        })
    }

    fn listen(bindings: &mut Bindings, wanted: &Bind) -> BindingId {
        let binding = bind(bindings, wanted).unwrap();
        bindings.listen(binding, StreamOptions::default()).unwrap();
        binding
    }

    fn to(bindings: &Bindings, local: &str, hash: u64) -> Destination {
        bindings.destination(local.parse().unwrap(), hash)
    }

    /// Reference model: the rules applied to a plain list of bindings.
    #[derive(Default)]
    struct Model {
        all: Vec<Modelled>,
        /// The last binding of each port that was admitted, if it was in a group.
        shared: HashMap<u16, Bind>,
    }

    struct Modelled {
        id: BindingId,
        bind: Bind,
        /// How many connections a listener can take, if it has a bound.
        listens: Option<Option<usize>>,
    }

    fn ips() -> impl Iterator<Item = IpAddr> {
        IPS.iter().map(|ip| ip.parse().unwrap())
    }

    fn covers(bind: &Bind, ip: IpAddr) -> bool {
        let own = bind.address.ip();
        let all = match own {
            IpAddr::V4(_) => ip.is_ipv4(),
            IpAddr::V6(_) => ip.is_ipv6() || !bind.v6_only,
        };
        own == ip || (own.is_unspecified() && all)
    }

    impl Modelled {
        fn covers(&self, ip: IpAddr) -> bool {
            covers(&self.bind, ip)
        }

        /// True if this binding forbids the other.
        fn forbids(&self, other: &Bind) -> bool {
            let own = &self.bind;
            let same_port = own.address.port() == other.address.port();
            let overlaps = ips().any(|ip| covers(own, ip) && covers(other, ip));
            let both_reuse = own.reuse_address && other.reuse_address;
            let is_reused = both_reuse && self.listens.is_none();
            let is_shared = other.reuse_port.is_some() && own.reuse_port == other.reuse_port;
            same_port && overlaps && !is_reused && !is_shared
        }

        fn specificity(&self) -> u8 {
            match Scope::of(&self.bind) {
                Scope::One(_) => 2,
                Scope::AllV4 | Scope::AllV6 => 1,
                Scope::All => 0,
            }
        }
    }

    impl Model {
        fn is_shared_by(&self, wanted: &Bind) -> bool {
            let shared = self.shared.get(&wanted.address.port());
            let of_group = shared.filter(|it| it.reuse_port == wanted.reuse_port);
            of_group.is_some_and(|it| ips().all(|ip| covers(it, ip) || !covers(wanted, ip)))
        }

        /// Whether a binding may bind, or may listen if it has a place.
        fn admits(&self, wanted: &Bind, own: Option<usize>) -> bool {
            let others = self.all.iter().enumerate();
            let mut others = others.filter(|(index, _)| Some(*index) != own);
            self.is_shared_by(wanted) || !others.any(|(_, other)| other.forbids(wanted))
        }

        fn note_admitted(&mut self, wanted: &Bind) {
            if self.is_shared_by(wanted) {
                return;
            }
            self.shared.remove(&wanted.address.port());
            if wanted.reuse_port.is_some() {
                self.shared.insert(wanted.address.port(), *wanted);
            }
        }

        /// Forgets ports without bindings.
        fn forget(&mut self) {
            let has = |port| self.all.iter().any(|it| it.bind.address.port() == port);
            self.shared.retain(|port, _| has(*port));
        }

        /// The listeners that a connection may go to; `None`: there are none, full or not.
        fn destinations(&self, local: SocketAddr) -> Option<Vec<BindingId>> {
            let port = local.port();
            let listeners = self.all.iter().filter(|it| {
                it.listens.is_some() && it.bind.address.port() == port && it.covers(local.ip())
            });
            let listeners: Vec<&Modelled> = listeners.collect();
            let best = listeners.iter().map(|it| it.specificity()).max()?;
            let with_room = listeners
                .into_iter()
                .filter(|it| it.specificity() == best && it.listens != Some(Some(0)));
            Some(with_room.map(|it| it.id).collect())
        }

        fn check(&self, bindings: &Bindings, local: SocketAddr, seed: u64) {
            let expected = self.destinations(local);
            let count = expected.as_ref().map_or(0, Vec::len) as u64;
            let mut found = Vec::new();
            for hash in 0..count.max(1) {
                match bindings.destination(local, hash) {
                    Destination::Listener(id) => found.push(id),
                    Destination::Full => assert_eq!(expected, Some(Vec::new()), "seed {seed}"),
                    Destination::Closed => assert_eq!(expected, None, "seed {seed}"),
                }
            }
            let mut expected = expected.unwrap_or_default();
            expected.sort_by_key(|id| id.0);
            found.sort_by_key(|id| id.0);
            assert_eq!(found, expected, "seed {seed}, {local}");
            let of_port = |it: &&Modelled| it.bind.address.port() == local.port();
            for owner in [ONE, TWO] {
                let own = self.all.iter().filter(|it| it.bind.owner == owner);
                assert_eq!(bindings.of_owner(owner), own.clone().count(), "seed {seed}");
                let has = own.filter(of_port).count() > 0;
                let port = local.port();
                assert_eq!(bindings.has_owner(port, owner), has, "seed {seed}");
                let mut others = self.all.iter().filter(of_port);
                let taken = others.any(|it| it.bind.owner != owner && it.covers(local.ip()));
                assert_eq!(bindings.is_taken(owner, local), taken, "seed {seed}");
            }
        }
    }

    const IPS: [&str; 6] = [
        "10.0.0.1", "10.0.0.2", "fd77::1", "fd77::2", "0.0.0.0", "::",
    ];

    struct Random(u64);

    impl Random {
        /// xorshift64*
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
        }

        fn address(&mut self, ips: usize) -> SocketAddr {
            let ip = IPS[self.below(ips as u64) as usize].parse().unwrap();
            SocketAddr::new(ip, 80 + self.below(2) as u16)
        }
    }

    #[test]
    fn any_sequence_of_changes_leaves_what_the_rules_say_of_each_binding() {
        for seed in 1..200 {
            let mut random = Random(seed);
            let mut bindings = Bindings::default();
            let mut model = Model::default();
            for _ in 0..150 {
                change(&mut random, &mut bindings, &mut model, seed);
                let local = random.address(4);
                model.check(&bindings, local, seed);
            }
            for left in &model.all {
                assert!(bindings.release(left.id), "seed {seed}");
            }
            assert!(bindings.by_port.is_empty() && bindings.by_owner.is_empty());
        }
    }

    fn change(random: &mut Random, bindings: &mut Bindings, model: &mut Model, seed: u64) {
        let what = random.below(10);
        if what < 3 || model.all.is_empty() {
            bind_any(random, bindings, model, seed);
            return;
        }
        let at = random.below(model.all.len() as u64) as usize;
        let Modelled { id, bind, listens } = &mut model.all[at];
        match what {
            3 | 4 => {
                let (id, bind, listened_before) = (*id, *bind, listens.is_some());
                let may_listen = listened_before || model.admits(&bind, Some(at));
                let listened = bindings.listen(id, StreamOptions::default()).is_ok();
                assert_eq!(listened, may_listen, "seed {seed}");
                if listened && !listened_before {
                    model.all[at].listens = Some(None);
                    model.note_admitted(&bind);
                }
            }
            5 => {
                bindings.unlisten(*id);
                *listens = None;
            }
            6 => {
                let room = random.below(3) as usize;
                bindings.set_room(*id, room);
                if let Some(bound) = listens {
                    *bound = Some(room);
                }
            }
            7 => {
                bind.reuse_address = random.below(3) > 0;
                bindings.reuse_address(*id, bind.reuse_address);
            }
            8 => {
                bind.reuse_port = GROUPS[random.below(3) as usize];
                bindings.reuse_port(*id, bind.reuse_port);
            }
            _ => {
                assert!(bindings.release(*id), "seed {seed}");
                model.all.remove(at);
                model.forget();
            }
        }
    }

    const GROUPS: [Option<u32>; 3] = [None, Some(1), Some(2)];

    fn bind_any(random: &mut Random, bindings: &mut Bindings, model: &mut Model, seed: u64) {
        let wanted = Bind {
            owner: [ONE, TWO][random.below(2) as usize],
            address: random.address(6),
            v6_only: random.below(2) == 0,
            reuse_address: random.below(3) > 0,
            reuse_port: GROUPS[random.below(3) as usize],
        };
        let bound = bind(bindings, &wanted);
        assert_eq!(bound.is_ok(), model.admits(&wanted, None), "seed {seed}");
        if let Ok(id) = bound {
            model.note_admitted(&wanted);
            model.all.push(Modelled {
                id,
                bind: wanted,
                listens: None,
            });
        }
    }

    #[test]
    fn addresses_that_overlap_conflict() {
        for (first, second, conflicts) in [
            ("10.0.0.1:80", "10.0.0.1:80", true),
            ("10.0.0.1:80", "10.0.0.2:80", false),
            ("10.0.0.1:80", "10.0.0.1:81", false),
            ("0.0.0.0:80", "10.0.0.1:80", true),
            ("[::]:80", "10.0.0.1:80", true),
            ("[::]:80", "[fd77::2]:80", true),
            ("[fd77::2]:80", "0.0.0.0:80", false),
        ] {
            let mut bindings = Bindings::default();
            bind(&mut bindings, &at(first)).unwrap();
            let result = bind(&mut bindings, &at(second));
            assert_eq!(
                result == Err(BindError::InUse),
                conflicts,
                "{first} {second}"
            );
        }
        let mut bindings = Bindings::default();
        let v6_only = Bind {
            v6_only: true,
            ..at("[::]:80")
        };
        bind(&mut bindings, &v6_only).unwrap();
        bind(&mut bindings, &at("0.0.0.0:80")).unwrap();
    }

    #[test]
    fn an_address_is_used_again_until_one_listens() {
        let mut bindings = Bindings::default();
        let again = Bind {
            reuse_address: true,
            ..at("10.0.0.1:80")
        };
        let first = bind(&mut bindings, &again).unwrap();
        let second = bind(&mut bindings, &again).unwrap();
        assert_eq!(
            bind(&mut bindings, &at("10.0.0.1:80")),
            Err(BindError::InUse)
        );
        assert_eq!(bindings.listen(first, StreamOptions::default()), Ok(()));
        let refused = bindings.listen(second, StreamOptions::default());
        assert_eq!(refused, Err(BindError::InUse));
        assert_eq!(bind(&mut bindings, &again), Err(BindError::InUse));
        assert!(bindings.release(first));
        assert_eq!(bindings.listen(second, StreamOptions::default()), Ok(()));
        assert!(!bindings.release(first), "it is gone");
    }

    #[test]
    fn a_table_that_stopped_listening_listens_no_more() {
        let mut bindings = Bindings::default();
        let binding = listen(&mut bindings, &at("10.0.0.1:80"));
        bindings.stop_listening();
        assert_eq!(to(&bindings, "10.0.0.1:80", 0), Destination::Closed);
        let refused = bindings.listen(binding, StreamOptions::default());
        assert_eq!(refused, Err(BindError::NoBinding));
        assert_eq!(to(&bindings, "10.0.0.1:80", 0), Destination::Closed);
    }

    #[test]
    fn a_reuseport_group_shares_connections_and_admits_only_its_own() {
        let mut bindings = Bindings::default();
        let group = |group| Bind {
            reuse_port: Some(group),
            ..at("0.0.0.0:80")
        };
        let members = [0, 1, 2].map(|_| listen(&mut bindings, &group(7)));
        assert_eq!(bind(&mut bindings, &group(8)), Err(BindError::InUse));
        assert_eq!(
            bind(&mut bindings, &at("0.0.0.0:80")),
            Err(BindError::InUse)
        );
        let chosen = [0, 1, 2].map(|hash| to(&bindings, "10.0.0.1:80", hash));
        assert_eq!(chosen, members.map(Destination::Listener));
        bindings.set_room(members[1], 0);
        for hash in 0..10 {
            let to = to(&bindings, "10.0.0.1:80", hash);
            assert_ne!(to, Destination::Listener(members[1]));
        }
        bindings.set_room(members[0], 1);
        assert!(bindings.reserve(members[0]));
        bindings.set_room(members[2], 0);
        assert_eq!(to(&bindings, "10.0.0.1:80", 0), Destination::Full);
        bindings.unreserve(members[0]);
        assert_eq!(
            to(&bindings, "10.0.0.1:80", 0),
            Destination::Listener(members[0])
        );
    }

    #[test]
    fn what_a_binding_shares_may_change_later() {
        let mut bindings = Bindings::default();
        let again = Bind {
            reuse_address: true,
            ..at("10.0.0.1:80")
        };
        let grouped = Bind {
            reuse_port: Some(1),
            ..at("10.0.0.1:80")
        };
        let one = bind(&mut bindings, &at("10.0.0.1:80")).unwrap();
        assert_eq!(bind(&mut bindings, &again), Err(BindError::InUse));
        bindings.reuse_address(one, true);
        assert_eq!(
            bind(&mut bindings, &at("10.0.0.1:80")),
            Err(BindError::InUse)
        );
        let two = bind(&mut bindings, &again).unwrap();
        bindings.release(two);
        bindings.reuse_address(one, false);
        assert_eq!(bind(&mut bindings, &again), Err(BindError::InUse));
        bindings.listen(one, StreamOptions::default()).unwrap();
        assert_eq!(bind(&mut bindings, &grouped), Err(BindError::InUse));
        bindings.reuse_port(one, Some(1));
        let two = bind(&mut bindings, &grouped).unwrap();
        bindings.listen(two, StreamOptions::default()).unwrap();
        let sent = [0, 1].map(|hash| to(&bindings, "10.0.0.1:80", hash));
        let members = [one, two].map(Destination::Listener);
        assert!(
            members.iter().all(|member| sent.contains(member)),
            "{sent:?}"
        );
        bindings.release(one);
        bindings.release(two);
        assert_eq!(bindings.of_owner(again.owner), 0);
    }

    /// The kernel gives the same results (`cli/tests/programs/reuse.c`).
    #[test]
    fn options_count_when_a_socket_binds_or_listens() {
        #[derive(Clone, Copy, PartialEq)]
        enum Step {
            /// `SO_REUSEADDR` of both before they bind, and `SO_REUSEPORT` of both.
            Addresses,
            Ports,
            /// The first sets or clears an option.
            Address(bool),
            Port(bool),
            Listens,
            /// The second binds, and listens.
            Joins(bool),
            ListensToo(bool),
        }
        use Step::*;
        let table: &[&[Step]] = &[
            &[Addresses, Joins(true), Listens, ListensToo(false)],
            &[Addresses, Address(false), Joins(false)],
            &[Addresses, Joins(true), Address(false), ListensToo(false)],
            &[Addresses, Listens, Joins(false)],
            &[Ports, Joins(true), Listens, ListensToo(true)],
            &[Ports, Port(false), Joins(true)],
            &[Ports, Port(false), Joins(true), ListensToo(true)],
            &[Ports, Port(false), Listens, Joins(false)],
            &[Ports, Port(false), Listens, Port(true), Joins(true)],
            &[Ports, Listens, Port(false), Joins(true), ListensToo(true)],
            &[Ports, Joins(true), Port(false), ListensToo(true)],
            &[Port(true), Joins(false)],
            &[Address(true), Joins(false)],
        ];
        for (row, steps) in table.iter().enumerate() {
            let mut bindings = Bindings::default();
            let wanted = Bind {
                reuse_address: steps[0] == Addresses,
                reuse_port: (steps[0] == Ports).then_some(1),
                ..at("10.0.0.1:80")
            };
            let first = bind(&mut bindings, &wanted).unwrap();
            let mut second = None;
            for step in *steps {
                let joined = match *step {
                    Addresses | Ports => continue,
                    Address(reuses) => {
                        bindings.reuse_address(first, reuses);
                        continue;
                    }
                    Port(shares) => {
                        bindings.reuse_port(first, shares.then_some(1));
                        continue;
                    }
                    Listens => {
                        bindings.listen(first, StreamOptions::default()).unwrap();
                        continue;
                    }
                    Joins(_) => {
                        second = bind(&mut bindings, &wanted).ok();
                        second.is_some()
                    }
                    ListensToo(_) => {
                        let binding = second.unwrap();
                        bindings.listen(binding, StreamOptions::default()).is_ok()
                    }
                };
                let expected = matches!(step, Joins(true) | ListensToo(true));
                assert_eq!(joined, expected, "row {row}");
            }
        }
    }

    #[test]
    fn the_most_specific_listener_gets_the_connection() {
        let mut bindings = Bindings::default();
        let again = |address| Bind {
            reuse_address: true,
            ..at(address)
        };
        let one = bind(&mut bindings, &again("10.0.0.1:80")).unwrap();
        let all = bind(&mut bindings, &again("[::]:80")).unwrap();
        bindings.listen(all, StreamOptions::default()).unwrap();
        // As on Linux, overlapping listeners need a reuseport group.
        let refused = bindings.listen(one, StreamOptions::default());
        assert_eq!(refused, Err(BindError::InUse));
        assert_eq!(to(&bindings, "10.0.0.1:80", 0), Destination::Listener(all));
        assert_eq!(to(&bindings, "[fd77::2]:80", 0), Destination::Listener(all));
        assert_eq!(to(&bindings, "10.0.0.1:81", 0), Destination::Closed);
        let mut bindings = Bindings::default();
        let group = |address| Bind {
            reuse_port: Some(1),
            ..at(address)
        };
        let all = listen(&mut bindings, &group("0.0.0.0:80"));
        let one = listen(&mut bindings, &group("10.0.0.1:80"));
        assert_eq!(to(&bindings, "10.0.0.1:80", 0), Destination::Listener(one));
        assert_eq!(to(&bindings, "10.0.0.2:80", 0), Destination::Listener(all));
    }

    #[test]
    fn a_port_of_zero_is_chosen_until_none_is_free() {
        let mut bindings = Bindings::default();
        let ports: Vec<u16> = (0..3)
            .map(|_| {
                let binding = bind(&mut bindings, &at("10.0.0.1:0")).unwrap();
                bindings.address(binding).unwrap().port()
            })
            .collect();
        assert_eq!(ports, PORTS);
        assert_eq!(
            bind(&mut bindings, &at("10.0.0.2:0")),
            Err(BindError::NoPort)
        );
    }

    #[test]
    fn another_application_may_not_use_what_is_bound() {
        let mut bindings = Bindings::default();
        bind(&mut bindings, &at("10.0.0.1:80")).unwrap();
        let local = "10.0.0.1:80".parse().unwrap();
        assert!(bindings.is_taken(TWO, local));
        assert!(!bindings.is_taken(ONE, local));
        assert!(!bindings.is_taken(TWO, "10.0.0.2:80".parse().unwrap()));
    }
}
