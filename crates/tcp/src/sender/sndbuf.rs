//! The bound on bytes that an application may queue (Semke, Mahdavi and Mathis, 1998).
//!
//! Data in flight stays queued until it is acknowledged, so a buffer smaller than the congestion
//! window would limit the rate. Twice the window is enough: one window in flight, and the next one
//! ready when the acknowledgments come. Virtual bytes need no buffer: a range costs an extent.
//! Unsent virtual bytes may have a bound all the same, so that the peer's pace reaches the
//! application.

use crate::config::Config;

/// Bound of the real bytes queued and not acknowledged.
pub(crate) fn bytes_max(config: &Config, cwnd: u64) -> usize {
    let wanted = usize::try_from(cwnd.saturating_mul(2)).unwrap_or(usize::MAX);
    let most = config.send_buffer_bytes_max.max(config.send_buffer_bytes);
    wanted.clamp(config.send_buffer_bytes, most)
}

/// Bound of the virtual bytes queued and not sent, with [`Config::virtual_bytes_max`].
pub(crate) fn virtual_bytes_max(configured: u64, cwnd: u64) -> u64 {
    configured.max(cwnd.saturating_mul(2)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_virtual_bytes_is_at_least_two_windows() {
        assert_eq!(virtual_bytes_max(10_000, 1000), 10_000);
        assert_eq!(virtual_bytes_max(10_000, 20_000), 40_000);
        assert_eq!(virtual_bytes_max(7, u64::MAX), u64::MAX);
        assert_eq!(
            virtual_bytes_max(0, 0),
            1,
            "or nothing could ever be queued"
        );
    }

    #[test]
    fn the_buffer_holds_two_windows_within_its_bounds() {
        let config = Config {
            send_buffer_bytes: 10_000,
            send_buffer_bytes_max: 100_000,
            ..Config::default()
        };
        assert_eq!(bytes_max(&config, 1000), 10_000);
        assert_eq!(bytes_max(&config, 20_000), 40_000);
        assert_eq!(bytes_max(&config, u64::MAX), 100_000);
        let fixed = Config {
            send_buffer_bytes_max: 0,
            ..config
        };
        assert_eq!(bytes_max(&fixed, 20_000), 10_000);
    }
}
