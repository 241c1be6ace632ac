//! The length of datagrams that the kernel has merged into one frame.
//!
//! A UDP socket of this machine that sends with `UDP_SEGMENT` over a veth pair, or GRO where it is
//! on for datagrams, makes frames with one UDP header and the payloads of many datagrams. Only
//! `PACKET_VNET_HDR` carries their length.

use std::os::fd::OwnedFd;

use rustix::system::uname;

use super::socket;

/// The first kernel whose `PACKET_VNET_HDR` knows superpackets of UDP. An earlier one drops them on
/// a socket that has it, which is worse than to hand them over without a length.
const KNOWS_DATAGRAMS: (u32, u32) = (6, 2);

/// Has the kernel put a virtio header before each frame that it receives. Must precede the socket's
/// ring. False if the kernel cannot.
pub(super) fn ask(socket: &OwnedFd) -> bool {
    let release = uname();
    let release = release.release().to_str();
    release.ok().and_then(version) >= Some(KNOWS_DATAGRAMS)
        && socket::set_integer(socket, libc::PACKET_VNET_HDR, 1).is_ok()
}

/// Returns the first two numbers of a kernel release, such as `6.12.48+deb13-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_ordered_by_number() {
        for (release, knows) in [
            ("6.2", true),
            ("6.2.0-39-generic", true),
            ("6.12.48+deb13-amd64", true),
            ("10.0-rc1", true),
            ("6.1.155", false),
            ("5.15.0-1", false),
            ("6", false),
            ("", false),
            ("unknown", false),
        ] {
            assert_eq!(
                version(release) >= Some(KNOWS_DATAGRAMS),
                knows,
                "{release}"
            );
        }
    }
}
