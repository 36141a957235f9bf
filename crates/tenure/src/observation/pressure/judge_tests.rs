use super::*;
use crate::ground::sys::cgroup::Events;
use crate::ground::sys::psi::Stalled;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// A machine with much memory, whose figures a test changes, and a clock.
struct Scene {
    judge: Judge,
    now: Instant,
    reading: Reading,
}

fn calm() -> Scene {
    let machine = Bound {
        group: None,
        size_bytes: 64 * GIB,
        left_bytes: 50 * GIB,
        maybe_free_bytes: 0,
        unused_bytes: 40 * GIB,
        page_cache_bytes: 20 * GIB,
        events: Events::default(),
    };
    let reading = Reading {
        own: Some(Stalls::default()),
        system: Some(Stalls::default()),
        machine,
        groups: Vec::new(),
    };
    Scene {
        judge: Judge::new(),
        now: Instant::now(),
        reading,
    }
}

/// A process in a cgroup at its limit of 256 MiB, with so much page cache.
fn at_the_limit(page_cache_bytes: usize) -> Scene {
    let mut scene = calm();
    scene.reading.groups.push(Bound {
        group: Some("group".into()),
        size_bytes: 256 * MIB,
        left_bytes: 100 * MIB,
        maybe_free_bytes: 0,
        unused_bytes: 0,
        page_cache_bytes,
        events: Events {
            hits: 1,
            ..Events::default()
        },
    });
    scene
}

impl Scene {
    /// Takes a reading after `time`.
    fn read_after(&mut self, time: Duration) -> (Level, Reason) {
        self.now += time;
        let verdict = self.judge.update(self.now, self.reading.clone());
        (verdict.level, verdict.reason)
    }

    fn read(&mut self) -> Level {
        self.read_after(Duration::from_secs(1)).0
    }

    fn group(&mut self) -> &mut Bound {
        &mut self.reading.groups[0]
    }

    /// Stalls the own cgroup for these shares of three seconds, while it hits
    /// its limit.
    fn stall(&mut self, some: f64, full: f64) -> Level {
        self.stall_in(|reading| &mut reading.own, some, full)
    }

    fn stall_in(
        &mut self,
        which: fn(&mut Reading) -> &mut Option<Stalls>,
        some: f64,
        full: f64,
    ) -> Level {
        self.read();
        for _ in 0..30 {
            let tenth = Duration::from_millis(100);
            if let Some(group) = self.reading.groups.first_mut() {
                group.events.hits += 1;
            }
            let stalls = which(&mut self.reading).as_mut().unwrap();
            stalls.some.total += tenth.mul_f64(some);
            stalls.full.total += tenth.mul_f64(full);
            self.read_after(tenth);
        }
        self.judge.level
    }
}

#[test]
fn sufficient_memory_is_level_none() {
    assert_eq!(
        calm().read_after(Duration::ZERO),
        (Level::None, Reason::None)
    );
    assert_eq!(calm().stall(0.04, 0.04), Level::None);
}

#[test]
fn stalls_with_little_page_cache_are_severe_early() {
    let stalled = |some, full| at_the_limit(10 * MIB).stall(some, full);
    assert_eq!(stalled(0.04, 0.04), Level::None);
    assert_eq!(stalled(0.06, 0.06), Level::Some);
    assert_eq!(stalled(0.19, 0.09), Level::Some);
    assert_eq!(stalled(0.21, 0.0), Level::Severe);
    assert_eq!(stalled(0.11, 0.11), Level::Severe);
}

#[test]
fn stalls_of_streaming_files_are_level_some() {
    // Measured in a cgroup of 256 MiB, with one thread and with two.
    for (some, full) in [(0.15, 0.15), (0.28, 0.18), (0.59, 0.39)] {
        assert_eq!(at_the_limit(200 * MIB).stall(some, full), Level::Some);
    }
    // Higher shares are thrashing.
    assert_eq!(at_the_limit(200 * MIB).stall(0.61, 0.3), Level::Severe);
    assert_eq!(at_the_limit(200 * MIB).stall(0.5, 0.41), Level::Severe);
}

#[test]
fn system_stalls_without_own_limit_hit_are_ignored() {
    let system: fn(&mut Reading) -> &mut Option<Stalls> = |reading| &mut reading.system;
    assert_eq!(calm().stall_in(system, 0.9, 0.9), Level::None);
    // The own cgroup reports no stalls, and hits its limit.
    let mut scene = at_the_limit(0);
    scene.reading.own = None;
    assert_eq!(scene.stall_in(system, 0.9, 0.9), Level::Severe);
    // The own cgroup reports that it does not stall.
    assert_eq!(at_the_limit(0).stall_in(system, 0.9, 0.9), Level::None);
    // The own cgroup reports no stalls, and no limit is hit.
    let mut scene = at_the_limit(0);
    scene.reading.own = None;
    scene.read();
    scene.reading.system.as_mut().unwrap().some.total += Duration::from_millis(900);
    assert_eq!(scene.read(), Level::None);
    // The machine itself has no memory.
    scene.reading.system.as_mut().unwrap().some.total += Duration::from_millis(900);
    scene.reading.machine.events.hits += 1;
    assert_eq!(scene.read(), Level::Severe);
}

#[test]
fn full_group_without_hit_counter_counts_as_hit() {
    let stalling = |hits, unused_bytes| {
        let mut scene = at_the_limit(0);
        scene.reading.own = None;
        let group = scene.group();
        (group.events.hits, group.unused_bytes) = (hits, unused_bytes);
        scene.read();
        scene.reading.system.as_mut().unwrap().some.total += Duration::from_millis(900);
        scene.read()
    };
    assert_eq!(stalling(0, 0), Level::Severe);
    assert_eq!(stalling(0, 17 * MIB), Level::None);
    // Hits are counted, and there was none since.
    assert_eq!(stalling(1, 0), Level::None);
}

#[test]
fn single_reading_uses_kernel_average() {
    let average = |scene: &mut Scene, share| {
        let stalled = Stalled {
            recent_share: share,
            ..Stalled::default()
        };
        scene.reading.own.as_mut().unwrap().some = stalled;
        scene.read()
    };
    assert_eq!(average(&mut at_the_limit(0), 0.04), Level::None);
    assert_eq!(average(&mut at_the_limit(0), 0.06), Level::Some);
    assert_eq!(average(&mut at_the_limit(0), 0.25), Level::Severe);
    assert_eq!(average(&mut at_the_limit(200 * MIB), 0.25), Level::Some);
}

#[test]
fn single_reading_of_full_machine_ignores_system_stalls() {
    let stalling = |machine: fn(&mut Bound)| {
        let mut scene = calm();
        let some = &mut scene.reading.system.as_mut().unwrap().some;
        some.recent_share = 0.25;
        machine(&mut scene.reading.machine);
        scene.read()
    };
    // Full of page cache, as machines usually are.
    assert_eq!(stalling(|machine| machine.unused_bytes = 0), Level::None);
    let tight = |machine: &mut Bound| {
        machine.left_bytes = 15 * GIB;
        machine.page_cache_bytes = 15 * GIB;
    };
    assert_eq!(stalling(tight), Level::Severe);
}

#[test]
fn short_stall_after_long_sleep_is_measured_over_max_window() {
    let mut scene = at_the_limit(0);
    scene.read();
    scene.group().events.hits += 1;
    scene.reading.own.as_mut().unwrap().some.total += Duration::from_millis(500);
    // Half a second of the last two: a trigger would have reported an earlier
    // one.
    let slept = Duration::from_secs(5);
    assert_eq!(scene.read_after(slept), (Level::Severe, Reason::Stalls));
}

#[test]
fn low_headroom_is_pressure_relative_to_bound() {
    let with = |left: usize| {
        let mut scene = at_the_limit(0);
        scene.group().left_bytes = left;
        scene.read_after(Duration::ZERO)
    };
    assert_eq!(with(26 * MIB), (Level::None, Reason::None));
    assert_eq!(with(25 * MIB), (Level::Some, Reason::LowHeadroom));
    assert_eq!(with(8 * MIB), (Level::Some, Reason::LowHeadroom));
    assert_eq!(with(8 * MIB - 1), (Level::Severe, Reason::LowHeadroom));
    // 3 % of a terabyte are plenty.
    assert_eq!(level_by_headroom(1 << 40, 5 * GIB), Level::None);
    assert_eq!(level_by_headroom(1 << 40, 4 * GIB - 1), Level::Some);
    assert_eq!(level_by_headroom(1 << 40, GIB), Level::Some);
    assert_eq!(level_by_headroom(1 << 40, GIB - 1), Level::Severe);
}

#[test]
fn out_of_memory_event_is_severe() {
    let mut scene = at_the_limit(0);
    // Old events, before the first reading.
    scene.group().events.ooms = 3;
    assert_eq!(scene.read(), Level::None);
    scene.group().events.ooms = 4;
    let second = Duration::from_secs(1);
    assert_eq!(
        scene.read_after(second),
        (Level::Severe, Reason::OutOfMemory)
    );
    let mut scene = at_the_limit(0);
    scene.group().events.is_out_of_memory = true;
    assert_eq!(scene.read(), Level::Severe);
    // A group that appears later brings its old events.
    let mut scene = calm();
    scene.read();
    scene.reading.groups = at_the_limit(0).reading.groups;
    scene.group().events.ooms = 4;
    assert_eq!(scene.read(), Level::None);
}

#[test]
fn limit_hits_without_psi_count_as_stalls() {
    let hit = |times, page_cache_bytes| {
        let mut scene = at_the_limit(page_cache_bytes);
        (scene.reading.own, scene.reading.system) = (None, None);
        scene.read();
        scene.group().events.hits += times;
        scene.read_after(Duration::from_secs(1))
    };
    assert_eq!(hit(10_000, 0), (Level::None, Reason::None));
    assert_eq!(hit(20_000, 0), (Level::Some, Reason::LimitHits));
    assert_eq!(hit(100_000, 0), (Level::Severe, Reason::LimitHits));
    assert_eq!(hit(100_000, 200 * MIB), (Level::Some, Reason::LimitHits));
}

#[test]
fn level_rises_at_once_and_falls_by_steps() {
    let mut scene = at_the_limit(0);
    assert_eq!(scene.read(), Level::None);
    scene.group().left_bytes = 0;
    assert_eq!(scene.read(), Level::Severe);
    scene.group().left_bytes = 100 * MIB;
    let second = Duration::from_secs(1);
    for _ in 0..COOLDOWN.as_secs() {
        assert_eq!(scene.read_after(second), (Level::Severe, Reason::Cooldown));
    }
    for _ in 0..COOLDOWN.as_secs() {
        assert_eq!(scene.read_after(second), (Level::Some, Reason::Cooldown));
    }
    assert_eq!(scene.read_after(second), (Level::None, Reason::None));
}

#[test]
fn level_raised_between_readings_cools_down() {
    let mut scene = at_the_limit(0);
    assert_eq!(scene.read(), Level::None);
    scene.judge.raise(scene.now, Reason::LazyFreeReclaimed);
    assert_eq!(
        scene.judge.level(),
        (Level::Some, Reason::LazyFreeReclaimed)
    );
    let second = Duration::from_secs(1);
    for _ in 0..COOLDOWN.as_secs() {
        assert_eq!(scene.read_after(second), (Level::Some, Reason::Cooldown));
    }
    assert_eq!(scene.read_after(second), (Level::None, Reason::None));
    // A higher level is not replaced.
    scene.group().left_bytes = 0;
    assert_eq!(scene.read(), Level::Severe);
    scene.judge.raise(scene.now, Reason::LazyFreeReclaimed);
    assert_eq!(scene.judge.level(), (Level::Severe, Reason::LowHeadroom));
}

#[test]
fn level_is_held_by_pressure_during_cooldown() {
    let mut scene = at_the_limit(0);
    let left = |scene: &mut Scene, bytes| {
        scene.group().left_bytes = bytes;
        scene.read()
    };
    assert_eq!(left(&mut scene, 0), Level::Severe);
    for _ in 0..30 {
        assert_eq!(left(&mut scene, 100 * MIB), Level::Severe);
        assert_eq!(left(&mut scene, 0), Level::Severe);
    }
    // Some pressure lets the level fall to Some, and no further.
    for _ in 0..30 {
        left(&mut scene, 20 * MIB);
    }
    assert_eq!(
        scene.read_after(Duration::ZERO),
        (Level::Some, Reason::LowHeadroom)
    );
}

#[test]
fn used_up_in_is_extrapolated_from_shrinking_headroom() {
    let mut scene = at_the_limit(0);
    let mut verdict = |left| {
        scene.group().left_bytes = left;
        scene.now += Duration::from_secs(1);
        scene.judge.update(scene.now, scene.reading.clone())
    };
    assert_eq!(verdict(200 * MIB).used_up_in, None);
    let shrunk = verdict(160 * MIB);
    assert_eq!(shrunk.used_up_in, Some(Duration::from_secs(4)));
    assert_eq!(shrunk.left_bytes, 160 * MIB);
    assert_eq!(verdict(160 * MIB).used_up_in, None);
}
