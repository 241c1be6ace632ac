//! Backends that do anything in any order: nothing panics, nothing is left behind, and a response
//! that ends is whole.

use std::time::Duration;

use http2::frame::kind;
use proptest::prelude::*;

use super::backends::{OK, to_http2};
use super::client::{Client, GET, POST};
use crate::world::World;

/// Something that the client or a backend does, on one of its streams.
#[derive(Clone, Debug)]
enum Act {
    Get,
    Post,
    Send { at: u8, bytes: u16, ends: bool },
    Cancel { at: u8 },
    Respond { at: u8, ends: bool },
    Data { at: u8, bytes: u16, ends: bool },
    Trailers { at: u8 },
    Reset { at: u8, code: u8 },
    Goaway { last: u8 },
    Window { bytes: u16 },
    Streams { most: u8 },
    Update { at: u8, increment: u32 },
    Frame { kind: u8, at: u8, payload: Vec<u8> },
    Pass { millis: u16 },
    Finish,
    Abort,
}

fn act() -> impl Strategy<Value = Act> {
    let payload = proptest::collection::vec(any::<u8>(), 0..20);
    let (at, bytes, ends) = (any::<u8>(), 0_u16..5000, any::<bool>());
    prop_oneof![
        5 => Just(Act::Get),
        3 => Just(Act::Post),
        3 => (at, bytes.clone(), ends).prop_map(|(at, bytes, ends)| Act::Send { at, bytes, ends }),
        1 => any::<u8>().prop_map(|at| Act::Cancel { at }),
        6 => (at, ends).prop_map(|(at, ends)| Act::Respond { at, ends }),
        6 => (at, bytes, ends).prop_map(|(at, bytes, ends)| Act::Data { at, bytes, ends }),
        3 => any::<u8>().prop_map(|at| Act::Trailers { at }),
        1 => (any::<u8>(), 0_u8..14).prop_map(|(at, code)| Act::Reset { at, code }),
        1 => any::<u8>().prop_map(|last| Act::Goaway { last }),
        1 => (0_u16..5000).prop_map(|bytes| Act::Window { bytes }),
        1 => (0_u8..5).prop_map(|most| Act::Streams { most }),
        2 => (any::<u8>(), 0_u32..100_000)
            .prop_map(|(at, increment)| Act::Update { at, increment }),
        1 => (0_u8..18, any::<u8>(), payload)
            .prop_map(|(kind, at, payload)| Act::Frame { kind, at, payload }),
        2 => (0_u16..2000).prop_map(|millis| Act::Pass { millis }),
        1 => Just(Act::Finish),
        1 => Just(Act::Abort),
    ]
}

/// The client and its backends: one for each connection that has come.
struct Scene {
    world: World,
    client: Client,
    next_id: u32,
    backends: Vec<Client>,
}

impl Scene {
    fn meet(&mut self) {
        for port in [8080, 8081] {
            for stream in self.world.accepted(port) {
                let is_known = self.backends.iter().any(|it| it.stream == stream);
                if !is_known && self.world.heard(stream).received.len() >= 24 {
                    let (backend, _) = Client::backend_of(&mut self.world, stream, &[]);
                    self.backends.push(backend);
                }
            }
        }
    }

    fn perform(&mut self, act: &Act) {
        self.meet();
        let (world, client) = (&mut self.world, &mut self.client);
        let of_client = |at: u8| 2 * (u32::from(at) % (self.next_id / 2 + 1)) + 1;
        match act {
            Act::Get => client.request(world, self.next_id, &GET, true),
            Act::Post => client.request(world, self.next_id, &POST, false),
            Act::Send { at, bytes, ends } => {
                client.data(
                    world,
                    of_client(*at),
                    &vec![b'd'; usize::from(*bytes)],
                    *ends,
                );
            }
            Act::Cancel { at } => client.reset(world, of_client(*at)),
            Act::Pass { millis } => world.pass(Duration::from_millis((*millis).into())),
            _ => self.perform_at_backend(act),
        }
        if matches!(act, Act::Get | Act::Post) {
            self.next_id += 2;
        }
        self.client.hear(&mut self.world);
    }

    fn perform_at_backend(&mut self, act: &Act) {
        let world = &mut self.world;
        let (Act::Respond { at, .. }
        | Act::Data { at, .. }
        | Act::Trailers { at }
        | Act::Reset { at, .. }
        | Act::Goaway { last: at }
        | Act::Update { at, .. }
        | Act::Frame { at, .. }) = act
        else {
            let Some(backend) = self.backends.last() else {
                return;
            };
            let setting = |id: u8, value: u32| [&[0, id][..], &value.to_be_bytes()].concat();
            return match act {
                Act::Window { bytes } => {
                    backend.frame(world, kind::SETTINGS, 0, &setting(4, (*bytes).into()));
                }
                Act::Streams { most } => {
                    backend.frame(world, kind::SETTINGS, 0, &setting(3, (*most).into()));
                }
                Act::Finish => world.finish(backend.stream),
                _ => world.abort(backend.stream),
            };
        };
        let count = self.backends.len().max(1);
        let Some(backend) = self.backends.get_mut(usize::from(*at) % count) else {
            return;
        };
        let id = 2 * (u32::from(*at) / 4 % 8) + 1;
        match act {
            Act::Respond { ends, .. } => backend.request(world, id, &OK, *ends),
            Act::Data { bytes, ends, .. } => {
                backend.data(world, id, &vec![b'r'; usize::from(*bytes)], *ends);
            }
            Act::Trailers { .. } => backend.request(world, id, &[("grpc-status", "0")], true),
            Act::Reset { code, .. } => backend.refuse(world, id, (*code).into()),
            Act::Goaway { last } => backend.goaway(world, u32::from(*last) % 20),
            Act::Update { increment, .. } => backend.update(world, id & !1, *increment),
            Act::Frame { kind, payload, .. } => backend.frame(world, *kind, id % 8, payload),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn whatever_a_backend_does_nothing_breaks_and_nothing_stays(
        acts in proptest::collection::vec(act(), 1..60),
    ) {
        let mut world = World::new(to_http2(&[8080, 8081]), &[8080, 8081]);
        let client = Client::new(&mut world, &[]);
        let mut scene = Scene { world, client, next_id: 1, backends: Vec::new() };
        for act in &acts {
            scene.perform(act);
        }
        scene.meet();
        let Scene { mut world, client, backends, .. } = scene;
        for heard in client.streams.values() {
            prop_assert!(heard.content.iter().all(|&byte| byte == b'r' || byte.is_ascii()));
        }
        world.abort(client.stream);
        world.pass(Duration::from_secs(10));
        prop_assert_eq!(world.proxy().sessions(), 0);
        for counters in world.backends().values() {
            prop_assert_eq!(counters.connections, 0);
        }
        for backend in backends {
            world.abort(backend.stream);
        }
        world.pass(Duration::from_secs(40));
        for counters in world.backends().values() {
            let left = (counters.connections_idle, counters.http2_connections);
            prop_assert_eq!(left, (0, 0));
        }
    }
}
