"""Clients of NATS: each of eight subscribers gets what each of four publishers sends, in order."""

import socket
import threading

import client

SIZES = [0, 10, 20000, 500000, 1000000]
PUBLISHERS, SUBSCRIBERS = 4, 8


class Client:
    def __init__(self):
        self.connection = socket.create_connection(client.SERVER, client.PATIENCE_S)
        self.stream = self.connection.makefile("rb")
        assert self.line().startswith(b"INFO ")
        self.connection.sendall(b'CONNECT {"verbose":false}\r\n')
        self.ping()

    def line(self):
        got = self.stream.readline()
        if not got.endswith(b"\r\n"):
            raise ValueError(f"it has ended: {got!r}")
        return got[:-2]

    def ping(self):
        """Returns once the server has done all that was asked."""
        self.connection.sendall(b"PING\r\n")
        assert self.line() == b"PONG"


def payload(publisher, size):
    return client.CONTENT["3000000"][publisher : publisher + size]


def subscriber(ready):
    try:
        own = Client()
        own.connection.sendall(b"SUB it.* 1\r\n")
        own.ping()
    finally:
        ready.wait(client.PATIENCE_S)
    seen = {publisher: list(SIZES) for publisher in range(PUBLISHERS)}
    while any(seen.values()):
        words = own.line().split()
        if words == [b"PING"]:
            own.connection.sendall(b"PONG\r\n")
            continue
        publisher, size = int(words[1].split(b".")[1]), int(words[3])
        if size != seen[publisher].pop(0):
            raise ValueError("messages in another order")
        client.same(own.stream.read(size + 2)[:-2], payload(publisher, size), f"message of {size}")


def publisher(number, ready):
    own = Client()
    ready.wait(client.PATIENCE_S)
    for size in SIZES:
        own.connection.sendall(b"PUB it.%d %d\r\n" % (number, size) + payload(number, size) + b"\r\n")
    own.ping()


ready = threading.Barrier(PUBLISHERS + SUBSCRIBERS)
client.on_threads(
    PUBLISHERS + SUBSCRIBERS,
    lambda number: publisher(number, ready) if number < PUBLISHERS else subscriber(ready),
)
