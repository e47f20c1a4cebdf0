//! Releases: the shares and results of their versions.

use nereid_core::{ModelId, ReleasedVersion, Server};

use crate::text::{Labels, Text};

const SHARE: &str = "nereid_release_share";
const REQUESTS: &str = "nereid_release_requests_total";
const RESULTS: &str = "nereid_release_results_total";
const COPIES: &str = "nereid_release_copies_total";
const STATE: &str = "nereid_release_part";

/// The names of all families here.
pub(crate) const NAMES: [&str; 5] = [SHARE, REQUESTS, RESULTS, COPIES, STATE];

/// A version that takes part in a release.
pub(crate) struct Row {
    labels: Labels,
    version: ReleasedVersion,
}

/// The versions of all releases of visible models.
pub(crate) fn rows(server: &Server, is_visible: impl Fn(&ModelId) -> bool) -> Vec<Row> {
    let models = server.models();
    let mut rows = Vec::new();
    for model in models.ready().filter(|model| is_visible(model.id())) {
        // All versions share the release, and each of them reports itself.
        let status = model.release().map(|release| release.status()).unwrap_or_default();
        let own = status.versions.into_iter().find(|version| version.version == model.version());
        rows.extend(own.map(|version| {
            let (id, labels) = (model.id(), Labels::default());
            let labels =
                if id.namespace.is_empty() { labels } else { labels.and("namespace", &id.namespace) };
            let labels = labels.and("model", &id.name).and("version", &version.version);
            Row { labels, version }
        }));
    }
    rows
}

pub(crate) fn write_counters(text: &mut Text, rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    text.family(REQUESTS, "counter", "Requests without a version that a release sent to the version");
    for Row { labels, version } in rows {
        text.sample(REQUESTS, "", labels, version.requests);
    }
    text.family(RESULTS, "counter", "Results of a version since its release began, copies included");
    for Row { labels, version } in rows {
        text.sample(RESULTS, "", &labels.and("outcome", "success"), version.results - version.errors);
        text.sample(RESULTS, "", &labels.and("outcome", "error"), version.errors);
    }
    text.family(
        COPIES,
        "counter",
        "Copies of requests for a version: equal and different answers, and copies not made",
    );
    for Row { labels, version } in rows {
        for (outcome, count) in
            [("equal", version.equal), ("different", version.different), ("skipped", version.skipped)]
        {
            text.sample(COPIES, "", &labels.and("outcome", outcome), count);
        }
    }
}

pub(crate) fn write_gauges(text: &mut Text, rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    text.family(
        SHARE,
        "gauge",
        "Share of the requests without a version that a release sends to the version, from 0 to 1",
    );
    for Row { labels, version } in rows {
        text.sample(SHARE, "", labels, version.share);
    }
    text.family(STATE, "gauge", "The part of a version in its release, which is the label: always 1");
    for Row { labels, version } in rows {
        text.sample(STATE, "", &labels.and("part", version.part), 1);
    }
}
