//! The rules for caching, metrics and agents.

use super::report::Report;
use crate::proto::model_metrics::metric_control::MetricOptions;
use crate::proto::{ModelConfig, ModelMetrics};

pub(super) fn check(config: &ModelConfig, report: &mut Report) {
    let is_decoupled = config.model_transaction_policy.is_some_and(|policy| policy.decoupled);
    if is_decoupled && config.response_cache.is_some_and(|cache| cache.enable) {
        let reason = "the answers of a decoupled model are not cached; must be false";
        report.add("response_cache.enable", reason);
    }
    if let Some(metrics) = &config.model_metrics {
        check_metrics(metrics, report);
    }
    if let Some(agents) = &config.model_repository_agents {
        if agents.agents.is_empty() {
            report.add("model_repository_agents", "names no agent; name one, or omit the field");
        }
        for (index, _) in agents.agents.iter().enumerate().filter(|(_, agent)| agent.name.is_empty()) {
            report.add(format!("model_repository_agents.agents[{index}].name"), "is required");
        }
    }
}

fn check_metrics(metrics: &ModelMetrics, report: &mut Report) {
    for (index, control) in metrics.metric_control.iter().enumerate() {
        let path = format!("model_metrics.metric_control[{index}]");
        match &control.metric_identifier {
            None => report.add(format!("{path}.metric_identifier"), "is required"),
            Some(identifier) if identifier.family.is_empty() => {
                report.add(format!("{path}.metric_identifier.family"), "is required");
            }
            Some(_) => {}
        }
        match &control.metric_options {
            None => report.add(format!("{path}.histogram_options"), "is required"),
            Some(MetricOptions::HistogramOptions(options)) if options.buckets.is_empty() => {
                report.add(format!("{path}.histogram_options.buckets"), "is required");
            }
            Some(MetricOptions::HistogramOptions(options))
                if !options.buckets.is_sorted_by(|one, next| one < next) || options.buckets[0].is_nan() =>
            {
                report.add(format!("{path}.histogram_options.buckets"), "must ascend");
            }
            Some(MetricOptions::HistogramOptions(_)) => {}
        }
    }
}
