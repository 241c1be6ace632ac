//! Events of connections in the form of qlog (draft-ietf-quic-qlog-quic-events), and our own
//! events.

use std::net::{IpAddr, SocketAddr};

use host::{
    CongestionState, Metrics, PacketType, QuicCloseReason, QuicTraceEvent, TraceEvent, TracedFrame,
    TracedPacket,
};
use serde_json::{Map, Value, json};

/// Returns the name of an event, with its schema's name space, and its data.
pub(super) fn of(event: &QuicTraceEvent) -> (&'static str, Value) {
    match event {
        QuicTraceEvent::Quic(event) => of_quic(event),
        QuicTraceEvent::PrepareIssued {
            prepare,
            stream,
            file,
            offset,
            len,
        } => (
            "splitway:prepare_issued",
            json!({
                "prepare": prepare, "stream_id": stream, "file": file.0, "offset": offset,
                "length": len,
            }),
        ),
        QuicTraceEvent::RangeReady { prepare, waited_us } => (
            "splitway:range_ready",
            json!({ "prepare": prepare, "waited": ms(*waited_us) }),
        ),
        QuicTraceEvent::SendIssued {
            send,
            nic,
            worker,
            packets: (first, last),
            datagrams,
        } => (
            "splitway:send_issued",
            json!({
                "send": send, "nic": nic, "worker": worker, "first_packet_number": first,
                "last_packet_number": last, "datagrams": datagrams,
            }),
        ),
        QuicTraceEvent::SendDeparted { send, waited_us } => (
            "splitway:send_departed",
            json!({ "send": send, "waited": ms(*waited_us) }),
        ),
    }
}

fn of_quic(event: &TraceEvent) -> (&'static str, Value) {
    match event {
        TraceEvent::Started {
            remote,
            local_ip,
            original_id,
        } => {
            // The client has chosen the ID for this side.
            let local = local_ip.map(|ip| SocketAddr::new(ip, 0));
            let data = json!({
                "local": endpoint(local, original_id.as_deref()),
                "remote": endpoint(Some(*remote), None),
            });
            ("quic:connection_started", data)
        }
        TraceEvent::Parameters {
            is_local,
            parameters,
        } => ("quic:parameters_set", parameters_set(*is_local, parameters)),
        TraceEvent::Sent(sent) => ("quic:packet_sent", packet(sent)),
        TraceEvent::Received(received) => ("quic:packet_received", packet(received)),
        TraceEvent::Lost {
            packet_type,
            number,
            is_mtu_probe,
        } => (
            "quic:packet_lost",
            json!({
                "header": { "packet_type": type_name(*packet_type), "packet_number": number },
                "is_mtu_probe_packet": is_mtu_probe,
                "trigger": "time_threshold",
            }),
        ),
        TraceEvent::Metrics(metrics) => ("quic:recovery_metrics_updated", recovery(metrics)),
        TraceEvent::Congestion(state) => (
            "quic:congestion_state_updated",
            json!({ "new": match state {
                CongestionState::SlowStart => "slow_start",
                CongestionState::Avoidance => "congestion_avoidance",
                CongestionState::Recovery => "recovery",
            } }),
        ),
        TraceEvent::KeyUpdated { generation } => (
            "quic:key_updated",
            json!({ "key_type": "server_1rtt_secret", "key_phase": generation }),
        ),
        TraceEvent::Closed(reason) => ("quic:connection_closed", closed(reason)),
    }
}

/// Converts to milliseconds, as all times in qlog.
fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `PathEndpointInfo`
fn endpoint(address: Option<SocketAddr>, id: Option<&[u8]>) -> Value {
    let ids: Vec<String> = id.map(hex).into_iter().collect();
    let mut data = json!({ "connection_ids": ids });
    if let Some(address) = address {
        let (ip, port) = match address.ip() {
            IpAddr::V4(_) => ("ip_v4", "port_v4"),
            IpAddr::V6(_) => ("ip_v6", "port_v6"),
        };
        data[ip] = address.ip().to_string().into();
        if address.port() != 0 {
            data[port] = address.port().into();
        }
    }
    data
}

/// Transport parameters whose value is a number (RFC 9000 §18.2).
const NUMBERS: [(u64, &str); 13] = [
    (0x01, "max_idle_timeout"),
    (0x03, "max_udp_payload_size"),
    (0x04, "initial_max_data"),
    (0x05, "initial_max_stream_data_bidi_local"),
    (0x06, "initial_max_stream_data_bidi_remote"),
    (0x07, "initial_max_stream_data_uni"),
    (0x08, "initial_max_streams_bidi"),
    (0x09, "initial_max_streams_uni"),
    (0x0a, "ack_delay_exponent"),
    (0x0b, "max_ack_delay"),
    (0x0e, "active_connection_id_limit"),
    (0x20, "max_datagram_frame_size"),
    (0xff04_de1b, "min_ack_delay"),
];

/// Transport parameters whose value is an identifier.
const IDS: [(u64, &str); 3] = [
    (0x00, "original_destination_connection_id"),
    (0x0f, "initial_source_connection_id"),
    (0x10, "retry_source_connection_id"),
];

/// Transport parameters without a value.
const FLAGS: [(u64, &str); 2] = [
    (0x0c, "disable_active_migration"),
    (0x2ab2, "grease_quic_bit"),
];

fn parameters_set(is_local: bool, parameters: &[(u64, Vec<u8>)]) -> Value {
    let mut data = Map::new();
    let initiator = if is_local { "local" } else { "remote" };
    data.insert("initiator".to_owned(), initiator.into());
    let mut unknown = Vec::new();
    let named = |names: &[(u64, &'static str)], id: u64| {
        let mut names = names.iter();
        names.find(|(known, _)| *known == id).map(|(_, name)| *name)
    };
    for (id, value) in parameters {
        if let Some(name) = named(&NUMBERS, *id) {
            data.insert(name.to_owned(), varint(value).into());
        } else if let Some(name) = named(&IDS, *id) {
            data.insert(name.to_owned(), hex(value).into());
        } else if let Some(name) = named(&FLAGS, *id) {
            data.insert(name.to_owned(), true.into());
        } else {
            unknown.push(json!({ "id": id, "value": hex(value) }));
        }
    }
    if !unknown.is_empty() {
        data.insert("unknown_parameters".to_owned(), unknown.into());
    }
    data.into()
}

/// Decodes a number that fills its bytes (RFC 9000 §16).
fn varint(bytes: &[u8]) -> u64 {
    let Some((first, rest)) = bytes.split_first() else {
        return 0;
    };
    rest.iter().fold(u64::from(first & 0x3f), |value, byte| {
        value << 8 | u64::from(*byte)
    })
}

fn type_name(packet_type: PacketType) -> &'static str {
    match packet_type {
        PacketType::Initial => "initial",
        PacketType::Handshake => "handshake",
        PacketType::OneRtt => "1RTT",
        PacketType::ZeroRtt => "0RTT",
    }
}

fn packet(packet: &TracedPacket) -> Value {
    let frames: Vec<Value> = packet.frames.iter().map(frame).collect();
    json!({
        "header": {
            "packet_type": type_name(packet.packet_type),
            "packet_number": packet.number,
        },
        "raw": { "length": packet.bytes },
        "frames": frames,
    })
}

fn recovery(metrics: &Metrics) -> Value {
    let mut data = json!({
        "smoothed_rtt": ms(metrics.smoothed_rtt.as_micros() as u64),
        "min_rtt": ms(metrics.min_rtt.as_micros() as u64),
        "congestion_window": metrics.congestion_window,
    });
    if let Some(ssthresh) = metrics.ssthresh {
        data["ssthresh"] = ssthresh.into();
    }
    if let Some(bytes) = metrics.bytes_in_flight {
        data["bytes_in_flight"] = bytes.into();
    }
    if let Some(bytes_per_second) = metrics.pacing_rate {
        // In bits per second.
        data["pacing_rate"] = bytes_per_second.saturating_mul(8).into();
    }
    data
}

fn closed(reason: &QuicCloseReason) -> Value {
    match reason {
        QuicCloseReason::Local => json!({ "initiator": "local", "trigger": "application" }),
        QuicCloseReason::Application(code) => json!({
            "initiator": "remote", "application_error": "unknown", "error_code": code,
            "trigger": "application",
        }),
        QuicCloseReason::Peer(code) => json!({
            "initiator": "remote", "connection_error": "unknown", "error_code": code,
            "trigger": "error",
        }),
        QuicCloseReason::Protocol(code, why) => json!({
            "initiator": "local", "connection_error": "unknown", "error_code": code,
            "reason": why, "trigger": "error",
        }),
        QuicCloseReason::Reset => json!({ "initiator": "remote", "trigger": "stateless_reset" }),
        QuicCloseReason::TimedOut => json!({ "initiator": "local", "trigger": "idle_timeout" }),
        QuicCloseReason::Undescribable => json!({
            "initiator": "local", "reason": "a packet could not be described", "trigger": "error",
        }),
        QuicCloseReason::Refused => json!({ "initiator": "local", "trigger": "aborted" }),
        other => json!({ "reason": format!("{other:?}"), "trigger": "unspecified" }),
    }
}

fn stream_type(is_unidirectional: bool) -> &'static str {
    if is_unidirectional {
        "unidirectional"
    } else {
        "bidirectional"
    }
}

fn frame(frame: &TracedFrame) -> Value {
    match frame {
        TracedFrame::Padding(bytes) => {
            json!({ "frame_type": "padding", "raw": { "length": bytes } })
        }
        TracedFrame::Ping => json!({ "frame_type": "ping" }),
        TracedFrame::Ack {
            ranges,
            encoded_delay,
            ecn,
        } => ack(ranges, *encoded_delay, ecn.as_ref()),
        TracedFrame::ResetStream {
            stream,
            code,
            final_size,
        } => json!({
            "frame_type": "reset_stream", "stream_id": stream, "error": "unknown",
            "error_code": code, "final_size": final_size,
        }),
        TracedFrame::StopSending { stream, code } => json!({
            "frame_type": "stop_sending", "stream_id": stream, "error": "unknown",
            "error_code": code,
        }),
        TracedFrame::Crypto { offset, len } => json!({
            "frame_type": "crypto", "offset": offset, "raw": { "payload_length": len },
        }),
        TracedFrame::NewToken => json!({ "frame_type": "new_token", "token": {} }),
        TracedFrame::Stream {
            stream,
            offset,
            len,
            is_fin,
        } => json!({
            "frame_type": "stream", "stream_id": stream, "offset": offset, "fin": is_fin,
            "raw": { "payload_length": len },
        }),
        TracedFrame::MaxData(maximum) => json!({ "frame_type": "max_data", "maximum": maximum }),
        TracedFrame::MaxStreamData { stream, maximum } => json!({
            "frame_type": "max_stream_data", "stream_id": stream, "maximum": maximum,
        }),
        TracedFrame::MaxStreams {
            is_unidirectional,
            maximum,
        } => json!({
            "frame_type": "max_streams", "stream_type": stream_type(*is_unidirectional),
            "maximum": maximum,
        }),
        TracedFrame::DataBlocked(limit) => json!({ "frame_type": "data_blocked", "limit": limit }),
        TracedFrame::StreamDataBlocked { stream, limit } => json!({
            "frame_type": "stream_data_blocked", "stream_id": stream, "limit": limit,
        }),
        TracedFrame::StreamsBlocked {
            is_unidirectional,
            limit,
        } => json!({
            "frame_type": "streams_blocked", "stream_type": stream_type(*is_unidirectional),
            "limit": limit,
        }),
        other => frame_of_connection(other),
    }
}

/// Describes frames that carry neither stream data nor flow control.
fn frame_of_connection(frame: &TracedFrame) -> Value {
    match frame {
        TracedFrame::NewConnectionId {
            sequence,
            retire_prior_to,
            id,
        } => json!({
            "frame_type": "new_connection_id", "sequence_number": sequence,
            "retire_prior_to": retire_prior_to, "connection_id": hex(id),
        }),
        TracedFrame::RetireConnectionId(sequence) => json!({
            "frame_type": "retire_connection_id", "sequence_number": sequence,
        }),
        TracedFrame::PathChallenge => json!({ "frame_type": "path_challenge" }),
        TracedFrame::PathResponse => json!({ "frame_type": "path_response" }),
        TracedFrame::ConnectionClose {
            is_of_application,
            code,
            reason,
        } => json!({
            "frame_type": "connection_close",
            "error_space": if *is_of_application { "application" } else { "transport" },
            "error": "unknown", "error_code": code, "reason": reason,
        }),
        TracedFrame::HandshakeDone => json!({ "frame_type": "handshake_done" }),
        TracedFrame::ImmediateAck => json!({ "frame_type": "immediate_ack" }),
        TracedFrame::AckFrequency {
            threshold,
            max_delay_us,
        } => json!({
            "frame_type": "ack_frequency", "ack_eliciting_threshold": threshold,
            "requested_max_ack_delay": ms(*max_delay_us),
        }),
        TracedFrame::Unknown(kind) => {
            json!({ "frame_type": "unknown", "frame_type_bytes": kind })
        }
        // Those of streams have names of their own.
        _ => json!({ "frame_type": "unknown" }),
    }
}

/// Describes an ACK frame. The delay stays as encoded, in units of the peer's `ack_delay_exponent`.
fn ack(ranges: &[(u64, u64)], encoded_delay: u64, ecn: Option<&[u64; 3]>) -> Value {
    let ranges: Vec<Value> = ranges
        .iter()
        .rev()
        .map(|(smallest, largest)| json!([smallest, largest]))
        .collect();
    let mut data = json!({
        "frame_type": "ack", "acked_ranges": ranges, "encoded_ack_delay": encoded_delay,
    });
    if let Some([ect0, ect1, ce]) = ecn {
        data["ect0"] = (*ect0).into();
        data["ect1"] = (*ect1).into();
        data["ce"] = (*ce).into();
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_names_of_the_schema() {
        let parameters = [
            (0x01, vec![0x80, 0, 0x75, 0x30]),
            (0x0f, vec![0xab, 1]),
            (0x0c, vec![]),
            (0x1234, vec![7]),
        ];
        let data = parameters_set(false, &parameters);
        let wanted = json!({
            "initiator": "remote",
            "max_idle_timeout": 30_000,
            "initial_source_connection_id": "ab01",
            "disable_active_migration": true,
            "unknown_parameters": [{ "id": 0x1234, "value": "07" }],
        });
        assert_eq!(data, wanted);
    }

    #[test]
    fn a_packet_has_its_number_its_length_and_its_frames() {
        let frames = vec![
            TracedFrame::Ack {
                ranges: vec![(18, 20), (9, 13)],
                encoded_delay: 7,
                ecn: None,
            },
            TracedFrame::Stream {
                stream: 4,
                offset: 9,
                len: 1000,
                is_fin: true,
            },
        ];
        let event = QuicTraceEvent::Quic(TraceEvent::Sent(TracedPacket {
            packet_type: PacketType::OneRtt,
            number: 77,
            bytes: 1200,
            frames,
        }));
        let wanted = json!({
            "header": { "packet_type": "1RTT", "packet_number": 77 },
            "raw": { "length": 1200 },
            "frames": [
                {
                    "frame_type": "ack", "acked_ranges": [[9, 13], [18, 20]],
                    "encoded_ack_delay": 7,
                },
                {
                    "frame_type": "stream", "stream_id": 4, "offset": 9, "fin": true,
                    "raw": { "payload_length": 1000 },
                },
            ],
        });
        assert_eq!(of(&event), ("quic:packet_sent", wanted));
    }
}
