//! The socket over which a NIC process takes files that applications have passed to the broker.
//!
//! The broker sends a file before it sends the application the file's number. So when a number
//! reaches a worker, through the application and the host process, its file is at least in the
//! socket: a worker that does not know a number reads the socket itself. A new broker asks for the
//! files that its predecessor passed.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use contract::PassedId;
use nic::PassedFiles;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket_channel::AppId;

use crate::closer::Closer;
use crate::ipc::fd_passing;
use crate::ipc::messages::{BrokerToNic, NicToBroker};

/// Pause before files are sent back again after the kernel ran out of memory, or had too many
/// descriptors in flight.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(10);

/// Longest message of the broker, in bytes.
const MESSAGE_BYTES_MAX: usize = 128;

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct Door {
    socket: OwnedFd,
    state: Mutex<State>,
    closer: Closer,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, Arc<OwnedFd>>,
    /// Files that the broker has asked for, and not yet received.
    wanted: VecDeque<u64>,
    /// Whether the kernel could not send the first wanted file.
    is_short: bool,
    /// Whether all files passed before this process began have arrived.
    is_complete: bool,
    /// Whether no more files will come.
    is_over: bool,
}

/// Condition to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    News,
    /// News, or room for files that the broker has asked for.
    Room,
    /// News, or the end of a shortage.
    Pause,
}

impl State {
    fn due(&self) -> Due {
        match (self.wanted.is_empty(), self.is_short) {
            (true, _) => Due::News,
            (false, false) => Due::Room,
            (false, true) => Due::Pause,
        }
    }
}

impl Door {
    /// Takes files over this socket.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Door> {
        Ok(Door {
            socket,
            state: Mutex::default(),
            closer: Closer::start()?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all files passed before this process began have arrived, or for this long: files
    /// of a broker that has ended are sent by its successor.
    pub(super) fn wait_until_complete(&self, at_most: Duration) {
        let until = Instant::now() + at_most;
        loop {
            let mut state = self.lock();
            self.receive(&mut state);
            let left = until.saturating_duration_since(Instant::now());
            if state.is_complete || state.is_over || left.is_zero() {
                return;
            }
            let due = state.due();
            drop(state);
            if self.wait(due, Some(left)).is_err() {
                return;
            }
        }
    }

    /// Starts a thread that receives files, so that descriptors in flight do not accumulate.
    pub(super) fn follow(self: Arc<Self>) -> io::Result<()> {
        let follow = move || {
            let mut due = Due::News;
            while self.wait(due, None).is_ok() {
                let mut state = self.lock();
                self.receive(&mut state);
                if state.is_over {
                    return;
                }
                due = state.due();
            }
        };
        let thread = thread::Builder::new().name("passed-files".into());
        thread.stack_size(64 << 10).spawn(follow).map(drop)
    }

    /// Waits until the condition holds.
    fn wait(&self, due: Due, timeout: Option<Duration>) -> rustix::io::Result<()> {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, due == Due::Room);
        let pause = (due == Due::Pause).then_some(SHORTAGE_PAUSE);
        let timeout = timeout.into_iter().chain(pause).min();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = [PollFd::new(&self.socket, flags)];
        rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref())).map(drop)
    }

    /// Receives all pending messages, and sends wanted files as far as there is room.
    fn receive(&self, state: &mut State) {
        let buffer = &mut [0; MESSAGE_BYTES_MAX];
        while !state.is_over {
            match fd_passing::receive_many("the broker", &self.socket, buffer) {
                Ok(Some((message, descriptors))) => self.take(state, message, descriptors),
                Ok(None) => break,
                Err(failure) => {
                    tracing::debug!("{failure}");
                    state.is_over = true;
                }
            }
        }
        self.send_wanted(state);
    }

    fn send_wanted(&self, state: &mut State) {
        state.is_short = false;
        while let Some(&file) = state.wanted.front() {
            let descriptor = state.files.get(&file).map(Arc::as_ref);
            match fd_passing::pass(&self.socket, &NicToBroker::File { file }, descriptor) {
                Err(Errno::AGAIN) => return,
                Err(Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => {
                    state.is_short = true;
                    return;
                }
                Ok(()) => {}
                Err(errno) => tracing::debug!(%errno, "the broker does not get a file back"),
            }
            state.wanted.pop_front();
        }
    }

    fn take(&self, state: &mut State, message: BrokerToNic, descriptors: Vec<OwnedFd>) {
        match message {
            BrokerToNic::File { file } => match descriptors.into_iter().next() {
                Some(descriptor) => {
                    let before = state.files.insert(file, Arc::new(descriptor));
                    self.close(before);
                }
                // The kernel has dropped the descriptor.
                None => tracing::warn!("no descriptor is left for a file of an application"),
            },
            BrokerToNic::Close { file } => self.close(state.files.remove(&file)),
            BrokerToNic::CloseAll { app } => {
                let of_app = state.files.range(AppId(app).all_passed());
                let of_app: Vec<u64> = of_app.map(|(&file, _)| file).collect();
                self.close(of_app.iter().filter_map(|file| state.files.remove(file)));
            }
            BrokerToNic::Return { file } => state.wanted.push_back(file),
            BrokerToNic::Complete => state.is_complete = true,
        }
    }

    /// Closes files that no worker has open; workers close theirs themselves.
    fn close(&self, files: impl IntoIterator<Item = Arc<OwnedFd>>) {
        for descriptor in files.into_iter().filter_map(Arc::into_inner) {
            self.closer.close(descriptor);
        }
    }
}

impl PassedFiles for Door {
    fn descriptor(&self, passed: PassedId) -> Option<Arc<OwnedFd>> {
        let mut state = self.lock();
        if !state.files.contains_key(&passed.0) {
            self.receive(&mut state);
        }
        state.files.get(&passed.0).cloned()
    }
}

#[cfg(test)]
mod tests {
    use netsetup::seqpacket;

    use super::*;

    struct Broker(OwnedFd);

    impl Broker {
        fn says(&self, message: BrokerToNic) {
            let file = matches!(message, BrokerToNic::File { .. });
            let file: Option<OwnedFd> = file.then(|| tempfile::tempfile().unwrap().into());
            fd_passing::pass(&self.0, &message, file.as_ref()).unwrap();
        }

        fn passes(&self, file: u64) {
            self.says(BrokerToNic::File { file });
        }
    }

    fn door() -> (Broker, Door) {
        let (broker, own) = seqpacket::pair().unwrap();
        (Broker(broker), Door::new(own).unwrap())
    }

    #[test]
    fn files_come_back_when_they_are_asked_for() {
        let (broker, door) = door();
        for file in 0..500 {
            broker.passes(file);
            broker.says(BrokerToNic::Return { file });
            assert!(has(&door, file));
        }
        broker.says(BrokerToNic::Return { file: 1000 });
        let buffer = &mut [0; MESSAGE_BYTES_MAX];
        for file in (0..500).chain([1000]) {
            assert!(!has(&door, 7000), "there is room for more");
            let back = fd_passing::receive::<NicToBroker>(&broker.0, buffer);
            let (message, descriptor) = back.unwrap().unwrap();
            assert_eq!(message, NicToBroker::File { file });
            assert_eq!(descriptor.is_some(), file < 1000);
        }
    }

    fn has(door: &Door, file: u64) -> bool {
        door.descriptor(PassedId(file)).is_some()
    }

    #[test]
    fn a_file_is_there_when_its_number_is() {
        let (broker, door) = door();
        assert!(!has(&door, 5));
        broker.passes(5);
        assert!(has(&door, 5) && !has(&door, 6));
        broker.says(BrokerToNic::Close { file: 5 });
        broker.passes(6);
        assert!(has(&door, 6) && !has(&door, 5));
    }

    #[test]
    fn files_of_one_application_are_closed_and_no_others() {
        let (broker, door) = door();
        for app in [1, 2, u32::MAX] {
            broker.passes(AppId(app).passed(0));
            broker.passes(AppId(app).passed(u32::MAX));
        }
        let files = |door: &Door| {
            let apps = [1, 2, u32::MAX];
            apps.map(|app| [0, u32::MAX].map(|file| has(door, AppId(app).passed(file))))
        };
        assert_eq!(files(&door), [[true; 2]; 3]);
        for (app, left) in [(2, [true, false, true]), (u32::MAX, [true, false, false])] {
            broker.says(BrokerToNic::CloseAll { app });
            assert!(!has(&door, 7), "what has come is taken");
            assert_eq!(files(&door), left.map(|left| [left; 2]));
        }
    }

    #[test]
    fn a_process_begins_with_all_files_or_after_a_time() {
        let (broker, door) = door();
        door.wait_until_complete(Duration::from_millis(1));
        assert!(!door.lock().is_complete);
        let late = thread::spawn(move || {
            broker.passes(5);
            broker.says(BrokerToNic::Complete);
            broker
        });
        door.wait_until_complete(Duration::from_secs(60));
        assert!(door.lock().files.contains_key(&5));
        drop(late.join().unwrap());
        door.wait_until_complete(Duration::from_secs(60));
        assert!(has(&door, 5), "a broker that is gone takes nothing along");
    }

    #[test]
    fn a_thread_takes_what_comes() {
        let (broker, door) = door();
        let door = Arc::new(door);
        Arc::clone(&door).follow().unwrap();
        broker.passes(5);
        // The socket would hold a few hundred.
        for _ in 0..2000 {
            let mut fds = [PollFd::new(&broker.0, PollFlags::OUT)];
            poll(&mut fds, None).unwrap();
            broker.passes(6);
        }
        assert!(has(&door, 5) && has(&door, 6));
    }
}
