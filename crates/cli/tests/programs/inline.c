/*
 * Waits for its listener by a system call of its own, which no library sees.
 */
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static long wait_in(long set, struct epoll_event *event)
{
#if defined(__x86_64__)
    long done;
    register long timeout asm("r10") = -1;
    register long mask asm("r8") = 0;
    register long bytes asm("r9") = 8;
    asm volatile("syscall"
                 : "=a"(done)
                 : "a"(SYS_epoll_pwait), "D"(set), "S"(event), "d"(1L), "r"(timeout), "r"(mask),
                   "r"(bytes)
                 : "rcx", "r11", "memory");
    return done;
#else
    register long number asm("x8") = SYS_epoll_pwait;
    register long first asm("x0") = set;
    register void *events asm("x1") = event;
    register long max asm("x2") = 1, timeout asm("x3") = -1, mask asm("x4") = 0, bytes asm("x5") = 8;
    asm volatile("svc 0"
                 : "+r"(first)
                 : "r"(number), "r"(events), "r"(max), "r"(timeout), "r"(mask), "r"(bytes)
                 : "memory");
    return first;
#endif
}

int main(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    int by = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0);
    if (bind(by, (struct sockaddr *)&at, sizeof at) < 0 || listen(by, 8) < 0)
        return 1;
    if (epoll_ctl(set, EPOLL_CTL_ADD, by, &event) < 0)
        return 1;
    while (wait_in(set, &event) >= 0)
        ;
    return 0;
}
