//! Models that are loaded one after the other, side by side, and again after a restart.

use proptest::collection::vec;
use proptest::prelude::*;

use super::measurement::MOST;
use super::*;
use crate::gpus::GpuUse;
use crate::records::Record;

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
    sizes.end(name, Ended { is_loaded, ..ended(now) })
}

fn begin(sizes: &mut Sizes, name: &str, memory: MemoryBytes) {
    sizes.begin(name, Reading { memory, ..Reading::default() });
}

/// The end of a load, after which this is in use.
fn ended(memory: MemoryBytes) -> Ended {
    let now = Reading { memory, ..Reading::default() };
    Ended { is_loaded: true, took: SECOND, now, at: 5, ..Ended::default() }
}

/// With what the model's own processes take.
fn with_processes(processes: Option<u64>) -> Known {
    Known { processes, ..Known::default() }
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
    begin(&mut sizes, "a", server(MB));
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
    begin(&mut sizes, "a", server(5 * MB));
    begin(&mut sizes, "b", server(6 * MB));
    begin(&mut sizes, "broken", server(7 * MB));
    end(&mut sizes, "b", true, server(70 * MB));
    sizes.freed("gone");
    end(&mut sizes, "broken", false, server(70 * MB));
    // The load in progress keeps its part.
    let near = |bytes: u64, expected: u64| bytes.abs_diff(expected) < 10;
    assert!(near(sizes.of("b"), (70 - 5 + 4) * MB * 30 / 40), "{}", sizes.of("b"));
    end(&mut sizes, "a", true, server(81 * MB));
    assert!(
        near(sizes.of("a"), 20 * MB) && near(sizes.of("b"), 60 * MB),
        "{:?}",
        ["a", "b"].map(|it| sizes.of(it))
    );
    assert_eq!(measured_of(&sizes, "broken"), None);
    // A load alone corrects the share, but memory that another model left behind does not.
    for (grown, expected) in [(50, 50), (3, 50), (60, 60)] {
        begin(&mut sizes, "a", server(100 * MB));
        end(&mut sizes, "a", true, server((100 + grown) * MB));
        assert_eq!(sizes.of("a"), expected * MB);
    }
}

#[test]
fn loads_that_overlap_without_end_count_at_the_end_of_each() {
    let mut sizes = Sizes::default();
    let in_use = |server: u64, processes: u64| MemoryBytes { server: server * MB, processes: processes * MB };
    let own = |processes: u64, now| Ended { known: with_processes(Some(processes * MB)), ..ended(now) };
    for name in ["first", "second", "python", "third"] {
        describe(&mut sizes, name, None, MB);
    }
    for name in ["first", "second", "python"] {
        begin(&mut sizes, name, in_use(1, 0));
    }
    // Unknown processes may belong to the load of "python".
    assert!(end(&mut sizes, "first", true, in_use(13, 7)).is_empty());
    assert_eq!(measured_of(&sizes, "first"), Some(in_use(4, 0)));
    assert_eq!(memory_of(&sizes, "first").basis, MemoryBasis::Measured);
    // Models that nothing is known of are expected to differ from their files as it does.
    assert_eq!((sizes.of("second"), sizes.of("third")), (4 * MB, 4 * MB));
    begin(&mut sizes, "third", in_use(13, 7));
    sizes.end("python", own(30, in_use(17, 30)));
    assert_eq!(measured_of(&sizes, "python"), Some(in_use(4, 30)));
    assert_eq!(measured_of(&sizes, "first"), Some(in_use(4, 0)));
    // What was measured so far is freed, and counts as added once more where it is loaded again.
    sizes.freed("first");
    describe(&mut sizes, "first", None, MB);
    begin(&mut sizes, "first", in_use(13, 30));
    end(&mut sizes, "first", true, in_use(17, 30));
    assert_eq!(measured_of(&sizes, "first"), Some(in_use(4, 0)));
    assert!(end(&mut sizes, "third", false, in_use(17, 30)).is_empty());
    assert_eq!(end(&mut sizes, "second", true, in_use(17, 30)).len(), 4);
    assert_eq!(measured_of(&sizes, "second"), Some(in_use(5, 0)));
    // Its processes count at once also if it was measured before.
    begin(&mut sizes, "second", in_use(17, 30));
    begin(&mut sizes, "python", in_use(17, 30));
    sizes.end("python", own(50, in_use(17, 50)));
    assert_eq!(measured_of(&sizes, "python"), Some(in_use(5, 50)));
}

#[test]
fn a_load_without_end_holds_up_no_measurement_of_others() {
    let mut sizes = Sizes::default();
    describe(&mut sizes, "endless", None, MB);
    begin(&mut sizes, "endless", server(0));
    let names: Vec<_> = (0..3 * MOST).map(|number| format!("model {number}")).collect();
    let mut added = 0;
    for (number, name) in names.iter().enumerate() {
        describe(&mut sizes, name, None, MB);
        begin(&mut sizes, name, server(added));
        added += 2 * MB;
        let records = end(&mut sizes, name, true, server(added));
        assert_eq!(records.len(), if (number + 1) % MOST == 0 { MOST } else { 0 });
        let counted: u64 = names[..=number]
            .iter()
            .filter_map(|name| measured_of(&sizes, name))
            .map(MemoryBytes::total)
            .sum();
        // But for what may be of the load in progress: one part more than loads of this measurement.
        assert!(counted <= added && counted >= added - added / 2, "{counted} of {added} after {number}");
    }
    end(&mut sizes, "endless", true, server(added + 8 * MB));
    let counted: u64 = names.iter().chain(["endless".into()].iter()).map(|name| sizes.of(name)).sum();
    assert!(counted.abs_diff(added + 8 * MB) < 1000, "{counted} of {added}");
}

#[test]
fn a_load_that_took_no_new_memory_has_a_least_size() {
    let mut sizes = Sizes::default();
    describe(&mut sizes, "a", None, 40 * MB);
    begin(&mut sizes, "a", server(MB));
    end(&mut sizes, "a", true, server(MB));
    assert_eq!(sizes.of("a"), 10 * MB);
    end(&mut sizes, "a", true, server(MB));
}

#[test]
fn a_restarted_server_expects_what_the_same_content_took() {
    let mut sizes = Sizes::default();
    describe(&mut sizes, "a", None, 10 * MB);
    begin(&mut sizes, "a", server(MB));
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
            begin(&mut sizes, "a", server(MB));
            end(&mut sizes, "a", true, server((1 + taken) * MB));
            assert_eq!(sizes.of("a"), expected * MB, "{taken}");
        }
        assert_eq!(sizes.load_time("a"), Some(3 * SECOND / 2));
        // Loads that overlap do not.
        begin(&mut sizes, "a", server(MB));
        begin(&mut sizes, "b", server(MB));
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
        begin(&mut sizes, name, server(MB));
    }
    let now = MemoryBytes { server: 31 * MB, processes: 100 * MB };
    let ended = |processes| Ended { known: with_processes(processes), ..ended(now) };
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
        begin(&mut again, name, server(0));
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
    begin(&mut sizes, "a", server(0));
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
        begin(&mut sizes, "a", server(0));
        let now = MemoryBytes { server: MB, processes: at_load * MB };
        sizes.end("a", Ended { known: with_processes(Some(at_load * MB)), ..ended(now) });
        for taken in steps.into_iter().map(|step| step * MB) {
            let before = measured_of(&sizes, "a").unwrap().processes;
            let has_grown = sizes.follow("a", taken, None);
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
        prop_assert!(!sizes.follow("unknown", u64::MAX, None));
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
    begin(&mut sizes, "a", server(0));
    let known = Known { reported_gpus: [(0, 7 * MB)].into(), ..Known::default() };
    let records = sizes.end("a", Ended { known, ..ended(server(5 * MB)) });
    let reported = Amount { host: 5 * MB, gpus: [(0, 7 * MB)].into() };
    let shown = [GpuMemory { gpu: 0, measured: Some(7 * MB), budget: 7 * MB }];
    assert_eq!((sizes.amount("a"), memory_of(&sizes, "a").gpus), (reported.clone(), shown.to_vec()));
    // After a restart, too, for the same content.
    let mut again = Sizes::default();
    records.into_iter().for_each(|(content, record)| again.records.put(content, record));
    assert_eq!(memory_of(&again, "a").gpus, shown);
    again.describe("a", estimated.clone());
    assert_eq!(again.amount("a"), reported);
    again.describe("a", Description { content: content("a", 1), ..estimated.clone() });
    assert_eq!(again.of_gpus("a"), [(0, 6 * MB), (3, 3 * MB)].into());
    again.describe("a", Description { declared_gpus: Some([(1, 9)].into()), ..estimated });
    assert_eq!(again.of_gpus("a"), [(1, 9)].into());
}

/// Models with an instance on GPU 0, or that choose their GPUs; and loads that add to what is in use there.
struct OnGpus {
    sizes: Sizes,
    in_use: BTreeMap<Gpu, u64>,
}

impl OnGpus {
    fn new(records: Records) -> Self {
        Self { sizes: Sizes::with_records(records), in_use: [(0, 50 * MB), (1, 0)].into() }
    }

    fn describe(&mut self, name: &str, files: u64) {
        let (instances, chooses) = (name.starts_with("gpu"), name.starts_with("chooses"));
        let gpu_instances = instances.then_some((0, 1)).into_iter().collect();
        let content = content(name, 0);
        let description =
            Description { files, gpu_instances, chooses_gpus: chooses, content, ..Description::default() };
        self.sizes.describe(name, description);
    }

    fn reading(&self) -> Reading {
        let of_gpu = |(gpu, bytes): (&Gpu, &u64)| (*gpu, GpuUse { bytes: *bytes, ..GpuUse::default() });
        let gpus = GpuReading::of(self.in_use.iter().map(of_gpu).collect());
        Reading { memory: server(MB), gpus }
    }

    /// Loads models side by side, which add megabytes to the GPUs together. Those with processes are known to take a part.
    fn load(&mut self, added: &[(Gpu, u64)], names: &[(&str, Option<u64>)]) {
        names.iter().for_each(|(name, _)| self.sizes.begin(name, self.reading()));
        for (gpu, megabytes) in added {
            *self.in_use.get_mut(gpu).unwrap() += megabytes * MB;
        }
        for (name, own) in names {
            let gpus = own.map(|megabytes| BTreeMap::from([(0, megabytes * MB)]));
            let known = Known { processes: own.map(|_| 0), gpus, ..Known::default() };
            self.sizes.end(name, Ended { now: self.reading(), known, ..ended(server(MB)) });
        }
    }

    /// The measured megabytes of a model on GPU 0 and 1.
    fn measured(&self, name: &str) -> [Option<u64>; 2] {
        let gpus = memory_of(&self.sizes, name).gpus;
        let measured = |gpu| gpus.iter().find(|it| it.gpu == gpu)?.measured;
        [0, 1].map(|gpu| Some(measured(gpu)? / MB))
    }
}

#[test]
fn what_loads_add_to_a_gpu_is_measured() {
    let mut world = OnGpus::new(Records::default());
    for (name, files) in [("gpu", 100), ("gpu-other", 300), ("chooses", 100), ("cpu", 900)] {
        world.describe(name, files * MB);
    }
    // Alone. The other GPU grows by itself.
    world.load(&[(0, 250), (1, 9)], &[("gpu", None)]);
    assert_eq!(
        (world.measured("gpu"), world.sizes.of_gpus("gpu")),
        ([Some(250), None], [(0, 250 * MB)].into())
    );
    world.load(&[(0, 30)], &[("cpu", None)]);
    assert_eq!(world.measured("cpu"), [None, None]);
    // Side by side: by expected sizes, but for what is known.
    world.load(&[(0, 400 + 120), (1, 70)], &[("gpu-other", None), ("chooses", None), ("own", Some(120))]);
    assert_eq!(world.measured("gpu-other"), [Some(300), None]);
    assert_eq!(world.measured("chooses"), [Some(100), Some(70)]);
    // Never less than a quarter of the files, even if another model left memory behind.
    world.describe("gpu-late", 400 * MB);
    world.load(&[], &[("gpu-late", None)]);
    assert_eq!(world.measured("gpu-late"), [Some(0), None]);
    assert_eq!(world.sizes.of_gpus("gpu-late"), [(0, 100 * MB)].into());
    // A load alone corrects upwards only, until a restart; then halfway, too.
    for (added, expected) in [(20, 250), (260, 260)] {
        world.load(&[(0, added)], &[("gpu", None)]);
        assert_eq!(world.measured("gpu"), [Some(expected), None]);
    }
    let mut again = OnGpus::new(world.sizes.records.clone());
    assert_eq!(again.measured("gpu"), [Some(260), None]);
    again.describe("gpu", 100 * MB);
    again.load(&[(0, 160)], &[("gpu", None)]);
    assert_eq!(again.measured("gpu"), [Some(210), None]);
}

#[test]
fn memory_that_models_gave_back_during_a_load_counts_as_added() {
    let mut world = OnGpus::new(Records::default());
    for name in ["gpu", "gpu-leaving"] {
        world.describe(name, MB);
    }
    world.load(&[(0, 80)], &[("gpu-leaving", None)]);
    world.sizes.begin("gpu", world.reading());
    world.sizes.freed("gpu-leaving");
    *world.in_use.get_mut(&0).unwrap() -= 60 * MB;
    world.sizes.end("gpu", Ended { now: world.reading(), ..ended(server(MB)) });
    assert_eq!(world.measured("gpu"), [Some(20), None]);
}

#[test]
fn processes_that_take_more_of_a_gpu_count_more() {
    let mut world = OnGpus::new(Records::default());
    world.describe("own", MB);
    world.load(&[(0, 100)], &[("own", Some(100))]);
    let mut follow = |of_gpu: &[(Gpu, u64)]| {
        let gpus = of_gpu.iter().map(|(gpu, megabytes)| (*gpu, megabytes * MB)).collect();
        let has_grown = world.sizes.follow("own", 0, Some(&gpus));
        (has_grown, world.measured("own"))
    };
    // Too little to count, more, on another one, a little less, and much less.
    for (gpus, expected) in [
        (&[(0, 110)][..], (false, [Some(100), None])),
        (&[(0, 150)], (true, [Some(150), None])),
        (&[(0, 150), (1, 40)], (true, [Some(150), Some(40)])),
        (&[(0, 130), (1, 40)], (false, [Some(150), Some(40)])),
        (&[(0, 90), (1, 0)], (false, [Some(100), None])),
    ] {
        assert_eq!(follow(gpus), expected, "{gpus:?}");
    }
}

#[test]
fn processes_that_take_a_gpu_with_their_first_request_count() {
    let mut world = OnGpus::new(Records::default());
    world.describe("own", MB);
    world.load(&[], &[("own", Some(0))]);
    assert_eq!(world.sizes.of_gpus("own"), BTreeMap::new());
    assert!(world.sizes.follow("own", 0, Some(&[(0, 300 * MB), (1, 0)].into())));
    assert_eq!(world.sizes.of_gpus("own"), [(0, 300 * MB)].into());
    assert_eq!(world.measured("own"), [Some(300), None]);
}
