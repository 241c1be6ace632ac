//! Processes whose broker has died come to this one: those that were attached go on with their
//! channels, and their children become processes of the same application.
//!
//! Each proves with the key of the application that it belongs to it, and has the user of the
//! application or of one of its processes; a process that has changed its user is known by its
//! process ID. The host process has the last word: it knows which channels there are.

use std::time::Instant;

use rustix::io::Errno;
use socket_channel::attach::Key;

use super::{Client, Member, Service, State};
use crate::broker::applications::TooMany;
use crate::broker::host_link::HostGone;
use crate::ipc::messages::BrokerToHost;

impl Service {
    /// A process that an earlier broker attached goes on with its channel.
    pub(super) fn reattach(
        &mut self,
        token: u64,
        app: u32,
        channel: u32,
        key: Key,
        now: Instant,
    ) -> Result<(), HostGone> {
        let Some(peer) = self.clients.get(&token).map(|it| it.connection.peer) else {
            return Ok(());
        };
        let why = match self.user_of(app, key) {
            Err(errno) => Err(errno),
            Ok(_) if self.channels.contains_key(&channel) => Err(Errno::BUSY),
            Ok(uid) => match self.absent.get(app, channel) {
                None => Err(Errno::SHUTDOWN),
                Some(process) if process.may_be(&peer, uid) => Ok(()),
                Some(_) => Err(Errno::ACCESS),
            },
        };
        if let Err(errno) = why {
            self.turn_away(token, "to come again to", app, errno, now);
            return Ok(());
        }
        self.leave_strangers(token);
        self.absent.remove(channel);
        let member = Member {
            app,
            channel,
            is_first: false,
        };
        self.channels.insert(channel, token);
        if let Some(client) = self.clients.get_mut(&token) {
            client.state = State::Waiting {
                of: member,
                ends: None,
            };
        }
        self.set_watch(token, None);
        let sent = self
            .host
            .send(&BrokerToHost::Reattach { app, channel }, &[])?;
        if sent.is_err() {
            self.remove(token);
        }
        Ok(())
    }

    /// A child of a process that an earlier broker attached becomes another process of the
    /// application.
    pub(super) fn join(
        &mut self,
        token: u64,
        app: u32,
        key: Key,
        now: Instant,
    ) -> Result<(), HostGone> {
        let Some(peer) = self.clients.get(&token).map(|it| it.connection.peer) else {
            return Ok(());
        };
        let why = match self.user_of(app, key) {
            Err(errno) => Err(errno),
            Ok(uid) if self.is_user_of(peer.uid.as_raw(), app, uid) => {
                let added = self.applications.add_process(app);
                added.map_err(|TooMany| Errno::USERS)
            }
            Ok(_) => Err(Errno::ACCESS),
        };
        match why {
            Ok(()) => self.open_channel(token, app, None),
            // Its last process has ended: the next one of a program begins another.
            Err(Errno::SHUTDOWN) => {
                self.refuse(token, Errno::SHUTDOWN);
                Ok(())
            }
            Err(errno) => {
                self.turn_away(token, "to join", app, errno, now);
                Ok(())
            }
        }
    }

    /// The user of an application of which a process names the key.
    fn user_of(&self, app: u32, key: Key) -> Result<u32, Errno> {
        let known = self.applications.get(app).ok_or(Errno::SHUTDOWN)?;
        if known.key == key {
            Ok(known.uid)
        } else {
            Err(Errno::ACCESS)
        }
    }

    /// True if this is the user of an application, or of one of its processes.
    fn is_user_of(&self, uid: u32, app: u32, of_app: u32) -> bool {
        let is_of_client = |client: &Client| {
            let is_member = client.state.member().is_some_and(|it| it.app == app);
            is_member && client.connection.peer.uid.as_raw() == uid
        };
        uid == of_app || self.absent.is_user(app, uid) || self.clients.values().any(is_of_client)
    }

    /// Refuses a process that names an application.
    fn turn_away(&mut self, token: u64, what: &str, app: u32, errno: Errno, now: Instant) {
        if let Some(client) = self.clients.get(&token) {
            let uid = client.connection.peer.uid.as_raw();
            self.complain(
                format_args!("a process of user {uid} may not {what} application {app}: {errno}"),
                now,
            );
        }
        self.refuse(token, errno);
    }
}
