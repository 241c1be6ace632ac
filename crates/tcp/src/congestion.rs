//! Congestion control: how much may be in flight.
//!
//! Loss is detected elsewhere ([`crate::recovery`]); an algorithm hears of it and names a window.

use std::fmt::Debug;

use crate::config::CongestionAlgorithm;
use crate::newreno::NewReno;

/// A congestion control algorithm. Sizes are in bytes.
pub(crate) trait Congestion: Debug + Send {
    /// The congestion window.
    fn window(&self) -> u64;

    /// The handshake is complete. `handshake_lost`: a SYN had to be retransmitted.
    fn on_established(&mut self, mss: u16, handshake_lost: bool);

    /// New data was acknowledged outside of fast recovery. `after_timeout`: it may have been received long
    /// ago. Called only if the window was used up when it was sent.
    fn on_ack(&mut self, acked: u64, after_timeout: bool);

    /// Loss was detected through duplicate acknowledgments.
    fn on_loss(&mut self, flight: u64);

    /// All that was in flight at the loss is acknowledged.
    fn on_recovered(&mut self, flight: u64);

    /// The retransmission timer has expired. `again`: nothing was acknowledged since the last time.
    fn on_timeout(&mut self, flight: u64, again: bool);
}

/// A fresh instance of an algorithm.
pub(crate) fn new(algorithm: CongestionAlgorithm) -> Box<dyn Congestion> {
    match algorithm {
        CongestionAlgorithm::NewReno => Box::new(NewReno::new()),
    }
}
