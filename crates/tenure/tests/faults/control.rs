//! The page of memory that the process under test and its supervisor share, so that neither
//! makes a system call to communicate.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::SeqCst};

const REPORT_BYTES: usize = 16 << 10;

#[repr(C)]
pub struct Control {
    /// The number of the filter's descriptor in the process under test, or -1.
    pub listener: AtomicI32,
    /// The supervisor has taken the descriptor.
    pub is_taken: AtomicBool,
    /// Calls are counted, and one of them may be answered with an error.
    pub is_armed: AtomicBool,
    /// The call that was to fail has failed.
    pub is_met: AtomicBool,
    report_len: AtomicUsize,
    report: std::cell::UnsafeCell<[u8; REPORT_BYTES]>,
}

unsafe impl Sync for Control {}

impl Control {
    pub fn new() -> &'static Self {
        let flags = rustix::mm::MapFlags::SHARED;
        let prot = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let len = size_of::<Self>();
        let page = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags) };
        let control: &'static Self = unsafe { &*page.unwrap().cast() };
        control.begin();
        control
    }

    /// Resets the page before each process under test.
    pub fn begin(&self) {
        self.listener.store(-1, SeqCst);
        self.is_taken.store(false, SeqCst);
        self.is_armed.store(false, SeqCst);
        self.is_met.store(false, SeqCst);
        self.report_len.store(0, SeqCst);
    }

    /// Stores the report. The process under test calls it once.
    pub fn write_report(&self, text: &str) {
        assert!(text.len() <= REPORT_BYTES, "a report of {}", text.len());
        let to = self.report.get().cast::<u8>();
        unsafe { to.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        self.report_len.store(text.len(), SeqCst);
    }

    /// Returns the report, after the process under test has ended.
    pub fn report(&self) -> String {
        let len = self.report_len.load(SeqCst);
        let bytes = unsafe { std::slice::from_raw_parts(self.report.get().cast::<u8>(), len) };
        String::from_utf8_lossy(bytes).into_owned()
    }
}
