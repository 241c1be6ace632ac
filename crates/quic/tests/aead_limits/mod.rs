//! Limits on the use of keys (RFC 9001 §6.6).

use contract::tls::Cipher;
use fakes::seeds::each_seed;
use quic::{AeadLimits, Arrival, CloseReason, Settings};

use crate::support::{World, settings};

/// Keys are updated this many packets before the limit (quinn-proto's `KEY_UPDATE_MARGIN`).
const MARGIN: u64 = 10_000;

/// AEAD_LIMIT_REACHED (RFC 9000 §20.1).
const AEAD_LIMIT_REACHED: u64 = 0x0f;

fn limited(aead_limits: AeadLimits) -> Settings {
    Settings {
        aead_limits,
        ..settings()
    }
}

#[test]
fn a_key_is_updated_before_it_has_sealed_as_many_packets_as_it_may() {
    each_seed(2, |random| {
        let confidentiality = MARGIN + 500;
        let settings = limited(AeadLimits {
            confidentiality,
            ..AeadLimits::default()
        });
        let mut world = World::new(&settings, Cipher::Aes128Gcm, random);
        world.run_until(|world| world.client.is_connected);
        world.request(1, 0, 20_000_000);
        world.run_until(|world| world.are_finished());
        let sealed = &world.sealed_of_key;
        // quinn-proto updates the first early, and others once the last update is confirmed.
        assert!(sealed.len() > 2, "{sealed:?}");
        assert!(
            sealed.values().all(|it| *it < confidentiality),
            "{sealed:?}"
        );
        // The NIC stack has only keys in use.
        assert!(world.sealer.keys() <= 2, "{}", world.sealer.keys());
        assert_eq!(world.closed, None);
    });
}

#[test]
fn a_connection_ends_when_as_many_packets_as_may_have_not_opened() {
    each_seed(2, |random| {
        let integrity = 5 + random(20);
        let settings = limited(AeadLimits {
            integrity,
            ..AeadLimits::default()
        });
        let mut world = World::new(&settings, Cipher::Aes128Gcm, random);
        world.run_until(|world| world.client.is_connected);
        world.request(1, 0, 100_000);
        world.run_until(|world| world.are_finished());
        // A short-header packet with a corrupted tag.
        let short = world.said.iter().rfind(|it| it[0] & 0x80 == 0);
        let mut forged = short.expect("an acknowledgment").clone();
        *forged.last_mut().expect("a tag") ^= 1;
        let arrival = Arrival {
            remote: world.client.local,
            local_ip: None,
            ecn: None,
        };
        let now = tcp::Instant::from_us(world.now_us);
        for _ in 0..integrity {
            world.endpoint.on_datagram(now, &arrival, &forged);
        }
        world.request(2, 0, 100_000);
        world.run_until(|world| world.are_finished());
        assert_eq!(world.closed, None);
        let now = tcp::Instant::from_us(world.now_us);
        world.endpoint.on_datagram(now, &arrival, &forged);
        world.run_until(|world| world.closed.is_some());
        let closed = world.closed.clone();
        let is_right = matches!(closed, Some(CloseReason::Protocol(AEAD_LIMIT_REACHED, _)));
        assert!(is_right, "{closed:?}");
    });
}
