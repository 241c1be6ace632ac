//! Metadata of files, for no connection.

use contract::channel::in_memory;
use fakes::nic::FakeNic;

use crate::pair::Pair;

const ENOENT: u16 = 2;

#[test]
fn a_look_up_brings_the_metadata_and_leaves_nothing_open() {
    let mut pair = Pair::new();
    pair.server.nic.lacks.insert("4711".to_owned());
    let mut asked = Vec::new();
    pair.server.act(pair.now_us, |io| {
        asked.extend(io.look_up(b"30000"));
        asked.extend(io.look_up(b"4711"));
        assert_eq!(io.look_up(b""), None, "no path");
        assert_eq!(io.look_up(&[b'a'; 100_000]), None, "too long");
    });
    pair.run_until(|pair| pair.server.app.others.looked_up.len() == 2);
    let found = &pair.server.app.others.looked_up;
    let size = found[0].1.map(|meta| meta.size);
    assert_eq!((found[0].0, size), (asked[0], Ok(30_000)));
    assert_eq!((found[1].0, found[1].1), (asked[1], Err(ENOENT)));
    pair.run_until(|pair| pair.server.nic.closed.len() == 1);
    assert_eq!(pair.server.stack.usage().files, 0);
}

#[test]
fn a_look_up_outlives_the_nic_stack_that_was_asked() {
    let mut pair = Pair::new();
    pair.server.act(pair.now_us, |io| {
        io.look_up(b"30000").unwrap();
    });
    pair.server.stack.on_nic_lost(pair.now_us, 0);
    let until_us = pair.now_us + 100_000;
    pair.server.nic.is_there = false;
    pair.run_until(|pair| pair.now_us >= until_us);
    assert!(pair.server.app.others.looked_up.is_empty());
    let (host, nic) = in_memory();
    pair.server.nic = FakeNic::new(nic);
    let come = pair.server.stack.on_nic_come(pair.now_us, 0, vec![host]);
    come.unwrap();
    pair.run_until(|pair| pair.server.app.others.looked_up.len() == 1);
    assert_eq!(
        pair.server.app.others.looked_up[0].1.map(|meta| meta.size),
        Ok(30_000)
    );
}
