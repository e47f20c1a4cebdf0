//! Regions as clients register and use them, and memory that disappears.

use nereid_backend_api::ErrorCode;

use super::*;
use crate::testing::{Object, host, regions};

fn code(outcome: Result<impl Sized>) -> Option<ErrorCode> {
    outcome.err().map(|error| error.code())
}

#[test]
fn region_is_registered_read_and_unregistered() {
    let (regions, object) = (regions(), Object::new(8192));
    object.write(4096 + 2, b"abc");
    regions.register("r", &object.key, 4096, 100).unwrap();
    let status = RegionStatus { name: "r".into(), key: object.key.clone(), offset: 4096, byte_size: 100 };
    assert_eq!((regions.all(), regions.status("r").unwrap()), (vec![status.clone()], status));
    let slice = host(regions.slice("r", 2, 3));
    assert_eq!(slice.as_ref(), b"abc");
    // Writes of another process are visible at once.
    object.write(4096 + 2, b"xyz");
    assert_eq!(
        (slice.as_ref(), slice.copied().as_host().unwrap().as_ref()),
        (b"xyz".as_slice(), b"xyz".as_slice())
    );
    assert_eq!(slice.buffer().as_host().unwrap().as_ptr(), slice.as_ref().as_ptr());
    regions.unregister("r").unwrap();
    assert_eq!(code(regions.status("r")), Some(ErrorCode::NotFound));
    // A slice remains usable after its region is unregistered.
    assert_eq!(slice.as_ref(), b"xyz");
    regions.unregister("r").unwrap();
}

#[test]
fn key_works_with_and_without_a_slash() {
    let (regions, object) = (regions(), Object::new(10));
    regions.register("a", &object.key, 0, 10).unwrap();
    regions.register("b", object.key.trim_start_matches('/'), 0, 10).unwrap();
    assert_eq!(regions.all().len(), 2);
    regions.unregister_all().unwrap();
    assert!(regions.all().is_empty());
}

#[test]
fn invalid_registration_is_refused() {
    let (regions, object) = (regions(), Object::new(8192));
    regions.register("known", &object.key, 0, 1).unwrap();
    let key = object.key.as_str();
    for (name, key, offset, size, expected) in [
        ("known", key, 0, 1, ErrorCode::AlreadyExists),
        ("r", "/nereid-no-such-object", 0, 1, ErrorCode::Internal),
        ("r", "/a/b", 0, 1, ErrorCode::Internal),
        ("r", "", 0, 1, ErrorCode::Internal),
        ("r", "..", 0, 1, ErrorCode::Internal),
        ("r", "a\0b", 0, 1, ErrorCode::Internal),
        ("r", "/triton_python_backend_shm_region_1", 0, 1, ErrorCode::InvalidArg),
        ("r", key, 0, 0, ErrorCode::InvalidArg),
        ("r", key, 0, 8193, ErrorCode::InvalidArg),
        ("r", key, 8192, 1, ErrorCode::InvalidArg),
        ("r", key, 4, 8, ErrorCode::InvalidArg),
        ("r", key, u64::MAX, 2, ErrorCode::InvalidArg),
        ("r", key, 4096, u64::MAX, ErrorCode::InvalidArg),
    ] {
        assert_eq!(
            code(regions.register(name, key, offset, size)),
            Some(expected),
            "{name} {key} {offset} {size}"
        );
    }
    assert_eq!(regions.all().len(), 1);
}

#[test]
fn system_regions_need_the_fault_handler() {
    let object = Object::new(10);
    let refused = Regions::default().register("r", &object.key, 0, 10);
    assert_eq!(code(refused), Some(ErrorCode::Unsupported));
}

#[test]
fn backend_memory_is_reserved_under_its_default_and_configured_prefix() {
    let object = Object::new(10);
    let key = object.key.trim_start_matches('/');
    for (prefix, is_reserved) in [
        (key, true),
        (&key[..1], true),
        (&key[..key.len() - 1], true),
        (&object.key[..], true),
        (&format!("{key}x")[..], false),
        (&key[1..], false),
        ("", false),
        ("/", false),
    ] {
        let regions = regions().with_reserved(prefix);
        for key in [key, &object.key] {
            let expected = is_reserved.then_some(ErrorCode::InvalidArg);
            assert_eq!(code(regions.register("r", key, 0, 10)), expected, "{prefix} {key}");
            regions.unregister("r").unwrap();
        }
        let default = regions.register("r", "/triton_python_backend_shm_region_1", 0, 10);
        assert_eq!(code(default), Some(ErrorCode::InvalidArg), "{prefix}");
    }
}

#[test]
fn disabled_shared_memory_refuses_registration_and_use() {
    let (regions, object) = (Regions::closed(), Object::new(10));
    assert_eq!(code(regions.register("r", &object.key, 0, 10)), Some(ErrorCode::Unsupported));
    assert_eq!(code(regions.unregister("r")), Some(ErrorCode::Unsupported));
    assert_eq!(code(regions.unregister_all()), Some(ErrorCode::Unsupported));
    assert_eq!(code(regions.slice("r", 0, 1)), Some(ErrorCode::Unsupported));
    assert!(regions.all().is_empty());
}

#[test]
fn slice_outside_its_region_is_refused() {
    let (regions, object) = (regions(), Object::new(100));
    regions.register("r", &object.key, 0, 100).unwrap();
    assert_eq!(regions.slice("r", 0, 100).unwrap().len(), 100);
    assert_eq!(regions.slice("r", 99, 1).unwrap().len(), 1);
    assert_eq!(code(regions.slice("other", 0, 1)), Some(ErrorCode::NotFound));
    let beyond = [(0, 101), (100, 0), (99, 2), (u64::MAX, 1), (1, u64::MAX)];
    let empty = [(0, 0), (99, 0), (101, 0), (u64::MAX, 0)];
    for (offset, length) in beyond.into_iter().chain(empty) {
        assert_eq!(
            code(regions.slice("r", offset, length)),
            Some(ErrorCode::InvalidArg),
            "{offset} {length}"
        );
    }
}

#[test]
fn truncated_memory_reads_as_zeroes_and_breaks_only_its_region() {
    let regions = regions();
    let (object, other) = (Object::new(3 * 4096), Object::new(4096));
    object.write(0, &[7; 3 * 4096]);
    other.write(0, &[9; 4096]);
    regions.register("r", &object.key, 0, 3 * 4096).unwrap();
    regions.register("other", &other.key, 0, 4096).unwrap();
    let (slice, other) = (host(regions.slice("r", 0, 3 * 4096)), host(regions.slice("other", 0, 4096)));
    object.file.set_len(4096).unwrap();
    let copy = slice.as_ref().to_vec();
    assert_eq!((&copy[..4096], &copy[4096..]), ([7; 4096].as_slice(), [0; 8192].as_slice()));
    assert_eq!(code(slice.check()), Some(ErrorCode::Unavailable));
    assert_eq!(code(regions.slice("r", 0, 1)), Some(ErrorCode::Unavailable));
    other.check().unwrap();
    assert_eq!(other.as_ref(), [9; 4096]);
    // A new registration of the name works.
    regions.unregister("r").unwrap();
    regions.register("r", &object.key, 0, 4096).unwrap();
    assert_eq!(host(regions.slice("r", 0, 1)).as_ref(), [7]);
}

#[test]
fn write_to_missing_memory_is_harmless() {
    let (regions, object) = (regions(), Object::new(4096));
    regions.register("r", &object.key, 0, 4096).unwrap();
    let mut slice = host(regions.slice("r", 0, 4096));
    object.file.set_len(0).unwrap();
    slice.as_mut_slice().fill(1);
    assert!(slice.check().is_err());
}

#[test]
fn entries_of_unmapped_memory_are_reused() {
    let (regions, object) = (regions(), Object::new(1));
    for _ in 0..crate::faults::MAX_MAPPINGS + 10 {
        regions.register("r", &object.key, 0, 1).unwrap();
        regions.unregister("r").unwrap();
    }
}
