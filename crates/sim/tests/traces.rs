//! What a run leaves for people and their tools.

use std::cell::RefCell;

use sim::{Options, run};
use wire::frame::{Received, parse};

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn a_capture_holds_every_packet_of_the_servers_link_in_order() {
    let pcap = RefCell::new(Vec::new());
    let report = run(
        3,
        &Options {
            pcap: Some(&pcap),
            ..Options::default()
        },
    );
    let pcap = pcap.into_inner();
    // Magic number, snapshot length, LINKTYPE_ETHERNET.
    assert_eq!(word(&pcap, 0), 0xa1b2_c3d4);
    assert_eq!(word(&pcap, 20), 1);
    let (mut at, mut last_us, mut payload_bytes, mut packets) = (24, 0, 0, 0);
    while at < pcap.len() {
        let now_us = u64::from(word(&pcap, at)) * 1_000_000 + u64::from(word(&pcap, at + 4));
        assert!(last_us <= now_us && now_us <= report.elapsed_us);
        last_us = now_us;
        let len = word(&pcap, at + 8) as usize;
        assert_eq!(word(&pcap, at + 12) as usize, len);
        let frame = &pcap[at + 16..at + 16 + len];
        if let Ok(Received::Tcp(packet)) = parse(frame, false)
            && [80, 443, 8443].contains(&packet.segment.header.source_port)
        {
            payload_bytes += packet.segment.payload.len() as u64;
        }
        packets += 1;
        at += 16 + len;
    }
    assert!(packets > 10);
    assert!(report.bytes_received > 0 && payload_bytes >= report.bytes_received);
}

#[test]
fn a_trace_tells_of_packets_commands_events_and_reads_and_changes_nothing() {
    let text = RefCell::new(Vec::new());
    let traced = run(
        3,
        &Options {
            trace: Some(&text),
            ..Options::default()
        },
    );
    assert_eq!(traced, run(3, &Options::default()));
    let text = String::from_utf8(text.into_inner()).unwrap();
    for part in [
        "[S] seq 0 win",
        "[S.] seq 0 ack 1",
        "nic0 < OPEN",
        "nic0 < SEND",
        "nic0 > Departed",
        "disk0 Read",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
}
