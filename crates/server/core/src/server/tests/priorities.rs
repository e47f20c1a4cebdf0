//! Models that share a resource, whose priorities in the rate limiter differ.

use std::sync::OnceLock;

use nereid_backend_api::{CorrelationId, SequenceFlags};
use nereid_model_config::parse_text;
use proptest::prelude::*;

use super::*;
use crate::scope::ScopedName;
use nereid_scheduling::rate_limiter::{RateLimit, RateLimiter, ResourceLimit};

/// How the requests of a model are scheduled, and whether they belong to sequences.
const SCHEDULERS: [(&str, bool); 4] = [
    ("", false),
    ("dynamic_batching { }", false),
    ("sequence_batching { direct { } }", true),
    ("sequence_batching { oldest { max_candidate_sequences: 4 } }", true),
];

/// A model of one instance that needs all of the shared resource, and one of its own.
fn model(name: &str, priority: u32, scheduling: &str) -> (String, Result<ModelSpec>) {
    let text = format!(
        r#"instance_group {{ count: 1 rate_limiter {{ priority: {priority} resources {{ name: "R" count: 4 }}
            resources {{ name: "of {name}" global: true count: 1 }} }} }} {scheduling}"#
    );
    let given = parse_text(&text).unwrap();
    let mut config = ModelConfig { name: name.to_owned(), max_batch_size: 1, ..config() };
    (config.instance_group, config.scheduling_choice) = (given.instance_group, given.scheduling_choice);
    nereid_model_config::normalise(&mut config);
    (name.to_owned(), Ok(ModelSpec::new(ModelId::plain(name), name, config, [1])))
}

fn request_of(sequences: bool, number: u64) -> InferRequest {
    let mut request = request();
    if sequences {
        request.correlation_id = CorrelationId::Number(number + 1);
        request.sequence = SequenceFlags { start: true, end: true };
    }
    request
}

/// The names of the models in the order of their executions, with this number of requests for each.
fn executions(priorities: &[u32], (scheduling, sequences): (&str, bool), requests: u64) -> Vec<String> {
    let order = Arc::new(Mutex::new(Vec::new()));
    let (gate, seen) = (Gate::default(), Arc::clone(&order));
    let at_gate = gate.clone();
    let limiter = Arc::new(OnceLock::<Arc<RateLimiter>>::new());
    let (limited, others) = (Arc::clone(&limiter), priorities.len() - 1);
    let backend = scripted(move |batch: Batch| {
        at_gate.pass(&batch);
        let name = batch.requests()[0].model_name().to_owned();
        let mut seen = seen.lock().unwrap();
        seen.push(name.clone());
        // As if it took long: the others have time to request the resource while they have requests.
        let left = |name: &String| (seen.iter().filter(|seen| *seen == name).count() as u64) + 1 < requests;
        let all_left = (0..=others).all(|index| left(&format!("m{index}")));
        drop(seen);
        while all_left && limited.get().is_none_or(|limiter| limiter.waiting() < others) {
            thread::yield_now();
        }
        echo(batch);
    });
    let names: Vec<_> = (0..priorities.len()).map(|index| format!("m{index}")).collect();
    let models = names.iter().zip(priorities).map(|(name, priority)| model(name, *priority, scheduling));
    let limits = names.iter().map(|name| (format!("of {name}"), 1)).chain([("R".to_owned(), 4)]);
    let limits = limits.map(|(name, count)| ResourceLimit { name, count, device: None }).collect();
    let options = ServerOptions { rate_limit: RateLimit::ExecutionCount(limits), ..options() };
    let server = server_with(options, backend, models.collect());
    let known = server.models.limiter().expect("executions are limited");
    assert!(limiter.set(known).is_ok());
    let ask = |name: &String, number| {
        let model = server.model(ScopedName::everywhere(name), None).unwrap();
        server.infer(&model, request_of(sequences, number), Caller::default()).unwrap()
    };
    let mut answers = vec![ask(&names[0], 0)];
    gate.entered(1);
    for number in 1..requests {
        answers.extend(names.iter().map(|name| ask(name, number)));
    }
    gate.open();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for mut answer in answers {
        runtime.block_on(answer.single()).unwrap();
    }
    let order = order.lock().unwrap();
    order.clone()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// A model of priority n executes an n-th as often as one of priority 1, as long as all have requests.
    #[test]
    fn executions_are_shared_by_priority(
        priorities in prop::collection::vec(0_u32..6, 2..4),
        scheduler in prop::sample::select(&SCHEDULERS[..]),
    ) {
        let requests = 30;
        let order = executions(&priorities, scheduler, requests);
        let weights: Vec<_> = priorities.iter().map(|&priority| u64::from(priority.max(1))).collect();
        let most = *weights.iter().max().unwrap();
        let mut counts = vec![0; weights.len()];
        for name in &order {
            counts[name[1..].parse::<usize>().unwrap()] += 1;
            if counts.iter().any(|&count| count + 2 > requests) {
                break;
            }
            let weighed = || counts.iter().zip(&weights).map(|(count, weight)| count * weight);
            let apart = weighed().max().unwrap() - weighed().min().unwrap();
            // The model that is behind goes next, unless another one was on its way already.
            prop_assert!(apart <= 2 * most, "{counts:?} of {weights:?} in {order:?}");
        }
    }
}
