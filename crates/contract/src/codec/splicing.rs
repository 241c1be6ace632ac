//! SPLICE, SPLICEMSS, UNSPLICE and what answers them, as bytes.

use zerocopy::{FromBytes, IntoBytes};

use super::{
    SPLICE, SPLICE_ENDED, SPLICE_MSS, SPLICE_PROGRESS, SPLICE_REFUSED, SpliceLegRecord,
    SpliceMssRecord, SpliceNumbersRecord, SpliceOutcomeRecord, SpliceProgressRecord, SpliceRecord,
    SpliceRefusedRecord, SplicesPassedRecord, UNSPLICE, UNSPLICED, UnspliceRecord, all_zero, flag,
    head, split, whole,
};
use crate::command::Command;
use crate::event::Event;
use crate::ids::FlowId;
use crate::limits::SPLICE_PROGRESS_MAX;
use crate::splicing::{
    Splice, SpliceEndReason, SpliceLeg, SpliceNumbers, SpliceOutcome, SpliceProgress,
    SpliceRefusal, SpliceTimestamps, UnspliceKind,
};

impl SpliceLeg<'_> {
    fn record(&self) -> SpliceLegRecord {
        let timestamps = self.timestamps.unwrap_or(SpliceTimestamps {
            value: 0,
            recent: 0,
        });
        SpliceLegRecord {
            rcv_nxt: self.rcv_nxt.into(),
            snd_nxt: self.snd_nxt.into(),
            snd_window_bytes: self.snd_window_bytes.into(),
            rcv_window_bytes: self.rcv_window_bytes.into(),
            fin_end: self.fin_end.unwrap_or(0).into(),
            ts_value: timestamps.value.into(),
            ts_recent: timestamps.recent.into(),
            mss: self.mss.into(),
            header_bytes: (self.header.len() as u16).into(),
            snd_shift: self.snd_shift,
            rcv_shift: self.rcv_shift,
            sack: self.sack.into(),
            ecn: self.ecn.into(),
            has_fin: self.fin_end.is_some().into(),
            has_timestamps: self.timestamps.is_some().into(),
            zero: [0; 2],
        }
    }
}

impl<'a> Splice<'a> {
    #[cold]
    #[inline(never)]
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let [first, second] = &self.legs;
        let header_bytes = first.header.len() + second.header.len();
        let record = SpliceRecord {
            head: head(SPLICE, size_of::<SpliceRecord>() + header_bytes),
            flow: self.flow.0.into(),
            passed_bytes: self.passed_bytes.map(Into::into),
            idle_ms: self.idle_ms.into(),
            life_ms: self.life_ms.into(),
            legs: [first.record(), second.record()],
            is_again: self.is_again.into(),
            zero: [0; 7],
        };
        out.extend_from_slice(record.as_bytes());
        out.extend_from_slice(first.header);
        out.extend_from_slice(second.header);
    }

    #[cold]
    #[inline(never)]
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let (record, headers) = split::<SpliceRecord>(bytes)?;
        all_zero(&record.zero)?;
        let (first, second) = headers
            .split_at_checked(record.legs[0].header_bytes.get().into())
            .ok_or("the headers fill the message")?;
        if second.len() != usize::from(record.legs[1].header_bytes) {
            return Err("the headers fill the message");
        }
        Ok(Splice {
            flow: FlowId(record.flow.get()),
            legs: [
                parse_leg(&record.legs[0], first)?,
                parse_leg(&record.legs[1], second)?,
            ],
            is_again: flag(record.is_again)?,
            passed_bytes: record.passed_bytes.map(|bytes| bytes.get()),
            idle_ms: record.idle_ms.get(),
            life_ms: record.life_ms.get(),
        })
    }
}

fn parse_leg<'a>(
    record: &SpliceLegRecord,
    header: &'a [u8],
) -> Result<SpliceLeg<'a>, &'static str> {
    all_zero(&record.zero)?;
    let timestamps = SpliceTimestamps {
        value: record.ts_value.get(),
        recent: record.ts_recent.get(),
    };
    let has_timestamps = flag(record.has_timestamps)?;
    if !has_timestamps && (timestamps.value != 0 || timestamps.recent != 0) {
        return Err("without timestamps there are none");
    }
    let (fin_end, has_fin) = (record.fin_end.get(), flag(record.has_fin)?);
    if !has_fin && fin_end != 0 {
        return Err("without a FIN it has no end");
    }
    Ok(SpliceLeg {
        rcv_nxt: record.rcv_nxt.get(),
        snd_nxt: record.snd_nxt.get(),
        snd_window_bytes: record.snd_window_bytes.get(),
        rcv_window_bytes: record.rcv_window_bytes.get(),
        snd_shift: record.snd_shift,
        rcv_shift: record.rcv_shift,
        mss: record.mss.get(),
        sack: flag(record.sack)?,
        ecn: flag(record.ecn)?,
        fin_end: has_fin.then_some(fin_end),
        timestamps: has_timestamps.then_some(timestamps),
        header,
    })
}

/// Appends SPLICE, SPLICEMSS or UNSPLICE.
#[cold]
#[inline(never)]
pub(super) fn encode(command: &Command<'_>, out: &mut Vec<u8>) {
    match *command {
        Command::Splice(ref splice) => splice.encode(out),
        Command::SpliceMss {
            flow,
            leg,
            mss,
            seq,
        } => encode_mss(SPLICE_MSS, flow, (leg, mss, seq), out),
        Command::Unsplice { flow, kind } => encode_unsplice(flow, kind, out),
        _ => debug_assert!(false, "no command of splices"),
    }
}

/// Parses SPLICE, SPLICEMSS or UNSPLICE.
#[cold]
#[inline(never)]
pub(super) fn parse(kind: u8, bytes: &[u8]) -> Result<Command<'_>, &'static str> {
    match kind {
        SPLICE => Splice::parse(bytes).map(Command::Splice),
        SPLICE_MSS => parse_mss(bytes),
        _ => parse_unsplice(bytes),
    }
}

/// Appends SPLICEMSS or its answer: leg, MSS, and the sequence number quoted.
#[cold]
#[inline(never)]
pub(super) fn encode_mss(
    kind: u8,
    flow: FlowId,
    (leg, mss, seq): (u8, u16, u32),
    out: &mut Vec<u8>,
) {
    let record = SpliceMssRecord {
        head: head(kind, size_of::<SpliceMssRecord>()),
        flow: flow.0.into(),
        seq: seq.into(),
        mss: mss.into(),
        leg,
        zero: 0,
    };
    out.extend_from_slice(record.as_bytes());
}

fn parse_mss(bytes: &[u8]) -> Result<Command<'_>, &'static str> {
    let record = whole_mss(bytes)?;
    Ok(Command::SpliceMss {
        flow: FlowId(record.flow.get()),
        leg: record.leg,
        mss: record.mss.get(),
        seq: record.seq.get(),
    })
}

#[cold]
#[inline(never)]
pub(super) fn parse_mss_reduced(bytes: &[u8]) -> Result<Event, &'static str> {
    let record = whole_mss(bytes)?;
    all_zero(record.seq.as_bytes())?;
    Ok(Event::SpliceMssReduced {
        flow: FlowId(record.flow.get()),
        leg: record.leg,
        mss: record.mss.get(),
    })
}

fn whole_mss(bytes: &[u8]) -> Result<&SpliceMssRecord, &'static str> {
    let record = whole::<SpliceMssRecord>(bytes)?;
    all_zero(&[record.zero])?;
    check_mss(record.leg, record.mss.get())?;
    Ok(record)
}

pub(super) fn check_mss(leg: u8, mss: u16) -> Result<(), &'static str> {
    if leg > 1 {
        return Err("a splice has two legs");
    }
    match mss {
        0 => Err("mss is not zero"),
        _ => Ok(()),
    }
}

fn encode_unsplice(flow: FlowId, kind: UnspliceKind, out: &mut Vec<u8>) {
    let record = UnspliceRecord {
        head: head(UNSPLICE, size_of::<UnspliceRecord>()),
        flow: flow.0.into(),
        kind: kind as u8,
        zero: [0; 7],
    };
    out.extend_from_slice(record.as_bytes());
}

fn parse_unsplice(bytes: &[u8]) -> Result<Command<'_>, &'static str> {
    let record = whole::<UnspliceRecord>(bytes)?;
    all_zero(&record.zero)?;
    let kind = match record.kind {
        1 => UnspliceKind::Return,
        2 => UnspliceKind::Abort,
        _ => return Err("the kind of UNSPLICE is known"),
    };
    let flow = FlowId(record.flow.get());
    Ok(Command::Unsplice { flow, kind })
}

#[cold]
#[inline(never)]
pub(super) fn encode_refused(flow: FlowId, reason: SpliceRefusal, out: &mut Vec<u8>) {
    let record = SpliceRefusedRecord {
        head: head(SPLICE_REFUSED, size_of::<SpliceRefusedRecord>()),
        flow: flow.0.into(),
        reason: reason as u8,
        zero: [0; 7],
    };
    out.extend_from_slice(record.as_bytes());
}

#[cold]
#[inline(never)]
pub(super) fn parse_refused(bytes: &[u8]) -> Result<Event, &'static str> {
    let record = whole::<SpliceRefusedRecord>(bytes)?;
    all_zero(&record.zero)?;
    let reason = match record.reason {
        60 => SpliceRefusal::Full,
        61 => SpliceRefusal::BadHeader,
        62 => SpliceRefusal::AddressesInUse,
        _ => return Err("the reason is known"),
    };
    let flow = FlowId(record.flow.get());
    Ok(Event::SpliceRefused { flow, reason })
}

#[cold]
#[inline(never)]
pub(super) fn encode_progress(progress: &[SpliceProgress], out: &mut Vec<u8>) {
    let record = SplicesPassedRecord {
        head: head(
            SPLICE_PROGRESS,
            size_of::<SplicesPassedRecord>() + size_of_val(progress),
        ),
        splices: (progress.len() as u16).into(),
        zero: [0; 6],
    };
    out.extend_from_slice(record.as_bytes());
    for it in progress {
        let record = SpliceProgressRecord {
            flow: it.flow.0.into(),
            passed_bytes: it.passed_bytes.map(Into::into),
            has_finished: it.has_finished.map(Into::into),
            zero: [0; 6],
        };
        out.extend_from_slice(record.as_bytes());
    }
}

const _: () = assert!(
    size_of::<SpliceProgress>() == size_of::<SpliceProgressRecord>(),
    "the length of a message counts them"
);

#[cold]
#[inline(never)]
pub(super) fn parse_progress(bytes: &[u8]) -> Result<Event, &'static str> {
    let (record, rest) = split::<SplicesPassedRecord>(bytes)?;
    all_zero(&record.zero)?;
    let records =
        <[SpliceProgressRecord]>::ref_from_bytes(rest).map_err(|_| "splices fill the message")?;
    if records.len() != usize::from(record.splices) {
        return Err("splices fill the message");
    }
    if records.is_empty() || records.len() > SPLICE_PROGRESS_MAX {
        return Err("there are 1 to SPLICE_PROGRESS_MAX splices");
    }
    let of = |record: &SpliceProgressRecord| {
        all_zero(&record.zero)?;
        let [first, second] = record.has_finished;
        Ok(SpliceProgress {
            flow: FlowId(record.flow.get()),
            passed_bytes: record.passed_bytes.map(|bytes| bytes.get()),
            has_finished: [flag(first)?, flag(second)?],
        })
    };
    Ok(Event::SpliceProgress {
        progress: records.iter().map(of).collect::<Result<_, _>>()?,
    })
}

/// Appends splice ended, or unspliced if there is no reason.
#[cold]
#[inline(never)]
pub(super) fn encode_outcome(
    outcome: &SpliceOutcome,
    reason: Option<SpliceEndReason>,
    out: &mut Vec<u8>,
) {
    let kind = match reason {
        Some(_) => SPLICE_ENDED,
        None => UNSPLICED,
    };
    let leg = |numbers: SpliceNumbers| SpliceNumbersRecord {
        snd_nxt: numbers.snd_nxt.into(),
        rcv_nxt: numbers.rcv_nxt.into(),
        snd_window_bytes: numbers.snd_window_bytes.into(),
        rcv_window_bytes: numbers.rcv_window_bytes.into(),
        ts_value: numbers.ts_value.into(),
        ts_recent: numbers.ts_recent.into(),
    };
    let record = SpliceOutcomeRecord {
        head: head(kind, size_of::<SpliceOutcomeRecord>()),
        flow: outcome.flow.0.into(),
        passed_bytes: outcome.passed_bytes.map(Into::into),
        legs: outcome.legs.map(leg),
        reason: reason.map_or(0, |reason| reason as u8),
        zero: [0; 7],
    };
    out.extend_from_slice(record.as_bytes());
}

#[cold]
#[inline(never)]
pub(super) fn parse_ended(bytes: &[u8]) -> Result<Event, &'static str> {
    use SpliceEndReason::*;
    let (outcome, reason) = parse_outcome(bytes)?;
    let reason = [
        Finished,
        ResetByFirst,
        ResetBySecond,
        Idle,
        Overdue,
        NotReturned,
        Aborted,
    ]
    .into_iter()
    .find(|it| *it as u8 == reason)
    .ok_or("the reason is known")?;
    Ok(Event::SpliceEnded { outcome, reason })
}

#[cold]
#[inline(never)]
pub(super) fn parse_unspliced(bytes: &[u8]) -> Result<Event, &'static str> {
    let (outcome, reason) = parse_outcome(bytes)?;
    all_zero(&[reason])?;
    Ok(Event::Unspliced { outcome })
}

fn parse_outcome(bytes: &[u8]) -> Result<(Box<SpliceOutcome>, u8), &'static str> {
    let record = whole::<SpliceOutcomeRecord>(bytes)?;
    all_zero(&record.zero)?;
    let leg = |record: &SpliceNumbersRecord| SpliceNumbers {
        snd_nxt: record.snd_nxt.get(),
        rcv_nxt: record.rcv_nxt.get(),
        snd_window_bytes: record.snd_window_bytes.get(),
        rcv_window_bytes: record.rcv_window_bytes.get(),
        ts_value: record.ts_value.get(),
        ts_recent: record.ts_recent.get(),
    };
    let outcome = SpliceOutcome {
        flow: FlowId(record.flow.get()),
        passed_bytes: record.passed_bytes.map(|bytes| bytes.get()),
        legs: [leg(&record.legs[0]), leg(&record.legs[1])],
    };
    Ok((Box::new(outcome), record.reason))
}
