//! Requests for a host that their connection is not for (RFC 9110 §7.4, RFC 9113 §9.1.1): clients
//! use one connection for all hosts of its certificate, and some use it for others as well.

use host::app::TlsIdentity;

use crate::config::Config;
use crate::exchange::request::Request;
use crate::semantics::fields::{Field, Head};
use crate::semantics::target::without_port;

/// True if the request of this head is to be answered with 421.
pub(crate) fn is_misdirected<V>(
    identity: Option<&TlsIdentity>,
    head: &[u8],
    request: &Request<V>,
    config: &Config,
) -> bool {
    let Some(identity) = identity.filter(|_| config.rejects_misdirected) else {
        return false;
    };
    let authority = Head::new(head, request.present).value(Field::Host);
    let host = str::from_utf8(without_port(authority.unwrap_or_default()));
    !host.is_ok_and(|host| identity.is_for(host))
}
