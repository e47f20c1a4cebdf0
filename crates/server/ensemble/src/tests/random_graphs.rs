//! Random graphs of adding members compute the same as plain evaluation, for any requested outputs.

use proptest::prelude::*;

use super::*;

/// A step: the earlier tensors that it reads, whether its member batches, and whether its second output is used.
#[derive(Clone, Debug)]
struct Drawn {
    reads: Vec<usize>,
    batches: bool,
    has_second: bool,
}

#[derive(Clone, Debug)]
struct Graph {
    steps: Vec<Drawn>,
    /// The order in which the configuration names the steps.
    order: Vec<usize>,
}

const INPUTS: usize = 2;

fn graphs() -> impl Strategy<Value = Graph> {
    let step = (prop::collection::vec(any::<usize>(), 1..4), any::<bool>(), any::<bool>());
    prop::collection::vec(step, 1..9).prop_flat_map(|drawn| {
        let mut tensors = INPUTS;
        let mut steps = Vec::new();
        for (reads, batches, has_second) in drawn {
            let mut reads: Vec<_> = reads.into_iter().map(|read| read % tensors).collect();
            if steps.is_empty() {
                // Every input has to be read by some step.
                reads = vec![0, 1];
            }
            tensors += 1 + usize::from(has_second);
            steps.push(Drawn { reads, batches, has_second });
        }
        let order: Vec<_> = (0..steps.len()).collect();
        (Just(steps), Just(order).prop_shuffle()).prop_map(|(steps, order)| Graph { steps, order })
    })
}

impl Graph {
    /// The numbers of the tensors that a step writes.
    fn writes(&self, step: usize) -> Vec<usize> {
        let before: usize = self.steps[..step].iter().map(|step| 1 + usize::from(step.has_second)).sum();
        (0..=usize::from(self.steps[step].has_second)).map(|place| INPUTS + before + place).collect()
    }

    fn tensors(&self) -> usize {
        self.writes(self.steps.len() - 1).last().unwrap() + 1
    }

    /// The value of each tensor.
    fn evaluate(&self, inputs: [i64; INPUTS]) -> Vec<i64> {
        let mut values = inputs.to_vec();
        for step in &self.steps {
            let sum = step.reads.iter().fold(1, |sum: i64, &read| sum.wrapping_add(values[read]));
            values.push(sum);
            if step.has_second {
                values.push(sum.wrapping_mul(3));
            }
        }
        values
    }

    /// Every tensor but the inputs is an output, so that any of them may be requested.
    fn ensemble(&self, batches: bool) -> ModelSpec {
        let steps = self.order.iter().map(|&index| {
            let step = &self.steps[index];
            let reads = step.reads.iter().zip(["X", "W", "V"]);
            let inputs: String = reads.map(|(read, name)| format!("{name}=t{read} ")).collect();
            let writes = self.writes(index);
            let outputs = writes.iter().zip(["Y", "Z"]);
            let outputs: String = outputs.map(|(tensor, name)| format!("{name}=t{tensor} ")).collect();
            format!("{}: {inputs}-> {outputs}", model(step.reads.len(), step.batches))
        });
        let steps: Vec<_> = steps.collect();
        let steps: Vec<_> = steps.iter().map(String::as_str).collect();
        let names = |range: std::ops::Range<usize>| {
            let names: Vec<_> = range.map(|tensor| format!("t{tensor}")).collect();
            names.join(" ")
        };
        let tensors = io(&names(0..INPUTS), &names(INPUTS..self.tensors()));
        let (size, tensors) = if batches { (4, tensors) } else { (0, tensors.replace("[ 1 ]", "[ -1, 1 ]")) };
        spec("e", &format!("platform: 'ensemble' max_batch_size: {size} {tensors} {}", scheduling(&steps)))
    }
}

fn model(inputs: usize, batches: bool) -> String {
    format!("{}{inputs}", if batches { "batches" } else { "plain" })
}

/// A member with `inputs` inputs, which adds 1 to their sum.
fn adder(inputs: usize, batches: bool) -> (String, Result<ModelSpec>) {
    let (name, mut spec) = member(&model(inputs, batches), &["X", "W", "V"][..inputs].join(" "), "add", 1);
    if !batches {
        spec.config.max_batch_size = 0;
        let dims = spec.config.input.iter_mut().map(|input| &mut input.dims);
        let dims = dims.chain(spec.config.output.iter_mut().map(|output| &mut output.dims));
        dims.for_each(|dims| *dims = vec![-1, 1]);
    }
    (name, Ok(spec))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn outputs_equal_plain_evaluation(
        graph in graphs(),
        batches in any::<bool>(),
        inputs in prop::collection::vec((-1000_i64..1000, -1000_i64..1000), 1..5),
        wanted in any::<u32>(),
    ) {
        let mut models: BTreeMap<_, _> =
            (1..=3).flat_map(|inputs| [adder(inputs, true), adder(inputs, false)]).collect();
        models.insert("e".into(), Ok(graph.ensemble(batches)));
        let server = server_of(&Members::default(), options(), Arc::new(models));
        let failures = server.start(None).unwrap();
        prop_assert!(failures.is_empty(), "{failures:?}");

        let wanted: Vec<_> = (INPUTS..graph.tensors()).filter(|tensor| wanted >> tensor & 1 == 1).collect();
        let rows = inputs.len() as i64;
        let column = |name: &str, numbers: Vec<i64>| tensor(name, &[rows, 1], &numbers);
        let asked = InferRequest {
            inputs: vec![
                column("t0", inputs.iter().map(|row| row.0).collect()),
                column("t1", inputs.iter().map(|row| row.1).collect()),
            ],
            outputs: wanted.iter().map(|tensor| RequestedOutput::new(format!("t{tensor}"))).collect(),
            ..request(&[])
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let response = runtime.block_on(ask(&server, "e", asked)).unwrap();
        let given: Vec<_> = response.outputs.iter().map(|output| (output.name.clone(), numbers(output))).collect();
        let rows: Vec<_> = inputs.iter().map(|&(one, other)| graph.evaluate([one, other])).collect();
        let expected = (INPUTS..graph.tensors()).filter(|tensor| wanted.is_empty() || wanted.contains(tensor));
        let expected: Vec<_> =
            expected.map(|tensor| (format!("t{tensor}"), rows.iter().map(|row| row[tensor]).collect())).collect();
        prop_assert_eq!(given, expected);
        server.unload_all();
    }
}
