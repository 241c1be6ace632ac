/*
 * Says what sockets of IPv6 do with addresses of IPv4, which are mapped there (RFC 4291 2.5.5.2), a
 * line for each: on split sockets the same as on those of the kernel.
 */
#include "programs.h"

#include <arpa/inet.h>
#include <unistd.h>

static int stream_of(int family, int only)
{
    int fd = check(socket(family, SOCK_STREAM, 0), "socket");
    if (family == AF_INET6)
        check(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only), "IPV6_V6ONLY");
    return fd;
}

static struct sockaddr_in6 of(const char *ip, int port)
{
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    if (inet_pton(AF_INET6, ip, &at.sin6_addr) != 1)
        exit(2);
    return at;
}

static int port_of(int fd)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    check(getsockname(fd, (struct sockaddr *)&at, &len), "getsockname");
    return ntohs(((struct sockaddr_in *)&at)->sin_port);
}

/* An address, of which all but the port counts. */
static void say_address(const char *what, const struct sockaddr_storage *at, socklen_t len)
{
    char text[INET6_ADDRSTRLEN] = "";
    int is_v6 = at->ss_family == AF_INET6;
    const void *ip = is_v6 ? (const void *)&((const struct sockaddr_in6 *)at)->sin6_addr
                           : (const void *)&((const struct sockaddr_in *)at)->sin_addr;
    inet_ntop(at->ss_family, ip, text, sizeof text);
    printf("  %s: %s, %s, %d bytes\n", what, is_v6 ? "AF_INET6" : "AF_INET", text, (int)len);
}

static void say_names(int fd)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &len) == 0)
        say_address("getsockname", &at, len);
    len = sizeof at;
    if (getpeername(fd, (struct sockaddr *)&at, &len) == 0)
        say_address("getpeername", &at, len);
    else
        printf("  getpeername: %s\n", strerror(errno));
}

static int say(const char *what, int result)
{
    printf("%s: %s\n", what, result < 0 ? strerror(errno) : "done");
    return result;
}

/* Connects to an address of a listener, and says what both ends are. */
static void meet(int listener, int client, const char *ip)
{
    struct sockaddr_in6 to = of(ip, port_of(listener));
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char got[6] = "";
    printf("to %s\n", ip);
    if (say(" connect", connect(client, (struct sockaddr *)&to, sizeof to)) == 0) {
        say_names(client);
        int accepted = check(accept(listener, (struct sockaddr *)&at, &len), "accept");
        say_address("accept", &at, len);
        say_names(accepted);
        check(send(accepted, "hello", 5, 0), "send");
        struct iovec in = {got, 5};
        struct msghdr message = {.msg_iov = &in, .msg_iovlen = 1};
        check(recvmsg(client, &message, MSG_WAITALL), "recvmsg");
        printf("  got %s, name of %d bytes\n", got, (int)message.msg_namelen);
        close(accepted);
    }
    close(client);
}

static int listener_at(const char *ip, int only)
{
    struct sockaddr_in6 at = of(ip, 0);
    int fd = stream_of(AF_INET6, only);
    printf("listener at %s, IPV6_V6ONLY %d\n", ip, only);
    if (say(" bind", bind(fd, (struct sockaddr *)&at, sizeof at)) < 0)
        return fd;
    say(" listen", listen(fd, 8));
    say_names(fd);
    return fd;
}

/* A socket that is bound to an address, and connects to a listener at another. */
static void bound(int listener, const char *from, const char *to)
{
    int fd = stream_of(AF_INET6, 0);
    struct sockaddr_in6 at = of(from, 0);
    printf("from %s ", from);
    if (say("bind", bind(fd, (struct sockaddr *)&at, sizeof at)) == 0)
        meet(listener, fd, to);
    else
        close(fd);
}

int main(void)
{
    int dual = listener_at("::", 0);
    meet(dual, stream_of(AF_INET6, 0), "::ffff:127.0.0.1");
    meet(dual, stream_of(AF_INET6, 0), "::1");
    meet(dual, stream_of(AF_INET6, 1), "::ffff:127.0.0.1");
    bound(dual, "::", "::ffff:127.0.0.1");
    bound(dual, "::ffff:0.0.0.0", "::ffff:127.0.0.1");
    bound(dual, "::ffff:127.0.0.1", "::ffff:127.0.0.1");
    bound(dual, "::ffff:127.0.0.1", "::");
    bound(dual, "::ffff:127.0.0.1", "::1");
    bound(dual, "::1", "::ffff:127.0.0.1");
    close(dual);
    int mapped = listener_at("::ffff:127.0.0.1", 0);
    meet(mapped, stream_of(AF_INET6, 0), "::ffff:127.0.0.1");
    close(mapped);
    int all = listener_at("::ffff:0.0.0.0", 0);
    meet(all, stream_of(AF_INET6, 0), "::ffff:127.0.0.1");
    close(all);
    close(listener_at("::ffff:127.0.0.1", 1));
    /* A client of IPv4 meets a listener of both. */
    dual = listener_at("::", 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port_of(dual))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int client = stream_of(AF_INET, 0);
    say("connect", connect(client, (struct sockaddr *)&to, sizeof to));
    say_names(client);
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    int accepted = check(accept(dual, (struct sockaddr *)&at, &len), "accept");
    say_address("accept", &at, len);
    say_names(accepted);
    close(accepted);
    close(client);
    close(dual);
    return 0;
}
