//! Looks at files for a limited time: a network file system may not answer, and the supervisor has
//! to answer the service manager's watchdog meanwhile.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// Time for one look.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(1);

/// Runs `look` in a thread. `None` if it takes longer than `time_max`; it then ends unobserved.
pub(crate) fn within<T: Send + 'static>(
    time_max: Duration,
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (to, result) = channel();
    let thread = thread::Builder::new().name("files".to_owned());
    let work = move || {
        // It fails after the time limit.
        let _ = to.send(look());
    };
    thread.spawn(work).ok()?;
    result.recv_timeout(time_max).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_takes_too_long_has_no_result() {
        let (held, gate) = channel::<()>();
        let blocked = within(Duration::from_millis(10), move || gate.recv().is_ok());
        assert_eq!(blocked, None);
        drop(held);
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
    }
}
