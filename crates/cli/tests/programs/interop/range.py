"""Has a library fetch a range of a text whose compressed variant lies beside it, as the library asks for it by itself."""
import asyncio
import sys

FIRST, LAST = 1_000_000, 1_000_099
library, url, path = sys.argv[1:]
fields = {"Range": f"bytes={FIRST}-{LAST}"}
with open(path, "rb") as file:
    wanted = file.read()


async def aiohttp_get():
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(url, headers=fields) as response:
        return await response.read()


def fsspec_read():
    import fsspec

    with fsspec.open(url).open() as file:
        file.seek(FIRST)
        return file.read(LAST + 1 - FIRST)


match library:
    case "requests":
        import requests

        got = requests.get(url, headers=fields).content
    case "httpx":
        import httpx

        got = httpx.get(url, headers=fields).content
    case "aiohttp":
        got = asyncio.run(aiohttp_get())
    case "fsspec":
        got = fsspec_read()

if got == wanted[FIRST : LAST + 1]:
    print("the range")
elif got == wanted:
    print("the whole file")
else:
    sys.exit("other bytes")
