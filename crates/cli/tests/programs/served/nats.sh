start() { exec nats-server --addr 0.0.0.0 --port "$PORT" --pid "$WORK/pid"; }
check() {
    /usr/bin/python3 "$here/nats.py"
    kill -HUP "$(cat pid)"
    /usr/bin/python3 "$here/nats.py"
}
