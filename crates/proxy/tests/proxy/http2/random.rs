//! Clients that do anything in any order: nothing panics, and nothing is left behind.

use std::time::Duration;

use http2::frame::kind;
use proptest::prelude::*;

use super::client::{Client, GET, POST, with_http2};
use crate::world::World;

/// Something that a client does, on one of its streams.
#[derive(Clone, Debug)]
enum Act {
    Get,
    Post { length: Option<u16> },
    Data { at: u8, bytes: u16, ends: bool },
    Reset { at: u8 },
    Update { at: u8, increment: u32 },
    Window { bytes: u16 },
    Frame { kind: u8, at: u8, payload: Vec<u8> },
    Pass { millis: u16 },
    BackendDies,
}

fn act() -> impl Strategy<Value = Act> {
    let payload = proptest::collection::vec(any::<u8>(), 0..20);
    prop_oneof![
        4 => Just(Act::Get),
        2 => proptest::option::of(0_u16..3000).prop_map(|length| Act::Post { length }),
        4 => (any::<u8>(), 0_u16..5000, any::<bool>())
            .prop_map(|(at, bytes, ends)| Act::Data { at, bytes, ends }),
        2 => any::<u8>().prop_map(|at| Act::Reset { at }),
        2 => (any::<u8>(), 0_u32..100_000)
            .prop_map(|(at, increment)| Act::Update { at, increment }),
        1 => (0_u16..5000).prop_map(|bytes| Act::Window { bytes }),
        1 => (0_u8..18, any::<u8>(), payload)
            .prop_map(|(kind, at, payload)| Act::Frame { kind, at, payload }),
        2 => (0_u16..2000).prop_map(|millis| Act::Pass { millis }),
        1 => Just(Act::BackendDies),
    ]
}

fn perform(world: &mut World, client: &mut Client, next_id: &mut u32, act: &Act) {
    // A stream of the client, opened or not.
    let stream = |at: u8| 2 * (u32::from(at) % (*next_id / 2 + 2)) + 1;
    match act {
        Act::Get => {
            client.request(world, *next_id, &GET, true);
            *next_id += 2;
        }
        Act::Post { length } => {
            let text = length.map(|length| length.to_string());
            let mut fields = POST.to_vec();
            fields.extend(text.as_deref().map(|text| ("content-length", text)));
            client.request(world, *next_id, &fields, false);
            *next_id += 2;
        }
        Act::Data { at, bytes, ends } => {
            client.data(world, stream(*at), &vec![b'd'; usize::from(*bytes)], *ends);
        }
        Act::Reset { at } => client.reset(world, stream(*at)),
        Act::Update { at, increment } => client.update(world, stream(*at) & !1, *increment),
        Act::Window { bytes } => {
            let setting = [&[0, 4][..], &u32::from(*bytes).to_be_bytes()].concat();
            client.frame(world, kind::SETTINGS, 0, &setting);
        }
        Act::Frame { kind, at, payload } => {
            client.frame(world, *kind, u32::from(*at) % 8, payload);
        }
        Act::Pass { millis } => world.pass(Duration::from_millis((*millis).into())),
        Act::BackendDies => {
            if let Some(&backend) = world.accepted(8080).last() {
                world.abort(backend);
            }
        }
    }
    client.hear(world);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn whatever_a_client_does_nothing_breaks_and_nothing_stays(
        acts in proptest::collection::vec(act(), 1..40),
        window in 0_u32..70_000,
        buffers in any::<bool>(),
    ) {
        let mut config = with_http2(&[8080, 8081]);
        if !buffers {
            config.pools[0].request_buffer_bytes = 0;
        }
        let mut world = World::new(config, &[8080, 8081]);
        world.apps.others.think = Some(Duration::from_millis(3));
        let mut client = Client::new(&mut world, &[(4, window)]);
        let mut next_id = 1;
        for act in &acts {
            perform(&mut world, &mut client, &mut next_id, act);
        }
        // The connection ends, or another client is served beside it.
        let mut other = Client::new(&mut world, &[]);
        other.request(&mut world, 1, &GET, true);
        world.pass(Duration::from_secs(20));
        other.hear(&mut world);
        prop_assert!(other.heard(1).has_ended, "{:?}", other.heard(1));
        world.abort(client.stream);
        world.abort(other.stream);
        world.pass(Duration::from_secs(1));
        prop_assert_eq!(world.proxy().sessions(), 0);
        let counters = world.counters();
        prop_assert_eq!(counters.connections_accepted, counters.connections_closed);
        for counters in world.backends().values() {
            prop_assert_eq!(counters.connections, 0);
        }
    }
}
