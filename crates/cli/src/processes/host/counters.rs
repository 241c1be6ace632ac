//! What the host process reports of its counters.

/// What the stack and the server have counted, in one list.
pub(crate) fn counters(stack: &host::Counters, server: &server::Counters) -> Vec<(String, u64)> {
    let mut rows: Vec<(String, u64)> = stack
        .rows()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    rows.push(("requests".to_owned(), server.requests));
    rows
}
