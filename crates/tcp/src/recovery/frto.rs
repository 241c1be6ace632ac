//! Forward RTO-recovery (RFC 5682): is a timeout spurious? If acknowledgments of what was sent only
//! once come after it, the data was late, not lost.

use crate::time::Instant;

/// What has been seen since the timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// There was no timeout, or it is settled what it was.
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
    /// When that was: what had departed before and was not sent again counts. What had been issued
    /// and waited in the NIC stack says nothing, it is later than the timeout.
    at: Instant,
    /// In [`Step::Second`], new data may be sent up to here.
    new_end: u64,
}

/// What an acknowledgment after a timeout tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// SND.UNA advances.
    pub(crate) advances: bool,
    /// All that was in flight at the timeout is acknowledged.
    pub(crate) complete: bool,
    /// Data of [`Frto::covers`] is delivered, which was not known before.
    pub(crate) original: bool,
    /// The peer sends SACK blocks.
    pub(crate) sack: bool,
    /// Where two segments of new data end, if there is any and the peer's window lets it go.
    pub(crate) new_end: Option<u64>,
}

impl Frto {
    /// The retransmission timer has expired.
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

    /// True if what has departed at an instant, once, was on its way when the timer expired, and it
    /// is not settled yet what its delivery means.
    pub(crate) fn covers(&self, departed: Instant) -> bool {
        self.step != Step::Off && departed < self.at
    }

    /// Where new data ends that is to be sent in place of what counts as lost (§2.1 step 2b).
    pub(crate) fn new_end(&self) -> Option<u64> {
        (self.step == Step::Second).then_some(self.new_end)
    }

    /// True if the timeout was spurious. An acknowledgment of everything says nothing: it may
    /// answer the retransmission.
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
            // §3.1 step 3b: with SACK, the data itself tells.
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
