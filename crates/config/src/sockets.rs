//! Sockets for other programs: who may attach to the host stack, and how much each may use.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::text::Text;
use crate::size::Size;
use crate::socket_values::{AddressRange, OffloadOption, PortRange};

/// Sockets for other programs: they attach to the host stack, and their sockets are its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Sockets {
    /// Unix socket at which programs attach, in a directory that their users may enter. Every user
    /// may connect to it; rules say who may use what. Without it, no program can attach.
    pub path: Option<PathBuf>,
    /// Most sockets of an application, 1 to 1,048,576.
    pub sockets_max: u32,
    /// Most listening sockets of an application.
    pub listeners_max: u32,
    /// Most addresses and ports that an application may have bound, those of listeners among them.
    pub bindings_max: u32,
    /// Memory that an application shares with the host stack, for its sockets and for bytes on
    /// their way: at least 8 KiB, and 1 KiB for each socket that it may have.
    pub segment: Text<Size>,
    /// Most files that an application may have open at the NIC stack, and most that it may have
    /// passed there.
    pub files_max: u32,
    /// Messages of an application that the host stack takes in a turn, at least 1; others wait.
    pub messages_per_turn: u32,
    /// Most applications.
    pub applications_max: u32,
    /// Most applications of a user.
    pub applications_per_user_max: u32,
    /// Most processes of an application.
    pub processes_max: u32,
    /// Who may attach, one table for each rule. The first that is about a user counts; a user whom
    /// none is about may not attach. Without any: all users may connect, and listen on ports from
    /// 1024; root on any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Allow>,
    /// What of connections NIC stacks run by themselves: of programs, and of the server.
    pub offload: Offload,
}

/// What of connections NIC stacks run by themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Offload {
    /// The beginning: SYNs are answered with SYN cookies. docs/offload.md says when that is worth
    /// it. With `"on-request"`, those of the listeners for which their programs ask.
    pub setup: OffloadOption,
    /// The end: FIN and its retransmission, answers, TIME-WAIT. docs/offload.md says when that is
    /// worth it. With `"on-request"`, of the connections for which their programs ask.
    pub teardown: OffloadOption,
}

/// What a user may do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Allow {
    /// Name or number of the user whom the rule is about. Without it, all.
    pub user: Option<String>,
    /// Name or number of the primary group of the processes that the rule is about. Without it,
    /// all.
    pub group: Option<String>,
    /// Ports that may be listened on, such as `["80", "8000-8999"]`; `[]`: none. Without it, those
    /// from 1024; for root, any.
    pub listen: Option<Vec<Text<PortRange>>>,
    /// Addresses of the stack that may be used, such as `["10.77.0.0/24"]`. Without any, all.
    pub addresses: Vec<Text<AddressRange>>,
    /// Connections to others may be opened.
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
            messages_per_turn: 256,
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
