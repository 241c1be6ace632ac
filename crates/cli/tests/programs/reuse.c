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

/* When the first socket listens: not at all, or at one of these moments. */
enum { NEVER, BEFORE_ITS_CHANGE, AFTER_ITS_CHANGE, BESIDE_THE_SECOND, MOMENTS };

/* Changes of an option: the last leaves it as it is. */
#define CHANGES 3

static void change(int fd, int option, int to)
{
    if (to < CHANGES - 1)
        set(fd, option, to);
}

static char listens(int fd)
{
    return listen(fd, 5) < 0 ? 'x' : '+';
}

/* One order of two sockets, and a third in the end: says whether each may bind and listen. */
static void order(int option, int has, int then, int moment, int other_has, int other_then)
{
    struct sockaddr_in at;
    int one = first(has ? option : 0, &at), two = with(other_has ? option : 0);
    char said[8] = "------";
    if (moment == BEFORE_ITS_CHANGE)
        said[0] = listens(one);
    change(one, option, then);
    if (moment == AFTER_ITS_CHANGE)
        said[0] = listens(one);
    int is_bound = bind(two, (struct sockaddr *)&at, sizeof at) == 0;
    said[1] = is_bound ? '+' : 'x';
    change(two, option, other_then);
    if (moment == BESIDE_THE_SECOND)
        said[0] = listens(one);
    if (is_bound)
        said[2] = listens(two);
    int three = with(option);
    is_bound = bind(three, (struct sockaddr *)&at, sizeof at) == 0;
    said[3] = is_bound ? '+' : 'x';
    if (is_bound)
        said[4] = listens(three);
    close(two);
    if (moment == NEVER)
        said[5] = listens(one);
    printf("%d, then %d, listens %d; %d, then %d: %s\n", has, then, moment, other_has, other_then,
           said);
    close(three);
    close(one);
}

static void all_orders(int option)
{
    for (int has = 0; has < 2; has++)
        for (int then = 0; then < CHANGES; then++)
            for (int moment = NEVER; moment < MOMENTS; moment++)
                for (int other_has = 0; other_has < 2; other_has++)
                    for (int other_then = 0; other_then < CHANGES; other_then++)
                        order(option, has, then, moment, other_has, other_then);
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
        all_orders(options[at].option);
    }
    return 0;
}
