/*
 * Binds many ports, from PORT on, and waits.
 *
 *     many PORT COUNT
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <splitway.h>

static void die(const char *what)
{
    perror(what);
    exit(1);
}

int main(int count, char **arguments)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    struct rlimit limit;
    if (count < 3)
        die("port and count");
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        die("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        die("setrlimit");
    for (int port = atoi(arguments[1]), left = atoi(arguments[2]); left > 0; port++, left--) {
        int fd = sw_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        at.sin_port = htons(port);
        if (fd < 0 || sw_bind(fd, (struct sockaddr *)&at, sizeof at) < 0)
            die("bind");
    }
    printf("bound\n");
    fflush(stdout);
    pause();
    return 0;
}
