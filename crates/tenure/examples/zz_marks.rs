//! Times marks.
#![allow(clippy::undocumented_unsafe_blocks)]
use std::time::Instant;
use tenure::*;
fn main() {
    let mut b = VolatileBuffer::new(1 << 20).unwrap();
    b.as_mut_slice().unwrap().fill(1);
    b.mark_volatile();
    let _ = b.mark_nonvolatile();
    for _ in 0..3 {
        let n = 1_000_000;
        let t = Instant::now();
        for _ in 0..n {
            b.mark_volatile();
            assert!(matches!(b.mark_nonvolatile(), Ok(Outcome::Intact)));
        }
        println!("handle pair {:?}", t.elapsed() / n);
    }
    let n = 10_000usize;
    let mem = Mapping::anonymous(n * 8 * 4096)
        .huge_pages(HugePages::Never)
        .map()
        .unwrap();
    let r = |i: usize| PageRange::new(mem.range().start() + i * 8 * 4096, 4 * 4096).unwrap();
    let t = Instant::now();
    for i in 0..n {
        unsafe {
            r(i).mark_volatile().unwrap();
        }
    }
    println!("first marks {:?} each", t.elapsed() / n as u32);
    std::thread::sleep(std::time::Duration::from_millis(2000));
    for _ in 0..3 {
        let t = Instant::now();
        let m = 200_000u32;
        let mut i = 1;
        for _ in 0..m {
            i = (i * 7919 + 1) % n;
            unsafe {
                r(i).mark_volatile().unwrap();
            }
        }
        println!("mark {:?}", t.elapsed() / m);
        let t = Instant::now();
        for j in 0..n {
            unsafe {
                let _ = r(j).mark_nonvolatile().unwrap();
            }
        }
        println!("unmark {:?}", t.elapsed() / n as u32);
        for j in 0..n {
            unsafe {
                r(j).mark_volatile().unwrap();
            }
        }
        let t = Instant::now();
        for _ in 0..100_000 {
            i = (i * 7919 + 1) % n;
            unsafe {
                let _ = r(i).mark_nonvolatile().unwrap();
                r(i).mark_volatile().unwrap();
            }
        }
        println!("pair {:?}", t.elapsed() / 100_000);
    }
}
