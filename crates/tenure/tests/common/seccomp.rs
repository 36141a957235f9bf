//! Seccomp filters that fail a system call, or forbid all but some, for the rest of a
//! process.

/// Makes seccomp answer a system call of this process with an error from now on.
pub fn refuse(call: i64, errno: i32) {
    let step = |code: u32, jf, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let mut program = [
        // Loads the number of the call; a match continues with the next step, others skip
        // it.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call as u32),
        step(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ERRNO | errno as u32,
        ),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    install_filter(&mut program);
}

/// Makes the kernel answer ENOMEM to mmap of a thread's stack of so many bytes and more.
pub fn refuse_stacks_from(bytes: usize) {
    let step = |code: u32, jt, jf, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load = |at: usize| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at as u32);
    // The lower halves of arguments on little-endian machines.
    let argument = |index: usize| std::mem::offset_of!(libc::seccomp_data, args) + 8 * index;
    let jump = |test: u32, jt, jf, k| step(libc::BPF_JMP | test | libc::BPF_K, jt, jf, k);
    let refused = libc::SECCOMP_RET_ERRNO | libc::ENOMEM as u32;
    let mut program = [
        load(0),
        jump(libc::BPF_JEQ, 0, 5, libc::SYS_mmap as u32),
        load(argument(3)),
        jump(libc::BPF_JSET, 0, 3, libc::MAP_STACK as u32),
        load(argument(1)),
        jump(libc::BPF_JGE, 0, 1, bytes as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    install_filter(&mut program);
}

/// Makes the kernel answer EINVAL to MADV_DONTNEED_LOCKED, as before Linux 5.18.
pub fn refuse_dontneed_locked() {
    let step = |code: u32, jf, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let (load, equal) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
    );
    // The lower half of the third argument on little-endian machines.
    let advice = std::mem::offset_of!(libc::seccomp_data, args) + 2 * 8;
    let refused = libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32;
    let mut program = [
        step(load, 0, 0),
        step(equal, 3, libc::SYS_madvise as u32),
        step(load, 0, advice as u32),
        step(equal, 1, libc::MADV_DONTNEED_LOCKED as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, refused),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    install_filter(&mut program);
}

/// Keeps tenure from starting the thread that holds the userfaultfd, `/proc/self/pagemap`
/// and `/proc/self/maps` open for this process.
pub fn without_files_thread() {
    refuse(libc::SYS_close_range, libc::ENOSYS);
}

/// Makes seccomp kill this process at any system call of this thread, and of threads that
/// it starts, except `calls`.
pub fn allow_only(calls: &[i64]) {
    let step = |code: u32, jt, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf: 0,
        k,
    };
    let mut program = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (index, &call) in calls.iter().enumerate() {
        // Jumps past the other calls and past the KILL step.
        let past = u8::try_from(calls.len() - index).unwrap();
        program.push(step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            past,
            call as u32,
        ));
    }
    for answer in [libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_ALLOW] {
        program.push(step(libc::BPF_RET | libc::BPF_K, 0, answer));
    }
    install_filter(&mut program);
}

/// Installs a filter for this thread and those that it starts.
pub fn install_filter(program: &mut [libc::sock_filter]) {
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    let mode = libc::SECCOMP_MODE_FILTER;
    let (privs, filter) = unsafe {
        (
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program),
        )
    };
    assert_eq!((privs, filter), (0, 0));
}
