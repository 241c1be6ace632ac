"""Has a library download files over HTTP/3, and a range of a text that has a variant. $HOST is the server, $TRUST its certificate, $ROOT
the folder that it serves."""
import os
import sys
import warnings

host, trust, root = (os.environ[name] for name in ("HOST", "TRUST", "ROOT"))
FIRST, LAST = 1_000_000, 1_000_099
FIELDS = {"Range": f"bytes={FIRST}-{LAST}"}
files = {}
for name in ("table.parquet", "table.csv", "image.bin"):
    with open(f"{root}/{name}", "rb") as file:
        files[name] = file.read()


def with_pycurl():
    import pycurl

    handle = pycurl.Curl()
    handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_3ONLY)
    handle.setopt(pycurl.CAINFO, trust)
    handle.setopt(pycurl.ACCEPT_ENCODING, "")

    def get(url, fields):
        handle.setopt(pycurl.URL, url)
        handle.setopt(pycurl.HTTPHEADER, [f"{name}: {value}" for name, value in fields.items()])
        body = handle.perform_rb()
        return body, handle.getinfo(pycurl.INFO_HTTP_VERSION) == pycurl.CURL_HTTP_VERSION_3

    return get


def with_niquests():
    import niquests

    # It trusts authorities alone, and the certificate is its own issuer.
    warnings.simplefilter("ignore")
    session = niquests.Session(disable_http1=True, disable_http2=True)
    session.quic_cache_layer.add_domain(host, 443)

    def get(url, fields):
        response = session.get(url, headers=fields, verify=False)
        return response.content, response.http_version == 30

    return get


get = {"pycurl": with_pycurl, "niquests": with_niquests}[sys.argv[1]]()
for name, content in files.items():
    got, is_http3 = get(f"https://{host}/{name}", {})
    if got != content or not is_http3:
        sys.exit(f"{name}: {'other bytes' if is_http3 else 'not over HTTP/3'}")
got, _ = get(f"https://{host}/table.csv", FIELDS)
if got != files["table.csv"][FIRST : LAST + 1]:
    sys.exit("other bytes of the range")
