"""Serves the files of a directory over HTTP/3 with aioquic.

aioquic_server.py ADDRESS PORT DIRECTORY CERTIFICATE KEY
"""

import asyncio
import functools
import pathlib
import sys

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated, StopSendingReceived

# What is read of a file at once.
PIECE_BYTES = 256 * 1024

# The largest UDP payload in an Ethernet frame over IPv6.
DATAGRAM_BYTES = 1452


class Connection(QuicConnectionProtocol):
    def __init__(self, directory, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.directory = directory
        self.http = None
        # Of each stream with a body: the file, and how many bytes of it are left.
        self.bodies = {}

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        if isinstance(event, StopSendingReceived):
            self.bodies.pop(event.stream_id, None)
        if self.http is not None:
            for event in self.http.handle_event(event):
                if isinstance(event, HeadersReceived):
                    self.answer(event.stream_id, dict(event.headers))

    def answer(self, stream, fields):
        path = self.directory / fields[b":path"].decode().lstrip("/")
        if path.parent != self.directory or not path.is_file():
            self.http.send_headers(stream, [(b":status", b"404")], end_stream=True)
            return
        length = path.stat().st_size
        head = [(b":status", b"200"), (b"content-length", str(length).encode())]
        self.http.send_headers(stream, head, end_stream=length == 0)
        if length > 0:
            self.bodies[stream] = path.open("rb", buffering=0), length

    def transmit(self):
        super().transmit()
        while self.read_on():
            super().transmit()

    def read_on(self):
        """Queues the next piece of each body of which all before is sent; false if there is none.

        aioquic queues without limit: whole files would be in memory once for each connection.
        """
        streams = self._quic._streams
        ready = [stream for stream in self.bodies if streams[stream].sender.buffer_is_empty]
        for stream in ready:
            file, left = self.bodies.pop(stream)
            piece = file.read(PIECE_BYTES)
            # A file that was cut meanwhile ends here.
            left = left - len(piece) if piece else 0
            self.http.send_data(stream, piece, end_stream=left <= 0)
            if left > 0:
                self.bodies[stream] = file, left
        return bool(ready)


async def main():
    address, port, directory, certificate, key = sys.argv[1:]
    configuration = QuicConfiguration(
        alpn_protocols=H3_ALPN,
        congestion_control_algorithm="cubic",
        is_client=False,
        max_datagram_size=DATAGRAM_BYTES,
    )
    configuration.load_cert_chain(certificate, key)
    connection = functools.partial(Connection, pathlib.Path(directory))
    await serve(address, int(port), configuration=configuration, create_protocol=connection)
    await asyncio.Future()


asyncio.run(main())
