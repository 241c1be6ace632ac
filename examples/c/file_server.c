/*
 * A file server on the split stack, as in "Rearchitecting the TCP Stack for I/O-Offloaded Content
 * Delivery" (NSDI 2023): this program writes the header, and the NIC stack reads and sends the file.
 * One connection at a time, and one request on each.
 *
 *     cc -O2 -o file_server file_server.c $(pkg-config --cflags --libs splitway)
 *     ./file_server 8080
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <splitway.h>

static void say(int fd, const char *text, int flags)
{
    sw_send(fd, text, strlen(text), MSG_NOSIGNAL | flags);
}

/* Waits until the file is open, or has failed, and says what it is. */
static int fstat_when_open(int fid, struct stat *file)
{
    struct pollfd opened = {.fd = fid, .events = POLLIN};
    while (offload_fstat(fid, file) < 0) {
        if (errno != EAGAIN)
            return -1;
        sw_poll(&opened, 1, -1);
    }
    return 0;
}

static void serve(int fd)
{
    char request[4096], path[4096], header[128];
    struct stat file;
    size_t len = 0;
    ssize_t got;
    do {
        got = sw_recv(fd, request + len, sizeof request - 1 - len, 0);
        len += got > 0 ? got : 0;
        request[len] = 0;
    } while (got > 0 && !strstr(request, "\r\n\r\n") && len < sizeof request - 1);
    if (sscanf(request, "GET %4095s HTTP/", path) != 1) {
        say(fd, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", 0);
        return;
    }
    int fid = offload_open(path, O_RDONLY);
    if (fid < 0 || fstat_when_open(fid, &file) < 0) {
        say(fd, "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n", 0);
    } else {
        snprintf(header, sizeof header,
                 "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %lld\r\n\r\n",
                 (long long)file.st_size);
        say(fd, header, MSG_MORE); /* one packet with the beginning of the file */
        for (off_t at = 0; at < file.st_size; at += got)
            if ((got = offload_write(fd, fid, at, file.st_size - at)) <= 0)
                break;
    }
    if (fid >= 0)
        offload_close(fid);
}

int main(int count, char **arguments)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    at.sin_port = htons(count > 1 ? atoi(arguments[1]) : 8080);
    int listener = sw_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || sw_bind(listener, (struct sockaddr *)&at, sizeof at) < 0 ||
        sw_listen(listener, 1024) < 0) {
        perror("file_server: listen");
        return 1;
    }
    for (;;) {
        int fd = sw_accept(listener, NULL, NULL);
        if (fd < 0)
            continue;
        serve(fd);
        sw_close(fd);
    }
}
