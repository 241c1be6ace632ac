//! Many handshakes at once.

use tcp::{Instant, State};
use tls::Settings;

use crate::client::Secured;
use crate::rig::answer;
use fakes::keys::SUITES;

/// However many clients begin in one turn, a turn serves few of them, and no other connection waits
/// for all.
#[test]
fn a_crowd_of_handshakes_leaves_turns_to_others() {
    const CROWD: u16 = 40;
    let mut secured = Secured::with(SUITES[1], &Settings::default(), 1, |config| {
        config.connections_max = 64;
    });
    let mut hellos = Vec::new();
    for number in 0..CROWD {
        let hello = secured.hello();
        let rig = &mut secured.rig;
        rig.reconnect_from(50_000 + number);
        rig.run_until(|rig| rig.client.state() == State::Established);
        rig.step();
        assert_eq!(rig.client.write(&hello), hello.len());
        hellos.extend(rig.client_frames(Instant::from_us(rig.now_us)));
    }
    secured.reconnect();
    secured.run_until(|secured| secured.agreed().len() == 1);
    for frame in &hellos {
        secured.rig.inject(frame);
    }
    secured.rig.strangers.clear();
    secured.ask(&["3000"]);
    for served in [16, 32, CROWD] {
        secured.step();
        assert_eq!(secured.rig.strangers.len(), usize::from(served));
        assert_eq!(secured.rig.stack.counters().opens, 1);
    }
    secured.run_until(|secured| secured.received.len() == 3_002);
    assert!(secured.received == answer(3_000));
}

/// The end of the shard reaches all of them, not few.
#[test]
fn a_crowd_amid_handshakes_is_reset_at_the_end() {
    const CROWD: u16 = 40;
    let mut secured = Secured::with(SUITES[1], &Settings::default(), 1, |config| {
        config.connections_max = 64;
    });
    let rig = &mut secured.rig;
    for number in 0..CROWD {
        rig.reconnect_from(50_000 + number);
        rig.run_until(|rig| rig.client.state() == State::Established);
        rig.step();
    }
    assert_eq!(rig.stack.usage().connections, usize::from(CROWD));
    rig.stack.abort_all(rig.now_us, &mut rig.port, &mut rig.app);
    assert_eq!(rig.stack.usage().connections, 0);
}
