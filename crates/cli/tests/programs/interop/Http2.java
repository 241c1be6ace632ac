import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** The same as http2.py for the client of Java: {@code Http2 FILE...}. */
class Http2 {
    static final int FIRST = 100, LAST = 199;

    static SSLContext trusting(Path certificate) throws Exception {
        var store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (var stream = Files.newInputStream(certificate)) {
            store.setCertificateEntry("server", CertificateFactory.getInstance("X.509").generateCertificate(stream));
        }
        var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        var context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return context;
    }

    public static void main(String[] names) throws Exception {
        String server = "https://" + System.getenv("HOST") + "/";
        Path root = Path.of(System.getenv("ROOT"));
        var client = HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_2)
            .sslContext(trusting(Path.of(System.getenv("TRUST"))))
            .build();
        String last = names[names.length - 1];
        // The first request makes the connection, which the others share.
        var range = HttpRequest.newBuilder(URI.create(server + last)).header("Range", "bytes=" + FIRST + "-" + LAST).build();
        byte[] text = Files.readAllBytes(root.resolve(last));
        check(client.send(range, BodyHandlers.ofByteArray()), Arrays.copyOfRange(text, FIRST, LAST + 1));
        List<CompletableFuture<HttpResponse<byte[]>>> responses = new ArrayList<>();
        for (String name : names) {
            var request = HttpRequest.newBuilder(URI.create(server + name)).build();
            responses.add(client.sendAsync(request, BodyHandlers.ofByteArray()));
        }
        for (int index = 0; index < names.length; index++) {
            check(responses.get(index).get(), Files.readAllBytes(root.resolve(names[index])));
        }
    }

    static void check(HttpResponse<byte[]> response, byte[] wanted) {
        boolean isHttp2 = response.version() == HttpClient.Version.HTTP_2;
        if (!isHttp2 || !Arrays.equals(response.body(), wanted)) {
            System.out.println(response + (isHttp2 ? ": other bytes" : ": not over HTTP/2"));
            System.exit(1);
        }
    }
}
