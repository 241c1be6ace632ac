//! Messages of another node: any bytes may come. What decodes encodes to the same bytes, and no node
//! panics for it.

#![no_main]

use cluster::message::Message;
use cluster::{Brought, Gate, Node, Stack};
use libfuzzer_sys::fuzz_target;

/// A broker that never answers.
#[derive(Debug)]
struct Silent;

impl Stack for Silent {
    fn attach(&mut self, _app: u32, _modes: u32) {}
    fn more_handles(&mut self, _app: u32) {}
    fn detach(&mut self, _app: u32) {}
    fn receive(&mut self) -> Option<Brought> {
        None
    }
}

fuzz_target!(|messages: Vec<Vec<u8>>| {
    let mut gate = Gate::new(Silent);
    let mut node = Node::without_descriptors();
    for bytes in &messages {
        if let Ok(message) = Message::decode(bytes) {
            assert_eq!(&message.encode(), bytes, "{message:?}");
        }
        gate.on_message(bytes);
        node.on_message(bytes);
    }
    gate.turn(1);
    node.turn(1, &mut Vec::new);
    gate.end_session();
    node.end_session();
});
