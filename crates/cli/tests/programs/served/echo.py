"""Clients of a server that sends back all that it gets: `echo.py`, sixteen at a time. Their directions end before they have read all."""

import socket
import threading

import client


def work(number):
    connection = socket.create_connection(client.SERVER, client.PATIENCE_S)
    sent = client.CONTENT[client.FILES[number % len(client.FILES)]] * 2

    def send():
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    got = bytearray()
    while piece := connection.recv(65536):
        got += piece
    sender.join()
    client.same(got, sent, "echo")
    connection.close()


client.on_threads(16, work)
