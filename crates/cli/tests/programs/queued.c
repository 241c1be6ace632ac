/*
 * Says what becomes of a large write that does not block, a line for each order in which the two
 * sides end: without a library the same as on sockets of the kernel.
 */
#include "programs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#define BYTES 1000000

static char sent[BYTES];

/* A new connection: its client, and its server, which does not block. */
static void pair(int *client, int *server, int send_buffer)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof at;
    int by = stream();
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(by, (struct sockaddr *)&at, sizeof at), "bind");
    if (send_buffer > 0)
        check(setsockopt(by, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer), "SO_SNDBUF");
    check(listen(by, 5), "listen");
    check(getsockname(by, (struct sockaddr *)&at, &len), "getsockname");
    *client = stream();
    check(connect(*client, (struct sockaddr *)&at, sizeof at), "connect");
    *server = check(accept(by, NULL, NULL), "accept");
    check(fcntl(*server, F_SETFL, O_NONBLOCK), "F_SETFL");
    close(by);
}

static void wait_for(int fd, short events)
{
    struct pollfd poller = {.fd = fd, .events = events};
    check(poll(&poller, 1, 10000), "poll");
    if (poller.revents == 0) {
        fprintf(stderr, "nothing came\n");
        exit(1);
    }
}

/* Reads to the end: how many bytes, and whether they are those that were sent. */
static void read_all(int fd, const char *order)
{
    static char buffer[65536];
    long total = 0, wrong = 0, got;
    while ((got = recv(fd, buffer, sizeof buffer, 0)) > 0) {
        for (long at = 0; at < got; at++)
            wrong += buffer[at] != sent[total + at];
        total += got;
    }
    printf("%s: %ld bytes, %ld wrong, then %s\n", order, total, wrong, got < 0 ? strerror(errno) : "the end");
}

static void say_sent(const char *order, long count)
{
    printf("%s: send %ld\n", order, count);
}

/* The server closes behind its write, or ends its direction. */
static void server_ends(int closes)
{
    const char *order = closes ? "write, close" : "write, shutdown";
    char byte;
    int client, server;
    pair(&client, &server, 0);
    say_sent(order, send(server, sent, BYTES, 0));
    if (closes)
        close(server);
    else
        check(shutdown(server, SHUT_WR), "shutdown");
    read_all(client, order);
    close(client);
    if (!closes) {
        wait_for(server, POLLIN);
        printf("%s: recv %zd\n", order, recv(server, &byte, 1, 0));
        close(server);
    }
}

/* The client has ended its direction before the server writes, as many do behind a request. */
static void client_ends_first(void)
{
    const char *order = "shutdown of the client, write, close";
    char bytes[8];
    int client, server;
    pair(&client, &server, 0);
    check(send(client, "request", 7, 0), "send");
    check(shutdown(client, SHUT_WR), "shutdown");
    wait_for(server, POLLIN);
    check(recv(server, bytes, sizeof bytes, 0), "recv");
    say_sent(order, send(server, sent, BYTES, 0));
    close(server);
    read_all(client, order);
    close(client);
}

/* The client closes while much of it is on its way: what the server writes then fails. */
static void client_closes(void)
{
    const char *order = "write, close of the client";
    int client, server, error;
    socklen_t len = sizeof error;
    pair(&client, &server, 0);
    say_sent(order, send(server, sent, BYTES, 0));
    wait_for(client, POLLIN);
    close(client);
    wait_for(server, POLLERR);
    check(getsockopt(server, SOL_SOCKET, SO_ERROR, &error, &len), "SO_ERROR");
    printf("%s: %s\n", order, strerror(error));
    error = send(server, "x", 1, MSG_NOSIGNAL) < 0 ? errno : 0;
    printf("%s: then %s\n", order, strerror(error));
    close(server);
}

/* A buffer whose size was set takes a part, and the socket is writable when that has left. */
static void bounded(void)
{
    const char *order = "a set buffer";
    int client, server;
    long count, total = 0;
    pair(&client, &server, 16384);
    while ((count = send(server, sent + total, BYTES - total, 0)) > 0)
        total += count;
    printf("%s: %s, %s\n", order, total < BYTES ? "a part" : "all", strerror(errno));
    while (total < BYTES) {
        static char buffer[65536];
        check(recv(client, buffer, sizeof buffer, MSG_DONTWAIT) < 0 && errno != EAGAIN ? -1 : 0, "recv");
        if ((count = send(server, sent + total, BYTES - total, 0)) > 0)
            total += count;
    }
    printf("%s: %ld\n", order, total);
    close(client);
    close(server);
}

int main(void)
{
    for (int at = 0; at < BYTES; at++)
        sent[at] = (char)(at * 2654435761u >> 24);
    server_ends(1);
    server_ends(0);
    client_ends_first();
    client_closes();
    bounded();
    return 0;
}
