//! Where the user asks a server that runs, and is answered.

use std::collections::VecDeque;

use crate::control::Control;
use crate::nic_keeper::NicKeeper;
use crate::say;
use crate::self_signed::Fresh;

/// Who has asked for what, and what has become of it so far.
pub(crate) struct Desk {
    pub(crate) control: Option<Control>,
    /// The NIC stacks of which it is still to be told what has become of them.
    asked: Vec<usize>,
    answers: Vec<Result<String, String>>,
    /// The sets of certificates that the host process has still to answer for, in their order.
    passed: VecDeque<Passed>,
}

/// A set of certificates on its way to be used.
#[derive(Default)]
struct Passed {
    /// Somebody waits to hear what becomes of this one.
    is_asked: bool,
    fresh: Option<Fresh>,
}

impl Desk {
    pub(crate) fn new(control: Option<Control>) -> Self {
        Self {
            control,
            asked: Vec::new(),
            answers: Vec::new(),
            passed: VecDeque::new(),
        }
    }

    /// Somebody waits to hear what becomes of these NIC stacks.
    pub(crate) fn ask(&mut self, nics: impl Iterator<Item = usize>) {
        self.answers.clear();
        self.asked = nics.collect();
    }

    /// Certificates have been read and passed to the host process.
    pub(crate) fn on_certificates_passed(&mut self, is_asked: bool, fresh: Option<Fresh>) {
        self.passed.push_back(Passed { is_asked, fresh });
    }

    /// The host process says what has become of those that were passed to it first: how many it uses, or why it does
    /// not.
    pub(crate) fn on_certificates_heard(&mut self, outcome: Result<usize, String>) {
        let Passed { is_asked, fresh } = self.passed.pop_front().unwrap_or_default();
        if outcome.is_ok()
            && let Some(Err(failure)) = fresh.map(Fresh::put_in_place)
        {
            let text = format!("{failure}; clients cannot trust the new one, which is used");
            tracing::error!("{text}");
            return self.answer_if(is_asked, Err(text));
        }
        self.on_certificates(is_asked, outcome);
    }

    /// Tells whoever is concerned what has become of certificates that were to be read anew: how many are used, or why
    /// they are not.
    pub(crate) fn on_certificates(&mut self, is_asked: bool, outcome: Result<usize, String>) {
        let outcome = match outcome {
            Ok(count) => {
                let certificates = match count {
                    1 => "certificate",
                    _ => "certificates",
                };
                let text = format!("{count} {certificates} read anew, for connections from now on");
                say(&format!("{text}\n"));
                Ok(text)
            }
            Err(why) => {
                // What to do about it may follow, in lines of its own.
                let text = format!("the certificates that were there stay: {why}");
                tracing::error!("{text}");
                Err(text)
            }
        };
        self.answer_if(is_asked, outcome);
    }

    /// Answers if somebody waits for this.
    pub(crate) fn answer_if(&mut self, is_asked: bool, answer: Result<String, String>) {
        if is_asked && let Some(control) = &mut self.control {
            control.answer(answer);
        }
    }

    /// What has become of a NIC stack. Whoever has asked is told when that is known of all.
    pub(crate) fn answer(
        &mut self,
        keeper: &NicKeeper,
        is_alone: bool,
        answer: Result<String, String>,
    ) {
        let Some(place) = self.asked.iter().position(|&nic| nic == keeper.number()) else {
            return;
        };
        self.asked.remove(place);
        let named = |text: String| match is_alone {
            true => text,
            false => format!("{}: {text}", keeper.name()),
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
            control.answer(match is_done {
                true => Ok(text),
                false => Err(text),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, recv, send};

    use super::*;
    use crate::control::Request;
    use crate::self_signed::SelfSigned;
    use crate::socket;

    /// A desk, and somebody who has asked for certificates to be read anew.
    fn asked(directory: &tempfile::TempDir) -> (Desk, OwnedFd) {
        let mut control = Control::bind(&directory.path().join("control")).unwrap();
        let client = socket::connect(&SocketAddrUnix::new(control.path()).unwrap()).unwrap();
        send(&client, b"reload", SendFlags::empty()).unwrap();
        assert_eq!(control.next(), None, "it has connected");
        assert_eq!(control.next(), Some(Request::Reload));
        (Desk::new(Some(control)), client)
    }

    fn heard(client: &OwnedFd) -> Option<String> {
        let mut answer = [0; 1000];
        let (_, length) = recv(client, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
        Some(String::from_utf8_lossy(&answer[..length]).into_owned())
    }

    #[test]
    fn who_asks_is_told_of_the_certificates_that_were_read_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let (mut desk, client) = asked(&directory);
        // SIGHUP came before.
        desk.on_certificates_passed(false, None);
        desk.on_certificates_passed(true, None);
        desk.on_certificates_heard(Ok(1));
        assert_eq!(heard(&client), None);
        desk.on_certificates_heard(Err("no good".to_owned()));
        let answer = heard(&client).unwrap();
        assert!(
            answer.starts_with("error ") && answer.ends_with(": no good"),
            "{answer}"
        );
    }

    #[test]
    fn a_failure_to_read_is_told_to_whoever_asked_and_nobody_else() {
        let directory = tempfile::tempdir().unwrap();
        let (mut desk, client) = asked(&directory);
        desk.on_certificates_passed(true, None);
        desk.on_certificates(false, Err("SIGHUP's are no good".to_owned()));
        assert_eq!(heard(&client), None);
        desk.on_certificates_heard(Ok(2));
        let answer = heard(&client).unwrap();
        assert!(answer.starts_with("ok 2 certificates"), "{answer}");
    }

    #[test]
    fn what_is_made_for_trying_out_is_put_in_its_place_when_it_is_used() {
        let made = SelfSigned::new().unwrap();
        let mut desk = Desk::new(None);
        let read = || fs::read_to_string(made.path()).unwrap();
        let pass = |desk: &mut Desk| {
            let (_, fresh) = made.renew(&[], Duration::from_secs(1_800_000_000)).unwrap();
            desk.on_certificates_passed(false, Some(fresh));
        };
        pass(&mut desk);
        assert_eq!(read(), "");
        desk.on_certificates_heard(Ok(1));
        let used = read();
        assert!(used.contains("BEGIN CERTIFICATE"), "{used}");
        pass(&mut desk);
        desk.on_certificates_heard(Err("no good".to_owned()));
        assert_eq!(read(), used);
    }
}
