/*
 * A child serves connections of its parent's listener within 96 MiB of address space: by `exec`,
 * as Dovecot starts its processes, and by fork. With split sockets the same as with those of the
 * kernel.
 */
#include "programs.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LISTENER 9
#define LIMIT_BYTES (96UL << 20)
#define BYTES 3000000

static char bytes[BYTES];

/* Sends back what comes. */
static int serve(void)
{
    for (int turn = 0; turn < 3; turn++) {
        size_t len = 0;
        int fd = check(accept(LISTENER, NULL, NULL), "accept");
        for (ssize_t got; (got = check(read(fd, bytes + len, BYTES - len), "read")) > 0;)
            len += got;
        for (size_t sent = 0; sent < len;)
            sent += check(write(fd, bytes + sent, len - sent), "write");
        close(fd);
    }
    return 0;
}

/* What comes back of so many bytes. */
static size_t exchanged(const struct sockaddr_in *at, size_t count)
{
    size_t same = 0;
    int fd = stream();
    check(connect(fd, (const struct sockaddr *)at, sizeof *at), "connect");
    for (size_t sent = 0; sent < count;)
        sent += check(write(fd, bytes + sent, count - sent), "write");
    shutdown(fd, SHUT_WR);
    for (ssize_t got; same < count;) {
        char received[4096];
        if ((got = read(fd, received, sizeof received)) <= 0)
            break;
        if (memcmp(received, bytes + same, got) != 0)
            break;
        same += got;
    }
    close(fd);
    return same;
}

int main(int count, char **arguments)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rlimit limit = {LIMIT_BYTES, LIMIT_BYTES};
    socklen_t len = sizeof at;
    if (count > 1 && strcmp(arguments[1], "serve") == 0)
        return serve();
    int by = stream();
    check(bind(by, (struct sockaddr *)&at, sizeof at), "bind");
    check(listen(by, 8), "listen");
    check(getsockname(by, (struct sockaddr *)&at, &len), "getsockname");
    dup2(by, LISTENER);
    for (size_t place = 0; place < BYTES; place++)
        bytes[place] = place % 251;
    for (int is_image = 0; is_image < 2; is_image++) {
        int status = -1;
        pid_t child = check(fork(), "fork");
        if (child == 0) {
            check(setrlimit(RLIMIT_AS, &limit), "RLIMIT_AS");
            if (!is_image)
                _exit(serve());
            execl("/proc/self/exe", "limited", "serve", NULL);
            _exit(1);
        }
        printf("%zu, ", exchanged(&at, 1));
        printf("%zu, ", exchanged(&at, 100000));
        printf("%zu bytes came back, ", exchanged(&at, BYTES));
        waitpid(child, &status, 0);
        printf("exit code %d\n", status);
    }
    return 0;
}
