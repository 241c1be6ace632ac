//! The order of responses (RFC 9218).

use server::Config;

use crate::http2::client::{
    Client, DATA, END_STREAM, Frame, PRIORITY_UPDATE, PROTOCOL_ERROR, frame, request,
};
use crate::lab::Lab;

const FILE_BYTES: u64 = 100_000;

/// Bytes that the TCP stream may have taken before a response becomes urgent.
const UNSENT_BYTES_MAX: usize = 64 << 10;

/// A connection whose TCP stream is full of a response that is less urgent than all others.
fn busy() -> (Lab, Client) {
    let mut lab = Lab::alone(Config::default());
    lab.zeros("a", FILE_BYTES);
    lab.zeros("huge", 1 << 40);
    let mut client = Client::open(&mut lab);
    lab.acknowledges(client.stream, false);
    let fields = request("GET", "/huge", &[("priority", "u=7, i")]);
    assert_eq!(client.send_request(&mut lab, &fields, true), 1);
    (lab, client)
}

/// Sends a request with this priority, if any; returns the stream's ID.
fn ask(lab: &mut Lab, client: &mut Client, priority: &str) -> u32 {
    let field = [("priority", priority)];
    let fields = if priority.is_empty() {
        &field[..0]
    } else {
        &field
    };
    client.send_request(lab, &request("GET", "/a", fields), true)
}

fn update(id: u32, value: &str) -> Vec<u8> {
    let payload = [&id.to_be_bytes()[..], value.as_bytes()].concat();
    frame(PRIORITY_UPDATE, 0, 0, payload)
}

/// Acknowledges until `streams` responses have ended; returns the DATA frames of these.
fn data(lab: &mut Lab, client: &mut Client, streams: usize) -> Vec<Frame> {
    for _ in 0..10_000 {
        let data = client.frames_of(lab, DATA).into_iter();
        let data: Vec<_> = data.filter(|frame| frame.stream > 1).collect();
        let ends = data.iter().filter(|frame| frame.flags & END_STREAM != 0);
        if ends.count() == streams {
            return data;
        }
        let unacknowledged = lab.unacknowledged_bytes(client.stream);
        lab.acknowledge(client.stream, unacknowledged.min(10_000));
    }
    panic!("responses that do not end");
}

/// Streams in the order in which their responses have ended.
fn ends(data: &[Frame]) -> Vec<u32> {
    let ends = data.iter().filter(|frame| frame.flags & END_STREAM != 0);
    ends.map(|frame| frame.stream).collect()
}

/// Streams in the order of their frames, without repetitions.
fn turns(data: &[Frame]) -> Vec<u32> {
    let mut turns: Vec<u32> = data.iter().map(|frame| frame.stream).collect();
    turns.dedup();
    turns
}

/// Covers: RFC 9218 §4.1, RFC 9218 §5, RFC 9218 §10
#[test]
fn urgent_responses_come_first_and_equal_ones_in_order() {
    let (mut lab, mut client) = busy();
    let asked = ["u=5", "", "u=0", "u=3", "u=high", "u=1", "u=0"];
    let ids = asked.map(|priority| ask(&mut lab, &mut client, priority));
    let data = data(&mut lab, &mut client, ids.len());
    let expected = [ids[2], ids[6], ids[5], ids[1], ids[3], ids[4], ids[0]];
    assert_eq!(ends(&data), expected);
    assert_eq!(turns(&data), expected, "one after the other");
}

/// Covers: RFC 9218 §4.2, RFC 9218 §10
#[test]
fn incremental_responses_take_turns_by_frames() {
    let (mut lab, mut client) = busy();
    let incremental = [(); 3].map(|()| ask(&mut lab, &mut client, "i"));
    let plain = ask(&mut lab, &mut client, "");
    let data = data(&mut lab, &mut client, 4);
    assert_eq!(ends(&data)[0], plain, "before incremental ones");
    let data: Vec<_> = data
        .into_iter()
        .filter(|frame| frame.stream != plain)
        .collect();
    assert!(turns(&data).len() > 15);
    let mut sent = [0; 3];
    for frame in &data {
        let place = incremental
            .iter()
            .position(|&id| id == frame.stream)
            .unwrap();
        sent[place] += frame.payload.len();
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        assert!(most - least <= 16_384, "{sent:?}");
    }
}

/// Covers: RFC 9218 §7, RFC 9218 §7.1
#[test]
fn an_update_overrides_the_field_before_the_request_and_during_the_response() {
    let (mut lab, mut client) = busy();
    let first = ask(&mut lab, &mut client, "u=2");
    let second = ask(&mut lab, &mut client, "u=1");
    client.send(&mut lab, update(7, "u=7"));
    client.send(&mut lab, update(7, "u=4"));
    let third = ask(&mut lab, &mut client, "u=0");
    let fourth = ask(&mut lab, &mut client, "u=3");
    assert_eq!(third, 7);
    client.send(&mut lab, update(second, "u=5"));
    let data = data(&mut lab, &mut client, 4);
    assert_eq!(ends(&data), [first, fourth, third, second]);
}

/// Covers: RFC 9218 §7, RFC 9218 §10
#[test]
fn a_response_under_way_can_be_deferred() {
    let (mut lab, mut client) = busy();
    let first = ask(&mut lab, &mut client, "");
    let second = ask(&mut lab, &mut client, "");
    while client.received(&lab, first).body.len() < 20_000 {
        let unacknowledged = lab.unacknowledged_bytes(client.stream);
        lab.acknowledge(client.stream, unacknowledged.min(5000));
    }
    client.send(&mut lab, update(first, "u=6"));
    let before = client.received(&lab, first).body.len();
    while !client.received(&lab, second).has_ended {
        let unacknowledged = lab.unacknowledged_bytes(client.stream);
        lab.acknowledge(client.stream, unacknowledged.min(5000));
    }
    assert!(client.received(&lab, first).body.len() <= before + UNSENT_BYTES_MAX);
    assert!(!client.received(&lab, first).has_ended);
    assert_eq!(ends(&data(&mut lab, &mut client, 2)), [second, first]);
}

#[test]
fn an_urgent_response_waits_for_few_bytes_of_others() {
    let (mut lab, mut client) = busy();
    let stream = client.stream;
    for _ in 0..100 {
        lab.acknowledge(stream, 10_000);
        let unacknowledged = lab.unacknowledged_bytes(stream) as usize;
        assert!(unacknowledged <= UNSENT_BYTES_MAX + 16_384);
    }
    client.read(&lab);
    let before = client.frames.len();
    let unsent = lab.unacknowledged_bytes(stream) as usize;
    let urgent = ask(&mut lab, &mut client, "u=0");
    for _ in 0..20 {
        lab.acknowledge(stream, lab.unacknowledged_bytes(stream).min(10_000));
    }
    client.read(&lab);
    let later = client.frames[before..].iter();
    let others = later.take_while(|frame| frame.stream != urgent);
    let others: usize = others.map(|frame| 9 + frame.payload.len()).sum();
    let waited = unsent + others;
    assert!(
        waited <= UNSENT_BYTES_MAX + 16_384,
        "{waited} bytes precede the response"
    );
    assert!(
        client.received(&lab, urgent).has_ended,
        "others wait meanwhile"
    );
}

#[test]
fn a_connection_writes_in_one_go_what_tcp_may_send_at_once() {
    let (mut lab, client) = busy();
    let usable_bytes = 300_000;
    lab.set_usable_window(client.stream, usable_bytes as u64);
    lab.acknowledge(client.stream, 40_000);
    let unacknowledged = lab.unacknowledged_bytes(client.stream) as usize;
    let least = usable_bytes + UNSENT_BYTES_MAX;
    assert!((least..least + 16_384 + 9).contains(&unacknowledged));
}

/// Covers: RFC 9218 §7.1
#[test]
fn updates_are_about_streams_that_a_client_may_open() {
    for (id, expected) in [
        (0, Some(PROTOCOL_ERROR)),
        (2, Some(PROTOCOL_ERROR)),
        (1, None),
        (3, None),
        (199, None),
        (201, None),
        (203, Some(PROTOCOL_ERROR)),
        ((1 << 31) - 1, Some(PROTOCOL_ERROR)),
    ] {
        let mut lab = Lab::alone(Config::default());
        lab.file("a", "content");
        let mut client = Client::open(&mut lab);
        assert_eq!(client.get(&mut lab, "/a").status, 200);
        client.send(&mut lab, update(id, "u=0"));
        assert_eq!(client.goaway(&lab).map(|(_, code)| code), expected, "{id}");
    }
}

/// Covers: RFC 9113 §5.3.2, RFC 9218 §2.1
#[test]
fn priorities_of_rfc_7540_change_nothing() {
    let (mut lab, mut client) = busy();
    let first = ask(&mut lab, &mut client, "");
    let second = ask(&mut lab, &mut client, "");
    let exclusive = [0x80, 0, 0, 0, 255];
    client.send(&mut lab, frame(2, 0, second, exclusive));
    assert_eq!(ends(&data(&mut lab, &mut client, 2)), [first, second]);
}
