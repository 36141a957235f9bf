//! A hit on a value that the kernel has been offered, beside a read of the page cache.

use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use tenure::{Features, VolatileCache};

use super::{HIT, byte_of};
use crate::measure::prelude::*;

const LEN: usize = 4 << 10;

/// Makes the case, unless nothing can be offered.
pub fn case(settings: &Settings, notes: &mut Vec<String>) -> Result<Option<Case>> {
    let features = Features::get();
    if !features.sigbus_on_missing() || features.madv_populate.is_err() {
        notes.push("Nothing is offered: userfaultfd or MADV_POPULATE is unavailable.".to_owned());
        return Ok(None);
    }
    let wanted = settings.sizes.pick(&[2_000, 20_000, 20_000]);
    let fitted = settings.headroom.fit(wanted * LEN, 8, LEN)?;
    notes.extend(fitted.note);
    let (values, seed) = (fitted.len / LEN, settings.seed);
    let file = Rc::new(files::random_file(fitted.len, &mut Rng::with_seed(seed))?);
    let shuffled = move || {
        let mut keys: Vec<usize> = (0..values).collect();
        Rng::with_seed(seed).shuffle(&mut keys);
        keys
    };
    let pread = Way::new(
        "pread",
        move || Ok(shuffled()),
        move |keys, recorder| {
            let mut page = vec![0; LEN];
            let (read, seconds) = recorder.measure(|| -> Result<u64> {
                keys.iter().try_fold(0, |sum, key| {
                    file.read_exact_at(&mut page, (key * LEN) as u64)?;
                    Ok(sum + u64::from(page[LEN / 2]))
                })
            });
            recorder.record(HIT, Unit::Seconds, seconds / keys.len() as f64);
            read
        },
        |sum, _| {
            ensure!(sum > 0, "the file is not random");
            Ok(())
        },
    );
    let tenure = Way::new(
        "tenure",
        move || Ok((offered(values)?, shuffled())),
        |(cache, keys), recorder| {
            let (wrong, seconds) = recorder.measure(|| {
                let is_wrong = |key: &&usize| {
                    let value = cache.get(*key);
                    value.is_none_or(|value| value[LEN / 2] != byte_of(**key))
                };
                keys.iter().filter(is_wrong).count()
            });
            recorder.record(HIT, Unit::Seconds, seconds / keys.len() as f64);
            Ok((wrong, keys.len(), cache))
        },
        |(wrong, count, cache), _| {
            // The kernel may have purged some.
            ensure!(wrong <= count / 20, "{wrong} of {count} hits were none");
            let stats = cache.stats();
            ensure!(stats.hits > 0, "nothing was found");
            Ok(())
        },
    );
    let name = format!("{values} values of {}", bytes_text(LEN as f64));
    let case = Case::new(name, vec![pread.baseline(), tenure.tenure()]);
    Ok(Some(case.in_table(
        "A hit on a value that the kernel has been offered",
    )))
}

/// Makes a cache whose values are all offered.
fn offered(values: usize) -> Result<VolatileCache<usize>> {
    let cache = VolatileCache::new();
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let inserted = (0..values).try_for_each(|key| cache.insert(key, &[byte_of(key); LEN]));
    // The default, which nothing else here changes.
    tenure::volatile::set_offer_delay(Duration::from_millis(100));
    inserted?;
    Ok(cache)
}
