//! Checks the fuzz targets' properties on every input of their corpus in the ordinary test run. Inputs that once
//! broke one of them belong there, too.

#[path = "../../../../fuzz/c_properties.rs"]
mod c_properties;

use nereid_testkit::corpus::replay;

#[test]
fn corpus_is_read_as_backend_texts() {
    replay("c_texts", c_properties::texts);
}
