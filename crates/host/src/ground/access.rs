//! Which clients may connect.
//!
//! Packets for the stack pass no netfilter rule of the kernel, so the stack has lists of its own. A
//! client that may not connect gets no answer, as from a rule that drops.

use std::net::IpAddr;

use crate::ground::Ground;
use crate::tables::sources::LOOPBACK;

impl Ground {
    /// True if a client with this address may not connect; then it is counted. The machine itself
    /// always may.
    #[inline]
    pub(crate) fn refuses_client(&mut self, now_us: u64, client: IpAddr) -> bool {
        !self.access.is_open() && !self.permits_client(now_us, client) && {
            self.on_client_refused(now_us, client);
            true
        }
    }

    /// True if a client with this address may connect.
    pub(crate) fn permits_client(&self, now_us: u64, client: IpAddr) -> bool {
        client == LOOPBACK || self.config.has_address(client) || self.access.permits(now_us, client)
    }

    #[cold]
    fn on_client_refused(&mut self, now_us: u64, client: IpAddr) {
        self.counters.clients_denied += 1;
        if self.denied.begins(now_us) {
            tracing::info!(
                %client,
                "a client that may not connect has tried to (firewall): it gets no answer; later \
                 ones are only counted"
            );
        }
    }
}
