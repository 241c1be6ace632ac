/*
 * Says what becomes of TCP sockets that processes pass to each other by SCM_RIGHTS, where one of
 * them began before there was any socket: with split sockets the same as with those of the kernel.
 */
#include "programs.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a child talks to its parent by. */
#define CHANNEL 9

static void pass(int by, int fd)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof fd)];
    } control = {.head = {.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET,
                          .cmsg_type = SCM_RIGHTS}};
    struct iovec byte = {"x", 1};
    struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    check(sendmsg(by, &message, 0), "sendmsg");
    close(fd);
}

static int take(int by)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    char byte;
    struct iovec room = {&byte, 1};
    struct msghdr message = {.msg_iov = &room, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    int fd;
    check(recvmsg(by, &message, 0), "recvmsg");
    if (message.msg_controllen < CMSG_LEN(sizeof fd)) {
        fprintf(stderr, "no descriptor came\n");
        exit(1);
    }
    memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
    return fd;
}

static int listener(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = stream();
    check(bind(fd, (struct sockaddr *)&at, sizeof at), "bind");
    check(listen(fd, 8), "listen");
    return fd;
}

static int connected_to(int by)
{
    struct sockaddr_in at = {0};
    socklen_t len = sizeof at;
    int fd = stream();
    check(getsockname(by, (struct sockaddr *)&at, &len), "getsockname");
    check(connect(fd, (struct sockaddr *)&at, sizeof at), "connect");
    return fd;
}

static void describe(const char *who, int fd)
{
    int family = 0, type = 0, listens = 0;
    socklen_t len = sizeof family;
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &len);
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len);
    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len);
    printf("%s: family %d, type %d, listens %d\n", who, family, type, listens);
    fflush(stdout);
}

/* Sends a line by a connection, and ends it. */
static void greet(int fd)
{
    check(write(fd, "hello\n", 6), "write");
    close(fd);
}

static void say_received(const char *who, int fd)
{
    char bytes[64];
    size_t len = 0;
    for (ssize_t got; (got = read(fd, bytes + len, sizeof bytes - len)) > 0;)
        len += got;
    printf("%s: received %.*s", who, (int)len, bytes);
    fflush(stdout);
    close(fd);
}

/* A child takes a connection and a listener, uses both, and passes a connection back. */
static void child_takes(const char *who)
{
    int by, fd = take(CHANNEL);
    describe(who, fd);
    greet(fd);
    by = take(CHANNEL);
    describe(who, by);
    greet(check(accept(by, NULL, NULL), "accept"));
    close(by);
    pass(CHANNEL, take(CHANNEL));
}

static void parent_passes(const char *who, int channel)
{
    int by = listener(), to = connected_to(by), back;
    pass(channel, check(accept(by, NULL, NULL), "accept"));
    say_received(who, to);
    to = connected_to(by);
    pass(channel, dup(by));
    say_received(who, to);
    to = connected_to(by);
    pass(channel, check(accept(by, NULL, NULL), "accept"));
    back = take(channel);
    describe("back", back);
    greet(back);
    say_received(who, to);
    close(by);
}

/* A child makes a listener, and passes it on before its parent has made any. */
static void child_gives(void)
{
    pass(CHANNEL, listener());
}

static void parent_takes(int channel)
{
    int by = take(channel), to;
    describe("parent", by);
    to = connected_to(by);
    greet(check(accept(by, NULL, NULL), "accept"));
    say_received("parent", to);
    close(by);
}

/* Both have sockets of their own before one is passed. */
static void child_has_own(void)
{
    int by = listener(), to = connected_to(by);
    check(write(CHANNEL, "x", 1), "write");
    greet(take(CHANNEL));
    greet(check(accept(by, NULL, NULL), "accept"));
    say_received("own", to);
    check(write(CHANNEL, "x", 1), "write");
}

static void parent_has_own(int channel)
{
    char byte;
    int by = listener(), to = connected_to(by);
    check(read(channel, &byte, 1), "read");
    pass(channel, check(accept(by, NULL, NULL), "accept"));
    /* Lines of both have an order. */
    check(read(channel, &byte, 1), "read");
    say_received("parent", to);
    close(by);
}

/* One fetches a connection out of the other (pidfd_getfd). */
static void child_fetches(void)
{
    int fd, process = check(syscall(SYS_pidfd_open, getppid(), 0), "pidfd_open");
    check(read(CHANNEL, &fd, sizeof fd), "read");
    fd = check(syscall(SYS_pidfd_getfd, process, fd, 0), "pidfd_getfd");
    describe("fetched", fd);
    greet(fd);
    check(write(CHANNEL, "x", 1), "write");
}

static void parent_is_fetched_from(int channel)
{
    char byte;
    int by = listener(), to = connected_to(by), fd = check(accept(by, NULL, NULL), "accept");
    check(write(channel, &fd, sizeof fd), "write");
    check(read(channel, &byte, 1), "read");
    close(fd);
    say_received("parent", to);
    close(by);
}

static void child(const char *role)
{
    if (strcmp(role, "gives") == 0)
        child_gives();
    else if (strcmp(role, "own") == 0)
        child_has_own();
    else if (strcmp(role, "fetches") == 0)
        child_fetches();
    else
        child_takes(role);
    exit(0);
}

/* A child in its role, as another image or not; returns the end of its parent. */
static int start(const char *role, int is_image)
{
    int ends[2];
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    if (check(fork(), "fork") > 0) {
        close(ends[1]);
        return ends[0];
    }
    dup2(ends[1], CHANNEL);
    closefrom(CHANNEL + 1);
    if (!is_image)
        child(role);
    execl("/proc/self/exe", "passed", role, NULL);
    exit(1);
}

int main(int count, char **arguments)
{
    int gives, takes, forked, own, fetches, failed = 0;
    if (count > 1)
        child(arguments[1]);
    gives = start("gives", 1);
    takes = start("image", 1);
    forked = start("forked", 0);
    own = start("own", 1);
    fetches = start("fetches", 1);
    parent_takes(gives);
    parent_passes("parent", takes);
    parent_passes("parent", forked);
    parent_has_own(own);
    parent_is_fetched_from(fetches);
    for (int status; wait(&status) > 0;)
        failed += status != 0;
    printf("%d children failed\n", failed);
    return 0;
}
