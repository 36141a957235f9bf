//! Memory that is not locked must pay nothing for what is locked beside it: the
//! four loops of McCalpin's STREAM, with and without a locked file.

use std::{cell::RefCell, hint::black_box, rc::Rc};

use anyhow::{Result, ensure};
use tenure::Mapping;

use super::{
    super::{
        experiment::{Case, CaseResult, Recorder, Unit, Way},
        kernel, touch,
    },
    data::Data,
    ways::{self, LOCKED, TOTAL},
};
use crate::text::ratio_text;

/// Three of them are far more than a CPU caches.
pub const ARRAY_LEN: usize = 32 << 20;
/// How much of the file is locked meanwhile.
const LOCKED_LEN: usize = 64 << 20;
const TABLE: &str = "Copy, scale, add and triad over three arrays that are not locked";
const NOTHING: &str = "nothing locked";
const BESIDE: &str = "a file locked on fault";
const TRAFFIC: &str = "read and written";
const SCALAR: f64 = 3.0;

/// Makes the case, with arrays of `array_len` bytes.
pub fn case(data: &Rc<Data>, array_len: usize) -> Case {
    let arrays = Rc::new(RefCell::new(Arrays::new(array_len / size_of::<f64>())));
    let ways = vec![
        way(NOTHING, &arrays, || Ok(None)).baseline(),
        way(BESIDE, &arrays, {
            let data = data.clone();
            move || {
                let mapping = ways::on_fault(&data, LOCKED_LEN.min(data.len))?;
                touch::read_each_page(mapping.as_slice());
                Ok(Some(mapping))
            }
        })
        .tenure(),
    ];
    Case::new("STREAM", ways).in_table(TABLE).short()
}

fn way(
    name: &'static str,
    arrays: &Rc<RefCell<Arrays>>,
    lock: impl Fn() -> Result<Option<Mapping>> + 'static,
) -> Way {
    let [before, during, after] = [(); 3].map(|()| arrays.clone());
    Way::new(
        name,
        move || {
            let locked = lock()?;
            before.borrow_mut().reset();
            Ok(locked)
        },
        move |locked, recorder: &mut Recorder<'_>| {
            let mut arrays = during.borrow_mut();
            let ((), seconds) = recorder.measure(|| arrays.run());
            let traffic_bytes = arrays.traffic_bytes() as f64;
            recorder.record(TRAFFIC, Unit::BytesPerSecond, traffic_bytes / seconds);
            recorder.record(TOTAL, Unit::Seconds, seconds);
            Ok(locked)
        },
        move |locked, recorder| {
            after.borrow().check()?;
            let locked_bytes = kernel::locked_bytes()?;
            let expected = locked.as_ref().map_or(0, Mapping::len) as u64;
            ensure!(
                locked_bytes >= expected,
                "{locked_bytes} bytes are locked, not {expected}"
            );
            recorder.record(LOCKED, Unit::Bytes, locked_bytes as f64);
            drop(locked);
            Ok(tenure::drain(None)?)
        },
    )
}

/// The arrays of STREAM.
struct Arrays {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
}

impl Arrays {
    fn new(len: usize) -> Self {
        let array = || vec![0.0; len];
        Self {
            a: array(),
            b: array(),
            c: array(),
        }
    }

    /// Writes what the loops begin with.
    fn reset(&mut self) {
        self.a.fill(1.0);
        self.b.fill(2.0);
        self.c.fill(0.0);
    }

    /// Runs the four loops once, each over what the one before it left.
    fn run(&mut self) {
        let Self { a, b, c } = self;
        c.copy_from_slice(a);
        black_box(&mut *c);
        for (b, c) in b.iter_mut().zip(&*c) {
            *b = SCALAR * c;
        }
        black_box(&mut *b);
        for ((c, a), b) in c.iter_mut().zip(&*a).zip(&*b) {
            *c = a + b;
        }
        black_box(&mut *c);
        for ((a, b), c) in a.iter_mut().zip(&*b).zip(&*c) {
            *a = b + SCALAR * c;
        }
        black_box(&mut *a);
    }

    /// Returns how much the loops read and write: two arrays, two, three and
    /// three.
    fn traffic_bytes(&self) -> usize {
        10 * size_of_val(&*self.a)
    }

    /// Fails unless every number is what one run makes of them, which whole
    /// numbers are exactly.
    fn check(&self) -> Result<()> {
        for (name, array, expected) in [
            ("c", &self.c, 1.0 + SCALAR),
            ("b", &self.b, SCALAR),
            ("a", &self.a, SCALAR + SCALAR * (1.0 + SCALAR)),
        ] {
            let wrong = array.iter().filter(|&&number| number != expected).count();
            ensure!(wrong == 0, "{wrong} numbers in {name} are not {expected}");
        }
        Ok(())
    }
}

/// Says what the data say.
pub fn conclude(cases: &[CaseResult]) -> Option<String> {
    let case = cases.iter().find(|case| case.table == TABLE)?;
    Some(format!(
        "Memory that is not locked is {} times as fast beside a locked file as with nothing locked.",
        ratio_text(case.tenure()?.median)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_makes_the_numbers_expected() {
        let mut arrays = Arrays::new(1000);
        arrays.reset();
        arrays.check().unwrap_err();
        arrays.run();
        arrays.check().unwrap();
        assert_eq!((arrays.a[7], arrays.b[7], arrays.c[7]), (15.0, 3.0, 4.0));
        assert_eq!(arrays.traffic_bytes(), 80_000);
        arrays.b[999] += 1.0;
        arrays.check().unwrap_err();
    }
}
