use super::*;

fn labels(axis: &Axis) -> Vec<&str> {
    axis.ticks.iter().map(|(_, text)| text.as_str()).collect()
}

#[test]
fn axis_of_near_values_is_linear_from_zero() {
    let axis = Axis::new(Unit::Seconds, 0.197, 0.642);
    assert!(!axis.is_logarithmic);
    assert_eq!(labels(&axis), ["0", "200 ms", "400 ms", "600 ms", "800 ms"]);
    assert!((axis.place(0.4) - 0.5).abs() < 1e-9);
    let axis = Axis::new(Unit::PerSecond, 4815.0, 10985.0);
    assert_eq!(labels(&axis), ["0", "5,000/s", "10,000/s", "15,000/s"]);
    let mib = 1048576.0;
    let axis = Axis::new(Unit::Bytes, 0.0, 512.0 * mib);
    assert_eq!(labels(&axis), ["0", "200 MiB", "400 MiB", "600 MiB"]);
    assert_eq!(labels(&Axis::new(Unit::Count, 0.0, 0.0)).len(), 5);
    let axis = Axis::new(Unit::Ratio, 0.5, 2.2);
    assert_eq!(labels(&axis), ["0", "1", "2", "3"]);
}

#[test]
fn axis_of_far_values_is_logarithmic() {
    let axis = Axis::new(Unit::Seconds, 102e-6, 0.469);
    assert!(axis.is_logarithmic);
    assert_eq!(labels(&axis), ["100 µs", "1 ms", "10 ms", "100 ms", "1 s"]);
    assert!((axis.place(10e-3) - 0.5).abs() < 1e-9);
    let wide = Axis::new(Unit::Seconds, 1e-8, 100.0);
    let shown = labels(&wide).iter().filter(|text| !text.is_empty()).count();
    assert!(shown <= MAX_LABELS, "{wide:?}");
    assert_eq!(wide.ticks.len(), 11);
}

#[test]
fn place_of_values_beyond_the_axis_is_at_its_ends() {
    let axis = Axis::new(Unit::Seconds, 1e-6, 1.0);
    assert_eq!((axis.place(0.0), axis.place(9.0)), (0.0, 1.0));
}
