//! Settings that a reload changes.

use tcp::Config;

use super::Stack;
use crate::config::Changeable;

impl Stack {
    /// Applies changed settings. No connection ends because its source exceeds a lowered limit.
    pub fn change(&mut self, to: &Changeable) {
        let change = |config: &mut Config| {
            config.congestion = to.congestion;
            config.ecn = to.ecn;
            config.keepalive = to.keepalive;
            config.pace = to.pace;
        };
        change(&mut self.ground.config.tcp);
        change(&mut self.tcp.config_v4);
        change(&mut self.tcp.config_v6);
        let config = &mut self.ground.config;
        config.fast_open = to.fast_open;
        config.orphans_max = to.orphans_max;
        config.connection_memory_bytes_max = to.connection_memory_bytes_max;
        config.resets_per_second = to.resets_per_second;
        config.echo_replies_per_second = to.echo_replies_per_second;
        config.admission.connections_per_source = to.connections_per_source;
        self.tcp.resets.change(config);
        self.ground.echo.change(config);
        let accepted = self.tcp.connections.iter().filter(|entry| !entry.is_active);
        let remotes = accepted.map(|entry| entry.source());
        let remotes: Vec<_> = remotes.chain(self.quic_sources()).collect();
        let remotes = remotes.into_iter();
        (self.ground.sources).set_limit(to.connections_per_source, remotes);
        self.change_quic_receive(to.quic_receive);
    }
}
