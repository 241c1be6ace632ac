//! In the supervisor: opens the taps from which a client is to read. It is in the network namespace of the link, and has
//! the privilege.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use failure::Failure;
use netdev::packet::capture::{Taken, Tap};
use netsetup::device;
use serde::{Deserialize, Serialize};

use super::wanted::Wanted;
use crate::control::Control;

/// Marks of what the host process sends, and of what NIC processes do.
pub(crate) const HOST_MARK: u32 = 0x5357_0001;
pub(crate) const NIC_MARK: u32 = 0x5357_0002;

/// What a tap brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    Received,
    HostSends,
    NicSends,
    /// Where the two cannot be told from each other.
    BothSend,
}

/// What is captured, besides the taps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Captured {
    /// The link.
    pub(crate) device: String,
    /// What each tap brings, in their order.
    pub(crate) parts: Vec<Part>,
    /// NIC stacks on other machines, whose packets do not pass here.
    pub(crate) nics_elsewhere: usize,
}

/// Answers whoever wants to capture.
pub(crate) fn answer(
    control: &mut Control,
    wanted: Wanted,
    interface: &str,
    own: &[IpAddr],
    nics_elsewhere: usize,
) {
    match open(wanted, interface, own) {
        Ok((parts, taps)) => {
            let captured = Captured {
                device: interface.to_owned(),
                parts,
                nics_elsewhere,
            };
            let text = serde_json::to_string(&captured).map_err(|error| error.to_string());
            let taps: Vec<_> = taps.iter().map(AsFd::as_fd).collect();
            control.answer_with(text, &taps);
        }
        Err(failure) => control.answer(Err(failure.to_string())),
    }
}

fn open(
    wanted: Wanted,
    interface: &str,
    own: &[IpAddr],
) -> Result<(Vec<Part>, Vec<OwnedFd>), Failure> {
    let mut taken = vec![(Part::Received, Taken::Received(own))];
    match Tap::can_mark() {
        true => taken.extend([
            (Part::HostSends, Taken::SentWithMark(HOST_MARK)),
            (Part::NicSends, Taken::SentWithMark(NIC_MARK)),
        ]),
        false => taken.push((Part::BothSend, Taken::SentFrom(own))),
    }
    let open = |(part, taken)| {
        let tap = Tap::open(interface, taken, wanted.only, wanted.snaplen)
            .map_err(|error| device::port_failed(interface, &error))?;
        Ok((part, tap.into_socket()))
    };
    taken.into_iter().map(open).collect()
}
