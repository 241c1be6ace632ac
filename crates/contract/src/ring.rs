//! Single-producer single-consumer ring in shared memory.
