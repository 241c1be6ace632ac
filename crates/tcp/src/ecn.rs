//! Explicit congestion notification (RFC 3168 §6.1): routers mark packets instead of dropping them.
//!
//! Each direction has a receiver, which echoes marks ("ECE") until the sender reports that it has
//! slowed down ("CWR"), and a sender, which slows down once for each window of data.
//!
//! A path may clear or set the field at will. If it clears it, congestion shows as loss, as without
//! ECN. If it marks everything, the sender stays at its least window, which is slow, but alive.

use wire::ip;
use wire::tcp::{Flags, Segment};

use crate::config::EcnPolicy;

/// Result of the SYN exchange (§6.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Agreement {
    #[default]
    Open,
    Agreed,
    /// For good: a host that has sent or received one SYN without ECN does not use it.
    Refused,
}

/// ECN state of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ecn {
    agreement: Agreement,
    /// As a receiver: set ECE in every acknowledgment.
    echo: bool,
    /// As a sender: set CWR in the next new data.
    reduced: bool,
    /// The window was reduced when this was SND.NXT.
    reduced_at: u64,
}

impl Ecn {
    /// Returns the ECN flags of our SYN. §6.1.1.1: if the first was not answered, the next ones go
    /// without ECN, since the path may drop it.
    pub(crate) fn syn_flags(&mut self, policy: EcnPolicy, retransmission: bool) -> Flags {
        if policy != EcnPolicy::Offer || retransmission {
            self.agreement = Agreement::Refused;
        }
        match self.agreement {
            Agreement::Refused => Flags::default(),
            _ => Flags::ECE | Flags::CWR,
        }
    }

    /// Returns the ECN flags of our SYN,ACK.
    pub(crate) fn syn_ack_flags(&self) -> Flags {
        match self.agreement {
            Agreement::Agreed => Flags::ECE,
            _ => Flags::default(),
        }
    }

    /// Takes the peer's SYN or SYN,ACK, perhaps again.
    pub(crate) fn on_syn(&mut self, policy: EcnPolicy, syn: &Segment<'_>) {
        let flags = syn.header.flags;
        let [ece, cwr] = [Flags::ECE, Flags::CWR].map(|flag| flags.contains(flag));
        let setup = match flags.contains(Flags::ACK) {
            // "Only ECE": a peer that reflects reserved bits does not mean it.
            true => ece && !cwr,
            // No sender marks a SYN as ECN-capable (§6.1.1): the path writes into the field.
            false => ece && cwr && syn.ecn == ip::Ecn::NotEct,
        };
        self.agreement = match setup && policy != EcnPolicy::Off {
            true if self.agreement != Agreement::Refused => Agreement::Agreed,
            _ => Agreement::Refused,
        };
    }

    pub(crate) fn is_agreed(&self) -> bool {
        self.agreement == Agreement::Agreed
    }

    /// Handles text in the window (§6.1.3). Returns true if it is to be acknowledged at once: the
    /// peer should learn of congestion soon, and of the end of our echo, since its window may be
    /// down to one segment.
    pub(crate) fn on_text(&mut self, segment: &Segment<'_>) -> bool {
        if !self.is_agreed() {
            return false;
        }
        let cwr = segment.header.flags.contains(Flags::CWR);
        let marked = segment.ecn == ip::Ecn::Ce;
        // The packet with CWR may itself be marked: then it begins again.
        self.echo = marked || self.echo && !cwr;
        cwr || marked
    }

    /// Returns the ECN flags of every segment with an acknowledgment.
    pub(crate) fn ack_flags(&self) -> Flags {
        if self.echo {
            Flags::ECE
        } else {
            Flags::default()
        }
    }

    /// Returns true if an acceptable acknowledgment echoes congestion: then no window grows.
    pub(crate) fn is_echo(&self, flags: Flags) -> bool {
        self.is_agreed() && flags.contains(Flags::ECE)
    }

    /// Returns true if the window is to be reduced for an acknowledgment that [is an
    /// echo](Ecn::is_echo) (§6.1.2). Not more than once for a window of data, losses included.
    pub(crate) fn must_reduce(&self, ack: u64) -> bool {
        ack > self.reduced_at
    }

    /// Records a reduction of the window, because of marks or losses (§6.1.2).
    pub(crate) fn on_reduced(&mut self, nxt: u64) {
        self.reduced = self.is_agreed();
        self.reduced_at = nxt;
    }

    /// Returns the ECN field of sent data, and the flags of its first packet. Retransmissions are
    /// not marked as ECN-capable (§6.1.5), nor is anything without data (§6.1.4).
    pub(crate) fn on_data(&mut self, retransmission: bool) -> (ip::Ecn, Flags) {
        if !self.is_agreed() || retransmission {
            return (ip::Ecn::NotEct, Flags::default());
        }
        if std::mem::take(&mut self.reduced) {
            (ip::Ecn::Ect0, Flags::CWR)
        } else {
            (ip::Ecn::Ect0, Flags::default())
        }
    }
}
