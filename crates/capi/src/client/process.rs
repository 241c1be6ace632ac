//! What one process of an application has: the segment, its channel, its store of handles.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::io::{Errno, Result};
use socket_channel::{AppRecord, Command, Segment, SocketId, Unusable};

use super::application_key::ApplicationKey;
use super::attach::{AttachError, Attachment, Membership, adopt, attach, join, retry};
use super::fork;
use super::handles::{Handle, Handles};
use super::link::{Answer, Link, Pump};
use super::modes::{Modes, Options};
use super::notices::{self, Notice};
use super::own::KeptNumbers;
use super::sends::Sends;
use super::sent_files::SentFiles;
use super::set_copies;
use super::sets::{Interest, Member, Set, Sets, Source};
use super::watchers::Watch;
use crate::sys;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Process {
    /// Forks that led here: in a child of this process it is another.
    generation: u32,
    /// Children that were made before it was attached.
    children: u32,
    /// What the segment needs. It is dropped before that.
    _file: KeptNumbers,
    segment: Segment,
    pub(crate) modes: Modes,
    pub(crate) link: Arc<Link>,
    pub(crate) handles: Handles,
    /// The user that makes handles.
    pub(crate) broker_user: libc::uid_t,
    pub(crate) sets: Arc<Sets>,
    pub(crate) sent_files: SentFiles,
    pub(crate) sends: Sends,
    pump: Mutex<Option<Pump>>,
}

impl Process {
    /// Attaches this process: to the application that `options` name, or as one of its own.
    pub(crate) fn attach(options: &Options) -> std::result::Result<Process, AttachError> {
        let modes = options.modes.bits();
        Process::attach_by(options, |path| {
            let joined = options.application.map(|it| join(path, it.app, it.key));
            match joined {
                Some(Err(AttachError::Refused { errno })) if errno != Errno::AGAIN => {
                    attach(path, modes)
                }
                Some(joined) => joined,
                None => attach(path, modes),
            }
        })
    }

    /// Attaches this process to an application that there is.
    pub(crate) fn join(
        options: &Options,
        application: ApplicationKey,
    ) -> std::result::Result<Process, AttachError> {
        Process::attach_by(options, |path| join(path, application.app, application.key))
    }

    fn attach_by(
        options: &Options,
        attempt: impl Fn(&Path) -> std::result::Result<Attachment, AttachError>,
    ) -> std::result::Result<Process, AttachError> {
        if !fork::watch() {
            return Err(AttachError::System {
                what: "watching for forks",
                errno: Errno::NOMEM,
            });
        }
        // The working directory may be another when the path is needed again.
        let path = std::path::absolute(&options.path).unwrap_or_else(|_| options.path.clone());
        retry(always, || Process::new(attempt(&path)?, &path))
    }

    /// Attaches this process, a child of `parent`, over the connection that it inherited, or if
    /// that leads to no broker any more by a new one.
    pub(crate) fn adopted_by(parent: &Process) -> std::result::Result<Process, AttachError> {
        let membership = parent.handles.membership();
        let attached = retry(always, || {
            // One that is mapped in parts may be in use by another thread of the parent.
            let segment = Some(&parent.segment).filter(|segment| segment.file().is_none());
            let attachment = match adopt(parent.handles.broker().as_fd(), segment) {
                Err(AttachError::Gone) => join(&membership.path, membership.app, membership.key),
                adopted => adopted,
            };
            Process::new(attachment?, &membership.path)
        });
        attached.map_err(|error| match error {
            // The call that attaches the child has named no path.
            AttachError::Connect { .. } => AttachError::Gone,
            error => error,
        })
    }

    fn new(attachment: Attachment, path: &Path) -> std::result::Result<Process, AttachError> {
        let Attachment {
            broker,
            attached,
            segment,
            channel,
            bell,
        } = attachment;
        let membership = Membership {
            path: path.to_owned(),
            app: attached.app,
            channel: attached.channel,
            key: attached.key,
        };
        let (handles, canary) = Handles::new(broker, membership)?;
        let broker_user =
            sys::peer_user(canary.fd.as_fd()).map_err(|errno| AttachError::System {
                what: "asking whose a handle is",
                errno,
            })?;
        let link = Link::new(attached.channel, channel, bell, canary.fd);
        let link = link.map_err(|errno| AttachError::System {
            what: "making a bell",
            errno,
        })?;
        let sets = Arc::<Sets>::default();
        let weak: Weak<Sets> = Arc::downgrade(&sets);
        set_copies::register(fork::generation(), weak);
        Ok(Process {
            generation: fork::generation(),
            children: fork::children(),
            _file: KeptNumbers::of(segment.file().map(number)),
            segment,
            modes: Modes::from_bits(attached.modes),
            link: Arc::new(link),
            handles,
            broker_user,
            sets,
            sent_files: SentFiles::default(),
            sends: Sends::default(),
            pump: Mutex::default(),
        })
    }

    /// False in a child of the process that this is of.
    pub(crate) fn is_this(&self) -> bool {
        self.generation == fork::generation()
    }

    /// True if this process has made a child since it was attached, which shares its sockets.
    pub(crate) fn has_forked(&self) -> bool {
        self.children != fork::children()
    }

    /// A handle for a new socket. Whether that is going to block tells how the next ones are made.
    pub(crate) fn take_handle(&self, nonblocking: bool) -> Result<Handle> {
        let taken = self.handles.take(nonblocking, || self.link.look_at_host());
        self.note_end(taken)
    }

    /// Asks for an address. A socket that was closed may still have it because the broker has a
    /// copy of the descriptor: then it is asked for again when that is closed.
    pub(crate) fn ask_for_address<'a>(
        &self,
        command: impl Fn(u32) -> Command<'a>,
    ) -> Result<Answer> {
        match self.link.ask(&command) {
            Err(Errno::ADDRINUSE) if self.handles.settle() => self.link.ask(&command),
            answer => answer,
        }
    }

    /// Passes an open file to the NIC stacks; returns its number.
    pub(crate) fn pass_file(&self, file: BorrowedFd<'_>) -> Result<u32> {
        let passed = self.note_end(self.handles.pass_file(file, || self.link.look_at_host()));
        for late in self.handles.take_late_files() {
            self.let_go_of(late);
        }
        passed
    }

    /// A file that was passed for nothing: opened by a handle that is closed at once, it is over.
    fn let_go_of(&self, file: u32) {
        if let Ok(handle) = self.take_handle(false) {
            let id = handle.id;
            // Without an answer, the host stack is gone, and the file with it.
            let _ = self.link.ask(|request| Command::OpenPassed {
                request,
                handle: id,
                file,
            });
        }
    }

    /// Where the host stack has ended the channel, no command would be answered.
    fn note_end<T>(&self, answer: Result<T>) -> Result<T> {
        if let Err(Errno::SHUTDOWN) = answer {
            self.link.die();
        }
        answer
    }

    /// The record of a socket.
    pub(crate) fn record(&self, id: SocketId) -> Result<AppRecord<'_>> {
        AppRecord::of(&self.segment, id).map_err(errno)
    }

    /// Puts into a set what is not in it.
    pub(crate) fn add_member(
        &self,
        set: &Set,
        members: &mut HashMap<RawFd, Arc<Member>>,
        place: RawFd,
        source: Source,
        interest: Interest,
    ) {
        let member = Member::new(source, interest, set);
        match &member.source {
            Source::Socket(id) => {
                let watch: Arc<dyn Watch> = Arc::clone(&member) as Arc<dyn Watch>;
                self.link.watchers.add(id.index, watch);
            }
            Source::Set(inner) => {
                if let Some(inner) = inner.upgrade() {
                    inner.candidates.nest();
                }
            }
        }
        members.insert(place, Arc::clone(&member));
        member.queue();
    }

    /// Makes all that calls on sockets need later: the process is about to give up rights.
    pub(crate) fn prepare_for_confinement(&self) -> Result<()> {
        self.link.make_alarms()?;
        self.with_pump(Pump::await_memory)
    }

    /// Starts the thread that wakes those who sleep on a futex, unless it runs.
    pub(crate) fn start_pump(&self) -> Result<()> {
        self.with_pump(|_| ())
    }

    fn with_pump(&self, act: impl FnOnce(&Pump)) -> Result<()> {
        let mut pump = self.pump.lock().unwrap_or_else(PoisonError::into_inner);
        let running = match &mut *pump {
            Some(running) => running,
            none => none.insert(Pump::start(&self.link)?),
        };
        act(running);
        Ok(())
    }
}

/// Nothing but time ends the tries of a process that is not attached.
fn always() -> Result<()> {
    Ok(())
}

/// What a call reports of a socket with which nothing can be done: the host stack has ended it
/// (ECONNRESET), its record makes no sense (EIO), a NIC stack moves its bytes (EBUSY), or its
/// memory does not fit into the address space (ENOMEM).
pub(crate) fn errno(unusable: Unusable) -> Errno {
    match unusable {
        Unusable::Stale => Errno::CONNRESET,
        Unusable::Nonsense => Errno::IO,
        Unusable::Spliced => Errno::BUSY,
        Unusable::NoMemory => {
            notices::once(Notice::NoMemory);
            Errno::NOMEM
        }
        Unusable::NoFifo => Errno::NOBUFS,
    }
}

/// The number of a descriptor.
pub(crate) fn number(fd: BorrowedFd<'_>) -> RawFd {
    std::os::fd::AsRawFd::as_raw_fd(&fd)
}
