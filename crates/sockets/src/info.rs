//! `TCP_INFO` (tcp(7)), from the state of TCP.

use host::app::Io;
use rustix::io::Errno;
use socket_channel::SocketId;
use socket_channel::message::Info;
use tcp::State;

use crate::application::App;
use crate::state::socket::Kind;

/// Returns a state in the kernel's numbers (`net/tcp_states.h`).
fn state_number(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}

/// Bits of the kernel's `tcpi_options`.
const OPTION_TIMESTAMPS: u8 = 1;
const OPTION_SACK: u8 = 2;
const OPTION_WINDOW_SCALE: u8 = 4;
const OPTION_ECN: u8 = 8;

/// State of a listener, in the kernel's numbers.
const LISTEN: u8 = 10;

fn segments(bytes: u64, mss: u64) -> u32 {
    u32::try_from(bytes.div_ceil(mss.max(1))).unwrap_or(u32::MAX)
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn to_info(info: &tcp::Info) -> Info {
    let mss = info.mss;
    let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let (snd_wscale, rcv_wscale) = info.window_shifts.unwrap_or((0, 0));
    Info {
        state: state_number(info.state),
        ca_state: match info.ca_state {
            tcp::CaState::Open => 0,
            tcp::CaState::Recovery => 3,
            tcp::CaState::Loss => 4,
        },
        retransmits: info.backoff.min(u8::MAX.into()) as u8,
        backoff: info.backoff.min(u8::MAX.into()) as u8,
        options: bit(info.timestamps, OPTION_TIMESTAMPS)
            | bit(info.sack, OPTION_SACK)
            | bit(info.window_shifts.is_some(), OPTION_WINDOW_SCALE)
            | bit(info.ecn, OPTION_ECN),
        snd_wscale,
        rcv_wscale,
        rto: narrow(info.rto_us).into(),
        snd_mss: narrow(mss).into(),
        rcv_mss: narrow(mss).into(),
        unacked: segments(info.flight, mss).into(),
        sacked: segments(info.sacked, mss).into(),
        lost: segments(info.lost, mss).into(),
        rtt: narrow(info.srtt_us.unwrap_or(0)).into(),
        rttvar: narrow(info.rttvar_us.unwrap_or(0)).into(),
        snd_ssthresh: info
            .ssthresh
            .map_or(i32::MAX as u32, |it| segments(it, mss))
            .into(),
        snd_cwnd: segments(info.cwnd, mss).into(),
        advmss: narrow(mss).into(),
        rcv_space: narrow(info.rcv_wnd).into(),
        total_retrans: narrow(info.retransmissions).into(),
        // The kernel's value for no limit.
        pacing_rate: info.pacing_rate.unwrap_or(u64::MAX).into(),
        bytes_acked: info.bytes_acked.into(),
        bytes_received: info.bytes_received.into(),
        notsent_bytes: narrow(info.queued.saturating_sub(info.flight)).into(),
        min_rtt: narrow(info.min_rtt_us.unwrap_or(0)).into(),
        bytes_sent: info
            .bytes_sent
            .saturating_add(info.bytes_retransmitted)
            .into(),
        bytes_retrans: info.bytes_retransmitted.into(),
        snd_wnd: narrow(info.snd_wnd).into(),
        rcv_wnd: narrow(info.rcv_wnd).into(),
        ..Info::default()
    }
}

impl App {
    /// Returns `TCP_INFO` of a socket.
    pub(crate) fn info(&mut self, io: &dyn Io, id: SocketId) -> Result<Info, Errno> {
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        let info = socket.stream().and_then(|stream| io.info(stream.id));
        if let Some(info) = info {
            return Ok(to_info(&info));
        }
        let Kind::Listener(listener) = &socket.kind else {
            return Ok(Info {
                state: state_number(State::Closed),
                ..Info::default()
            });
        };
        // The queue is reported as in Linux's tcp_get_info.
        let waiting = socket.record.accept_waiting() + listener.held.len();
        Ok(Info {
            state: LISTEN,
            unacked: narrow(waiting as u64).into(),
            sacked: narrow(listener.backlog as u64).into(),
            ..Info::default()
        })
    }
}
