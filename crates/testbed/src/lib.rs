//! What end-to-end tests and measurements stand on.
#![forbid(unsafe_code)]
