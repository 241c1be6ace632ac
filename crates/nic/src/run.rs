//! The loop around a worker: when to poll, when to sleep, when to end.

