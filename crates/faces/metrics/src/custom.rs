//! Metric families of backends, as text.

use nereid_core::{FamilySnapshot, MetricKind, MetricValue};

use crate::models::Row;
use crate::text::{Labels, Number, Text};

/// Writes the families of one kind. Families without a series are left out.
pub(crate) fn write(text: &mut Text, families: &[FamilySnapshot], kind: MetricKind) {
    for family in families.iter().filter(|family| family.kind == kind && !family.series.is_empty()) {
        text.family(&family.name, kind.name(), &family.help);
        for (labels, value) in &family.series {
            let labels = Labels::new(labels);
            match value {
                MetricValue::Number(value) => text.sample(&family.name, "", &labels, Number(*value)),
                MetricValue::Histogram(value) => {
                    text.histogram(&family.name, &labels, &value.bounds, &value.counts, value.sum);
                }
            }
        }
    }
}

/// Adds the requests in models' queues to the gauges of waiting requests: engines of language models know only those that they hold.
pub(crate) fn add_queues(families: &mut [FamilySnapshot], rows: &[Row]) {
    let names = ["vllm:num_requests_waiting", "nv_trt_llm_request_metrics"];
    for family in families.iter_mut().filter(|family| names.contains(&family.name.as_str())) {
        let mut counted = Vec::new();
        for (labels, value) in &mut family.series {
            let label = |name: &str| labels.get(name).map(String::as_str);
            if label("request_type").is_some_and(|kind| kind != "waiting") {
                continue;
            }
            let model = label("model_name").or(label("model"));
            let row = rows.iter().find(|row| {
                Some(row.id.name.as_str()) == model
                    && label("version").is_none_or(|version| version == row.version.to_string())
            });
            // The instances of a model share its queue.
            if let (Some(row), MetricValue::Number(value)) = (row, value)
                && !counted.contains(&row.id.name.as_str())
            {
                *value += row.pending as f64;
                counted.push(row.id.name.as_str());
            }
        }
    }
}
