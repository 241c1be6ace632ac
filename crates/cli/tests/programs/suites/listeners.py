#!/usr/bin/env python3
"""What `ss -l -n -t` says of a port, of listeners of the split stack: it cannot be bound beside one.

    listeners.py OPTION... PORT

Without a port, it is the system's ss.
"""

import os
import socket
import sys

if not sys.argv[-1].isdigit():
    os.execv("/usr/bin/ss", ["ss", *sys.argv[1:]])
port = int(sys.argv[-1])
for family, address in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"):
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            print(f"LISTEN 0 0 {address}:{port} *:*")
