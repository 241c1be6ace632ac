//! Connections, one after the other in groups, that are opened, asked once, answered, and closed.

use contract::Event;
use contract::parting::{PartEnd, PartEndReason};
use wire::tcp::Flags;

use crate::crowd::{Client, Crowd, HELLO};

/// Connections that are counted.
pub(crate) const CONNECTIONS: usize = 20_000;
/// Those before, by which tables have grown.
const WARM_UP: usize = 5_000;
/// Connections that do the same at the same time, as they do when the stack is busy.
const GROUP: usize = 50;

/// Serves them all. `offloaded`: the NIC stack runs their end.
pub(crate) fn serve(offloaded: bool) {
    let mut crowd = Crowd::with(|config| config.teardown_offload = offloaded);
    let mut done = 0;
    while done < WARM_UP + CONNECTIONS {
        let is_counted = done >= WARM_UP;
        let group: Vec<usize> = (0..GROUP)
            .map(|_| {
                let number = crowd.clients.len();
                crowd.clients.push(Client {
                    address: Crowd::address(number),
                    seq: number as u32,
                    ack: 0,
                    echo: 0,
                });
                number
            })
            .collect();
        let psh = Flags::ACK | Flags::PSH;
        let fin = Flags::ACK | Flags::FIN;
        for (flags, payload) in [
            (Flags::SYN, &[][..]),
            (Flags::ACK, &[]),
            (psh, HELLO),
            (Flags::ACK, &[]),
            (fin, &[]),
        ] {
            say(&mut crowd, &group, flags, payload, is_counted);
        }
        let parted = std::mem::take(&mut crowd.parted);
        assert_eq!(parted.len(), if offloaded { GROUP } else { 0 });
        // The NIC stack's FIN is on no link here.
        for &number in group.iter().filter(|_| offloaded) {
            let client = &mut crowd.clients[number];
            client.ack = client.ack.wrapping_add(1);
        }
        say(&mut crowd, &group, Flags::ACK, &[], is_counted);
        for flows in parted.chunks(contract::limits::PART_ENDS_MAX) {
            let end = |&flow| PartEnd {
                flow,
                reason: PartEndReason::Finished,
            };
            let ends = flows.iter().map(end).collect();
            crowd.nic.send(&Event::PartEnded { ends }).expect("room");
        }
        crowd.nic.flush();
        turn(&mut crowd, &[], is_counted);
        done += GROUP;
    }
    assert_eq!(crowd.stack.connections(), 0);
    assert_eq!(crowd.stack.counters().retransmissions, 0);
}

/// Each client of a group says the same.
fn say(crowd: &mut Crowd, group: &[usize], flags: Flags, payload: &[u8], is_counted: bool) {
    let mut frames = Vec::new();
    for &number in group {
        let client = crowd.clients[number];
        frames.push(crowd.frame_of(&client, flags, payload));
        let occupies = u32::from(flags.contains(Flags::SYN) || flags.contains(Flags::FIN));
        let seq = &mut crowd.clients[number].seq;
        *seq = seq.wrapping_add(payload.len() as u32 + occupies);
    }
    turn(crowd, &frames, is_counted);
}

fn turn(crowd: &mut Crowd, frames: &[Vec<u8>], is_counted: bool) {
    crowd.now_us += 1_000;
    match is_counted {
        true => counted_turn(crowd, frames),
        false => crowd.take_in(frames),
    }
    crowd.collect();
}

#[inline(never)]
fn counted_turn(crowd: &mut Crowd, frames: &[Vec<u8>]) {
    crowd.take_in(frames);
}
