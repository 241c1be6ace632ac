//! Listeners whose SYNs the NIC stack answers: the handshake is its own until the last ACK.
//!
//! With SETUP the host stack gives a NIC stack the key of SYN cookies (RFC 4987 §3.6), and the
//! options of SYN,ACKs. The NIC stack keeps no state of a SYN: everything that the host needs
//! returns in the ACK, which arrives at the host and becomes a connection there, if its cookie is
//! valid.
//!
//! ```text
//!  SETUP ──▶ setup ready: from now on the NIC stack answers SYNs, which it gets in two ways:
//!            at its own port, where a packet filter steers them; or by FRAME
//!        a SYN that it does not answer ──▶ frame: the host does
//! ```
//!
//! Each SETUP replaces the previous one; one without listeners ends the offload. The key changes
//! with time: a SETUP without a successor expires after its validity.

use std::net::{IpAddr, Ipv6Addr};

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::{SETUP_LISTENERS_MAX, SETUP_VALID_US_MAX};

/// Destination addresses that a listener covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetupScope {
    /// All of both families.
    All,
    /// All of IPv4.
    AllV4,
    /// All of IPv6.
    AllV6,
    /// This one.
    One(IpAddr),
}

impl SetupScope {
    /// True if it covers the address.
    pub fn covers(self, ip: IpAddr) -> bool {
        match self {
            SetupScope::All => true,
            SetupScope::AllV4 => ip.is_ipv4(),
            SetupScope::AllV6 => ip.is_ipv6(),
            SetupScope::One(one) => ip == one,
        }
    }
}

/// A listener whose SYNs the NIC stack answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SetupListener {
    /// Its addresses.
    pub scope: SetupScope,
    /// Its port.
    pub port: u16,
    /// The MSS option of SYN,ACKs over IPv4, in bytes. Not zero.
    pub mss_v4: u16,
    /// The MSS option over IPv6.
    pub mss_v6: u16,
    /// Accepts text in SYNs (RFC 7413).
    pub fast_open: bool,
}

/// A listener as bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SetupListenerRecord {
    address: [u8; 16],
    port: U16,
    mss_v4: U16,
    mss_v6: U16,
    scope: u8,
    fast_open: u8,
}

/// Bytes of a listener in SETUP.
pub(crate) const SETUP_LISTENER_BYTES: usize = 24;

const _: () = assert!(
    size_of::<SetupListenerRecord>() == SETUP_LISTENER_BYTES,
    "records never change within a version"
);

const ALL: u8 = 0;
const ALL_V4: u8 = 1;
const ALL_V6: u8 = 2;
const ONE_V4: u8 = 3;
const ONE_V6: u8 = 4;

/// Listeners, as they stand in SETUP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetupListeners<'a>(&'a [u8]);

impl<'a> SetupListeners<'a> {
    /// Listeners as bytes, for [`SetupListeners::parse`].
    pub fn to_bytes(listeners: &[SetupListener]) -> Vec<u8> {
        listeners_to_bytes(listeners)
    }

    /// The error is the rule that is broken.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        check_listeners(bytes)?;
        Ok(SetupListeners(bytes))
    }

    /// As bytes.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = SetupListener> + 'a {
        listeners(self.0)
    }
}

/// Options of the SYN,ACKs of all listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetupOptions {
    /// The initial receive buffer: the window, in bytes.
    pub receive_buffer_bytes: u32,
    /// The largest receive buffer, in bytes: the window scale.
    pub receive_buffer_bytes_max: u32,
    /// Windows are scaled if the peer does so (RFC 7323 §2).
    pub window_scaling: bool,
    /// Timestamps if the peer has them (RFC 7323 §3).
    pub timestamps: bool,
    /// Selective acknowledgments if the peer permits them (RFC 2018).
    pub sack: bool,
    /// ECN if the peer asks for it (RFC 3168 §6.1.1).
    pub ecn: bool,
}

/// SETUP: answer SYNs to these listeners. Answered with `SetupReady`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Setup<'a> {
    /// The host's number of this SETUP, larger than the previous one's.
    pub epoch: u64,
    /// When the host issued the command: microseconds of its monotonic clock, which a transport
    /// between machines translates.
    pub issued_us: u64,
    /// The same time, untranslated: cookies and timestamps count by the host's clock.
    pub host_us: u64,
    /// Period after `issued_us` in which SYNs are answered, in microseconds; at most
    /// [`SETUP_VALID_US_MAX`].
    pub valid_us: u64,
    /// The key of the cookies.
    pub cookie_key: [u8; 16],
    /// The key of the timestamp offsets.
    pub ts_offset_key: [u8; 16],
    /// The keys of Fast Open cookies: the current one, with which cookies are made, and the
    /// previous one, which is still valid. Without effect if no listener accepts text in SYNs.
    pub fast_open_keys: [[u8; 16]; 2],
    /// Options of SYN,ACKs.
    pub options: SetupOptions,
    /// The source link address of SYN,ACKs.
    pub source_mac: [u8; 6],
    /// The listeners, the most specific first.
    pub listeners: SetupListeners<'a>,
}

impl Setup<'_> {
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.valid_us > SETUP_VALID_US_MAX {
            return Err("a SETUP is good for at most SETUP_VALID_US_MAX");
        }
        Ok(())
    }
}

impl std::fmt::Debug for Setup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("epoch", &self.epoch)
            .field("valid_us", &self.valid_us)
            .field("options", &self.options)
            .field("listeners", &self.listeners.iter().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl From<&SetupListener> for SetupListenerRecord {
    fn from(listener: &SetupListener) -> Self {
        let (scope, address) = match listener.scope {
            SetupScope::All => (ALL, [0; 16]),
            SetupScope::AllV4 => (ALL_V4, [0; 16]),
            SetupScope::AllV6 => (ALL_V6, [0; 16]),
            SetupScope::One(IpAddr::V4(ip)) => (ONE_V4, ip.to_ipv6_mapped().octets()),
            SetupScope::One(IpAddr::V6(ip)) => (ONE_V6, ip.octets()),
        };
        SetupListenerRecord {
            address,
            port: listener.port.into(),
            mss_v4: listener.mss_v4.into(),
            mss_v6: listener.mss_v6.into(),
            scope,
            fast_open: listener.fast_open.into(),
        }
    }
}

impl SetupListenerRecord {
    fn parse(&self) -> Result<SetupListener, &'static str> {
        let address = Ipv6Addr::from(self.address);
        let scope = match self.scope {
            ALL | ALL_V4 | ALL_V6 if !address.is_unspecified() => {
                return Err("all addresses have none");
            }
            ALL => SetupScope::All,
            ALL_V4 => SetupScope::AllV4,
            ALL_V6 => SetupScope::AllV6,
            ONE_V4 => {
                let ip = address.to_ipv4_mapped();
                SetupScope::One(ip.ok_or("an address is of its family")?.into())
            }
            ONE_V6 => SetupScope::One(address.into()),
            _ => return Err("the scope is known"),
        };
        let fast_open = match self.fast_open {
            0 => false,
            1 => true,
            _ => return Err("a flag is 0 or 1"),
        };
        if self.mss_v4.get() == 0 || self.mss_v6.get() == 0 {
            return Err("mss is not zero");
        }
        Ok(SetupListener {
            scope,
            port: self.port.get(),
            mss_v4: self.mss_v4.get(),
            mss_v6: self.mss_v6.get(),
            fast_open,
        })
    }
}

fn listeners_to_bytes(listeners: &[SetupListener]) -> Vec<u8> {
    let records: Vec<_> = listeners.iter().map(SetupListenerRecord::from).collect();
    records.as_bytes().to_vec()
}

fn records(bytes: &[u8]) -> Result<&[SetupListenerRecord], &'static str> {
    <[SetupListenerRecord]>::ref_from_bytes(bytes).map_err(|_| "listeners fill the message")
}

fn check_listeners(bytes: &[u8]) -> Result<(), &'static str> {
    let records = records(bytes)?;
    if records.len() > SETUP_LISTENERS_MAX {
        return Err("there are at most SETUP_LISTENERS_MAX listeners");
    }
    let mut parsed = records.iter().map(SetupListenerRecord::parse);
    parsed.try_for_each(|listener| listener.map(drop))
}

/// Listeners that were checked.
fn listeners(bytes: &[u8]) -> impl Iterator<Item = SetupListener> {
    let records = records(bytes).unwrap_or_default();
    records.iter().filter_map(|record| record.parse().ok())
}
