"""An HTTP server on the kernel's sockets: the files of a folder, and bodies sent back. `backend.py FOLDER PORT`"""

import functools
import http.server
import sys


class Backend(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self):
        self.send_header("Cache-Control", "max-age=600")
        super().end_headers()

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


handler = functools.partial(Backend, directory=sys.argv[1])
Server(("0.0.0.0", int(sys.argv[2])), handler).serve_forever()
