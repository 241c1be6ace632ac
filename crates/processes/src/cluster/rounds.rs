//! Rounds of work until there is a message for the other node.

/// Rounds of work without a message, at most, before frames have their turn.
const ROUNDS_MAX: usize = 16;

/// The next message; works for it while there is none and work brings something.
pub(crate) fn next_message<S>(
    side: &mut S,
    message: impl Fn(&mut S) -> Option<Vec<u8>>,
    work: impl Fn(&mut S) -> bool,
) -> Option<Vec<u8>> {
    let mut next = message(side);
    for _ in 0..ROUNDS_MAX {
        if next.is_some() || !work(side) {
            break;
        }
        next = message(side);
    }
    next.or_else(|| message(side))
}
