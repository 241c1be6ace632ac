import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import org.apache.hc.client5.http.classic.methods.HttpGet;
import org.apache.hc.client5.http.impl.classic.HttpClients;
import org.apache.hc.core5.http.io.entity.EntityUtils;

/** The same as range.py for Apache HttpClient. */
class Range {
    public static void main(String[] arguments) throws Exception {
        int first = 1_000_000, last = 1_000_099;
        byte[] wanted = Files.readAllBytes(Path.of(arguments[1]));
        HttpGet get = new HttpGet(arguments[0]);
        get.setHeader("Range", "bytes=" + first + "-" + last);
        byte[] got;
        try (var client = HttpClients.createDefault()) {
            got = client.execute(get, response -> EntityUtils.toByteArray(response.getEntity()));
        }
        if (Arrays.equals(got, Arrays.copyOfRange(wanted, first, last + 1))) {
            System.out.println("the range");
        } else if (Arrays.equals(got, wanted)) {
            System.out.println("the whole file");
        } else {
            System.out.println("other bytes");
            System.exit(1);
        }
    }
}
