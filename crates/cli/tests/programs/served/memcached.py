"""Clients of memcached, sixteen at a time: a value in, and out again."""

import client

SIZES = [0, 10, 20000, 500000, 3000000]


def line(stream):
    got = stream.readline()
    if not got.endswith(b"\r\n"):
        raise ValueError(f"it has ended: {got!r}")
    return got[:-2]


def work(number):
    connection = client.socket.create_connection(client.SERVER, client.PATIENCE_S)
    stream = connection.makefile("rb")
    for size in SIZES:
        value = client.CONTENT["3000000"][number : number + size]
        connection.sendall(b"set %d 0 0 %d\r\n" % (number, len(value)) + value + b"\r\n")
        stored = line(stream)
        if stored != b"STORED":
            raise ValueError(f"{size}: {stored!r}")
        # Two answers to one write, as clients that have more to ask for do.
        connection.sendall(b"get %d\r\nget %d\r\n" % (number, number))
        for _ in range(2):
            if line(stream) != b"VALUE %d 0 %d" % (number, len(value)):
                raise ValueError("no value")
            client.same(stream.read(len(value) + 2)[:-2], value, f"value of {size}")
            if line(stream) != b"END":
                raise ValueError("no end")
    connection.close()


client.on_threads(16, work)
