/*
 * What a TCP socket does in states that calls bring it into, one line for each step: on the kernel
 * with the argument "kernel", with "split" on the split stack. Both have to print the same.
 */
#include "stacks.h"

static void say_error(int fd)
{
    int error = -1;
    socklen_t len = sizeof error;
    if (on.getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
        die("SO_ERROR");
    printf("  SO_ERROR: %s\n", name_of(error));
}

static void say_events(int fd)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
    if (on.poll(&entry, 1, 0) < 0)
        die("poll");
    printf("  poll:%s%s%s%s%s\n", entry.revents & POLLIN ? " in" : "",
           entry.revents & POLLOUT ? " out" : "", entry.revents & POLLRDHUP ? " rdhup" : "",
           entry.revents & POLLERR ? " err" : "", entry.revents & POLLHUP ? " hup" : "");
}

/* All that can be asked of a socket without changing it. `known` is a port to recognise. */
static void say_state(int fd, int known)
{
    struct sockaddr_in found;
    socklen_t len = sizeof found;
    int listens = -1;
    say_events(fd);
    if (on.getsockname(fd, (struct sockaddr *)&found, &len) < 0)
        die("getsockname");
    int port = ntohs(found.sin_port);
    printf("  here: %s %s\n", found.sin_addr.s_addr ? "127.0.0.1" : "0.0.0.0",
           port == 0 ? "none" : port == known ? "the same" : "chosen");
    len = sizeof found;
    say("  getpeername", on.getpeername(fd, (struct sockaddr *)&found, &len));
    len = sizeof listens;
    if (on.getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) < 0)
        die("SO_ACCEPTCONN");
    printf("  SO_ACCEPTCONN: %d\n", listens);
}

/* What becomes of bytes on it. */
static void say_bytes(int fd)
{
    char byte;
    say("  recv", on.recv(fd, &byte, 1, MSG_DONTWAIT));
    say("  send", on.send(fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL));
}

/* Bytes go both ways. */
static void say_exchange(int fd, int listener)
{
    char got[6] = "";
    int peer = take(listener);
    say("  send", on.send(fd, "there", 5, MSG_NOSIGNAL));
    say("  recv", on.recv(peer, got, 5, MSG_WAITALL));
    say("  send", on.send(peer, got, 5, MSG_NOSIGNAL));
    wait_for(fd, POLLIN);
    say("  recv", on.recv(fd, got, 5, MSG_WAITALL));
    printf("  got %s\n", got);
    on.close(peer);
}

static void connect_again_after_a_refusal(void)
{
    int listener = new_listener(0, 5), fd = new_socket(0), closed = closed_port();
    say("connect to a closed port", connect_to(fd, closed));
    say_state(fd, 0);
    say_error(fd);
    say_bytes(fd);
    say("once more", connect_to(fd, closed));
    say("connect to a listener", connect_to(fd, port_of(listener)));
    say_exchange(fd, listener);
    say("connect again", connect_to(fd, port_of(listener)));
    on.close(fd);
    on.close(listener);
}

static void connect_again_without_blocking(int takes_error)
{
    int listener = new_listener(0, 5), fd = new_socket(SOCK_NONBLOCK), closed = closed_port();
    say("connect to a closed port", connect_to(fd, closed));
    wait_for(fd, POLLOUT);
    say_events(fd);
    if (takes_error) {
        say_error(fd);
        say_events(fd);
    }
    say("connect to a listener", connect_to(fd, port_of(listener)));
    say_state(fd, 0);
    say("and again", connect_to(fd, port_of(listener)));
    wait_for(fd, POLLOUT);
    say_error(fd);
    say("and again", connect_to(fd, port_of(listener)));
    say_exchange(fd, listener);
    on.close(fd);
    on.close(listener);
}

static void a_bound_socket_keeps_its_port(int is_named)
{
    int listener = new_listener(0, 5), fd = new_socket(0), closed = closed_port();
    int other = new_socket(0);
    say("bind", bind_to(fd, is_named ? closed_port() : 0));
    int port = port_of(fd);
    say("connect to a closed port", connect_to(fd, closed));
    say_state(fd, port);
    say("bind another to it", bind_to(other, port));
    say("bind again", bind_to(fd, 0));
    say("connect to a listener", connect_to(fd, port_of(listener)));
    say_exchange(fd, listener);
    on.close(other);
    on.close(fd);
    on.close(listener);
}

static void listen_after_a_refusal(void)
{
    int fd = new_socket(0);
    say("connect to a closed port", connect_to(fd, closed_port()));
    say("bind", bind_to(fd, 0));
    say("listen", on.listen(fd, 5));
    int client = new_socket(0);
    say("connect", connect_to(client, port_of(fd)));
    say_exchange(client, fd);
    say_events(fd);
    on.close(client);
    on.close(fd);
}

static void dissolve_what_is_not_connected(void)
{
    int listener = new_listener(0, 5), fd = new_socket(0);
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    say("AF_UNSPEC", dissolve(fd));
    say("AF_UNSPEC, short", on.connect(fd, &nowhere, sizeof nowhere.sa_family));
    say("shorter", on.connect(fd, &nowhere, 1));
    say_state(fd, 0);
    say_error(fd);
    say("bind", bind_to(fd, closed_port()));
    int port = port_of(fd);
    say("AF_UNSPEC", dissolve(fd));
    say_state(fd, port);
    say_error(fd);
    say("connect", connect_to(fd, port_of(listener)));
    say_exchange(fd, listener);
    on.close(fd);
    on.close(listener);
}

static void dissolve_a_connection(int is_bound, int is_accepted)
{
    int listener = new_listener(0, 5), client = new_socket(0);
    if (is_bound)
        say("bind", bind_to(client, closed_port()));
    int port = is_accepted ? port_of(listener) : is_bound ? port_of(client) : 0;
    say("connect", connect_to(client, port_of(listener)));
    int accepted = take(listener);
    int fd = is_accepted ? accepted : client, peer = is_accepted ? client : accepted;
    say("send", on.send(peer, "unread", 6, MSG_NOSIGNAL));
    wait_for(fd, POLLIN);
    say("AF_UNSPEC", dissolve(fd));
    say_state(fd, port);
    say_error(fd);
    say_error(fd);
    say_bytes(fd);
    wait_for(peer, POLLHUP);
    printf("its peer:\n");
    say_events(peer);
    say_error(peer);
    say_bytes(peer);
    say("connect to a closed port", connect_to(fd, closed_port()));
    say("connect to a listener", connect_to(fd, port_of(listener)));
    say_exchange(fd, listener);
    say_error(fd);
    on.close(client);
    on.close(accepted);
    on.close(listener);
}

/* Connections that no one accepts, until one finds no room. */
static int connecting(int listener, int *others, int most)
{
    int port = port_of(listener);
    for (int count = 0; count < most; count++) {
        int fd = new_socket(SOCK_NONBLOCK);
        if (connect_to(fd, port) < 0 && errno != EINPROGRESS)
            die("connect");
        struct pollfd entry = {.fd = fd, .events = POLLOUT};
        if (on.poll(&entry, 1, 300) == 0)
            return fd;
        others[count] = fd;
    }
    errno = EOVERFLOW;
    die("the queue");
    return -1;
}

static void end_what_is_being_opened(int shuts)
{
    int others[20] = {0}, listener = new_listener(0, 1);
    int fd = connecting(listener, others, 20);
    say_state(fd, 0);
    say("connect", connect_to(fd, port_of(listener)));
    if (shuts)
        say("shutdown", on.shutdown(fd, SHUT_RDWR));
    else
        say("AF_UNSPEC", dissolve(fd));
    say_state(fd, 0);
    say_error(fd);
    say_bytes(fd);
    on.close(listener);
    for (int place = 0; place < 20; place++)
        if (others[place] > 0)
            on.close(others[place]);
    listener = new_listener(0, 5);
    say("connect", connect_to(fd, port_of(listener)));
    wait_for(fd, POLLOUT);
    say_error(fd);
    say("connect", connect_to(fd, port_of(listener)));
    on.close(fd);
    on.close(listener);
}

/* `way`: shutdown's argument, or -1 for AF_UNSPEC. */
static void a_listener_listens_again(int way, int is_bound)
{
    int listener = new_socket(SOCK_NONBLOCK), waiting = new_socket(0), later = new_socket(0);
    if (is_bound)
        say("bind", bind_to(listener, closed_port()));
    say("listen", on.listen(listener, 5));
    int port = port_of(listener);
    say("connect", connect_to(waiting, port));
    wait_for(listener, POLLIN);
    say("end", way < 0 ? dissolve(listener) : on.shutdown(listener, way));
    say_state(listener, port);
    say_error(listener);
    say_bytes(listener);
    int accepted = on.accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    say("accept", accepted < 0 ? -1 : 0);
    if (accepted >= 0)
        on.close(accepted);
    if (way != SHUT_WR) {
        wait_for(waiting, POLLHUP);
        printf("who has waited:\n");
        say_events(waiting);
        say_error(waiting);
        say("connect", connect_to(later, port));
    }
    say("listen again", on.listen(listener, 5));
    int again = port_of(listener);
    say_state(listener, port);
    say("connect", connect_to(later, again));
    say_exchange(later, listener);
    on.close(later);
    on.close(waiting);
    on.close(listener);
}

static void shut_down_what_is_not_connected(void)
{
    int listener = new_listener(0, 5);
    for (int way = SHUT_RD; way <= SHUT_RDWR; way++) {
        int fd = new_socket(0);
        say("shutdown", on.shutdown(fd, way));
        on.close(fd);
        fd = new_socket(0);
        say("connect to a closed port", connect_to(fd, closed_port()));
        say("shutdown", on.shutdown(fd, way));
        on.close(fd);
    }
    on.close(listener);
}

static int lowat_of(int fd)
{
    int bytes = -1;
    socklen_t len = sizeof bytes;
    if (on.getsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, &len) < 0)
        die("TCP_NOTSENT_LOWAT");
    return bytes;
}

/* Sends until it would block. */
static long fill(int fd)
{
    static const char bytes[1000];
    long sent = 0, count;
    while ((count = on.send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
        sent += count;
    return sent;
}

static long drain(int fd)
{
    static char bytes[100000];
    long got = 0, count;
    while ((count = on.recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
        got += count;
    return got;
}

static void bytes_that_were_not_sent_are_bounded(void)
{
    int listener = new_listener(0, 5), small = 8192, large = 400000, lowat = 8000;
    on.setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    long filled[2];
    for (int is_set = 0; is_set < 2; is_set++) {
        int fd = new_socket(0);
        on.setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
        printf("TCP_NOTSENT_LOWAT: %d\n", lowat_of(fd));
        if (is_set)
            say("set it", on.setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof lowat));
        printf("TCP_NOTSENT_LOWAT: %d\n", lowat_of(fd));
        say("connect", connect_to(fd, port_of(listener)));
        int peer = take(listener);
        filled[is_set] = fill(fd);
        /* What the peer has room for may still go. */
        for (int turn = 0; turn < 20; turn++) {
            struct pollfd entry = {.fd = fd, .events = POLLOUT};
            on.poll(&entry, 1, 10);
            filled[is_set] += fill(fd);
        }
        say_events(fd);
        long got = 0;
        while (got < filled[is_set]) {
            wait_for(peer, POLLIN);
            got += drain(peer);
        }
        wait_for(fd, POLLOUT);
        say_events(fd);
        if (is_set) {
            /* Off again: the buffer alone counts. */
            int off = 0;
            say("unset it", on.setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &off, sizeof off));
            long more = fill(fd);
            printf("more than before: %d\n", more > filled[1]);
        }
        on.close(fd);
        on.close(peer);
    }
    printf("bounded: %d\n", filled[1] < filled[0] / 2);
    on.close(listener);
}

/* Runs the case of a number on one of the stacks; ends with 2 if there is none. */
int main(int count, char **arguments)
{
    if (count != 3)
        return 1;
    choose(strcmp(arguments[1], "kernel") == 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    settle();
    int number = atoi(arguments[2]);
#define RUN(it)                 \
    do {                        \
        if (number-- == 0) {    \
            printf(#it "\n");   \
            it;                 \
            return 0;           \
        }                       \
    } while (0)
    RUN(connect_again_after_a_refusal());
    RUN(connect_again_without_blocking(0));
    RUN(connect_again_without_blocking(1));
    RUN(a_bound_socket_keeps_its_port(0));
    RUN(a_bound_socket_keeps_its_port(1));
    RUN(listen_after_a_refusal());
    RUN(dissolve_what_is_not_connected());
    RUN(dissolve_a_connection(0, 0));
    RUN(dissolve_a_connection(1, 0));
    RUN(dissolve_a_connection(0, 1));
    RUN(end_what_is_being_opened(0));
    RUN(end_what_is_being_opened(1));
    RUN(a_listener_listens_again(-1, 1));
    RUN(a_listener_listens_again(-1, 0));
    RUN(a_listener_listens_again(SHUT_RD, 1));
    RUN(a_listener_listens_again(SHUT_RD, 0));
    RUN(a_listener_listens_again(SHUT_RDWR, 1));
    RUN(a_listener_listens_again(SHUT_WR, 1));
    RUN(shut_down_what_is_not_connected());
    RUN(bytes_that_were_not_sent_are_bounded());
    return 2;
}
