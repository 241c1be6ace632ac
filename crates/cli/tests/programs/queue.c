/*
 * Says what TCP_INFO has of listeners: connections that wait, and how many may. With split sockets
 * the same as with those of the kernel.
 */
#include "programs.h"

#include <netinet/tcp.h>
#include <sched.h>
#include <unistd.h>

#define LOOKS_MAX 1000000

/* Says what there is once so many connections wait: the last handshake may be under way. */
static void say(int by, unsigned int wanted)
{
    struct tcp_info info = {0};
    for (int looks = 0; looks < LOOKS_MAX; looks++) {
        socklen_t len = sizeof info;
        check(getsockopt(by, IPPROTO_TCP, TCP_INFO, &info, &len), "TCP_INFO");
        if (info.tcpi_unacked == wanted)
            break;
        sched_yield();
    }
    printf("state %d: %u of %u wait\n", info.tcpi_state, info.tcpi_unacked, info.tcpi_sacked);
}

int main(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int by = stream();
    check(bind(by, (struct sockaddr *)&at, sizeof at), "bind");
    check(listen(by, 8), "listen");
    check(getsockname(by, (struct sockaddr *)&at, &len), "getsockname");
    say(by, 0);
    for (unsigned int count = 1; count <= 3; count++) {
        int to = stream();
        check(connect(to, (struct sockaddr *)&at, sizeof at), "connect");
        say(by, count);
    }
    check(accept(by, NULL, NULL), "accept");
    say(by, 2);
    check(listen(by, 4), "listen");
    say(by, 2);
    return 0;
}
