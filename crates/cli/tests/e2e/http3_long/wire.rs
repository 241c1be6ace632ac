//! What becomes of datagrams between a client and the server, and what is seen of them there.

use serde_json::Value;
use testbed::process::{run, tool};

use super::PREFERRED;
use crate::support::{SOON, nft};

/// A table of nftables, for as long as this value lives.
struct Table(&'static str);

impl Table {
    /// Objects and rules for what a device receives, and for what leaves by it. A drop any earlier
    /// on the way out would be an error of `sendmsg`, which some clients take for the end.
    fn new(name: &'static str, device: &str, objects: &str, rules: [&str; 2]) -> Self {
        let mut table = format!("table netdev {name} {{ {objects}\n");
        for (hook, rules) in ["ingress", "egress"].into_iter().zip(rules) {
            table += &format!(
                "chain {hook} {{ type filter hook {hook} device {device} priority 0; {rules}; }}\n"
            );
        }
        nft(&(table + "}"));
        Self(name)
    }

    /// The first of what it has of a kind and a name.
    fn object(&self, kind: &str, name: &str) -> Value {
        let listed = run(&mut tool(&format!(
            "nft -j list {kind} netdev {} {name}",
            self.0
        )));
        let listed: Value = serde_json::from_str(&listed.unwrap()).unwrap();
        listed["nftables"][1][kind].clone()
    }

    fn counter(&self, name: &str, what: &str) -> u64 {
        self.object("counter", name)[what].as_u64().unwrap()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // Where its device has gone, it may be gone as well.
        let _ = run(&mut tool(&format!("nft delete table netdev {}", self.0)));
    }
}

/// Looks on.
pub(super) struct Watch(Table);

impl Watch {
    pub(super) fn new(device: &str) -> Self {
        // The kind of a packet with a long header is in its first byte; in those of version
        // negotiation, the version is zero (RFC 8999 §6, RFC 9000 §17.2).
        let [v4, v6] = PREFERRED;
        let received = format!(
            "udp sport 443 @th,64,4 0xf @th,72,32 1 counter name retries; \
             udp sport 443 @th,64,1 1 @th,72,32 0 counter name negotiations; \
             ip saddr {v4} udp sport 443 counter name moved_received; \
             ip6 saddr {v6} udp sport 443 counter name moved_received"
        );
        let sent = format!(
            "udp dport 443 update @ports {{ udp sport }}; \
             ip daddr {v4} udp dport 443 counter name moved_sent; \
             ip6 daddr {v6} udp dport 443 counter name moved_sent"
        );
        Self(Table::new(
            "watch",
            device,
            "counter retries { }; counter negotiations { }; \
             counter moved_sent { }; counter moved_received { }; \
             set ports { type inet_service; flags dynamic; size 1024; }",
            [&received, &sent],
        ))
    }

    /// Retry packets that a client was sent.
    pub(super) fn retries(&self) -> u64 {
        self.0.counter("retries", "packets")
    }

    /// Packets of version negotiation that it was sent.
    pub(super) fn negotiations(&self) -> u64 {
        self.0.counter("negotiations", "packets")
    }

    /// Bytes that it has sent to where clients move, and received from there, with headers.
    pub(super) fn moved_bytes(&self) -> [u64; 2] {
        ["moved_sent", "moved_received"].map(|counter| self.0.counter(counter, "bytes"))
    }

    /// Ports that it has sent from.
    pub(super) fn ports(&self) -> usize {
        let ports = &self.0.object("set", "ports")["elem"];
        ports.as_array().map_or(0, Vec::len)
    }
}

/// What is done to one frame in so many, in either direction. A frame may be a superpacket.
pub(super) struct Fault(Table);

impl Fault {
    const EVERY: u32 = 20;

    fn new(name: &'static str, device: &str, what: &str) -> Self {
        let rule = |counter| {
            format!(
                "udp length > 100 numgen inc mod {} == 10 counter name {counter} {what}",
                Self::EVERY
            )
        };
        let objects = "counter received { }; counter sent { };";
        let rules = [&*rule("received"), &*rule("sent")];
        Self(Table::new(name, device, objects, rules))
    }

    /// They are lost.
    pub(super) fn loss(device: &str) -> Self {
        Self::new("loss", device, "drop")
    }

    /// They are damaged: a byte behind the header, where the checksum of UDP is made good again.
    pub(super) fn damage(device: &str) -> Self {
        Self::new("damage", device, "@th,512,8 set 0x5a")
    }

    /// How many of those that a client was sent.
    pub(super) fn received(&self) -> u64 {
        self.0.counter("received", "packets")
    }
}

/// Takes in everything in both directions, once so much was carried.
pub(super) struct Hole(Table);

impl Hole {
    const CARRIED_BYTES: u32 = 1_000_000;

    pub(super) fn new(device: &str) -> Self {
        let objects = format!(
            "quota carried {{ over {} bytes; }}; counter swallowed {{ }}",
            Self::CARRIED_BYTES
        );
        let rule = "meta l4proto udp quota name carried counter name swallowed drop";
        Self(Table::new("hole", device, &objects, [rule; 2]))
    }

    pub(super) fn await_opening(&self) {
        let is_open = || (self.0.counter("swallowed", "packets") > 0).then_some(());
        testbed::wait::until(SOON, "datagrams that are swallowed", is_open).unwrap();
    }
}

/// Lets nothing through that a client sends once the server has answered it.
pub(super) struct Muzzle {
    table: Table,
    is_ipv6: bool,
}

impl Muzzle {
    pub(super) fn new(device: &str, is_ipv6: bool) -> Self {
        // What is shorter is an acknowledgment alone, of a hello of which more is to come.
        let table = Table::new(
            "muzzle",
            device,
            "counter received { }; counter sent { }; \
             set answered { type inet_service; flags dynamic; size 1024; }",
            [
                "udp sport 443 counter name received; \
                 udp sport 443 udp length > 1000 update @answered { udp dport }",
                "udp dport 443 udp sport @answered drop; udp dport 443 counter name sent",
            ],
        );
        Self { table, is_ipv6 }
    }

    pub(super) fn await_answer(&self) {
        let is_answered = || (self.bytes_of_the_server()[1] > 0).then_some(());
        testbed::wait::until(SOON, "an answer to a hello", is_answered).unwrap();
    }

    /// Bytes of UDP that have come to the server, and that it has sent.
    pub(super) fn bytes_of_the_server(&self) -> [u64; 2] {
        // On its way out a frame is counted with the header of Ethernet.
        [("sent", 14), ("received", 0)].map(|(counter, link)| {
            let header = link + if self.is_ipv6 { 48 } else { 28 };
            let packets = self.table.counter(counter, "packets");
            self.table.counter(counter, "bytes") - packets * header
        })
    }
}
