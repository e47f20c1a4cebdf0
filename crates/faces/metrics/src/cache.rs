//! Metrics of the response cache: of each model that enables it, and of the cache as a whole.

use nereid_core::Totals;

use crate::models::Row;
use crate::text::{Labels, Number, Text};

/// The activity of a response cache. Durations are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResponseCacheMetrics {
    /// Lookups that found a response.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Cumulative duration of lookups.
    pub lookup_ns: u64,
    /// Cumulative duration of insertions.
    pub insertion_ns: u64,
    /// Whether a remote cache can be reached; `None` if the cache is not remote.
    pub is_available: Option<bool>,
    /// The fill level, if known.
    pub fill: Option<ResponseCacheFill>,
}

/// The fill level of a response cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResponseCacheFill {
    /// Number of responses.
    pub entries: u64,
    /// Number of responses evicted so far.
    pub evictions: u64,
    /// Used fraction of the memory, from 0 to 1.
    pub utilization: f64,
}

struct Counter {
    name: &'static str,
    help: &'static str,
    value: fn(&Totals) -> u64,
    is_duration: bool,
}

const COUNTERS: [Counter; 4] = [
    Counter {
        name: "nv_cache_num_hits_per_model",
        help: "Requests that were answered from the response cache",
        value: |totals| totals.cache_hit.count,
        is_duration: false,
    },
    Counter {
        name: "nv_cache_hit_duration_per_model",
        help: "Cumulative time spent looking up requests that were found, in microseconds",
        value: |totals| totals.cache_hit.ns / 1000,
        is_duration: true,
    },
    Counter {
        name: "nv_cache_num_misses_per_model",
        help: "Requests that were not found in the response cache",
        value: |totals| totals.cache_miss.count,
        is_duration: false,
    },
    Counter {
        name: "nv_cache_miss_duration_per_model",
        help: "Cumulative time spent looking up requests that were not found, and storing their responses, in microseconds",
        value: |totals| totals.cache_miss.ns / 1000,
        is_duration: true,
    },
];

const HITS: &str = "nv_cache_num_hits";
const MISSES: &str = "nv_cache_num_misses";
const LOOKUPS: &str = "nv_cache_num_lookups";
const LOOKUP_DURATION: &str = "nv_cache_lookup_duration";
const INSERTION_DURATION: &str = "nv_cache_insertion_duration";
const ENTRIES: &str = "nv_cache_num_entries";
const EVICTIONS: &str = "nv_cache_num_evictions";
const AVAILABLE: &str = "nereid_cache_available";
const UTILIZATION: &str = "nv_cache_util";

/// The names of all families here.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let counters = COUNTERS.iter().map(|counter| counter.name);
    let gauges = [
        AVAILABLE,
        HITS,
        MISSES,
        LOOKUPS,
        LOOKUP_DURATION,
        INSERTION_DURATION,
        ENTRIES,
        EVICTIONS,
        UTILIZATION,
    ];
    counters.chain(gauges)
}

/// Writes the counters of the models that enable the cache; durations only if requested. As in Triton, the counters are
/// present and zero if the server has no cache, and no other model has them.
pub(crate) fn write_counters(text: &mut Text, rows: &[Row], durations: bool) {
    let rows: Vec<_> = rows.iter().filter(|row| row.enables_cache).collect();
    if rows.is_empty() {
        return;
    }
    for counter in COUNTERS.iter().filter(|counter| durations || !counter.is_duration) {
        text.family(counter.name, "counter", counter.help);
        for row in &rows {
            text.sample(counter.name, "", &row.labels, (counter.value)(&row.totals));
        }
    }
}

/// Writes the cache's activity and fill level.
pub(crate) fn write_gauges(text: &mut Text, cache: &ResponseCacheMetrics) {
    let mut gauge = |name, help, value: f64| {
        text.family(name, "gauge", help);
        text.sample(name, "", &Labels::default(), Number(value));
    };
    if let Some(is_available) = cache.is_available {
        gauge(
            AVAILABLE,
            "Whether the response cache can be used now: 0 or 1",
            f64::from(u8::from(is_available)),
        );
    }
    if let Some(ResponseCacheFill { entries, utilization, .. }) = cache.fill {
        gauge(UTILIZATION, "Used part of the response cache's memory, from 0 to 1", utilization);
        gauge(ENTRIES, "Responses in the response cache", entries as f64);
    }
    gauge(HITS, "Lookups in the response cache that found a response", cache.hits as f64);
    gauge(MISSES, "Lookups in the response cache that found none", cache.misses as f64);
    gauge(LOOKUPS, "Lookups in the response cache", (cache.hits + cache.misses) as f64);
    if let Some(ResponseCacheFill { evictions, .. }) = cache.fill {
        gauge(
            EVICTIONS,
            "Responses that were removed from the response cache to make room",
            evictions as f64,
        );
    }
    let micros = |ns: u64| (ns / 1000) as f64;
    let help = "Cumulative time spent looking up in the response cache, in microseconds";
    gauge(LOOKUP_DURATION, help, micros(cache.lookup_ns));
    let help = "Cumulative time spent storing in the response cache, in microseconds";
    gauge(INSERTION_DURATION, help, micros(cache.insertion_ns));
}
