/*
 * Sends a file's bytes from one pool of buffers, and uses each again when the peer has its bytes:
 * one thread, one epoll set, edge-triggered.
 *
 *     cc -O2 -o send_zc send_zc.c $(pkg-config --cflags --libs splitway)
 *     SPLITWAY_SOCKET=/run/splitway/sockets.sock ./send_zc ADDRESS PORT FILE
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <splitway.h>

#define BUFFERS 32

static struct buffer {
    char bytes[16384];
    ssize_t len, sent;
    /* Sends of it that have not completed. */
    int sends;
} pool[BUFFERS];

static void die(const char *what)
{
    fprintf(stderr, "send_zc: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Takes what has completed; `timeout` is in milliseconds. Returns how many sends that was. */
static int complete(int fd, int timeout)
{
    struct sw_zc_completion done[BUFFERS];
    int count = sw_zc_complete(fd, done, BUFFERS, timeout);
    if (count < 0 && errno != EINTR)
        die("zc_complete");
    for (int i = 0; i < count; i++) {
        if (done[i].error) {
            errno = done[i].error;
            die("the connection");
        }
        pool[done[i].cookie].sends--;
    }
    return count;
}

/* Sends what the buffer still has; false if the connection has no room. */
static int push(int fd, size_t number)
{
    struct buffer *buffer = &pool[number];
    while (buffer->sent < buffer->len) {
        ssize_t sent = sw_send_zc(fd, buffer->bytes + buffer->sent, buffer->len - buffer->sent,
                                  MSG_NOSIGNAL, number);
        if (sent < 0 && errno == ENOBUFS && complete(fd, -1) >= 0)
            continue;
        if (sent < 0 && errno == EAGAIN)
            return 0;
        if (sent < 0)
            die("send_zc");
        buffer->sent += sent;
        buffer->sends++;
    }
    return 1;
}

int main(int count, char **arguments)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
    size_t number = 0;
    int file, fd, set;
    if (count != 4 || inet_pton(AF_INET, arguments[1], &to.sin_addr) != 1) {
        fprintf(stderr, "usage: send_zc ADDRESS PORT FILE\n");
        return 2;
    }
    to.sin_port = htons(atoi(arguments[2]));
    if ((file = open(arguments[3], O_RDONLY | O_CLOEXEC)) < 0)
        die(arguments[3]);
    if ((fd = sw_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0)
        die("socket");
    if (sw_connect(fd, (struct sockaddr *)&to, sizeof to) < 0)
        die("connect");
    if (sw_fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || (set = sw_epoll_create1(EPOLL_CLOEXEC)) < 0
        || sw_epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) < 0)
        die("epoll");
    for (;;) {
        struct buffer *buffer = &pool[number];
        if (buffer->sent == buffer->len && buffer->sends == 0) {
            buffer->sent = 0;
            if ((buffer->len = read(file, buffer->bytes, sizeof buffer->bytes)) < 0)
                die("read");
            if (buffer->len == 0)
                break;
        }
        if (buffer->sent < buffer->len && push(fd, number)) {
            number = (number + 1) % BUFFERS;
            continue;
        }
        /* EPOLLOUT: room for more; EPOLLERR: completions. */
        if (sw_epoll_wait(set, &event, 1, -1) < 0 && errno != EINTR)
            die("epoll_wait");
        while (complete(fd, 0) > 0)
            ;
    }
    /* Waits for the peer to have all. */
    while (complete(fd, -1) != 0)
        ;
    if (sw_shutdown(fd, SHUT_WR) < 0)
        die("shutdown");
    puts("the peer has it all");
    return sw_close(fd) < 0;
}
