//! The state of one process of an application: the segment, its channel, its store of handles.

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
    /// Generation of the process; it differs in children.
    generation: u32,
    /// Value of [`fork::children`] at the attachment.
    children: u32,
    /// Number of the segment's file, kept open. Dropped before the segment.
    _file: KeptNumbers,
    segment: Segment,
    pub(crate) modes: Modes,
    pub(crate) link: Arc<Link>,
    pub(crate) handles: Handles,
    /// The user that creates handles.
    pub(crate) broker_user: libc::uid_t,
    pub(crate) sets: Arc<Sets>,
    pub(crate) sent_files: SentFiles,
    pub(crate) sends: Sends,
    pump: Mutex<Option<Pump>>,
}

impl Process {
    /// Attaches this process to the application of `options`, or as a new application.
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

    /// Attaches this process to an existing application.
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
        // Absolute, since the working directory may have changed when the path is needed again.
        let path = std::path::absolute(&options.path).unwrap_or_else(|_| options.path.clone());
        retry(always, || Process::new(attempt(&path)?, &path))
    }

    /// Attaches this process, a child of `parent`, over the connection that it inherited, or over a
    /// new one if that broker is gone.
    pub(crate) fn adopted_by(parent: &Process) -> std::result::Result<Process, AttachError> {
        let membership = parent.handles.membership();
        let attached = retry(always, || {
            // A segment mapped in parts may be in use by another thread of the parent.
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

    /// Reports whether the current process is this one, and not a child.
    pub(crate) fn is_this(&self) -> bool {
        self.generation == fork::generation()
    }

    /// Reports whether this process has forked since it was attached: the child shares its sockets.
    pub(crate) fn has_forked(&self) -> bool {
        self.children != fork::children()
    }

    /// Takes a handle for a new socket. `nonblocking` also applies to a batch requested for it.
    pub(crate) fn take_handle(&self, nonblocking: bool) -> Result<Handle> {
        let taken = self.handles.take(nonblocking, || self.link.look_at_host());
        self.note_end(taken)
    }

    /// Like [`Process::take_handle`], for a connection from an accept queue, which may get the
    /// handle of a closed one.
    pub(crate) fn take_reusable_handle(&self, nonblocking: bool) -> Result<Handle> {
        let check = || self.link.look_at_host();
        let taken = self.handles.take_reusable(nonblocking, check);
        self.note_end(taken)
    }

    /// Requests an address. A closed socket may still hold it while the broker has a copy of the
    /// descriptor: then the request is repeated once that is closed.
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

    /// Releases a file that was passed in vain: opens it with a handle that is closed at once.
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

    /// If the host stack has ended the channel, no command would be answered.
    fn note_end<T>(&self, answer: Result<T>) -> Result<T> {
        if let Err(Errno::SHUTDOWN) = answer {
            self.link.die();
        }
        answer
    }

    /// Returns the record of a socket.
    pub(crate) fn record(&self, id: SocketId) -> Result<AppRecord<'_>> {
        AppRecord::of(&self.segment, id).map_err(errno)
    }

    /// Adds a member to a set that does not contain it.
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

    /// Creates everything that later calls on sockets need: the process is about to give up rights.
    pub(crate) fn prepare_for_confinement(&self) -> Result<()> {
        self.link.make_alarms()?;
        self.with_pump(Pump::await_memory)
    }

    /// Starts the thread that wakes sleepers on futexes, unless it runs.
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

/// Lets an unattached process retry until the time is over.
fn always() -> Result<()> {
    Ok(())
}

/// Returns the error of calls on an unusable socket: the host stack has ended it (ECONNRESET), its
/// record is invalid (EIO), a NIC stack moves its bytes (EBUSY), its memory does not fit into the
/// address space (ENOMEM), or it has no FIFO (ENOBUFS).
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

/// Returns the number of a descriptor.
pub(crate) fn number(fd: BorrowedFd<'_>) -> RawFd {
    std::os::fd::AsRawFd::as_raw_fd(&fd)
}
