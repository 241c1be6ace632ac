//! Replies to pings, and to datagrams that no socket listens for, within a rate limit.

use super::Ground;
use crate::config::StackConfig;
use crate::episode::Episode;
use crate::link::reply_limit::ReplyLimit;

/// The limit on these replies.
#[derive(Debug)]
pub(crate) struct EchoReplies {
    limit: ReplyLimit,
    suppressed: Episode,
}

impl EchoReplies {
    pub(crate) fn new(config: &StackConfig, now_us: u64) -> EchoReplies {
        EchoReplies {
            limit: ReplyLimit::new(config.echo_replies_per_second, now_us),
            suppressed: Episode::default(),
        }
    }

    /// Changes the limit.
    pub(crate) fn change(&mut self, config: &StackConfig) {
        self.limit.set_rate(config.echo_replies_per_second);
    }
}

impl Ground {
    /// Answers a datagram that no socket listens for, within the rate limit, if an answer is
    /// allowed.
    pub(crate) fn reply_to_datagram(&mut self, now_us: u64, reply: Option<Vec<u8>>) {
        if let Some(reply) = reply {
            self.counters.port_unreachables += 1;
            self.reply_to_echo(now_us, reply);
        }
    }

    pub(crate) fn reply_to_echo(&mut self, now_us: u64, reply: Vec<u8>) {
        if self.echo.limit.allows(now_us) {
            self.frames.push_back(reply);
            return;
        }
        self.counters.echo_replies_suppressed += 1;
        if self.echo.suppressed.begins(now_us) {
            let limit = self.config.echo_replies_per_second;
            tracing::warn!(limit, "the rate limit of ICMP replies is reached");
        }
    }
}
