"""Calls of gRPC through a proxy: client.py ADDRESS [CERTIFICATE]."""

import hashlib
import os
import queue
import sys
import threading
from concurrent import futures

import grpc

OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.ssl_target_name_override", "localhost"),
    ("grpc.enable_http_proxy", 0),
]


def connect():
    address = sys.argv[1]
    if len(sys.argv) < 3:
        return grpc.insecure_channel(address, options=OPTIONS)
    with open(sys.argv[2], "rb") as file:
        credentials = grpc.ssl_channel_credentials(file.read())
    return grpc.secure_channel(address, credentials, options=OPTIONS)


channel = connect()
unary = channel.unary_unary("/test.Calls/Unary")
server_streaming = channel.unary_stream("/test.Calls/ServerStreaming")
client_streaming = channel.stream_unary("/test.Calls/ClientStreaming")
conversation = channel.stream_stream("/test.Calls/Conversation")
silence = channel.unary_stream("/test.Calls/Silence")
cancellations = channel.unary_unary("/test.Calls/Cancellations")
failure = channel.unary_unary("/test.Calls/Failure")
failure_amid = channel.unary_stream("/test.Calls/FailureAmid")


def check_unary(size):
    message, binary = os.urandom(size), os.urandom(100)
    metadata = [("sent-bin", binary), ("sent", "text")]
    response, call = unary.with_call(message, metadata=metadata, timeout=100)
    assert response == message, size
    assert dict(call.initial_metadata())["seen-bin"] == binary
    trailing = dict(call.trailing_metadata())
    assert trailing["digest-bin"] == hashlib.sha256(message).digest()
    assert trailing["seen"] == "text"


def check_server_streaming(count, size):
    responses = list(server_streaming(f"{count} {size}".encode(), timeout=100))
    assert responses == [bytes([number % 251]) * size for number in range(count)]


def check_client_streaming(count, size):
    messages = [os.urandom(size) for _ in range(count)]
    response = client_streaming(iter(messages), timeout=100)
    assert response == f"{count} {hashlib.sha256(b''.join(messages)).hexdigest()}".encode()


def check_conversation(rounds, size):
    """Each message is sent after the response to the one before it."""
    messages = queue.Queue()
    responses = conversation(iter(messages.get, None), timeout=100)
    for _ in range(rounds):
        message = os.urandom(size)
        messages.put(message)
        assert next(responses) == message[::-1]
    messages.put(None)
    assert list(responses) == []


def check_status(call, code, details):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code, error
        assert details is None or error.details() == details, error
        return error
    raise AssertionError("no error")


def check_failures():
    code = grpc.StatusCode.FAILED_PRECONDITION
    error = check_status(lambda: failure(b""), code, "no: \u00e4\n%")
    assert dict(error.trailing_metadata())["reason-bin"] == bytes(range(256))
    responses = failure_amid(b"")
    assert next(responses) == b"first"
    check_status(lambda: next(responses), grpc.StatusCode.DATA_LOSS, "second")
    unknown = channel.unary_unary("/test.Calls/Unknown")
    check_status(lambda: unknown(b""), grpc.StatusCode.UNIMPLEMENTED, None)


def check_ends():
    """A deadline and a cancellation end calls that have begun at the server as well."""
    responses = silence(b"", timeout=5)
    assert next(responses) == b"begun"
    check_status(lambda: next(responses), grpc.StatusCode.DEADLINE_EXCEEDED, None)
    responses = silence(b"")
    assert next(responses) == b"begun"
    assert responses.cancel()
    assert cancellations(b"2", timeout=60) == b"2"


def check_many(count):
    with futures.ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(check_conversation, 20, 1000) for _ in range(count)]
        for call in calls:
            call.result()


def main():
    grpc.channel_ready_future(channel).result(timeout=30)
    for size in [0, 1, 1000, 16_384, 65_536, 70_000, 4 << 20]:
        check_unary(size)
    for count, size in [(0, 1), (1, 1), (1000, 100), (3, 4 << 20)]:
        check_server_streaming(count, size)
        check_client_streaming(count, size)
    check_conversation(200, 100)
    check_conversation(5, 1 << 20)
    check_failures()
    check_ends()
    check_many(100)
    print("done")


main()
