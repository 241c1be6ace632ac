//! The configuration that the supervisor passes to the host process at its start and on each
//! reload: content, proxy, TCP, QUIC, observed records, and certificates. The process can open no
//! file: the supervisor has read and checked them, and passes their contents.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use failure::Failure;
use host::Changeable;
use serde::{Deserialize, Serialize};
use tls::Files;
use zeroize::Zeroizing;

use crate::ipc::sealed;
use config::{Content, Forwarding, Quic, Tcp};

/// Subject of failures.
pub const WHAT: &str = "configuration";

/// Size of the length, in bytes, of the JSON that follows it; certificates come last.
const LENGTH_BYTES: usize = size_of::<u64>();

/// Records that the host process sends to the observer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Whether to send a record for each access, for connections accepted from now on.
    pub accesses: bool,
    /// Whether to send counters, once a second.
    pub counters: bool,
}

/// A configuration in transit. It is read once.
pub struct HostConfiguration {
    /// Content of HTTP.
    pub content: Content,
    /// Backends of the proxy.
    pub forwarding: Forwarding,
    /// Section `tcp`.
    pub tcp: Tcp,
    /// Section `quic`.
    pub quic: Quic,
    /// Records for the observer.
    pub observed: Observed,
    /// Certificates; empty without TLS.
    pub certificates: Vec<Files>,
}

impl HostConfiguration {
    /// Returns the stack's part.
    pub fn changeable(&self) -> Changeable {
        self.tcp.changeable(self.quic.receive())
    }

    /// Encodes a message for the host process.
    pub fn message(&self) -> Result<OwnedFd, Failure> {
        let what = "handing the configuration to the host process";
        let (content, forwarding) = (&self.content, &self.forwarding);
        let content = (content, forwarding, &self.tcp, &self.quic, self.observed);
        let content = serde_json::to_vec(&content);
        let content = content.map_err(io::Error::other);
        content
            .map(Zeroizing::new)
            .and_then(|content| {
                let length = (content.len() as u64).to_le_bytes();
                sealed::write(&[&length, &content, &Files::to_bytes(&self.certificates)])
            })
            .map_err(|error| Failure::broken(what, error))
    }

    /// Decodes a message in the host process. Performs no system call that opens a file.
    pub fn receive(message: impl AsFd) -> Result<Self, Failure> {
        let what = "taking the configuration from the supervisor";
        let bytes = sealed::read(message.as_fd()).map_err(|errno| Failure::broken(what, errno))?;
        Self::parse(&bytes).ok_or_else(|| Failure::broken(what, "it is cut off"))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (content, certificates) = rest.split_at_checked(length)?;
        let (content, forwarding, tcp, quic, observed) = serde_json::from_slice(content).ok()?;
        Some(Self {
            content,
            forwarding,
            tcp,
            quic,
            observed,
            certificates: Files::from_bytes(certificates)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Config;

    fn configuration(text: &str) -> HostConfiguration {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let files = Files::from_pem("made", &certificate.pem(), &key.serialize_pem());
        let config: Config = toml::from_str(text).unwrap();
        HostConfiguration {
            content: Content::without_secrets(&config),
            forwarding: Forwarding::default(),
            tcp: config.tcp,
            quic: config.quic,
            observed: Observed {
                accesses: true,
                counters: false,
            },
            certificates: vec![files],
        }
    }

    #[test]
    fn what_is_passed_on_is_what_was_read_and_stays_as_it_is() {
        let sent = configuration(
            "[tcp]\norphans = 7\n[quic]\nreceive = \"nic\"\n\
             [[site]]\nnames = [\"a.org\"]\n[[site.rule]]\npath = \"/x/*\"",
        );
        let message = sent.message().unwrap();
        let received = HostConfiguration::receive(&message).unwrap();
        assert_eq!((received.content, received.tcp), (sent.content, sent.tcp));
        assert_eq!(received.quic, sent.quic);
        assert_eq!(received.observed, sent.observed);
        assert_eq!(received.certificates.len(), 1);
        assert!(
            HostConfiguration::receive(&message).is_err(),
            "it is read once"
        );
    }

    #[test]
    fn what_is_cut_off_anywhere_is_refused() {
        let message = configuration("").message().unwrap();
        let bytes = sealed::read(&message).unwrap();
        for end in [0, 7, 8, 100, bytes.len() - 1] {
            assert!(HostConfiguration::parse(&bytes[..end]).is_none(), "{end}");
        }
        let nonsense = sealed::write(&[b"nonsense and more"]).unwrap();
        let failure = HostConfiguration::receive(&nonsense)
            .map(|_| ())
            .unwrap_err();
        assert!(failure.to_string().contains("cut off"), "{failure}");
    }
}
