//! The link: neighbours, next hops, ICMP, and how often the stack answers what belongs to no
//! connection.

pub(crate) mod duplicate;
pub(crate) mod icmp;
pub(crate) mod mac;
pub(crate) mod neighbor;
pub(crate) mod reply_limit;
