/*
 * Says what calls do that programs seldom make, a line for each: on split sockets the same as on
 * those of the kernel.
 *
 *     calls           calls on sockets of loopback addresses
 *     calls PORT      connects to a server from a port of its own
 */
#include "programs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_in where(int fd)
{
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    check(getsockname(fd, (struct sockaddr *)&at, &len), "getsockname");
    return at;
}

/* A listener on a port of its own. */
static int listener(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    int fd = stream();
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(fd, (struct sockaddr *)&at, sizeof at), "bind");
    check(listen(fd, 8), "listen");
    return fd;
}

/* Both ends of a connection by a listener. */
static void connect_by(int listener, int ends[2])
{
    struct sockaddr_in at = where(listener);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ends[0] = stream();
    check(connect(ends[0], (struct sockaddr *)&at, sizeof at), "connect");
    ends[1] = check(accept(listener, NULL, NULL), "accept");
}

/* A listener that was never bound has a port of all addresses. */
static void listen_unbound(void)
{
    int listener = stream(), ends[2];
    check(listen(listener, 1), "listen");
    struct sockaddr_in at = where(listener);
    printf("listens at %s, port %s\n", inet_ntoa(at.sin_addr), at.sin_port ? "chosen" : "0");
    connect_by(listener, ends);
    check(send(ends[0], "x", 1, 0), "send");
    char byte = 0;
    check(recv(ends[1], &byte, 1, 0), "recv");
    printf("received %c\n", byte);
    close(ends[0]);
    close(ends[1]);
    close(listener);
}

/* select(2) says how much of its timeout is left. */
static void select_left(void)
{
    int by = listener(), ends[2];
    connect_by(by, ends);
    for (int ready = 0; ready < 2; ready++) {
        struct timeval left = {.tv_sec = ready * 1000, .tv_usec = 10000};
        fd_set set;
        FD_ZERO(&set);
        FD_SET(ends[1], &set);
        if (ready)
            check(send(ends[0], "x", 1, 0), "send");
        int found = check(select(ends[1] + 1, &set, NULL, NULL, &left), "select");
        printf("select %d: %s left\n", found,
               left.tv_sec > 900 && left.tv_sec <= 1000 ? "most"
               : left.tv_sec || left.tv_usec            ? "something"
                                                        : "nothing");
    }
    close(ends[0]);
    close(ends[1]);
    close(by);
}

static atomic_int signals;

static void note(int signal)
{
    (void)signal;
    atomic_fetch_add(&signals, 1);
}

/* A signal that waits ends ppoll(2), pselect(2) and epoll_pwait(2), whose mask lets it through. */
static void masked(void)
{
    struct sigaction action = {.sa_handler = note};
    struct timespec timeout = {.tv_sec = 5};
    int by = listener(), ends[2];
    sigset_t blocked, none;
    fd_set set;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    check(sigaction(SIGUSR1, &action, NULL), "sigaction");
    check(sigprocmask(SIG_BLOCK, &blocked, NULL), "sigprocmask");
    connect_by(by, ends);
    struct pollfd polled = {.fd = ends[1], .events = POLLIN};
    raise(SIGUSR1);
    int found = ppoll(&polled, 1, &timeout, &none);
    printf("ppoll %d %s, %d signals\n", found, strerror(errno), atomic_load(&signals));
    raise(SIGUSR1);
    FD_ZERO(&set);
    FD_SET(ends[1], &set);
    found = pselect(ends[1] + 1, &set, NULL, NULL, &timeout, &none);
    printf("pselect %d %s, %d signals\n", found, strerror(errno), atomic_load(&signals));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    int events = check(epoll_create1(0), "epoll_create1");
    check(epoll_ctl(events, EPOLL_CTL_ADD, ends[1], &event), "epoll_ctl");
    raise(SIGUSR1);
    found = epoll_pwait(events, &event, 1, 5000, &none);
    printf("epoll_pwait %d %s, %d signals\n", found, strerror(errno), atomic_load(&signals));
    polled.fd = events;
    raise(SIGUSR1);
    found = ppoll(&polled, 1, &timeout, &none);
    printf("ppoll of a set %d %s, %d signals\n", found, strerror(errno), atomic_load(&signals));
    check(send(ends[0], "x", 1, MSG_NOSIGNAL), "send");
    found = ppoll(&polled, 1, &timeout, &none);
    printf("ppoll of a set %d, ", found);
    printf("epoll_pwait %d\n", epoll_pwait(events, &event, 1, 5000, &none));
    close(events);
    close(ends[0]);
    close(ends[1]);
    close(by);
}

static atomic_int is_over;

static void *duplicate(void *of)
{
    struct stat want, got;
    int lost = 0;
    check(fstat(*(int *)of, &want), "fstat");
    while (!atomic_load(&is_over)) {
        int fd = dup(*(int *)of);
        lost += fd < 0 || fstat(fd, &got) < 0 || got.st_ino != want.st_ino;
        close(fd);
    }
    return (void *)(long)lost;
}

/* What dup2(2) puts a descriptor in the place of has its number until then. */
static void dup_over(void)
{
    int pipes[2], file = check(open("/dev/null", O_RDWR), "open");
    void *lost = NULL;
    pthread_t thread;
    check(pipe(pipes), "pipe");
    pthread_create(&thread, NULL, duplicate, &pipes[0]);
    for (int turn = 0; turn < 2000; turn++) {
        int fd = listener();
        check(dup2(file, fd), "dup2");
        close(fd);
    }
    atomic_store(&is_over, 1);
    pthread_join(thread, &lost);
    printf("%ld descriptors lost\n", (long)lost);
}

/* Connects from a port that it has bound, to one of the loopback address. */
static void connect_bound(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    struct epoll_event event = {.events = EPOLLOUT, .data.u64 = 7};
    int fd = check(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), "socket");
    int on = 1, error = -1, set = check(epoll_create1(0), "epoll_create1");
    socklen_t len = sizeof on;
    check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "setsockopt");
    check(bind(fd, (struct sockaddr *)&at, sizeof at), "bind");
    in_port_t from = where(fd).sin_port;
    check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0 && errno != EINPROGRESS)
        check(-1, "connect");
    memset(&event, 0, sizeof event);
    check(epoll_wait(set, &event, 1, 10000), "epoll_wait");
    on = 0;
    check(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &len), "TCP_NODELAY");
    check(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len), "SO_ERROR");
    printf("EPOLLOUT %d of %d, error %d, TCP_NODELAY %d, %s port\n", !!(event.events & EPOLLOUT),
           (int)event.data.u64, error, !!on, where(fd).sin_port == from ? "the same" : "another");
    check(send(fd, "hello", 5, MSG_NOSIGNAL), "send");
    close(fd);
    close(set);
}

static void say(const char *what, ssize_t result)
{
    printf("%s %d %s\n", what, (int)result, result < 0 ? strerror(errno) : "");
}

/* Vectors without a position, marks of urgent data, and a fork without handlers. */
static void seldom(void)
{
    int by = listener(), ends[2], status;
    char first[3] = "", second[4] = "", all[7];
    struct iovec out[] = {{"abc", 3}, {"defg", 4}}, in[] = {{first, 3}, {second, 4}};
    connect_by(by, ends);
    say("pwritev2", pwritev2(ends[0], out, 2, -1, 0));
    say("at a position", pwritev2(ends[0], out, 2, 5, 0));
    say("with a flag that there is not", pwritev2(ends[0], out, 2, -1, 1 << 20));
    say("all", recv(ends[1], all, 7, MSG_PEEK | MSG_WAITALL));
    say("preadv2", preadv2(ends[1], in, 2, -1, 0));
    say("at once", preadv2(ends[1], in, 2, -1, RWF_NOWAIT));
    printf("%.3s %.4s\n", first, second);
    say("sockatmark", sockatmark(ends[1]));
    say("of a listener", sockatmark(by));
    pid_t child = check(_Fork(), "_Fork");
    if (child == 0)
        _exit(send(ends[0], "child", 5, MSG_NOSIGNAL) != 5);
    check(waitpid(child, &status, 0), "waitpid");
    say("_Fork", status);
    say("from the child", recv(ends[1], all, 5, MSG_WAITALL));
    close(ends[0]);
    close(ends[1]);
    close(by);
}

/* Resets a connection, and waits until its other end knows. */
static void reset(int ends[2])
{
    struct linger now = {.l_onoff = 1};
    struct pollfd polled = {ends[1], 0, 0};
    check(setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &now, sizeof now), "SO_LINGER");
    close(ends[0]);
    check(poll(&polled, 1, -1), "poll");
}

/* A call that has received bytes leaves the error of the connection to the next one. */
static void reset_behind_bytes(void)
{
    static const char *const ways[] = {"recv", "recvmsg", "recvmmsg", "peek and recv"};
    int by = listener(), ends[2];
    for (int way = 0; way < 4; way++) {
        char bytes[10], more[10];
        struct iovec in = {bytes, sizeof bytes}, other = {more, sizeof more};
        struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &in, .msg_iovlen = 1}},
                                      {.msg_hdr = {.msg_iov = &other, .msg_iovlen = 1}}};
        connect_by(by, ends);
        check(send(ends[0], "abc", 3, 0), "send");
        while (recv(ends[1], bytes, 3, MSG_PEEK) < 3)
            ;
        reset(ends);
        for (int turn = 0; turn < 3; turn++) {
            if (way == 0)
                say(ways[way], recv(ends[1], bytes, 10, MSG_WAITALL));
            else if (way == 1)
                say(ways[way], recvmsg(ends[1], &messages[0].msg_hdr, MSG_WAITALL));
            else if (way == 2 && turn == 0)
                say(ways[way], recvmmsg(ends[1], messages, 2, 0, NULL));
            else if (way == 3 && turn == 0)
                say(ways[way], recv(ends[1], bytes, 10, MSG_PEEK | MSG_WAITALL));
            else
                say(ways[way], recv(ends[1], bytes, 10, 0));
        }
        say("send", send(ends[1], "x", 1, MSG_NOSIGNAL));
        close(ends[1]);
    }
    close(by);
}

static void *reset_other(void *ends)
{
    struct pollfd polled = {((int *)ends)[1], POLLIN, 0};
    check(poll(&polled, 1, -1), "poll");
    reset((int[2]){((int *)ends)[1], ((int *)ends)[0]});
    return NULL;
}

/* The same of calls that have sent bytes, and wait for room for more. */
static void reset_while_sending(void)
{
    enum { BYTES = 16 << 20 };
    static const char *const ways[] = {"send", "sendmsg", "writev", "write"};
    char *bytes = calloc(1, BYTES);
    int by = listener();
    signal(SIGPIPE, SIG_IGN);
    for (int way = 0; way < 4; way++) {
        int ends[2];
        pthread_t thread;
        struct iovec out[] = {{bytes, BYTES / 2}, {bytes, BYTES / 2}};
        struct msghdr message = {.msg_iov = out, .msg_iovlen = 2};
        struct pollfd polled;
        connect_by(by, ends);
        polled = (struct pollfd){ends[0], 0, 0};
        /* The other end resets the connection when the first bytes have come. */
        pthread_create(&thread, NULL, reset_other, ends);
        ssize_t sent = way == 0   ? send(ends[0], bytes, BYTES, 0)
                       : way == 1 ? sendmsg(ends[0], &message, 0)
                       : way == 2 ? writev(ends[0], out, 2)
                                  : write(ends[0], bytes, BYTES);
        pthread_join(thread, NULL);
        check(poll(&polled, 1, -1), "poll");
        printf("%s: %s\n", ways[way], sent > 0 && sent < BYTES ? "some" : "all or none");
        say("the next", send(ends[0], bytes, 1, 0));
        say("and the next", send(ends[0], bytes, 1, 0));
        close(ends[0]);
    }
    close(by);
    free(bytes);
}

static void *send_rest(void *to)
{
    check(send(*(int *)to, "cdefg", 5, 0), "send");
    return NULL;
}

/* A look at bytes waits for all of them, if it is asked to. */
static void peek_at_all(void)
{
    int by = listener(), ends[2];
    char bytes[8] = "";
    pthread_t thread;
    connect_by(by, ends);
    check(send(ends[0], "ab", 2, 0), "send");
    while (recv(ends[1], bytes, 2, MSG_PEEK) < 2)
        ;
    pthread_create(&thread, NULL, send_rest, &ends[0]);
    say("all", recv(ends[1], bytes, 7, MSG_PEEK | MSG_WAITALL));
    pthread_join(thread, NULL);
    say("all of fewer", recv(ends[1], bytes, 8, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT));
    say("they are there", recv(ends[1], bytes, 8, 0));
    printf("%s\n", bytes);
    close(ends[0]);
    close(ends[1]);
    close(by);
}

/* What is no file is not sent by sendfile(2). */
static void files_that_are_none(void)
{
    int by = listener(), ends[2], pipes[2];
    off_t offset = 0;
    connect_by(by, ends);
    check(pipe(pipes), "pipe");
    say("sendfile of a pipe", sendfile(ends[0], pipes[0], NULL, 5));
    say("at an offset", sendfile(ends[0], pipes[0], &offset, 5));
    say("of its other end", sendfile(ends[0], pipes[1], NULL, 5));
    say("of a socket", sendfile(ends[0], ends[1], NULL, 5));
    say("at an offset", sendfile(ends[0], ends[1], &offset, 5));
    for (int place = 0; place < 2; place++) {
        close(ends[place]);
        close(pipes[place]);
    }
    close(by);
}

/* select(2) of descriptors beyond FD_SETSIZE, in a set that is long enough. */
static void select_beyond(void)
{
    enum { BEYOND = FD_SETSIZE + 500, LONG = 8 * sizeof(long) };
    unsigned long set[BEYOND / LONG + 1] = {0};
    struct timeval timeout = {.tv_sec = 10};
    struct rlimit limit = {BEYOND + 10, BEYOND + 10};
    int by = listener(), ends[2];
    check(setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
    connect_by(by, ends);
    int beyond = check(fcntl(ends[1], F_DUPFD, BEYOND), "F_DUPFD");
    check(send(ends[0], "x", 1, 0), "send");
    set[beyond / LONG] |= 1ul << beyond % LONG;
    int found = select(beyond + 1, (fd_set *)set, NULL, NULL, &timeout);
    printf("select beyond: %d, %d\n", found, (int)(set[beyond / LONG] >> beyond % LONG & 1));
    say("of none", select(-1, (fd_set *)set, NULL, NULL, &timeout));
    close(beyond);
    close(ends[0]);
    close(ends[1]);
    close(by);
}

struct call {
    int fd;
    atomic_int thread;
    ssize_t received;
    char bytes[4];
};

static void *receive_all(void *of)
{
    struct call *call = of;
    atomic_store(&call->thread, gettid());
    call->received = recv(call->fd, call->bytes, 3, MSG_WAITALL);
    return NULL;
}

static void *receive_up_to_four(void *of)
{
    struct call *call = of;
    atomic_store(&call->thread, gettid());
    call->received = recv(call->fd, call->bytes, 4, 0);
    return NULL;
}

/* A call goes on when another thread closes its descriptor; the connection ends after it. */
static void closed_meanwhile(void)
{
    int by = listener(), ends[2];
    struct call call = {0};
    pthread_t thread;
    connect_by(by, ends);
    call.fd = ends[1];
    pthread_create(&thread, NULL, receive_all, &call);
    await_sleep(&call.thread);
    close(ends[1]);
    check(send(ends[0], "a", 1, 0), "send");
    check(send(ends[0], "bc", 2, 0), "send");
    pthread_join(thread, NULL);
    say("of a closed descriptor", call.received);
    printf("%s\n", call.bytes);
    say("its peer", recv(ends[0], call.bytes, 1, 0));
    close(ends[0]);
    close(by);
}

/* An option of a listener that its connections do not have. */
static void deferred(void)
{
    int by = stream(), ends[2], seconds = 3;
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof seconds;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(setsockopt(by, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds), "setsockopt");
    check(bind(by, (struct sockaddr *)&at, sizeof at), "bind");
    check(listen(by, 8), "listen");
    at = where(by);
    ends[0] = stream();
    check(connect(ends[0], (struct sockaddr *)&at, sizeof at), "connect");
    check(send(ends[0], "x", 1, 0), "send");
    ends[1] = check(accept(by, NULL, NULL), "accept");
    check(getsockopt(ends[1], IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, &len), "getsockopt");
    printf("TCP_DEFER_ACCEPT %d\n", seconds);
    close(ends[0]);
    close(ends[1]);
    close(by);
}

/* A reset after the end of the stream leaves that as it is: a send reports it. */
static void reset_at_end(void)
{
    int by = listener(), ends[2], error;
    struct linger now = {.l_onoff = 1};
    struct pollfd polled;
    socklen_t len = sizeof error;
    char bytes[4];
    connect_by(by, ends);
    check(send(ends[0], "end", 3, 0), "send");
    check(shutdown(ends[0], SHUT_WR), "shutdown");
    polled = (struct pollfd){ends[1], POLLRDHUP, 0};
    check(poll(&polled, 1, -1), "poll");
    check(setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &now, sizeof now), "SO_LINGER");
    close(ends[0]);
    polled = (struct pollfd){ends[1], 0, 0};
    check(poll(&polled, 1, -1), "poll");
    printf("POLLERR %d, POLLHUP %d\n", !!(polled.revents & POLLERR), !!(polled.revents & POLLHUP));
    say("before the end", recv(ends[1], bytes, sizeof bytes, 0));
    say("at the end", recv(ends[1], bytes, sizeof bytes, 0));
    check(getsockopt(ends[1], SOL_SOCKET, SO_ERROR, &error, &len), "SO_ERROR");
    printf("SO_ERROR %s\n", strerror(error));
    say("send", send(ends[1], "x", 1, MSG_NOSIGNAL));
    say("at the end", recv(ends[1], bytes, sizeof bytes, 0));
    close(ends[1]);
    close(by);
}

/* Fewer bytes than SO_RCVLOWAT are none to wait for, and there all the same. */
static void low_water(void)
{
    int by = listener(), ends[2], bytes = 3, waiting = 0;
    struct call call = {0};
    pthread_t thread;
    char found[8];
    connect_by(by, ends);
    check(setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes), "SO_RCVLOWAT");
    check(send(ends[0], "ab", 2, 0), "send");
    while (waiting < 2)
        check(ioctl(ends[1], FIONREAD, &waiting), "FIONREAD");
    struct pollfd polled = {ends[1], POLLIN, 0};
    say("below the mark", poll(&polled, 1, 0));
    check(send(ends[0], "c", 1, 0), "send");
    say("at the mark", poll(&polled, 1, -1));
    say("of one byte", recv(ends[1], found, 1, 0));
    say("at once", recv(ends[1], found, sizeof found, MSG_DONTWAIT));
    call.fd = ends[1];
    pthread_create(&thread, NULL, receive_up_to_four, &call);
    await_sleep(&call.thread);
    check(send(ends[0], "d", 1, 0), "send");
    check(send(ends[0], "ef", 2, 0), "send");
    pthread_join(thread, NULL);
    say("in one call", call.received);
    check(send(ends[0], "g", 1, 0), "send");
    check(shutdown(ends[0], SHUT_WR), "shutdown");
    say("at the end", poll(&polled, 1, -1));
    say("the last", recv(ends[1], found, sizeof found, 0));
    say("the end", recv(ends[1], found, sizeof found, 0));
    close(ends[0]);
    close(ends[1]);
    close(by);
}

/* Pointers that lead nowhere; those to times the C library itself follows. */
static void bad_pointers(void)
{
    static void *volatile const nowhere[] = {(void *)8, (void *)-4096, (void *)(1ul << 40)};
    int by = listener(), ends[2], file = open("/proc/self/exe", O_RDONLY);
    connect_by(by, ends);
    for (int at = 0; at < 3; at++) {
        void *bad = nowhere[at];
        socklen_t len = sizeof(struct sockaddr_in);
        say("poll", poll(bad, 1, 0));
        say("select of a set", select(ends[1] + 1, bad, NULL, NULL, NULL));
        say("recvmmsg", recvmmsg(ends[1], bad, 1, MSG_DONTWAIT, NULL));
        say("sendmmsg", sendmmsg(ends[1], bad, 1, MSG_DONTWAIT));
        say("getpeername", getpeername(ends[1], bad, &len));
        say("getsockname", getsockname(ends[1], bad, &len));
        say("connect", connect(ends[1], bad, len));
        say("sendfile", sendfile(ends[1], file, bad, 1));
        say("readv", readv(ends[1], bad, 1));
        say("writev", writev(ends[1], bad, 1));
    }
    close(file);
    close(ends[0]);
    close(ends[1]);
    close(by);
}

int main(int count, char **arguments)
{
    if (count > 1) {
        connect_bound(atoi(arguments[1]));
        return 0;
    }
    listen_unbound();
    select_left();
    masked();
    dup_over();
    seldom();
    reset_at_end();
    reset_behind_bytes();
    reset_while_sending();
    peek_at_all();
    deferred();
    files_that_are_none();
    select_beyond();
    closed_meanwhile();
    low_water();
    bad_pointers();
    return 0;
}
