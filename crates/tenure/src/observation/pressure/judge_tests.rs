use super::*;
use crate::ground::sys::cgroup::Events;
use crate::ground::sys::psi::Stalled;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// A machine with much memory, whose figures a test changes, and its time.
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
        perhaps_free_bytes: 0,
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

/// In a cgroup that is at its limit of 256 MiB, with so much page cache.
fn at_the_limit(page_cache_bytes: usize) -> Scene {
    let mut scene = calm();
    scene.reading.groups.push(Bound {
        group: Some("group".into()),
        size_bytes: 256 * MIB,
        left_bytes: 100 * MIB,
        perhaps_free_bytes: 0,
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
    /// Looks, a moment later.
    fn look_after(&mut self, time: Duration) -> (Level, Reason) {
        self.now += time;
        let verdict = self.judge.take(self.now, self.reading.clone());
        (verdict.level, verdict.reason)
    }

    fn look(&mut self) -> Level {
        self.look_after(Duration::from_secs(1)).0
    }

    fn group(&mut self) -> &mut Bound {
        &mut self.reading.groups[0]
    }

    /// Goes on for three seconds with these shares of the time stalled in the
    /// own cgroup, and the limit met.
    fn stall(&mut self, some: f64, full: f64) -> Level {
        self.stall_in(|reading| &mut reading.own, some, full)
    }

    fn stall_in(
        &mut self,
        which: fn(&mut Reading) -> &mut Option<Stalls>,
        some: f64,
        full: f64,
    ) -> Level {
        self.look();
        for _ in 0..30 {
            let tenth = Duration::from_millis(100);
            if let Some(group) = self.reading.groups.first_mut() {
                group.events.hits += 1;
            }
            let stalls = which(&mut self.reading).as_mut().unwrap();
            stalls.some.total += tenth.mul_f64(some);
            stalls.full.total += tenth.mul_f64(full);
            self.look_after(tenth);
        }
        self.judge.level
    }
}

#[test]
fn enough_is_no_pressure() {
    assert_eq!(
        calm().look_after(Duration::ZERO),
        (Level::None, Reason::Calm)
    );
    assert_eq!(calm().stall(0.04, 0.04), Level::None);
}

#[test]
fn stalls_without_cheap_victims_are_severe_early() {
    let stalled = |some, full| at_the_limit(10 * MIB).stall(some, full);
    assert_eq!(stalled(0.04, 0.04), Level::None);
    assert_eq!(stalled(0.06, 0.06), Level::Some);
    assert_eq!(stalled(0.19, 0.09), Level::Some);
    assert_eq!(stalled(0.21, 0.0), Level::Severe);
    assert_eq!(stalled(0.11, 0.11), Level::Severe);
}

#[test]
fn streaming_files_is_some_pressure() {
    // As measured in a cgroup of 256 MiB, with one thread and with two.
    for (some, full) in [(0.15, 0.15), (0.28, 0.18), (0.59, 0.39)] {
        assert_eq!(at_the_limit(200 * MIB).stall(some, full), Level::Some);
    }
    // Where nothing gets done any more, it thrashes.
    assert_eq!(at_the_limit(200 * MIB).stall(0.61, 0.3), Level::Severe);
    assert_eq!(at_the_limit(200 * MIB).stall(0.5, 0.41), Level::Severe);
}

#[test]
fn a_neighbours_stalls_are_not_ours() {
    let system: fn(&mut Reading) -> &mut Option<Stalls> = |reading| &mut reading.system;
    assert_eq!(calm().stall_in(system, 0.9, 0.9), Level::None);
    // Nobody tells of ours, and our limit is met.
    let mut scene = at_the_limit(0);
    scene.reading.own = None;
    assert_eq!(scene.stall_in(system, 0.9, 0.9), Level::Severe);
    // Ours tell that we do not stall.
    assert_eq!(at_the_limit(0).stall_in(system, 0.9, 0.9), Level::None);
    // Nobody tells of ours, and no limit of ours is met.
    let mut scene = at_the_limit(0);
    scene.reading.own = None;
    scene.look();
    scene.reading.system.as_mut().unwrap().some.total += Duration::from_millis(900);
    assert_eq!(scene.look(), Level::None);
    // The machine itself has no memory.
    scene.reading.system.as_mut().unwrap().some.total += Duration::from_millis(900);
    scene.reading.machine.events.hits += 1;
    assert_eq!(scene.look(), Level::Severe);
}

#[test]
fn a_full_group_whose_hits_are_not_counted_may_have_been_met() {
    let stalling = |hits, unused_bytes| {
        let mut scene = at_the_limit(0);
        scene.reading.own = None;
        let group = scene.group();
        (group.events.hits, group.unused_bytes) = (hits, unused_bytes);
        scene.look();
        scene.reading.system.as_mut().unwrap().some.total += Duration::from_millis(900);
        scene.look()
    };
    assert_eq!(stalling(0, 0), Level::Severe);
    assert_eq!(stalling(0, 17 * MIB), Level::None);
    // Counted: none since.
    assert_eq!(stalling(1, 0), Level::None);
}

#[test]
fn a_single_look_takes_the_kernels_average() {
    let average = |scene: &mut Scene, share| {
        let stalled = Stalled {
            recent_share: share,
            ..Stalled::default()
        };
        scene.reading.own.as_mut().unwrap().some = stalled;
        scene.look()
    };
    assert_eq!(average(&mut at_the_limit(0), 0.04), Level::None);
    assert_eq!(average(&mut at_the_limit(0), 0.06), Level::Some);
    assert_eq!(average(&mut at_the_limit(0), 0.25), Level::Severe);
    assert_eq!(average(&mut at_the_limit(200 * MIB), 0.25), Level::Some);
}

#[test]
fn a_single_look_at_a_full_machine_leaves_the_systems_stalls_to_others() {
    let stalling = |machine: fn(&mut Bound)| {
        let mut scene = calm();
        let some = &mut scene.reading.system.as_mut().unwrap().some;
        some.recent_share = 0.25;
        machine(&mut scene.reading.machine);
        scene.look()
    };
    // Full of page cache, as machines are.
    assert_eq!(stalling(|machine| machine.unused_bytes = 0), Level::None);
    let tight = |machine: &mut Bound| {
        machine.left_bytes = 15 * GIB;
        machine.page_cache_bytes = 15 * GIB;
    };
    assert_eq!(stalling(tight), Level::Severe);
}

#[test]
fn a_short_stall_after_a_long_sleep_counts_as_it_was() {
    let mut scene = at_the_limit(0);
    scene.look();
    scene.group().events.hits += 1;
    scene.reading.own.as_mut().unwrap().some.total += Duration::from_millis(500);
    // Half a second of the last two: a trigger would have reported it earlier.
    let asleep = Duration::from_secs(5);
    assert_eq!(scene.look_after(asleep), (Level::Severe, Reason::Stalls));
}

#[test]
fn little_room_is_pressure_relative_to_the_bound() {
    let with = |left: usize| {
        let mut scene = at_the_limit(0);
        scene.group().left_bytes = left;
        scene.look_after(Duration::ZERO)
    };
    assert_eq!(with(26 * MIB), (Level::None, Reason::Calm));
    assert_eq!(with(25 * MIB), (Level::Some, Reason::LittleRoom));
    assert_eq!(with(8 * MIB), (Level::Some, Reason::LittleRoom));
    assert_eq!(with(8 * MIB - 1), (Level::Severe, Reason::LittleRoom));
    // 3 % of a terabyte are plenty.
    assert_eq!(level_by_room(1 << 40, 5 * GIB), Level::None);
    assert_eq!(level_by_room(1 << 40, 4 * GIB - 1), Level::Some);
    assert_eq!(level_by_room(1 << 40, GIB), Level::Some);
    assert_eq!(level_by_room(1 << 40, GIB - 1), Level::Severe);
}

#[test]
fn what_has_run_out_is_severe() {
    let mut scene = at_the_limit(0);
    // Of old, not now.
    scene.group().events.ooms = 3;
    assert_eq!(scene.look(), Level::None);
    scene.group().events.ooms = 4;
    let second = Duration::from_secs(1);
    assert_eq!(
        scene.look_after(second),
        (Level::Severe, Reason::OutOfMemory)
    );
    let mut scene = at_the_limit(0);
    scene.group().events.is_out_of_memory = true;
    assert_eq!(scene.look(), Level::Severe);
    // A group that is new to us brings its own past.
    let mut scene = calm();
    scene.look();
    scene.reading.groups = at_the_limit(0).reading.groups;
    scene.group().events.ooms = 4;
    assert_eq!(scene.look(), Level::None);
}

#[test]
fn without_stall_times_limits_that_are_met_count() {
    let met = |times, page_cache_bytes| {
        let mut scene = at_the_limit(page_cache_bytes);
        (scene.reading.own, scene.reading.system) = (None, None);
        scene.look();
        scene.group().events.hits += times;
        scene.look_after(Duration::from_secs(1))
    };
    assert_eq!(met(10_000, 0), (Level::None, Reason::Calm));
    assert_eq!(met(20_000, 0), (Level::Some, Reason::LimitHits));
    assert_eq!(met(100_000, 0), (Level::Severe, Reason::LimitHits));
    assert_eq!(met(100_000, 200 * MIB), (Level::Some, Reason::LimitHits));
}

#[test]
fn it_rises_at_once_and_falls_step_by_step() {
    let mut scene = at_the_limit(0);
    assert_eq!(scene.look(), Level::None);
    scene.group().left_bytes = 0;
    assert_eq!(scene.look(), Level::Severe);
    scene.group().left_bytes = 100 * MIB;
    let second = Duration::from_secs(1);
    for _ in 0..CALM.as_secs() {
        assert_eq!(
            scene.look_after(second),
            (Level::Severe, Reason::CalmingDown)
        );
    }
    for _ in 0..CALM.as_secs() {
        assert_eq!(scene.look_after(second), (Level::Some, Reason::CalmingDown));
    }
    assert_eq!(scene.look_after(second), (Level::None, Reason::Calm));
}

#[test]
fn what_is_noted_between_two_looks_is_some_pressure_for_a_while() {
    let mut scene = at_the_limit(0);
    assert_eq!(scene.look(), Level::None);
    scene.judge.note(scene.now, Reason::TakenSoon);
    assert_eq!(scene.judge.level(), (Level::Some, Reason::TakenSoon));
    let second = Duration::from_secs(1);
    for _ in 0..CALM.as_secs() {
        assert_eq!(scene.look_after(second), (Level::Some, Reason::CalmingDown));
    }
    assert_eq!(scene.look_after(second), (Level::None, Reason::Calm));
    // More pressure than that stays.
    scene.group().left_bytes = 0;
    assert_eq!(scene.look(), Level::Severe);
    scene.judge.note(scene.now, Reason::TakenSoon);
    assert_eq!(scene.judge.level(), (Level::Severe, Reason::LittleRoom));
}

#[test]
fn what_is_short_of_calm_holds_it() {
    let mut scene = at_the_limit(0);
    let left = |scene: &mut Scene, bytes| {
        scene.group().left_bytes = bytes;
        scene.look()
    };
    assert_eq!(left(&mut scene, 0), Level::Severe);
    for _ in 0..30 {
        assert_eq!(left(&mut scene, 100 * MIB), Level::Severe);
        assert_eq!(left(&mut scene, 0), Level::Severe);
    }
    // Some pressure lets it fall to that, and no further.
    for _ in 0..30 {
        left(&mut scene, 20 * MIB);
    }
    assert_eq!(
        scene.look_after(Duration::ZERO),
        (Level::Some, Reason::LittleRoom)
    );
}

#[test]
fn what_shrinks_tells_when_it_will_be_gone() {
    let mut scene = at_the_limit(0);
    let mut verdict = |left| {
        scene.group().left_bytes = left;
        scene.now += Duration::from_secs(1);
        scene.judge.take(scene.now, scene.reading.clone())
    };
    assert_eq!(verdict(200 * MIB).used_up_in, None);
    let shrunk = verdict(160 * MIB);
    assert_eq!(shrunk.used_up_in, Some(Duration::from_secs(4)));
    assert_eq!(shrunk.left_bytes, 160 * MIB);
    assert_eq!(verdict(160 * MIB).used_up_in, None);
}
