//! Processes that earlier brokers attached, and that have not come to this one yet.

use std::collections::HashMap;

use netsetup::seqpacket::Peer;

use crate::ipc::messages::KnownProcess;

/// A process as it was when it attached.
#[derive(Debug)]
pub(crate) struct AbsentProcess {
    app: u32,
    /// `None` if its process ID was not visible.
    pid: Option<i32>,
    uid: u32,
}

impl AbsentProcess {
    /// True if the process at a socket, which knows the key of the application, may be this one: it
    /// has the same user, that of the application, or the same process ID, if it has changed its
    /// user since.
    pub(crate) fn may_be(&self, peer: &Peer, of_app: u32) -> bool {
        let uid = peer.uid.as_raw();
        uid == self.uid || uid == of_app || (self.pid.is_some() && self.pid == peer.pid)
    }
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Absent {
    /// By channel.
    processes: HashMap<u32, AbsentProcess>,
}

impl Absent {
    pub(crate) fn add(&mut self, known: &KnownProcess) {
        let process = AbsentProcess {
            app: known.app,
            pid: i32::try_from(known.pid).ok().filter(|pid| *pid != 0),
            uid: known.uid,
        };
        self.processes.insert(known.channel, process);
    }

    /// True if a process has this channel.
    pub(crate) fn has(&self, channel: u32) -> bool {
        self.processes.contains_key(&channel)
    }

    /// The process of an application that has this channel.
    pub(crate) fn get(&self, app: u32, channel: u32) -> Option<&AbsentProcess> {
        let process = self.processes.get(&channel);
        process.filter(|process| process.app == app)
    }

    /// True if a process of an application is of this user.
    pub(crate) fn is_user(&self, app: u32, uid: u32) -> bool {
        let mut processes = self.processes.values();
        processes.any(|process| process.app == app && process.uid == uid)
    }

    /// A process has come again, or has ended.
    pub(crate) fn remove(&mut self, channel: u32) {
        self.processes.remove(&channel);
    }

    /// An application has ended.
    pub(crate) fn remove_all_of(&mut self, app: u32) {
        self.processes.retain(|_, process| process.app != app);
    }
}
