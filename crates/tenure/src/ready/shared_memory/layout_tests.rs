//! Tests of the layout of shared files.

use super::*;

const CACHE: Geometry = Geometry {
    kind: Kind::Cache,
    count: 64,
    seed: [1, 2],
};

#[test]
fn geometry_survives_its_bytes() {
    assert_eq!(Geometry::parse(CACHE.to_bytes()), Ok(CACHE));
}

#[test]
fn every_single_wrong_byte_is_refused_or_harmless() {
    for at in 0..FIXED_BYTES {
        for wrong in [0_u8, 1, 0x7f, 0xff] {
            let mut bytes = CACHE.to_bytes();
            bytes[at] ^= wrong;
            if let Ok(geometry) = Geometry::parse(bytes) {
                assert!(geometry.is_valid() && geometry.file_bytes() < 1 << 62);
            }
        }
    }
    assert!(Geometry::parse([0; FIXED_BYTES]).is_err());
}

#[test]
fn places_do_not_overlap_and_end_in_the_file() {
    let arena = Geometry {
        kind: Kind::Arena {
            object_bytes: 3 * page_size() as u64,
        },
        ..CACHE
    };
    for geometry in [CACHE, arena] {
        let mut all: Vec<_> = (0..64).flat_map(|index| geometry.places(index)).collect();
        all.sort_unstable();
        let mut end = geometry.table_bytes() as u64;
        for (start, len) in all {
            assert_eq!(start, end);
            end += len;
        }
        assert_eq!(end, geometry.file_bytes());
        assert_eq!(geometry.place(64, 0, 1), None);
        assert_eq!(geometry.place(0, 0, geometry.max_bytes() + 1), None);
        assert_eq!(geometry.place(0, SIDES, 1), None);
    }
}
