//! Models that are loaded one after the other, side by side, and again after a restart.

use super::*;

fn server(bytes: u64) -> MemoryBytes {
    MemoryBytes { server: bytes, processes: 0 }
}

const MB: u64 = 1_000_000;

fn describe(sizes: &mut Sizes, name: &str, declared: Option<u64>, files: u64) {
    sizes.describe(name, Description { declared, files, content: content(name, 0) });
}

/// The content of a model whose files have changed this many times.
fn content(name: &str, changes: u8) -> Content {
    let digits: String = name.bytes().chain([changes]).map(|byte| format!("{byte:02x}")).collect();
    Content::parse(&format!("{digits:0>32}")).unwrap()
}

fn end(sizes: &mut Sizes, name: &str, is_loaded: bool, now: MemoryBytes) -> Vec<(Content, Record)> {
    sizes.end(name, Ended { is_loaded, took: SECOND, now, at: 5 })
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_declared_size_comes_before_a_measured_and_an_estimated_one() {
    let mut sizes = Sizes::default();
    assert_eq!(sizes.of("a"), LEAST);
    describe(&mut sizes, "a", None, 40 * MB);
    assert_eq!(sizes.of("a"), 40 * MB);
    sizes.begin(server(MB));
    end(&mut sizes, "a", true, MemoryBytes { server: 61 * MB, processes: 20 * MB });
    assert_eq!(sizes.of("a"), 80 * MB);
    assert_eq!(sizes.measured("a"), Some(MemoryBytes { server: 60 * MB, processes: 20 * MB }));
    // Models that were never loaded are expected to differ from their files as the others did.
    describe(&mut sizes, "b", None, 10 * MB);
    assert_eq!(sizes.of("b"), 20 * MB);
    describe(&mut sizes, "a", Some(7), 40 * MB);
    assert_eq!((sizes.of("a"), sizes.of("b")), (7, 20 * MB));
}

#[test]
fn loads_that_overlap_share_what_was_added_by_their_expected_sizes() {
    let mut sizes = Sizes::default();
    for (name, files) in [("a", 10), ("b", 30), ("broken", 100)] {
        describe(&mut sizes, name, None, files * MB);
    }
    sizes.begin(server(5 * MB));
    sizes.begin(server(6 * MB));
    sizes.begin(server(7 * MB));
    end(&mut sizes, "b", true, server(70 * MB));
    sizes.freed(4 * MB);
    end(&mut sizes, "broken", false, server(70 * MB));
    assert_eq!(sizes.measured("b"), None);
    end(&mut sizes, "a", true, server(81 * MB));
    assert_eq!((sizes.of("a"), sizes.of("b"), sizes.measured("broken")), (20 * MB, 60 * MB, None));
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
    let expected = Record { model: "a".to_owned(), memory, load_time: SECOND, measured: 5 };
    assert_eq!(kept, [(content("a", 0), expected)]);

    let mut records = Records::default();
    kept.into_iter().for_each(|(content, record)| records.put(content, record));
    let restarted = || Sizes::with_records(records.clone());
    let mut sizes = restarted();
    describe(&mut sizes, "a", None, 10 * MB);
    assert_eq!((sizes.of("a"), sizes.load_time("a")), (35 * MB, Some(SECOND)));
    // Files that changed, before or after a load, are estimated anew; those of before are known again.
    let changed = Description { declared: None, files: 12 * MB, content: content("a", 1) };
    for mut sizes in [restarted(), sizes] {
        sizes.describe("a", changed.clone());
        assert_eq!((sizes.of("a"), sizes.measured("a"), sizes.load_time("a")), (12 * MB, None, None));
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
            Record { model: "a".to_owned(), memory, load_time: 3 * SECOND, measured: 1 },
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
