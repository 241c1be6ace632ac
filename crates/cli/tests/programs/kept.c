/*
 * Says what becomes of the descriptors of closed connections, and of connections that get one of
 * these, a line for each: with split sockets the same as with those of the kernel.
 */
#include "programs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 100

extern char **environ;

static struct sockaddr_in at;
static int listener;

/* A connection: what is connected, and what is accepted. */
struct pair {
    int client, accepted;
};

static struct pair connection(int flags)
{
    struct pair pair = {.client = stream()};
    check(connect(pair.client, (struct sockaddr *)&at, sizeof at), "connect");
    pair.accepted = check(accept4(listener, NULL, NULL, flags), "accept4");
    return pair;
}

/* Says what comes by a descriptor until its end. */
static void say_all(const char *what, int fd)
{
    char bytes[200] = "";
    size_t have = 0;
    ssize_t len;
    while ((len = recv(fd, bytes + have, sizeof bytes - 1 - have, 0)) > 0)
        have += (size_t)len;
    printf("%s: '%s', %s\n", what, bytes, len < 0 ? strerror(errno) : "the end");
    close(fd);
}

static void say(const char *what, long result)
{
    printf("%s: %ld, %s\n", what, result, result < 0 ? strerror(errno) : "done");
}

/* Several connections come and go, so that the next has a descriptor of one before. */
static void come_and_go(void)
{
    for (int round = 0; round < 3; round++) {
        struct pair pair = connection(0);
        close(pair.accepted);
        close(pair.client);
    }
}

static void every_byte(void)
{
    unsigned long sum = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned char bytes[3000], received[3000];
        struct pair pair = connection(round % 2 ? SOCK_NONBLOCK : 0);
        int nonblocking = (fcntl(pair.accepted, F_GETFL) & O_NONBLOCK) != 0;
        int closes = (fcntl(pair.accepted, F_GETFD) & FD_CLOEXEC) != 0;
        if (nonblocking != (int)(round % 2) || closes)
            printf("round %u has the flags of another\n", round);
        for (unsigned byte = 0; byte < sizeof bytes; byte++)
            sum = sum * 31 + (bytes[byte] = (unsigned char)(byte * 7 + round));
        check((int)send(pair.accepted, bytes, sizeof bytes, 0), "send");
        close(pair.accepted);
        if (recv(pair.client, received, sizeof received, MSG_WAITALL) != sizeof received ||
            memcmp(bytes, received, sizeof bytes) != 0)
            printf("round %u has the bytes of another\n", round);
        if (recv(pair.client, received, 1, 0) != 0)
            printf("round %u has no end\n", round);
        close(pair.client);
    }
    printf("every byte of %d connections: %lx\n", ROUNDS, sum);
}

/* Calls on a number that was closed. */
static void after_close(void)
{
    char byte;
    struct pair pair = connection(SOCK_NONBLOCK);
    int fd = pair.accepted, one = 1, set = check(epoll_create1(0), "epoll_create1");
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    socklen_t len = sizeof one;
    fd_set read_from;
    close(fd);
    say("read", read(fd, &byte, 1));
    say("write", write(fd, "x", 1));
    say("recv", recv(fd, &byte, 1, 0));
    say("send", send(fd, "x", 1, MSG_NOSIGNAL));
    say("fcntl", fcntl(fd, F_GETFD));
    say("setsockopt", setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one));
    say("getsockopt", getsockopt(fd, SOL_SOCKET, SO_TYPE, &one, &len));
    say("dup", dup(fd));
    say("fcntl F_DUPFD", fcntl(fd, F_DUPFD, 0));
    say("shutdown", shutdown(fd, SHUT_RDWR));
    say("epoll_ctl", epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    say("poll", poll(&polled, 1, 1000));
    printf("polled: %#x\n", (unsigned)polled.revents);
    FD_ZERO(&read_from);
    FD_SET(fd, &read_from);
    say("select", select(fd + 1, &read_from, NULL, NULL, NULL));
    say("by its number", syscall(SYS_close, fd));
    say("close", close(fd));
    say_all("its peer", pair.client);
    close(set);
}

/* Files take the numbers of closed connections. */
static void taken_numbers(void)
{
    int pipes[2];
    char bytes[3] = "";
    check(pipe(pipes), "pipe");
    struct pair pair = connection(0);
    close(pair.accepted);
    check(dup2(pipes[1], pair.accepted), "dup2");
    close(pipes[1]);
    struct pair other = connection(0);
    printf("the number is another's: %d\n", other.accepted != pair.accepted);
    check((int)write(pair.accepted, "ab", 2), "write");
    close(pair.accepted);
    say("the pipe", read(pipes[0], bytes, 2));
    say("its end", read(pipes[0], bytes, 2));
    close(pipes[0]);
    close(other.accepted);
    say_all("the other's peer", other.client);
    say_all("the first peer", pair.client);
    pair = connection(0);
    close(pair.accepted);
    check(close_range((unsigned)pair.accepted, (unsigned)pair.accepted, 0), "close_range");
    say("closed twice", close(pair.accepted));
    other = connection(0);
    close(other.accepted);
    say_all("after close_range", other.client);
    close(pair.client);
}

/* A child has the connection after its parent has closed it. */
static void forked(int bare)
{
    int pipes[2];
    char byte;
    struct pair pair = connection(0);
    check(pipe(pipes), "pipe");
    pid_t child = bare ? _Fork() : fork();
    if (check(child, "fork") == 0) {
        close(pipes[1]);
        check((int)read(pipes[0], &byte, 1), "read");
        check((int)send(pair.accepted, "by the child", 12, 0), "send");
        _exit(0);
    }
    close(pair.accepted);
    /* What has its place now gets nothing of it. */
    struct pair later = connection(0);
    check((int)write(pipes[1], "x", 1), "write");
    waitpid(child, NULL, 0);
    close(later.accepted);
    say_all(bare ? "of _Fork" : "of fork", pair.client);
    say_all("the later one", later.client);
    close(pipes[0]);
    close(pipes[1]);
}

/* Another program gets a connection as its standard output. */
static void executed(const char *how)
{
    char *arguments[] = {"sh", "-c", "echo from another program; sleep 0.05", NULL};
    struct pair pair = connection(SOCK_CLOEXEC);
    pid_t child = -1;
    if (strcmp(how, "posix_spawn") == 0) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, pair.accepted, 1);
        errno = posix_spawnp(&child, "sh", &actions, NULL, arguments, environ);
        check(errno ? -1 : 0, "posix_spawnp");
        posix_spawn_file_actions_destroy(&actions);
    } else {
        child = strcmp(how, "fork") == 0 ? fork() : vfork();
        if (check(child, "fork") == 0) {
            dup2(pair.accepted, 1);
            execvp("sh", arguments);
            _exit(1);
        }
    }
    close(pair.accepted);
    struct pair later = connection(SOCK_CLOEXEC);
    close(later.accepted);
    say_all("the later one", later.client);
    say_all(how, pair.client);
    waitpid(child, NULL, 0);
}

/* A program started by the shell keeps a connection that is not closed on exec. */
static void by_the_shell(void)
{
    struct pair pair = connection(0);
    if (system("sleep 0.2 &") != 0)
        check(-1, "system");
    check((int)send(pair.accepted, "x", 1, 0), "send");
    close(pair.accepted);
    struct pollfd polled = {.fd = pair.client, .events = POLLIN | POLLRDHUP};
    check(poll(&polled, 1, 10000), "poll");
    say_all("after system", pair.client);
    FILE *file = popen("echo of popen", "r");
    char line[40] = "";
    if (file && fgets(line, sizeof line, file))
        printf("%s", line);
    pclose(file);
}

static atomic_int started;

static void *receive(void *fd)
{
    char bytes[20] = "";
    atomic_store(&started, gettid());
    ssize_t len = recv((int)(long)fd, bytes, sizeof bytes - 1, 0);
    printf("a thread that waits: %zd '%s'\n", len, bytes);
    return NULL;
}

/* A thread waits for bytes of a connection that another closes. */
static void waiting(void)
{
    pthread_t thread;
    struct pair pair = connection(0);
    atomic_store(&started, 0);
    pthread_create(&thread, NULL, receive, (void *)(long)pair.accepted);
    await_sleep(&started);
    close(pair.accepted);
    struct pair later = connection(0);
    check((int)send(pair.client, "first", 5, 0), "send");
    pthread_join(thread, NULL);
    close(later.accepted);
    say_all("the later one", later.client);
    say_all("the first one", pair.client);
}

int main(void)
{
    socklen_t len = sizeof at;
    setvbuf(stdout, NULL, _IOLBF, 0);
    listener = check(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(listener, (struct sockaddr *)&at, sizeof at), "bind");
    check(listen(listener, 8), "listen");
    check(getsockname(listener, (struct sockaddr *)&at, &len), "getsockname");
    every_byte();
    after_close();
    taken_numbers();
    come_and_go();
    waiting();
    come_and_go();
    forked(0);
    come_and_go();
    forked(1);
    come_and_go();
    executed("fork");
    come_and_go();
    executed("vfork");
    come_and_go();
    executed("posix_spawn");
    come_and_go();
    by_the_shell();
    every_byte();
    return 0;
}
