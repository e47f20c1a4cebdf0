//! Models that are loaded one after the other, side by side, and again after a restart.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn server(bytes: u64) -> MemoryBytes {
    MemoryBytes { server: bytes, processes: 0 }
}

const MB: u64 = 1_000_000;

fn describe(sizes: &mut Sizes, name: &str, declared: Option<u64>, files: u64) {
    sizes
        .describe(name, Description { declared, files, content: content(name, 0), ..Description::default() });
}

/// The content of a model whose files have changed this many times.
fn content(name: &str, changes: u8) -> Content {
    let digits: String = name.bytes().chain([changes]).map(|byte| format!("{byte:02x}")).collect();
    Content::parse(&format!("{digits:0>32}")).unwrap()
}

fn end(sizes: &mut Sizes, name: &str, is_loaded: bool, now: MemoryBytes) -> Vec<(Content, Record)> {
    sizes.end(name, Ended { is_loaded, took: SECOND, now, processes: None, gpus: BTreeMap::new(), at: 5 })
}

const SECOND: Duration = Duration::from_secs(1);

fn memory_of(sizes: &Sizes, name: &str) -> ModelMemory {
    sizes.memory([name].into_iter()).remove(0).unwrap()
}

fn measured_of(sizes: &Sizes, name: &str) -> Option<MemoryBytes> {
    let measured = memory_of(sizes, name).measured?;
    Some(MemoryBytes { server: measured.server, processes: measured.processes })
}

#[test]
fn a_declared_size_comes_before_a_measured_and_an_estimated_one() {
    let mut sizes = Sizes::default();
    assert_eq!(sizes.of("a"), LEAST);
    describe(&mut sizes, "a", None, 40 * MB);
    assert_eq!(sizes.of("a"), 40 * MB);
    sizes.begin(server(MB));
    end(&mut sizes, "a", true, MemoryBytes { server: 61 * MB, processes: 20 * MB });
    assert_eq!(sizes.of("a"), 80 * MB);
    assert_eq!(measured_of(&sizes, "a"), Some(MemoryBytes { server: 60 * MB, processes: 20 * MB }));
    // Models that were never loaded are expected to differ from their files as the others did.
    describe(&mut sizes, "b", None, 10 * MB);
    assert_eq!(sizes.of("b"), 20 * MB);
    describe(&mut sizes, "a", Some(7), 40 * MB);
    assert_eq!((sizes.of("a"), sizes.of("b")), (7, 20 * MB));
}

#[test]
fn loads_that_overlap_share_what_was_added_by_their_expected_sizes() {
    let mut sizes = Sizes::default();
    describe(&mut sizes, "gone", Some(4 * MB), MB);
    for (name, files) in [("a", 10), ("b", 30), ("broken", 100)] {
        describe(&mut sizes, name, None, files * MB);
    }
    sizes.begin(server(5 * MB));
    sizes.begin(server(6 * MB));
    sizes.begin(server(7 * MB));
    end(&mut sizes, "b", true, server(70 * MB));
    sizes.freed("gone");
    end(&mut sizes, "broken", false, server(70 * MB));
    assert_eq!(measured_of(&sizes, "b"), None);
    end(&mut sizes, "a", true, server(81 * MB));
    assert_eq!((sizes.of("a"), sizes.of("b"), measured_of(&sizes, "broken")), (20 * MB, 60 * MB, None));
    // A load alone corrects the share, but memory that another model left behind does not.
    for (grown, expected) in [(50, 50), (3, 50), (60, 60)] {
        sizes.begin(server(100 * MB));
        end(&mut sizes, "a", true, server((100 + grown) * MB));
        assert_eq!(sizes.of("a"), expected * MB);
    }
}

#[test]
fn a_load_that_took_no_new_memory_has_a_least_size() {
    let mut sizes = Sizes::default();
    describe(&mut sizes, "a", None, 40 * MB);
    sizes.begin(server(MB));
    end(&mut sizes, "a", true, server(MB));
    assert_eq!(sizes.of("a"), 10 * MB);
    end(&mut sizes, "a", true, server(MB));
}

#[test]
fn a_restarted_server_expects_what_the_same_content_took() {
    let mut sizes = Sizes::default();
    describe(&mut sizes, "a", None, 10 * MB);
    sizes.begin(server(MB));
    let kept = end(&mut sizes, "a", true, MemoryBytes { server: 31 * MB, processes: 5 * MB });
    let memory = MemoryBytes { server: 30 * MB, processes: 5 * MB };
    let (model, gpus) = ("a".to_owned(), BTreeMap::new());
    let expected = Record { model, memory, gpus, load_time: SECOND, measured: 5 };
    assert_eq!(kept, [(content("a", 0), expected)]);

    let mut records = Records::default();
    kept.into_iter().for_each(|(content, record)| records.put(content, record));
    let restarted = || Sizes::with_records(records.clone());
    let mut sizes = restarted();
    describe(&mut sizes, "a", None, 10 * MB);
    assert_eq!((sizes.of("a"), sizes.load_time("a")), (35 * MB, Some(SECOND)));
    // Files that changed, before or after a load, are estimated anew; those of before are known again.
    let changed = Description { files: 12 * MB, content: content("a", 1), ..Description::default() };
    for mut sizes in [restarted(), sizes] {
        sizes.describe("a", changed.clone());
        assert_eq!((sizes.of("a"), measured_of(&sizes, "a"), sizes.load_time("a")), (12 * MB, None, None));
        describe(&mut sizes, "a", None, 10 * MB);
        assert_eq!(sizes.of("a"), 35 * MB);
    }
    // A declared size still comes first.
    let mut sizes = restarted();
    describe(&mut sizes, "a", Some(9), 10 * MB);
    assert_eq!(sizes.of("a"), 9);
}

#[test]
fn a_load_alone_corrects_the_record_of_an_earlier_run() {
    for (taken, first, second) in [(80, 80, 80), (60, 60, 60), (20, 40, 40), (0, 30, 30)] {
        let mut records = Records::default();
        let memory = server(60 * MB);
        records.put(
            content("a", 0),
            Record {
                model: "a".to_owned(),
                memory,
                gpus: BTreeMap::new(),
                load_time: 3 * SECOND,
                measured: 1,
            },
        );
        let mut sizes = Sizes::with_records(records);
        describe(&mut sizes, "a", None, MB);
        describe(&mut sizes, "b", None, MB);
        for expected in [first, second] {
            sizes.begin(server(MB));
            end(&mut sizes, "a", true, server((1 + taken) * MB));
            assert_eq!(sizes.of("a"), expected * MB, "{taken}");
        }
        assert_eq!(sizes.load_time("a"), Some(3 * SECOND / 2));
        // Loads that overlap do not.
        sizes.begin(server(MB));
        sizes.begin(server(MB));
        end(&mut sizes, "b", true, server(500 * MB));
        end(&mut sizes, "a", true, server(500 * MB));
        assert_eq!(sizes.of("a"), first * MB);
    }
}

#[test]
fn processes_of_a_model_are_its_own_also_where_loads_overlap() {
    let mut sizes = Sizes::default();
    for name in ["own", "none", "other"] {
        describe(&mut sizes, name, None, 10 * MB);
        sizes.begin(server(MB));
    }
    let now = MemoryBytes { server: 31 * MB, processes: 100 * MB };
    let ended =
        |processes| Ended { is_loaded: true, took: SECOND, now, processes, gpus: BTreeMap::new(), at: 5 };
    for (name, processes) in [("own", Some(60 * MB)), ("none", Some(0)), ("other", None)] {
        sizes.end(name, ended(processes));
    }
    for (name, processes) in [("own", 60), ("none", 0), ("other", 40)] {
        let expected = MemoryBytes { server: 10 * MB, processes: processes * MB };
        assert_eq!(measured_of(&sizes, name), Some(expected), "{name}");
    }
    // Known again after a restart, and measured again in the midst of others.
    let mut again = Sizes::with_records(sizes.records.clone());
    assert_eq!(memory_of(&again, "own").basis, MemoryBasis::Recorded);
    for name in ["own", "other"] {
        describe(&mut again, name, None, 10 * MB);
        again.begin(server(0));
    }
    again.end("own", ended(Some(20 * MB)));
    again.end("other", ended(None));
    let expected = MemoryBytes { server: 10 * MB, processes: 20 * MB };
    let (own, other) = (memory_of(&again, "own"), memory_of(&again, "other"));
    assert_eq!((measured_of(&again, "own"), own.basis), (Some(expected), MemoryBasis::Measured));
    assert_eq!(other.basis, MemoryBasis::Recorded);
}

#[test]
fn the_basis_of_a_size_is_known() {
    let mut sizes = Sizes::default();
    assert_eq!(sizes.memory(["a"].into_iter()), [None]);
    describe(&mut sizes, "a", None, 8 * MB);
    let files = ModelMemory { measured: None, budget: 8 * MB, basis: MemoryBasis::Files, gpus: Vec::new() };
    assert_eq!(memory_of(&sizes, "a"), files);
    sizes.begin(server(0));
    end(&mut sizes, "a", true, server(9 * MB));
    let at = UNIX_EPOCH + 5 * SECOND;
    let measured = Some(MeasuredMemory { server: 9 * MB, processes: 0, at });
    assert_eq!(
        memory_of(&sizes, "a"),
        ModelMemory { measured, budget: 9 * MB, basis: MemoryBasis::Measured, gpus: Vec::new() }
    );
    let again = Sizes::with_records(sizes.records.clone());
    assert_eq!(
        memory_of(&again, "a"),
        ModelMemory { measured, budget: 9 * MB, basis: MemoryBasis::Recorded, gpus: Vec::new() }
    );
    describe(&mut sizes, "a", Some(7), 8 * MB);
    assert_eq!(
        memory_of(&sizes, "a"),
        ModelMemory { measured, budget: 7, basis: MemoryBasis::Declared, gpus: Vec::new() }
    );
}

proptest! {
    /// The counted memory is never far from the real one, and changes only if that changes by enough.
    #[test]
    fn processes_that_grow_and_shrink_count_as_far_as_they_do(
        at_load in 0..200_u64,
        steps in vec(0..1000_u64, 1..40),
        declared in any::<bool>(),
    ) {
        let mut sizes = Sizes::default();
        describe(&mut sizes, "a", declared.then_some(5), MB);
        sizes.begin(server(0));
        let now = MemoryBytes { server: MB, processes: at_load * MB };
        let processes = Some(at_load * MB);
        sizes.end("a", Ended { is_loaded: true, took: SECOND, now, processes, gpus: BTreeMap::new(), at: 5 });
        for taken in steps.into_iter().map(|step| step * MB) {
            let before = measured_of(&sizes, "a").unwrap().processes;
            let has_grown = sizes.follow("a", taken);
            let counted = measured_of(&sizes, "a").unwrap().processes;
            prop_assert!(counted >= at_load * MB);
            prop_assert!(taken <= counted + (counted / GROWN).max(LEAST_GROWTH));
            prop_assert!(counted <= (at_load * MB).max(taken + taken / (SHRUNK - 1) + 1));
            prop_assert_eq!(has_grown, counted > before && !declared);
            if counted != before {
                prop_assert!(counted == taken || (counted == at_load * MB && taken < before));
            }
            let expected = if declared { 5 } else { (MB + counted).max(LEAST) };
            prop_assert_eq!(sizes.of("a"), expected);
        }
        // Its next load counts as the last one did.
        describe(&mut sizes, "a", None, MB);
        prop_assert_eq!(measured_of(&sizes, "a").unwrap().processes, at_load * MB);
        prop_assert!(!sizes.follow("unknown", u64::MAX));
    }
}

#[test]
fn memory_of_gpus_is_declared_reported_or_estimated_by_instances() {
    let mut sizes = Sizes::default();
    let estimated = Description {
        files: 3 * MB,
        gpu_instances: [(0, 2), (3, 1)].into(),
        content: content("a", 0),
        ..Description::default()
    };
    sizes.describe("a", estimated.clone());
    assert_eq!(sizes.amount("a"), Amount { host: 3 * MB, gpus: [(0, 6 * MB), (3, 3 * MB)].into() });
    sizes.begin(server(0));
    let (now, gpus) = (server(5 * MB), BTreeMap::from([(0, 7 * MB)]));
    let records = sizes.end("a", Ended { is_loaded: true, took: SECOND, now, processes: None, gpus, at: 5 });
    let reported = Amount { host: 5 * MB, gpus: [(0, 7 * MB)].into() };
    assert_eq!((sizes.amount("a"), memory_of(&sizes, "a").gpus), (reported.clone(), vec![(0, 7 * MB)]));
    // After a restart, too, for the same content.
    let mut again = Sizes::default();
    records.into_iter().for_each(|(content, record)| again.records.put(content, record));
    assert_eq!(memory_of(&again, "a").gpus, [(0, 7 * MB)]);
    again.describe("a", estimated.clone());
    assert_eq!(again.amount("a"), reported);
    again.describe("a", Description { content: content("a", 1), ..estimated.clone() });
    assert_eq!(again.of_gpus("a"), [(0, 6 * MB), (3, 3 * MB)].into());
    again.describe("a", Description { declared_gpus: Some([(1, 9)].into()), ..estimated });
    assert_eq!(again.of_gpus("a"), [(1, 9)].into());
}
