//! The fuzz targets' properties, held on every input of their corpus in the ordinary run of the tests. An input that
//! broke one of them once belongs there too.

#[path = "../../../../fuzz/cache_properties.rs"]
mod cache_properties;

use nereid_testkit::corpus::replay;

#[test]
fn the_corpus_is_read_as_entries_of_a_cache() {
    replay("cache_entry", cache_properties::entry);
}
