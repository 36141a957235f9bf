//! Keeps thumbnails of more pictures than fit into memory in a `VolatileCache`, and for
//! comparison in a plain `HashMap`, each in a process of its own under a memory limit:
//! `cargo run --release --example thumbnail_cache`
//!
//! Creating the cgroup with the limit needs root. Without the cgroup neither process is
//! killed, and the map takes 190 MiB. The example ends within 20 seconds.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Instant;

use common::cgroup::{Group, enter_group};
use tenure::VolatileCache;

#[path = "../tests/common/mod.rs"]
mod common;

const MIB: usize = 1 << 20;
const LIMIT: usize = 64 * MIB;

/// The side of a thumbnail in pixels; a pixel has 4 bytes (RGBA).
const SIDE: usize = 64;
const THUMBNAIL: usize = SIDE * SIDE * 4;

/// So many that their thumbnails take three times the limit.
const PICTURES: u64 = (3 * LIMIT / THUMBNAIL) as u64;
const VIEWS: u64 = 50_000;

fn main() -> std::io::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("cache") => {
            let cache = VolatileCache::new();
            view_in_the_group(|picture| {
                let mut made = false;
                let thumbnail = cache.get_or_insert_with(picture, || {
                    made = true;
                    shrink(picture)
                });
                check(&thumbnail, picture);
                made
            });
            println!("  {:?}", cache.stats());
            Ok(())
        }
        Some("map") => {
            let mut map: HashMap<u64, Vec<u8>> = HashMap::new();
            view_in_the_group(|picture| {
                let before = map.len();
                let thumbnail = map.entry(picture).or_insert_with(|| shrink(picture));
                check(thumbnail, picture);
                map.len() > before
            });
            Ok(())
        }
        _ => compare(),
    }
}

fn compare() -> std::io::Result<()> {
    let data = PICTURES as usize * THUMBNAIL / MIB;
    println!("{VIEWS} views of {PICTURES} pictures, {data} MiB of thumbnails");
    let group = Group::with_limit(LIMIT);
    match &group {
        Ok(_) => println!("in a cgroup of {} MiB", LIMIT / MIB),
        Err(reason) => println!("with all the memory of this machine: {reason}"),
    }
    for (kind, name) in [("cache", "VolatileCache"), ("map", "HashMap")] {
        println!("\n{name}:");
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(kind);
        if let Ok(group) = &group {
            group.tell(&mut command);
            command.env("THUMBNAILS_IN_GROUP", "1");
        }
        let status = command.status()?;
        match status.signal() {
            Some(9) => println!("  killed by the kernel: out of memory"),
            _ => println!("  ended with {status}"),
        }
    }
    Ok(())
}

/// Views one picture after the other, some far more often than others. `view` returns
/// whether it had to make the thumbnail.
fn view_in_the_group(mut view: impl FnMut(u64) -> bool) {
    if std::env::var_os("THUMBNAILS_IN_GROUP").is_some() {
        enter_group();
    }
    let mut random = fastrand::Rng::with_seed(1);
    let began = Instant::now();
    let (mut made, mut made_before) = (0_u64, 0);
    for views in 1..=VIEWS {
        // Zipf's law: the nth picture is viewed n times more rarely than the first.
        let nth = (PICTURES as f64).powf(random.f64()) as u64;
        made += u64::from(view(nth));
        if views % (VIEWS / 5) == 0 {
            let hits = 100.0 - (made - made_before) as f64 * 100.0 / (VIEWS / 5) as f64;
            made_before = made;
            let memory = common::status_kib("VmRSS") / 1024;
            let seconds = began.elapsed().as_secs_f64();
            println!(
                "  {seconds:4.1} s  {views:6} views, {hits:.0} % hits, {memory:3} MiB in memory"
            );
        }
    }
}

/// Makes a thumbnail. A real program would read and decode a file here.
fn shrink(picture: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(picture);
    let mut pixels = vec![0_u8; THUMBNAIL];
    for pixel in pixels.chunks_exact_mut(4) {
        let around: u32 = (0..4).map(|_| u32::from(random.u8(..))).sum();
        pixel.copy_from_slice(&around.to_le_bytes());
    }
    pixels[..8].copy_from_slice(&picture.to_le_bytes());
    pixels
}

fn check(thumbnail: &[u8], picture: u64) {
    assert_eq!(thumbnail[..8], picture.to_le_bytes());
    assert!(thumbnail.len() == THUMBNAIL && thumbnail[THUMBNAIL - 3] <= 3);
}
