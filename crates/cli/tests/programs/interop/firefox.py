"""Has Firefox download files over HTTP/2 or HTTP/3 (`firefox.py h2|h3`), driven over its own protocol, Marionette. $HOST is the server,
$TRUST its certificate, $ROOT the folder that it serves."""
import hashlib
import json
import os
import pathlib
import socket
import subprocess
import sys

host, trust, root = (os.environ[name] for name in ("HOST", "TRUST", "ROOT"))
protocol = sys.argv[1]
NAMES = ["table.parquet", "table.csv", "image.bin"]
PORT = 8020

# A name that Alt-Svc may be given for, and the certificate as the profile's own.
PREFERENCES = {
    "marionette.port": PORT,
    "network.dns.localDomains": "",
    "network.http.http3.enable": protocol == "h3",
}
if protocol == "h3":
    PREFERENCES |= {
        "network.http.http3.alt-svc-mapping-for-testing": f"{host};h3=:443",
        "network.http.http3.disable_when_third_party_roots_found": False,
        "network.http.http3.force-use-alt-svc-mapping-for-testing": True,
    }
# Of each file: its protocol and its sum.
DOWNLOADS = """
const [names, done] = arguments;
const download = async (name) => {
  const bytes = await (await fetch(name, { cache: "no-store" })).arrayBuffer();
  const sum = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const entry = performance.getEntriesByName(new URL(name, location).href).at(-1);
  return `${entry.nextHopProtocol} ${Array.from(sum, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
};
Promise.all(names.map(download)).then(done, (error) => done([`${error}`]));
"""


class Marionette:
    """Messages are JSON behind their length; a command is [0, id, name, parameters] (Firefox's source, remote/doc/marionette)."""

    def __init__(self, firefox):
        while True:
            try:
                self.stream = socket.create_connection(("127.0.0.1", PORT), 30).makefile("rwb")
                break
            except ConnectionRefusedError:
                if firefox.poll() is not None:
                    sys.exit("Firefox has ended")
        self.read()

    def read(self):
        length = b""
        while not length.endswith(b":"):
            byte = self.stream.read(1)
            if not byte:
                sys.exit("Firefox has closed the connection")
            length += byte
        return json.loads(self.stream.read(int(length[:-1])))

    def call(self, name, parameters):
        message = json.dumps([0, 1, name, parameters]).encode()
        self.stream.write(b"%d:%s" % (len(message), message))
        self.stream.flush()
        _, _, error, result = self.read()
        if error:
            sys.exit(f"{name}: {error['message']}")
        return result


profile = pathlib.Path("profile")
profile.mkdir()
lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in PREFERENCES.items()]
(profile / "user.js").write_text("\n".join(lines))
certutil = ["certutil", "-d", f"sql:{profile}"]
subprocess.run([*certutil, "-N", "--empty-password"], check=True)
subprocess.run([*certutil, "-A", "-n", "server", "-t", "CP,,", "-i", trust], check=True)
command = ["firefox-esr", "--headless", "--marionette", "--no-remote", "--profile", str(profile)]
with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as firefox:
    try:
        marionette = Marionette(firefox)
        marionette.call("WebDriver:NewSession", {"capabilities": {"alwaysMatch": {}}})
        marionette.call("WebDriver:Navigate", {"url": f"https://{host}/simple/interop/"})
        found = marionette.call("WebDriver:ExecuteAsyncScript", {"script": DOWNLOADS, "args": [[f"/{name}" for name in NAMES]]})
    finally:
        firefox.terminate()
wanted = [f"{protocol} {hashlib.sha256(pathlib.Path(root, name).read_bytes()).hexdigest()}" for name in NAMES]
if found["value"] != wanted:
    sys.exit(f"{found['value']}")
