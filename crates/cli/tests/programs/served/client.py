"""A client of a server of HTTP: `client.py STEP...`, each step one of the functions below. Every byte that comes back is compared."""

import hashlib
import http.client
import os
import socket
import sys
import threading

SERVER = (os.environ["HOST"], int(os.environ["PORT"]))
ROOT = os.environ["ROOT"]
FILES = ["10", "20000", "500000", "3000000"]
PATIENCE_S = 20


def content(name):
    with open(os.path.join(ROOT, name), "rb") as file:
        return file.read()


CONTENT = {name: content(name) for name in FILES}


def same(got, wanted, what):
    if hashlib.sha256(got).digest() != hashlib.sha256(wanted).digest():
        raise ValueError(f"{what}: other bytes: {len(got)} of {len(wanted)}")


def get(connection, name):
    connection.request("GET", f"/{name}")
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise ValueError(f"{name}: status {response.status} {response.headers.get('X-Squid-Error', '')}")
    same(body, CONTENT[name], name)


def opened():
    return http.client.HTTPConnection(*SERVER, timeout=PATIENCE_S)


def on_threads(count, work):
    failures = []

    def run(number):
        try:
            work(number)
        except Exception as failure:
            failures.append(f"{type(failure).__name__}: {failure}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise ValueError(f"{len(failures)} of {count}: {failures[0]}")


def parallel():
    """Files on sixteen connections at a time, each of which is closed after one."""

    def work(_):
        for name in FILES:
            connection = opened()
            get(connection, name)
            connection.close()

    on_threads(16, work)


def keep_alive():
    """All files by one connection, again and again."""

    def work(_):
        connection = opened()
        connection.connect()
        first = connection.sock
        for _ in range(5):
            for name in FILES:
                get(connection, name)
        if connection.sock is not first:
            raise ValueError("the connection was not kept")
        connection.close()

    on_threads(4, work)


def asked(name, receive_buffer=0):
    """A connection on which a file is asked for, as the last one."""
    connection = socket.socket()
    connection.settimeout(PATIENCE_S)
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect(SERVER)
    connection.sendall(f"GET /{name} HTTP/1.1\r\nHost: {SERVER[0]}:{SERVER[1]}\r\nConnection: close\r\n\r\n".encode())
    return connection


def rest(connection, wanted, what, at_once=65536):
    """Reads a response to its end."""
    got = bytearray()
    while piece := connection.recv(at_once):
        got += piece
    connection.close()
    head, _, body = bytes(got).partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        body = joined(body)
    same(body, wanted, what)


def joined(body):
    """The bytes of chunks."""
    whole = bytearray()
    while body:
        line, _, body = body.partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if size == 0:
            break
        whole += body[:size]
        body = body[size + 2 :]
    return bytes(whole)


def half_close():
    """The client ends its direction once it has asked; the whole file comes."""

    def work(_):
        for name in FILES:
            connection = asked(name)
            connection.shutdown(socket.SHUT_WR)
            rest(connection, CONTENT[name], f"{name} after a half-close")

    on_threads(4, work)


def half_close_amid():
    """The same while the file is on its way."""
    for name in FILES:
        connection = asked(name, 32768)
        connection.recv(1, socket.MSG_PEEK)
        connection.shutdown(socket.SHUT_WR)
        rest(connection, CONTENT[name], f"{name} after a half-close amid it")


def half_close_ends():
    """The same at a server that may answer with nothing then: its direction ends as well, in order."""
    for name in FILES:
        connection = asked(name)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
        connection.close()


def slow_reader():
    """Eight clients with small windows read nothing until another has done all its work."""
    name = FILES[-1]
    slow = [asked(name, 32768) for _ in range(8)]
    keep_alive()
    for connection in slow:
        rest(connection, CONTENT[name], f"{name}, slowly", 4096)


def upload():
    """A body comes back as it was sent, by a server that may send while it receives."""

    def work(_):
        for name in FILES:
            body = CONTENT[name]
            connection = opened()
            connection.putrequest("POST", "/echo")
            connection.putheader("Content-Type", "application/octet-stream")
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders()
            sender = threading.Thread(target=connection.sock.sendall, args=(body,))
            sender.start()
            response = connection.getresponse()
            got = response.read()
            sender.join()
            if response.status != 200:
                raise ValueError(f"upload: status {response.status}")
            same(got, body, f"{name}, uploaded")
            connection.close()

    on_threads(4, work)


def steadily():
    """Downloads until there are enough, each with a connection of its own."""
    work = os.environ["WORK"]

    def download(_):
        while True:
            is_last = os.path.exists(f"{work}/enough")
            for name in FILES:
                connection = opened()
                get(connection, name)
                connection.close()
            open(f"{work}/steady", "w").close()
            if is_last:
                return

    on_threads(4, download)


def once():
    """Each file, one after another."""
    connection = opened()
    for name in FILES:
        get(connection, name)
    connection.close()


def responds():
    """One file, if the server is there."""
    connection = opened()
    get(connection, FILES[0])


for step in sys.argv[1:]:
    try:
        globals()[step]()
    except Exception as failure:
        print(f"{step}: {type(failure).__name__}: {failure}")
        sys.exit(1)
