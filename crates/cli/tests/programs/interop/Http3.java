import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import org.eclipse.jetty.client.BufferingResponseListener;
import org.eclipse.jetty.client.CompletableResponseListener;
import org.eclipse.jetty.client.HttpClient;
import org.eclipse.jetty.client.Request;
import org.eclipse.jetty.http.HttpHeader;
import org.eclipse.jetty.http.HttpVersion;
import org.eclipse.jetty.http3.client.HTTP3Client;
import org.eclipse.jetty.http3.client.HTTP3ClientQuicConfiguration;
import org.eclipse.jetty.http3.client.transport.HttpClientTransportOverHTTP3;
import org.eclipse.jetty.quic.quiche.client.QuicheClientQuicConfiguration;
import org.eclipse.jetty.quic.quiche.client.QuicheTransport;
import org.eclipse.jetty.util.ssl.SslContextFactory;

/** The same as http3.py for Jetty's client. */
class Http3 {
    static final int FIRST = 1_000_000, LAST = 1_000_099;

    static byte[] get(Request request) throws Exception {
        var response = new CompletableResponseListener(request, 64 << 20).send().get();
        if (response.getVersion() != HttpVersion.HTTP_3) {
            throw new Exception("not over HTTP/3");
        }
        return response.getContent();
    }

    static void same(byte[] got, byte[] wanted) throws Exception {
        if (!Arrays.equals(got, wanted)) {
            throw new Exception("other bytes");
        }
    }

    public static void main(String[] arguments) throws Exception {
        var tls = new SslContextFactory.Client();
        // It trusts authorities alone, and the certificate is its own issuer.
        tls.setTrustAll(true);
        var quic = HTTP3ClientQuicConfiguration.configure(new QuicheClientQuicConfiguration(Path.of(".")));
        var transport = new HttpClientTransportOverHTTP3(new HTTP3Client(quic), new QuicheTransport(quic));
        var client = new HttpClient(transport);
        client.setSslContextFactory(tls);
        client.start();
        try {
            download(client);
        } catch (Exception failure) {
            System.out.println(failure);
            System.exit(1);
        } finally {
            client.stop();
        }
    }

    static void download(HttpClient client) throws Exception {
        String server = "https://" + System.getenv("HOST") + "/";
        Path root = Path.of(System.getenv("ROOT"));
        for (String name : new String[] {"table.parquet", "table.csv", "image.bin"}) {
            same(get(client.newRequest(server + name)), Files.readAllBytes(root.resolve(name)));
        }
        byte[] text = Files.readAllBytes(root.resolve("table.csv"));
        Request range = client.newRequest(server + "table.csv");
        range.headers(fields -> fields.put(HttpHeader.RANGE, "bytes=" + FIRST + "-" + LAST));
        same(get(range), Arrays.copyOfRange(text, FIRST, LAST + 1));
    }
}
