//! The applications of the host process.

use host::Applications;
use proxy::Proxy;
use server::Server;
use sockets::Sockets;

/// All applications, on one stack.
pub type App = Applications<Server, Proxy, Sockets>;
