//! x
use std::time::{Duration, Instant};
use tenure::*;
fn ctx() -> (u64, u64) {
    for t in std::fs::read_dir("/proc/self/task").unwrap() {
        let p = t.unwrap().path();
        if std::fs::read_to_string(p.join("comm"))
            .unwrap()
            .starts_with("tenure-keeper")
        {
            let s = std::fs::read_to_string(p.join("status")).unwrap();
            let g = |n: &str| {
                s.lines()
                    .find_map(|l| l.strip_prefix(n))
                    .unwrap()
                    .trim()
                    .parse()
                    .unwrap()
            };
            return (
                g("voluntary_ctxt_switches:"),
                g("nonvoluntary_ctxt_switches:"),
            );
        }
    }
    (0, 0)
}
fn best(name: &str, n: usize, mut f: impl FnMut()) {
    let mut v = vec![];
    let c = ctx();
    let all = Instant::now();
    while all.elapsed() < Duration::from_millis(700) {
        let t = Instant::now();
        for _ in 0..n {
            f();
        }
        v.push(t.elapsed().as_secs_f64() / n as f64 * 1e9 / 2.0);
    }
    let mean = v.iter().sum::<f64>() / v.len() as f64;
    v.sort_by(f64::total_cmp);
    let d = ctx();
    println!(
        "{name}: min {:.1} median {:.1} mean {:.1} p99 {:.1} ns per transition; keeper switches {}",
        v[0],
        v[v.len() / 2],
        mean,
        v[v.len() * 99 / 100],
        d.0 - c.0
    );
}
fn main() {
    let mut b = VolatileBuffer::new(4096).unwrap();
    b.mark_volatile();
    let _ = b.mark_nonvolatile();
    best("handle", 1000, || {
        b.mark_volatile();
        let _ = b.mark_nonvolatile().unwrap();
    });
    let mut o = VolatileBuffer::new(4096).unwrap();
    let mut m = Mapping::anonymous(1 << 20).map().unwrap();
    m.as_mut_slice().unwrap().fill(1);
    let r = PageRange::new(m.range().start(), 4096).unwrap();
    best("raw", 1000, || unsafe {
        r.mark_volatile().unwrap();
        let _ = r.mark_nonvolatile().unwrap();
    });
    o.mark_volatile();
    std::thread::sleep(Duration::from_millis(300));
    best("handle, one other", 1000, || {
        b.mark_volatile();
        let _ = b.mark_nonvolatile().unwrap();
    });
    best("raw, one other", 1000, || unsafe {
        r.mark_volatile().unwrap();
        let _ = r.mark_nonvolatile().unwrap();
    });
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut b = VolatileBuffer::new(4096).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for _ in 0..100 {
                    b.mark_volatile();
                    let _ = b.mark_nonvolatile().unwrap();
                }
            }
        });
        best("handle, 2 threads", 1000, || {
            b.mark_volatile();
            let _ = b.mark_nonvolatile().unwrap();
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
