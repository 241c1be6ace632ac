# An echo server of coroutines, on two threads.
start() {
    c++ -std=c++20 -O1 -Wall -Wextra -pthread -o asio "$here/asio.cpp"
    exec ./asio "$PORT"
}
check() { /usr/bin/python3 "$here/echo.py"; }
