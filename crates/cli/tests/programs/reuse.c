/*
 * Says which sockets may share an address, a line for each: split sockets the same as those of the
 * kernel.
 */
#include "programs.h"

#include <arpa/inet.h>
#include <unistd.h>

static void set(int fd, int option, int value)
{
    check(setsockopt(fd, SOL_SOCKET, option, &value, sizeof value), "setsockopt");
}

static int with(int option)
{
    int fd = stream();
    if (option != 0)
        set(fd, option, 1);
    return fd;
}

/* A socket on a port of its own. */
static int first(int option, struct sockaddr_in *at)
{
    socklen_t len = sizeof *at;
    int fd = with(option);
    *at = (struct sockaddr_in){.sin_family = AF_INET};
    at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(fd, (struct sockaddr *)at, sizeof *at), "bind");
    check(getsockname(fd, (struct sockaddr *)at, &len), "getsockname");
    return fd;
}

static const char *done(int result)
{
    return result < 0 ? strerror(errno) : "done";
}

/* Says whether a socket may have an address as well; it has it if so. */
static int say_bind(const char *what, int option, struct sockaddr_in at)
{
    int fd = with(option);
    printf("%s: %s\n", what, done(bind(fd, (struct sockaddr *)&at, sizeof at)));
    return fd;
}

static void set_later(int option)
{
    struct sockaddr_in at;
    int one = first(0, &at);
    close(say_bind("before it is set", option, at));
    set(one, option, 1);
    close(say_bind("set by one", 0, at));
    int two = say_bind("set by both", option, at);
    printf("both listen: %s", done(listen(one, 5)));
    printf(", %s\n", done(listen(two, 5)));
    close(say_bind("while one listens", option, at));
    close(two);
    set(one, option, 0);
    close(say_bind("cleared by one", option, at));
    close(one);
}

static void clear_later(int option)
{
    struct sockaddr_in at;
    int one = first(option, &at);
    set(one, option, 0);
    close(say_bind("cleared by one", option, at));
    set(one, option, 1);
    close(say_bind("set again", option, at));
    close(one);
}

int main(void)
{
    static const struct {
        const char *name;
        int option;
    } options[] = {{"SO_REUSEADDR", SO_REUSEADDR}, {"SO_REUSEPORT", SO_REUSEPORT}};
    for (int at = 0; at < 2; at++) {
        printf("%s\n", options[at].name);
        set_later(options[at].option);
        clear_later(options[at].option);
    }
    return 0;
}
