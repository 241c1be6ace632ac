//! Translates PART for `tcp`.

use std::time::Duration;

use contract::parting::{Part, PartStage};
use tcp::{Config, CongestionAlgorithm, Connection, Instant, Remainder, Stage};
use wire::frame::TcpTemplate;

/// No data is received and kept: the window that the host has offered stays, and does not grow.
const RECEIVE_BUFFER_BYTES: usize = 4096;

/// Returns the connection that continues the parted one.
pub(super) fn connection(part: &Part<'_>, template: &TcpTemplate, now: Instant) -> Connection {
    let (local_port, remote_port) = (template.source.port(), template.destination.port());
    let config = config(part, template.source.is_ipv6());
    Connection::resume(&config, local_port, remote_port, &remainder(part), now)
}

fn config(part: &Part<'_>, ipv6: bool) -> Config {
    let limits = &part.limits;
    let ms = |ms: u32| Duration::from_millis(ms.into());
    Config {
        mss: part.mss,
        ipv6,
        receive_buffer_bytes: RECEIVE_BUFFER_BYTES,
        receive_buffer_bytes_max: RECEIVE_BUFFER_BYTES,
        rto_initial: ms(limits.rto_initial_ms),
        rto_min: ms(limits.rto_min_ms),
        rto_max: ms(limits.rto_max_ms),
        retries: limits.fin_retries,
        fin_retries: limits.fin_retries,
        time_wait: ms(limits.time_wait_ms),
        fin_wait_2: (limits.fin_wait_2_ms > 0).then(|| ms(limits.fin_wait_2_ms)),
        challenge_acks_max: limits.challenge_acks_max,
        challenge_acks_interval: ms(limits.challenge_acks_interval_ms),
        // No data is sent that a congestion window would bound.
        congestion: CongestionAlgorithm::NewReno,
        pace: false,
        ..Config::default()
    }
}

fn remainder(part: &Part<'_>) -> Remainder {
    // TSval counts the milliseconds of this worker's clock from now on. Its first value is no less
    // than the host's last.
    let issued_ms = (part.issued_us / 1000) as u32;
    let timestamps = part.timestamps;
    Remainder {
        stage: match part.stage {
            PartStage::FinWait1 => Stage::FinWait1,
            PartStage::FinWait2 => Stage::FinWait2,
            PartStage::Closing => Stage::Closing,
            PartStage::LastAck => Stage::LastAck,
        },
        owes_ack: part.owes_ack,
        fin_seq: part.fin_seq,
        rcv_nxt: part.rcv_nxt,
        rcv_window_bytes: part.rcv_window_bytes,
        rcv_shift: part.rcv_shift,
        snd_window_bytes: part.snd_window_bytes,
        snd_window_bytes_max: part.snd_window_bytes_max,
        snd_shift: part.snd_shift,
        timestamps: timestamps.map(|ts| (ts.value.wrapping_sub(issued_ms), ts.recent)),
        srtt_us: part.srtt_us,
        rttvar_us: part.rttvar_us,
        backoff: part.backoff,
        user_timeout_ms: part.limits.user_timeout_ms,
    }
}
