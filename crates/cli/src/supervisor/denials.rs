//! Denials for a time: `splitway ctl deny`, `allow` and `denied`.
//!
//! The supervisor keeps the list; the host process, which has its own, acts on it.

use std::fmt::Write as _;
use std::os::fd::AsFd as _;
use std::time::Duration;

use client_address::access;
use config::Text;
use config::socket_values::AddressRange;
use config::text::Time;
use processes::ipc::messages::ToHost;
use processes::ipc::sealed;

use crate::supervisor::control_socket::Control;

/// The denials in force.
#[derive(Debug, Default)]
pub(crate) struct Denials(access::Denials);

impl Denials {
    /// Denies a network, for a time or for good; returns the message to the host process, and the
    /// answer to the client.
    pub(crate) fn deny(
        &mut self,
        network: AddressRange,
        time: Option<Time>,
    ) -> Result<(ToHost, String), String> {
        let now_us = host::monotonic_us();
        let until_us = time.map(|time| now_us.saturating_add(time.0.as_micros() as u64));
        let shown = network.network();
        (self.0.add(now_us, shown, until_us)).map_err(|access::Full| {
            format!(
                "{shown} is not denied: {} networks are denied already, as many as there may be; \
                 those of firewall.deny_file are not among them",
                access::DENIALS_MAX
            )
        })?;
        let message = ToHost::Deny {
            network: Text(network),
            until_us,
        };
        let until = match time {
            Some(time) => format!("for {time}"),
            None => "until it is allowed".to_owned(),
        };
        Ok((message, format!("{shown} is denied {until}")))
    }

    /// Takes a denial back; `remains`: the configuration denies the network as well.
    pub(crate) fn allow(&mut self, network: AddressRange, remains: bool) -> (ToHost, String) {
        let shown = network.network();
        let was_denied = self.0.remove(host::monotonic_us(), shown);
        let mut done = match was_denied {
            true => format!("{shown} is no longer denied by `splitway ctl deny`"),
            false => format!("{shown} was not denied by `splitway ctl deny`"),
        };
        if remains {
            done.push_str(", but the configuration denies it, or a part (firewall)");
        }
        (ToHost::Allow(Text(network)), done)
    }

    /// Lists the denials, one a line, in the form of `firewall.deny_file`.
    fn list(&mut self) -> (usize, String) {
        let denials = self.0.list(host::monotonic_us());
        let mut lines = String::new();
        for (network, left_us) in &denials {
            // Writing to a string does not fail.
            let _ = match left_us {
                Some(left_us) => {
                    let left = Duration::from_secs(left_us.div_ceil(1_000_000));
                    writeln!(lines, "{network} # for {}", Time(left))
                }
                None => writeln!(lines, "{network}"),
            };
        }
        (denials.len(), lines)
    }
}

/// Answers a request for the list, which comes in a file: it may be long.
pub(crate) fn answer(control: &mut Control, denials: &mut Denials) {
    let (count, lines) = denials.list();
    if count == 0 {
        return control.answer(Ok("no network is denied by `splitway ctl deny`".to_owned()));
    }
    match sealed::write(&[lines.as_bytes()]) {
        Ok(file) => control.answer_with(Ok(String::new()), &[file.as_fd()]),
        Err(error) => control.answer(Err(format!("passing the list on: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> AddressRange {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_denied_is_listed_as_a_file_of_networks_until_it_is_allowed() {
        let mut denials = Denials::default();
        let (message, done) = denials.deny(range("192.0.2.7"), None).unwrap();
        assert_eq!(done, "192.0.2.7 is denied until it is allowed");
        let expected = ToHost::Deny {
            network: Text(range("192.0.2.7")),
            until_us: None,
        };
        assert_eq!(message, expected);
        let hour = Some(Time(Duration::from_secs(3_600)));
        let (_, done) = denials.deny(range("2001:db8::9/32"), hour).unwrap();
        assert_eq!(done, "2001:db8::/32 is denied for 1h");
        assert_eq!(
            denials.list(),
            (2, "192.0.2.7\n2001:db8::/32 # for 1h\n".to_owned())
        );
        let (_, done) = denials.allow(range("192.0.2.7"), false);
        assert_eq!(done, "192.0.2.7 is no longer denied by `splitway ctl deny`");
        let (_, done) = denials.allow(range("192.0.2.7"), true);
        assert!(done.starts_with("192.0.2.7 was not denied"), "{done}");
        assert!(done.contains("the configuration denies it"), "{done}");
    }
}
