"""System calls by name: which ones a confined process may make, and their numbers."""

from __future__ import annotations

from lsv_base.processes.confinement.kernel import ARM64, X86_64

_ALLOWED = """
read write readv writev pread64 preadv close close_range fstat lseek getdents64 dup dup2 dup3 fcntl fstatfs fadvise64
sendto sendmsg recvfrom recvmsg shutdown getsockopt setsockopt getsockname getpeername poll ppoll select pselect6
epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2 pipe2 newfstatat stat lstat statx access faccessat faccessat2
getcwd readlink readlinkat statfs umask mmap munmap mprotect mremap madvise brk mincore membarrier get_mempolicy futex
set_robust_list get_robust_list rseq set_tid_address sched_yield sched_getaffinity sched_getscheduler sched_getparam
sched_get_priority_max sched_get_priority_min getcpu getpriority arch_prctl clock_gettime clock_getres clock_nanosleep
nanosleep gettimeofday time times getrusage getrlimit sysinfo uname getrandom getpid gettid getppid getuid geteuid
getgid getegid getresuid getresgid getgroups getpgrp getpgid capget rt_sigaction rt_sigprocmask rt_sigreturn
rt_sigpending rt_sigtimedwait sigaltstack restart_syscall exit exit_group
"""
_FORBIDDEN = """
execve execveat ptrace process_vm_readv process_vm_writev bpf perf_event_open init_module finit_module delete_module
kexec_load mount umount2 pivot_root chroot setns unshare keyctl add_key request_key userfaultfd io_uring_setup
"""
_TABLE = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, preadv 295 69, close 3 57, close_range 436 436,
fstat 5 80, lseek 8 62, getdents64 217 61, dup 32 23, dup2 33 -, dup3 292 24, fcntl 72 25, fstatfs 138 44,
fadvise64 221 223, sendto 44 206, sendmsg 46 211, recvfrom 45 207, recvmsg 47 212, shutdown 48 210,
getsockopt 55 209, setsockopt 54 208, getsockname 51 204, getpeername 52 205, poll 7 -, ppoll 271 73, select 23 -,
pselect6 270 72, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, eventfd2 290 19,
pipe2 293 59, newfstatat 262 79, stat 4 -, lstat 6 -, statx 332 291, access 21 -, faccessat 269 48,
faccessat2 439 439, getcwd 79 17, readlink 89 -, readlinkat 267 78, statfs 137 43, umask 95 166, mmap 9 222,
munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, brk 12 214, mincore 27 232, membarrier 324 283,
get_mempolicy 239 236, futex 202 98, set_robust_list 273 99, get_robust_list 274 100, rseq 334 293,
set_tid_address 218 96, sched_yield 24 124, sched_getaffinity 204 123, sched_getscheduler 145 120,
sched_getparam 143 121, sched_get_priority_max 146 125, sched_get_priority_min 147 126, getcpu 309 168,
getpriority 140 141, arch_prctl 158 -, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115,
nanosleep 35 101, gettimeofday 96 169, time 201 -, times 100 153, getrusage 98 165, getrlimit 97 163,
sysinfo 99 179, uname 63 160, getrandom 318 278, getpid 39 172, gettid 186 178, getppid 110 173, getuid 102 174,
geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158,
getpgrp 111 -, getpgid 121 155, capget 125 90, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
rt_sigpending 127 136, rt_sigtimedwait 128 137, sigaltstack 131 132, restart_syscall 219 128, exit 60 93,
exit_group 231 94, execve 59 221, execveat 322 281, ptrace 101 117, process_vm_readv 310 270,
process_vm_writev 311 271, bpf 321 280, perf_event_open 298 241, init_module 175 105, finit_module 313 273,
delete_module 176 106, kexec_load 246 104, mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51,
setns 308 268, unshare 272 97, keyctl 250 219, add_key 248 217, request_key 249 218, userfaultfd 323 282,
io_uring_setup 425 425, open 2 -, openat 257 56, openat2 437 437, clone 56 220, clone3 435 435, kill 62 129,
tgkill 234 131, prctl 157 167, prlimit64 302 261, ioctl 16 29, seccomp 317 277
"""
"""Name, number on x86-64, number on arm64; "-" where there is none. From asm/unistd_64.h and asm-generic/unistd.h."""


def _read(table: str) -> dict[str, dict[str, int]]:
    rows = [entry.split() for entry in table.replace("\n", " ").split(",") if entry.strip()]
    return {
        name: {machine: int(number) for machine, number in ((X86_64, intel), (ARM64, arm)) if number != "-"}
        for name, intel, arm in rows
    }


NUMBERS = _read(_TABLE)
ALLOWED = frozenset(_ALLOWED.split())
"""Computing, memory, threads, time, and what is open already. Those that ``seccomp`` looks into are not among them."""
FORBIDDEN = frozenset(_FORBIDDEN.split())
"""What nothing that decodes or renders has a use for."""
