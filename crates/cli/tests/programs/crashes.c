/*
 * An echo server whose processes end in bad ways, for tests.
 *
 *     crashes PORT MODE
 *
 * | MODE | A connection |
 * |---|---|
 * | fork  | is served by a child of its own |
 * | exec  | is served by a child, which then executes another program |
 * | close | is closed by a child, together with the listener, while its parent serves it |
 * | abort | is served by a child that aborts at a random moment; after ROUNDS of them the server
 *           listens on the next port as well, and serves all by itself |
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <splitway.h>

#define ROUNDS 1000

/* Microseconds after which a child aborts, at most: longer than it takes to be attached. */
#define ABORT_US_MAX 6000

static void die(const char *what)
{
    fprintf(stderr, "crashes: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int listen_on(unsigned short port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = sw_socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || sw_bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || sw_listen(fd, 1024) < 0)
        die("listen");
    return fd;
}

static int accept_from(int listener)
{
    int fd = sw_accept(listener, NULL, NULL);
    if (fd < 0)
        die("accept");
    return fd;
}

/* Until the peer has finished, or either side has failed. */
static void echo(int fd)
{
    char bytes[4096];
    ssize_t len;
    while ((len = sw_recv(fd, bytes, sizeof bytes, 0)) > 0) {
        for (ssize_t done = 0; done < len;) {
            ssize_t sent = sw_send(fd, bytes + done, len - done, MSG_NOSIGNAL);
            if (sent < 0)
                return;
            done += sent;
        }
    }
}

static void on_alarm(int number)
{
    (void)number;
    abort();
}

/* Serves connections, and aborts between any two instructions of that. */
static void serve_and_abort(int listener, unsigned seed)
{
    struct itimerval soon = {.it_value.tv_usec = 1 + rand_r(&seed) % ABORT_US_MAX};
    signal(SIGALRM, on_alarm);
    if (setitimer(ITIMER_REAL, &soon, NULL) < 0)
        die("setitimer");
    for (;;) {
        int fd = accept_from(listener);
        echo(fd);
        sw_close(fd);
    }
}

static void abort_children(int listener)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        pid_t child = fork();
        if (child < 0)
            die("fork");
        if (child == 0)
            serve_and_abort(listener, round);
        int status;
        if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
            die("a child did not abort");
    }
}

/* What a child does with a connection that its parent has accepted. */
static void in_child(const char *mode, unsigned round, int listener, int fd)
{
    if (strcmp(mode, "close") == 0) {
        int (*close_it)(int) = round % 2 == 0 ? sw_close : close;
        close_it(fd);
        close_it(listener);
        _exit(0);
    }
    echo(fd);
    if (strcmp(mode, "exec") == 0) {
        execl("/bin/true", "true", NULL);
        die("execl");
    }
    _exit(0);
}

int main(int count, char **arguments)
{
    struct rlimit none = {0, 0};
    if (count != 3)
        return 2;
    unsigned short port = atoi(arguments[1]);
    const char *mode = arguments[2];
    setrlimit(RLIMIT_CORE, &none);
    int listener = listen_on(port);
    if (strcmp(mode, "abort") == 0) {
        abort_children(listener);
        listen_on(port + 1);
        mode = "none";
    } else {
        signal(SIGCHLD, SIG_IGN);
    }
    for (unsigned round = 0;; round++) {
        int fd = accept_from(listener);
        pid_t child = strcmp(mode, "none") == 0 ? -1 : fork();
        if (child == 0)
            in_child(mode, round, listener, fd);
        if (child < 0 || strcmp(mode, "close") == 0)
            echo(fd);
        sw_close(fd);
    }
}
