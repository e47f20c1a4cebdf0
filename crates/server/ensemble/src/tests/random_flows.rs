//! Random ensembles with conditions, maps and fallbacks compute the same as a plain interpreter, row by row.

use proptest::prelude::*;

use super::flow::{column, flow_member, with};
use super::*;

/// A part of the graph. It reads numbers and conditions that exist in all rows, and writes one number.
#[derive(Clone, Debug)]
enum Part {
    /// One step, or another one.
    Branch { condition: usize, then: usize, otherwise: usize },
    /// Two steps in a chain, or a value.
    Chain { condition: usize, first: usize, value: Value },
    /// Conditions within a condition.
    Nested { condition: usize, inner: usize, read: usize },
    /// A step that fails if a number is odd, and what replaces it.
    Fallback { read: usize, replaced_by: Replacement },
    /// A fallback under a condition.
    FallbackBranch { condition: usize, read: usize },
    /// A step for each element of a list.
    Map { read: usize, elements: i64, fails: bool },
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Constant(i64),
    Number(usize),
}

#[derive(Clone, Copy, Debug)]
enum Replacement {
    Step,
    /// A step that may fail, then a value.
    StepAndValue(Value),
    Value(Value),
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let at = any::<prop::sample::Index>();
    let place = move || at.clone().prop_map(|at| at.index(1 << 20));
    let value = move || prop_oneof![(-9_i64..9).prop_map(Value::Constant), place().prop_map(Value::Number)];
    let place = || any::<prop::sample::Index>().prop_map(|at| at.index(1 << 20));
    let replacement = prop_oneof![
        Just(Replacement::Step),
        value().prop_map(Replacement::StepAndValue),
        value().prop_map(Replacement::Value)
    ];
    let part = prop_oneof![
        (place(), place(), place()).prop_map(|(condition, then, otherwise)| Part::Branch {
            condition,
            then,
            otherwise
        }),
        (place(), place(), value()).prop_map(|(condition, first, value)| Part::Chain {
            condition,
            first,
            value
        }),
        (place(), place(), place()).prop_map(|(condition, inner, read)| Part::Nested {
            condition,
            inner,
            read
        }),
        (place(), replacement).prop_map(|(read, replaced_by)| Part::Fallback { read, replaced_by }),
        (place(), place()).prop_map(|(condition, read)| Part::FallbackBranch { condition, read }),
        (place(), 0_i64..4, any::<bool>()).prop_map(|(read, elements, fails)| Part::Map {
            read,
            elements,
            fails
        }),
    ];
    prop::collection::vec(part, 1..6)
}

/// The steps and parameters of a graph, and its numbers as a plain interpreter computes them, by row.
struct Built {
    steps: Vec<String>,
    parameters: Vec<(String, String)>,
    numbers: Vec<Vec<i64>>,
}

impl Built {
    /// Part `n` writes number `t{n + 1}`; number `t0` is the input. Condition `c{n}` is whether number `t{n}` is odd.
    fn new(parts: &[Part], input: Vec<i64>) -> Self {
        let mut built =
            Self { steps: vec!["odd: X=t0 -> C=c0".into()], parameters: Vec::new(), numbers: vec![input] };
        for (index, part) in parts.iter().enumerate() {
            let numbers = built.add(part, index + 1);
            built.steps.push(format!("odd: X=t{0} -> C=c{0}", index + 1));
            built.numbers.push(numbers);
        }
        built
    }

    fn place(&self, place: usize) -> usize {
        place % self.numbers.len()
    }

    fn value(&mut self, key: String, value: Value) -> Vec<i64> {
        let rows = self.numbers[0].len();
        let (text, numbers) = match value {
            Value::Constant(number) => (number.to_string(), vec![number; rows]),
            Value::Number(number) => {
                // Fillers cannot be chained.
                let is_other = |(key, value): &(String, String)| {
                    key.ends_with(&format!(":t{}", self.place(number))) && value.starts_with('t')
                };
                let number = if self.parameters.iter().any(is_other) { 0 } else { self.place(number) };
                (format!("t{number}"), self.numbers[number].clone())
            }
        };
        self.parameters.push((key, text));
        numbers
    }

    fn add(&mut self, part: &Part, out: usize) -> Vec<i64> {
        let rows = 0..self.numbers[0].len();
        let is_odd = |number: i64| number % 2 != 0;
        let plus = |number: i64, more: i64| number.wrapping_add(more);
        let mut step = |text: String| self.steps.push(text);
        match *part {
            Part::Branch { condition, then, otherwise } => {
                let count = self.numbers.len();
                let (c, a, b) = (condition % count, then % count, otherwise % count);
                step(format!("one: X=t{a} $if=c{c} -> Y=t{out}"));
                step(format!("two: X=t{b} $unless=c{c} -> Y=t{out}"));
                let [c, a, b] = [c, a, b].map(|place| &self.numbers[place]);
                rows.map(|row| if is_odd(c[row]) { plus(a[row], 1) } else { plus(b[row], 2) }).collect()
            }
            Part::Chain { condition, first, value } => {
                let (c, a) = (self.place(condition), self.place(first));
                self.steps.push(format!("one: X=t{a} $if=c{c} -> Y=u{out}"));
                self.steps.push(format!("two: X=u{out} $if=c{c} -> Y=t{out}"));
                let value = self.value(format!("$if_skipped:t{out}"), value);
                let [c, a] = [c, a].map(|place| &self.numbers[place]);
                rows.map(|row| if is_odd(c[row]) { plus(a[row], 3) } else { value[row] }).collect()
            }
            Part::Nested { condition, inner, read } => {
                let count = self.numbers.len();
                let (c, d, a) = (condition % count, inner % count, read % count);
                step(format!("odd: X=t{d} $if=c{c} -> C=d{out}"));
                step(format!("one: X=t{a} $if=d{out} -> Y=t{out}"));
                step(format!("two: X=t{a} $unless=d{out} -> Y=t{out}"));
                step(format!("three: X=t{a} $unless=c{c} -> Y=t{out}"));
                let [c, d, a] = [c, d, a].map(|place| &self.numbers[place]);
                let more = |row: usize| match (is_odd(c[row]), is_odd(d[row])) {
                    (true, true) => 1,
                    (true, false) => 2,
                    (false, _) => 3,
                };
                rows.map(|row| plus(a[row], more(row))).collect()
            }
            Part::Fallback { read, replaced_by } => {
                let a = self.place(read);
                self.steps.push(format!("fail_odd: X=t{a} -> Y=t{out}"));
                let read = self.numbers[a].clone();
                let fails = read.iter().any(|&number| is_odd(number));
                let step = |more: i64| read.iter().map(|&number| plus(number, more)).collect::<Vec<_>>();
                match replaced_by {
                    Replacement::Step => {
                        self.steps.push(format!("two: $on_error=t{out} X=t{a} -> Y=t{out}"));
                        step(if fails { 2 } else { 7 })
                    }
                    Replacement::StepAndValue(value) => {
                        self.steps.push(format!("fail_odd: $on_error=t{out} X=t{a} -> Y=t{out}"));
                        let value = self.value(format!("$on_error:t{out}"), value);
                        if fails { value } else { step(7) }
                    }
                    Replacement::Value(value) => {
                        let value = self.value(format!("$on_error:t{out}"), value);
                        if fails { value } else { step(7) }
                    }
                }
            }
            Part::FallbackBranch { condition, read } => {
                let (c, a) = (self.place(condition), self.place(read));
                self.steps.push(format!("fail_odd: X=t{a} $if=c{c} -> Y=t{out}"));
                self.steps.push(format!("two: $on_error=t{out} X=t{a} $if=c{c} -> Y=t{out}"));
                self.steps.push(format!("three: X=t{a} $unless=c{c} -> Y=t{out}"));
                let [c, a] = [c, a].map(|place| &self.numbers[place]);
                let fails = rows.clone().any(|row| is_odd(c[row]) && is_odd(a[row]));
                let more = |row: usize| match is_odd(c[row]) {
                    true if fails => 2,
                    true => 7,
                    false => 3,
                };
                rows.map(|row| plus(a[row], more(row))).collect()
            }
            Part::Map { read, elements, fails } => {
                let a = self.place(read);
                let mapped = if fails { "fail_odd" } else { "one" };
                self.steps.push(format!("range{elements}: X=t{a} -> L=l{out}"));
                self.steps.push(format!("{mapped}: $each:X=l{out} -> Y=m{out}"));
                self.steps.push(format!("two: $on_error=m{out} $each:X=l{out} -> Y=m{out}"));
                self.steps.push(format!("total: L=m{out} -> Y=t{out}"));
                let a = &self.numbers[a];
                let all = |row: usize| (0..elements).map(move |number| plus(a[row], number));
                let failed = fails && rows.clone().any(|row| all(row).any(is_odd));
                let more = match (failed, fails) {
                    (true, _) => 2,
                    (false, true) => 7,
                    (false, false) => 1,
                };
                let total = |row: usize| all(row).fold(0_i64, |sum, it| sum.wrapping_add(plus(it, more)));
                rows.map(total).collect()
            }
        }
    }
}

fn members_of_flows() -> Vec<(String, ModelSpec)> {
    let mut members = vec![
        member("one", "X", "add", 1),
        member("two", "X", "add", 2),
        member("three", "X", "add", 3),
        flow_member("fail_odd", "fail_odd", 7),
        flow_member("odd", "odd", 0),
        flow_member("total", "total", 0),
    ];
    members.extend((0..4).map(|elements| flow_member(&format!("range{elements}"), "range", elements)));
    members
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn outputs_equal_those_of_a_plain_interpreter(
        parts in parts(),
        input in prop::collection::vec(-50_i64..50, 1..5),
        batches in any::<bool>(),
        wanted in any::<u32>(),
        reversed in any::<bool>(),
    ) {
        let input = if batches { input } else { input[..1].to_vec() };
        let mut built = Built::new(&parts, input.clone());
        if reversed {
            // Fallbacks keep their order, which has a meaning; there are at most one for each step here.
            built.steps.reverse();
        }
        let names: Vec<_> = (1..=parts.len()).map(|number| format!("t{number}")).collect();
        // The last condition has no readers.
        let conditions = format!("c{}", parts.len());
        let steps: Vec<_> = built.steps.iter().map(String::as_str).filter(|it| !it.ends_with(&format!("C={conditions}"))).collect();
        let steps: Vec<_> = {
            let read = |condition: &str| {
                steps.iter().any(|it| it.contains(&format!("$if={condition} ")) || it.contains(&format!("$unless={condition} ")))
            };
            let is_read = |step: &&str| step.rsplit_once(" -> C=").is_none_or(|(_, condition)| read(condition));
            steps.iter().copied().filter(is_read).collect()
        };
        let mut e = ensemble("e", "t0", &names.join(" "), &steps);
        if !batches {
            e.1.config.max_batch_size = 0;
        }
        for (key, value) in &built.parameters {
            e = with(e, key, value);
        }
        let models: BTreeMap<_, _> =
            members_of_flows().into_iter().chain([e]).map(|(name, spec)| (name, Ok(spec))).collect();
        let server = server_of(&Members::default(), options(), Arc::new(models));
        let failures = server.start(None).unwrap();
        prop_assert!(failures.is_empty(), "{failures:?}");

        let wanted: Vec<_> = (1..=parts.len()).filter(|tensor| wanted >> tensor & 1 == 1).collect();
        let given = if batches { column("t0", &input) } else { tensor("t0", &[1], &input) };
        let asked = InferRequest {
            inputs: vec![given],
            outputs: wanted.iter().map(|tensor| RequestedOutput::new(format!("t{tensor}"))).collect(),
            ..InferRequest::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let response = runtime.block_on(ask(&server, "e", asked)).unwrap();
        let given: Vec<_> = response.outputs.iter().map(|output| (output.name.clone(), numbers(output))).collect();
        let expected = (1..=parts.len()).filter(|tensor| wanted.is_empty() || wanted.contains(tensor));
        let expected: Vec<_> =
            expected.map(|tensor| (format!("t{tensor}"), built.numbers[tensor].clone())).collect();
        prop_assert_eq!(given, expected);
        server.unload_all();
    }
}
