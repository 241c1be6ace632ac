/*
 * Sockets of the split stack, and files that the NIC stack sends.
 *
 * Functions are named for the calls of the C library that they stand for, and differ only where it
 * is said here. They return -1 and set errno on failure. Any thread may call them; a signal handler
 * must not. A descriptor that they return is a real one: fork, dup by sw_fcntl, F_SETFL and
 * FD_CLOEXEC work on it. docs/capi.md tells more.
 */

#ifndef SPLITWAY_H
#define SPLITWAY_H

/* Made from crates/capi/src/abi by cbindgen. */

#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

// Every call waits until the host stack has processed it.
#define SW_MODE_SPLIT_TCP 1

// Sending returns when the bytes are in the FIFO.
#define SW_MODE_ASYNC_SEND 2

// The host stack fills the receive FIFO without a request.
#define SW_MODE_EAGER_RECEIVE 4

// The host stack puts connections into the accept queue without a request.
#define SW_MODE_EAGER_ACCEPT 8

// An accepted connection comes with addresses, options and first bytes.
#define SW_MODE_SETUP_WITH_ACCEPT 16

// Buffers of a connection are allocated with the first byte of their direction.
#define SW_MODE_BUFFERS_ON_DEMAND 32

// All but `SW_MODE_SPLIT_TCP`.
#define SW_MODE_DEFAULT 62

// Level of this library's own options; the kernel does not use it.
#define SOL_SPLITWAY 21335

// NIC stacks answer the SYNs of a listener: 0 or 1.
#define SW_SETUP_OFFLOAD 1

// NIC stacks run the end of a connection, or of a listener's connections: 0 or 1.
#define SW_TEARDOWN_OFFLOAD 2

// The bytes of the send were copied, so its buffer was free when it returned.
#define SW_ZC_COPIED 1

// The socket has not been part of a splice.
#define SW_SPLICE_NONE 0

// The sockets are being joined.
#define SW_SPLICE_JOINING 1

// A NIC stack moves the bytes.
#define SW_SPLICE_JOINED 2

// The program has the socket back.
#define SW_SPLICE_RETURNED 3

// The splice has ended, and so have both connections.
#define SW_SPLICE_ENDED 4

// How to attach.
struct sw_options {
  // Path of the broker's socket; null: `$SPLITWAY_SOCKET`, or `/run/splitway/sockets.sock`.
  const char *socket_path;
  // `SW_MODE_…` bits; 0: `$SPLITWAY_MODES`, or `SW_MODE_DEFAULT`.
  uint32_t modes;
  // Must be 0.
  uint32_t reserved;
};

// The completion of an `sw_send_zc`.
struct sw_zc_completion {
  // Cookie of the send.
  uint64_t cookie;
  // 0 if the peer has acknowledged all bytes of the send; else the reason why not: an `errno`.
  int error;
  // `SW_ZC_…` bits.
  uint32_t flags;
};

// Limits of a splice; beyond either, both peers are reset.
struct sw_splice_limits {
  // Longest time without data, in milliseconds; 0: no limit.
  uint32_t idle_ms;
  // Longest life of the splice, in milliseconds; 0: no limit.
  uint32_t life_ms;
};

// State of a socket's last splice.
struct sw_splice_status {
  // Bytes received from this socket's peer and sent to the other socket's.
  uint64_t in_bytes;
  // Bytes received from the other socket's peer and sent to this socket's.
  uint64_t out_bytes;
  // `SW_SPLICE_…`.
  uint32_t stage;
  // Reason why the sockets were not joined, or of the end: an `errno`. 0 after `sw_unsplice`, or
  // after an orderly end.
  int error;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Attaches this process to the host stack. Without it, the first call attaches by the environment.
// `options` may be null.
//
// Returns 0, or -1: EALREADY if the process is attached; ENOENT or ECONNREFUSED if no broker
// answers; EACCES or EMFILE if the broker refuses; EPROTONOSUPPORT if its version differs; EINVAL
// for an unknown mode. `sw_init_error` explains the failure.
//
// # Safety
// `options` is null or points to a struct whose path is null or ends with a zero byte.
int sw_init(const struct sw_options *options);

// Writes the reason why this thread could not attach into `buffer`, cut off at `size` bytes, with
// a zero byte at the end. Returns the length of the whole reason without the zero byte; 0 if there
// was no failure.
//
// # Safety
// `buffer` is null or has `size` bytes.
size_t sw_init_error(char *buffer, size_t size);

// Returns the modes that the host stack has granted: `SW_MODE_…` bits; 0, with `errno`, if this
// process cannot be attached.
uint32_t sw_modes(void);

// socket(2): a TCP socket of the split stack. `domain` is AF_INET or AF_INET6, `type` SOCK_STREAM,
// optionally with SOCK_NONBLOCK and SOCK_CLOEXEC, `protocol` 0 or IPPROTO_TCP.
//
// EAFNOSUPPORT, ESOCKTNOSUPPORT, EPROTONOSUPPORT for others; EMFILE, ENFILE, ENOBUFS; the errors
// of `sw_init`.
int sw_socket(int domain, int kind, int protocol);

// bind(2). EINVAL if the socket has an address; EADDRINUSE, EADDRNOTAVAIL, EACCES, EAFNOSUPPORT.
//
// # Safety
// `at` is null or has `len` bytes.
int sw_bind(int fd, const struct sockaddr *at, socklen_t len);

// listen(2). EINVAL if the socket is connected; EADDRINUSE.
int sw_listen(int fd, int backlog);

// connect(2). AF_UNSPEC ends the socket's connection or its listening. After an error the socket
// may connect again. EINPROGRESS, EALREADY, EISCONN; ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH,
// ENETUNREACH, EADDRNOTAVAIL, EACCES; EINTR, after which the connection continues to open.
//
// # Safety
// `at` is null or has `len` bytes.
int sw_connect(int fd, const struct sockaddr *at, socklen_t len);

// accept(2).
//
// # Safety
// As for `sw_accept4`.
int sw_accept(int fd, struct sockaddr *at, socklen_t *len);

// accept4(2). EAGAIN, EINVAL if `fd` is no listener, EMFILE, EINTR. `at` and `len` may both be
// null.
//
// # Safety
// `at` is null or has as many bytes as `len` points to.
int sw_accept4(int fd, struct sockaddr *at, socklen_t *len, int flags);

// getsockname(2).
//
// # Safety
// `at` is null or has as many bytes as `len` points to.
int sw_getsockname(int fd, struct sockaddr *at, socklen_t *len);

// getpeername(2). ENOTCONN if there is no connection.
//
// # Safety
// `at` is null or has as many bytes as `len` points to.
int sw_getpeername(int fd, struct sockaddr *at, socklen_t *len);

// shutdown(2). ENOTCONN if there is no connection; EINVAL.
int sw_shutdown(int fd, int how);

// close(2), of a descriptor of any kind. The connection ends when the last descriptor of the
// socket is closed in all processes; data already sent is still delivered. After `close` on a
// split descriptor, this library still takes the number for that socket, even if it is reused.
int sw_close(int fd);

// Turns a descriptor from another process of this application, received in an `SCM_RIGHTS`
// message, into the split socket or file that it was there. `fork` and `dup` need no such call.
//
// Returns 1 for a split socket or a file of the NIC stack, 0 for another descriptor; -1: EBADF if
// the descriptor is not open, or its socket has ended; EMFILE; ECONNRESET if the host stack is
// gone.
int sw_recover(int fd);

// recv(2). Flags: MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, MSG_TRUNC; EOPNOTSUPP for others. EAGAIN,
// ENOTCONN, EINTR; the error of the connection, once.
//
// # Safety
// `buffer` is null or has `len` bytes.
ssize_t sw_recv(int fd, void *buffer, size_t len, int flags);

// recvfrom(2): as `sw_recv`. A stream names no sender, so `at` is not written and `len_at` is set
// to 0.
//
// # Safety
// `buffer` is null or has `len` bytes; `len_at` is null or valid.
ssize_t sw_recvfrom(int fd,
                    void *buffer,
                    size_t len,
                    int flags,
                    struct sockaddr *at,
                    socklen_t *len_at);

// recvmsg(2): as `sw_recv`. Returns neither a name nor control data.
//
// # Safety
// `message` is null or points to a message whose buffers have the lengths that it names.
ssize_t sw_recvmsg(int fd, struct msghdr *message, int flags);

// send(2). Flags: MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE; EOPNOTSUPP for others. EAGAIN, EINTR;
// EPIPE, with SIGPIPE; the error of the connection, once.
//
// # Safety
// `buffer` is null or has `len` bytes.
ssize_t sw_send(int fd, const void *buffer, size_t len, int flags);

// sendto(2): as `sw_send`; the address is ignored, as Linux does for a stream.
//
// # Safety
// `buffer` is null or has `len` bytes.
ssize_t sw_sendto(int fd,
                  const void *buffer,
                  size_t len,
                  int flags,
                  const struct sockaddr *at,
                  socklen_t len_at);

// sendmsg(2): as `sw_send`. The message's name and control data are ignored.
//
// # Safety
// `message` is null or points to a message whose buffers have the lengths that it names.
ssize_t sw_sendmsg(int fd, const struct msghdr *message, int flags);

// read(2), of a descriptor of any kind.
//
// # Safety
// `buffer` is null or has `len` bytes.
ssize_t sw_read(int fd, void *buffer, size_t len);

// write(2), of a descriptor of any kind.
//
// # Safety
// `buffer` is null or has `len` bytes.
ssize_t sw_write(int fd, const void *buffer, size_t len);

// readv(2), of a descriptor of any kind.
//
// # Safety
// `vectors` is null or has `count` buffers, each with the length that it names.
ssize_t sw_readv(int fd, const struct iovec *vectors, int count);

// writev(2), of a descriptor of any kind.
//
// # Safety
// `vectors` is null or has `count` buffers, each with the length that it names.
ssize_t sw_writev(int fd, const struct iovec *vectors, int count);

// sendfile(2), to a descriptor of any kind. On a split socket the NIC stack sends the file, which
// never enters the program, if the file can be passed to it; otherwise the library reads and sends
// the bytes. The file's own position moves only if `offset` is null. `in_fd` may be a file of
// `offload_open`; then `offset` must not be null.
//
// A file that is written to before its bytes have left ends the connection (ESTALE).
//
// EAGAIN if no byte may be queued and `out_fd` does not block; EPIPE with SIGPIPE, and the other
// errors of `sw_send`; EINVAL for a negative offset; EBADF if `in_fd` is not open for reading. If
// `in_fd` has no positions, such as a pipe: EINVAL, or ESPIPE if `offset` is not null.
//
// # Safety
// `offset` is null or valid.
ssize_t sw_sendfile(int out_fd, int in_fd, off_t *offset, size_t count);

// setsockopt(2). SOL_SOCKET: REUSEADDR, REUSEPORT, KEEPALIVE, LINGER, RCVBUF, SNDBUF, RCVLOWAT,
// RCVTIMEO, SNDTIMEO, PRIORITY. IPPROTO_TCP: NODELAY, CORK, KEEPIDLE, KEEPINTVL, KEEPCNT,
// USER_TIMEOUT, QUICKACK, DEFER_ACCEPT, FASTOPEN, MAXSEG, NOTSENT_LOWAT, CONGESTION. IPPROTO_IP:
// TOS. IPPROTO_IPV6: V6ONLY, TCLASS. SOL_SPLITWAY: SW_SETUP_OFFLOAD, SW_TEARDOWN_OFFLOAD.
//
// ENOPROTOOPT for others; EINVAL, EDOM; ENOENT for an unknown congestion control; EPERM for an
// offload that the stack's configuration forbids.
//
// # Safety
// `value` is null or has `len` bytes.
int sw_setsockopt(int fd, int level, int name, const void *value, socklen_t len);

// getsockopt(2). The options of `sw_setsockopt`; SOL_SOCKET: ERROR, TYPE, DOMAIN, PROTOCOL,
// ACCEPTCONN, COOKIE; IPPROTO_TCP: INFO (`struct tcp_info`, cut off at `len`).
//
// # Safety
// `value` is null or has as many bytes as `len` points to.
int sw_getsockopt(int fd, int level, int name, void *value, socklen_t *len);

// fcntl(2), of a descriptor of any kind. A duplicate by F_DUPFD or F_DUPFD_CLOEXEC of a split
// socket is a split socket; O_NONBLOCK and FD_CLOEXEC are the kernel's. `argument` is the number
// or the pointer that the command takes, or 0.
//
// # Safety
// If the command takes a pointer, it is valid.
int sw_fcntl(int fd, int command, long argument);

// ioctl(2), of a descriptor of any kind. For a split socket: FIONREAD, TIOCOUTQ (SIOCOUTQ),
// SIOCOUTQNSD, SIOCATMARK, FIONBIO, FIOCLEX, FIONCLEX; ENOTTY for others.
//
// # Safety
// `argument` is valid for the request.
int sw_ioctl(int fd, unsigned long request, void *argument);

// epoll_create1(2): a set of split sockets, files of the NIC stack, other sets and descriptors of
// the kernel. A child of a fork gets a copy of the set as it was at the fork.
int sw_epoll_create1(int flags);

// epoll_ctl(2). Level and edge triggers and EPOLLONESHOT are as in epoll(7). EEXIST, ENOENT,
// EBADF, EPERM; EINVAL for a split socket in a set that `sw_epoll_create1` has not made.
//
// # Safety
// `event` is null or valid.
int sw_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);

// epoll_wait(2). EINTR after any signal handler (signal(7)).
//
// # Safety
// `events` is null or has room for `max`.
int sw_epoll_wait(int epoll, struct epoll_event *events, int max, int timeout_ms);

// epoll_pwait(2).
//
// # Safety
// `events` is null or has room for `max`; `mask` is null or valid.
int sw_epoll_pwait(int epoll,
                   struct epoll_event *events,
                   int max,
                   int timeout_ms,
                   const sigset_t *mask);

// poll(2), of descriptors of any kind. EINTR after any signal handler (signal(7)).
//
// # Safety
// `fds` is null or has `count` items.
int sw_poll(struct pollfd *fds, nfds_t count, int timeout_ms);

// Begins to open a file below the NIC stack's root for reading. Returns a descriptor that becomes
// readable when the file is open or has failed; EPOLLERR marks a failure. `mode` is O_RDONLY,
// optionally with O_CLOEXEC and O_NONBLOCK.
//
// EINVAL for another mode, ENOENT, ENAMETOOLONG, EMFILE. `offload_fstat` returns the reason of a
// failure.
//
// # Safety
// `filename` is null or ends with a zero byte.
int offload_open(const char *filename, int mode);

// Closes a file. Its queued ranges are still sent. EBADF if `fid` is no file of the NIC stack.
int offload_close(int fid);

// Returns a file's metadata from the NIC stack: size, times, inode and device; the type is a
// regular file. EAGAIN while the file is being opened. ENOENT, EACCES or EIO if it could not be
// opened or read; EBADF if `fid` is no file of the NIC stack.
//
// # Safety
// `buffer` is null or has room for a `struct stat`.
int offload_fstat(int fid, struct stat *buffer);

// Queues a range of a file behind the data already sent. Returns the number of bytes queued: fewer
// than `len` if the connection may not queue more, 0 at the end of the file. The file may still be
// opening.
//
// EOPNOTSUPP if the peer is on the same stack, to which the NIC stack does not send: send the
// bytes themselves. EAGAIN if no byte may be queued and `socket` does not block; EPIPE with
// SIGPIPE, and the other errors of `sw_send`; the error of `offload_fstat` for a file that has
// failed; EINVAL for a negative offset; EBADF if `fid` is no file of the NIC stack.
ssize_t offload_write(int socket, int fid, off_t offset, size_t len);

// Sends as `sw_send`. `sw_zc_complete` returns `cookie` when the peer has acknowledged the last
// byte taken; a call may take fewer than `len`. The buffer must stay unchanged until then, as with
// MSG_ZEROCOPY. A send of no bytes has no completion.
//
// The errors of `sw_send`; ENOBUFS if 1,024 completions of the socket have not been taken.
//
// # Safety
// `buffer` is null or has `len` bytes.
ssize_t sw_send_zc(int fd, const void *buffer, size_t len, int flags, uint64_t cookie);

// Takes completions of this process's `sw_send_zc` on a socket, in the order of the stream, and
// returns their number. The socket reports EPOLLERR while there are any. If there are none, the
// call waits for `timeout_ms` milliseconds, without limit if that is negative; it returns 0 after
// that time, or if no send is outstanding.
//
// EINVAL if `max` is not above 0; EINTR, as in signal(7).
//
// # Safety
// `completions` is null or has room for `max`.
int sw_zc_complete(int fd, struct sw_zc_completion *completions, int max, int timeout_ms);

// Makes a NIC stack join two connections: data from one leaves on the other, ends included. Data
// unread on either, and data already written to either, goes first. Until the sockets come back or
// end, calls that move bytes or shut down fail with EBUSY, and sw_close resets both peers. Both
// sockets report EPOLLPRI when the stage changes; `sw_splice_status` returns it. `limits` may be
// null.
//
// EINVAL if both are one socket; ENOTCONN if one is not open in both directions; EBUSY if one is
// part of a splice; EOPNOTSUPP if both ends of one are on this stack; EPROTONOSUPPORT if only one
// has timestamps; ENODEV if no NIC stack joins connections; ENOBUFS if there are too many splices.
// After an error both sockets are as before, and the program goes on copying.
//
// # Safety
// `limits` is null or points to a struct.
int sw_splice(int first, int second, const struct sw_splice_limits *limits);

// Returns both sockets of the splice of `fd` to the program, which has them when
// `sw_splice_status` reports SW_SPLICE_RETURNED. A splice stays if a peer has closed. EINVAL if
// the socket is part of no splice.
int sw_unsplice(int fd);

// Returns the state of a socket's last splice, and clears EPOLLPRI. The error of
// SW_SPLICE_RETURNED is one of `sw_splice`; ETIMEDOUT: the connections did not become quiet; or
// ECANCELED: the program has cancelled the splice or closed the other socket. The error of
// SW_SPLICE_ENDED is the connection's: ECONNRESET: by its peer; ECONNABORTED: the other connection
// was reset; ETIMEDOUT: a limit; EIO: the NIC stack is gone.
//
// # Safety
// `status` is null or has room for a struct.
int sw_splice_status(int fd, struct sw_splice_status *status);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPLITWAY_H */
