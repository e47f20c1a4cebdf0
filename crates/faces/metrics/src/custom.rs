//! Metric families of backends, as text.

use nereid_core::{FamilySnapshot, MetricKind, MetricValue};

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
