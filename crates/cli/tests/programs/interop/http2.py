"""Has a library download files at once over HTTP/2, and a range of the last one: `http2.py LIBRARY FILE...`. $HOST is the server, $TRUST its
certificate, $ROOT the folder that it serves."""
import asyncio
import os
import ssl
import sys
import warnings

host, trust, root = (os.environ[name] for name in ("HOST", "TRUST", "ROOT"))
library, names = sys.argv[1], sys.argv[2:]
FIRST, LAST = 100, 199
wishes = [(name, {}) for name in names] + [(names[-1], {"Range": f"bytes={FIRST}-{LAST}", "Accept-Encoding": "identity"})]


async def with_httpx():
    import httpx

    limits = httpx.Limits(max_connections=1)
    context = ssl.create_default_context(cafile=trust)
    async with httpx.AsyncClient(http1=False, http2=True, verify=context, limits=limits, timeout=100) as client:
        responses = [client.get(f"https://{host}/{name}", headers=fields) for name, fields in wishes]
        return [(response.content, response.http_version == "HTTP/2") for response in await asyncio.gather(*responses)]


def with_niquests():
    import niquests

    # It trusts authorities alone, and the certificate is its own issuer.
    warnings.simplefilter("ignore")
    with niquests.Session(disable_http1=True, disable_http3=True, multiplexed=True) as session:
        get = lambda name, fields: session.get(f"https://{host}/{name}", headers=fields, timeout=100, verify=False)
        responses = [get(name, fields) for name, fields in wishes]
        session.gather()
        return [(response.content, response.http_version == 20) for response in responses]


got = asyncio.run(with_httpx()) if library == "httpx" else with_niquests()
for (name, fields), (content, is_http2) in zip(wishes, got, strict=True):
    with open(f"{root}/{name}", "rb") as file:
        wanted = file.read()
    if content != (wanted[FIRST : LAST + 1] if fields else wanted) or not is_http2:
        sys.exit(f"{name}: {'other bytes' if is_http2 else 'not over HTTP/2'}")
