//! Flow-control windows (RFC 9113 §5.2, §6.9).

/// Window of a connection, and of a stream without SETTINGS_INITIAL_WINDOW_SIZE, in bytes.
pub const INITIAL_BYTES: u32 = (1 << 16) - 1;

/// Greatest window, in bytes.
const BYTES_MAX: i64 = (1 << 31) - 1;

/// The window exceeds 2^31-1 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

/// A peer's window: how much this side may send.
#[derive(Clone, Copy, Debug)]
pub struct SendWindow {
    /// Negative after the peer has reduced SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113 §6.9.2).
    bytes: i64,
}

impl SendWindow {
    /// A window of this size.
    pub fn new(bytes: u32) -> Self {
        SendWindow {
            bytes: bytes.into(),
        }
    }

    /// Bytes that may be sent now.
    pub fn available(self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(0)
    }

    /// Bytes are sent; no more than [`SendWindow::available`].
    pub fn take(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.available(), "beyond the window");
        self.bytes -= bytes as i64;
    }

    /// The window changes by an increment, or by a change of the initial size.
    ///
    /// # Errors
    /// It would exceed 2^31-1 bytes.
    pub fn change(&mut self, bytes: i64) -> Result<(), Overflow> {
        let changed = self.bytes + bytes;
        if changed > BYTES_MAX {
            return Err(Overflow);
        }
        self.bytes = changed;
        Ok(())
    }
}

/// This side's window: how much the peer may send. Everything that arrives is consumed at once.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveWindow {
    bytes: u32,
}

/// The peer has sent more than its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded;

impl ReceiveWindow {
    /// The window of [`INITIAL_BYTES`].
    pub const INITIAL: ReceiveWindow = ReceiveWindow {
        bytes: INITIAL_BYTES,
    };

    /// Bytes have arrived.
    ///
    /// # Errors
    /// There are more than the window has.
    pub fn take(&mut self, bytes: u32) -> Result<(), Exceeded> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(Exceeded)?;
        Ok(())
    }

    /// The increment of a WINDOW_UPDATE that is due: half of the window is used up.
    pub fn refill(&mut self) -> Option<u32> {
        let used = INITIAL_BYTES - self.bytes;
        if used < INITIAL_BYTES / 2 {
            return None;
        }
        self.bytes = INITIAL_BYTES;
        Some(used)
    }
}

/// This side's window of bytes that wait for a consumer: the peer may send as much as is consumed.
#[derive(Clone, Copy, Debug)]
pub struct HeldWindow {
    size: u32,
    bytes: u32,
    /// Bytes that the peer may send again, and does not know of.
    consumed: u32,
}

impl HeldWindow {
    /// The window of [`INITIAL_BYTES`].
    pub const INITIAL: HeldWindow = HeldWindow {
        size: INITIAL_BYTES,
        bytes: INITIAL_BYTES,
        consumed: 0,
    };

    /// A window of at least [`INITIAL_BYTES`], whose peer knows of no more than these yet.
    pub fn new(size: u32) -> Self {
        HeldWindow {
            size,
            bytes: INITIAL_BYTES,
            consumed: size.saturating_sub(INITIAL_BYTES),
        }
    }

    /// Bytes have arrived.
    ///
    /// # Errors
    /// There are more than the window has.
    pub fn take(&mut self, bytes: u32) -> Result<(), Exceeded> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(Exceeded)?;
        Ok(())
    }

    /// Bytes are consumed, or discarded; no more than have arrived.
    pub fn consume(&mut self, bytes: u32) {
        self.consumed += bytes;
        debug_assert!(
            self.bytes + self.consumed <= self.size,
            "more than have come"
        );
    }

    /// The increment of a WINDOW_UPDATE that is due: half of [`INITIAL_BYTES`] is consumed. Of a
    /// greater window, others may hold all but that.
    pub fn refill(&mut self) -> Option<u32> {
        if self.consumed < INITIAL_BYTES / 2 {
            return None;
        }
        self.bytes += self.consumed;
        Some(std::mem::take(&mut self.consumed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 9113 §6.9.1, RFC 9113 §6.9.2
    #[test]
    fn a_window_may_become_negative_and_has_a_greatest_size() {
        let mut window = SendWindow::new(INITIAL_BYTES);
        window.take(60_000);
        assert_eq!(window.available(), 5535);
        // SETTINGS_INITIAL_WINDOW_SIZE becomes 16,383, as in the text.
        assert_eq!(window.change(16_383 - 65_535), Ok(()));
        assert_eq!(window.available(), 0);
        assert_eq!(window.change(43_617), Ok(()));
        assert_eq!(window.available(), 0);
        assert_eq!(window.change(1), Ok(()));
        assert_eq!(window.available(), 1);
        assert_eq!(window.change(BYTES_MAX - 1), Ok(()));
        assert_eq!(window.change(1), Err(Overflow));
        assert_eq!(window.available(), BYTES_MAX as u64);
    }

    /// Covers: RFC 9113 §6.9
    #[test]
    fn bytes_that_wait_keep_the_window_closed() {
        let mut window = HeldWindow::new(200_000);
        assert_eq!(window.refill(), Some(200_000 - INITIAL_BYTES));
        assert_eq!(window.take(200_000), Ok(()));
        assert_eq!((window.refill(), window.take(1)), (None, Err(Exceeded)));
        window.consume(INITIAL_BYTES / 2 - 1);
        assert_eq!((window.refill(), window.take(1)), (None, Err(Exceeded)));
        window.consume(1);
        assert_eq!(window.refill(), Some(INITIAL_BYTES / 2));
        assert_eq!(window.take(INITIAL_BYTES / 2), Ok(()));
        assert_eq!(window.take(1), Err(Exceeded));
    }

    /// Covers: RFC 9113 §6.9
    #[test]
    fn half_a_window_is_given_back_at_once() {
        let mut window = ReceiveWindow::INITIAL;
        assert_eq!(window.take(30_000), Ok(()));
        assert_eq!(window.refill(), None);
        assert_eq!(window.take(10_000), Ok(()));
        assert_eq!(window.refill(), Some(40_000));
        assert_eq!(window.refill(), None);
        assert_eq!(window.take(INITIAL_BYTES), Ok(()));
        assert_eq!(window.take(1), Err(Exceeded));
    }
}
