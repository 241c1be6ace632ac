//! Forward RTO-recovery (RFC 5682) detects spurious timeouts: if data sent only once is
//! acknowledged after the timeout, it was late, not lost.

use crate::time::Instant;

/// Progress of the detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// There was no timeout, or its cause is settled.
    #[default]
    Off,
    /// §2.1 step 2: the first acknowledgment is awaited.
    First,
    /// Step 3: new data was sent in place of retransmissions; the second acknowledgment is awaited.
    Second,
}

/// State of the detection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frto {
    step: Step,
    /// Time of the timeout: data that had departed before and was not sent again counts. Data that
    /// had been issued and waited in the NIC stack does not, as it departs after the timeout.
    at: Instant,
    /// In [`Step::Second`], end of the new data that may be sent.
    new_end: u64,
}

/// Results of an acknowledgment after a timeout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// SND.UNA advances.
    pub(crate) advances: bool,
    /// All data in flight at the timeout is acknowledged.
    pub(crate) complete: bool,
    /// Data that [`Frto::covers`] is newly delivered.
    pub(crate) original: bool,
    /// The peer sends SACK blocks.
    pub(crate) sack: bool,
    /// End of two segments of new data, if there is any and the peer's window lets it go.
    pub(crate) new_end: Option<u64>,
}

impl Frto {
    /// Begins the detection at a retransmission timeout.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        *self = Frto {
            step: Step::First,
            at: now,
            new_end: 0,
        };
    }

    pub(crate) fn stop(&mut self) {
        self.step = Step::Off;
    }

    /// Returns true if data that departed at an instant, once, was on its way when the timer
    /// expired, and the detection is not settled.
    pub(crate) fn covers(&self, departed: Instant) -> bool {
        self.step != Step::Off && departed < self.at
    }

    /// Returns the end of the new data that is to be sent in place of lost data (§2.1 step 2b).
    pub(crate) fn new_end(&self) -> Option<u64> {
        (self.step == Step::Second).then_some(self.new_end)
    }

    /// Returns true if the timeout was spurious. An acknowledgment of everything is inconclusive:
    /// it may answer the retransmission.
    pub(crate) fn on_ack(&mut self, answer: &Answer) -> bool {
        let Answer {
            advances,
            complete,
            original,
            sack,
            new_end,
        } = *answer;
        match (self.step, new_end) {
            (Step::Off, _) => false,
            // §3.1 step 3b: with SACK, the delivered data itself is the evidence.
            _ if sack && original => {
                self.stop();
                true
            }
            (Step::First, Some(new_end)) if advances && !complete => {
                self.step = Step::Second;
                self.new_end = new_end;
                false
            }
            // §2.1 step 3b: the second acknowledgment advances, too.
            (Step::Second, _) if !sack && advances => {
                self.stop();
                original
            }
            _ => {
                self.stop();
                false
            }
        }
    }
}
