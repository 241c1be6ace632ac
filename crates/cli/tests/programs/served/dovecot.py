"""Clients of IMAP, eight at a time: messages in, and out again."""

import base64
import imaplib

import client


def work(number):
    server = imaplib.IMAP4(*client.SERVER, timeout=client.PATIENCE_S)
    server.login(f"user{number}", "it")
    messages = []
    for name in ["10", "20000", "3000000"]:
        body = base64.encodebytes(client.CONTENT[name]).replace(b"\n", b"\r\n")
        messages.append(b"Subject: " + name.encode() + b"\r\n\r\n" + body)
        status, said = server.append("INBOX", None, None, messages[-1])
        if status != "OK":
            raise ValueError(f"append: {said}")
    server.select("INBOX")
    for at, message in enumerate(messages, 1):
        _, parts = server.fetch(str(at), "(BODY[])")
        client.same(parts[0][1], message, f"message {at}")
    server.logout()


client.on_threads(8, work)
