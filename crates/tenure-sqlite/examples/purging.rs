//! A shared library for tests: named in LD_PRELOAD, it has the program's SQLite use the page
//! cache, whose pages it purges all the time. `PURGING_MICROS` is the longest pause.

use std::thread;
use std::time::{Duration, Instant};

use tenure::volatile::{purge_all, set_offer_delay};

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // SAFETY: no other thread runs yet.
    let installed = unsafe { tenure_sqlite::tenure_sqlite3_install() };
    let micros = std::env::var("PURGING_MICROS").ok();
    if installed == 0
        && let Some(micros) = micros.and_then(|micros| micros.parse().ok())
    {
        purge_for_ever(micros);
    }
}

fn purge_for_ever(max_micros: u64) {
    let begun = Instant::now();
    // The cache waits 100 times as long where enough memory is left.
    set_offer_delay(Duration::from_nanos(max_micros * 1000 / 400));
    thread::spawn(move || {
        loop {
            // Any figure that differs from one time to the next.
            let pause = u64::from(begun.elapsed().subsec_nanos()) / 7 % (max_micros + 1);
            thread::sleep(Duration::from_micros(pause));
            let _ = purge_all();
        }
    });
}
