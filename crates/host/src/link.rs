//! The link: neighbours, next hops, ICMP, and the rate limit of replies without a connection.

pub(crate) mod duplicate;
pub(crate) mod icmp;
pub(crate) mod mac;
pub(crate) mod neighbor;
pub(crate) mod reply_limit;
