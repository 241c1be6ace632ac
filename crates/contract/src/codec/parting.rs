//! The encoding of PART, PARTGONE, FRAME, flows taken and part ended.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::{
    FLOWS_TAKEN, FlowsTakenRecord, FrameRecord, PART, PART_ENDED, PART_GONE, PartEndRecord,
    PartEndedRecord, PartGoneRecord, PartRecord, all_zero, flag, head, split,
};
use crate::event::Event;
use crate::ids::FlowId;
use crate::limits::{FLOWS_TAKEN_MAX, FRAME_BYTES_MAX, PART_ENDS_MAX};
use crate::parting::{
    Part, PartEnd, PartEndReason, PartLimits, PartRefusal, PartStage, PartTimestamps,
};

impl<'a> Part<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let limits = &self.limits;
        let timestamps = self.timestamps.unwrap_or(PartTimestamps {
            value: 0,
            recent: 0,
        });
        let record = PartRecord {
            head: head(PART, size_of::<PartRecord>() + self.header.len()),
            flow: self.flow.0.into(),
            issued_us: self.issued_us.into(),
            fin_seq: self.fin_seq.into(),
            rcv_nxt: self.rcv_nxt.into(),
            rcv_window_bytes: self.rcv_window_bytes.into(),
            snd_window_bytes: self.snd_window_bytes.into(),
            snd_window_bytes_max: self.snd_window_bytes_max.into(),
            ts_value: timestamps.value.into(),
            ts_recent: timestamps.recent.into(),
            srtt_us: self.srtt_us.into(),
            rttvar_us: self.rttvar_us.into(),
            rto_initial_ms: limits.rto_initial_ms.into(),
            rto_min_ms: limits.rto_min_ms.into(),
            rto_max_ms: limits.rto_max_ms.into(),
            user_timeout_ms: limits.user_timeout_ms.into(),
            time_wait_ms: limits.time_wait_ms.into(),
            fin_wait_2_ms: limits.fin_wait_2_ms.into(),
            challenge_acks_interval_ms: limits.challenge_acks_interval_ms.into(),
            challenge_acks_max: limits.challenge_acks_max.into(),
            mss: self.mss.into(),
            header_bytes: (self.header.len() as u16).into(),
            stage: self.stage as u8,
            owes_ack: self.owes_ack.into(),
            has_timestamps: self.timestamps.is_some().into(),
            rcv_shift: self.rcv_shift,
            snd_shift: self.snd_shift,
            backoff: self.backoff,
            fin_retries: limits.fin_retries,
            zero: [0; 3],
        };
        out.extend_from_slice(record.as_bytes());
        out.extend_from_slice(self.header);
    }

    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let (record, header) = split::<PartRecord>(bytes)?;
        all_zero(&record.zero)?;
        if header.len() != usize::from(record.header_bytes) {
            return Err("the header fills the message");
        }
        let stage = match record.stage {
            1 => PartStage::FinWait1,
            2 => PartStage::FinWait2,
            3 => PartStage::Closing,
            4 => PartStage::LastAck,
            _ => return Err("the stage is known"),
        };
        let timestamps = PartTimestamps {
            value: record.ts_value.get(),
            recent: record.ts_recent.get(),
        };
        let has_timestamps = flag(record.has_timestamps)?;
        if !has_timestamps && (timestamps.value != 0 || timestamps.recent != 0) {
            return Err("without timestamps there are none");
        }
        Ok(Part {
            flow: FlowId(record.flow.get()),
            issued_us: record.issued_us.get(),
            stage,
            owes_ack: flag(record.owes_ack)?,
            fin_seq: record.fin_seq.get(),
            rcv_nxt: record.rcv_nxt.get(),
            rcv_window_bytes: record.rcv_window_bytes.get(),
            rcv_shift: record.rcv_shift,
            snd_window_bytes: record.snd_window_bytes.get(),
            snd_window_bytes_max: record.snd_window_bytes_max.get(),
            snd_shift: record.snd_shift,
            mss: record.mss.get(),
            timestamps: has_timestamps.then_some(timestamps),
            srtt_us: record.srtt_us.get(),
            rttvar_us: record.rttvar_us.get(),
            backoff: record.backoff,
            limits: PartLimits {
                rto_initial_ms: record.rto_initial_ms.get(),
                rto_min_ms: record.rto_min_ms.get(),
                rto_max_ms: record.rto_max_ms.get(),
                user_timeout_ms: record.user_timeout_ms.get(),
                time_wait_ms: record.time_wait_ms.get(),
                fin_wait_2_ms: record.fin_wait_2_ms.get(),
                challenge_acks_max: record.challenge_acks_max.get(),
                challenge_acks_interval_ms: record.challenge_acks_interval_ms.get(),
                fin_retries: record.fin_retries,
            },
            header,
        })
    }
}

pub(super) fn encode_gone(flow: FlowId, out: &mut Vec<u8>) {
    let record = PartGoneRecord {
        head: head(PART_GONE, size_of::<PartGoneRecord>()),
        flow: flow.0.into(),
    };
    out.extend_from_slice(record.as_bytes());
}

/// Appends a frame, as a message of this kind.
pub(super) fn encode_frame(kind: u8, bytes: &[u8], out: &mut Vec<u8>) {
    let record = FrameRecord {
        head: head(kind, size_of::<FrameRecord>() + bytes.len()),
        frame_bytes: (bytes.len() as u16).into(),
        zero: [0; 6],
    };
    out.extend_from_slice(record.as_bytes());
    out.extend_from_slice(bytes);
}

/// The frame in a message.
pub(super) fn parse_frame(bytes: &[u8]) -> Result<&[u8], &'static str> {
    let (record, frame) = split::<FrameRecord>(bytes)?;
    all_zero(&record.zero)?;
    if frame.len() != usize::from(record.frame_bytes) {
        return Err("the frame fills the message");
    }
    check_frame(frame)?;
    Ok(frame)
}

pub(super) fn check_frame(bytes: &[u8]) -> Result<(), &'static str> {
    if bytes.is_empty() || bytes.len() > FRAME_BYTES_MAX {
        return Err("a frame has 1 to FRAME_BYTES_MAX bytes");
    }
    Ok(())
}

pub(super) fn encode_taken(flows: &[FlowId], out: &mut Vec<u8>) {
    let record = FlowsTakenRecord {
        head: head(
            FLOWS_TAKEN,
            size_of::<FlowsTakenRecord>() + size_of_val(flows),
        ),
        flows: (flows.len() as u16).into(),
        zero: [0; 6],
    };
    out.extend_from_slice(record.as_bytes());
    for flow in flows {
        out.extend_from_slice(U64::new(flow.0).as_bytes());
    }
}

const _: () = assert!(
    size_of::<FlowId>() == size_of::<U64>(),
    "the length of a message counts them"
);

pub(super) fn parse_taken(bytes: &[u8]) -> Result<Event, &'static str> {
    let (record, rest) = split::<FlowsTakenRecord>(bytes)?;
    all_zero(&record.zero)?;
    let flows = <[U64]>::ref_from_bytes(rest).map_err(|_| "flows fill the message")?;
    if flows.len() != usize::from(record.flows) {
        return Err("flows fill the message");
    }
    if flows.is_empty() || flows.len() > FLOWS_TAKEN_MAX {
        return Err("there are 1 to FLOWS_TAKEN_MAX flows");
    }
    Ok(Event::FlowsTaken {
        flows: flows.iter().map(|flow| FlowId(flow.get())).collect(),
    })
}

pub(super) fn encode_ends(ends: &[PartEnd], out: &mut Vec<u8>) {
    let record = PartEndedRecord {
        head: head(
            PART_ENDED,
            size_of::<PartEndedRecord>() + ends.len() * size_of::<PartEndRecord>(),
        ),
        ends: (ends.len() as u16).into(),
        zero: [0; 6],
    };
    out.extend_from_slice(record.as_bytes());
    for end in ends {
        let record = PartEndRecord {
            flow: end.flow.0.into(),
            reason: end.reason as u8,
            zero: [0; 7],
        };
        out.extend_from_slice(record.as_bytes());
    }
}

pub(super) fn parse_ends(bytes: &[u8]) -> Result<Event, &'static str> {
    let (record, rest) = split::<PartEndedRecord>(bytes)?;
    all_zero(&record.zero)?;
    let records = <[PartEndRecord]>::ref_from_bytes(rest).map_err(|_| "ends fill the message")?;
    if records.len() != usize::from(record.ends) {
        return Err("ends fill the message");
    }
    if records.is_empty() || records.len() > PART_ENDS_MAX {
        return Err("there are 1 to PART_ENDS_MAX ends");
    }
    let mut ends = Vec::with_capacity(records.len());
    for record in records {
        all_zero(&record.zero)?;
        let reason = match record.reason {
            1 => PartEndReason::Finished,
            2 => PartEndReason::Reset,
            3 => PartEndReason::TimedOut,
            4 => PartEndReason::Aborted,
            5 => PartEndReason::Replaced,
            _ => return Err("the reason is known"),
        };
        ends.push(PartEnd {
            flow: FlowId(record.flow.get()),
            reason,
        });
    }
    Ok(Event::PartEnded { ends: ends.into() })
}

pub(super) fn refusal(byte: u8) -> Result<PartRefusal, &'static str> {
    match byte {
        50 => Ok(PartRefusal::Full),
        51 => Ok(PartRefusal::BadHeader),
        52 => Ok(PartRefusal::AddressesInUse),
        _ => Err("the reason is known"),
    }
}
