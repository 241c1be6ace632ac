/* Sockets as programs use them that are linked statically, and know nothing of the split stack:
 *
 *   sockets level PORT            sends back what it receives, by epoll with levels
 *   sockets edge PORT             the same by edges
 *   sockets threads PORT          … with a thread for each connection, by calls that block
 *   sockets fork PORT             … with a process for each connection
 *   sockets reset PORT            says how a connection ends that its peer resets
 *   sockets signals PORT          says how accept ends when a signal comes
 *   sockets blocking IP PORT N    sends N bytes by a connection, and compares what comes back
 *   sockets nonblocking IP PORT N the same where connect does not block
 *   sockets 32 bits               makes a call as programs of 32 bits do
 *   sockets refused IP PORT       connects to where no one listens, in both ways
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    do { if (!(condition)) err(1, "line %d: %s", __LINE__, #condition); } while (0)

static int number(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    CHECK(getsockopt(fd, level, name, &value, &len) == 0 && len == sizeof value);
    return value;
}

static void set(int fd, int level, int name, int value) {
    CHECK(setsockopt(fd, level, name, &value, sizeof value) == 0);
}

/* A connection is one of TCP, whatever else it is. */
static void check_connection(int fd, in_port_t own) {
    struct sockaddr_in local, peer;
    socklen_t len = sizeof local;
    CHECK(getsockname(fd, (struct sockaddr *)&local, &len) == 0);
    CHECK(len == sizeof local && local.sin_family == AF_INET && local.sin_port != 0);
    CHECK(!own || local.sin_port == own);
    len = sizeof peer;
    CHECK(getpeername(fd, (struct sockaddr *)&peer, &len) == 0);
    CHECK(len == sizeof peer && peer.sin_family == AF_INET && peer.sin_port != 0);
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 15);
    CHECK(number(fd, IPPROTO_TCP, TCP_NODELAY) == 1);
    CHECK(number(fd, IPPROTO_TCP, TCP_KEEPIDLE) == 15);
    CHECK(number(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM);
    CHECK(number(fd, SOL_SOCKET, SO_DOMAIN) == AF_INET);
    CHECK(number(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP);
    CHECK(number(fd, SOL_SOCKET, SO_ERROR) == 0);
    CHECK(number(fd, SOL_SOCKET, SO_ACCEPTCONN) == 0);
    int value = 1;
    CHECK(setsockopt(fd, IPPROTO_TCP, 1234, &value, sizeof value) == -1 && errno == ENOPROTOOPT);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, NULL, sizeof value) == -1 && errno == EFAULT);
}

static in_port_t listens_on;

static int listener_on(const char *port, int flags) {
    listens_on = htons(atoi(port));
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    CHECK(fd >= 0);
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = listens_on};
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == -1 && errno == EINVAL);
    CHECK(listen(fd, 128) == 0);
    CHECK(number(fd, SOL_SOCKET, SO_ACCEPTCONN) == 1);
    CHECK(number(fd, SOL_SOCKET, SO_REUSEADDR) == 1);
    CHECK(getpeername(fd, (struct sockaddr *)&at, &(socklen_t){sizeof at}) == -1);
    CHECK(errno == ENOTCONN);
    struct pollfd polled = {.fd = fd, .events = POLLOUT};
    CHECK(poll(&polled, 1, 0) == 0);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK ? flags & SOCK_NONBLOCK : !(flags & SOCK_NONBLOCK));
    return fd;
}

static int accepted(int listener, int flags) {
    struct sockaddr_in peer = {0}, again;
    socklen_t len = sizeof peer;
    int fd = accept4(listener, (struct sockaddr *)&peer, &len, flags);
    if (fd < 0)
        return fd;
    CHECK(len == sizeof peer && peer.sin_family == AF_INET);
    CHECK(getpeername(fd, (struct sockaddr *)&again, &len) == 0);
    CHECK(again.sin_port == peer.sin_port && again.sin_addr.s_addr == peer.sin_addr.s_addr);
    CHECK(!!(fcntl(fd, F_GETFL) & O_NONBLOCK) == !!(flags & SOCK_NONBLOCK));
    CHECK(!!(fcntl(fd, F_GETFD) & FD_CLOEXEC) == !!(flags & SOCK_CLOEXEC));
    check_connection(fd, listens_on);
    return fd;
}

struct connection {
    int fd;
    size_t from, to;
    char bytes[50000];
};

/* Sends back what it can; false when the connection is over. */
static int serve_some(struct connection *it) {
    for (;;) {
        while (it->from < it->to) {
            ssize_t sent = write(it->fd, it->bytes + it->from, it->to - it->from);
            if (sent < 0 && errno == EAGAIN)
                return 1;
            if (sent < 0)
                return 0;
            it->from += sent;
        }
        ssize_t len = read(it->fd, it->bytes, sizeof it->bytes);
        if (len < 0 && errno == EAGAIN)
            return 1;
        if (len <= 0)
            return 0;
        it->from = 0;
        it->to = len;
    }
}

static void serve_by_epoll(const char *port, int by_edges) {
    int listener = listener_on(port, SOCK_NONBLOCK | SOCK_CLOEXEC), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | (by_edges ? EPOLLET | EPOLLOUT : 0)};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
    for (;;) {
        struct epoll_event events[16];
        int count = epoll_wait(set, events, 16, -1);
        CHECK(count > 0);
        for (int i = 0; i < count; i++) {
            struct connection *it = events[i].data.ptr;
            if (it) {
                if (serve_some(it)) {
                    event.events = it->from < it->to ? EPOLLOUT : EPOLLIN;
                    event.data.ptr = it;
                    if (!by_edges)
                        CHECK(epoll_ctl(set, EPOLL_CTL_MOD, it->fd, &event) == 0);
                } else {
                    CHECK(close(it->fd) == 0);
                    free(it);
                }
                continue;
            }
            /* By levels, one at a time: what is not taken is reported again. */
            int fd;
            while ((fd = accepted(listener, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
                CHECK((it = calloc(1, sizeof *it)));
                it->fd = fd;
                int edges = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
                event.events = by_edges ? edges : EPOLLIN;
                event.data.ptr = it;
                CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
                if (!by_edges)
                    break;
            }
            CHECK(fd >= 0 || errno == EAGAIN);
        }
    }
}

static void *serve_one(void *argument) {
    struct connection *it = argument;
    serve_some(it);
    CHECK(close(it->fd) == 0);
    free(it);
    return NULL;
}

static void serve_by_calls(const char *port, int forks) {
    int listener = listener_on(port, SOCK_CLOEXEC);
    for (;;) {
        struct connection *it = calloc(1, sizeof *it);
        it->fd = accepted(listener, 0);
        CHECK(it->fd >= 0);
        if (!forks) {
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, serve_one, it) == 0);
            CHECK(pthread_detach(thread) == 0);
            continue;
        }
        if (fork() == 0) {
            /* It is the same in a child, and by another number. */
            int other = dup(it->fd);
            CHECK(other >= 0 && close(it->fd) == 0);
            check_connection(other, listens_on);
            it->fd = other;
            serve_one(it);
            _exit(0);
        }
        CHECK(close(it->fd) == 0);
        free(it);
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
    }
}

/* An error is reported once: by an option, or by a call. */
static void tell_of_reset(const char *port) {
    int listener = listener_on(port, 0);
    for (int by_option = 0; by_option < 2; by_option++) {
        int fd = accepted(listener, 0), set = epoll_create1(0);
        CHECK(fd >= 0);
        char bytes[100];
        CHECK(read(fd, bytes, sizeof bytes) == 4);
        struct epoll_event event = {.events = EPOLLIN | EPOLLET};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        CHECK(write(fd, bytes, 4) == 4);
        while (!(event.events & EPOLLERR))
            CHECK(epoll_wait(set, &event, 1, -1) == 1);
        CHECK(event.events == (EPOLLIN | EPOLLERR | EPOLLHUP));
        if (by_option)
            CHECK(number(fd, SOL_SOCKET, SO_ERROR) == ECONNRESET);
        else
            CHECK(read(fd, bytes, sizeof bytes) == -1 && errno == ECONNRESET);
        CHECK(number(fd, SOL_SOCKET, SO_ERROR) == 0);
        CHECK(read(fd, bytes, sizeof bytes) == 0);
        CHECK(write(fd, bytes, sizeof bytes) == -1 && errno == EPIPE);
        socklen_t len = sizeof bytes;
        CHECK(getpeername(fd, (struct sockaddr *)bytes, &len) == -1 && errno == ENOTCONN);
        struct sockaddr_in local;
        CHECK(getsockname(fd, (struct sockaddr *)&local, &(socklen_t){sizeof local}) == 0);
        CHECK(local.sin_family == AF_INET && local.sin_port == listens_on);
        CHECK(close(fd) == 0);
    }
    printf("reset\n");
}

static volatile sig_atomic_t signals;

static void count(int signal) {
    (void)signal;
    signals++;
}

static void tell_of_signals(const char *port) {
    int listener = listener_on(port, 0);
    struct sigaction action = {.sa_handler = count};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    alarm(1);
    CHECK(accept(listener, NULL, NULL) == -1 && errno == EINTR && signals == 1);
    struct timeval soon = {.tv_usec = 100000};
    CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
    CHECK(accept(listener, NULL, NULL) == -1 && errno == EAGAIN);
    soon.tv_usec = 0;
    CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    printf("interrupted\n");
    fflush(stdout);
    int fd = accepted(listener, 0);
    CHECK(fd >= 0 && signals == 2);
    printf("accepted\n");
}

static struct sockaddr_in named(const char *ip, const char *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    CHECK(inet_pton(AF_INET, ip, &at.sin_addr) == 1);
    return at;
}

static char byte_at(size_t place) {
    return (char)(place * 31 + place / 251);
}

static void send_and_compare(int fd, size_t count) {
    size_t sent = 0, received = 0;
    static char bytes[70000];
    int is_over = 0;
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    if (count == 0)
        CHECK(shutdown(fd, SHUT_WR) == 0);
    while (!is_over) {
        struct pollfd polled = {.fd = fd, .events = POLLIN | (sent < count ? POLLOUT : 0)};
        CHECK(poll(&polled, 1, -1) == 1);
        if (polled.revents & POLLOUT && sent < count) {
            size_t len = count - sent < sizeof bytes ? count - sent : sizeof bytes;
            for (size_t i = 0; i < len; i++)
                bytes[i] = byte_at(sent + i);
            ssize_t now = write(fd, bytes, len);
            CHECK(now > 0 || errno == EAGAIN);
            sent += now > 0 ? now : 0;
            if (sent == count)
                CHECK(shutdown(fd, SHUT_WR) == 0);
        }
        if (polled.revents & POLLIN) {
            ssize_t now = read(fd, bytes, sizeof bytes);
            CHECK(now >= 0 || errno == EAGAIN);
            for (ssize_t i = 0; i < now; i++)
                CHECK(bytes[i] == byte_at(received + i));
            received += now > 0 ? now : 0;
            is_over = now == 0;
        }
    }
    CHECK(sent == count && received == count);
}

static void be_client(const char *ip, const char *port, const char *count, int flags) {
    struct sockaddr_in at = named(ip, port);
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    CHECK(fd >= 0);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    int done = connect(fd, (struct sockaddr *)&at, sizeof at);
    if (flags) {
        CHECK(done == -1 && errno == EINPROGRESS);
        struct epoll_event event = {.events = EPOLLOUT | EPOLLIN | EPOLLET};
        int set = epoll_create1(0);
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        CHECK(epoll_wait(set, &event, 1, -1) == 1);
        if (event.events != EPOLLOUT)
            errx(1, "events %x, error %d", event.events, number(fd, SOL_SOCKET, SO_ERROR));
        CHECK(number(fd, SOL_SOCKET, SO_ERROR) == 0);
        CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    } else {
        CHECK(done == 0);
    }
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == -1 && errno == EISCONN);
    check_connection(fd, 0);
    struct sockaddr_in peer;
    CHECK(getpeername(fd, (struct sockaddr *)&peer, &(socklen_t){sizeof peer}) == 0);
    CHECK(peer.sin_port == at.sin_port && peer.sin_addr.s_addr == at.sin_addr.s_addr);
    send_and_compare(fd, strtoul(count, NULL, 10));
    CHECK(close(fd) == 0);
}

static void be_refused(const char *ip, const char *port) {
    struct sockaddr_in at = named(ip, port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    for (int i = 0; i < 3; i++) {
        CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == -1 && errno == ECONNREFUSED);
        CHECK(number(fd, SOL_SOCKET, SO_ERROR) == 0);
    }
    CHECK(close(fd) == 0);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == -1 && errno == EINPROGRESS);
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
    int set = epoll_create1(0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.events & EPOLLOUT);
    CHECK(getpeername(fd, (struct sockaddr *)&at, &(socklen_t){sizeof at}) == -1);
    CHECK(errno == ENOTCONN);
    CHECK(number(fd, SOL_SOCKET, SO_ERROR) == ECONNREFUSED);
    CHECK(number(fd, SOL_SOCKET, SO_ERROR) == 0);
    struct pollfd polled = {.fd = fd, .events = POLLOUT};
    CHECK(poll(&polled, 1, -1) == 1 && polled.revents == (POLLOUT | POLLHUP));
    CHECK(close(fd) == 0);
    /* connect says how it went, once, and then connects again. */
    at = named(ip, port);
    polled.fd = fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == -1 && errno == EINPROGRESS);
    CHECK(poll(&polled, 1, -1) == 1);
    while (connect(fd, (struct sockaddr *)&at, sizeof at) == -1 && errno == EALREADY)
        continue;
    CHECK(errno == ECONNREFUSED);
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == -1 && errno == EINPROGRESS);
    CHECK(close(fd) == 0);
}

/* getpid, by its number for 32 bits. */
static void be_of_32_bits(void) {
#ifdef __x86_64__
    long number = 20;
    __asm__ volatile("int $0x80" : "+a"(number) : : "memory", "r8", "r9", "r10", "r11");
#endif
}

int main(int count, char **words) {
    const char *way = count > 2 ? words[1] : "";
    signal(SIGPIPE, SIG_IGN);
    if (!strcmp(way, "level"))
        serve_by_epoll(words[2], 0);
    else if (!strcmp(way, "edge"))
        serve_by_epoll(words[2], 1);
    else if (!strcmp(way, "threads"))
        serve_by_calls(words[2], 0);
    else if (!strcmp(way, "fork"))
        serve_by_calls(words[2], 1);
    else if (!strcmp(way, "reset"))
        tell_of_reset(words[2]);
    else if (!strcmp(way, "signals"))
        tell_of_signals(words[2]);
    else if (!strcmp(way, "blocking") && count == 5)
        be_client(words[2], words[3], words[4], 0);
    else if (!strcmp(way, "nonblocking") && count == 5)
        be_client(words[2], words[3], words[4], SOCK_NONBLOCK);
    else if (!strcmp(way, "32"))
        be_of_32_bits();
    else if (!strcmp(way, "refused") && count == 4)
        be_refused(words[2], words[3]);
    else
        errx(1, "usage: see the top of sockets.c");
    return 0;
}
