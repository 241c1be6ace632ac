//! Clients and backends of HTTP/2, with prior knowledge.

mod backends;
mod bounds;
mod broken_backends;
mod client;
mod grpc;
mod messages;
mod random;
mod random_backends;
