//! Connections, one after the other in groups, that are opened, asked once and answered, or not,
//! and closed.

use contract::parting::{PartEnd, PartEndReason};
use contract::{Event, FlowId};
use netdev::steering::SteeringMap;
use tcp::{Instant, IsnGenerator, SynCookies};
use wire::frame::parse_segment;
use wire::tcp::Flags;

use crate::crowd::{Client, Crowd, HELLO, SERVER, note};

/// Connections that are counted.
pub(crate) const CONNECTIONS: usize = 20_000;
/// Those before, by which tables have grown.
const WARM_UP: usize = 5_000;
/// Connections that do the same at the same time, as they do when the stack is busy.
const GROUP: usize = 50;

/// What of connections the NIC stack does.
#[derive(Clone, Copy, Default)]
pub(crate) struct Offloaded {
    /// It answers SYNs, which are steered to it.
    pub(crate) setup: bool,
    /// It runs their end.
    pub(crate) teardown: bool,
}

/// Serves them all. With `asks`, each client asks once, and gets an answer.
pub(crate) fn serve(offloaded: Offloaded, asks: bool) {
    let mut crowd = Crowd::with(|config| {
        config.setup_offload = offloaded.setup.into();
        config.teardown_offload = offloaded.teardown.into();
    });
    if offloaded.setup {
        crowd.stack.steer_with(SteeringMap::in_memory([1; 16]));
    }
    let Offloaded { setup, teardown } = offloaded;
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
        let question: &[(Flags, &[u8])] = match asks {
            true => &[(psh, HELLO), (Flags::ACK, &[])],
            false => &[],
        };
        let handshake: &[(Flags, &[u8])] = &[(Flags::SYN, &[]), (Flags::ACK, &[])];
        for (flags, payload) in [handshake, question, &[(fin, &[])]].concat() {
            match flags == Flags::SYN && setup {
                true => answer_syns(&mut crowd, &group),
                false => say(&mut crowd, &group, flags, payload, is_counted),
            }
        }
        let parted = std::mem::take(&mut crowd.parted);
        assert_eq!(parted.len(), if teardown { GROUP } else { 0 });
        // The NIC stack's FIN is on no link here.
        for &number in group.iter().filter(|_| teardown) {
            let client = &mut crowd.clients[number];
            client.ack = client.ack.wrapping_add(1);
        }
        if setup && teardown {
            take_over(&mut crowd, &parted, is_counted);
        } else {
            say(&mut crowd, &group, Flags::ACK, &[], is_counted);
        }
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
    let set_up = if setup { WARM_UP + CONNECTIONS } else { 0 };
    assert_eq!(crowd.stack.counters().connections_set_up, set_up as u64);
    assert_eq!(crowd.stack.counters().retransmissions, 0);
}

/// The NIC stack has connections that the host has parted with, and what their clients say from now
/// on is steered to it.
fn take_over(crowd: &mut Crowd, parted: &[FlowId], is_counted: bool) {
    for flows in parted.chunks(contract::limits::FLOWS_TAKEN_MAX) {
        let flows = flows.into();
        crowd.nic.send(&Event::FlowsTaken { flows }).expect("room");
    }
    crowd.nic.flush();
    turn(crowd, &[], is_counted);
    assert_eq!(crowd.stack.counters().frames_handed_on, 0);
}

/// The NIC stack answers the SYNs of a group, of which the host sees nothing.
fn answer_syns(crowd: &mut Crowd, group: &[usize]) {
    turn(crowd, &[], false);
    let cookies = SynCookies::new(crowd.cookie_key.expect("a SETUP"));
    let ts_offsets = IsnGenerator::new([7; 16]);
    let local = SERVER.parse().expect("an address");
    let config = tcp::Config {
        mss: 1460,
        ..tcp::Config::default()
    };
    let now = Instant::from_us(crowd.now_us);
    for &number in group {
        let client = crowd.clients[number];
        let bytes = crowd.frame_of(&client, Flags::SYN, &[]);
        let packet = parse_segment(&bytes, true).expect("a SYN");
        let ts_offset = ts_offsets.ts_offset(local, client.address);
        let syn = &packet.segment;
        let answer = cookies.syn_ack(&config, local, client.address, syn, ts_offset, now);
        let client = &mut crowd.clients[number];
        note(client, &answer.expect("a plain SYN"), 0);
        client.seq = client.seq.wrapping_add(1);
    }
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
