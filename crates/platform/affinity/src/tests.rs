//! Valid and invalid settings, and placed threads.

use std::thread;

use rustix::thread::sched_getaffinity;

use super::*;

fn placement(settings: &[(&str, &str)]) -> Result<Placement, SettingError> {
    let mut placement = Placement::default();
    settings.iter().try_for_each(|(name, value)| placement.set(name, value)).map(|()| placement)
}

#[test]
fn core_ranges_are_parsed() {
    let cores = |text: &str| placement(&[(CPU_CORES, text)]).map(|it| it.cores.unwrap());
    assert_eq!(cores("0-3"), Ok(vec![0, 1, 2, 3]));
    assert_eq!(cores("1-1,4-5"), Ok(vec![1, 4, 5]));
    for wrong in ["", "1", "a-b", "3-1", "0-1,", "0-", "-1", "0-1x", "0-4096", "0-99999999999999999999"] {
        assert_eq!(cores(wrong), Err(SettingError::Cores(wrong.to_owned())), "{wrong}");
    }
}

#[test]
fn repeated_setting_keeps_the_last_node() {
    assert_eq!(placement(&[(NUMA_NODE, "0"), (NUMA_NODE, "3")]).unwrap().node, Some(3));
    for wrong in ["", "-1", "0x", "64", "4294967296"] {
        let error = placement(&[(NUMA_NODE, wrong)]).unwrap_err();
        assert_eq!(error, SettingError::Node(wrong.to_owned()));
    }
    let error = placement(&[("gpu", "1")]).unwrap_err().to_string();
    assert_eq!(error, "unknown setting 'gpu' (available: numa-node, cpu-cores)");
}

#[test]
fn placement_is_inherited_by_started_threads() {
    let allowed = sched_getaffinity(None).unwrap();
    let core = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap();
    let placement = placement(&[(CPU_CORES, &format!("{core}-{core}"))]).unwrap();
    let there = move || {
        placement.apply().unwrap();
        thread::spawn(|| sched_getaffinity(None).unwrap()).join().unwrap()
    };
    let set = thread::spawn(there).join().unwrap();
    assert_eq!((set.count(), set.is_set(core)), (1, true));
    assert_eq!(sched_getaffinity(None).unwrap(), allowed);
}

#[test]
fn unknown_cores_and_nodes_are_reported() {
    let refused = |settings: &[(&str, &str)]| {
        let placement = placement(settings).unwrap();
        thread::spawn(move || placement.apply()).join().unwrap().unwrap_err().to_string()
    };
    let last = CpuSet::MAX_CPU - 1;
    let error = refused(&[(CPU_CORES, &format!("{last}-{last}"))]);
    assert!(error.starts_with(&format!("cannot run on processors {last}: ")), "{error}");
    let error = refused(&[(NUMA_NODE, "63")]);
    assert!(error.starts_with("cannot use the memory of NUMA node 63: "), "{error}");
}

#[test]
fn default_placement_is_a_no_op() {
    assert!(Placement::default().is_any());
    Placement::default().apply().unwrap();
    assert!(!placement(&[(NUMA_NODE, "0")]).unwrap().is_any());
}
