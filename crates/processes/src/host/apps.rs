//! The applications of the host process.

use host::Applications;
use proxy::Proxy;
use server::Server;
use sockets::Sockets;

/// All of them, on one stack.
pub type App = Applications<Server, Proxy, Sockets>;
