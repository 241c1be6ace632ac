#!/usr/bin/env bash
# Jetty's HTTP/3 client (jetty-http3-client-transport 12.1.5, quiche 0.24.5) sends only when a stream has bytes to read,
# a stream writes, or one of quiche's timers fires. Packets behind a lost one give the stream nothing to read, so that
# most of them are not acknowledged; RFC 9000, 13.2.1, wants an acknowledgment at once for a packet out of order. The
# server then detects the loss by its probe timeout alone. Where its probes carry new data, as RFC 9002, 6.2.4,
# recommends and quinn-proto 0.11.19 does, they are not answered either, and the download stalls until the client's idle
# timeout of 30 s. A server whose probes repeat the oldest data goes on after its timeout.
#
# A relay between an aioquic 1.7.2 server and the client drops one datagram of a download, then delivers the ten behind
# the gap 100 ms apart, and counts the client's datagrams. Seen: aioquic's client sends 11 or 12, Jetty's 0 to 3.
#
# Needs bash, Python 3 with venv, a JDK from 17, Maven, openssl; takes packages from PyPI and Maven Central.
set -euo pipefail
place=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$place"' EXIT
cd "$place"
python3 -m venv python
python/bin/pip install --quiet aioquic==1.7.2
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -keyout key.pem -out cert.pem -days 2 -nodes \
    -subj /CN=localhost -addext subjectAltName=DNS:localhost 2>/dev/null

cat >pom.xml <<'END'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.eclipse.jetty.http3</groupId><artifactId>jetty-http3-client-transport</artifactId><version>12.1.5</version></dependency>
    <dependency><groupId>org.eclipse.jetty.quic</groupId><artifactId>jetty-quic-quiche-client</artifactId><version>12.1.5</version></dependency>
    <dependency><groupId>org.mortbay.jetty.quiche</groupId><artifactId>jetty-quiche-native</artifactId><version>0.24.5</version></dependency>
  </dependencies>
</project>
END
mvn --quiet --batch-mode dependency:copy-dependencies -DoutputDirectory="$place/java"

# The server, and the relay in front of it. After 400,000 bytes it drops one full datagram and holds the next ten until the
# client has acknowledged what came before and is silent.
cat >server.py <<'END'
import asyncio, sys
from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration

SERVER, RELAY = 44331, 44330

class Server(QuicConnectionProtocol):
    http = None
    def quic_event_received(self, event):
        if self.http is None:
            self.http = H3Connection(self._quic)
        for it in self.http.handle_event(event):
            if isinstance(it, HeadersReceived):
                self.http.send_headers(it.stream_id, [(b":status", b"200")])
                self.http.send_data(it.stream_id, bytes(3_000_000), True)
        self.transmit()

class Upstream(asyncio.DatagramProtocol):
    def __init__(self, relay, client):
        self.relay, self.client = relay, client
    def datagram_received(self, data, _):
        self.relay.from_server(self.client, data)

class Relay(asyncio.DatagramProtocol):
    def __init__(self):
        self.upstreams = {}
    def connection_made(self, transport):
        self.transport = transport
    def datagram_received(self, data, client):
        asyncio.ensure_future(self.from_client(data, client))
    async def from_client(self, data, client):
        loop = asyncio.get_running_loop()
        if client not in self.upstreams:
            self.upstreams[client] = None
            self.bytes, self.held, self.is_over, self.sent = 0, None, False, 0
            up, _ = await loop.create_datagram_endpoint(lambda: Upstream(self, client), remote_addr=("127.0.0.1", SERVER))
            self.upstreams[client] = up
        while self.upstreams[client] is None:
            await asyncio.sleep(0)
        self.sent += 1
        self.upstreams[client].sendto(data)
    def from_server(self, client, data):
        self.bytes += len(data)
        if self.held is None and self.bytes > 400_000 and len(data) > 1100:
            # This one is lost.
            self.held = []
            asyncio.ensure_future(self.watch(client))
        elif self.held is None or self.is_over:
            # A path of some length, so that there are packets behind the gap.
            asyncio.get_running_loop().call_later(0.05, self.transport.sendto, data, client)
        elif len(self.held) < 10:
            self.held.append(data)
    async def watch(self, client):
        before = None
        while before != self.sent or len(self.held) < 10:
            before = self.sent
            await asyncio.sleep(0.5)
        for data in self.held:
            self.transport.sendto(data, client)
            await asyncio.sleep(0.1)
        print(self.sent - before, flush=True)
        self.is_over = True

async def main():
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    configuration.load_cert_chain("cert.pem", "key.pem")
    await serve("127.0.0.1", SERVER, configuration=configuration, create_protocol=Server)
    await asyncio.get_running_loop().create_datagram_endpoint(Relay, local_addr=("127.0.0.1", RELAY))
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
END

cat >client.py <<'END'
import asyncio, ssl
from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import H3Connection
from aioquic.quic.configuration import QuicConfiguration

class Client(QuicConnectionProtocol):
    http, ended = None, None
    def quic_event_received(self, event):
        if self.http is not None:
            for it in self.http.handle_event(event):
                if getattr(it, "stream_ended", False):
                    self.ended.set()

async def main():
    configuration = QuicConfiguration(alpn_protocols=["h3"], verify_mode=ssl.CERT_NONE, server_name="localhost")
    async with connect("127.0.0.1", 44330, configuration=configuration, create_protocol=Client) as client:
        client.http, client.ended = H3Connection(client._quic), asyncio.Event()
        stream = client._quic.get_next_available_stream_id()
        client.http.send_headers(stream, [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", b"/")], True)
        client.transmit()
        await client.ended.wait()

asyncio.run(main())
END

cat >Get.java <<'END'
import java.nio.file.Path;
import org.eclipse.jetty.client.CompletableResponseListener;
import org.eclipse.jetty.client.HttpClient;
import org.eclipse.jetty.http3.client.HTTP3Client;
import org.eclipse.jetty.http3.client.HTTP3ClientQuicConfiguration;
import org.eclipse.jetty.http3.client.transport.HttpClientTransportOverHTTP3;
import org.eclipse.jetty.quic.quiche.client.QuicheClientQuicConfiguration;
import org.eclipse.jetty.quic.quiche.client.QuicheTransport;
import org.eclipse.jetty.util.ssl.SslContextFactory;

class Get {
    public static void main(String[] arguments) throws Exception {
        var tls = new SslContextFactory.Client(true);
        var quic = HTTP3ClientQuicConfiguration.configure(new QuicheClientQuicConfiguration(Path.of(".")));
        var client = new HttpClient(new HttpClientTransportOverHTTP3(new HTTP3Client(quic), new QuicheTransport(quic)));
        client.setSslContextFactory(tls);
        client.start();
        try {
            new CompletableResponseListener(client.newRequest("https://localhost:44330/"), 8 << 20).send().get();
        } finally {
            client.stop();
        }
    }
}
END

coproc serving { exec python/bin/python server.py; }
server=$serving_PID
read -r -t 20 ready <&"${serving[0]}"
[ "$ready" = ready ]
timeout 60 python/bin/python client.py &
read -r -t 60 aioquic <&"${serving[0]}"
wait $! || true
timeout 90 java -cp "java/*" Get.java >jetty.log 2>&1 &
read -r -t 60 jetty <&"${serving[0]}"
wait $! || true
echo "datagrams sent behind a gap: aioquic $aioquic, Jetty $jetty"
[ "$aioquic" -ge 9 ] && [ "$jetty" -le 5 ]
