//! Sockets for other programs: access to the host stack, and limits of each application.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::text::Text;
use crate::size::Size;
use crate::socket_values::{AddressRange, OffloadOption, PortRange};

/// Sockets of the host stack for other programs, which attach to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Sockets {
    /// Unix socket at which programs attach, in a directory that their users may enter. Every user
    /// may connect to it; the rules decide what each may use. Without it, no program can attach.
    pub path: Option<PathBuf>,
    /// Maximum sockets per application, 1 to 1,048,576.
    pub sockets_max: u32,
    /// Maximum listening sockets per application.
    pub listeners_max: u32,
    /// Maximum bound addresses and ports per application, including those of listeners.
    pub bindings_max: u32,
    /// Memory that an application shares with the host stack, for its sockets and their buffers: at
    /// least 8 KiB, and 1 KiB for each socket that it may have. With less than 2,560 bytes for
    /// each, it may have fewer.
    pub segment: Text<Size>,
    /// Maximum files that an application may have open at the NIC stack, and maximum that it may
    /// have passed there.
    pub files_max: u32,
    /// Maximum share of an application's sockets that the connections of one source take, in
    /// percent, 1 to 100. A source is an IPv4 address, or an IPv6 network of 64 bits; SYNs from one
    /// that has its share are not answered.
    pub source_share_percent: u32,
    /// Messages that the host stack takes from an application per turn, at least 1; others wait.
    pub messages_per_turn: u32,
    /// Time that the host stack spends on messages of an application per turn, in microseconds, 1
    /// to 1,000,000; others wait.
    pub turn_us_max: u32,
    /// Maximum applications.
    pub applications_max: u32,
    /// Maximum applications per user.
    pub applications_per_user_max: u32,
    /// Maximum processes per application.
    pub processes_max: u32,
    /// Access rules, one table for each. The first that matches a user counts; a user whom none
    /// matches may not attach. Without any: all users may connect, and listen on ports from 1024;
    /// root on any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Allow>,
    /// Parts of connections that NIC stacks run by themselves, for programs and for the server.
    pub offload: Offload,
}

/// Parts of connections that NIC stacks run by themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Offload {
    /// Connection setup: NIC workers answer SYNs with SYN cookies. docs/offload.md says when that
    /// is worth it. `"on-request"`: only for listeners whose programs ask for it.
    pub setup: OffloadOption,
    /// Connection teardown: FIN and its retransmission, replies, TIME-WAIT. docs/offload.md says
    /// when that is worth it. `"on-request"`: only for connections whose programs ask for it.
    pub teardown: OffloadOption,
}

/// Permissions of a user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Allow {
    /// User that the rule matches, by name or number. Default: all.
    pub user: Option<String>,
    /// Primary group that the rule matches, of processes, by name or number. Default: all.
    pub group: Option<String>,
    /// Ports to listen on, such as `["80", "8000-8999"]`; `[]`: none. Default: those from 1024; for
    /// root, any.
    pub listen: Option<Vec<Text<PortRange>>>,
    /// Addresses of the stack to use, such as `["10.77.0.0/24"]`. Default: all.
    pub addresses: Vec<Text<AddressRange>>,
    /// Allow outgoing connections.
    pub connect: bool,
}

impl Default for Sockets {
    fn default() -> Self {
        Self {
            path: None,
            sockets_max: 65_536,
            listeners_max: 64,
            bindings_max: 4096,
            segment: Text(Size(256 << 20)),
            files_max: 1024,
            source_share_percent: 80,
            messages_per_turn: 256,
            turn_us_max: 200,
            applications_max: 64,
            applications_per_user_max: 16,
            processes_max: 256,
            allow: Vec::new(),
            offload: Offload::default(),
        }
    }
}

impl Default for Allow {
    fn default() -> Self {
        Self {
            user: None,
            group: None,
            listen: None,
            addresses: Vec::new(),
            connect: true,
        }
    }
}
