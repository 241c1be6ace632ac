"""The same server of files and of bodies that come back, as WSGI and as ASGI."""

import os
import re

ROOT = os.environ["ROOT"]


def content(path):
    """The bytes of a file, if it is one."""
    if not re.fullmatch(r"/[0-9]+", path):
        return None
    with open(ROOT + path, "rb") as file:
        return file.read()


def wsgi(environ, start_response):
    if environ["REQUEST_METHOD"] == "POST":
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    else:
        body = content(environ["PATH_INFO"])
    if body is None:
        start_response("404 Not Found", [("Content-Length", "0")])
        return []
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    body = bytearray()
    if scope["method"] == "POST":
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
    else:
        body = content(scope["path"])
    status = 404 if body is None else 200
    body = bytes(body or b"")
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
