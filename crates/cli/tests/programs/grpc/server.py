"""A server of gRPC without TLS, whose messages are bytes: server.py PORT..."""

import hashlib
import sys
import threading
from concurrent import futures

import grpc

cancelled = threading.Semaphore(0)


def unary(request, context):
    metadata = dict(context.invocation_metadata())
    context.send_initial_metadata([("seen-bin", metadata.get("sent-bin", b""))])
    digest = hashlib.sha256(request).digest()
    context.set_trailing_metadata([("digest-bin", digest), ("seen", metadata.get("sent", ""))])
    return request


def server_streaming(request, context):
    count, size = (int(word) for word in request.split())
    for number in range(count):
        yield bytes([number % 251]) * size


def client_streaming(requests, context):
    digest, count = hashlib.sha256(), 0
    for request in requests:
        digest.update(request)
        count += 1
    return f"{count} {digest.hexdigest()}".encode()


def conversation(requests, context):
    for request in requests:
        yield request[::-1]


def silence(request, context):
    """Says nothing but that it has begun, until the call is over."""
    yield b"begun"
    is_over = threading.Event()
    if context.add_callback(is_over.set):
        is_over.wait(100)
    cancelled.release()


def cancellations(request, context):
    """Waits for the ends of so many silent calls."""
    seen = [cancelled.acquire(timeout=50) for _ in range(int(request))]
    return str(sum(seen)).encode()


def failure(request, context):
    context.set_trailing_metadata([("reason-bin", bytes(range(256)))])
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no: \u00e4\n%")


def failure_amid(request, context):
    yield b"first"
    context.abort(grpc.StatusCode.DATA_LOSS, "second")


METHODS = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "ServerStreaming": grpc.unary_stream_rpc_method_handler(server_streaming),
    "ClientStreaming": grpc.stream_unary_rpc_method_handler(client_streaming),
    "Conversation": grpc.stream_stream_rpc_method_handler(conversation),
    "Silence": grpc.unary_stream_rpc_method_handler(silence),
    "Cancellations": grpc.unary_unary_rpc_method_handler(cancellations),
    "Failure": grpc.unary_unary_rpc_method_handler(failure),
    "FailureAmid": grpc.unary_stream_rpc_method_handler(failure_amid),
}


def main():
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=150), options=options)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Calls", METHODS)])
    for port in sys.argv[1:]:
        assert server.add_insecure_port(f"0.0.0.0:{port}")
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


main()
