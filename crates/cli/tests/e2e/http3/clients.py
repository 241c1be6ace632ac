"""Downloads by HTTP/3 with clients that others wrote, and compares every byte.

clients.py CLIENT CASE HOST PORT DIRECTORY FILE...
"""

import asyncio
import dataclasses
import pathlib
import ssl
import sys

VERSION_1 = 1
# Reserved, for servers to answer with what they have (RFC 9000, section 15).
VERSION_RESERVED = 0x1A2A3A4A

# What a ticket says that allows early data (RFC 9001, section 4.6.1).
MAX_EARLY_DATA = 0xFFFFFFFF


async def curl(case, host, port, files):
    from curl_cffi import CurlHttpVersion, CurlOpt, requests

    place = f"[{host}]" if ":" in host else host

    async def get(session, name, content):
        response = await session.get(f"https://{place}:{port}/{name}")
        assert response.status_code == 200, response.status_code
        assert response.content == content, f"other bytes of {name}"

    # Rather waits for a connection than has one more, or has one for each file.
    option = CurlOpt.FRESH_CONNECT if case == "resumption" else CurlOpt.PIPEWAIT
    async with requests.AsyncSession(
        http_version=CurlHttpVersion.V3ONLY,
        verify=False,
        max_clients=100,
        curl_options={option: 1},
    ) as session:
        if case == "multiplexing":
            await asyncio.gather(*[get(session, *file) for file in files for _ in range(20)])
        for file in files:
            await get(session, *file)


async def aioquic(case, host, port, files):
    from aioquic.asyncio.client import connect
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.h3.connection import H3_ALPN, H3Connection
    from aioquic.h3.events import DataReceived, HeadersReceived
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.tls import Epoch

    class Client(QuicConnectionProtocol):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.http = H3Connection(self._quic)
            self.waiting = {}

        def quic_event_received(self, event):
            for event in self.http.handle_event(event):
                response = self.waiting.get(event.stream_id)
                if response is None:
                    continue
                if isinstance(event, HeadersReceived):
                    response["status"] = dict(event.headers)[b":status"]
                if isinstance(event, DataReceived):
                    response["body"] += event.data
                if event.stream_ended:
                    response["over"].set_result(None)

        async def get(self, name, content):
            stream = self._quic.get_next_available_stream_id()
            over = asyncio.get_running_loop().create_future()
            response = {"status": None, "body": b"", "over": over}
            self.waiting[stream] = response
            fields = [
                (b":method", b"GET"),
                (b":scheme", b"https"),
                (b":authority", b"localhost"),
                (b":path", f"/{name}".encode()),
            ]
            self.http.send_headers(stream, fields, end_stream=True)
            self.transmit()
            await over
            assert response["status"] == b"200", response["status"]
            assert response["body"] == content, f"other bytes of {name}"

    tickets = []
    configuration = QuicConfiguration(
        alpn_protocols=H3_ALPN,
        is_client=True,
        verify_mode=ssl.CERT_NONE,
        max_data=1 << 24,
        max_stream_data=1 << 23,
    )
    if case == "version negotiation":
        configuration.original_version = VERSION_RESERVED
        configuration.supported_versions = [VERSION_RESERVED, VERSION_1]

    def begin(wait_connected=True):
        return connect(
            host,
            port,
            configuration=configuration,
            create_protocol=Client,
            session_ticket_handler=tickets.append,
            wait_connected=wait_connected,
        )

    async with begin() as client:
        if case == "multiplexing":
            await asyncio.gather(*[client.get(*file) for file in files for _ in range(20)])
        for number, file in enumerate(files):
            if case == "key update":
                client.request_key_update()
            if case == "connection ID" and number > 0:
                client.change_connection_id()
            await client.get(*file)
        if case == "retry":
            assert client._quic._retry_source_connection_id is not None, "no Retry came"
        if case == "version negotiation":
            assert client._quic._version == VERSION_1
    if case == "resumption":
        configuration.session_ticket = tickets[0]
        async with begin() as client:
            await client.get(*files[0])
            assert client._quic.tls.session_resumed, "not resumed"
    if case in ("0-RTT", "0-RTT refused"):
        is_allowed = case == "0-RTT"
        configuration.session_ticket = tickets[0]
        if not is_allowed:
            # Requests are sent as early data, as if it were allowed, and again when it is refused.
            configuration.session_ticket = dataclasses.replace(
                tickets[0], max_early_data_size=MAX_EARLY_DATA
            )
        size = tickets[0].max_early_data_size
        assert size == (MAX_EARLY_DATA if is_allowed else None), f"a ticket says {size}"
        async with begin(wait_connected=False) as client:
            downloads = [asyncio.create_task(client.get(*file)) for file in files]
            await asyncio.sleep(0)
            assert client._quic._cryptos[Epoch.ZERO_RTT].send.is_valid(), "no early data"
            await asyncio.gather(*downloads)
            assert client._quic.tls.session_resumed, "not resumed"
            assert client._quic.tls.early_data_accepted == is_allowed, "early data"


def main():
    client, case, host, port, directory, *names = sys.argv[1:]
    directory = pathlib.Path(directory)
    files = [(name, (directory / name).read_bytes()) for name in names]
    client = {"aioquic": aioquic, "curl": curl}[client]
    asyncio.run(client(case, host, int(port), files))


main()
