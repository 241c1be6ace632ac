/*
 * TCP sockets of one of two stacks, the kernel's or the split one, and what calls on them return:
 * for programs that print the same on both.
 */
#ifndef STACKS_H
#define STACKS_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <linux/sockios.h>

#include <splitway.h>

#ifndef TCP_NOTSENT_LOWAT
#define TCP_NOTSENT_LOWAT 25
#endif

/* The calls of one of the stacks. */
static struct {
    int is_kernel;
    int (*socket)(int, int, int);
    int (*bind)(int, const struct sockaddr *, socklen_t);
    int (*listen)(int, int);
    int (*connect)(int, const struct sockaddr *, socklen_t);
    int (*accept)(int, struct sockaddr *, socklen_t *);
    int (*accept4)(int, struct sockaddr *, socklen_t *, int);
    int (*getsockname)(int, struct sockaddr *, socklen_t *);
    int (*getpeername)(int, struct sockaddr *, socklen_t *);
    int (*getsockopt)(int, int, int, void *, socklen_t *);
    int (*setsockopt)(int, int, int, const void *, socklen_t);
    int (*shutdown)(int, int);
    ssize_t (*send)(int, const void *, size_t, int);
    ssize_t (*sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
    ssize_t (*sendmsg)(int, const struct msghdr *, int);
    ssize_t (*recv)(int, void *, size_t, int);
    ssize_t (*recvfrom)(int, void *, size_t, int, struct sockaddr *, socklen_t *);
    ssize_t (*recvmsg)(int, struct msghdr *, int);
    ssize_t (*read)(int, void *, size_t);
    ssize_t (*write)(int, const void *, size_t);
    ssize_t (*readv)(int, const struct iovec *, int);
    ssize_t (*writev)(int, const struct iovec *, int);
    ssize_t (*sendfile)(int, int, off_t *, size_t);
    int (*epoll_create1)(int);
    int (*epoll_ctl)(int, int, int, struct epoll_event *);
    int (*epoll_wait)(int, struct epoll_event *, int, int);
    int (*poll)(struct pollfd *, nfds_t, int);
    int (*close)(int);
} on;

static inline void choose(int is_kernel)
{
#define USE(call) on.call = is_kernel ? (void *)call : (void *)sw_##call
    USE(socket);
    USE(bind);
    USE(listen);
    USE(connect);
    USE(accept);
    USE(accept4);
    USE(getsockname);
    USE(getpeername);
    USE(getsockopt);
    USE(setsockopt);
    USE(shutdown);
    USE(send);
    USE(sendto);
    USE(sendmsg);
    USE(recv);
    USE(recvfrom);
    USE(recvmsg);
    USE(read);
    USE(write);
    USE(readv);
    USE(writev);
    USE(sendfile);
    USE(epoll_create1);
    USE(epoll_ctl);
    USE(epoll_wait);
    USE(poll);
    USE(close);
    on.is_kernel = is_kernel;
}

static inline int on_fcntl(int fd, int command, long argument)
{
    return on.is_kernel ? fcntl(fd, command, argument) : sw_fcntl(fd, command, argument);
}

static inline int on_ioctl(int fd, unsigned long request, void *argument)
{
    return on.is_kernel ? ioctl(fd, request, argument) : sw_ioctl(fd, request, argument);
}

static inline void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static inline const char *name_of(int number)
{
    return number == 0 ? "0" : strerrorname_np(number);
}

/* What a call returned. */
static inline void say(const char *what, long result)
{
    if (result < 0)
        printf("%s: %s\n", what, name_of(errno));
    else
        printf("%s: %ld\n", what, result);
}

static inline struct sockaddr_in at(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

static inline int new_socket(int flags)
{
    int fd = on.socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    if (fd < 0)
        die("socket");
    return fd;
}

static inline int bind_to(int fd, int port)
{
    struct sockaddr_in here = at(port);
    return on.bind(fd, (struct sockaddr *)&here, sizeof here);
}

static inline int connect_to(int fd, int port)
{
    struct sockaddr_in there = at(port);
    return on.connect(fd, (struct sockaddr *)&there, sizeof there);
}

static inline int dissolve(int fd)
{
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    return on.connect(fd, &nowhere, sizeof nowhere);
}

static inline int port_of(int fd)
{
    struct sockaddr_in here;
    socklen_t len = sizeof here;
    if (on.getsockname(fd, (struct sockaddr *)&here, &len) < 0)
        die("getsockname");
    return ntohs(here.sin_port);
}

/* A listener on a port that is chosen, or the one that is named. */
static inline int new_listener(int port, int backlog)
{
    int fd = new_socket(SOCK_NONBLOCK), one = 1;
    if (on.setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 || bind_to(fd, port) < 0
        || on.listen(fd, backlog) < 0)
        die("listen");
    return fd;
}

/* A port that no socket has. */
static inline int closed_port(void)
{
    int fd = new_listener(0, 1), port = port_of(fd);
    on.close(fd);
    return port;
}

/* Waits for some of the events; what else there is shows as well. */
static inline short wait_for(int fd, short events)
{
    struct pollfd entry = {.fd = fd, .events = events};
    if (on.poll(&entry, 1, 10000) < 0)
        die("poll");
    return entry.revents;
}

static inline int take(int listener)
{
    wait_for(listener, POLLIN);
    int fd = on.accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        die("accept");
    return fd;
}

/* The broker lets go of the descriptors that it has made while the program uses them already: until
 * it has, none of them is the last of its socket. */
static inline void settle(void)
{
    int port = closed_port(), fd = new_socket(0);
    for (int turn = 0; bind_to(fd, port) < 0; turn++) {
        if (turn == 1000)
            die("a closed port stays bound");
        poll(NULL, 0, 10);
    }
    on.close(fd);
}

#endif
