//! In the supervisor: opens the taps from which a client is to read. It is in the network namespace
//! of the link, and has the privilege.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use failure::Failure;
use netdev::packet::capture::{Taken, Tap};
use netsetup::device;

use crate::supervisor::control_socket::Control;
use processes::ipc::capture_request::{CaptureRequest, Captured, HOST_MARK, NIC_MARK, Part};

/// Answers `splitway capture`.
pub(crate) fn answer(
    control: &mut Control,
    wanted: CaptureRequest,
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
    wanted: CaptureRequest,
    interface: &str,
    own: &[IpAddr],
) -> Result<(Vec<Part>, Vec<OwnedFd>), Failure> {
    let mut taken = vec![(Part::Received, Taken::Received(own))];
    if Tap::can_mark() {
        taken.extend([
            (Part::HostSends, Taken::SentWithMark(HOST_MARK)),
            (Part::NicSends, Taken::SentWithMark(NIC_MARK)),
        ])
    } else {
        taken.push((Part::BothSend, Taken::SentFrom(own)))
    }
    let open = |(part, taken)| {
        let tap = Tap::open(interface, taken, wanted.only, wanted.snaplen)
            .map_err(|error| device::port_failed(interface, &error))?;
        Ok((part, tap.into_socket()))
    };
    taken.into_iter().map(open).collect()
}
