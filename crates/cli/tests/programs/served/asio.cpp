// Sends back all that it gets, by coroutines of Asio: `asio PORT`.
#include <asio.hpp>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

using asio::ip::tcp;

static asio::awaitable<void> echo(tcp::socket socket) {
    std::vector<char> buffer(65536);
    for (;;) {
        asio::error_code error;
        auto token = asio::redirect_error(asio::use_awaitable, error);
        std::size_t size = co_await socket.async_read_some(asio::buffer(buffer), token);
        if (error) break;
        co_await asio::async_write(socket, asio::buffer(buffer, size), token);
        if (error) co_return;
    }
    asio::error_code ignored;
    socket.shutdown(tcp::socket::shutdown_send, ignored);
}

static asio::awaitable<void> serve(tcp::acceptor acceptor) {
    for (;;) {
        tcp::socket socket = co_await acceptor.async_accept(asio::use_awaitable);
        auto executor = socket.get_executor();
        asio::co_spawn(executor, echo(std::move(socket)), asio::detached);
    }
}

int main(int, char **arguments) {
    asio::io_context context;
    tcp::endpoint endpoint(tcp::v4(), std::atoi(arguments[1]));
    asio::co_spawn(context, serve(tcp::acceptor(context, endpoint)), asio::detached);
    std::thread other([&] { context.run(); });
    context.run();
    other.join();
}
