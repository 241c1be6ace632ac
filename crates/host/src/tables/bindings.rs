//! Local addresses and ports that applications have bound, and on which of them they listen.
//!
//! The rules are those of Linux (socket(7), `inet_csk_get_port`): two bindings of one port conflict
//! if their addresses overlap, unless both allow the address to be used again and neither listens,
//! or both belong to the same reuseport group. Connections go to the listener with the most
//! specific address, and within a group to the one that the hash of their addresses chooses.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;

use slab::Slab;

use crate::app::{Bind, BindError, BindingId, Owner, StreamOptions};

/// Which destination addresses a binding covers.
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

    fn covers(self, ip: IpAddr) -> bool {
        match self {
            Scope::One(own) => own == ip,
            Scope::AllV4 => ip.is_ipv4(),
            Scope::AllV6 => ip.is_ipv6(),
            Scope::All => true,
        }
    }

    fn overlaps(self, other: Scope) -> bool {
        match (self, other) {
            (Scope::One(ip), scope) | (scope, Scope::One(ip)) => scope.covers(ip),
            (Scope::AllV4, Scope::AllV6) | (Scope::AllV6, Scope::AllV4) => false,
            _ => true,
        }
    }

    /// The more, the sooner it is chosen.
    fn specificity(self) -> u8 {
        match self {
            Scope::One(_) => 2,
            Scope::AllV4 | Scope::AllV6 => 1,
            Scope::All => 0,
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

/// What a binding that listens has besides.
#[derive(Debug, Default)]
struct Listening {
    options: StreamOptions,
    /// Connections that its application can hold; `None`: any number.
    room: Option<usize>,
    /// Those of which the application has not heard yet.
    on_their_way: usize,
}

impl Listening {
    fn is_full(&self) -> bool {
        self.room.is_some_and(|room| self.on_their_way >= room)
    }
}

impl Binding {
    fn is_shared_with(&self, reuse_port: Option<u32>) -> bool {
        reuse_port.is_some() && self.reuse_port == reuse_port
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
    by_port: HashMap<u16, Vec<usize>>,
    generation: u32,
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
        let conflicts = self.of_port(port).any(|(_, other)| {
            let both_reuse = bind.reuse_address && other.reuse_address;
            other.scope.overlaps(scope)
                && !(both_reuse && other.listening.is_none())
                && !other.is_shared_with(bind.reuse_port)
        });
        if conflicts {
            return Err(BindError::InUse);
        }
        self.generation = self.generation.wrapping_add(1).max(1);
        let index = self.bindings.insert(Binding {
            generation: self.generation,
            owner: bind.owner,
            scope,
            address: SocketAddr::new(bind.address.ip(), port),
            reuse_address: bind.reuse_address,
            reuse_port: bind.reuse_port,
            listening: None,
        });
        self.by_port.entry(port).or_default().push(index);
        Ok(id(index, &self.bindings[index]))
    }

    /// Listens on a bound address; connections get these options.
    pub(crate) fn listen(
        &mut self,
        binding: BindingId,
        options: StreamOptions,
    ) -> Result<(), BindError> {
        let open = self.get(binding).filter(|_| !self.is_closed);
        let (index, found) = open.ok_or(BindError::NoBinding)?;
        let (scope, reuse_port, port) = (found.scope, found.reuse_port, found.address.port());
        let conflicts = self.of_port(port).any(|(other_index, other)| {
            other_index != index
                && other.listening.is_some()
                && other.scope.overlaps(scope)
                && !other.is_shared_with(reuse_port)
        });
        if conflicts {
            return Err(BindError::InUse);
        }
        let listening = self.bindings[index].listening.get_or_insert_default();
        listening.options = options;
        Ok(())
    }

    /// Listens no more. The address stays bound.
    pub(crate) fn unlisten(&mut self, binding: BindingId) {
        if let Some((index, _)) = self.get(binding) {
            self.bindings[index].listening = None;
        }
    }

    /// Lets go of an address. Returns whether it was bound.
    pub(crate) fn release(&mut self, binding: BindingId) -> bool {
        let Some((index, found)) = self.get(binding) else {
            return false;
        };
        let port = found.address.port();
        self.bindings.remove(index);
        if let Some(of_port) = self.by_port.get_mut(&port) {
            of_port.retain(|other| *other != index);
            if of_port.is_empty() {
                self.by_port.remove(&port);
            }
        }
        true
    }

    /// No binding listens any more, nor begins to. The addresses stay bound.
    pub(crate) fn stop_listening(&mut self) {
        self.is_closed = true;
        for (_, binding) in &mut self.bindings {
            binding.listening = None;
        }
    }

    /// How many connections the listener's application can hold.
    pub(crate) fn set_room(&mut self, binding: BindingId, room: usize) {
        if let Some(listening) = self.listening_mut(binding) {
            listening.room = Some(room);
        }
    }

    /// A connection is on its way to the listener's application. True if there is a bound on that,
    /// so that its arrival counts.
    pub(crate) fn reserve(&mut self, binding: BindingId) -> bool {
        let bounded = self.listening_mut(binding).filter(|it| it.room.is_some());
        let Some(listening) = bounded else {
            return false;
        };
        listening.on_their_way += 1;
        true
    }

    /// It has arrived, or is gone.
    pub(crate) fn unreserve(&mut self, binding: BindingId) {
        if let Some(listening) = self.listening_mut(binding) {
            listening.on_their_way = listening.on_their_way.saturating_sub(1);
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

    /// The applications that have this port.
    pub(crate) fn owners(&self, port: u16) -> impl Iterator<Item = Owner> {
        self.of_port(port).map(|(_, binding)| binding.owner)
    }

    /// True if any binding has this port.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.by_port.contains_key(&port)
    }

    /// True if an application other than `owner` has this address and port.
    pub(crate) fn is_taken(&self, owner: Owner, local: SocketAddr) -> bool {
        self.of_port(local.port())
            .any(|(_, other)| other.owner != owner && other.scope.covers(local.ip()))
    }

    /// Where a connection to `local` goes. `hash` is of its addresses and ports, so that all
    /// segments of one connection meet the same listener.
    pub(crate) fn destination(&self, local: SocketAddr, hash: u64) -> Destination {
        let listeners = || {
            self.of_port(local.port()).filter(|(_, binding)| {
                binding.listening.is_some() && binding.scope.covers(local.ip())
            })
        };
        let Some(best) = listeners().map(|(_, it)| it.scope.specificity()).max() else {
            return Destination::Closed;
        };
        let with_room = || {
            listeners().filter(|(_, binding)| {
                let is_full = binding.listening.as_ref().is_some_and(Listening::is_full);
                binding.scope.specificity() == best && !is_full
            })
        };
        let count = with_room().count() as u64;
        let chosen = (count > 0).then(|| with_room().nth((hash % count) as usize));
        match chosen.flatten() {
            Some((index, binding)) => Destination::Listener(id(index, binding)),
            None => Destination::Full,
        }
    }

    fn of_port(&self, port: u16) -> impl Iterator<Item = (usize, &Binding)> {
        let indices = self.by_port.get(&port).into_iter().flatten();
        indices.map(|index| (*index, &self.bindings[*index]))
    }

    fn get(&self, binding: BindingId) -> Option<(usize, &Binding)> {
        let word = binding.0.get();
        let index = word as u32 as usize;
        let found = self.bindings.get(index)?;
        (found.generation == (word >> 32) as u32).then_some((index, found))
    }

    fn listening_mut(&mut self, binding: BindingId) -> Option<&mut Listening> {
        let (index, _) = self.get(binding)?;
        self.bindings[index].listening.as_mut()
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
