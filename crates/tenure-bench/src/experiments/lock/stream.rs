//! Memory that is not locked must pay nothing for what is locked beside it: the four loops
//! of McCalpin's STREAM, with and without a locked file.

use std::{cell::RefCell, hint::black_box, rc::Rc};

use tenure::Mapping;

use super::data::Data;
use super::ways::{LOCKED, TOTAL, on_fault};
use crate::measure::prelude::*;

/// Three of them are far more than a CPU caches.
pub const ARRAY_LEN: usize = 32 << 20;
/// How much of the file is locked meanwhile.
const LOCKED_LEN: usize = 64 << 20;
const SCALAR: f64 = 3.0;

/// Makes the case, with arrays of `array_len` bytes.
pub fn case(data: &Rc<Data>, array_len: usize) -> Case {
    let arrays = Rc::new(RefCell::new(Arrays::new(array_len / size_of::<f64>())));
    let data = data.clone();
    let lock = move || {
        let mapping = on_fault(&data, LOCKED_LEN.min(data.len))?;
        touch::read_each_page(mapping.as_slice());
        Ok(Some(mapping))
    };
    let ways = vec![
        way("nothing locked", &arrays, || Ok(None)).baseline(),
        way("a file locked on fault", &arrays, lock).tenure(),
    ];
    let table = "Copy, scale, add and triad over three arrays that are not locked";
    Case::new("STREAM", ways).in_table(table).short()
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
            let traffic = arrays.traffic_bytes() as f64 / seconds;
            recorder.record("read and written", Unit::BytesPerSecond, traffic);
            recorder.record(TOTAL, Unit::Seconds, seconds);
            Ok(locked)
        },
        move |locked, recorder| {
            after.borrow().check()?;
            let bytes = kernel::rollup_bytes("Locked:")?;
            let expected = locked.as_ref().map_or(0, Mapping::len) as u64;
            ensure!(bytes >= expected, "{bytes} bytes locked, not {expected}");
            recorder.record(LOCKED, Unit::Bytes, bytes as f64);
            Ok(())
        },
    )
}

/// The arrays of STREAM: a, b and c.
pub struct Arrays(pub [Vec<f64>; 3]);

impl Arrays {
    pub fn new(len: usize) -> Self {
        Self([(); 3].map(|()| vec![0.0; len]))
    }

    /// Writes what the loops begin with.
    pub fn reset(&mut self) {
        for (array, number) in self.0.iter_mut().zip([1.0, 2.0, 0.0]) {
            array.fill(number);
        }
    }

    /// Runs the four loops once, each over what the one before it left.
    pub fn run(&mut self) {
        let [a, b, c] = &mut self.0;
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

    /// Returns how much the loops read and write: two arrays, two, three and three.
    pub fn traffic_bytes(&self) -> usize {
        10 * size_of_val(&*self.0[0])
    }

    /// Fails unless every number is exactly what one run makes of these whole numbers.
    pub fn check(&self) -> Result<()> {
        let c = 1.0 + SCALAR;
        for (array, expected) in self.0.iter().zip([SCALAR + SCALAR * c, SCALAR, c]) {
            let wrong = array.iter().filter(|&&number| number != expected).count();
            ensure!(wrong == 0, "{wrong} numbers are not {expected}");
        }
        Ok(())
    }
}
