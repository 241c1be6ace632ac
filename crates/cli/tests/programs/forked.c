/*
 * Echoes what connections bring, by a set of epoll that was made before a fork. It knows nothing of
 * the split stack.
 *
 *     forked daemon PORT         in a grandchild, whose parents end at once
 *     forked workers PORT        in three children and their parent, which share the set
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS 3

static int bell[2];
static volatile sig_atomic_t ended;

static void end(int number)
{
    (void)number;
    ended = 1;
    if (bell[1] > 0 && write(bell[1], "", 1) < 0)
        _exit(2);
}

static void add(int set, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) < 0)
        err(1, "epoll_ctl");
}

/* What has come, back again; false at its end. */
static int echo(int fd)
{
    char bytes[32768];
    ssize_t len = read(fd, bytes, sizeof bytes);
    for (ssize_t done = 0; done < len;) {
        ssize_t sent = write(fd, bytes + done, len - done);
        if (sent < 0)
            return 0;
        done += sent;
    }
    return len > 0;
}

/* What is ready, or -1 after a signal. */
static int wait_for(int set)
{
    struct epoll_event event;
    int count = epoll_wait(set, &event, 1, -1);
    if (count < 0 && errno != EINTR)
        err(1, "epoll_wait");
    return count == 1 ? event.data.fd : -1;
}

/* A connection, or -1 if another process has it. */
static int take(int listener)
{
    int fd = accept(listener, NULL, NULL);
    if (fd < 0 && errno != EAGAIN)
        err(1, "accept");
    return fd;
}

/* Has its connections in the set. */
static void serve(int set, int listener)
{
    for (int fd; (fd = wait_for(set)) != bell[0];) {
        if (fd == listener) {
            int connection = take(listener);
            if (connection >= 0)
                add(set, connection);
        } else if (fd >= 0 && !echo(fd)) {
            close(fd);
        }
    }
}

/* Has the listener alone in the set, and one connection after the other. */
static void work(int set, int listener)
{
    while (!ended) {
        int connection = wait_for(set) == listener ? take(listener) : -1;
        if (connection < 0)
            continue;
        while (echo(connection))
            ;
        close(connection);
    }
}

int main(int count, char **arguments)
{
    if (count != 3)
        errx(1, "how, and where");
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[2]))};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int set = epoll_create1(EPOLL_CLOEXEC);
    if (set < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) < 0 ||
        listen(listener, 64) < 0)
        err(1, "listen");
    add(set, listener);
    struct sigaction action = {.sa_handler = end};
    if (strcmp(arguments[1], "workers")) {
        int other = dup(set);
        if (pipe(bell) < 0)
            err(1, "pipe");
        add(set, bell[0]);
        sigaction(SIGTERM, &action, NULL);
        pid_t child = fork();
        if (child != 0)
            return child < 0;
        /* As daemons do: once more. */
        setsid();
        child = fork();
        if (child != 0)
            _exit(child < 0);
        close(set);
        serve(other, listener);
        return 0;
    }
    pid_t workers[WORKERS];
    for (int place = 0; place < WORKERS; place++) {
        workers[place] = fork();
        if (workers[place] < 0)
            err(1, "fork");
        if (workers[place] == 0)
            work(set, listener);
    }
    sigaction(SIGTERM, &action, NULL);
    work(set, listener);
    for (int place = 0, status; place < WORKERS; place++) {
        kill(workers[place], SIGTERM);
        if (waitpid(workers[place], &status, 0) < 0 || !WIFSIGNALED(status))
            errx(1, "a worker has ended with %d", status);
    }
    return 0;
}
