//! Requests of clients of the control socket, and their answers.

use crate::supervisor::control_socket::Control;
use crate::supervisor::nic::NicSupervisor;
use crate::supervisor::observer::ObserverOutcome;
use crate::supervisor::reload::{Outcome, connections};

/// Clients that wait for an answer, and the outcomes so far.
pub(crate) struct PendingRequests {
    pub(crate) control: Option<Control>,
    /// NIC stacks whose outcome is still open.
    asked: Vec<usize>,
    answers: Vec<Result<String, String>>,
    /// Whether a client waits until the logs are reopened.
    awaits_reopening: bool,
    /// Process whose program a client waits to see detached.
    detaching: Option<u32>,
    /// Answer to the client that waits until a denial is in force or taken back.
    changing_access: Option<String>,
}

impl PendingRequests {
    pub(crate) fn new(control: Option<Control>) -> Self {
        Self {
            control,
            asked: Vec::new(),
            answers: Vec::new(),
            awaits_reopening: false,
            detaching: None,
            changing_access: None,
        }
    }

    /// Records that a client waits for the outcome at these NIC stacks.
    pub(crate) fn ask(&mut self, nics: impl Iterator<Item = usize>) {
        self.answers.clear();
        self.asked = nics.collect();
    }

    /// Handles a request to reopen the logs: `outcome` is `None` without logs, and its inner value
    /// is `None` while they are being reopened.
    pub(crate) fn on_reopening(
        &mut self,
        is_asked: bool,
        outcome: Option<Option<ObserverOutcome>>,
    ) {
        self.awaits_reopening |= is_asked;
        match outcome {
            Some(Some(news)) => self.on_observer(news),
            Some(None) => {}
            None => {
                let why =
                    "this server has none: it was started without --access-log and --error-log";
                self.on_observer(ObserverOutcome::Reopened(Err(why.to_owned())));
            }
        }
    }

    /// Answers the request to reopen the logs.
    pub(crate) fn on_observer(&mut self, news: ObserverOutcome) {
        let ObserverOutcome::Reopened(result) = news;
        let is_asked = std::mem::take(&mut self.awaits_reopening);
        self.on_outcome(Some(Outcome { is_asked, result }));
    }

    /// Records that a client waits until the program with this process is detached.
    pub(crate) fn detach(&mut self, pid: u32) {
        self.detaching = Some(pid);
    }

    /// Answers the request to detach a program.
    pub(crate) fn on_detached(&mut self, pid: u32, result: Result<(), String>) {
        let is_asked = self.detaching.take_if(|awaited| *awaited == pid).is_some();
        let result = result.map(|()| format!("the program with process {pid} is served no more"));
        self.on_outcome(Some(Outcome { is_asked, result }));
    }

    /// Records the answer to a client that waits until a denial is in force or taken back; an
    /// error is its answer at once.
    pub(crate) fn change_access(&mut self, done: Result<String, String>) {
        match done {
            Ok(done) => self.changing_access = Some(done),
            Err(why) => self.on_outcome(Some(Outcome {
                is_asked: true,
                result: Err(why),
            })),
        }
    }

    /// Answers it: the host process has changed who may connect, and ended some connections.
    pub(crate) fn on_access_changed(&mut self, ended: usize) {
        let Some(mut done) = self.changing_access.take() else {
            return;
        };
        if ended > 0 {
            done.push_str(&format!("; {} ended", connections(ended)));
        }
        self.on_outcome(Some(Outcome {
            is_asked: true,
            result: Ok(done),
        }));
    }

    /// Answers the waiting client, if any.
    pub(crate) fn on_outcome(&mut self, outcome: Option<Outcome>) {
        if let Some(Outcome {
            is_asked: true,
            result,
        }) = outcome
            && let Some(control) = &mut self.control
        {
            control.answer(result);
        }
    }

    /// Reports that these NIC stacks are not replaced, since the replacement before them failed.
    pub(crate) fn skip(&mut self, nics: &[NicSupervisor], numbers: Vec<usize>) {
        for number in numbers {
            let why = "not replaced: the replacement before failed";
            self.answer(&nics[number], false, Err(why.to_owned()));
        }
    }

    /// Records the outcome at a NIC stack. The client is answered once all are known.
    pub(crate) fn answer(
        &mut self,
        nic: &NicSupervisor,
        is_alone: bool,
        answer: Result<String, String>,
    ) {
        let Some(place) = self.asked.iter().position(|&number| number == nic.number()) else {
            return;
        };
        self.asked.remove(place);
        let named = |text: String| {
            if is_alone {
                text
            } else {
                format!("{}: {text}", nic.name())
            }
        };
        self.answers.push(answer.map(named).map_err(named));
        if !self.asked.is_empty() {
            return;
        }
        let answers = std::mem::take(&mut self.answers);
        let is_done = answers.iter().all(Result::is_ok);
        let lines: Vec<String> = answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|failure| failure))
            .collect();
        let text = lines.join("\n");
        if let Some(control) = &mut self.control {
            control.answer(if is_done { Ok(text) } else { Err(text) });
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, recv, send};

    use super::*;
    use crate::supervisor::control_socket::Request;
    use netsetup::seqpacket;

    #[test]
    fn an_outcome_goes_to_the_client_that_asked_and_to_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let mut control = Control::bind(&directory.path().join("control")).unwrap();
        let client = seqpacket::connect(&SocketAddrUnix::new(control.path()).unwrap()).unwrap();
        send(&client, b"reload", SendFlags::empty()).unwrap();
        assert_eq!(control.next(), None, "it has connected");
        assert_eq!(control.next(), Some(Request::Reload));
        let mut pending = PendingRequests::new(Some(control));
        let heard = || -> Option<String> {
            let mut answer = [0; 1000];
            let (_, length) = recv(&client, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
            Some(String::from_utf8_lossy(&answer[..length]).into_owned())
        };
        let outcome = |is_asked, result| Some(Outcome { is_asked, result });
        pending.on_outcome(outcome(false, Err("SIGHUP's is no good".to_owned())));
        pending.on_outcome(None);
        assert_eq!(heard(), None);
        pending.on_outcome(outcome(true, Ok("done".to_owned())));
        assert_eq!(heard().as_deref(), Some("ok done"));
    }
}
