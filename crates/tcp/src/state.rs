//! The states of a connection (RFC 9293 §3.3.2).

/// State of a connection. LISTEN is the host's: a connection begins with the SYN that it sends or
/// accepts.
///
/// | From | Event | To | Sends |
/// |---|---|---|---|
/// | – | [`connect`](crate::Connection::connect) | SYN-SENT | SYN |
/// | – | [`accept`](crate::Connection::accept) | SYN-RECEIVED | SYN,ACK |
/// | SYN-SENT | SYN,ACK of our SYN | ESTABLISHED | ACK |
/// | SYN-SENT | SYN (simultaneous open) | SYN-RECEIVED | SYN,ACK |
/// | SYN-SENT | RST with acceptable ACK | CLOSED | |
/// | SYN-RECEIVED | ACK of our SYN | ESTABLISHED | |
/// | SYN-RECEIVED | RST; new SYN after passive open | CLOSED | |
/// | ESTABLISHED | [`shutdown`](crate::Connection::shutdown) | FIN-WAIT-1 | FIN, after all that is queued |
/// | ESTABLISHED | FIN | CLOSE-WAIT | ACK |
/// | FIN-WAIT-1 | ACK of our FIN | FIN-WAIT-2 | |
/// | FIN-WAIT-1 | FIN (simultaneous close) | CLOSING | ACK |
/// | FIN-WAIT-1 | FIN and ACK of our FIN | TIME-WAIT | ACK |
/// | FIN-WAIT-2 | FIN | TIME-WAIT | ACK |
/// | FIN-WAIT-2 | silence for `fin_wait_2` | CLOSED | |
/// | CLOSING | ACK of our FIN | TIME-WAIT | |
/// | CLOSE-WAIT | [`shutdown`](crate::Connection::shutdown) | LAST-ACK | FIN, after all that is queued |
/// | LAST-ACK | ACK of our FIN | CLOSED | |
/// | TIME-WAIT | 2 MSL | CLOSED | |
/// | any | RST at RCV.NXT | CLOSED | |
/// | any | [`abort`](crate::Connection::abort) | CLOSED | RST |
/// | any | [`close`](crate::Connection::close) with unread bytes | CLOSED | RST |
/// | FIN-WAIT-1, FIN-WAIT-2 | text after [`close`](crate::Connection::close) | CLOSED | RST |
/// | any | `retries`, `user_timeout` | CLOSED | |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// We have sent a SYN.
    SynSent,
    /// We have received a SYN and sent ours.
    SynReceived,
    /// Data flows in both directions.
    Established,
    /// We have closed our direction; our FIN is not acknowledged.
    FinWait1,
    /// Our FIN is acknowledged; the peer may still send.
    FinWait2,
    /// The peer has closed its direction; we may still send.
    CloseWait,
    /// Both have closed at the same time; our FIN is not acknowledged.
    Closing,
    /// The peer has closed first, then we have; our FIN is not acknowledged.
    LastAck,
    /// All is done; old segments die out.
    TimeWait,
    /// There is no connection any more.
    Closed,
}

impl State {
    /// All states.
    pub const ALL: [State; 10] = [
        State::SynSent,
        State::SynReceived,
        State::Established,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::Closing,
        State::LastAck,
        State::TimeWait,
        State::Closed,
    ];

    /// Returns its name in RFC 9293.
    pub fn name(self) -> &'static str {
        match self {
            State::SynSent => "SYN-SENT",
            State::SynReceived => "SYN-RECEIVED",
            State::Established => "ESTABLISHED",
            State::FinWait1 => "FIN-WAIT-1",
            State::FinWait2 => "FIN-WAIT-2",
            State::CloseWait => "CLOSE-WAIT",
            State::Closing => "CLOSING",
            State::LastAck => "LAST-ACK",
            State::TimeWait => "TIME-WAIT",
            State::Closed => "CLOSED",
        }
    }

    /// ESTABLISHED, FIN-WAIT-1, FIN-WAIT-2: the peer may send text (RFC 9293 §3.10.7.4, seventh).
    pub(crate) fn takes_text(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Returns true if the peer's FIN was received.
    pub(crate) fn peer_has_finished(self) -> bool {
        matches!(
            self,
            State::CloseWait | State::Closing | State::LastAck | State::TimeWait
        )
    }

    /// Returns true if the handshake is complete, and the connection is not over (RFC 9293 §3.3.2).
    pub(crate) fn is_synchronized(self) -> bool {
        !self.is_opening() && self != State::Closed
    }

    /// Returns true if the handshake is not complete.
    pub fn is_opening(self) -> bool {
        matches!(self, State::SynSent | State::SynReceived)
    }
}
