/*
 * Copies between each client and a backend by splice(2), with a thread for each direction. It knows
 * nothing of the split stack.
 *
 *     copier PORT BACKEND BACKEND_PORT
 */
#include <arpa/inet.h>
#include <err.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Most bytes at once: what a pipe takes. */
#define PIECE 65536

struct direction {
    int from, to;
};

static struct sockaddr_in address(const char *ip, const char *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    if (inet_pton(AF_INET, ip, &at.sin_addr) != 1)
        errx(1, "%s is no address", ip);
    return at;
}

/* Until the end, or until either connection is gone. */
static void *copy(void *argument)
{
    struct direction *way = argument;
    int ends[2];
    if (pipe(ends) < 0)
        err(1, "pipe");
    ssize_t len;
    while ((len = splice(way->from, NULL, ends[1], NULL, PIECE, SPLICE_F_MOVE)) > 0) {
        while (len > 0) {
            ssize_t sent = splice(ends[0], NULL, way->to, NULL, len, SPLICE_F_MOVE);
            if (sent <= 0)
                goto gone;
            len -= sent;
        }
    }
    if (len == 0)
        shutdown(way->to, SHUT_WR);
gone:
    close(ends[0]);
    close(ends[1]);
    return NULL;
}

static void *serve(void *argument)
{
    struct direction *there = argument, back = {.from = there->to, .to = there->from};
    pthread_t thread;
    if (pthread_create(&thread, NULL, copy, &back))
        errx(1, "pthread_create");
    copy(there);
    pthread_join(thread, NULL);
    close(there->from);
    close(there->to);
    free(there);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        errx(1, "copier PORT BACKEND BACKEND_PORT");
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in own = address("0.0.0.0", argv[1]), backend = address(argv[2], argv[3]);
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&own, sizeof own) < 0 || listen(listener, 128) < 0)
        err(1, "listening");
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client < 0)
            err(1, "accept");
        int to = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(to, (struct sockaddr *)&backend, sizeof backend) < 0)
            err(1, "connect");
        struct direction *there = malloc(sizeof *there);
        *there = (struct direction){.from = client, .to = to};
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, there))
            errx(1, "pthread_create");
        pthread_detach(thread);
    }
}
